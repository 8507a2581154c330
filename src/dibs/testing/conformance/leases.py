"""What a lease store must do, as checks that any store can be put through.

A check names the guarantee it proves and runs only on a store that declares it; those that prove
none are the contract of every store. Each check starts from an empty store.
"""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from dibs.core.errors import Outage
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Lost,
    Outcome,
    Released,
    Renewed,
    Revocation,
    StopAsked,
)
from dibs.ports.leases import Guarantee, LeaseStore
from dibs.testing.conformance.lease_harness import (
    ADVANCED,
    CONCEDED,
    LeaseHarness,
    bid,
    end,
    expire,
    hold,
    record_of,
    refused,
    revocation,
)
from dibs.testing.conformance.report import Check, Factory, Report, assert_outage, examine
from dibs.testing.conformance.sequences import wander

_STALLS = 20
_HANGS_S = 60.0
_HOUR = timedelta(hours=1)
_FAILED = Ending(Outcome.FAILED, note="it broke")


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
    assert record_of(harness.store, two).lease.run == second.run


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
    record = record_of(harness.another(), issue)
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
        seen = record_of(harness.another(), issue).lease
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
            record = record_of(harness.store, issue)
            if not isinstance(renewed, Renewed):
                # Where time is real, a machine that stalls for a whole ttl loses the lease rightly.
                assert record.as_of >= lease.expires_at, f"a live lease was refused: {renewed}"
                break
            if not record.live:
                break  # it stalled between the two
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
        assert not record_of(harness.another(), issue).live, "a late renewal revived the lease"
    released = harness.store.release(lease, ADVANCED)
    assert isinstance(released, Lost), "an ending counted although the lease had expired"
    assert record_of(harness.another(), issue).ending is None, "a late ending was written down"
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
    record = record_of(harness.store, issue)
    assert record.live, "the old holder ended the new holder's lease"
    assert (record.lease.run, record.lease.fence) == (new.run, new.fence)
    assert isinstance(harness.store.renew(new), Renewed), "the new holder cannot renew"


def a_release_ends_the_lease(harness: LeaseHarness) -> None:
    """The ending is written down as it was decided, and the lease is over at once."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    released = harness.store.release(lease, ADVANCED)
    assert isinstance(released, Released), f"the holder could not release: {released}"
    for record in (released.record, record_of(harness.another(), issue)):
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
    record = record_of(harness.another(), issue)
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
    harness.paint(harness.store, record_of(harness.store, issue))
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
    found = record_of(harness.another(), issue)
    assert found.ending == ADVANCED
    assert not found.painted, "an ending that nobody painted is read as painted"
    harness.paint(harness.another(), found)
    assert record_of(harness.store, issue).painted, "a painted ending is read as unpainted"


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
    record = harness.another().revoke(issue, revocation("a"))
    assert record is not None, "the run that holds it was not found"
    assert record.live, "a graceful revoke ended the lease at once"
    assert record.revocation == revocation("a")
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
        if harness.store.revoke(issue, revocation("a")) is None:
            # Where time is real, a machine that stalls for a whole ttl comes too late rightly.
            assert not record_of(harness.store, issue).live, "the run that holds it was not found"
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
    record = harness.another().revoke(issue, revocation("a", force=True))
    assert record is not None, "the run that holds it was not found"
    assert not record.live, "a forced revoke left the lease live"
    hold(harness, issue, "b", harness.long, store=harness.another())
    assert isinstance(harness.store.renew(lease), Lost), "the old holder could still renew"
    assert isinstance(harness.store.release(lease, ADVANCED), Lost), "the old holder could release"
    assert record_of(harness.store, issue).lease.run == RunId("b")


def a_forced_holder_is_lost_even_if_nobody_came(harness: LeaseHarness) -> None:
    """A holder that was forced out cannot come back just because the issue is still free."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert harness.store.revoke(issue, revocation("a", force=True)) is not None
    assert isinstance(harness.store.renew(lease), Lost), "a forced-out holder renewed"
    assert isinstance(harness.store.release(lease, ADVANCED), Lost), "a forced-out holder released"
    assert harness.store.live() == ()


