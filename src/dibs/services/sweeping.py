"""One bounded pass over claimed issues: finish what was left half painted, free what is over.

Claimed is what carries `claimed`, or a stage's working label that a late painter left alone.

A sweep never ends a live lease. It only brings the picture back to the truth; whoever wants the
issue afterwards bids for it like anybody else. Every worker sweeps, so recovery needs no job of
its own; and so each does its share, or a fleet would read the square of its size.

Where a tracker reads many issues in one request, a sweep is that request and one more for each
issue that it frees. What the labels say by then is looked at in the reply: if they hid a live lease
for a moment, they are put back.

Bringing the picture back to the truth, issue by issue: `dibs fsck`.
"""

import logging
import random
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain, islice
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.eligibility import abandoned_at
from dibs.core.errors import IssueLocked, NoSuchComment, NoSuchIssue
from dibs.core.events import Event, EventKind
from dibs.core.foreign import foreign_claims
from dibs.core.ids import IssueRef, ServerTime, later
from dibs.core.issue import Issue, Thread
from dibs.core.labels import Flaw, FlawCode, being_painted, claim_effects, diagnose, just_ended
from dibs.core.lease import Record, Standing
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Claiming
from dibs.services.effects import Freeing, apply, in_one_request
from dibs.services.reading import AT_ONCE, read_each, walk, walk_threads

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_log = logging.getLogger("dibs.sweeping")


class Sweep(StrEnum):
    """What a sweep does with one claimed issue."""

    LIVE = "live"
    YOUNG = "young"
    ROLLED_FORWARD = "rolled_forward"
    FREED = "freed"


class Swept(Struct, frozen=True):
    issue: IssueRef
    action: Sweep
    text: str

    @property
    def changed(self) -> bool:
        return self.action in (Sweep.ROLLED_FORWARD, Sweep.FREED)


class Share(Struct, frozen=True):
    """One worker's part: so many of those that are due, at random, and more while any was amiss.

    Due is what was not seen live, has changed since, or may have expired. A fleet that holds as
    many issues as it has places looks at each up to `looks` times in a round; where fewer are due
    than that, at all of them.
    """

    looks: int
    dice: random.Random


class SweepReport(Struct, frozen=True):
    looked_at: int
    swept: tuple[Swept, ...]
    resume_after: IssueRef | None = None
    """Where the next pass goes on, if this one ended at its limit."""

    @property
    def changed(self) -> tuple[Swept, ...]:
        return tuple(entry for entry in self.swept if entry.changed)


