"""One token's spending in one file: real files, real locks, real processes."""

import fcntl
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.adapters.github.ledger import FileLedger, ledger_path
from dibs.adapters.github.limits import (
    Budget,
    Failed,
    Kind,
    Limited,
    Limits,
    Passed,
    Purpose,
    Resource,
)
from dibs.adapters.system import SystemClock, state_folder
from dibs.core.ids import LocalTime
from dibs.testing.clock import FakeClock

from .tiny import memory_ledger

ROOT = Path(__file__).parents[2]
FIVE = Limits(creations_a_minute=5)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "state" / "ledger.json"


def admitted(ledger, kind=Kind.REST_CREATE, purpose=Purpose.HOLD):
    return ledger.admit(kind, purpose) is None


def test_two_who_share_the_file_share_the_pace(place, clock):
    one, other = FileLedger(place, clock, FIVE), FileLedger(place, clock, FIVE)
    assert [admitted(ledger) for ledger in (one, other) * 4].count(True) == 5
    clock.advance(62)
    assert admitted(other)


def test_a_rest_that_one_was_asked_for_is_kept_by_the_other(place, clock):
    one, other = FileLedger(place, clock), FileLedger(place, clock)
    assert admitted(one, Kind.REST_READ)
    one.note(Limited(clock.now(), clock.now(), 30.0, "GitHub wants a rest"))
    refusal = other.admit(Kind.REST_READ, Purpose.HOLD)
    assert refusal is not None
    assert 29 < refusal.wait_s <= 30
    clock.advance(30)
    assert admitted(other, Kind.REST_READ)
    assert not admitted(one, Kind.REST_READ), "one tries, and nobody beside it"
    other.note(Passed(clock.now(), Kind.REST_READ))
    assert admitted(one, Kind.REST_READ)


def test_failures_of_all_are_added_up(place, clock):
    ledgers = [FileLedger(place, clock) for _ in range(5)]
    for ledger in ledgers:
        ledger.note(Failed(clock.now(), clock.now(), "502"))
    assert not admitted(ledgers[0], Kind.REST_READ)


def test_what_is_left_is_known_to_who_never_asked(place, clock):
    one = FileLedger(place, clock)
    assert admitted(one, Kind.GRAPHQL_READ)
    told = Budget(5000, 0, LocalTime(clock.now() + 600))
    one.note(Passed(clock.now(), Kind.GRAPHQL_READ, ((Resource.GRAPHQL, told),)))
    assert one.spent(Resource.GRAPHQL)
    one.close()
    other = FileLedger(place, clock)
    assert not admitted(other, Kind.GRAPHQL_READ)
    assert admitted(other, Kind.REST_READ)


def test_a_request_locks_the_file_once(place, clock, monkeypatch):
    assert admitted(FileLedger(place, clock)), "this makes the file, which takes one call more"
    opened = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda *told, **more: opened.append(told) or real(*told, **more)
    )
    ledger = FileLedger(place, clock)
    for _ in range(3):
        assert admitted(ledger, Kind.REST_READ)
        ledger.note(Passed(clock.now(), Kind.REST_READ))
    assert len(opened) == 3


def test_the_file_is_ours_alone(place, clock):
    assert admitted(FileLedger(place, clock))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_its_name_tells_neither_the_token_nor_the_server():
    path = str(ledger_path({"DIBS_STATE": "/x"}, "ghp_secret", "https://ghe.example/api/v3"))
    assert "secret" not in path
    assert "ghe" not in path
    others = {
        str(ledger_path({"DIBS_STATE": "/x"}, token, api))
        for token in ("a", "b")
        for api in ("https://one", "https://two")
    }
    assert len(others) == 4


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"DIBS_STATE": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/dibs"),
        ({"XDG_STATE_HOME": "x", "HOME": "/h"}, "/h/.local/state/dibs"),
        ({"HOME": "/h"}, "/h/.local/state/dibs"),
    ],
)
def test_where_it_is_kept(environment, folder):
    assert state_folder(environment) == Path(folder)


# Damage


@given(rubbish=st.binary(max_size=400))
def test_rubbish_is_an_empty_ledger(tmp_path_factory, rubbish):
    place = tmp_path_factory.mktemp("ledger") / "ledger.json"
    place.write_bytes(rubbish)
    clock = FakeClock()
    ledger = FileLedger(place, clock, FIVE)
    assert [admitted(ledger) for _ in range(6)].count(True) == 5
    assert [admitted(FileLedger(place, clock, FIVE)) for _ in range(2)] == [False, False]