def a_revoke_names_one_run(harness: LeaseHarness) -> None:
    """A revoke that names another run, or comes after the end, does nothing at all."""
    issue = harness.issue()
    assert harness.store.revoke(issue, revocation("a", force=True)) is None
    lease = hold(harness, issue, "a", harness.long)
    for force in (False, True):
        assert harness.another().revoke(issue, revocation("b", force=force)) is None
    record = record_of(harness.store, issue)
    assert record.live, "a revoke hit a run that it did not name"
    assert record.revocation is None
    assert isinstance(harness.store.renew(lease), Renewed)
    end(harness, lease)
    assert harness.store.revoke(issue, revocation("a", force=True)) is None


def live_lists_only_the_live_oldest_grant_first(harness: LeaseHarness) -> None:
    """Ended, expired and revoked leases are not listed, and renewing does not lose a place."""
    issues = [harness.issue() for _ in range(6)]
    held = {}
    for place in (4, 0, 2, 1, 3):
        ttl = harness.short if place == 1 else harness.long
        held[place] = hold(harness, issues[place], f"r{place}", ttl)
        harness.advance(0.01)
    end(harness, held[2])
    assert harness.store.revoke(issues[3], revocation("r3", force=True)) is not None
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


def a_new_run_starts_afresh(harness: LeaseHarness) -> None:
    """Nothing of the leases before it is inherited: not their expiry, beats, revoke or ending."""
    issue = harness.issue()
    renewed = harness.store.renew(hold(harness, issue, "a", harness.long))
    assert isinstance(renewed, Renewed)
    end(harness, renewed.lease, _FAILED)
    hold(harness, issue, "b", harness.long)
    assert harness.store.revoke(issue, revocation("b", force=True)) is not None
    harness.advance(0.05)
    lease = hold(harness, issue, "c", harness.long / 2, stage="review")
    record = record_of(harness.another(), issue)
    assert record.live, "a new lease is not read as live"
    for seen in (lease, record.lease):
        assert (seen.run, seen.stage, seen.ttl) == ("c", "review", harness.long / 2)
        assert seen.beats == 0, "a new lease was born with beats"
    assert timedelta() < record.remaining <= harness.long / 2, (
        f"a lease of {harness.long / 2} runs for another {record.remaining}"
    )
    assert (record.ending, record.revocation) == (None, None), "an old word was inherited"
    assert isinstance(harness.store.renew(lease), Renewed), "an old revoke hit the new lease"


def a_name_proves_nothing(harness: LeaseHarness) -> None:
    """A fleet shares one name and one login: the run is the identity, and nothing else."""
    held, issue = harness.issue(), harness.issue()
    hold(harness, held, "live", harness.long, holder="fleet")
    again = harness.another().acquire(bid(held, "b", harness.long, holder="fleet"))
    assert refused(again), "a second run of the same name was granted what the first holds"
    old = hold(harness, issue, "a", harness.short, holder="fleet")
    expire(harness, issue)
    new = hold(harness, issue, "c", harness.long, holder="fleet")
    assert isinstance(harness.store.renew(old), Lost), "an old run renewed by its name"
    assert isinstance(harness.store.release(old, ADVANCED), Lost), "an old run ended by its name"
    assert harness.store.revoke(issue, revocation("a", force=True)) is None
    record = record_of(harness.another(), issue)
    assert record.live, "an old run of the same name ended the lease"
    assert record.lease.run == new.run
    assert isinstance(harness.store.renew(new), Renewed)


def the_first_ending_stands(harness: LeaseHarness) -> None:
    """Whoever decides again, by mistake or after a lost reply, is told what was decided first."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    again = harness.store.release(lease, _FAILED)
    assert isinstance(again, Released), f"the retry was told {again}"
    assert again.record.ending == ADVANCED, "a second ending replaced the first"
    assert record_of(harness.another(), issue).ending == ADVANCED


def a_late_retry_does_not_disturb_the_next_holder(harness: LeaseHarness) -> None:
    """A release that is repeated when the issue is another's ends nothing."""
    issue = harness.issue()
    old = hold(harness, issue, "a", harness.long)
    end(harness, old)
    new = hold(harness, issue, "b", harness.long, store=harness.another())
    harness.store.release(old, ADVANCED)
    harness.store.release(old, _FAILED)
    record = record_of(harness.store, issue)
    assert record.live, "a late retry ended the next holder's lease"
    assert (record.lease.run, record.ending) == (new.run, None)
    assert isinstance(harness.another().renew(new), Renewed)


