"""Bringing labels back to the truth: the sweep (`Sweeping`) and `dibs fsck` (`Checking`).

A sweep is one bounded pass over claimed issues: it finishes endings that were left half painted,
and frees issues whose lease is over. An issue counts as claimed if it carries `claimed`, or the
working label of a stage, which a late painter may have left on alone.

A sweep never ends a live lease. It only corrects the picture; a worker that wants the issue
afterwards bids for it like any other. Every worker sweeps, so recovery needs no job of its own; and
each worker does only its share, or the reads of a fleet would grow with the square of its size.

Where a tracker reads many issues in one request, a sweep is that request and one more for each
issue that it frees. The reply to the second shows whether freeing hid a live lease for a moment;
then the labels are put back.

`Checking` compares labels and leases issue by issue, over the whole backlog.
"""

import logging
import random
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.eligibility import abandoned_at
from dibs.core.errors import IssueLocked, NoSuchComment, NoSuchIssue
from dibs.core.events import Event, EventKind
from dibs.core.foreign import foreign_claims
from dibs.core.ids import IssueRef, ServerTime, later
from dibs.core.issue import Snapshot
from dibs.core.labels import Flaw, FlawCode, being_painted, claim_effects, diagnose, just_ended
from dibs.core.lease import Standing
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Claiming
from dibs.services.effects import apply, free_issue, in_one_request
from dibs.services.reading import AT_ONCE, read_each, walk, walk_snapshots

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_log = logging.getLogger("dibs.sweeping")


class Sweep(StrEnum):
    """The result of a sweep for a claimed issue."""

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
    """A worker's part of a sweep: `looks` of the due issues, at random.

    The count starts again at each issue which had to be changed. An issue is due if the worker has
    not seen it live, if it has changed since, or if its lease may have expired. In a fleet which
    holds as many issues as it has places, each issue is looked at up to `looks` times in a round.
    If fewer issues are due than `looks`, the worker looks at all of them.
    """

    looks: int
    dice: random.Random


class SweepReport(Struct, frozen=True):
    looked_at: int
    swept: tuple[Swept, ...]
    resume_after: IssueRef | None = None
    """Where the next pass goes on, if this pass ended at its limit."""

    @property
    def changed(self) -> tuple[Swept, ...]:
        return tuple(entry for entry in self.swept if entry.changed)


