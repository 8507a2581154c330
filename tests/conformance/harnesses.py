"""One harness per kind of adapter: virtual time for those in memory, the database's for SQLite."""

import math
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from tests.one_trip import OneTripMemory

from dibs.adapters.memory.leases import MemoryLeases
from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.leases import SqliteLeases
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.adapters.wrappers.trackers import PlainTracker, SignedTracker, SpokenTracker
from dibs.core.agent_dialect import as_native
from dibs.core.errors import Unavailable
from dibs.core.fold import FoldRules
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels
from dibs.core.signing import parse_keyring
from dibs.services.comment_leases import CommentLeases
from dibs.testing.clock import EPOCH, FakeClock
from dibs.testing.conformance import LeaseHarness, TrackerHarness

CLAIMED = "claimed"


@contextmanager
def files() -> Iterator["Files"]:
    """A folder with one database in it, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        yield Files(Path(folder) / "backlog.db", opened)


class Files:
    def __init__(self, path: Path, opened: ExitStack) -> None:
        self.path = path
        self._opened = opened

    def open(self) -> Database:
        database = Database(self.path)
        self._opened.callback(database.close)
        return database

    def die(self) -> None:
        """All connections are gone, as after the death of every process."""
        self._opened.close()

    def vanish(self) -> None:
        """Where the database was, nobody can open one: as when its disk is gone."""
        self.die()
        self.path.rename(self.path.with_suffix(".gone"))
        self.path.mkdir()


def outwait(database: Database, seconds: float) -> None:
    """Wait on the database's own clock, for as long as it takes and no longer."""

    def now_ms() -> int:
        with database.reading() as tx:
            return tx.now_ms

    until = now_ms() + seconds * 1000
    pause = threading.Event()
    while (left_ms := until - now_ms()) > 0:
        pause.wait(min(left_ms / 1000, 0.1))


def let_pass(database: Database, seconds: float) -> None:
    """Put the database's own clock on, as if nothing had happened for so long."""
    with database.writing() as tx:
        tx.sql.execute("UPDATE clock SET high = high + ?", (math.ceil(seconds * 1000),))


# Trackers


class Stranger:
    """Somebody who may comment on a memory tracker, and may not write."""

    def __init__(self, tracker) -> None:
        self._tracker = tracker
        self.read = tracker.read

    def comment(self, issue, body):
        return self._tracker.comment(issue, body, author="mallory", by_writer=False)


class MemoryTrackerHarness(TrackerHarness):
    """The tracker is the server here: a second client is the same object."""

    def __init__(self, clock: FakeClock, tracker) -> None:
        super().__init__(tracker)
        self._clock = clock

    def another(self):
        return self.tracker

    def stranger(self):
        return Stranger(self.tracker)

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)


class SqliteTrackerHarness(TrackerHarness):
    def __init__(self, opened: Files, *, plain: bool = False, shelves=(frozenset(), frozenset())):
        """`shelves`: what each of the two clients sets apart; the second one opens later."""
        self._database = opened.open()
        first = SqliteTracker(self._database, shelf=shelves[0])
        self._second = SqliteTracker(opened.open(), shelf=shelves[1])
        super().__init__(PlainTracker(first) if plain else first)

        self._files = opened

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        outwait(self._database, seconds)

    def cut_off(self):
        self._files.vanish()
        return self.tracker


@contextmanager
def memory_tracker():
    clock = FakeClock()
    yield MemoryTrackerHarness(clock, MemoryTracker(clock.server_now, author="fleet"))


@contextmanager
def memory_tracker_of_one_trip():
    clock = FakeClock()
    yield MemoryTrackerHarness(clock, OneTripMemory(clock.server_now, author="fleet"))


@contextmanager
def memory_tracker_with_seconds():
    """A tracker like GitHub: whole seconds, and a settle."""
    clock = FakeClock(grain=timedelta(seconds=1))
    tracker = MemoryTracker(
        clock.server_now, settle=timedelta(seconds=2), grain=timedelta(seconds=1)
    )
    yield MemoryTrackerHarness(clock, tracker)