class Sweeping:
    def __init__(self, backlog: "Backlog", claiming: Claiming) -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._journal = backlog.journal
        self._granting = backlog.granting
        self._grace = backlog.grace
        self._seen_live: dict[IssueRef, tuple[ServerTime, ServerTime]] = {}
        """When the issue had last changed, and until when its lease ran then."""

    def sweep(
        self,
        *,
        limit: int = 1000,
        dry_run: bool = False,
        after: IssueRef | None = None,
        share: Share | None = None,
    ) -> SweepReport:
        """Look at `limit` claimed issues; `after` goes on where a bounded pass ended.

        With a `share`, list as many and look at those that fall to it.
        """
        claimed = self._pipeline.labels.claimed
        # Closed ones too: they can be stuck.
        query = IssueQuery((claimed,), limit=limit, after=after, closed_too=True)
        if share is None and self._tracker.traits.reads_together > 1:
            return self._at_once(query, dry_run=dry_run)
        if not self._granting.keeps_house():
            return SweepReport(0, ())
        if share is None:
            swept = list(self._each(self._listed(query), dry_run=dry_run))
            last = swept[-1].issue if swept and len(swept) == limit else None
        else:
            swept, last = self._some(query, share, dry_run=dry_run)
        if last is None:
            for strays in self._strays(limit):
                swept += self._each(self._listed(strays), dry_run=dry_run)
        return SweepReport(len(swept), tuple(swept), resume_after=last)

    def _strays(self, limit: int) -> Iterator[IssueQuery]:
        """Working labels that a late painter left alone."""
        claimed = (self._pipeline.labels.claimed,)
        for label in self._pipeline.working_labels:
            yield IssueQuery((label,), claimed, limit=limit, closed_too=True)

    def _listed(self, query: IssueQuery) -> Iterator[Thread]:
        return read_each(self._tracker, (issue.ref for issue in walk(self._tracker, query)))

    def _at_once(self, query: IssueQuery, *, dry_run: bool) -> SweepReport:
        """All that is claimed and all that strayed, a hundred of each in one request.

        That request tells as well who grants: whoever asks for that afterwards asks nobody.
        """
        threads = walk_threads(self._tracker, query, *self._strays(query.limit))
        first = next(threads, None)
        if first is None or not self._granting.keeps_house():
            return SweepReport(0, ())
        claimed: list[IssueRef] = []
        swept: list[Swept] = []
        for thread in chain((first,), threads):
            if thread.issue.labels.issuperset(query.labels):
                claimed.append(thread.issue.ref)
            swept += self._each((thread,), dry_run=dry_run)
        last = claimed[-1] if len(claimed) == query.limit else None
        return SweepReport(len(swept), tuple(swept), resume_after=last)

    def _each(self, threads: Iterable[Thread], *, dry_run: bool) -> Iterator[Swept]:
        for thread in threads:
            try:
                yield self._one(thread, dry_run=dry_run)
            except (NoSuchIssue, NoSuchComment, IssueLocked) as refusal:  # the others go on
                _log.info("%s: not swept: %s", thread.issue.ref, refusal)

    def _some(
        self, query: IssueQuery, share: Share, *, dry_run: bool
    ) -> tuple[list[Swept], IssueRef | None]:
        found = self._tracker.find(query)
        self._forget_what_is_over(found.now)
        left = list(found.issues)
        swept: list[Swept] = []
        in_order, at_once = 0, AT_ONCE if self._tracker.traits.reads_together > 1 else 0
        while left and in_order < share.looks:
            amiss = any(entry.changed for entry in swept)
            count = max(share.looks - in_order, at_once if amiss else 0)
            chosen = list(islice(self._due(left, share.dice), count))
            for entry in self._each(read_each(self._tracker, chosen), dry_run=dry_run):
                swept.append(entry)
                in_order = 0 if entry.changed else in_order + 1
        return swept, found.issues[-1].ref if found.more else None

    def _due(self, left: list[Issue], dice: random.Random) -> Iterator[IssueRef]:
        """One after the other at random, taken off the list."""
        while left:
            issue = left.pop(dice.randrange(len(left)))
            if not self._known_live(issue):
                yield issue.ref

    def _forget_what_is_over(self, now: ServerTime) -> None:
        self._seen_live = {ref: seen for ref, seen in self._seen_live.items() if now < seen[1]}

    def _known_live(self, issue: Issue) -> bool:
        """A lease that was seen and not disturbed since cannot be over before it expires."""
        seen = self._seen_live.get(issue.ref)
        return seen is not None and seen[0] == issue.updated_at

    def _one(self, thread: Thread, *, dry_run: bool) -> Swept:
        ref = thread.issue.ref
        standing = self._leases.standing(thread)
        if standing.unpainted is not None and thread.complete:
            if being_painted(standing.unpainted, self._tracker.traits.patience):
                return Swept(ref, Sweep.YOUNG, "its ending is most likely being painted")
            if not dry_run:
                self._claiming.roll_forward(standing.unpainted)
            return Swept(ref, Sweep.ROLLED_FORWARD, _rolled(standing.unpainted))
        if (why := self._keep(thread, standing)) is not None:
            return why
        if dry_run or self._free(thread, standing):
            return Swept(ref, Sweep.FREED, "no lease is live; its labels were taken off")
        return Swept(ref, Sweep.YOUNG, "it changed while it was looked at")

    def _keep(self, thread: Thread, standing: Standing) -> Swept | None:
        ref, record = thread.issue.ref, standing.record
        if record is not None and record.live:
            # The store may have a clock of its own: only what remains can be carried over.
            over_at = later(thread.now, record.remaining)
            self._seen_live[ref] = (thread.issue.updated_at, over_at)
            return Swept(ref, Sweep.LIVE, f"{record.lease.holder} holds it")
        if standing.bidding_until is not None and thread.now < standing.bidding_until:
            return Swept(ref, Sweep.YOUNG, "somebody is bidding for it")
        if not thread.complete:
            return Swept(ref, Sweep.YOUNG, "not all its comments could be read")
        people = self._pipeline.people
        foreign = foreign_claims(thread.comments, now=thread.now, ttl=people.marker_ttl)
        if people.markers and foreign:
            return Swept(ref, Sweep.LIVE, f"another tool ({foreign[0].tool}) says that it has it")
        if record is None or self._label_came_after(record, thread):
            if thread.now < abandoned_at(thread.issue, self._pipeline):
                return Swept(ref, Sweep.YOUNG, "claimed without a card, less than a ttl ago")
        elif just_ended(record, self._tracker.traits.patience):
            return Swept(ref, Sweep.YOUNG, "its labels may be older than its cards")
        elif record.ending is None and record.as_of < later(record.lease.expires_at, self._grace):
            return Swept(ref, Sweep.YOUNG, "expired, and still in its grace")
        return None

    def _label_came_after(self, record: Record, thread: Thread) -> bool:
        """Whether the last run has nothing to do with the label: another tool may be claiming."""
        return record.ending is not None and not self._pipeline.stages_of(thread.issue.labels)

    def _free(self, thread: Thread, standing: Standing) -> bool:
        """False if somebody is at it by now: then it is not ours to free any more."""
        freed = Freeing(self._tracker, self._leases, self._pipeline).free(thread, standing)
        if freed is None or self._hidden(freed):
            return False
        self._journal.append(Event(EventKind.FREED, issue=thread.issue.ref, at=thread.now))
        return True

    def _hidden(self, freed: Thread) -> bool:
        """Whether somebody took it after we had looked. Then its labels are put back."""
        if not in_one_request(self._tracker):
            return False  # it was looked at once more before it was freed
        held = self._leases.standing(freed).live
        if held is None:
            return False
        stages = [stage for stage in self._pipeline.stages if stage.name == held.lease.stage]
        for stage in stages:
            apply(
                self._tracker,
                freed.issue.ref,
                claim_effects(self._pipeline, stage, freed.issue.labels),
            )
        return True


