"""A namespace of a store serves one backlog, also while its owner is in the making."""

import itertools
from datetime import timedelta

import pytest

from dibs.adapters.memory.control import MemoryGranters
from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Granted
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