def what_people_say_comes_back_letter_for_letter(harness: LeaseHarness) -> None:
    """Names, notes and reasons are text: quotes, signs and accents do no harm and are kept."""
    odd = 'it\'s 100% "odd" -- <b>; é 🦄 {x} $1 \\n'
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long, holder=odd)
    said = Revocation(RunId("a"), odd, odd)
    assert harness.store.revoke(issue, said) is not None
    record = record_of(harness.another(), issue)
    assert record.lease.holder == odd
    assert record.revocation == said
    ending = Ending(Outcome.PARKED, note=odd)
    assert isinstance(harness.store.release(lease, ending), Released)
    assert record_of(harness.another(), issue).ending == ending


def any_sequence_of_calls_is_answered_rightly(harness: LeaseHarness) -> None:
    """Random claims, renewals, endings, revokes and deaths: each answer fits what went before."""
    wander(harness, "contract")


def an_outage_is_told_as_one(harness: LeaseHarness) -> None:
    """A store that cannot be reached raises an Outage: not another error, and never an answer."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    record = record_of(harness.store, issue)
    client = harness.cut_off()
    operations: dict[str, Callable[[], object]] = {
        "acquire": lambda: client.acquire(bid(issue, "b", harness.long)),
        "renew": lambda: client.renew(lease),
        "release": lambda: client.release(lease, ADVANCED),
        "revoke": lambda: client.revoke(issue, revocation("a")),
        "read": lambda: client.read(issue),
        "live": client.live,
    }
    for name, operation in operations.items():
        assert_outage(name, operation)
    with suppress(Outage):  # where it is not written down, there is nothing to fail
        client.acknowledge(record)


# ATOMIC


def a_crowd_never_holds_twice(harness: LeaseHarness) -> None:
    """Many threads on two clients, one issue: at no time are two of them granted."""
    issue = harness.issue()
    crowd = _Crowd(issue, harness.long)
    crowd.run((harness.store, harness.another()))
    assert not crowd.flaws, "; ".join(crowd.flaws[:5])
    grants = [lease.fence for lease in crowd.leases]
    assert grants, "nobody was ever granted the issue"
    assert len(set(grants)) == len(grants), "two grants carry the same fence"
    assert grants == sorted(grants), "a later grant carries a lower fence"


def _all_at_once(
    size: int,
    clients: tuple[LeaseStore, LeaseStore],
    live: Callable[[LeaseStore, int], None],
    visited: Callable[[], int],
) -> list[str]:
    """So many threads, which start together and share two clients; what went wrong in them.

    They are waited for as long as any of them gets on: that a machine or a store is slow is no
    flaw.
    """
    gate = threading.Barrier(size)
    flaws: list[str] = []

    def run(number: int) -> None:
        try:
            gate.wait(timeout=_HANGS_S)
            live(clients[number % 2], number)
        except Exception as flaw:  # noqa: BLE001 - told by the thread that checks
            flaws.append(f"{type(flaw).__name__}: {flaw}")

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            before = visited()
            thread.join(timeout=_HANGS_S)
            assert not thread.is_alive() or visited() > before, "an acquirer hangs"
    return flaws


class _Crowd:
    """Threads that take the issue in turn, and others that only look."""

    size = 6
    visits = 15

    def __init__(self, issue: IssueRef, ttl: timedelta, *, onlookers: int = 0) -> None:
        self._issue = issue
        self._ttl = ttl
        self._onlookers = onlookers
        self._lock = threading.Lock()
        self._inside: set[RunId] = set()
        self._visiting = self.size - onlookers
        self._visits = 0
        self.leases: list[Lease] = []
        """What was granted, in the order in which it was."""
        self.sightings: list[Lease] = []
        self.flaws: list[str] = []

    def run(self, clients: tuple[LeaseStore, LeaseStore]) -> None:
        self.flaws += _all_at_once(self.size, clients, self._live, lambda: self._visits)

    def _live(self, store: LeaseStore, number: int) -> None:
        try:
            if number < self._onlookers:
                self._look_on(store)
                return
            for turn in range(self.visits):
                self._take(store, f"t{number}-{turn}")
                with self._lock:
                    self._visits += 1
        finally:
            with self._lock:
                self._visiting -= number >= self._onlookers

    def _look_on(self, store: LeaseStore) -> None:
        while self._visiting > 0:
            record = store.read(self._issue)
            if record is not None:
                with self._lock:
                    self.sightings.append(record.lease)

    def _take(self, store: LeaseStore, run: str) -> None:
        granted = store.acquire(bid(self._issue, run, self._ttl))
        if not isinstance(granted, Granted):
            return
        with self._lock:
            if self._inside:
                self.flaws.append(f"{run} was granted while {sorted(self._inside)} held it")
            self._inside.add(granted.lease.run)
            self.leases.append(granted.lease)
        # A moment in which others may try; a store that grants twice is seen to.
        threading.Event().wait(0.0005)
        with self._lock:
            self._inside.discard(granted.lease.run)
        released = store.release(granted.lease, CONCEDED)
        assert isinstance(released, Released), f"{run} could not give back: {released}"


def nobody_sees_half_a_grant(harness: LeaseHarness) -> None:
    """Run, fence and times change in one step: whoever reads meanwhile sees a whole lease."""
    issue = harness.issue()
    crowd = _Crowd(issue, harness.long, onlookers=2)
    crowd.run((harness.store, harness.another()))
    assert not crowd.flaws, "; ".join(crowd.flaws[:5])
    seen: dict[Fence, set[tuple[RunId, ServerTime]]] = {}
    for lease in (*crowd.leases, *crowd.sightings):
        seen.setdefault(lease.fence, set()).add((lease.run, lease.granted_at))
    torn = [f"{fence}: {sorted(who)}" for fence, who in seen.items() if len(who) > 1]
    assert not torn, f"one fence was seen with several leases: {torn[:3]}"


def a_run_that_does_not_hold_can_do_nothing(harness: LeaseHarness) -> None:
    """Renewing and ending compare the run in the step that writes, whatever is handed in."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    foreign = replace(lease, run=RunId("b"), fence=Fence(lease.fence + 1))
    assert isinstance(harness.another().renew(foreign), Lost), "a run renewed another's lease"
    assert isinstance(harness.another().release(foreign, ADVANCED), Lost), (
        "a run ended another's lease"
    )
    record = record_of(harness.store, issue)
    assert record.live, "a run that did not hold it ended the lease"
    assert (record.lease.run, record.lease.fence, record.lease.beats) == ("a", lease.fence, 0)


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
    harness.paint(harness.another(), record_of(harness.another(), issue))
    assert not refused(harness.another().acquire(bid(issue, "b", harness.long)))


