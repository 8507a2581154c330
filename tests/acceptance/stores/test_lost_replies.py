"""The server does what it was asked and the reply is lost: asking again is told the same.

An operation may take its store several requests. Every one of their replies is lost once, each
time on an issue of its own, until the operation comes through without a loss. The witness looks at
the store, past the proxy, when the server has answered and the client does not know yet.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from tests.servers.proxy import Proxy

import dibs
from acceptance.harness import Project, pipeline
from dibs.core.errors import Unavailable
from dibs.core.ids import IssueRef, StageName
from dibs.core.lease import Busy, Ending, Granted, Lease, Outcome, Record, Released, Renewed
from dibs.ports.leases import LeaseStore

from .contending import bid_for
from .places import CUT_OFF, KILLED, Place

pytestmark = pytest.mark.long

_G = TypeVar("_G")
MOST_REPLIES = 12
EXPERIENCE = (0, 1, 4)
SOON_S = 3
"""How long a client waits for a reply that hangs: longer than any that was not lost takes."""
GIVEN_BACK = Ending(Outcome.CONCEDED)
DONE = Ending(Outcome.ADVANCED, StageName("next"), "the first word")
OTHERWISE = Ending(Outcome.FAILED, None, "a second word")


@dataclass(frozen=True, slots=True)
class Loss(Generic[_G]):
    issue: IssueRef
    given: _G
    told: Any
    """What the caller was told in the end."""
    seen: Record | None
    """What the store had when the reply was lost."""


class Losing:
    """A store that is reached through a proxy, and directly."""

    def __init__(self, place: Place, *, silently: bool) -> None:
        self._place, self._silently = place, silently
        self.direct = place.open()
        self._proxy = place.proxy()
        self.through: LeaseStore = self._open()

    def _open(self) -> LeaseStore:
        return self._place.open(self._proxy.port, timeout_s=SOON_S if self._silently else None)

    def granted(self, issue: IssueRef) -> Lease:
        told = self.through.acquire(bid_for(issue))
        assert isinstance(told, Granted), told
        return told.lease

    def each_reply(
        self, prepare: Callable[[IssueRef], _G], operate: Callable[[LeaseStore, _G], Any]
    ) -> Iterator[Loss[_G]]:
        """Clients of different experience: what is prepared once, some have prepared."""
        for rounds in EXPERIENCE[-1:] if self._silently else EXPERIENCE:
            yield from self._each_reply(rounds, prepare, operate)

    def _each_reply(
        self,
        rounds: int,
        prepare: Callable[[IssueRef], _G],
        operate: Callable[[LeaseStore, _G], Any],
    ) -> Iterator[Loss[_G]]:
        for nth in range(1, MOST_REPLIES + 1):
            issue = IssueRef("faults", f"issue-{rounds}-{nth}")
            self._meet_anew(rounds)
            given, seen = prepare(issue), []
            self._proxy.lose_reply(
                nth,
                lambda issue=issue, seen=seen: self._look(issue, seen),
                silently=self._silently,
            )
            told = _asking_again(lambda given=given: operate(self.through, given))
            lost = self._proxy.lost.is_set()
            self._proxy.keep_replies()
            if not lost:
                assert nth > 1, "no reply was lost at all"
                self.direct.release(_lease(told), GIVEN_BACK)
                return
            yield Loss(issue, given, told, seen[0])
        raise AssertionError("an operation with so many requests is none")

    def _meet_anew(self, rounds: int) -> None:
        """A client that has done everything so many times."""
        self.through = self._open()
        for _ in range(rounds):
            renewed = self.through.renew(self.granted(IssueRef("faults", "warm")))
            assert isinstance(renewed, Renewed)
            self.through.release(renewed.lease, GIVEN_BACK)

    def _look(self, issue: IssueRef, seen: list[Record | None]) -> None:
        seen.append(self.direct.read(issue))

    def record(self, issue: IssueRef) -> Record:
        found = self.direct.read(issue)
        assert found is not None
        return found


def _lease(told: Granted | Renewed | Released) -> Lease:
    return told.record.lease if isinstance(told, Released) else told.lease


def _asking_again(ask: Callable[[], Any]) -> Any:
    """As a caller does: once more if the store says that it could not be asked."""
    try:
        return ask()
    except Unavailable:
        return ask()


@pytest.fixture
def losing(request: pytest.FixtureRequest, place: Place) -> Losing:
    return Losing(place, silently=request.param == "hangs")


# After the loss the connection breaks, or it hangs until the client's patience is over.
BROKEN = [(kind, "breaks") for kind in CUT_OFF]
HUNG = [(kind, "hangs") for kind in KILLED]
SERVICES = [*BROKEN, ("redis", "hangs"), ("postgres", "hangs")]
each_loss = pytest.mark.parametrize(("place", "losing"), BROKEN + HUNG, indirect=True)


@each_loss
def test_a_grant_whose_reply_was_lost_is_the_one_that_the_retry_gets(losing: Losing) -> None:
    unheard = 0
    for loss in losing.each_reply(bid_for, lambda store, bid: store.acquire(bid)):
        assert isinstance(loss.told, Granted), loss.told
        lease = loss.told.lease
        if loss.seen is not None:
            unheard += 1
            assert loss.seen.lease == lease, "one grant, and no other after it"
        record = losing.record(loss.issue)
        assert (record.lease, record.live) == (lease, True)
        assert [held.lease for held in losing.direct.live()] == [lease], "no orphan"
        assert isinstance(losing.direct.acquire(bid_for(loss.issue)), Busy)
        losing.direct.release(lease, GIVEN_BACK)
        after = losing.granted(loss.issue)  # nothing is left in the way
        assert after.fence > lease.fence
        losing.direct.release(after, GIVEN_BACK)
    assert unheard > 0, "the reply that said so was among the lost"


@each_loss
def test_an_ending_whose_reply_was_lost_stands(losing: Losing) -> None:
    unheard = 0
    for loss in losing.each_reply(losing.granted, lambda store, held: store.release(held, DONE)):
        assert isinstance(loss.told, Released), loss.told
        assert loss.told.record.ending == DONE
        assert loss.told.record.lease.fence == loss.given.fence
        assert loss.seen is not None
        unheard += loss.seen.ending is not None
        again = losing.through.release(loss.given, OTHERWISE)
        assert isinstance(again, Released)
        assert again.record.ending == DONE, "the first ending stands"
        record = losing.record(loss.issue)
        assert (record.ending, record.painted, record.live) == (DONE, False, False)
        assert losing.direct.live() == ()
    assert unheard > 0


@each_loss
def test_a_renewal_whose_reply_was_lost_counts(losing: Losing) -> None:
    unheard = 0
    for loss in losing.each_reply(losing.granted, lambda store, held: store.renew(held)):
        assert isinstance(loss.told, Renewed), loss.told
        lease = loss.told.lease
        assert loss.seen is not None
        unheard += loss.seen.lease.beats > 0
        assert (lease.run, lease.fence) == (loss.given.run, loss.given.fence)
        assert lease.expires_at >= loss.seen.lease.expires_at
        assert lease.beats >= 1
        record = losing.record(loss.issue)
        assert (record.lease, record.live) == (lease, True)
        assert isinstance(losing.direct.acquire(bid_for(loss.issue)), Busy)
        losing.direct.release(lease, GIVEN_BACK)
    assert unheard > 0


@pytest.mark.parametrize(("place", "loss"), SERVICES, indirect=["place"])
def test_a_claim_that_lost_any_reply_is_whole_or_leaves_nothing(
    place: Place, project: Project, loss: str
) -> None:
    """For every reply, from connecting to the last look: held by whom it was told, or by nobody."""
    direct, proxy = place.open(), place.proxy()
    project.begin(pipeline(ttl="10m"), MOST_REPLIES)
    whole = []
    for nth in range(1, MOST_REPLIES + 1):
        with contextlib.suppress(Unavailable):
            whole.append(_claim(place, project, direct, Fault(proxy, nth, loss)))
        proxy.keep_replies()
        lost = proxy.lost.is_set()
        assert direct.live() == ()
        assert project.labels(nth) == {"stage:one"}
        if not lost:
            break
    assert not lost, "an operation with so many requests is none"
    assert True in whole, "one was granted although a reply was lost"


@dataclass(frozen=True, slots=True)
class Fault:
    proxy: Proxy
    nth: int
    how: str

    def strike(self) -> None:
        self.proxy.lose_reply(self.nth, silently=self.how == "hangs")


def _claim(place: Place, project: Project, direct: LeaseStore, fault: Fault) -> bool:
    """Claim an issue, see that the store says the same, give it back; whether a reply was lost."""
    hangs = fault.how == "hangs"
    url = place.url(fault.proxy.port, timeout_s=SOON_S if hangs else None)
    if not hangs:
        fault.strike()
    with dibs.open(project.root, leases=url) as backlog:
        if hangs:  # once it is connected: each loss costs its patience
            backlog.why(fault.nth)
            fault.strike()
        held = backlog.try_lease(fault.nth)
        assert isinstance(held, dibs.HeldLease), held
        fault.proxy.keep_replies()
        [record] = direct.live()
        assert (record.lease.issue, record.lease.run) == (held.issue, held.run)
        assert record.lease.fence == held.fence
        held.give_back()
    return fault.proxy.lost.is_set()


@pytest.mark.parametrize(("place", "loss"), SERVICES, indirect=["place"])
def test_a_finish_that_lost_any_reply_moves_the_issue_once(
    place: Place, project: Project, loss: str
) -> None:
    direct, proxy = place.open(), place.proxy()
    url = place.url(proxy.port, timeout_s=SOON_S if loss == "hangs" else None)
    project.begin(pipeline(ttl="10m"), MOST_REPLIES)
    with dibs.open(project.root, leases=url) as backlog:
        for nth in range(1, MOST_REPLIES + 1):
            held = backlog.try_lease(nth)
            assert isinstance(held, dibs.HeldLease), held
            proxy.lose_reply(nth, silently=loss == "hangs")
            _asking_again(held.advance)
            proxy.keep_replies()
            lost = proxy.lost.is_set()
            record = direct.read(held.issue)
            assert record is not None
            assert record.ending is not None
            assert record.ending.outcome is Outcome.ADVANCED
            # Whoever comes next finishes what could not be shown, and has the next stage.
            backlog.sweep()
            with backlog.lease(nth) as onward:
                assert onward.stage == "two"
                assert onward.fence > held.fence
            assert project.labels(nth) == {"stage:two"}
            assert project.gained("stage:two")[f"#{nth}"] == 1
            if not lost:
                break
    assert nth > 1
    assert direct.live() == ()
    assert len(project.events("advanced")) == nth
