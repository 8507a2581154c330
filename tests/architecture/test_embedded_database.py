"""What ADR 0009 says of the embedded database, asked of the database itself."""

import os
import shutil
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import dibs
from dibs.adapters.sqlite import database as database_module
from dibs.adapters.sqlite.control import SqliteGranters
from dibs.adapters.sqlite.database import Database, Migration, translate
from dibs.core.errors import BadConfiguration, Damaged, NotPermitted, Unavailable
from dibs.core.ids import moment


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "some" / "backlog.db")
    made.ensure("notes", "CREATE TABLE notes (text TEXT)")
    yield made
    made.close()


def test_it_writes_ahead_and_syncs_at_checkpoints(database):
    with database.reading() as tx:
        assert tx.sql.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert tx.sql.execute("PRAGMA synchronous").fetchone() == (1,), "1 is NORMAL"


@pytest.mark.parametrize(
    ("code", "error", "told"),
    [
        (sqlite3.SQLITE_BUSY, Unavailable, "is busy"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Unavailable, "is busy"),
        (sqlite3.SQLITE_READONLY, NotPermitted, "cannot be written"),
        (sqlite3.SQLITE_FULL, Damaged, "cannot grow"),
        (sqlite3.SQLITE_CORRUPT, Damaged, "not a healthy"),
        (sqlite3.SQLITE_IOERR_READ, Damaged, "the disk may be full"),
        (sqlite3.SQLITE_CONSTRAINT, Damaged, "SQLite failed"),
    ],
)
def test_a_failure_says_who_must_act(code, error, told):
    failure = sqlite3.OperationalError("it broke")
    failure.sqlite_errorcode = code
    translated = translate(failure, Path("backlog.db"))
    assert type(translated) is error
    assert told in str(translated)


def test_a_file_that_stays_locked_is_given_up_in_bounded_time(database):
    with database.writing():
        impatient = Database(database.path, busy_s=0.05)
        with pytest.raises(Unavailable, match="is busy"), impatient.writing():
            pass
        impatient.close()


def test_an_empty_file_with_another_programs_mark_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    foreign = sqlite3.connect(path)
    foreign.execute("PRAGMA application_id = 7")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(BadConfiguration, match="another program"):
        Database(path).ensure("notes", "CREATE TABLE notes (text TEXT)")
    assert path.read_bytes() == before


def test_its_clock_never_runs_backwards(database):
    """As if the machine's time had been a day ahead, and was then set right."""
    with database.writing() as tx:
        ahead_ms = tx.now_ms + 86_400_000
        tx.sql.execute("UPDATE clock SET high = ?", (ahead_ms,))
    again = Database(database.path)
    last_ms = ahead_ms
    for opened in (database.reading, database.writing, again.writing, again.reading):
        with opened() as tx:
            assert tx.now_ms >= last_ms
            last_ms = tx.now_ms
    again.close()


def test_its_clock_goes_on_with_the_uptime_whatever_the_time_of_day_says(database):
    """Neither a step of the wall clock ends a lease, nor does one keep it for ever."""
    with database.writing() as tx:
        ahead_ms = tx.now_ms + 86_400_000
        tx.sql.execute("UPDATE clock SET high = ?, uptime = uptime - 5000", (ahead_ms,))
    with database.reading() as tx:
        assert 5000 <= tx.now_ms - ahead_ms < 300_000


def test_after_a_reboot_it_is_set_by_the_time_of_day_and_never_backwards(database):
    with database.writing() as tx:
        wall_ms = tx.now_ms
        tx.sql.execute("UPDATE clock SET high = high - 60000, boot = 'the one before'")
    with database.writing() as tx:
        assert tx.now_ms >= wall_ms
        tx.sql.execute("UPDATE clock SET high = high + 60000, boot = 'the one before'")
    with database.writing() as tx:
        assert tx.now_ms >= wall_ms + 60_000


def test_a_file_of_another_version_is_left_alone(database):
    with database.writing() as tx:
        tx.sql.execute("PRAGMA user_version = 99")
    stranger = Database(database.path)

    def look() -> None:
        with stranger.reading():
            pass

    with pytest.raises(Damaged, match="a later version of dibs"):
        look()


def test_its_clock_follows_the_machines_otherwise(database):
    with database.writing() as tx:
        first = moment(tx.now_ms)
    with database.reading() as tx:
        assert timedelta() <= moment(tx.now_ms) - first < timedelta(minutes=5)


