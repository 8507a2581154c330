"""What a lease store must do, as checks that any store can be put through.

    from dibs.testing.conformance import leases

    @contextmanager
    def mine() -> Iterator[leases.LeaseHarness]:
        yield MyHarness(...)

    leases.prove(mine).insist()

A check names the guarantee it proves and runs only on a store that declares it; those that prove
none are the contract of every store. Each check starts from an empty store.
"""

import itertools
import threading
from abc import ABC, abstractmethod
from datetime import timedelta

from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Granted,
    Lease,
    Lost,
    Outcome,
    Record,
    Released,
    Renewed,
    RenewResult,
    Revocation,
    StopAsked,
)
from dibs.ports.guarantees import Guarantee
from dibs.ports.leases import LeaseStore
from dibs.testing.conformance.report import Check, Factory, NotApplicable, Report, examine

ADVANCED = Ending(Outcome.ADVANCED, StageName("review"), "it works")
CONCEDED = Ending(Outcome.CONCEDED)
_STALLS = 5


class LeaseHarness(ABC):
    """A store under test, and what the checks need of its surroundings."""

    long = timedelta(minutes=5)
    """A ttl that no check outlives, even on a slow machine."""
    short = timedelta(seconds=20)
    """A ttl that is waited for. Where the store's time is real, make it a fraction of a second."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self._issues = 0

    @abstractmethod
    def another(self) -> LeaseStore:
        """A second, independent client of the same store."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Return when the store's own clock has gone on by so much, and little more."""

    def restart(self) -> LeaseStore:
        """End every process that the store lives in, and come back on what is left."""
        raise NotApplicable("this store cannot be restarted")

    def issue(self) -> IssueRef:
        """An issue that nobody has touched yet."""
        self._issues += 1
        return IssueRef("", str(self._issues))

    def confirm(self, store: LeaseStore, lease: Lease) -> RenewResult:
        """Make a grant count, where a grant is only a won bid."""
        del store
        return Renewed(lease)

    def paint(self, store: LeaseStore, record: Record) -> None:
        """Show an ending on the tracker, as far as this store wants to know of it."""
        store.acknowledge(record)


def bid(issue: IssueRef, run: str, ttl: timedelta, *, stage: str = "ready") -> Bid:
    return Bid(issue, RunId(run), HolderId(f"worker-{run}"), StageName(stage), ttl)


def hold(
    harness: LeaseHarness,
    issue: IssueRef,
    run: str,
    ttl: timedelta,
    *,
    store: LeaseStore | None = None,
    stage: str = "ready",
) -> Lease:
    """Acquire and confirm; the check fails if either is refused."""
    store = store or harness.store
    granted = store.acquire(bid(issue, run, ttl, stage=stage))
    assert isinstance(granted, Granted), f"run {run} was not granted: {granted}"
    confirmed = harness.confirm(store, granted.lease)
    assert isinstance(confirmed, Renewed), f"run {run} was not confirmed: {confirmed}"
    return confirmed.lease


def end(harness: LeaseHarness, lease: Lease, ending: Ending = ADVANCED) -> Record:
    """Release and paint, as a holder that finished its work does."""
    released = harness.store.release(lease, ending)
    assert isinstance(released, Released), f"the holder could not release: {released}"
    harness.paint(harness.store, released.record)
    return released.record


def expire(harness: LeaseHarness, issue: IssueRef) -> Record:
    """Wait, on the store's own word, until the lease is over."""
    for _ in range(1000):
        record = harness.store.read(issue)
        assert record is not None, "a lease that was granted can be read"
        if not record.live:
            return record
        harness.advance(max(record.remaining.total_seconds(), 0.001))
    raise AssertionError("the lease never expired by the store's clock")


def refused(result: AcquireResult) -> bool:
    return not isinstance(result, Granted)


def _record(store: LeaseStore, issue: IssueRef) -> Record:
    record = store.read(issue)
    assert record is not None, f"{issue} has a lease, and the store cannot tell of it"
    return record


def _revoke(run: str, *, force: bool = False) -> Revocation:
    return Revocation(RunId(run), "ada", "wrong branch", force=force)


# The contract of every store


