"""The PostgreSQL store on a real server, in a schema of its own for each check."""

import itertools
import os
import threading
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta

import psycopg
from tests.servers.postgres import Postgres, postgres
from tests.servers.process import free_port

from dibs.adapters.postgres.leases import PostgresLeases
from dibs.testing.conformance import LeaseHarness

_names = (f"conformance_{os.getpid()}_{number}" for number in itertools.count(1))


def outwait(url: str, seconds: float) -> None:
    """Wait on the server's own clock, for as long as it takes and no longer."""
    pause = threading.Event()
    with closing(psycopg.connect(url, autocommit=True)) as sql:

        def now() -> float:
            return sql.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()[0]

        until = now() + seconds
        while (left := until - now()) > 0:
            pause.wait(min(left, 0.1))


class PostgresHarness(LeaseHarness):
    short = timedelta(seconds=0.4)
    sequences = 3

    def __init__(self, server: Postgres, opened: ExitStack) -> None:
        self._server, self._opened = server, opened
        self.url = f"{server.url()}?namespace={next(_names)}&timeout=20"
        super().__init__(self.open())
        self._second = self.open()

    def open(self, url: str = "") -> PostgresLeases:
        return self._opened.enter_context(closing(PostgresLeases.connect(url or self.url)))

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        outwait(self._server.url(), seconds)

    def restart(self):
        self._server.restart()
        self.store, self._second = self.open(), self.open()
        return self.store

    def cut_off(self):
        return self.open(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres?timeout=2")


@contextmanager
def postgres_leases():
    with ExitStack() as opened:
        yield PostgresHarness(postgres(), opened)