@contextmanager
def sqlite_tracker():
    with files() as opened:
        yield SqliteTrackerHarness(opened)


@contextmanager
def sqlite_tracker_with_a_shelf():
    """As it is wired: the labels that keep workers off are set apart."""
    shelf = frozenset({"claimed", "paused"})
    with files() as opened:
        yield SqliteTrackerHarness(opened, shelves=(shelf, shelf))


@contextmanager
def sqlite_tracker_with_two_shelves():
    """Two processes with different settings on one file."""
    with files() as opened:
        shelves = (frozenset({"claimed"}), frozenset({"claimed", "paused"}))
        yield SqliteTrackerHarness(opened, shelves=shelves)


KEYS = parse_keyring("new:a key that is long enough,old:another that is long enough")


def unsigned(body: str) -> str:
    return re.sub(r" sig=new:[0-9a-f]{64}(?= -->)", "", body, count=1)


class SignedMemoryHarness(MemoryTrackerHarness):
    """A stranger has no key and no write access."""

    def __init__(self, clock: FakeClock, tracker) -> None:
        super().__init__(clock, SignedTracker(tracker, KEYS))
        self._bare = tracker

    def stranger(self):
        return Stranger(self._bare)

    def as_given(self, body):
        return unsigned(body)


@contextmanager
def signed_memory_tracker():
    clock = FakeClock()
    yield SignedMemoryHarness(clock, MemoryTracker(clock.server_now, author="fleet"))


def unspoken(body: str) -> str:
    """In our words again; who holds it stands last on the lines that are checked."""
    native = as_native(body)
    if native is None:
        return body
    line = re.sub(r"<!-- claim (holder=\S+) (.*) -->", r"<!-- claim \2 \1 -->", native)
    return line + body.partition(" -->")[2]


class SpokenMemoryHarness(MemoryTrackerHarness):
    def __init__(self, clock: FakeClock, tracker) -> None:
        super().__init__(clock, SpokenTracker(tracker, lambda: EPOCH))
        self._bare = tracker

    def stranger(self):
        return Stranger(self._bare)

    def as_given(self, body):
        return unspoken(body)


@contextmanager
def spoken_memory_tracker():
    clock = FakeClock()
    yield SpokenMemoryHarness(clock, MemoryTracker(clock.server_now, author="fleet"))


class SpokenSqliteHarness(SqliteTrackerHarness):
    def __init__(self, opened: Files) -> None:
        super().__init__(opened)
        self.tracker = SpokenTracker(self.tracker, lambda: EPOCH)
        self._second = SpokenTracker(self._second, lambda: EPOCH)

    def as_given(self, body):
        return unspoken(body)


@contextmanager
def spoken_sqlite_tracker():
    with files() as opened:
        yield SpokenSqliteHarness(opened)


class SignedSqliteHarness(SqliteTrackerHarness):
    def __init__(self, opened: Files) -> None:
        super().__init__(opened)
        self.tracker = SignedTracker(self.tracker, KEYS)
        self._second = SignedTracker(self._second, KEYS)

    def as_given(self, body):
        return unsigned(body)


@contextmanager
def signed_sqlite_tracker():
    with files() as opened:
        yield SignedSqliteHarness(opened)


@contextmanager
def plain_sqlite_tracker():
    with files() as opened:
        yield SqliteTrackerHarness(opened, plain=True)


# Lease stores


class MemoryHarness(LeaseHarness):
    """The store is the server here: a second client is the same object."""

    def __init__(self, clock: FakeClock, store) -> None:
        super().__init__(store)
        self._clock = clock

    def another(self):
        return self.store

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)


