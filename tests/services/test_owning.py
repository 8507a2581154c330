"""A namespace of a store serves one backlog, also while its owner is in the making."""

import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest

from dibs.adapters.memory.control import MemoryGranters
from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.ids import HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.lease import Bid, Busy, Ending, Granted, Outcome
from dibs.core.named import hold_ref
from dibs.services.backlog import ISSUES, NAMES, OwnedStore
from dibs.testing.clock import FakeClock

ISSUE = IssueRef("", "1")
_runs = (RunId(f"{number:012x}") for number in itertools.count(1))


class Interrupted(MemoryLeases):
    """A store in which something happens once, right before one of its calls."""

    def __init__(self, now: Callable[[], ServerTime]) -> None:
        super().__init__(now)
        self.before: dict[str, Callable[[], object]] = {}

    def live(self, *arguments, **words):
        self._let_happen("live")
        return super().live(*arguments, **words)

    def acquire(self, bid):
        self._let_happen("acquire")
        return super().acquire(bid)

    def release(self, lease, ending):
        self._let_happen("release")
        return super().release(lease, ending)

    def _let_happen(self, call: str) -> None:
        self.before.pop(call, lambda: None)()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return Interrupted(clock.server_now)


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


@pytest.mark.parametrize("earlier", [hold_ref("deploy", 1), IssueRef("", "2")])
def test_workers_of_one_backlog_that_begin_together_are_both_served(store, owned, earlier):
    """The second looks for an owner, the first becomes it and is granted, the second looks on."""
    granters = MemoryGranters()
    first, second = owned(granters), owned(granters)
    store.before["live"] = lambda: first.acquire(bid("a", earlier))
    assert isinstance(second.acquire(bid("b")), Granted)


def test_of_backlogs_that_begin_together_one_becomes_the_owner(store, owned):
    first, second = owned(), owned()
    store.before["acquire"] = lambda: first.acquire(bid("a"))
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.acquire(bid("b", IssueRef("", "2")))
    with pytest.raises(BadConfiguration):
        owned().read(ISSUE)
    assert isinstance(first.acquire(bid("c", IssueRef("", "3"))), Granted)


def test_a_process_that_slept_while_it_became_the_owner_has_not_become_it(store, owned, clock):
    first, second = owned(), owned()

    def sleep() -> None:
        clock.advance(11)
        assert isinstance(first.acquire(bid("a")), Granted)

    store.before["release"] = sleep
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        second.acquire(bid("b", IssueRef("", "2")))


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


def test_a_running_worker_of_the_former_owner_is_refused_within_ten_seconds(store, owned, clock):
    first, second = owned(), owned()
    granted = first.acquire(bid("a"))
    assert isinstance(granted, Granted)
    store.release(granted.lease, Ending(Outcome.CONCEDED))
    second.adopt(first.owner(ISSUES).id)
    clock.advance(10)
    with pytest.raises(BadConfiguration, match="those of a backlog in memory"):
        first.acquire(bid("b"))
    assert isinstance(second.acquire(bid("c")), Granted)


def test_the_owner_is_read_once_in_ten_seconds(store, owned, clock, monkeypatch):
    first, looks = owned(), []
    assert isinstance(first.acquire(bid("a")), Granted)
    read = store.read
    monkeypatch.setattr(store, "read", lambda issue: looks.append(issue) or read(issue))
    for number in range(50):
        clock.advance(0.5)
        first.acquire(bid("b", IssueRef("", str(number))))
    assert looks == [ISSUES] * 2


def test_a_refused_backlog_does_not_take_the_owners_holds_and_loops(owned):
    first, second, name = owned(), owned(), hold_ref("deploy", 1)
    assert isinstance(first.acquire(bid("a")), Granted)
    with pytest.raises(BadConfiguration, match="the issues in this namespace are those of"):
        second.acquire(bid("b", name))
    assert isinstance(first.acquire(bid("c", name)), Granted)


def test_a_backlog_shares_names_where_the_issues_are_anothers(owned):
    first, name = owned(), hold_ref("deploy", 1)
    assert isinstance(first.acquire(bid("a")), Granted)
    assert isinstance(owned(shared="fleet").acquire(bid("b", name)), Granted)


def test_names_are_handed_over_when_the_backlog_begins_to_share_them(owned):
    granters, name = MemoryGranters(), hold_ref("deploy", 1)
    assert isinstance(owned(granters).acquire(bid("a", name)), Granted)
    sharing = owned(granters, "fleet")
    assert isinstance(sharing.acquire(bid("b", name)), Busy), "the hold is its own"
    assert sharing.owner(NAMES).name == "backlog = 'fleet'"
    assert isinstance(owned(shared="fleet").acquire(bid("c", name)), Busy)


def test_control_a_lease_from_before_there_were_owners_is_one(store, owned):
    assert isinstance(store.acquire(bid("old")), Granted)
    with pytest.raises(BadConfiguration, match="does not know of which backlog"):
        owned().read(ISSUE)