def an_acknowledgement_is_for_one_term(harness: LeaseHarness) -> None:
    """Whoever painted an old ending does not wave a later one through."""
    issue = harness.issue()
    old = end(harness, hold(harness, issue, "a", harness.long))
    lease = hold(harness, issue, "b", harness.long)
    harness.store.acknowledge(old)
    assert record_of(harness.store, issue).live, "an old acknowledgement ended a live lease"
    assert isinstance(harness.store.release(lease, ADVANCED), Released)
    harness.store.acknowledge(old)
    assert not record_of(harness.store, issue).painted, (
        "an old acknowledgement painted a new ending"
    )
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
        assert harness.store.revoke(issue, revocation(f"r{run}", force=True)) is not None
    _assert_rising(fences)


def fences_rise_whatever_happens(harness: LeaseHarness) -> None:
    """Random claims, renewals, endings, revokes and deaths: no fence twice, and none too low."""
    for journey in wander(harness, "fences"):
        _assert_rising(journey.fences)


def a_renewal_keeps_its_fence(harness: LeaseHarness) -> None:
    """The fence belongs to the grant; a holder that renews does not outrank itself."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.long)
    renewed = harness.store.renew(lease)
    assert isinstance(renewed, Renewed)
    assert renewed.lease.fence == lease.fence
    assert record_of(harness.store, issue).lease.fence == lease.fence


def _assert_rising(fences: list[Fence]) -> None:
    steps = itertools.pairwise(fences)
    assert all(earlier < later for earlier, later in steps), f"fences do not rise: {fences}"


def a_floor_is_granted_above(harness: LeaseHarness) -> None:
    """What another store handed out before is outranked, on a fresh issue and on a known one."""
    known, fresh = harness.issue(), harness.issue()
    first = hold(harness, known, "a", harness.long)
    end(harness, first)
    floor = Fence(first.fence + 1000)
    for issue, run in ((known, "b"), (fresh, "c")):
        granted = harness.store.acquire(replace(bid(issue, run, harness.long), floor=floor))
        assert isinstance(granted, Granted), f"a bid with a floor was refused: {granted}"
        confirmed = harness.confirm(harness.store, granted.lease)
        assert isinstance(confirmed, Renewed), f"it was not confirmed: {confirmed}"
        assert confirmed.lease.fence > floor, f"{confirmed.lease.fence} is not above {floor}"
        read = record_of(harness.another(), issue).lease.fence
        assert read == confirmed.lease.fence, f"the fence granted is read as {read}"
        end(harness, confirmed.lease)
        later = hold(harness, issue, f"{run}-later", harness.long, store=harness.another())
        assert later.fence > confirmed.lease.fence, "the floor was forgotten"


def the_highest_fence_of_all_is_known(harness: LeaseHarness) -> None:
    """Whoever takes over from this store learns what it has handed out, on whatever issue."""
    fences = []
    for place in range(4):
        lease = hold(harness, harness.issue(), f"r{place}", harness.long)
        fences.append(lease.fence)
        if place % 2:
            end(harness, lease)
    for client in (harness.store, harness.another()):
        assert client.highest() >= max(fences), f"{client.highest()} is not the highest of {fences}"


# SERVER_CLOCK


def expiry_follows_the_stores_clock(harness: LeaseHarness) -> None:
    """A lease is live exactly as long as the store's own time is before its expiry."""
    issue = harness.issue()
    lease = hold(harness, issue, "a", harness.short)
    seen: list[ServerTime] = []
    for _ in range(1000):
        record = record_of(harness.another(), issue)
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
    before = record_of(harness.another(), known).as_of
    granted = harness.store.acquire(bid(issue, "a", harness.long))
    assert isinstance(granted, Granted), f"the first bid was refused: {granted}"
    after = record_of(harness.another(), known).as_of
    lease = granted.lease
    assert before <= lease.granted_at <= after, "the grant was not stamped by the store"
    assert lease.expires_at == lease.granted_at + harness.long