def one_of_two_acquirers_wins(harness: LeaseHarness) -> None:
    """While a lease is live nobody else is granted one, by whichever client they ask."""
    issue = harness.issue()
    first = hold(harness, issue, "a", harness.long)
    for client in (harness.store, harness.another()):
        second = client.acquire(bid(issue, "b", harness.long))
        assert refused(second), "two runs were granted the same issue"
        assert isinstance(second, Busy), f"a loser is told who has it, not {second}"
        assert second.record.lease.run == first.run, "a loser was told the wrong holder"


def an_untouched_issue_has_no_record(harness: LeaseHarness) -> None:
    """Before the first grant there is nothing to read and nothing live."""
    assert harness.store.read(harness.issue()) is None
    assert harness.store.live() == ()


def issues_do_not_disturb_each_other(harness: LeaseHarness) -> None:
    """A lease on one issue says nothing about another."""
    one, two = harness.issue(), harness.issue()
    first = hold(harness, one, "a", harness.long)
    second = hold(harness, two, "b", harness.long)
    end(harness, first)
    assert isinstance(harness.store.renew(second), Renewed)
    assert _record(harness.store, two).lease.run == second.run


def a_reading_names_the_holder(harness: LeaseHarness) -> None:
    """Anybody may read who holds an issue, for which stage, since when and until when."""
    issue = harness.issue()
    wish = Bid(
        issue, RunId("9f3ac2d1e0b4"), HolderId("Ada's laptop, é"), StageName("ready"), harness.long
    )
    granted = harness.store.acquire(wish)
    assert isinstance(granted, Granted), f"the first bid was refused: {granted}"
    confirmed = harness.confirm(harness.store, granted.lease)
    assert isinstance(confirmed, Renewed), f"the first bid was not confirmed: {confirmed}"
    record = _record(harness.another(), issue)
    seen, given = record.lease, confirmed.lease
    assert record.live, "a lease just granted is not read as live"
    assert (seen.issue, seen.run, seen.holder, seen.stage, seen.ttl) == (
        wish.issue,
        wish.run,
        wish.holder,
        wish.stage,
        wish.ttl,
    )
    assert (seen.fence, seen.granted_at) == (given.fence, given.granted_at)
    assert record.ending is None
    assert record.revocation is None
    assert timedelta() < record.remaining <= harness.long


def a_renewal_extends(harness: LeaseHarness) -> None:
    """A renewal counts from the store's now, and everybody reads the later expiry."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    for beat in (1, 2):
        harness.advance(0.05)
        renewed = harness.store.renew(lease)
        assert isinstance(renewed, Renewed), f"a live lease was not renewed: {renewed}"
        gained = renewed.lease.expires_at - lease.expires_at
        assert gained >= timedelta(seconds=0.04), f"the renewal gained only {gained}"
        assert (renewed.lease.run, renewed.lease.granted_at) == (lease.run, lease.granted_at)
        seen = _record(harness.another(), issue).lease
        assert (seen.expires_at, seen.beats) == (renewed.lease.expires_at, beat)
        lease = renewed.lease


def renewing_keeps_a_lease_past_its_first_expiry(harness: LeaseHarness) -> None:
    """A holder that renews in time is never interrupted."""
    for attempt in range(_STALLS):
        issue = harness.issue()
        lease = first = hold(harness, issue, f"a{attempt}", harness.short)
        while True:
            harness.advance(harness.short.total_seconds() / 4)
            renewed = harness.store.renew(lease)
            record = _record(harness.store, issue)
            if not isinstance(renewed, Renewed):
                # Where time is real, a machine that stalls for a whole ttl loses the lease rightly.
                assert record.as_of >= lease.expires_at, f"a live lease was refused: {renewed}"
                break
            lease = renewed.lease
            if record.as_of > first.expires_at:
                assert refused(harness.another().acquire(bid(issue, "b", harness.long)))
                return
    raise AssertionError("the machine stalled for a whole ttl every time")


def an_expired_lease_cannot_renew(harness: LeaseHarness) -> None:
    """Not even if nobody has taken the issue: somebody may be about to."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.short)
    expire(harness, issue)
    renewed = harness.store.renew(lease)
    assert isinstance(renewed, Lost), f"an expired lease was renewed: {renewed}"


