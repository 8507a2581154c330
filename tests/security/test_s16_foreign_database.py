"""A repository names another program's database as its tracker or its lease store.

Actor: a repository. Attack (S16): its dibs.toml says `tracker = "sqlite:app.db"`, and a person
lists its issues: dibs made thirteen tables and indexes in that database.
Or it brings a backlog along, in which SQL of its own runs when dibs reads or writes, for ever.
Wall: a database with anything in it counts as ours only by our mark or our clock; every other is
refused before the first write. What is in a backlog has an end in time and in size.
"""

import contextlib
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from dibs.adapters.sqlite import database
from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.core.errors import Damaged
from dibs.core.ids import IssueRef
from dibs.ports.tracker import Draft

from .conftest import Victim
from .handlers import work


def _plain(sql: sqlite3.Connection) -> None:
    sql.execute("CREATE TABLE customers (name TEXT)")
    sql.execute("INSERT INTO customers VALUES ('somebody')")


def _with_our_version(sql: sqlite3.Connection) -> None:
    _plain(sql)
    sql.execute("PRAGMA user_version = 1")


def _with_a_clock(sql: sqlite3.Connection) -> None:
    sql.execute("CREATE TABLE clock (id INTEGER PRIMARY KEY, high INTEGER)")
    sql.execute("CREATE TABLE issues (title TEXT)")


def _marked_and_empty(sql: sqlite3.Connection) -> None:
    sql.execute("PRAGMA application_id = 1196437808")  # as GeoPackage marks its files


def _written_ahead(sql: sqlite3.Connection) -> None:
    sql.execute("PRAGMA journal_mode = WAL")
    _plain(sql)


FOREIGN = (_plain, _with_our_version, _with_a_clock, _marked_and_empty, _written_ahead)


def _make(file: Path, fill: Callable[[sqlite3.Connection], None]) -> bytes:
    with contextlib.closing(sqlite3.connect(file)) as sql, sql:
        fill(sql)
    return file.read_bytes()


def _names(file: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(file)) as sql:
        return [row[0] for row in sql.execute("SELECT name FROM sqlite_master")]


@pytest.mark.parametrize("fill", FOREIGN)
def test_another_programs_database_is_not_written_into(
    victim: Victim, fill: Callable[[sqlite3.Connection], None]
) -> None:
    file = victim.folder / "app.db"
    before = _make(file, fill)
    victim.configure('tracker = "sqlite:app.db"\n')
    for words in (("list",), ("add", "one"), ("status",), ("doctor",), ("work", "--once")):
        ran = victim.dibs(*words)
        assert file.read_bytes() == before, words
        assert ran.returncode != 0, words
        assert "the database of another program" in ran.stdout + ran.stderr, words


def test_neither_as_the_lease_store(victim: Victim) -> None:
    file = victim.folder / "app.db"
    before = _make(file, _plain)
    victim.configure('leases = "sqlite:app.db"\n')
    victim.dibs("add", "one")
    ran = victim.dibs("claim", "1")
    assert file.read_bytes() == before
    assert "the database of another program" in ran.stderr
    assert victim.dibs("hold", "deploy", "--", "true").returncode != 0
    assert file.read_bytes() == before


def test_nor_what_is_no_database(victim: Victim) -> None:
    file = victim.folder / "notes.txt"
    file.write_text("a note to myself\n" * 100)
    before = file.read_bytes()
    victim.configure('tracker = "sqlite:notes.txt"\n')
    assert victim.dibs("list").returncode != 0
    assert victim.dibs("add", "one").returncode != 0
    assert file.read_bytes() == before


_ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t"
_COMMENTS = "SELECT 1 id, 1 number, '' author, '' body, 0 created_at, 0 updated_at"
PLANTED = {
    "trigger": f"CREATE TRIGGER evil AFTER INSERT ON issues BEGIN {_ENDLESS}; END",
    "view": f"DROP TABLE comments; CREATE VIEW comments AS {_COMMENTS} WHERE ({_ENDLESS})",
    "size": "UPDATE issues SET title = hex(zeroblob(32000000))",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_backlog_from_an_archive_runs_nothing_without_end(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """It is unpacked with the repository, and SQLite would not stop at Ctrl-C."""
    victim.dibs("add", "one")
    file = victim.folder / ".dibs" / "backlog.db"
    with contextlib.closing(sqlite3.connect(file)) as sql, sql:
        sql.executescript(PLANTED[planted])
    monkeypatch.setattr(database, "_LONGEST_S", 0.5)
    with pytest.raises(Damaged, match=r"too long|too big"):  # noqa: PT012 - each step may be it
        tracker = SqliteTracker(Database(file))
        tracker.create(Draft("two"))
        tracker.read(IssueRef("", "1"))
    with contextlib.closing(sqlite3.connect(file)) as sql:
        [(count,)] = sql.execute("SELECT COUNT(*) FROM issues")
    assert count == (1 if planted == "trigger" else 2)


SHORTER = """\
import dibs.adapters.sqlite.database as database
database._LONGEST_S = 0.5
"""
ENDLESS = "database._STEPS = 2**31 - 1"


def test_the_program_says_so_and_ends(victim: Victim) -> None:
    victim.dibs("add", "one")
    with contextlib.closing(sqlite3.connect(victim.folder / ".dibs" / "backlog.db")) as sql, sql:
        sql.executescript(PLANTED["trigger"])
    ran = work(victim, "add", "two", without=SHORTER)
    assert ran.returncode == 1
    assert "takes too long to answer" in ran.stderr
    with pytest.raises(subprocess.TimeoutExpired):  # the control
        work(victim, "add", "two", without=SHORTER + ENDLESS, limit_s=5)


def test_control_an_empty_database_becomes_ours(victim: Victim) -> None:
    file = victim.folder / "app.db"
    _make(file, lambda sql: sql.execute("VACUUM"))  # type: ignore[arg-type, return-value]
    victim.configure('tracker = "sqlite:app.db"\n')
    assert victim.dibs("add", "one").returncode == 0
    assert "issues" in _names(file)
    assert victim.dibs("list").returncode == 0


def test_control_without_the_check_the_tables_are_made(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = victim.folder / "app.db"
    _make(file, _plain)
    victim.configure('tracker = "sqlite:app.db"\n')
    monkeypatch.setattr(Database, "_version", lambda *_: 0)
    with dibs.open(victim.folder) as backlog:
        assert list(backlog.board.rows()) == []
    assert len(_names(file)) > 10