@given(cut=st.integers(0, 400), spoilt=st.integers(0, 400), by=st.integers(0, 255))
def test_a_file_that_was_cut_or_spoilt_never_fails_a_request(tmp_path_factory, cut, spoilt, by):
    place = tmp_path_factory.mktemp("ledger") / "ledger.json"
    clock = FakeClock()
    ledger = FileLedger(place, clock, FIVE)
    admitted(ledger)
    ledger.note(Limited(clock.now(), clock.now(), 1.0, "asked"))
    text = bytearray(place.read_bytes())
    text[spoilt % len(text)] = by
    place.write_bytes(bytes(text[: max(1, len(text) - cut)]))
    clock.advance(2 * 3600)
    ledger.admit(Kind.REST_READ, Purpose.HOLD)
    ledger.note(Passed(clock.now(), Kind.REST_READ))
    ledger.read(lambda spending, now: spending.counted(now))
    clock.advance(2 * 3600)
    assert admitted(FileLedger(place, clock, FIVE))


def test_of_another_start_of_the_machine_nothing_counts(place, clock):
    ledger = FileLedger(place, clock)
    ledger.note(Limited(clock.now(), clock.now(), 600.0, "asked"))
    from dibs.adapters.system import BOOT

    before = place.read_text()
    assert BOOT in before
    place.write_text(before.replace(BOOT, "another start"))
    assert admitted(FileLedger(place, clock))


def test_a_file_that_was_deleted_is_made_anew(place, clock):
    ledger = FileLedger(place, clock, FIVE)
    assert admitted(ledger)
    place.unlink()
    assert admitted(ledger)
    assert place.exists()


# Where it cannot be written


@pytest.mark.parametrize("obstacle", ["a file for a folder", "a folder for a file", "a link"])
def test_without_a_file_each_counts_for_itself(tmp_path, clock, obstacle):
    place = tmp_path / "state" / "ledger.json"
    match obstacle:
        case "a file for a folder":
            (tmp_path / "state").write_text("")
        case "a folder for a file":
            place.mkdir(parents=True)
        case _:
            place.parent.mkdir()
            place.symlink_to(tmp_path / "elsewhere")
    ledger = FileLedger(place, clock, FIVE)
    assert [admitted(ledger) for _ in range(6)].count(True) == 5
    assert not ledger.shared
    ledger.note(Limited(clock.now(), clock.now(), 30.0, "asked"))
    assert not admitted(ledger, Kind.REST_READ)
    ledger.close()
    assert not (tmp_path / "elsewhere").exists()


def test_who_was_stopped_with_the_lock_in_his_hands_stops_nobody_else(place):
    """A lock of a process that gets no time is not waited for."""
    clock = SystemClock()
    ledger = FileLedger(place, clock, FIVE)
    assert admitted(ledger)
    with place.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [admitted(ledger) for _ in range(5)] == [True] * 4 + [False]
        ledger.note(Limited(clock.now(), clock.now(), 30.0, "asked"))
    ledger.close()
    assert not admitted(FileLedger(place, clock, FIVE), Kind.REST_READ), "it was written later"


def test_what_was_let_through_without_the_file_is_counted_once_it_is_to_be_had(place, clock):
    one, other = FileLedger(place, clock, FIVE), FileLedger(place, clock, FIVE)
    assert admitted(other)
    with place.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [admitted(one) for _ in range(4)] == [True] * 4
    clock.advance(2)
    assert not admitted(one), "with the other's they are five"
    assert not admitted(other)
    assert other.read(lambda spending, now: spending.counted(now))[Kind.REST_CREATE] == 5
    clock.advance(62)
    assert admitted(other)


def test_of_what_cannot_be_written_only_the_latest_is_kept(tmp_path, clock):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger.json").mkdir()
    ledger = FileLedger(tmp_path / "state" / "ledger.json", clock, Limits.none())
    for _ in range(2000):
        ledger.note(Passed(clock.now(), Kind.REST_READ))
    assert len(ledger._unwritten) <= 1000


def test_many_threads_share_one_ledger(place, clock):
    for ledger in (FileLedger(place, clock, FIVE), memory_ledger(clock, FIVE)):
        let: list[bool] = []
        threads = [
            threading.Thread(target=lambda: let.append(admitted(ledger)))  # noqa: B023
            for _ in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert let.count(True) == 5


# Processes


def asker(place, most, seconds):
    command = [sys.executable, "-m", "tests.github.asker", str(place), str(most), str(seconds)]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_four_processes_keep_to_one_pace(place):
    place.parent.mkdir()
    askers = [asker(place, 20, 1.5) for _ in range(4)]
    try:
        for one in askers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in askers:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        let = [one.communicate(timeout=60)[0].split() for one in askers]
    finally:
        for one in askers:
            one.kill()
            one.wait()
    assert sum(map(len, let)) == 20 - 4, "each had one before"


def test_a_rest_is_kept_across_processes(place):
    ledger = FileLedger(place, SystemClock())
    now = ledger._clock.now()
    ledger.note(Limited(now, now, 600.0, "GitHub wants a rest"))
    one = asker(place, 20, 0.3)
    try:
        said = one.communicate("go\n", timeout=60)[0].split()
    finally:
        one.kill()
        one.wait()
    assert said == ["refused"]
