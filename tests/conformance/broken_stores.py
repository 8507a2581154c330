"""Lease stores that are wrong in one thing each, so that it is seen that a check can fail."""

import threading
from contextlib import contextmanager
from datetime import timedelta

from msgspec.structs import replace

from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.errors import Unavailable
from dibs.core.ids import Fence, later
from dibs.core.lease import (
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Lost,
    Outcome,
    Record,
    Released,
    Renewed,
)
from dibs.ports.leases import Guarantee
from dibs.testing.clock import FakeClock
from dibs.testing.conformance import LeaseHarness, NotApplicable

from .harnesses import MemoryHarness


class GrantsTwice(MemoryLeases):
    """Looks first and grants after, with a gap in between."""

    def __init__(self, now):
        super().__init__(now)
        self._gap = threading.Event()

    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and (known.live or not known.painted):
            return Busy(known) if known.lease.run != bid.run else Granted(known.lease)
        self._gap.wait(0.002)
        with self._lock:
            self._records.pop(bid.issue, None)
        granted = super().acquire(bid)
        fence = Fence(known.lease.fence + 1 if known else 1)
        with self._lock:
            record = self._records[bid.issue]
            self._records[bid.issue] = replace(record, lease=replace(record.lease, fence=fence))
            return Granted(replace(granted.lease, fence=fence))


class ForgetsTheFence(MemoryLeases):
    """Deletes the record with the lease, and with it the counter."""

    def acknowledge(self, record):
        super().acknowledge(record)
        with self._lock:
            self._records.pop(record.lease.issue, None)


class RenewRevives(MemoryLeases):
    """Extends by name: whoever was the last holder is the holder."""

    def renew(self, lease):
        result = super().renew(lease)
        with self._lock:
            known = self._records.get(lease.issue)
            if isinstance(result, Lost) and known and known.lease.run == lease.run:
                revived = replace(known.lease, expires_at=later(self._now(), lease.ttl))
                self._records[lease.issue] = replace(known, lease=revived)
                return Renewed(revived)
        return result


class ReleasesByName(MemoryLeases):
    """Ends the issue's lease, whoever holds it."""

    def release(self, lease, ending):
        known = self.read(lease.issue)
        return super().release(known.lease if known else lease, ending)


class GrantsOverUnpainted(MemoryLeases):
    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and not known.painted:
            self.acknowledge(known)
        return super().acquire(bid)


class RevokesWhoeverHolds(MemoryLeases):
    def revoke(self, issue, revocation):
        known = self.read(issue)
        if known is not None:
            revocation = replace(revocation, run=known.lease.run)
        return super().revoke(issue, revocation)


class RetriesLoseToThemselves(MemoryLeases):
    def acquire(self, bid):
        known = self.read(bid.issue)
        return Busy(known) if known is not None and known.live else super().acquire(bid)


class ClientsClock(MemoryLeases):
    """Believes the expiry that the client brings along."""

    def __init__(self, now):
        self._ahead = False
        super().__init__(lambda: later(now(), LeaseHarness.short) if self._ahead else now())

    def read(self, issue):
        self._ahead = True
        try:
            return super().read(issue)
        finally:
            self._ahead = False


class ClaimsToBeDurable(MemoryLeases):
    guarantees = MemoryLeases.guarantees | Guarantee.DURABLE


class GrantsToWhoeverAsks(MemoryLeases):
    """The last to write has it, like a label that anybody may add."""

    def acquire(self, bid):
        with self._lock:
            known = self._records.get(bid.issue)
            if known is not None:
                gone = replace(known.lease, expires_at=self._now())
                self._records[bid.issue] = replace(known, lease=gone, painted=True)
        return super().acquire(bid)


class InventsARecord(MemoryLeases):
    """Tells of a lease on an issue that never had one."""

    def read(self, issue):
        lease = Lease(issue, "", "", "", Fence(0), timedelta(), self._now(), self._now())
        return super().read(issue) or Record(lease, self._now())


class OneEndingForAll(MemoryLeases):
    """Whoever ends a lease ends all of its store's."""

    def release(self, lease, ending):
        released = super().release(lease, ending)
        with self._lock:
            for issue in set(self._records) - {lease.issue}:
                self._records.pop(issue)
        return released


class KeepsNamesShort(MemoryLeases):
    def acquire(self, bid):
        return super().acquire(replace(bid, holder=bid.holder[:8]))


class RenewsInNameOnly(MemoryLeases):
    """Says yes and leaves the expiry where it was."""

    def renew(self, lease):
        renewed = super().renew(lease)
        if not isinstance(renewed, Renewed):
            return renewed
        same = replace(renewed.lease, expires_at=lease.expires_at)
        with self._lock:
            self._records[lease.issue] = replace(self._records[lease.issue], lease=same)
        return Renewed(same)