class SqliteHarness(LeaseHarness):
    def __init__(self, opened: Files) -> None:
        self._files = opened
        self._database = opened.open()
        super().__init__(SqliteLeases(self._database))
        self._second = SqliteLeases(opened.open())

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        let_pass(self._database, seconds)

    def restart(self):
        self._files.die()
        self._database = self._files.open()
        self.store = SqliteLeases(self._database)
        self._second = SqliteLeases(self._files.open())
        return self.store

    def cut_off(self):
        self._files.vanish()
        return self.store


class Skewed:
    """A local clock that is wrong by a fixed span."""

    def __init__(self, clock: FakeClock, by: timedelta) -> None:
        self._clock, self._by_s = clock, by.total_seconds()

    def now(self):
        return self._clock.now() + self._by_s

    def sleep(self, seconds):
        self._clock.sleep(seconds)

    def wait(self, event, seconds):
        return self._clock.wait(event, seconds)


class Unreachable:
    """A tracker whose every call is lost on the way."""

    def __init__(self, tracker) -> None:
        self.traits = tracker.traits

    def __getattr__(self, name):
        def lost(*args, **kwargs):
            raise Unavailable(f"{name}: no answer")

        return lost


class CommentsHarness(LeaseHarness):
    """A grant is a won bid, which `show` confirms; that it is painted is said in a comment.

    The tracker is the server, so a restart is a new client with a local clock of its own.
    """

    def __init__(self, trackers, advance, clocks) -> None:
        self._trackers, self._advance, self._clocks = trackers, advance, clocks
        super().__init__(self._client(0))
        self._second = self._client(1)

    def _client(self, number):
        return self._on(self._trackers[number], self._clocks())

    def _on(self, tracker, clock):
        return CommentLeases(tracker, clock, rules=FoldRules(), claimed_label=CLAIMED)

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        self._advance(seconds)

    def restart(self):
        self.store = self._client(0)
        self._second = self._client(1)
        return self.store

    def skewed(self, by: timedelta):
        return self._on(self._trackers[1], Skewed(self._clocks(), by))

    def cut_off(self):
        return self._on(Unreachable(self._trackers[0]), self._clocks())

    def issue(self):
        return self._trackers[0].create(Draft("Prices are wrong")).ref

    def confirm(self, store, lease):
        return store.show(lease, (AddLabels((CLAIMED,)),))

    def paint(self, store, record):
        store.acknowledge(record)
        self._trackers[0].edit_labels(record.lease.issue, remove=(CLAIMED,))


@contextmanager
def memory_leases():
    clock = FakeClock()
    yield MemoryHarness(clock, MemoryLeases(clock.server_now))


@contextmanager
def sqlite_leases():
    with files() as opened:
        yield SqliteHarness(opened)


@contextmanager
def comments_on_memory():
    server = FakeClock()
    tracker = MemoryTracker(server.server_now)
    yield CommentsHarness((tracker, tracker), server.advance, FakeClock)


@contextmanager
def comments_on_one_trip():
    server = FakeClock()
    tracker = OneTripMemory(server.server_now)
    yield CommentsHarness((tracker, tracker), server.advance, FakeClock)


class CommentsOnSqlite(CommentsHarness):
    def __init__(self, opened: Files) -> None:
        self._files = opened
        super().__init__(self._open(), lambda seconds: let_pass(self._database, seconds), FakeClock)

    def _open(self):
        self._database = self._files.open()
        return SqliteTracker(self._database), SqliteTracker(self._files.open())

    def restart(self):
        self._files.die()
        self._trackers = self._open()
        return super().restart()

    def cut_off(self):
        self._files.vanish()
        return self.store


@contextmanager
def signed_comments_on_memory():
    server = FakeClock()
    tracker = SignedTracker(MemoryTracker(server.server_now), KEYS)
    yield CommentsHarness((tracker, tracker), server.advance, FakeClock)


@contextmanager
def comments_on_sqlite():
    with files() as opened:
        yield CommentsOnSqlite(opened)