def nothing_revives_an_expired_lease(harness: LeaseHarness) -> None:
    """Late renewals and a late release change nothing for those who read afterwards."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.short)
    expire(harness, issue)
    for _ in range(2):
        assert isinstance(harness.store.renew(lease), Lost), "an expired lease was renewed"
        assert not _record(harness.another(), issue).live, "a late renewal revived the lease"
    released = harness.store.release(lease, ADVANCED)
    assert isinstance(released, Lost), "an ending counted although the lease had expired"
    assert _record(harness.another(), issue).ending is None, "a late ending was written down"
    assert harness.store.live() == ()
    assert not refused(harness.another().acquire(bid(issue, "b", harness.long)))


def a_superseded_lease_can_do_nothing(harness: LeaseHarness) -> None:
    """Yesterday's holder can neither renew nor end today's lease."""
    issue = harness.issue()
    old = hold(harness, issue, "a", harness.short)
    expire(harness, issue)
    new = hold(harness, issue, "b", harness.long, store=harness.another())
    assert isinstance(harness.store.renew(old), Lost), "a superseded lease was renewed"
    assert isinstance(harness.store.release(old, ADVANCED), Lost), "a superseded lease was released"
    record = _record(harness.store, issue)
    assert record.live, "the old holder ended the new holder's lease"
    assert (record.lease.run, record.lease.fence) == (new.run, new.fence)
    assert isinstance(harness.store.renew(new), Renewed), "the new holder cannot renew"


def a_release_ends_the_lease(harness: LeaseHarness) -> None:
    """The ending is written down as it was decided, and the lease is over at once."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    released = harness.store.release(lease, ADVANCED)
    assert isinstance(released, Released), f"the holder could not release: {released}"
    for record in (released.record, _record(harness.another(), issue)):
        assert record.ending == ADVANCED, f"the ending was not kept: {record.ending}"
        assert not record.live
        assert record.lease.fence == lease.fence
    assert harness.store.live() == ()


def a_released_lease_cannot_renew(harness: LeaseHarness) -> None:
    """A renewal that comes after the ending neither revives the lease nor erases the ending."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    renewed = harness.store.renew(lease)
    assert isinstance(renewed, Lost), f"a released lease was renewed: {renewed}"
    record = _record(harness.another(), issue)
    assert record.ending == ADVANCED, "a late renewal erased the ending"
    assert not record.live, "a late renewal revived the lease"


def a_release_can_be_retried(harness: LeaseHarness) -> None:
    """A holder whose reply was lost asks again, and is told that its ending counts."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    for client in (harness.store, harness.another()):
        again = client.release(lease, ADVANCED)
        assert isinstance(again, Released), f"the retry was told {again}"
        assert again.record.ending == ADVANCED
    harness.paint(harness.store, _record(harness.store, issue))
    assert isinstance(harness.store.release(lease, ADVANCED), Released)


def a_painted_ending_frees_the_issue(harness: LeaseHarness) -> None:
    """Once the ending is shown the next run is granted the issue at once."""
    issue = harness.issue()
    end(harness, hold(harness, issue, "a", harness.long))
    assert not refused(harness.another().acquire(bid(issue, "b", harness.long)))


def an_unpainted_ending_can_be_read(harness: LeaseHarness) -> None:
    """Whoever comes next can see that an ending was decided and that nobody has shown it."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    found = _record(harness.another(), issue)
    assert found.ending == ADVANCED
    assert not found.painted, "an ending that nobody painted is read as painted"
    harness.paint(harness.another(), found)
    assert _record(harness.store, issue).painted, "a painted ending is read as unpainted"


def a_conceded_ending_needs_no_painting(harness: LeaseHarness) -> None:
    """A grant given back before it was shown leaves nothing for others to clean up."""
    issue = harness.issue()
    granted = harness.store.acquire(bid(issue, "a", harness.long))
    assert isinstance(granted, Granted), f"the first bid was refused: {granted}"
    released = harness.store.release(granted.lease, CONCEDED)
    assert isinstance(released, Released), f"a grant could not be conceded: {released}"
    assert not refused(harness.another().acquire(bid(issue, "b", harness.long)))


def a_graceful_revoke_asks_and_waits(harness: LeaseHarness) -> None:
    """The holder is told with its next renewal, may still end the lease, and is not pushed out."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    record = harness.another().revoke(issue, _revoke("a"))
    assert record is not None, "the run that holds it was not found"
    assert record.live, "a graceful revoke ended the lease at once"
    assert record.revocation == _revoke("a")
    assert refused(harness.another().acquire(bid(issue, "b", harness.long))), (
        "a revoked holder was pushed out before its lease was over"
    )
    asked = harness.store.renew(lease)
    assert isinstance(asked, StopAsked), f"the holder was not asked to stop, but told {asked}"
    assert "wrong branch" in asked.why, "the holder was not told why"
    assert isinstance(harness.store.release(lease, ADVANCED), Released), (
        "a holder that was asked to stop could not end its lease"
    )


