"""What one claim on the embedded backlog costs, counted in transactions."""

import sqlite3
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

import dibs
from dibs.adapters.sqlite.database import Database
from dibs.core.ids import HolderId
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.settings.load import load
from dibs.wiring.services import connect


@contextmanager
def counted(monkeypatch):
    """How many transactions are begun inside, of either kind; what joins another one is none."""
    begun = Counter()
    lending = Database._connection

    @contextmanager
    def counting(self):
        begun["transaction"] += 1
        with lending(self) as sql:
            yield sql

    monkeypatch.setattr(Database, "_connection", counting)
    yield begun


@pytest.fixture
def issue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dibs.open(tmp_path) as backlog:
        first = backlog.add("the first appoints the granter")
        with backlog.lease(first) as held:
            held.advance()
        return backlog.add("one").ref


def test_a_claim_to_its_end_is_two_transactions(issue, monkeypatch):
    services = connect(load(None), author="me")
    with counted(monkeypatch) as begun:
        claimed = services.claiming.claim(issue, None, ClaimOptions(holder=HolderId("me")))
        assert isinstance(claimed, Claimed)
        services.advancing.advance(services.keep(claimed))
    services.close()
    assert begun == {"transaction": 2}


def test_a_claim_to_its_end_reads_nothing_twice_and_starts_no_thread_of_its_own(
    issue, tmp_path, monkeypatch
):
    statements = []
    connected = sqlite3.connect

    def traced(*arguments, **options):
        sql = connected(*arguments, **options)
        sql.set_trace_callback(statements.append)
        return sql

    monkeypatch.setattr(sqlite3, "connect", traced)
    with dibs.open(tmp_path) as backlog:
        statements.clear()
        with backlog.lease(issue) as held:
            held.advance()
        threads = [thread.name for thread in threading.enumerate()]
    one, two = " ".join(statements).split("COMMIT")[:2]
    for transaction in (one, two):
        for table in ("issues", "comments", "leases", "granter", "pauses", "shelf"):
            assert transaction.count(f"FROM {table}") <= 1, table
    assert len(statements) <= 34
    assert not [name for name in threads if name.startswith(("dibs-keeper", "dibs-watch"))]
