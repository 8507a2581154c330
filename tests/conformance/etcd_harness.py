"""The etcd store on a real member, whose clock ticks in seconds."""

import itertools
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from tests.servers.etcd import single
from tests.servers.process import free_port, wait_until

from dibs.adapters.etcd.leases import EtcdLeases
from dibs.adapters.system import SystemClock
from dibs.testing.conformance import LeaseHarness

_prefixes = (f"t{number}" for number in itertools.count())


class SkewedClock(SystemClock):
    """A local clock that is wrong by a fixed span."""

    def __init__(self, by: timedelta) -> None:
        self._by_s = by.total_seconds()

    def now(self):
        return super().now() + self._by_s


class EtcdHarness(LeaseHarness):
    short = timedelta(seconds=0.9)  # which etcd makes one second of
    sequences = 3

    def __init__(self, server, opened: ExitStack) -> None:
        self._server, self._opened = server, opened
        self.prefix = next(_prefixes)
        super().__init__(self._client())
        self._second = self._client()

    def _client(self, clock=None, endpoint=None, options=""):
        endpoint = endpoint or self._server.endpoint
        store = EtcdLeases(f"etcd://{endpoint}/{self.prefix}{options}", clock)
        self._opened.callback(store.close)
        return store

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        until = self._server.now() + timedelta(seconds=seconds)
        wait_until(lambda: self._server.now() >= until, "etcd's clock has gone on")

    def restart(self):
        self._server.restart()
        self.store, self._second = self._client(), self._client()
        return self.store

    def skewed(self, by: timedelta):
        return self._client(SkewedClock(by))

    def cut_off(self):
        return self._client(endpoint=f"127.0.0.1:{free_port()}", options="?timeout=1")


@contextmanager
def etcd_leases():
    with ExitStack() as opened:
        yield EtcdHarness(single(), opened)
