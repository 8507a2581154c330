"""What ADR 0009 says of the embedded database, asked of the database itself."""

import os
import threading
from datetime import timedelta

import pytest

from dibs.adapters.sqlite.database import Database
from dibs.core.errors import Damaged
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

    with pytest.raises(Damaged, match="another version of dibs"):
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