class EveryBeatRaisesTheFence(MemoryLeases):
    def renew(self, lease):
        renewed = super().renew(lease)
        if not isinstance(renewed, Renewed):
            return renewed
        raised = replace(renewed.lease, fence=Fence(lease.fence + 1))
        with self._lock:
            self._records[lease.issue] = replace(self._records[lease.issue], lease=raised)
        return Renewed(raised)


class ForgetsWhereTo(MemoryLeases):
    """Keeps that it ended, and not what was to come of it."""

    def release(self, lease, ending):
        return super().release(lease, Ending(ending.outcome))


class HoldsOnToTheEnd(MemoryLeases):
    """An issue stays taken until its ttl is over, ended or not."""

    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and known.as_of < later(known.lease.granted_at, known.lease.ttl):
            return Busy(known) if known.lease.run != bid.run else super().acquire(bid)
        return super().acquire(bid)


class WantsConcessionsPainted(MemoryLeases):
    def release(self, lease, ending):
        released = super().release(lease, ending)
        if isinstance(released, Released):
            with self._lock:
                self._records[lease.issue] = replace(released.record, painted=False)
        return released


class EveryRevokeIsForced(MemoryLeases):
    def revoke(self, issue, revocation):
        return super().revoke(issue, replace(revocation, force=True))


class EveryRevokeIsGraceful(MemoryLeases):
    def revoke(self, issue, revocation):
        return super().revoke(issue, replace(revocation, force=False))


class AcknowledgesByIssue(MemoryLeases):
    """Whoever painted any ending of the issue has painted them all."""

    def acknowledge(self, record):
        known = self.read(record.lease.issue)
        super().acknowledge(known if known is not None else record)


class CountsEndings(MemoryLeases):
    """The fence is the number of endings: a holder that vanished is not outranked."""

    def acquire(self, bid):
        before = self.read(bid.issue)
        granted = super().acquire(bid)
        if isinstance(granted, Granted) and before is not None and before.ending is None:
            same = replace(granted.lease, fence=before.lease.fence)
            with self._lock:
                self._records[bid.issue] = replace(self._records[bid.issue], lease=same)
            return Granted(same)
        return granted


class GrantsAreForEver(MemoryLeases):
    """A run that asks again is given what it once had, expired or not."""

    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and known.lease.run == bid.run and known.ending is None:
            return Granted(known.lease)
        return super().acquire(bid)


class ListsEveryStage(MemoryLeases):
    def live(self, stage=None, limit=1000):
        return super().live(None, limit)


class ForgetsWhomItForcedOut(MemoryLeases):
    """Deletes the lease of a holder that is forced out, and its fence with it."""

    def revoke(self, issue, revocation):
        record = super().revoke(issue, revocation)
        if record is not None and revocation.force:
            with self._lock:
                self._records.pop(issue)
        return record


class InheritsTheRevoke(MemoryLeases):
    """A revoke stays with the issue, and hits whoever comes next."""

    def acquire(self, bid):
        before = self.read(bid.issue)
        granted = super().acquire(bid)
        if isinstance(granted, Granted) and before is not None:
            with self._lock:
                record = self._records[bid.issue]
                self._records[bid.issue] = replace(record, revocation=before.revocation)
        return granted


class InheritsTheExpiry(MemoryLeases):
    """A new lease begins with the time that the last one had left, if that was more."""

    def acquire(self, bid):
        before = self._records.get(bid.issue)
        granted = super().acquire(bid)
        if isinstance(granted, Granted) and before is not None:
            until = later(before.lease.granted_at, before.lease.ttl)
            lease = replace(granted.lease, expires_at=max(until, granted.lease.expires_at))
            self._records[bid.issue] = replace(self._records[bid.issue], lease=lease)
            return Granted(lease)
        return granted


class TrustsTheName(MemoryLeases):
    """Is the holder me? In a fleet that shares a name it always is."""

    def _in_the_name_of(self, lease):
        known = self._records.get(lease.issue)
        same = known is not None and known.lease.holder == lease.holder
        return replace(lease, run=known.lease.run) if same else lease

    def renew(self, lease):
        return super().renew(self._in_the_name_of(lease))

    def release(self, lease, ending):
        return super().release(self._in_the_name_of(lease), ending)


class ForgetsTheFloor(MemoryLeases):
    """Starts at one, whatever another store has handed out."""

    def acquire(self, bid):
        return super().acquire(replace(bid, floor=0))


class KnowsOnlyWhatIsLive(MemoryLeases):
    def highest(self):
        return max((record.lease.fence for record in self.live()), default=0) - 1


class CountsEveryStage(MemoryLeases):
    def _live(self, stage):
        return super()._live(None)


class CountsBeforeItGrants(MemoryLeases):
    """In two steps: others come in between."""

    def acquire(self, bid):
        if bid.limit is not None and (count := len(self.live(bid.stage))) >= bid.limit:
            return Full(count)
        threading.Event().wait(0.001)
        return super().acquire(replace(bid, limit=None))


