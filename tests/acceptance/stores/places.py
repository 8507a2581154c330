"""Where leases are kept in these tests: a fresh namespace of a store on a real server.

The server is that of the test process, started by whoever asks first. If it cannot be started the
test fails: what was not tried is not passed.
"""

import itertools
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.servers.dynamodb import dynamodb
from tests.servers.etcd import single
from tests.servers.postgres import postgres
from tests.servers.proxy import Proxy
from tests.servers.valkey import valkey

from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.leases import SqliteLeases
from dibs.ports.leases import LeaseStore
from dibs.wiring.stores import ClosableStore, Surroundings, open_store

_names = (f"faults_{os.getpid()}_{number}" for number in itertools.count(1))


class Place:
    """One namespace, reached directly or through a proxy."""

    def __init__(
        self,
        kind: str,
        server: Any,
        url: Callable[[int, str], str],
        opened: ExitStack,
        folder: Path,
    ) -> None:
        self.kind, self.server = kind, server
        self._url, self._opened, self._folder = url, opened, folder
        self._name = next(_names)
        self._down = False
        opened.callback(self.mend)

    def url(self, port: int | None = None, *, timeout_s: int | None = None) -> str:
        url = self._url(port or self.server.port, self._name)
        if timeout_s is None:
            return url
        return f"{url}{'&' if '?' in url else '?'}timeout={timeout_s}"

    def open(self, port: int | None = None, *, timeout_s: int | None = None) -> LeaseStore:
        """A client of this process."""
        url = self.url(port, timeout_s=timeout_s)
        store: ClosableStore = open_store(url, Surroundings(self._folder))
        self._opened.callback(store.close)
        return store

    def proxy(self) -> Proxy:
        return self._opened.enter_context(Proxy(self.server.port))

    def kill(self) -> None:
        """SIGKILL; the data stays where it is."""
        self._down = True
        self.server.kill()

    def start(self) -> None:
        """On the same data and the same port."""
        (self.server.start if self.kind == "etcd" else self.server.run)()
        self._down = False

    def mend(self) -> None:
        """The next test finds the server as this one did, whatever came of this one."""
        if self._down:
            self.start()


class FilePlace(Place):
    """A file: it has no server that could be killed or cut off."""

    def __init__(self, opened: ExitStack, folder: Path) -> None:
        super().__init__("sqlite", None, lambda _, __: "", opened, folder)
        self.path = folder / "leases.db"

    def url(self, port: int | None = None, *, timeout_s: int | None = None) -> str:
        return f"sqlite:{self.path}"

    def open(self, port: int | None = None, *, timeout_s: int | None = None) -> LeaseStore:
        database = Database(self.path)
        self._opened.callback(database.close)
        return SqliteLeases(database)


def _redis(opened: ExitStack, folder: Path) -> Place:
    return Place(
        "redis",
        valkey(),
        lambda port, name: f"redis://127.0.0.1:{port}?namespace={name}",
        opened,
        folder,
    )


def _postgres(opened: ExitStack, folder: Path) -> Place:
    return Place(
        "postgres",
        postgres(),
        lambda port, name: f"postgresql://postgres@127.0.0.1:{port}/postgres?namespace={name}",
        opened,
        folder,
    )


def _etcd(opened: ExitStack, folder: Path) -> Place:
    return Place(
        "etcd", single(), lambda port, name: f"etcd://127.0.0.1:{port}/{name}", opened, folder
    )


def _dynamodb(opened: ExitStack, folder: Path) -> Place:
    server = dynamodb()

    def url(port: int, name: str) -> str:
        endpoint = f"http://127.0.0.1:{port}"
        return server.url("leases", namespace=name, create="true", endpoint=endpoint)

    return Place("dynamodb", server, url, opened, folder)


KINDS: dict[str, Callable[[ExitStack, Path], Place]] = {
    "sqlite": FilePlace,
    "redis": _redis,
    "postgres": _postgres,
    "etcd": _etcd,
    "dynamodb": _dynamodb,
}
KILLED = ("redis", "postgres", "etcd")
"""Servers whose data outlives them. (DynamoDB's emulator forgets everything when it is killed.)"""
CUT_OFF = (*KILLED, "dynamodb")
"""Those behind a connection that can be cut."""
CLOCKED = ("sqlite", *KILLED)
"""Those that judge by a time of their own. (DynamoDB has none: its clients watch.)"""
