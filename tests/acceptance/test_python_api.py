"""The Python API and its asynchronous twin, on a real file, with the command line beside it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

import dibs
from dibs import aio

from .harness import CLOCK, EITHER_LEASES, PATIENCE_S, Project, pipeline, until
from .terms import AMPLE, BRISK

TTL, TTL_S = "3s", 3.0


@contextlib.contextmanager
def _locked(project: Project) -> Iterator[None]:
    """Nobody else can write, so nobody can renew."""
    with project.database() as sql:
        sql.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            sql.execute("ROLLBACK")


def _outcomes(project: Project) -> list[str]:
    return [outcome for *_, outcome in project.endings()]


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_lease_is_kept_for_the_length_of_the_body_and_then_given_back(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, ttl=TTL), 1)
    with dibs.open(project.root, holder="me") as backlog:
        with backlog.lease(1) as lease:
            assert (str(lease.issue), lease.stage) == ("#1", "one")
            assert lease.fence > 0
            # Twice as long as the lease runs if nobody renews it.
            project.seen("renewed", 6, run=lease.run)
            lease.check()
            lease.ensure(0.3)
            assert not lease.lost
            shown = project.dibs("show", "1", "--json").data
            assert (shown["state"], shown["lease"]["holder"]) == ("claimed", "me")
            assert project.dibs("claim", "1").code == 4
            refused = backlog.try_lease("#1")
            assert isinstance(refused, dibs.Refused | dibs.Beaten)
            with pytest.raises(dibs.NotGranted) as raised, backlog.lease("#1"):
                pytest.fail("it was granted twice")
            assert raised.value.codes == ("HELD",)
        assert lease.ended
        with pytest.raises(dibs.LeaseLost, match="ended already"):
            lease.advance()
    assert _outcomes(project) == ["returned"]
    assert project.labels() == {"stage:one"}
    assert project.failed_attempts() == 0


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_advancing_ends_the_lease_once(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl=AMPLE), 1)
    with dibs.open(project.root) as backlog:
        with backlog.lease(1) as lease:
            with pytest.raises(dibs.IllegalMove):
                lease.advance("done")
            lease.check()
            lease.advance(note="well done")
        with backlog.lease(1) as lease:
            assert lease.stage == "two"
            lease.advance()
    project.assert_drained(1)


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_an_exception_in_the_body_is_a_failed_attempt(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl=AMPLE), 1)
    with dibs.open(project.root) as backlog:
        with pytest.raises(ValueError, match="boom"), backlog.lease(1):
            raise ValueError("boom")
        assert _outcomes(project) == ["failed"]
        assert project.failed_attempts() == 1
        [entry] = project.dibs("runs", "1", "--json").data
        assert entry["note"] == "ValueError: boom"
        until(lambda: backlog.why(1).claimable, "the backoff is over")
        with pytest.raises(KeyboardInterrupt), backlog.lease(1):
            raise KeyboardInterrupt
    assert _outcomes(project) == ["failed", "returned"]
    assert project.failed_attempts() == 1


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_forced_revoke_is_told_once_and_raises_at_the_next_check(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, ttl=AMPLE, extra=BRISK), 1)
    told: list[str] = []
    with (
        dibs.open(project.root) as backlog,
        contextlib.suppress(dibs.LeaseLost),
        backlog.lease(1) as lease,
    ):
        lease.on_lost(told.append)
        revoke = ("revoke", "1", "--reason", "broken", "--force", "--yes")
        assert project.dibs(*revoke).code == 0
        until(lambda: told, "the callback")
        with pytest.raises(dibs.LeaseLost) as raised:
            lease.check()
        assert raised.value.fence == lease.fence
        assert (lease.lost, lease.remaining_s) == (True, 0.0)
        with pytest.raises(dibs.LeaseLost):
            lease.ensure(0.1)
        with pytest.raises(dibs.LeaseLost):
            lease.advance()
    assert len(told) == 1
    assert project.endings() == []
    project.drain()
    project.assert_drained(1)


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_graceful_revoke_stops_the_body_and_blames_nobody(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl=AMPLE, extra=BRISK), 1)
    told: list[str] = []

    def hold(backlog: dibs.Dibs) -> None:
        with backlog.lease(1) as lease:
            lease.on_lost(told.append)
            assert project.dibs("revoke", "1", "--reason", "wrong machine").code == 0
            until(lambda: told, "the callback")
            lease.check()

    with dibs.open(project.root) as backlog, pytest.raises(dibs.LeaseLost, match="wrong machine"):
        hold(backlog)
    assert len(told) == 1
    assert _outcomes(project) == ["returned"]
    assert project.failed_attempts() == 0
    project.drain()
    project.assert_drained(1)


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_trust_ends_in_time_when_no_renewal_gets_through(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl=TTL), 1)
    with dibs.open(project.root) as backlog:
        with contextlib.suppress(dibs.LeaseLost), backlog.lease(1) as lease, _locked(project):
            over_at = CLOCK.now() + TTL_S  # another may hold it from then on

            def lost() -> bool:
                asked_at, found = CLOCK.now(), lease.lost
                assert found or asked_at < over_at, "it is still trusted"
                return found

            until(lost, "the lease is not trusted any more")
            with pytest.raises(dibs.LeaseLost, match="not renewed in time"):
                lease.check()
        with pytest.raises(dibs.LeaseLost):
            lease.advance()
    assert project.endings() == []


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_the_callback_comes_in_time_when_no_renewal_gets_through(
    project: Project, leases: str
) -> None:
    """Whoever only waits to be told must not go on while another may hold the issue."""
    # Nearly two seconds between the end of trust and that of the lease, for a busy machine.
    project.begin(pipeline(leases, ttl="6s", extra="margin = '1900ms'"), 1)
    told: list[float] = []
    with (
        dibs.open(project.root) as backlog,
        contextlib.suppress(dibs.LeaseLost),
        backlog.lease(1) as lease,
    ):
        lease.on_lost(lambda _: told.append(CLOCK.now()))
        with _locked(project):
            locked_at = CLOCK.now()
            until(lambda: told or CLOCK.now() > locked_at + 20, "a word")
    assert told, "nobody was told while the store could not be reached"
    assert told[0] - locked_at < 6.0


def test_handlers_in_this_process_drain_the_backlog(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 3)
    seen: list[tuple[str, str, int]] = []
    with dibs.open(project.root, holder="me") as backlog:

        @backlog.handler("one")
        def one(work: dibs.Work) -> object:
            work.check()
            seen.append((work.issue["issue"], work.stage, work.attempt))
            if work.issue["issue"] == "#2" and work.attempt == 1:
                raise RuntimeError("once")
            return {"next": "two"}

        report = backlog.work()
    assert report.outcomes == {"advanced": 6, "failed": 1}
    assert sorted(seen) == [("#1", "one", 1), ("#2", "one", 1), ("#2", "one", 2), ("#3", "one", 1)]
    project.assert_drained(3)
    assert project.ledger() == {(f"#{number}", "two"): 1 for number in (1, 2, 3)}


def test_a_missing_issue_and_a_bad_reference_are_misuse(project: Project) -> None:
    project.begin(pipeline(), 1)
    with dibs.open(project.root) as backlog:
        with pytest.raises(dibs.NoSuchIssue):
            backlog.try_lease(9)
        with pytest.raises(dibs.BadReference):
            backlog.try_lease("what?")
        with pytest.raises(dibs.NoSuchStage):
            backlog.add("x", stage="nowhere")
    assert project.sql("SELECT COUNT(*) FROM issues") == [(1,)]


# Asynchronous


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_blocked_event_loop_does_not_lose_the_lease(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl=TTL), 1)

    async def work() -> int:
        async with await aio.open(project.root) as backlog, backlog.lease(1) as lease:
            # Holds the loop itself for more than two ttls.
            project.seen("renewed", 7, run=lease.run)
            lease.check()
            await lease.ensure(0.3)
            assert not lease.lost
            await lease.advance()
            return lease.fence

    assert asyncio.run(work()) > 0
    assert project.endings() == [("#1", "one", "advanced")]
    assert project.events("lease_lost") == []


def test_a_loss_is_told_on_the_loop(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE, extra=BRISK), 1)
    told: list[tuple[str, int]] = []

    async def work() -> None:
        lost = asyncio.Event()

        def on_lost(why: str) -> None:
            told.append((why, threading.get_ident()))
            lost.set()

        async with await aio.open(project.root) as backlog, backlog.lease(1) as lease:
            lease.on_lost(on_lost)
            await asyncio.to_thread(
                project.dibs, "revoke", "1", "--reason", "x", "--force", "--yes"
            )
            await asyncio.wait_for(lost.wait(), PATIENCE_S)
            lease.check()

    with pytest.raises(dibs.LeaseLost):
        asyncio.run(work())
    assert [ident for _, ident in told] == [threading.get_ident()]
    assert project.endings() == []


def test_a_cancelled_task_gives_its_issue_back(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 1)

    async def work() -> None:
        async with await aio.open(project.root) as backlog:

            async def hold(held: asyncio.Event) -> None:
                async with backlog.lease(1):
                    held.set()
                    await asyncio.Event().wait()

            held = asyncio.Event()
            task = asyncio.create_task(hold(held))
            await asyncio.wait_for(held.wait(), PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())
    assert _outcomes(project) == ["returned"]
    assert project.failed_attempts() == 0


def test_an_exception_in_an_asynchronous_body_is_a_failed_attempt(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 1)

    async def work() -> None:
        async with await aio.open(project.root) as backlog, backlog.lease(1):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        asyncio.run(work())
    assert _outcomes(project) == ["failed"]
    assert project.failed_attempts() == 1