class TheLastEndingStands(MemoryLeases):
    def release(self, lease, ending):
        released = super().release(lease, ending)
        if isinstance(released, Released):
            with self._lock:
                ended = replace(released.record, ending=ending)
                self._records[lease.issue] = ended
            return Released(ended)
        return released


class KeepsPlainLettersOnly(MemoryLeases):
    def release(self, lease, ending):
        note = ending.note.encode("ascii", "ignore").decode()
        return super().release(lease, replace(ending, note=note))


class ForgetsAfterARareTurn(MemoryLeases):
    """A concession after a forced revoke gives its fence back: each alone is fine."""

    def acquire(self, bid):
        before = self.read(bid.issue)
        granted = super().acquire(bid)
        if before is None or not isinstance(granted, Granted):
            return granted
        conceded = before.ending is not None and before.ending.outcome is Outcome.CONCEDED
        if not (conceded and before.revocation is not None):
            return granted
        lease = replace(granted.lease, fence=before.lease.fence)
        with self._lock:
            self._records[bid.issue] = replace(self._records[bid.issue], lease=lease)
        return Granted(lease)

    def release(self, lease, ending):
        forced = getattr(self, "_forced", {})
        released = super().release(lease, ending)
        if isinstance(released, Released) and lease.issue in forced:
            with self._lock:
                marked = replace(released.record, revocation=forced.pop(lease.issue))
                self._records[lease.issue] = marked
        return released

    def revoke(self, issue, revocation):
        record = super().revoke(issue, revocation)
        if record is not None and revocation.force:
            self._forced = {**getattr(self, "_forced", {}), issue: revocation}
        return record


class GrantsInTwoSteps(MemoryLeases):
    """The holder first, its fence a moment later."""

    def acquire(self, bid):
        before = self.read(bid.issue)
        granted = super().acquire(bid)
        if isinstance(granted, Granted) and before is not None:
            with self._lock:
                whole = self._records[bid.issue]
                half = replace(whole.lease, fence=before.lease.fence)
                self._records[bid.issue] = replace(whole, lease=half)
            threading.Event().wait(0.002)
            with self._lock:
                self._records[bid.issue] = whole
        return granted


class RenewsForAnybody(MemoryLeases):
    """Extends the issue's lease, whoever asks."""

    def renew(self, lease):
        known = self.read(lease.issue)
        if known is not None and known.live:
            return super().renew(known.lease)
        return super().renew(lease)


# With surroundings of their own


class Cuttable(MemoryLeases):
    """One that can be cut off, and says so as it should."""

    cut = False

    def _read(self, issue):
        if self.cut:
            self._fail()
        return super()._read(issue)

    def live(self, stage=None, limit=1000):
        if self.cut:
            self._fail()
        return super().live(stage, limit)

    def _fail(self):
        raise Unavailable("no answer")


class LeaksItsLibrarysError(Cuttable):
    def _fail(self):
        raise ConnectionError("no answer")


class AnswersWithoutKnowing(Cuttable):
    """What cannot be read is taken for free."""

    def read(self, issue):
        return None if self.cut else super().read(issue)


class CuttableHarness(MemoryHarness):
    def cut_off(self):
        self.store.cut = True
        return self.store


class StampsByTheClient(MemoryLeases):
    """Each client judges by the clock of its own machine."""


class SkewableHarness(MemoryHarness):
    def skewed(self, by):
        client = type(self.store)(lambda: later(self._clock.server_now(), by))
        client._records, client._lock = self.store._records, self.store._lock
        return client


class Durable(MemoryLeases):
    """Written down whole, and read back as it was."""

    guarantees = MemoryLeases.guarantees | Guarantee.DURABLE

    def restarted(self):
        store = type(self)(self._now)
        store._records = {
            issue: kept
            for issue, record in self._records.items()
            if (kept := self.kept(record)) is not None
        }
        return store

    def kept(self, record):
        return record


class KeepsOnlyLiveLeases(Durable):
    def kept(self, record):
        return record if record.ending is None else None


class KeepsOnlyEndings(Durable):
    def kept(self, record):
        return record if record.ending is not None else None


class CountsFromItsStart(Durable):
    """Leases are written down as lengths, and begin again when the store does."""

    def kept(self, record):
        lease = replace(record.lease, expires_at=later(self._now(), record.lease.ttl))
        return replace(record, lease=lease)


class HandsOverByName(Durable):
    """Whoever comes back under its old name is given what it had."""

    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and known.live and known.lease.holder == bid.holder:
            return Granted(replace(known.lease, run=bid.run))
        return super().acquire(bid)


class DurableHarness(MemoryHarness):
    def restart(self):
        self.store = self.store.restarted()
        return self.store


class TimelessHarness(MemoryHarness):
    """An author who never wrote the waiting."""

    def advance(self, seconds):
        raise NotApplicable("it was not written")


def opening(store_type, harness_type=MemoryHarness):
    """A factory of this kind of store, on virtual time."""

    @contextmanager
    def factory():
        clock = FakeClock()
        yield harness_type(clock, store_type(clock.server_now))

    return factory
