"""How long a version has been watched: in one process, and over all processes of a machine."""

import shutil
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.observations import FileObservations
from dibs.adapters.system import BOOT, SystemClock, uptime_ms
from dibs.adapters.wrappers.leases import MemoryObservations
from dibs.testing.clock import FakeClock

from .harnesses import files

ZERO = timedelta()
MINUTE = timedelta(minutes=1)
# Between two calls real time passes, on a busy machine more of it.
SLACK = timedelta(seconds=30)


@pytest.fixture
def opened():
    with files() as found:
        yield found


@pytest.fixture(params=["memory", "file"])
def seen(request, opened):
    if request.param == "memory":
        return MemoryObservations(SystemClock())
    return FileObservations(opened.open())


def row(database: Database, record: str, version: str, uptime: int, boot: str = BOOT) -> None:
    with database.writing() as tx:
        tx.sql.execute(
            "INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?)", (record, version, uptime, boot)
        )


def rows(database: Database) -> dict[str, tuple[str, int]]:
    with database.reading() as tx:
        found = tx.sql.execute("SELECT record, version, uptime FROM sightings").fetchall()
    return {record: (version, uptime) for record, version, uptime in found}


def test_at_first_sight_nothing_is_known(seen):
    assert seen.silence("r") == ZERO
    assert seen.age("r", "v1") == ZERO


def test_a_version_that_stays_grows_older(seen):
    seen.note("r", "v1", MINUTE)
    first = seen.age("r", "v1")
    assert MINUTE - timedelta(milliseconds=1) <= first < MINUTE + SLACK
    assert seen.age("r", "v1") >= first
    assert seen.silence("r") >= first


def test_a_new_version_starts_again(seen):
    seen.note("r", "v1", MINUTE)
    assert seen.age("r", "v2") == ZERO
    assert seen.age("r", "v2") < SLACK
    assert seen.silence("r") < SLACK


def test_a_version_that_was_left_is_not_remembered(seen):
    seen.note("r", "v1", MINUTE)
    seen.age("r", "v2")
    assert seen.age("r", "v1") == ZERO, "versions never come again: this is a slower reader's"


def test_records_are_watched_apart(seen):
    seen.note("r", "v1", MINUTE)
    assert seen.age("s", "v1") == ZERO
    assert seen.age("r", "v1") > ZERO


def test_what_was_noted_replaces_a_sighting(seen):
    seen.age("r", "v1")
    seen.note("r", "v1", MINUTE)
    assert seen.age("r", "v1") >= MINUTE - timedelta(milliseconds=1)


def test_the_age_is_the_time_since_the_first_sight_and_not_a_moment_more():
    clock = FakeClock()
    seen = MemoryObservations(clock)
    seen.age("r", "v1")
    clock.advance(59.999)
    assert seen.age("r", "v1") == timedelta(seconds=59.999)
    clock.advance(0.001)
    assert seen.age("r", "v1") == seen.silence("r") == MINUTE


def test_memory_forgets_what_did_not_change_for_longest():
    clock = FakeClock()
    seen = MemoryObservations(clock, most=2)
    for record in ("a", "b"):
        seen.age(record, "v1")
    seen.age("a", "v2")
    clock.advance(60)
    seen.age("c", "v1")
    assert seen.age("a", "v2") == MINUTE
    assert seen.silence("b") == ZERO, "forgotten: whoever asks waits again"


def test_no_age_is_negative_however_many_ask_at_once():
    seen = MemoryObservations(SystemClock())
    ages: list[timedelta] = []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait(timeout=30)
        ages.extend(seen.age("r", f"v{number}") for number in range(300))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(ages) == 8 * 300
    assert min(ages) >= ZERO


def test_a_file_carries_a_sighting_to_whoever_opens_it_next(opened):
    FileObservations(opened.open()).note("r", "v1", MINUTE)
    opened.die()
    assert FileObservations(opened.open()).age("r", "v1") >= MINUTE - timedelta(milliseconds=1)


def test_whole_milliseconds_never_add_one(opened):
    database = opened.open()
    seen = FileObservations(database)
    seen.age("r", "v1")
    before = uptime_ms()
    row(database, "r", "v1", before)
    age = seen.age("r", "v1")
    assert age <= timedelta(milliseconds=max(0, uptime_ms() - before - 1))


def test_the_first_of_two_processes_that_saw_it_counts(opened):
    """Both find nothing, and then both write: what is written first stays."""
    first, second = opened.open(), opened.open()
    FileObservations(first)
    slow = FileObservations(second)
    row(first, "r", "v1", uptime_ms() - 60_000)
    earlier = rows(first)["r"]
    with second.writing() as tx:  # what the slower one does after its own reading found nothing
        from dibs.adapters.sqlite.observations import _WRITE_IF_NEW

        tx.sql.execute(_WRITE_IF_NEW, ("r", "v1", uptime_ms(), BOOT))
    assert rows(first)["r"] == earlier
    assert slow.age("r", "v1") >= MINUTE - timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("uptime", "boot"),
    [(0, "another start of the machine"), (uptime_ms() + 10**9, BOOT)],
    ids=["another-boot", "from-the-future"],
)
def test_a_sighting_that_cannot_be_of_this_uptime_is_none(opened, uptime, boot):
    database = opened.open()
    seen = FileObservations(database)
    row(database, "r", "v1", uptime, boot)
    assert seen.silence("r") == ZERO
    assert seen.age("r", "v1") == ZERO
    assert rows(database)["r"][1] <= uptime_ms(), "it is watched from now on"
    assert seen.age("r", "v1") < SLACK


def test_a_sighting_of_a_container_with_an_uptime_of_its_own_is_none(opened):
    """On the very same boot its uptime may be a day ahead, or behind: nothing can be told of it."""
    unshare = shutil.which("unshare")
    away = [str(unshare), "--map-root-user", "--time", "--boottime", "100000"]
    if unshare is None or subprocess.run([*away, "true"], check=False).returncode:
        pytest.skip("no time namespace may be made here")
    seen = FileObservations(opened.open())
    seen.note("r", "v1", MINUTE)
    look = (
        "import sys, pathlib\n"
        "from dibs.adapters.sqlite.observations import FileObservations\n"
        "from dibs.adapters.sqlite.database import Database\n"
        "seen = FileObservations(Database(pathlib.Path(sys.argv[1]), busy_s=30))\n"
        "print(seen.age('r', 'v1').total_seconds())"
    )
    asked = [sys.executable, "-c", look, str(opened.path)]
    here = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
    assert 59 < float(here.stdout) < 60 + SLACK.total_seconds()
    there = subprocess.run([*away, *asked], check=True, capture_output=True, text=True, timeout=60)
    assert float(there.stdout) == 0


def test_a_file_is_cut_to_its_bound_when_it_is_opened(opened):
    database = opened.open()
    FileObservations(database)
    now = uptime_ms()
    row(database, "old boot", "v", now, "another start of the machine")
    for number in range(5):
        row(database, f"r{number}", "v", now - number)
    FileObservations(database, most=3)
    assert rows(database).keys() == {"r0", "r1", "r2"}
