"""What the embedded database keeps beside issues: who grants, what is paused, its own version."""

import sqlite3
from contextlib import closing

import pytest

from dibs.adapters.sqlite.control import SqliteGranters, SqlitePauses
from dibs.adapters.sqlite.database import SCHEMA_VERSION, Database
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.core.eligibility import PauseScope
from dibs.core.errors import Damaged, NoSuchIssue
from dibs.core.granter import Appointed, Moving
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Draft


@pytest.fixture
def path(tmp_path):
    return tmp_path / "backlog.db"


@pytest.fixture
def database(path):
    with closing(Database(path)) as opened:
        yield opened


def test_who_grants_is_read_back_by_another_process(database, path):
    here = SqliteGranters(database)
    assert here.granter() is None
    first = Appointed("auto", Fence(7))
    moving = Moving("auto", "redis://x", Fence(7), RunId("mover"))
    with closing(Database(path)) as other:
        there = SqliteGranters(other)
        for before, granter in ((None, first), (first, moving)):
            assert here.appoint(granter, instead_of=before) == granter
            assert here.granter() == there.granter() == there.lately() == granter
        late = Appointed("etcd://y", Fence(9))
        assert there.appoint(late, instead_of=first) == moving, "it was changed meanwhile"
    assert here.granter() == moving


def test_a_pause_is_ended_once(database):
    pauses = SqlitePauses(database)
    pauses.pause(PauseScope.FLEET, repo="", reason="deploy", by="ada")
    assert [pause.reason for pause in pauses.pauses()] == ["deploy"]
    assert pauses.resume(PauseScope.FLEET, repo="", by="ann") is True
    assert pauses.resume(PauseScope.FLEET, repo="", by="ann") is False
    assert pauses.pauses() == ()


def test_an_issue_of_a_repository_is_none_of_the_embedded_trackers(database):
    tracker = SqliteTracker(database)
    number = tracker.create(Draft("Prices are wrong")).ref.key
    for ref in (IssueRef("acme/shop", number), IssueRef("", "x"), IssueRef("", "9" * 30)):
        with pytest.raises(NoSuchIssue):
            tracker.read(ref)


def test_the_file_of_a_later_version_is_left_alone(path, database):
    SqliteTracker(database).create(Draft("Prices are wrong"))
    with closing(sqlite3.connect(path)) as sql:
        sql.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with closing(Database(path)) as later, pytest.raises(Damaged, match="later version"):
        SqliteTracker(later).create(Draft("Prices are wrong"))