class Sweeping:
    def __init__(self, backlog: "Backlog", claiming: Claiming) -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._observer = backlog.observer
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
        due_only: bool = False,
    ) -> SweepReport:
        """Look at `limit` claimed issues; `after` goes on where a bounded pass ended.

        With a `share`, list `limit` issues and look at the share. With `due_only`, leave out the
        issues whose leases still run, as far as the tracker knows that.
        """
        labels, rests = (self._pipeline.labels.claimed,), self._claiming.rests
        awake_by = rests.rules if due_only and rests.hide_held else ""
        # Closed ones too: they can be stuck.
        query = IssueQuery(labels, limit=limit, after=after, closed_too=True, awake_by=awake_by)
        if share is None and self._tracker.traits.shortlists:
            return self._sweep_at_once(query, dry_run=dry_run)
        if not self._granting.keeps_house():
            return SweepReport(0, ())
        if share is None:
            swept = list(self._sweep_each(self._read_found(query), dry_run=dry_run))
            last = swept[-1].issue if swept and len(swept) == limit else None
        else:
            swept, last = self._sweep_share(query, share, dry_run=dry_run)
        if last is None:
            for strays in self._stray_queries(query):
                swept += self._sweep_each(self._read_found(strays), dry_run=dry_run)
        return SweepReport(len(swept), tuple(swept), resume_after=last)

    def _stray_queries(self, query: IssueQuery) -> Iterator[IssueQuery]:
        """Queries for issues with a working label but without `claimed`, left by a late painter."""
        for label in self._pipeline.working_labels:
            yield replace(query, labels=(label,), without=query.labels, after=None)

    def _read_found(self, query: IssueQuery) -> Iterator[Snapshot]:
        return read_each(self._tracker, (issue.ref for issue in walk(self._tracker, query)))

    def _sweep_at_once(self, query: IssueQuery, *, dry_run: bool) -> SweepReport:
        """Sweep the claimed and the stray issues, a hundred of each in a request.

        The first request also reads which store grants, so the question costs no request after it.
        """
        snapshots = walk_snapshots(self._tracker, query, *self._stray_queries(query))
        first = next(snapshots, None)
        if first is None or not self._granting.keeps_house():
            return SweepReport(0, ())
        claimed: list[IssueRef] = []
        swept: list[Swept] = []
        for snapshot in chain((first,), snapshots):
            if snapshot.issue.labels.issuperset(query.labels):
                claimed.append(snapshot.issue.ref)
            swept += self._sweep_each((snapshot,), dry_run=dry_run)
        last = claimed[-1] if len(claimed) == query.limit else None
        return SweepReport(len(swept), tuple(swept), resume_after=last)

    def _sweep_share(
        self, query: IssueQuery, share: Share, *, dry_run: bool
    ) -> tuple[list[Swept], IssueRef | None]:
        """Sweep due issues at random until `share.looks` in a row needed no change.

        Once an issue needed a change, a tracker which reads many at once is asked for as many as
        fit into a request.
        """
        found = self._tracker.find(query)
        self._seen_live = {
            ref: seen for ref, seen in self._seen_live.items() if found.now < seen[1]
        }
        left = list(found.issues)
        swept: list[Swept] = []
        in_order, at_once = 0, AT_ONCE if self._tracker.traits.shortlists else 0
        while left and in_order < share.looks:
            amiss = any(entry.changed for entry in swept)
            count = max(share.looks - in_order, at_once if amiss else 0)
            chosen: list[IssueRef] = []
            while left and len(chosen) < count:
                issue = left.pop(share.dice.randrange(len(left)))
                seen = self._seen_live.get(issue.ref)
                # A lease that was seen live cannot be over before it expires if nothing changed.
                if seen is None or seen[0] != issue.updated_at:
                    chosen.append(issue.ref)
            for entry in self._sweep_each(read_each(self._tracker, chosen), dry_run=dry_run):
                swept.append(entry)
                in_order = 0 if entry.changed else in_order + 1
        return swept, found.issues[-1].ref if found.more else None

    def _sweep_each(self, snapshots: Iterable[Snapshot], *, dry_run: bool) -> Iterator[Swept]:
        """Sweep issue by issue. An issue which is gone or locked does not stop the sweep."""
        for snapshot in snapshots:
            ref = snapshot.issue.ref
            try:
                swept = self._sweep_issue(snapshot, dry_run=dry_run)
                if swept.action is Sweep.LIVE and ref in self._seen_live and not dry_run:
                    self._claiming.rests.note_held(snapshot.issue, self._seen_live[ref][1])
                yield swept
            except (NoSuchIssue, NoSuchComment, IssueLocked) as refusal:
                _log.info("%s: not swept: %s", ref, refusal)

    def _sweep_issue(self, snapshot: Snapshot, *, dry_run: bool) -> Swept:
        """Roll an unpainted ending forward, leave the issue alone, or free it.

        An issue which another worker took since the snapshot keeps its labels, or gets them back.
        """
        ref = snapshot.issue.ref
        standing = self._leases.standing(snapshot)
        unpainted = standing.unpainted
        if unpainted is not None and snapshot.complete:
            if being_painted(unpainted, self._tracker.traits.patience):
                return Swept(ref, Sweep.YOUNG, "its ending is most likely being painted")
            if not dry_run:
                self._claiming.roll_forward(unpainted)
            assert unpainted.ending is not None, "only an ending is rolled forward"
            onward = f" to {unpainted.ending.next}" if unpainted.ending.next else ""
            ended = f"{unpainted.lease.holder} had {unpainted.ending.outcome.value} it"
            return Swept(ref, Sweep.ROLLED_FORWARD, f"{ended}{onward}; labels finished")
        if (kept := self._reason_to_keep(snapshot, standing)) is not None:
            return kept
        done = Swept(ref, Sweep.FREED, "no lease is live; its labels were taken off")
        if dry_run:
            return done
        freed = free_issue(self._tracker, self._leases, self._pipeline, snapshot, standing)
        if freed is None:
            return Swept(ref, Sweep.YOUNG, "it changed while it was looked at")
        # In one request nobody looks before the labels go: they may have shown a newer lease.
        live = self._leases.standing(freed).live if in_one_request(self._tracker) else None
        if live is not None:
            for stage in self._pipeline.stages:
                if stage.name == live.lease.stage:
                    paint = claim_effects(self._pipeline, stage, freed.issue.labels)
                    apply(self._tracker, freed.issue.ref, paint)
            return Swept(ref, Sweep.YOUNG, "it changed while it was looked at")
        self._observer.observe(Event(EventKind.FREED, issue=ref, at=snapshot.now))
        return done

    def _reason_to_keep(self, snapshot: Snapshot, standing: Standing) -> Swept | None:
        """Why the labels stay: a live lease, or a doubt about its end. None: free the issue."""
        ref, record = snapshot.issue.ref, standing.record
        if record is not None and record.live:
            # The store may have a clock of its own: only what remains can be carried over.
            over_at = later(snapshot.now, record.remaining)
            self._seen_live[ref] = (snapshot.issue.updated_at, over_at)
            return Swept(ref, Sweep.LIVE, f"{record.lease.holder} holds it")
        if standing.bidding_until is not None and snapshot.now < standing.bidding_until:
            return Swept(ref, Sweep.YOUNG, "another run is bidding for it")
        if not snapshot.complete:
            return Swept(ref, Sweep.YOUNG, "not all its comments could be read")
        people = self._pipeline.people
        foreign = foreign_claims(snapshot.comments, now=snapshot.now, ttl=people.marker_ttl)
        if people.markers and foreign:
            return Swept(ref, Sweep.LIVE, f"another tool ({foreign[0].tool}) says that it has it")
        # Ended and without a stage: the label is not the last run's. Another tool may be claiming.
        in_stage = bool(self._pipeline.stages_of(snapshot.issue.labels))
        if record is None or (record.ending is not None and not in_stage):
            if snapshot.now < abandoned_at(snapshot.issue, self._pipeline):
                return Swept(ref, Sweep.YOUNG, "claimed without a card, less than a ttl ago")
        elif just_ended(record, self._tracker.traits.patience):
            return Swept(ref, Sweep.YOUNG, "its labels may be older than its cards")
        elif record.ending is None and record.as_of < later(record.lease.expires_at, self._grace):
            return Swept(ref, Sweep.YOUNG, "expired, and still in its grace")
        return None