def a_graceful_revoke_frees_at_expiry(harness: LeaseHarness) -> None:
    """A holder that never answers loses the issue when its lease runs out, and not before."""
    for _ in range(_STALLS):
        issue = harness.issue()
        lease = hold(harness, issue, "a", harness.short)
        if harness.store.revoke(issue, _revoke("a")) is None:
            # Where time is real, a machine that stalls for a whole ttl comes too late rightly.
            assert not _record(harness.store, issue).live, "the run that holds it was not found"
            continue
        over = expire(harness, issue)
        assert over.as_of >= lease.expires_at, "the lease was over before its time"
        assert not refused(harness.another().acquire(bid(issue, "b", harness.long)))
        assert isinstance(harness.store.renew(lease), Lost)
        return
    raise AssertionError("the machine stalled for a whole ttl every time")


def a_forced_revoke_frees_at_once(harness: LeaseHarness) -> None:
    """Break-glass: the issue is free now, and the old holder finds out by itself."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    record = harness.another().revoke(issue, _revoke("a", force=True))
    assert record is not None, "the run that holds it was not found"
    assert not record.live, "a forced revoke left the lease live"
    hold(harness, issue, "b", harness.long, store=harness.another())
    assert isinstance(harness.store.renew(lease), Lost), "the old holder could still renew"
    assert isinstance(harness.store.release(lease, ADVANCED), Lost), "the old holder could release"
    assert _record(harness.store, issue).lease.run == RunId("b")


def a_forced_holder_is_lost_even_if_nobody_came(harness: LeaseHarness) -> None:
    """A holder that was forced out cannot come back just because the issue is still free."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert harness.store.revoke(issue, _revoke("a", force=True)) is not None
    assert isinstance(harness.store.renew(lease), Lost), "a forced-out holder renewed"
    assert isinstance(harness.store.release(lease, ADVANCED), Lost), "a forced-out holder released"
    assert harness.store.live() == ()


def a_revoke_names_one_run(harness: LeaseHarness) -> None:
    """A revoke that names another run, or comes after the end, does nothing at all."""
    issue = harness.issue()
    assert harness.store.revoke(issue, _revoke("a", force=True)) is None
    lease = hold(harness, issue, "a", harness.long)
    for force in (False, True):
        assert harness.another().revoke(issue, _revoke("b", force=force)) is None
    record = _record(harness.store, issue)
    assert record.live, "a revoke hit a run that it did not name"
    assert record.revocation is None
    assert isinstance(harness.store.renew(lease), Renewed)
    end(harness, lease)
    assert harness.store.revoke(issue, _revoke("a", force=True)) is None


def live_lists_only_the_live_oldest_grant_first(harness: LeaseHarness) -> None:
    """Ended, expired and revoked leases are not listed, and renewing does not lose a place."""
    issues = [harness.issue() for _ in range(6)]
    held = {}
    for place in (4, 0, 2, 1, 3):
        ttl = harness.short if place == 1 else harness.long
        held[place] = hold(harness, issues[place], f"r{place}", ttl)
        harness.advance(0.01)
    end(harness, held[2])
    assert harness.store.revoke(issues[3], _revoke("r3", force=True)) is not None
    assert isinstance(harness.store.renew(held[4]), Renewed)
    expire(harness, issues[1])
    listed = [record.lease.run for record in harness.another().live()]
    assert listed == ["r4", "r0"], f"live() listed {listed}"
    assert all(record.live for record in harness.store.live())


def live_can_be_asked_for_one_stage(harness: LeaseHarness) -> None:
    """A stage's leases are found among those of other stages."""
    stages = ("ready", "review", "ready", "review")
    for place, stage in enumerate(stages):
        hold(harness, harness.issue(), f"r{place}", harness.long, stage=stage)
        harness.advance(0.01)
    listed = [record.lease.run for record in harness.store.live("review")]
    assert listed == ["r1", "r3"], f"live('review') listed {listed}"
    assert harness.store.live("nowhere") == ()


