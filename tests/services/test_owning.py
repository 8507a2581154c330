"""A namespace of a store serves one backlog, also while its owner is in the making."""

import itertools
from datetime import timedelta

import pytest

from dibs.adapters.memory.control import MemoryGranters
from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Busy, Ending, Granted, Outcome
from dibs.services.backlog import ISSUES, NAMES, OwnedStore
from dibs.testing.clock import FakeClock

ISSUE = IssueRef("", "1")
_runs = (RunId(f"{number:012x}") for number in itertools.count(1))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return MemoryLeases(clock.server_now)


@pytest.fixture
def owned(store, clock):
    """Makes the store of a backlog; of another one each time if no granters are given."""

    def make(granters=None, shared="") -> OwnedStore:
        granters = granters or MemoryGranters()
        return OwnedStore(store, granters, "redis", shared, lambda: next(_runs), clock)

    return make


def bid(run: str, issue: IssueRef = ISSUE, stage: str = "ready") -> Bid:
    ttl = timedelta(minutes=1)
    return Bid(issue, RunId(run), HolderId("worker"), StageName(stage), ttl)


def test_a_second_backlog_is_refused_with_both_names(owned):
    first, second = owned(), owned()
    assert isinstance(first.acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.acquire(bid("b"))
    with pytest.raises(BadConfiguration):
        second.live()


def test_that_nobody_owned_it_is_not_remembered(owned):
    """A worker that looked while the namespace was empty must not believe what comes later."""
    early = owned()
    assert early.read(ISSUE) is None
    assert early.live() == ()
    assert isinstance(owned().acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration):
        early.read(ISSUE)


def test_an_owner_in_the_making_is_no_strange_lease_and_is_waited_for(store, owned, clock):
    """Two workers of a backlog start together; or the first died before it had written the id."""
    assert isinstance(store.acquire(bid("maker", ISSUES, "~owner")), Granted)
    late = owned()
    assert late.read(ISSUE) is None
    with pytest.raises(Unavailable, match="another process is about to own it"):
        late.acquire(bid("b"))
    clock.advance(60)
    assert isinstance(late.acquire(bid("b")), Granted), "the maker is dead"


def test_many_that_start_together_have_one_owner(store, owned):
    """All of them saw a namespace without an owner; the first that wrote its id is the owner."""
    granters = MemoryGranters()
    first, second, stranger = owned(granters), owned(granters), owned()
    seen = [one.owner(ISSUES) for one in (first, second, stranger)]
    assert seen == [None, None, None]
    ours = first._own(ISSUES)
    assert second._own(ISSUES) == ours
    assert stranger._own(ISSUES) == ours, "a backlog which came too late took nothing"
    assert isinstance(second.acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        stranger.acquire(bid("b", IssueRef("", "2")))


def test_a_lease_granted_while_we_looked_is_not_of_an_unknown_backlog(store, owned):
    """Another worker of the backlog owned the namespace and was granted a lease meanwhile."""
    granters = MemoryGranters()
    late, early = owned(granters), owned(granters)
    owners = iter([None, None])  # issues, then names: as both were when the late one read them

    class Slow(OwnedStore):
        def owner(self, kind):
            unowned = next(owners, self)
            if unowned is self:
                assert isinstance(early.acquire(bid("a")), (Granted, Busy))
                return super().owner(kind)
            return None

    slow = Slow(store, granters, "redis", "", late.new_run, late.clock)
    assert isinstance(early.acquire(bid("a")), Granted)
    assert isinstance(slow.acquire(bid("b", IssueRef("", "2"))), Granted)


def test_an_owner_is_replaced_knowingly_where_nothing_of_it_is_held(store, owned):
    first, second = owned(), owned()
    granted = first.acquire(bid("a"))
    assert isinstance(granted, Granted)
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.adopt()
    old = first.owner(ISSUES)
    with pytest.raises(BadConfiguration, match="are live: #1"):
        second.adopt(old.id)
    store.release(granted.lease, Ending(Outcome.CONCEDED))
    assert second.adopt(old.id) == (ISSUES,), "nobody owned the names, and nobody asked for them"
    assert second.owner(ISSUES) != old
    assert second.owner(NAMES) is None
    assert second.adopt() == (NAMES,)
    assert second.adopt() == ()


def test_names_are_handed_over_when_the_backlog_begins_to_share_them(owned):
    granters, name = MemoryGranters(), IssueRef("~names", "deploy")
    assert isinstance(owned(granters).acquire(bid("a", name)), Granted)
    sharing = owned(granters, "fleet")
    assert isinstance(sharing.acquire(bid("b", name)), Busy), "the hold is its own"
    assert sharing.owner(NAMES).name == "backlog = 'fleet'"
    assert isinstance(owned(shared="fleet").acquire(bid("c", name)), Busy)


def test_control_a_lease_from_before_there_were_owners_is_one(store, owned):
    assert isinstance(store.acquire(bid("old")), Granted)
    with pytest.raises(BadConfiguration, match="does not know of which backlog"):
        owned().read(ISSUE)