def _rolled(record: Record) -> str:
    assert record.ending is not None, "only an ending is rolled forward"
    onward = f" to {record.ending.next}" if record.ending.next else ""
    return f"{record.lease.holder} had {record.ending.outcome.value} it{onward}; labels finished"


class Finding(Struct, frozen=True):
    flaw: Flaw
    repaired: bool


class Checking:
    def __init__(self, backlog: "Backlog", claiming: Claiming) -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._granting = backlog.granting

    def check(self, *, repair: bool) -> Iterator[Finding]:
        """Every open issue and every claimed one, as they are found. Repairs are idempotent.

        Raises GrantedElsewhere where this store knows nothing of what is held.
        """
        self._granting.insist()
        seen: set[IssueRef] = set()
        for thread in self._threads():
            if thread.issue.ref not in seen:
                seen.add(thread.issue.ref)
                yield from self._one(thread, repair=repair)

    def _threads(self) -> Iterator[Thread]:
        """Every open issue, and closed ones that still look claimed."""
        yield from walk_threads(self._tracker, IssueQuery(limit=sys.maxsize))
        claimed = (self._pipeline.labels.claimed,)
        stuck = IssueQuery(labels=claimed, limit=sys.maxsize, closed_too=True)
        yield from walk_threads(self._tracker, stuck)

    def _one(self, thread: Thread, *, repair: bool) -> Iterator[Finding]:
        ref = thread.issue.ref
        standing = self._leases.standing(thread)
        for flaw in diagnose(thread, standing, self._pipeline):
            mend = repair and (bool(flaw.repair) or flaw.code is FlawCode.UNPAINTED_ENDING)
            if mend and standing.unpainted is not None:
                self._claiming.roll_forward(standing.unpainted)
            elif mend:
                apply(self._tracker, ref, flaw.repair)
            yield Finding(flaw, repaired=mend)