def test_a_write_that_fails_leaves_nothing_behind(database):
    def write_half() -> None:
        with database.writing() as tx:
            tx.sql.execute("INSERT INTO notes VALUES ('half')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    with database.reading() as tx:
        assert tx.sql.execute("SELECT COUNT(*) FROM notes").fetchone() == (0,)


def test_a_reader_does_not_wait_for_a_writer(database):
    with database.writing() as writer, database.reading() as reader:
        writer.sql.execute("INSERT INTO notes VALUES ('unseen')")
        assert reader.sql.execute("SELECT COUNT(*) FROM notes").fetchone() == (0,)


def test_threads_share_a_stock_that_stays_small(database):
    def work() -> None:
        for _ in range(5):
            with database.reading():
                gate.wait(0.001)

    gate = threading.Event()
    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(database._idle) <= 8


def test_connections_do_not_cross_a_fork(database, monkeypatch):
    with database.reading():
        pass
    before = list(database._idle)
    assert before
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with database.reading() as tx:
        assert all(tx.sql is not connection for connection in before)
    for connection in before:
        connection.close()


# Versions

V1 = Path(__file__).parents[1] / "data" / "backlog-v1.sql"


@pytest.fixture
def of_version_1(tmp_path):
    """A backlog as it was written with schema version 1."""
    path = tmp_path / "v1.db"
    sql = sqlite3.connect(path)
    sql.executescript(V1.read_text(encoding="utf8"))
    sql.execute("PRAGMA user_version = 1")
    sql.commit()
    sql.close()
    return path


def test_a_backlog_of_version_1_is_read_and_worked_on(of_version_1, tmp_path):
    (tmp_path / "dibs.toml").write_text(f'tracker = "sqlite:{of_version_1.name}"\n')
    with dibs.open(tmp_path) as backlog:
        assert {row.issue.title: row.state for row in backlog.board.rows()} == {
            "a free issue": "ready",
            "a held issue": "expired",  # its machine has been started anew since
            "an issue that moved on": "gated",
        }
        with backlog.lease(1) as lease:
            lease.advance("review")


def test_a_file_of_an_earlier_version_is_migrated_once_and_table_by_table(
    of_version_1, monkeypatch
):
    rows = (
        Migration(2, "issues", "ALTER TABLE issues ADD COLUMN due INTEGER"),
        Migration(2, "sightings", "ALTER TABLE sightings ADD COLUMN never TEXT"),
        Migration(
            3, "leases", "ALTER TABLE leases ADD COLUMN host TEXT; UPDATE leases SET host=''"
        ),
    )
    monkeypatch.setattr(database_module, "MIGRATIONS", rows)
    monkeypatch.setattr(database_module, "SCHEMA_VERSION", 3)
    for _ in range(2):
        migrated = Database(of_version_1)
        with migrated.reading() as tx:
            assert tx.sql.execute("PRAGMA user_version").fetchone() == (3,)
            assert tx.sql.execute("SELECT COUNT(*) FROM issues WHERE due IS NULL").fetchone() == (
                3,
            )
            assert tx.sql.execute("SELECT DISTINCT host FROM leases").fetchall() == [("",)]
        migrated.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(of_version_1, monkeypatch):
    rows = (
        Migration(2, "issues", "ALTER TABLE issues ADD COLUMN due INTEGER"),
        Migration(2, "leases", "ALTER TABLE nothing ADD COLUMN x"),
    )
    monkeypatch.setattr(database_module, "MIGRATIONS", rows)
    monkeypatch.setattr(database_module, "SCHEMA_VERSION", 2)
    broken = Database(of_version_1)

    def look() -> None:
        with broken.reading():
            pass

    with pytest.raises(Damaged):
        look()
    sql = sqlite3.connect(of_version_1)
    assert sql.execute("PRAGMA user_version").fetchone() == (1,)
    assert "due" not in {row[1] for row in sql.execute("PRAGMA table_info(issues)")}
    sql.close()


def test_a_file_that_another_migrated_further_is_left_alone(of_version_1, monkeypatch):
    """Between our look at the version and our turn to migrate."""
    monkeypatch.setattr(database_module, "SCHEMA_VERSION", 2)
    late = Database(of_version_1)
    patiently = Database._patiently

    def overtaken(self, sql, statement, *values):
        if statement == "BEGIN IMMEDIATE":
            other = sqlite3.connect(of_version_1)
            other.execute("PRAGMA user_version = 3")
            other.close()
        return patiently(self, sql, statement, *values)

    monkeypatch.setattr(Database, "_patiently", overtaken)

    def look() -> None:
        with late.reading():
            pass

    with pytest.raises(Damaged, match="a later version of dibs"):
        look()
    sql = sqlite3.connect(of_version_1)
    assert sql.execute("PRAGMA user_version").fetchone() == (3,)
    sql.close()


def test_migrations_end_at_the_version_that_is_written():
    numbers = [migration.to for migration in database_module.MIGRATIONS]
    assert numbers == sorted(numbers)
    assert max(numbers, default=1) == database_module.SCHEMA_VERSION


# The id of the backlog


def id_in(folder: Path) -> str:
    opened = Database(folder / "backlog.db")
    try:
        return SqliteGranters(opened).owner().id
    finally:
        opened.close()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made here"
    assert id_in(made)
    return made


def test_a_copied_file_gets_an_id_of_its_own(folder, tmp_path):
    known = id_in(folder)
    shutil.copytree(folder, tmp_path / "copy")
    own = id_in(tmp_path / "copy")
    assert own != known
    assert (id_in(tmp_path / "copy"), id_in(folder)) == (own, known), "for good"


def test_a_moved_file_keeps_its_id(folder, tmp_path):
    known, moved = id_in(folder), tmp_path / "moved"
    folder.rename(moved)
    assert id_in(moved) == known
    shutil.copytree(moved, folder)
    assert id_in(moved) == known, "the file is known by its inode"


def test_a_file_that_was_copied_to_another_disk_and_removed_keeps_its_id(folder, tmp_path):
    known = id_in(folder)
    shutil.copytree(folder, tmp_path / "moved")
    shutil.rmtree(folder)
    assert id_in(tmp_path / "moved") == known
    shutil.copytree(tmp_path / "moved", folder)
    (tmp_path / "moved" / "backlog.db").write_text("no database any more")
    assert id_in(folder) == known


def test_a_moved_file_keeps_its_id_beside_a_new_one_at_its_old_place(folder, tmp_path):
    known = id_in(folder)
    folder.rename(tmp_path / "moved")
    assert id_in(folder) != known
    assert id_in(tmp_path / "moved") == known


def test_an_id_from_before_places_were_kept_stays(folder):
    known, sql = id_in(folder), sqlite3.connect(folder / "backlog.db")
    sql.execute("DROP TABLE backlog_place")
    sql.close()
    assert id_in(folder) == known