def a_clients_own_clock_changes_nothing(harness: LeaseHarness) -> None:
    """An hour ahead or behind, a client is granted, kept and refused like anybody else."""
    known = harness.issue()
    hold(harness, known, "clock", harness.long)
    for run, by in (("ahead", _HOUR), ("behind", -_HOUR)):
        client, kept, over = harness.skewed(by), harness.issue(), harness.issue()
        before = record_of(harness.store, known).as_of
        lease = hold(harness, kept, run, harness.long, store=client)
        after = record_of(harness.store, known).as_of
        assert before <= lease.granted_at <= after, f"a clock that is {run} stamped the grant"
        assert lease.expires_at <= after + harness.long, f"a clock that is {run} gained time"
        assert refused(harness.another().acquire(bid(kept, f"{run}-b", harness.long))), (
            f"the lease of a client that is {run} was over for others"
        )
        assert isinstance(client.renew(lease), Renewed), f"a client that is {run} cannot renew"
        assert refused(client.acquire(bid(known, f"{run}-c", harness.long))), (
            f"a client that is {run} took what another holds"
        )
        lease = hold(harness, over, f"{run}-d", harness.short, store=client)
        expire(harness, over)
        assert not record_of(client, over).live, f"a client that is {run} reads it as live"
        assert isinstance(client.renew(lease), Lost), f"a client that is {run} renewed too late"


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
    record = record_of(store, issue)
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
    record = record_of(harness.restart(), issue)
    assert record.ending == ADVANCED
    assert not record.painted, "a restart took an unpainted ending for painted"


