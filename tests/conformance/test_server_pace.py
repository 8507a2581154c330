"""A server's clock that jumps forward is noticed by comparing two replies, and grants pause."""

import logging
import shutil
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.servers.postgres import Postgres
from tests.servers.process import wait_until
from tests.servers.valkey import Valkey
from tests.servers.wall_clock import LIBRARY, WallClock

from dibs.adapters.postgres.leases import PostgresLeases
from dibs.adapters.redis.leases import RedisLeases
from dibs.adapters.system import ServerPace
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.lease import Busy, Granted, Unproven
from dibs.testing.clock import EPOCH, FakeClock
from dibs.testing.conformance.lease_harness import bid

TTL = timedelta(seconds=60)


class Server:
    """Replies that take a while, of a server whose clock can be set."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pace = ServerPace("redis://x", self.clock)
        self.set_by = timedelta()

    def reply(self, *, after_s: float = 1.0, there_s: float = 0.0, back_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        sent_at = self.pace.sending()
        self.clock.advance(there_s)
        now = ServerTime(self.clock.server_now() + self.set_by)
        self.clock.advance(back_s)
        self.pace.saw(now, sent_at, TTL)


@pytest.fixture
def server() -> Server:
    made = Server()
    made.reply()
    return made


def test_a_steady_clock_pauses_nothing_however_slow_the_replies(server):
    for there_s, back_s in ((0, 0), (5, 0), (0, 5), (30, 30)):
        server.reply(there_s=there_s, back_s=back_s)
        server.reply(after_s=3600)
        assert server.pace.pause() is None


def test_a_jump_is_told_and_pauses_grants_for_a_ttl(server, caplog):
    server.set_by = timedelta(seconds=90)
    with caplog.at_level(logging.WARNING):
        server.reply()
    paused = server.pace.pause()
    assert isinstance(paused, Unproven)
    assert "jumped forward by 90 s" in paused.why
    assert paused.why in caplog.text
    server.clock.advance(59)
    server.reply(after_s=0)
    assert server.pace.pause() is not None, "the later replies are steady, and the pause goes on"
    server.clock.advance(2)
    assert server.pace.pause() is None


@pytest.mark.parametrize("set_by_s", [-3600, 0.9])
def test_a_clock_that_is_set_back_or_slewed_pauses_nothing(server, set_by_s):
    server.set_by = timedelta(seconds=set_by_s)
    server.reply()
    assert server.pace.pause() is None


def test_a_clock_that_is_slewed_for_an_hour_pauses_nothing(server):
    for _ in range(120):
        server.set_by += timedelta(seconds=0.25)
        server.reply(after_s=30)
    assert server.pace.pause() is None


def test_a_correction_after_a_step_back_is_a_jump_as_well(server):
    server.set_by = timedelta(seconds=-3600)
    server.reply()
    server.set_by = timedelta()
    server.reply()
    assert server.pace.pause() is not None


def test_the_pause_is_as_long_as_the_longest_ttl_that_was_seen(server):
    server.pace.saw(ServerTime(EPOCH), server.pace.sending(), TTL * 10)
    server.reply()
    server.set_by = timedelta(hours=1)
    server.reply()
    server.clock.advance(TTL.total_seconds() * 9)
    assert server.pace.pause() is not None


# Real servers, whose clock is set while a lease is held


@pytest.mark.long
@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_no_second_holder_after_the_clock_of_a_real_server_jumped(kind, faked_server):
    """A contender that watched sees the lease expire early, and does not take it for a ttl."""
    make = {"redis": Valkey, "postgres": Postgres}[kind]
    connect = {"redis": RedisLeases.connect, "postgres": PostgresLeases.connect}[kind]
    issue, ttl = IssueRef("", "1"), timedelta(seconds=8)
    with closing(faked_server(make)) as server, closing(connect(server.url())) as contender:
        with closing(connect(server.url())) as other:
            held = other.acquire(bid(issue, "held", ttl))
            assert isinstance(held, Granted)
        assert isinstance(contender.acquire(bid(issue, "late", ttl)), Busy)
        faked_server.clock.set(3600)
        taken = []

        def over():  # a server may take a moment to look at its clock
            taken[:] = [contender.acquire(bid(issue, "late", ttl))]
            return not isinstance(taken[0], Busy)

        wait_until(over, "the lease seems to be over")
        (answer,) = taken
        assert isinstance(answer, Unproven), answer
        assert "jumped forward by 36" in answer.why
        known = contender.read(issue)
        assert known is not None
        assert not known.live, "what was granted was given back"
        assert isinstance(contender.acquire(bid(issue, "late", ttl)), Unproven)

        def granted():
            taken[:] = [contender.acquire(bid(issue, "late", ttl))]
            return isinstance(taken[0], Granted)

        wait_until(granted, "grants go on after a ttl")
        assert taken[0].lease.fence > held.lease.fence


@pytest.mark.long
@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_repeated_grant_whose_reply_shows_the_jump_is_given_back(kind, faked_server):
    make = {"redis": Valkey, "postgres": Postgres}[kind]
    connect = {"redis": RedisLeases.connect, "postgres": PostgresLeases.connect}[kind]
    issue, ttl = IssueRef("", "1"), timedelta(hours=1)
    with closing(faked_server(make)) as server, closing(connect(server.url())) as store:
        assert isinstance(store.acquire(bid(issue, "mine", ttl)), Granted)
        assert isinstance(store.acquire(bid(issue, "mine", ttl)), Granted)
        faked_server.clock.set(+60)
        wait_until(
            lambda: isinstance(store.acquire(bid(issue, "mine", ttl)), Unproven),
            "the server looks at its clock",
        )
        known = store.read(issue)
        assert known is not None
        assert not known.live


@pytest.fixture
def faked_server():
    """Starts a server whose time of day a file sets; its monotonic clock is the machine's.

    The file and the library are where the account of PostgreSQL can read them.
    """
    with TemporaryDirectory(prefix="dibs-faketime-") as folder:
        Path(folder).chmod(0o755)
        yield FakedServer(Path(folder))


class FakedServer:
    def __init__(self, folder: Path) -> None:
        self.clock = WallClock(folder / "faketime")
        library = Path(shutil.copy(LIBRARY, folder))
        library.chmod(0o755)
        self._env = self.clock.environment() | {"LD_PRELOAD": str(library)}

    def __call__(self, make):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            return make()
