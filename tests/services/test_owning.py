"""A namespace of a store serves one backlog, also while its owner is in the making."""

import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest

from dibs.adapters.memory.control import MemoryGranters
from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Ending, Granted, Outcome
from dibs.core.named import hold_ref
from dibs.services.backlog import ISSUES, OwnedStore
from dibs.testing.clock import FakeClock

ISSUE = IssueRef("", "1")
_runs = (RunId(f"{number:012x}") for number in itertools.count(1))


@pytest.fixture
def store():
    return MemoryLeases(FakeClock().server_now)


def owned(store, granters=None) -> OwnedStore:
    return OwnedStore(store, granters or MemoryGranters(), "redis", "", lambda: next(_runs))


def bid(run: str, issue: IssueRef = ISSUE, stage: str = "ready") -> Bid:
    ttl = timedelta(minutes=1)
    return Bid(issue, RunId(run), HolderId("worker"), StageName(stage), ttl)


def test_a_second_backlog_is_refused_with_both_names(store):
    first, second = owned(store), owned(store)
    assert isinstance(first.acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.acquire(bid("b"))
    with pytest.raises(BadConfiguration):
        second.live()


def test_that_nobody_owned_it_is_not_remembered(store):
    """A worker that looked while the namespace was empty must not believe what comes later."""
    early = owned(store)
    assert early.read(ISSUE) is None
    assert early.live() == ()
    assert isinstance(owned(store).acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration):
        early.read(ISSUE)


def test_an_owner_in_the_making_is_no_strange_lease(store):
    """Two workers of a backlog start together; or the first died before it had written the id."""
    assert isinstance(store.acquire(bid("maker", ISSUES, "~owner")), Granted)
    late = owned(store)
    assert late.read(ISSUE) is None
    with pytest.raises(Unavailable, match="another process is about to own it"):
        late.acquire(bid("b"))


def test_control_a_lease_from_before_there_were_owners_is_one(store):
    assert isinstance(store.acquire(bid("old")), Granted)
    with pytest.raises(BadConfiguration, match="does not know of which backlog"):
        owned(store).read(ISSUE)


# Two that begin at the same time


class Interrupted(MemoryLeases):
    """A store in which something happens once, right before or after one of its calls."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock.server_now)
        self.before: dict[str, Callable[[], object]] = {}

    def _let_happen(self, call: str) -> None:
        self.before.pop(call, lambda: None)()

    def live(self, *arguments, **words):
        self._let_happen("live")
        return super().live(*arguments, **words)

    def acquire(self, bid):
        self._let_happen("acquire")
        return super().acquire(bid)

    def release(self, lease, ending):
        self._let_happen("release")
        return super().release(lease, ending)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def interrupted(clock):
    return Interrupted(clock)


@pytest.mark.parametrize("names_first", [False, True])
def test_workers_of_one_backlog_that_begin_together_are_both_served(interrupted, names_first):
    """The second looks for an owner, the first becomes it and is granted, the second looks on."""
    granters = MemoryGranters()
    first, second = owned(interrupted, granters), owned(interrupted, granters)
    earlier = hold_ref("deploy", 1) if names_first else IssueRef("", "2")
    interrupted.before["live"] = lambda: first.acquire(bid("a", earlier))
    assert isinstance(second.acquire(bid("b")), Granted)


def test_backlogs_that_begin_together_do_not_both_become_the_owner(interrupted):
    first, second = owned(interrupted), owned(interrupted)
    interrupted.before["acquire"] = lambda: first.acquire(bid("a"))
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.acquire(bid("b", IssueRef("", "2")))
    third = owned(interrupted)
    with pytest.raises(BadConfiguration):
        third.read(ISSUE)
    assert isinstance(first.acquire(bid("c", IssueRef("", "3"))), Granted)


def test_one_that_slept_while_it_became_the_owner_has_not_become_it(interrupted, clock):
    first, second = owned(interrupted), owned(interrupted)

    def sleep() -> None:
        clock.advance(11)
        assert isinstance(first.acquire(bid("a")), Granted)

    interrupted.before["release"] = sleep
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.acquire(bid("b", IssueRef("", "2")))


def test_one_waits_for_the_moment_in_which_another_becomes_the_owner(interrupted):
    """A hold that does not wait for its lease would end with an outage that is none."""
    granters = MemoryGranters()
    maker = interrupted.acquire(bid("maker", ISSUES, "~owner"))
    assert isinstance(maker, Granted)

    def become_owner() -> None:
        interrupted.release(maker.lease, Ending(Outcome.RETURNED, note=granters.owner().id))

    def not_yet() -> None:
        interrupted.before["acquire"] = become_owner

    interrupted.before["acquire"] = not_yet
    assert isinstance(owned(interrupted, granters).acquire(bid("b")), Granted)


def test_an_owner_is_replaced_only_by_name(store):
    first, second = owned(store), owned(store)
    assert isinstance(first.acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration):
        second.adopt()
    found = first.owner(ISSUES)
    assert found is not None
    assert ISSUES in second.adopt(instead_of=found.id)
    assert isinstance(second.acquire(bid("b", IssueRef("", "2"))), Granted)
    with pytest.raises(BadConfiguration):
        owned(store, first.granters).read(ISSUE)