def a_restart_revives_nothing(harness: LeaseHarness) -> None:
    """What was over before every process died is over afterwards."""
    issues = [harness.issue() for _ in range(3)]
    ended, forced, expired = (
        hold(harness, issue, f"r{place}", harness.long if place < 2 else harness.short)
        for place, issue in enumerate(issues)
    )
    end(harness, ended)
    assert harness.store.revoke(issues[1], revocation("r1", force=True)) is not None
    expire(harness, issues[2])
    store = harness.restart()
    assert [record_of(store, issue).live for issue in issues] == [False] * 3
    assert store.live() == ()
    for lease in (forced, expired):
        assert isinstance(store.renew(lease), Lost), f"a restart revived {lease.run}"
    assert record_of(store, issues[0]).ending == ADVANCED


def a_restart_hands_no_lease_over(harness: LeaseHarness) -> None:
    """A process that is started again under its old name asks like anybody else."""
    held, over = harness.issue(), harness.issue()
    hold(harness, held, "a", harness.long, holder="w1")
    old = hold(harness, over, "b", harness.short, holder="w1")
    expire(harness, over)
    store = harness.restart()
    again = store.acquire(bid(held, "c", harness.long, holder="w1"))
    assert refused(again), "a restarted process was handed the lease it had before"
    new = hold(harness, over, "d", harness.long, store=store, holder="w1")
    assert isinstance(store.renew(old), Lost), "the lease from before the restart lives on"
    _assert_rising([old.fence, new.fence])


def restarts_change_no_answer(harness: LeaseHarness) -> None:
    """Random claims, endings, revokes and restarts: nothing is lost, and no fence comes twice."""
    for journey in wander(harness, "restarts", restarts=True):
        _assert_rising(journey.fences)


# COUNTED


def a_limit_counts_the_live_leases_of_its_stage(harness: LeaseHarness) -> None:
    """A bid over its limit is told so; other stages and leases that are over do not count."""
    issues = [harness.issue() for _ in range(6)]
    hold(harness, issues[0], "other", harness.long, stage="review")
    hold(harness, issues[1], "over", harness.short)
    expire(harness, issues[1])
    first = hold(harness, issues[2], "a", harness.long)
    hold(harness, issues[3], "b", harness.long)

    def ask(issue: IssueRef, run: str, limit: int | None) -> AcquireResult:
        return harness.another().acquire(replace(bid(issue, run, harness.long), limit=limit))

    full = ask(issues[4], "c", 2)
    assert full == Full(2), f"with 2 of 2 in flight a bid was told {full}"
    assert harness.store.read(issues[4]) is None, "a bid that was refused left a record"
    assert isinstance(ask(issues[3], "d", 2), Busy), "a held issue is busy, however full the stage"
    again = ask(issues[2], "a", 2)
    assert isinstance(again, Granted), f"a retry lost to itself: {again}"
    assert not refused(ask(issues[4], "c", 3)), "a bid within its limit was refused"
    assert not refused(ask(issues[5], "e", None)), "a bid without a limit was counted"
    end(harness, first)
    assert ask(issues[2], "f", 4) == Granted(record_of(harness.store, issues[2]).lease)


def a_crowd_never_exceeds_a_limit(harness: LeaseHarness) -> None:
    """Many threads on two clients, each at an issue of its own: never more than the limit."""
    crowd = _Queue([harness.issue() for _ in range(_Queue.size)], harness.long)
    crowd.run((harness.store, harness.another()))
    assert not crowd.flaws, "; ".join(crowd.flaws[:5])
    assert crowd.grants, "nobody was ever granted anything"


