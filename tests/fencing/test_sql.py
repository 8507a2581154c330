"""What is particular to SQL: names, spellings, transactions of the caller."""

import contextlib
import sqlite3
import threading

import pg8000.dbapi
import psycopg
import pytest
import sqlalchemy
from tests.servers.postgres import postgres
from tests.servers.process import wait_until

from dibs.core.errors import Misuse
from dibs.fencing import Applied, Conflict, Missing, Stale, sql
from dibs.fencing.connections import paramstyle_of

from .places import make, pg8000_at

KEY = {"issue": 12}


@pytest.fixture
def connection(tmp_path):
    place = make("sqlite", tmp_path).partition("|")[0]
    with contextlib.closing(sqlite3.connect(place)) as made:
        yield made


def test_a_table_with_nothing_but_a_fence_will_do(connection):
    connection.execute("CREATE TABLE plain (id TEXT PRIMARY KEY, body TEXT, fence INTEGER)")
    connection.execute("INSERT INTO plain (id, body) VALUES ('a', '')")
    assert sql.guarded_update(connection, "plain", {"id": "a"}, {"body": "x"}, 7) == Applied()
    assert sql.guarded_update(connection, "plain", {"id": "a"}, {"body": "y"}, 6) == Stale(7)
    assert sql.stamp(connection, "plain", {"id": "a"}, 8) == Applied()
    assert sql.stamp(connection, "plain", {"id": "b"}, 8) == Missing()
    assert connection.execute("SELECT * FROM plain").fetchall() == [("a", "x", 8)]


def test_columns_may_have_other_names_and_be_quoted(connection):
    connection.execute('CREATE TABLE "some runs" ("order" INTEGER, body TEXT, fence_token INTEGER)')
    connection.execute('INSERT INTO "some runs" VALUES (1, NULL, 0)')
    table = sql.Table('main."some runs"', fence="fence_token")
    assert sql.guarded_update(connection, table, {'"order"': 1}, {"body": "x"}, 7) == Applied()
    assert connection.execute('SELECT * FROM "some runs"').fetchall() == [(1, "x", 7)]


def test_other_rows_are_not_touched(connection):
    sql.guarded_update(connection, "reports", KEY, {"body": "x"}, 7)
    assert connection.execute("SELECT * FROM reports WHERE issue = 13").fetchone() == (
        *(13, "", 99),
        *(1, 0),
    )


@pytest.mark.parametrize("value", ["it's; DROP TABLE reports; --", "%s ? :v1 %(v1)s", None, 5])
def test_values_are_never_part_of_the_statement(connection, value):
    connection.execute("CREATE TABLE plain (id TEXT, body, fence INTEGER)")
    connection.execute("INSERT INTO plain VALUES (?, '', 0)", (str(value),))
    assert sql.guarded_update(connection, "plain", {"id": str(value)}, {"body": value}, 7)
    assert connection.execute("SELECT body FROM plain").fetchone() == (value,)


@pytest.mark.parametrize(
    "name", ["", "a b", "reports; DROP TABLE reports", 'x"', '"a"b"', "a.b.c.d", "a?", "1a", "é"]
)
def test_what_is_no_name_is_refused_before_anything_is_sent(connection, name):
    for call in (
        lambda: sql.guarded_update(connection, name, KEY, {"body": "x"}, 7),
        lambda: sql.guarded_update(connection, "reports", {name: 12}, {"body": "x"}, 7),
        lambda: sql.guarded_update(connection, "reports", KEY, {name: "x"}, 7),
        lambda: sql.create_table(connection, name),
        lambda: sql.Table("reports", fence=name),
    ):
        with pytest.raises(Misuse, match="not a name"):
            call()
    assert not connection.in_transaction


@pytest.mark.parametrize(
    ("key", "changes", "more", "words"),
    [
        ({}, {"body": "x"}, {}, "needs columns"),
        ({"issue": None}, {"body": "x"}, {}, "needs columns"),
        (KEY, {}, {}, "a stamp"),
        (KEY, {"fence": 9}, {}, "kept by the guard"),
        ({"fence": 7}, {"body": "x"}, {}, "kept by the guard"),
        (KEY, {"body": "x"}, {"version": 1}, "name their columns"),
        (KEY, {"body": "x"}, {"step": 1}, "name their columns"),
    ],
)
def test_what_cannot_be_guarded_is_refused(connection, key, changes, more, words):
    with pytest.raises(Misuse, match=words):
        sql.guarded_update(connection, "reports", key, changes, 7, **more)
    assert not connection.in_transaction


def test_a_key_that_names_several_rows_is_told_so(connection):
    connection.execute("CREATE TABLE plain (id TEXT, body TEXT, fence INTEGER)")
    connection.execute("INSERT INTO plain VALUES ('a', '', 0), ('a', '', 0)")
    with pytest.raises(Misuse, match="names 2 rows"):
        sql.guarded_update(connection, "plain", {"id": "a"}, {"body": "x"}, 7)


def test_the_caller_ends_the_transaction(connection, tmp_path):
    sql.guarded_update(connection, "reports", KEY, {"body": "x"}, 7)
    connection.rollback()
    assert connection.execute("SELECT body, fence FROM reports").fetchone() == ("", None)


