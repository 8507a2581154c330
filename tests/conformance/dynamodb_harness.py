"""DynamoDB leases under test: two clients with eyes of their own, on an emulator of this machine.

There is no store clock to wait for: time is what the clients watch. A restart ends the emulator in
good order and starts it on the file that it left, and the clients forget what they had seen.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from tests.servers.dynamodb import DynamoServer, dynamodb
from tests.servers.process import free_port

from dibs.adapters.dynamodb.leases import DynamoLeases
from dibs.adapters.system import SystemClock
from dibs.testing.conformance import LeaseHarness

TABLE = "leases"


def outwait(seconds: float) -> None:
    """Wait on this machine's monotonic clock, for as long as it takes and no longer."""
    clock, pause = SystemClock(), threading.Event()
    until = clock.now() + seconds
    while (left := until - clock.now()) > 0:
        pause.wait(min(left, 0.1))


class DynamoHarness(LeaseHarness):
    short = timedelta(seconds=0.5)
    sequences = 3

    def __init__(self, server: DynamoServer, opened: ExitStack) -> None:
        self.server, self._opened = server, opened
        self.namespace = secrets.token_hex(6)
        super().__init__(self.client())
        self._second = self.client()

    def url(self, **options: object) -> str:
        return self.server.url(TABLE, namespace=self.namespace, create="true", **options)

    def client(self, **handed) -> DynamoLeases:
        """One that has seen nothing yet."""
        store = DynamoLeases.connect(self.url(), **handed)
        self._opened.callback(store.close)
        return store

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        outwait(seconds)

    def restart(self):
        self._opened.close()
        self.server.restart()
        self.store, self._second = self.client(), self.client()
        return self.store

    def cut_off(self):
        nobody = f"http://127.0.0.1:{free_port()}"
        store = DynamoLeases.connect(self.url(endpoint=nobody, timeout=0.5))
        self._opened.callback(store.close)
        return store


@contextmanager
def dynamodb_leases() -> Iterator[DynamoHarness]:
    with ExitStack() as opened:
        yield DynamoHarness(dynamodb(), opened)