class Inconsistency(Struct, frozen=True):
    """A contradiction between labels and leases, and whether it was repaired."""

    flaw: Flaw
    repaired: bool


class Checking:
    """Compares the labels of every issue with the leases: `dibs fsck`."""

    def __init__(self, backlog: "Backlog", claiming: Claiming) -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._granting = backlog.granting

    def check(self, *, repair: bool) -> Iterator[Inconsistency]:
        """Check every open issue, and closed issues which still carry `claimed`.

        Yields each contradiction as it is found. Repairs are idempotent. Raises GrantedElsewhere if
        another store grants the leases.
        """
        self._granting.insist()
        claimed = (self._pipeline.labels.claimed,)
        stuck = IssueQuery(labels=claimed, limit=sys.maxsize, closed_too=True)
        seen: set[IssueRef] = set()
        for snapshot in chain(
            walk_snapshots(self._tracker, IssueQuery(limit=sys.maxsize)),
            walk_snapshots(self._tracker, stuck),
        ):
            ref = snapshot.issue.ref
            if ref in seen:
                continue
            seen.add(ref)
            standing = self._leases.standing(snapshot)
            most = self._tracker.traits.most_comments
            for flaw in diagnose(snapshot, standing, self._pipeline, most_comments=most):
                mend = repair and (bool(flaw.repair) or flaw.code is FlawCode.UNPAINTED_ENDING)
                if mend and standing.unpainted is not None:
                    self._claiming.roll_forward(standing.unpainted)
                elif mend:
                    apply(self._tracker, ref, flaw.repair)
                yield Inconsistency(flaw, repaired=mend)
