"""The stores under test: a server of their own, and everything about it that can go wrong.

Each holder of a name reaches its server through a proxy of its own, so that one can be cut off
while the others are not. Holders of issues share a backlog, and with it one address of the store.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from tests.servers.dynamodb import DynamoServer
from tests.servers.etcd import Etcd
from tests.servers.git_http import GitHttpServer
from tests.servers.git_repository import bare_repository
from tests.servers.postgres import Postgres
from tests.servers.process import ServerProcess
from tests.servers.proxy import Proxy
from tests.servers.valkey import Valkey
from tests.servers.wall_clock import WallClock

import dibs

_T = TypeVar("_T", bound=ServerProcess)
_CONFIGURATION = """
backlog = "intervals"
leases = "{leases}"
preset = "none"

[[stage]]
name = "one"
next = "done"
attempts = 100000
backoff = "1ms"
backoff_max = "1ms"

[[stage]]
name = "done"
closes = true
"""


class Server(Struct, frozen=True):
    """How a server is stopped and goes on."""

    port: int
    process: ServerProcess
    stop: Callable[[], None]
    """At once, if its data outlives that."""
    start: Callable[[], None]
    clock: WallClock | None = None


class Ground:
    """A store, and the folder or folders of the holders that use it."""

    def __init__(
        self,
        folder: Path,
        opened: ExitStack,
        *,
        ttl_s: float,
        server: Server | None = None,
        url: Callable[[int], str] = lambda _: "",
        file: Path | None = None,
        issues: bool = False,
        program: str = "holder",
    ) -> None:
        self.folder, self.ttl_s, self.server, self.file = folder, ttl_s, server, file
        self.by_issue, self.program = issues, program
        self._opened, self._url = opened, url
        self._shared: tuple[str, Path, Proxy | None] | None = None
        self.names: tuple[str, ...] = ("north", "south")
        if issues:
            self._shared = leases, where, _ = self._reach("shared")
            with dibs.open(where, leases=leases or None) as backlog:
                self.names = tuple(str(backlog.add(name).ref.key) for name in self.names)

    def reach(self, who: str) -> tuple[str, Path, Proxy | None]:
        """The address, the folder and the proxy of a holder."""
        return self._shared or self._reach(who)

    def _reach(self, who: str) -> tuple[str, Path, Proxy | None]:
        where = self.folder / who
        where.mkdir()
        proxy = self._opened.enter_context(Proxy(self.server.port)) if self.server else None
        leases = self._url(proxy.port if proxy else 0)
        text = _CONFIGURATION.format(leases=leases or "auto")
        (where / "dibs.toml").write_text(text, "utf-8")
        return leases, where, proxy

    def lock(self) -> sqlite3.Connection:
        """Somebody else writes to the store's file, until this connection is closed."""
        assert self.file is not None
        connection = sqlite3.connect(self.file, timeout=0, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        return connection


class _Stepped:
    """A server process under a clock that can be stepped."""

    clock: WallClock

    def start(self, command: Any, ready: Any, **options: Any) -> None:
        environment = {**os.environ, **self.clock.environment()}
        super().start(command, ready, env=environment, **options)  # type: ignore[misc]


def _stepped(kind: type[_T], folder: Path, opened: ExitStack) -> Server:
    clock = WallClock(folder / "server.clock")
    for above in (folder, *folder.parents[:1]):
        above.chmod(above.stat().st_mode | 0o055)  # PostgreSQL runs as another account
    server: Any = type(f"Stepped{kind.__name__}", (_Stepped, kind), {"clock": clock})()
    opened.callback(server.close)
    return Server(server.port, server, server.kill, server.run, clock)


def _redis_url(port: int) -> str:
    return f"redis://127.0.0.1:{port}?namespace=intervals&timeout=2"


def _sqlite(folder: Path, opened: ExitStack) -> Ground:
    file = folder / "leases.db"
    return Ground(folder, opened, ttl_s=1.0, url=lambda _: f"sqlite:{file}", file=file)


def _embedded(folder: Path, opened: ExitStack) -> Ground:
    file = folder / "shared" / ".dibs" / "backlog.db"
    return Ground(folder, opened, ttl_s=1.0, file=file, issues=True)


def _comments(folder: Path, opened: ExitStack) -> Ground:
    file = folder / "shared" / ".dibs" / "backlog.db"
    return Ground(folder, opened, ttl_s=2.0, url=lambda _: "comments", file=file, issues=True)


def _redis(folder: Path, opened: ExitStack) -> Ground:
    server = _stepped(Valkey, folder, opened)
    return Ground(folder, opened, ttl_s=1.0, server=server, url=_redis_url)


def _redis_issues(folder: Path, opened: ExitStack) -> Ground:
    server = _stepped(Valkey, folder, opened)
    return Ground(folder, opened, ttl_s=1.0, server=server, url=_redis_url, issues=True)


def _control(folder: Path, opened: ExitStack) -> Ground:
    server = _stepped(Valkey, folder, opened)
    return Ground(folder, opened, ttl_s=1.0, server=server, url=_redis_url, program="naive")


def _postgres(folder: Path, opened: ExitStack) -> Ground:
    def url(port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?namespace=intervals&timeout=2"

    server = _stepped(Postgres, folder, opened)
    return Ground(folder, opened, ttl_s=1.0, server=server, url=url)


def _etcd(folder: Path, opened: ExitStack) -> Ground:
    member = Etcd()
    opened.callback(member.close)
    member.start()
    server = Server(member.port, member._process, member.kill, member.start)
    return Ground(
        folder,
        opened,
        ttl_s=2.0,
        server=server,
        url=lambda port: f"etcd://127.0.0.1:{port}/intervals?timeout=2",
    )


def _dynamodb(folder: Path, opened: ExitStack) -> Ground:
    emulator = DynamoServer()
    opened.callback(emulator.close)

    def url(port: int) -> str:
        endpoint = f"http://127.0.0.1:{port}"
        return emulator.url("leases", create="true", endpoint=endpoint, timeout=2)

    server = Server(emulator.port, emulator._server, emulator.stop, emulator.start)
    return Ground(folder, opened, ttl_s=2.0, server=server, url=url)


def _git(folder: Path, opened: ExitStack) -> Ground:
    http = GitHttpServer()
    opened.callback(http.close)
    bare_repository(http.folder / "leases.git")
    server = Server(http.port, http, http.kill, http.begin)
    return Ground(
        folder,
        opened,
        ttl_s=4.0,
        server=server,
        url=lambda port: f"git:http://127.0.0.1:{port}/leases.git",
    )


CONTROL = "control"
GROUNDS: dict[str, Callable[[Path, ExitStack], Ground]] = {
    "sqlite": _sqlite,
    "embedded": _embedded,
    "comments": _comments,
    "redis": _redis,
    "redis-issues": _redis_issues,
    "postgres": _postgres,
    "etcd": _etcd,
    "dynamodb": _dynamodb,
    "git": _git,
    CONTROL: _control,
}