class _Queue:
    """Threads that each want an issue of their own, of which only a few may be held at once."""

    size = 6
    visits = 12
    limit = 2

    def __init__(self, issues: list[IssueRef], ttl: timedelta) -> None:
        self._issues, self._ttl = issues, ttl
        self._lock = threading.Lock()
        self._inside = 0
        self._visits = 0
        self.grants = 0
        self.flaws: list[str] = []

    def run(self, clients: tuple[LeaseStore, LeaseStore]) -> None:
        self.flaws += _all_at_once(self.size, clients, self._live, lambda: self._visits)

    def _live(self, store: LeaseStore, number: int) -> None:
        for turn in range(self.visits):
            self._take(store, self._issues[number], f"q{number}-{turn}")
            with self._lock:
                self._visits += 1

    def _take(self, store: LeaseStore, issue: IssueRef, run: str) -> None:
        granted = store.acquire(replace(bid(issue, run, self._ttl), limit=self.limit))
        if not isinstance(granted, Granted):
            return
        with self._lock:
            self._inside += 1
            self.grants += 1
            if self._inside > self.limit:
                self.flaws.append(f"{run} was granted as number {self._inside} of {self.limit}")
        threading.Event().wait(0.0005)
        with self._lock:
            self._inside -= 1
        released = store.release(granted.lease, CONCEDED)
        assert isinstance(released, Released), f"{run} could not give back: {released}"


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
    Check(a_new_run_starts_afresh),
    Check(a_name_proves_nothing),
    Check(the_first_ending_stands),
    Check(a_late_retry_does_not_disturb_the_next_holder),
    Check(what_people_say_comes_back_letter_for_letter),
    Check(any_sequence_of_calls_is_answered_rightly),
    Check(an_outage_is_told_as_one, optional=True),
    Check(a_crowd_never_holds_twice, Guarantee.ATOMIC),
    Check(nobody_sees_half_a_grant, Guarantee.ATOMIC),
    Check(a_run_that_does_not_hold_can_do_nothing, Guarantee.ATOMIC),
    # A store that cannot grant and look in one step leaves this to its claimer, who looks under
    # the grant (services.claiming).
    Check(nothing_is_granted_over_an_unpainted_ending, Guarantee.ATOMIC),
    Check(an_acknowledgement_is_for_one_term, Guarantee.ATOMIC),
    Check(fences_rise_across_release, Guarantee.FENCED),
    Check(fences_rise_across_expiry, Guarantee.FENCED),
    Check(fences_rise_across_a_forced_revoke, Guarantee.FENCED),
    Check(fences_rise_whatever_happens, Guarantee.FENCED),
    Check(a_renewal_keeps_its_fence, Guarantee.FENCED),
    Check(a_floor_is_granted_above, Guarantee.FENCED),
    Check(the_highest_fence_of_all_is_known, Guarantee.FENCED),
    Check(expiry_follows_the_stores_clock, Guarantee.SERVER_CLOCK),
    Check(a_grant_is_stamped_by_the_store, Guarantee.SERVER_CLOCK),
    Check(a_clients_own_clock_changes_nothing, Guarantee.SERVER_CLOCK, optional=True),
    Check(a_retried_acquire_is_the_same_grant, Guarantee.IDEMPOTENT),
    Check(a_retry_after_the_end_is_a_new_grant, Guarantee.IDEMPOTENT),
    Check(a_restart_keeps_the_lease, Guarantee.DURABLE),
    Check(fences_rise_across_a_restart, Guarantee.DURABLE),
    Check(an_ending_survives_a_restart, Guarantee.DURABLE),
    Check(a_restart_revives_nothing, Guarantee.DURABLE),
    Check(a_restart_hands_no_lease_over, Guarantee.DURABLE),
    Check(restarts_change_no_answer, Guarantee.DURABLE),
    Check(a_limit_counts_the_live_leases_of_its_stage, Guarantee.COUNTED),
    Check(a_crowd_never_exceeds_a_limit, Guarantee.COUNTED),
)


def prove(factory: Factory[LeaseHarness]) -> Report:
    """Which of its declared guarantees a store keeps, and by which checks that was seen."""
    with factory() as harness:
        subject, declared = harness.store.name, harness.store.guarantees
    return examine(subject, declared, CHECKS, factory)