def test_a_lost_update_between_two_threads_of_one_holder_is_a_conflict(connection):
    """The fence stops old holders; the version stops the holder from overtaking itself."""
    table = sql.Table("reports", version="version")
    (version,) = connection.execute("SELECT version FROM reports WHERE issue = 12").fetchone()
    first = sql.guarded_update(connection, table, KEY, {"body": "a"}, 7, version=version)
    second = sql.guarded_update(connection, table, KEY, {"body": "b"}, 7, version=version)
    assert first == Applied(version + 1)
    assert isinstance(second, Conflict)
    assert f"version {version + 1}" in second.why


def test_a_stamp_makes_no_new_version(connection):
    table = sql.Table("reports", version="version")
    sql.stamp(connection, table, KEY, 8)
    assert sql.guarded_update(connection, table, KEY, {"body": "a"}, 8, version=1) == Applied(2)


# Drivers


class Mine(sqlite3.Connection):
    """A connection of the caller's own make."""


class Wrapped:
    """A connection behind another face, as pools have."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._inner = connection

    def cursor(self) -> sqlite3.Cursor:
        return self._inner.cursor()

    def commit(self) -> None:
        self._inner.commit()

    def rollback(self) -> None:
        self._inner.rollback()


def test_the_spelling_is_the_drivers(connection):
    assert paramstyle_of(connection) == "qmark"
    with contextlib.closing(sqlite3.connect(":memory:", factory=Mine)) as mine:
        assert paramstyle_of(mine) == "qmark"
    with psycopg.connect(postgres().url()) as made:
        assert paramstyle_of(made) == "pyformat"


def test_a_driver_that_does_not_say_is_told_by_the_caller(connection):
    wrapped = Wrapped(connection)
    with pytest.raises(Misuse, match="paramstyle="):
        sql.stamp(wrapped, "reports", KEY, 7)
    assert sql.stamp(wrapped, "reports", KEY, 7, paramstyle="qmark") == Applied()
    connection.commit()
    sql.create_table(wrapped)
    with sql.guarded(wrapped, "r", 7, paramstyle="qmark") as writes:
        assert writes is wrapped
    assert sql.stamp_resource(connection, "r", 6) == Stale(7)


@pytest.mark.parametrize("style", ["qmark", "numeric", "named", "format", "pyformat"])
def test_every_spelling_of_pep_249_reaches_a_real_server(style, tmp_path, monkeypatch):
    place, _, table = make("postgres", tmp_path).partition("|")
    monkeypatch.setattr(pg8000.dbapi, "paramstyle", style)
    fenced = sql.Table(table, version="version", step="step")
    with contextlib.closing(pg8000_at(place)) as made:
        assert paramstyle_of(made) == style
        outcome = sql.guarded_update(made, fenced, KEY, {"body": "100%"}, 7, version=1, step=1)
        assert outcome == Applied(2)
        assert sql.guarded_update(made, fenced, KEY, {"body": "late"}, 6) == Stale(7)
        sql.create_table(made, f"fences_{table}")
        with sql.guarded(made, "it's %s", 7, table=f"fences_{table}"):
            pass
        assert sql.stamp_resource(made, "it's %s", 6, table=f"fences_{table}") == Stale(7)


def test_rows_may_come_as_mappings(connection, tmp_path):
    connection.row_factory = sqlite3.Row
    assert sql.stamp(connection, "reports", KEY, 8) == Applied()
    assert sql.stamp(connection, "reports", KEY, 7) == Stale(8)
    place, _, table = make("postgres", tmp_path).partition("|")
    with psycopg.connect(place, row_factory=psycopg.rows.dict_row) as made:
        fenced = sql.Table(table, version="version", step="step")
        assert sql.stamp(made, fenced, KEY, 8) == Applied()
        assert sql.stamp(made, fenced, KEY, 7) == Stale(8)


def test_the_override_is_heard_by_sqlalchemy_too(tmp_path):
    place, _, table = make("sqlite", tmp_path).partition("|")
    engine = sqlalchemy.create_engine(f"sqlite:///{place}")
    with engine.begin() as made:
        assert sql.stamp(made, table, KEY, 7, paramstyle="named") == Applied()
    with engine.connect() as made:
        assert sql.stamp(made, table, KEY, 6) == Stale(7)
    engine.dispose()


def test_resources_need_a_name_that_fits(connection):
    sql.create_table(connection)
    for name in ("", "x" * 256):
        with pytest.raises(Misuse, match="characters"):
            sql.stamp_resource(connection, name, 7)
    assert sql.stamp_resource(connection, "ü" * 255, 7) == Applied()


def test_two_that_come_first_at_once_are_served_one_after_the_other(tmp_path):
    """Both find no row; one inserts; the other, which waited for it, begins anew."""
    name = f"fences_{tmp_path.name}".replace("-", "_")
    url = postgres().url()
    with psycopg.connect(url) as one, psycopg.connect(url) as other:
        sql.create_table(one, name)
        with sql.guarded(one, "r", 7, table=name):
            told = []
            late = threading.Thread(
                target=lambda: told.append(sql.stamp_resource(other, "r", 6, table=name))
            )
            late.start()
            _wait_for_a_waiter(url)
        late.join(60)
        assert told == [Stale(7)]


def _wait_for_a_waiter(url: str) -> None:
    asked = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as look:
        wait_until(lambda: look.execute(asked).fetchone()[0] == 1, "the other waits")