def the_limit_of_live_counts_what_it_returns(harness: LeaseHarness) -> None:
    """Leases that are over, of other stages or younger, do not crowd out those asked for."""
    issues = [harness.issue() for _ in range(4)]
    hold(harness, issues[0], "over", harness.short)
    expire(harness, issues[0])
    for place, stage in ((3, "review"), (1, "ready"), (2, "review")):
        hold(harness, issues[place], f"r{place}", harness.long, stage=stage)
        harness.advance(0.01)
    for stage_asked, limit, expected in (
        (None, 1, ["r3"]),
        (None, 2, ["r3", "r1"]),
        ("review", 1, ["r3"]),
        ("ready", 1, ["r1"]),
    ):
        listed = [record.lease.run for record in harness.store.live(stage_asked, limit)]
        assert listed == expected, f"live({stage_asked!r}, limit={limit}) listed {listed}"


# ATOMIC


def a_crowd_never_holds_twice(harness: LeaseHarness) -> None:
    """Many threads on two clients, one issue: at no time are two of them granted."""
    issue = harness.issue()
    clients = (harness.store, harness.another())
    crowd = _Crowd(issue, harness.long)
    threads = [
        threading.Thread(target=crowd.visit, args=(clients[number % 2], number), daemon=True)
        for number in range(crowd.size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "an acquirer hangs"
    assert not crowd.flaws, "; ".join(crowd.flaws[:5])
    assert crowd.grants, "nobody was ever granted the issue"
    assert len(set(crowd.grants)) == len(crowd.grants), "two grants carry the same fence"
    assert crowd.grants == sorted(crowd.grants), "a later grant carries a lower fence"


class _Crowd:
    size = 6
    visits = 15

    def __init__(self, issue: IssueRef, ttl: timedelta) -> None:
        self._issue = issue
        self._ttl = ttl
        self._gate = threading.Barrier(self.size)
        self._lock = threading.Lock()
        self._inside: set[RunId] = set()
        self.grants: list[Fence] = []
        self.flaws: list[str] = []

    def visit(self, store: LeaseStore, number: int) -> None:
        try:
            self._gate.wait(timeout=30)
            for turn in range(self.visits):
                self._take(store, f"t{number}-{turn}")
        except Exception as flaw:  # noqa: BLE001 - told by the thread that checks
            with self._lock:
                self.flaws.append(f"{type(flaw).__name__}: {flaw}")

    def _take(self, store: LeaseStore, run: str) -> None:
        granted = store.acquire(bid(self._issue, run, self._ttl))
        if not isinstance(granted, Granted):
            return
        with self._lock:
            if self._inside:
                self.flaws.append(f"{run} was granted while {sorted(self._inside)} held it")
            self._inside.add(granted.lease.run)
            self.grants.append(granted.lease.fence)
        # A moment in which others may try; a store that grants twice is seen to.
        threading.Event().wait(0.0005)
        with self._lock:
            self._inside.discard(granted.lease.run)
        released = store.release(granted.lease, CONCEDED)
        assert isinstance(released, Released), f"{run} could not give back: {released}"


def nothing_is_granted_over_an_unpainted_ending(harness: LeaseHarness) -> None:
    """The ending is a write-ahead record: it is granted over only when it was acknowledged."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    harness.advance(0.05)
    for run in ("b", "a"):
        second = harness.another().acquire(bid(issue, run, harness.long))
        assert isinstance(second, Busy), f"an unpainted ending was granted over: {second}"
        assert second.record.ending == ADVANCED
        assert not second.record.painted
    harness.paint(harness.another(), _record(harness.another(), issue))
    assert not refused(harness.another().acquire(bid(issue, "b", harness.long)))


def an_acknowledgement_is_for_one_term(harness: LeaseHarness) -> None:
    """Whoever painted an old ending does not wave a later one through."""
    issue = harness.issue()
    old = end(harness, hold(harness, issue, "a", harness.long))
    lease = hold(harness, issue, "b", harness.long)
    harness.store.acknowledge(old)
    assert _record(harness.store, issue).live, "an old acknowledgement ended a live lease"
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    harness.store.acknowledge(old)
    assert not _record(harness.store, issue).painted, "an old acknowledgement painted a new ending"
    assert refused(harness.another().acquire(bid(issue, "c", harness.long)))


# FENCED


def fences_rise_across_release(harness: LeaseHarness) -> None:
    """However a lease is ended, the next grant outranks it."""
    issue, fences = harness.issue(), []
    for run, outcome in enumerate(Outcome):
        lease = hold(harness, issue, f"r{run}", harness.long)
        fences.append(lease.fence)
        end(harness, lease, Ending(outcome))
    _assert_rising(fences)


def fences_rise_across_expiry(harness: LeaseHarness) -> None:
    """A holder that vanished is outranked by whoever comes after."""
    issue, fences = harness.issue(), []
    for run in range(3):
        fences.append(hold(harness, issue, f"r{run}", harness.short).fence)
        expire(harness, issue)
    _assert_rising(fences)


def fences_rise_across_a_forced_revoke(harness: LeaseHarness) -> None:
    """A holder that was forced out is outranked by whoever comes after."""
    issue, fences = harness.issue(), []
    for run in range(3):
        fences.append(hold(harness, issue, f"r{run}", harness.long).fence)
        assert harness.store.revoke(issue, _revoke(f"r{run}", force=True)) is not None
    _assert_rising(fences)


def a_renewal_keeps_its_fence(harness: LeaseHarness) -> None:
    """The fence belongs to the grant; a holder that renews does not outrank itself."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    renewed = harness.store.renew(lease)
    assert isinstance(renewed, Renewed)
    assert renewed.lease.fence == lease.fence
    assert _record(harness.store, issue).lease.fence == lease.fence


def _assert_rising(fences: list[Fence]) -> None:
    steps = itertools.pairwise(fences)
    assert all(earlier < later for earlier, later in steps), f"fences do not rise: {fences}"


# SERVER_CLOCK


def expiry_follows_the_stores_clock(harness: LeaseHarness) -> None:
    """A lease is live exactly as long as the store's own time is before its expiry."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.short)
    seen: list[ServerTime] = []
    for _ in range(1000):
        record = _record(harness.another(), issue)
        seen.append(record.as_of)
        assert record.live == (record.as_of < lease.expires_at)
        if not record.live:
            break
        harness.advance(harness.short.total_seconds() / 5)
    assert seen == sorted(seen), "the store's clock ran backwards"
    taken = harness.another().acquire(bid(issue, "b", harness.long))
    assert isinstance(taken, Granted), f"an expired lease still kept others out: {taken}"
    assert taken.lease.granted_at >= lease.expires_at, "the next grant began before the last ended"


def a_grant_is_stamped_by_the_store(harness: LeaseHarness) -> None:
    """The times of a lease lie between two readings of the store's clock, a ttl apart."""
    known, issue = harness.issue(), harness.issue()
    hold(harness, known, "clock", harness.long)
    before = _record(harness.another(), known).as_of
    granted = harness.store.acquire(bid(issue, "a", harness.long))
    assert isinstance(granted, Granted), f"the first bid was refused: {granted}"
    after = _record(harness.another(), known).as_of
    lease = granted.lease
    assert before <= lease.granted_at <= after, "the grant was not stamped by the store"
    assert lease.expires_at == lease.granted_at + harness.long


# IDEMPOTENT


def a_retried_acquire_is_the_same_grant(harness: LeaseHarness) -> None:
    """A bidder whose reply was lost asks again, and neither loses to itself nor gains time."""
    issue = harness.issue()
    first = harness.store.acquire(bid(issue, "a", harness.long))
    assert isinstance(first, Granted), f"the first bid was refused: {first}"
    harness.advance(0.05)
    for client in (harness.store, harness.another()):
        again = client.acquire(bid(issue, "a", harness.long))
        assert isinstance(again, Granted), f"the retry was told {again}"
        assert again.lease == first.lease, "the retry was granted something else"
    assert len(harness.store.live()) == 1


def a_retry_after_the_end_is_a_new_grant(harness: LeaseHarness) -> None:
    """A retry that comes too late does not bring the old grant back."""
    issue = harness.issue()
    first = hold(harness, issue, "a", harness.short)
    expire(harness, issue)
    again = harness.store.acquire(bid(issue, "a", harness.long))
    if isinstance(again, Granted):
        assert again.lease.fence > first.fence, "an expired grant was handed out again"
        assert again.lease.granted_at >= first.expires_at


# DURABLE


def a_restart_keeps_the_lease(harness: LeaseHarness) -> None:
    """After every process died the holder still holds, and nobody else gets in."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    store = harness.restart()
    record = _record(store, issue)
    assert record.live, "a restart ended a lease"
    assert (record.lease.run, record.lease.fence) == (lease.run, lease.fence)
    assert refused(store.acquire(bid(issue, "b", harness.long))), "a restart freed a held issue"
    assert isinstance(store.renew(lease), Renewed), "the holder cannot renew after a restart"


def fences_rise_across_a_restart(harness: LeaseHarness) -> None:
    """The counter outlives the processes: a fence is never handed out twice."""
    issue = harness.issue()
    first = hold(harness, issue, "a", harness.long)
    end(harness, first)
    store = harness.restart()
    second = hold(harness, issue, "b", harness.long, store=store)
    _assert_rising([first.fence, second.fence])


def an_ending_survives_a_restart(harness: LeaseHarness) -> None:
    """What was decided before a crash is there for the next reader to finish."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    record = _record(harness.restart(), issue)
    assert record.ending == ADVANCED
    assert not record.painted, "a restart took an unpainted ending for painted"


CHECKS: tuple[Check[LeaseHarness], ...] = (
    Check(one_of_two_acquirers_wins),
    Check(an_untouched_issue_has_no_record),
    Check(issues_do_not_disturb_each_other),
    Check(a_reading_names_the_holder),
    Check(a_renewal_extends),
    Check(renewing_keeps_a_lease_past_its_first_expiry),
    Check(an_expired_lease_cannot_renew),
    Check(nothing_revives_an_expired_lease),
    Check(a_superseded_lease_can_do_nothing),
    Check(a_release_ends_the_lease),
    Check(a_released_lease_cannot_renew),
    Check(a_release_can_be_retried),
    Check(a_painted_ending_frees_the_issue),
    Check(an_unpainted_ending_can_be_read),
    Check(a_conceded_ending_needs_no_painting),
    Check(a_graceful_revoke_asks_and_waits),
    Check(a_graceful_revoke_frees_at_expiry),
    Check(a_forced_revoke_frees_at_once),
    Check(a_forced_holder_is_lost_even_if_nobody_came),
    Check(a_revoke_names_one_run),
    Check(live_lists_only_the_live_oldest_grant_first),
    Check(live_can_be_asked_for_one_stage),
    Check(the_limit_of_live_counts_what_it_returns),
    Check(a_crowd_never_holds_twice, Guarantee.ATOMIC),
    # A store that cannot grant and look in one step leaves this to its claimer, who looks under
    # the grant (services.claiming).
    Check(nothing_is_granted_over_an_unpainted_ending, Guarantee.ATOMIC),
    Check(an_acknowledgement_is_for_one_term, Guarantee.ATOMIC),
    Check(fences_rise_across_release, Guarantee.FENCED),
    Check(fences_rise_across_expiry, Guarantee.FENCED),
    Check(fences_rise_across_a_forced_revoke, Guarantee.FENCED),
    Check(a_renewal_keeps_its_fence, Guarantee.FENCED),
    Check(expiry_follows_the_stores_clock, Guarantee.SERVER_CLOCK),
    Check(a_grant_is_stamped_by_the_store, Guarantee.SERVER_CLOCK),
    Check(a_retried_acquire_is_the_same_grant, Guarantee.IDEMPOTENT),
    Check(a_retry_after_the_end_is_a_new_grant, Guarantee.IDEMPOTENT),
    Check(a_restart_keeps_the_lease, Guarantee.DURABLE),
    Check(fences_rise_across_a_restart, Guarantee.DURABLE),
    Check(an_ending_survives_a_restart, Guarantee.DURABLE),
)


def prove(factory: Factory[LeaseHarness]) -> Report:
    """Which of its declared guarantees a store keeps, and by which checks that was seen."""
    with factory() as harness:
        subject, declared = harness.store.name, harness.store.guarantees
    return examine(subject, declared, CHECKS, factory)
