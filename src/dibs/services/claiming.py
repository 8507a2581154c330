"""Claiming one issue: judge, bid, prove, judge again under the lease, show.

Every result of a claim is a value. The second judgement keeps a late winner from running a stage
that another worker has finished since the first.
"""

from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import LeaseTerms, format_duration, terms_for
from dibs.core.eligibility import (
    Reason,
    ReasonCode,
    Surroundings,
    Verdict,
    gate_reasons,
    judge,
    judge_claimable,
    judge_picture,
    over_limit,
    pause_reason,
    reasons_with,
    regressed,
    text_reasons,
    vetoed,
)
from dibs.core.errors import BadTtl, Outage
from dibs.core.events import EventKind, Step, about
from dibs.core.fold import FoldRules, tries_by_cards
from dibs.core.ids import ZERO, Fence, HolderId, IssueRef, LocalTime
from dibs.core.issue import Issue, Snapshot
from dibs.core.labels import (
    Painting,
    being_painted,
    claim_effects,
    ending_paint,
    fallen_out,
    just_led_on,
    leftovers,
)
from dibs.core.lease import (
    Bid,
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Lost,
    Outcome,
    Record,
    Renewed,
    Standing,
    StopAsked,
    Unproven,
)
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.leases import PROTECTIVE, Guarantee
from dibs.ports.tracker import IssueQuery
from dibs.services.backlog import Rests, with_ourselves
from dibs.services.effects import apply, put_back

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog


class Claimed(Struct, frozen=True):
    """The lease is ours, shown, and trusted from the moment we asked."""

    lease: Lease
    stage: Stage
    terms: LeaseTerms
    asked_at: LocalTime
    snapshot: Snapshot
    failed_attempts: int = 0


class Refused(Struct, frozen=True):
    """The issue may not be claimed, and why."""

    issue: IssueRef
    reasons: tuple[Reason, ...]
    after_grant: bool = False
    """The reasons were found only when the lease was already ours. The lease was conceded."""


class Beaten(Struct, frozen=True):
    """Another run holds the issue, or won the race for it."""

    issue: IssueRef
    record: Record


class Doubtful(Struct, frozen=True):
    """No read proved the win, so the claim counts as lost."""

    issue: IssueRef
    why: str


ClaimResult = Claimed | Refused | Beaten | Doubtful


class ClaimOptions(Struct, frozen=True):
    holder: HolderId
    ttl: timedelta | None = None
    """A length of the lease other than the stage's, for people and scripts."""
    overlook: frozenset[ReasonCode] = frozenset()
    """Reasons to set aside. A person may overlook rests, shut gates and spent attempts."""
    look_first: bool = True
    """Read the issue before the bid. A scan that knows the issue is untouched saves the read."""
    seen: Snapshot | None = None
    """A snapshot that a scan has read: judged instead of a read of our own."""
    kept: bool = False
    """A keeper will renew the lease. Hence no rest is noted: the first renewal would end the rest.
    """
    unqueued: Stage | None = None
    """The stage to claim an issue in that has no stage label; None: such an issue is refused."""


class _Look(Struct, frozen=True):
    """A reading of an issue, and its judgement."""

    snapshot: Snapshot
    standing: Standing
    verdict: Verdict


class _Wish(Struct, frozen=True):
    """What a bid was made for."""

    stage: Stage
    terms: LeaseTerms
    asked_at: LocalTime
    options: ClaimOptions
    look: _Look | None
    """The look before the bid, if nothing can have changed since; None: look again."""


A_PERSON_MAY_OVERLOOK = reasons_with(lambda meaning: meaning.person)
"""Reasons that stop a worker, but not a person who claims by hand."""


class Claiming:
    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._pauses = backlog.pauses
        self._observer = backlog.observer
        self._clock = backlog.clock
        self._granting = backlog.granting
        self._new_run = backlog.new_run
        self._grace = backlog.grace
        self._settle = max(backlog.settle, backlog.tracker.traits.settle)
        self._max_ttl = backlog.max_ttl
        self._rules = FoldRules(backlog.max_ttl, backlog.settle)
        self._reached = backlog.reached
        self._one_step = backlog.one_step
        self.rests = Rests(backlog)
        self._at_once = backlog.one_step is not nullcontext
        """Tracker and leases are one database: a claim is one transaction."""

    def claim(self, issue: IssueRef, stage: Stage | None, options: ClaimOptions) -> ClaimResult:
        """Try once to claim the issue in `stage`; None: in the stage that the issue is in."""
        if self._at_once:
            self._reached(Step.CLAIM_STARTED)
            asked_at = self._clock.now()  # before the step: the lease runs from its beginning
            with self._one_step():
                result = self._look_and_bid(issue, stage, options, asked_at)
        else:
            result = self._look_and_bid(issue, stage, options)
        if isinstance(result, Claimed):
            attempt = str(result.failed_attempts + 1)
            took = {"took": self._clock.now() - result.asked_at}
            at = result.snapshot.now
            event = about(EventKind.CLAIMED, result.lease, at=at, spans=took, attempt=attempt)
            self._observer.observe(event)
        return result

    def _look_and_bid(
        self,
        issue: IssueRef,
        stage: Stage | None,
        options: ClaimOptions,
        asked_at: LocalTime | None = None,
    ) -> ClaimResult:
        """Judge the issue and bid for the lease. `asked_at`: when the step around it began.

        In a step no process can change the issue between look and grant: a single look is enough.
        """
        granter, look = self._granting.look(), None
        if granter.objections:  # another store grants: the records of this store do not count
            return Refused(issue, granter.objections)
        if options.look_first or stage is None or self._at_once:
            seen = None if self._at_once else options.seen
            look = self._look(seen or self._tracker.read(issue), objections=())
            verdict = _overlooking(look.verdict, options)
            if stage is not None and verdict.stage and verdict.stage.name != stage.name:
                return Refused(issue, (_moved(stage),))
            if verdict.reasons or verdict.stage is None:
                self.rests.note(look.snapshot.issue, verdict.reasons)
                return Refused(issue, verdict.reasons)
            stage = verdict.stage
            if 0 < self._tracker.traits.long_thread < len(look.snapshot.comments):
                self._archive_outlived(look.snapshot)
        terms = _terms(stage, options.ttl, self._max_ttl)
        limit = None if ReasonCode.WIP_LIMIT in options.overlook else stage.wip
        floor = granter.floor
        bid = Bid(issue, self._new_run(), options.holder, stage.name, terms.ttl, limit, floor)
        if asked_at is None:
            look = None
            self._reached(Step.CLAIM_STARTED)
            asked_at = self._clock.now()
        return self._bid(bid, _Wish(stage, terms, asked_at, options, look))

    def _archive_outlived(self, snapshot: Snapshot) -> None:
        """Archive the cards of a long thread which no judgement needs any more.

        After an outage a later claim archives them.
        """
        from dibs.core.compacting import outlived  # few issues are worked so often

        tries = self._leases.standing(snapshot).tries
        old = outlived(snapshot.comments, tries, self._rules)
        if snapshot.complete and len(old) >= self._tracker.traits.long_thread / 3:
            with suppress(Outage):
                self._tracker.archive(snapshot.issue.ref, old)

    def _bid(self, bid: Bid, wish: _Wish) -> ClaimResult:
        """Ask the store for the lease. If granted, judge the issue again, then show the lease."""
        issue = bid.issue
        match self._leases.acquire(bid):
            case Granted() as granted:
                granted = replace(granted, asked_at=granted.asked_at or self._clock.now())
                self._reached(Step.CLAIM_GRANTED)
                return self._accept(granted, wish)
            case Busy(record):
                self._observer.observe(about(EventKind.CLAIM_LOST, bid, winner=record.lease.holder))
                # An atomic store grants nothing before the ending is painted, so a bidder that is
                # refused for it must paint it. With cards the next bid is granted and looks again.
                atomic = Guarantee.ATOMIC in self._leases.guarantees
                if record.unpainted and (atomic or not self._being_painted(record)):
                    self.roll_forward(record)
                return Beaten(issue, record)
            case Full(in_flight):
                return Refused(issue, (over_limit(wish.stage, in_flight),))
            case Unproven(why):
                self._observer.observe(about(EventKind.CLAIM_LOST, bid, why=why))
                return Doubtful(issue, why)
            case never:
                assert_never(never)

    def barred(self) -> Reason | None:
        """Why the store of this process may not grant now; None if it may. Pauses: see `closed`."""
        return next(iter(self._granting.objections()), None)

    def closed(self) -> tuple[Reason, ...]:
        """Why this process may claim no issue at all now, pauses included; empty if it may."""
        traits, pauses = self._tracker.traits, self._pauses.pauses()
        repos = traits.repos or (traits.repo,)
        covering = [[pause for pause in pauses if pause.covers(repo)] for repo in repos]
        paused = dict.fromkeys(pause for found in covering for pause in found)
        reasons = map(pause_reason, paused) if all(covering) else ()
        return (*self._granting.objections(), *reasons)

    def has_room(self, stage: Stage) -> bool:
        """Whether the stage's WIP limit leaves room now. The claim itself decides."""
        return stage.wip is None or self.in_flight(stage) < stage.wip

    def in_flight(self, stage: Stage) -> int:
        """How many leases of the stage are live, up to its limit; 0 for a stage without a limit."""
        if stage.wip is None:
            return 0
        if Guarantee.ATOMIC in self._leases.guarantees or not self._tracker.traits.shortlists:
            return len(self._leases.live(stage.name, limit=stage.wip))
        # To read the cards of all held issues would cost many requests: count labels instead.
        shown = IssueQuery(self._pipeline.held_labels(stage), limit=stage.wip)
        return len(self._tracker.find(shown).issues)

    def judge(
        self,
        snapshot: Snapshot,
        *,
        in_flight: int | None = None,
        around: Surroundings | None = None,
    ) -> Verdict:
        """Every reason against a claim, as `dibs why` shows them.

        `around`: the surroundings, if the caller judges many issues by one reading of them.
        """
        around = around or self.surroundings(in_flight)
        return self._judge(snapshot, self._leases.standing(snapshot), around)

    def _judge(self, snapshot: Snapshot, standing: Standing, around: Surroundings) -> Verdict:
        return judge(snapshot, standing, self._judging(snapshot.issue), around)

    def _judging(self, issue: Issue) -> Pipeline:
        return with_ourselves(self._pipeline, self._tracker, issue)

    def read(self, issue: IssueRef) -> Snapshot:
        """Read the issue as a claim does before it bids."""
        return self._tracker.read(issue)

    def look_at(self, snapshot: Snapshot) -> tuple[Snapshot, Verdict]:
        """Judge a reading, as a claim does before it bids; the reading may be replaced by it."""
        look = self._look(snapshot)
        return look.snapshot, look.verdict

    def _look(self, snapshot: Snapshot, objections: tuple[Reason, ...] | None = None) -> _Look:
        """Judge a reading.

        If a vanished holder left an ending half painted, finish the painting and read again.
        `objections`: the objections of the granter, if the caller has just read them.
        """
        issue, standing = snapshot.issue.ref, self._leases.standing(snapshot)
        if standing.unpainted is not None and snapshot.complete:
            if not self._being_painted(standing.unpainted):
                self.roll_forward(standing.unpainted)
                snapshot = self._tracker.read(issue)
                standing = self._leases.standing(snapshot)
        elif stray := leftovers(self._pipeline, snapshot) if snapshot.complete else ():
            snapshot = apply(self._tracker, issue, stray)
            standing = self._leases.standing(snapshot)
        verdict = self._judge(snapshot, standing, self.surroundings(None, objections))
        return _Look(snapshot, standing, verdict)

    def _being_painted(self, ending: Record) -> bool:
        return being_painted(ending, self._tracker.traits.patience)

    def _may_have_left(self, record: Record, stage: Stage, snapshot: Snapshot) -> bool:
        """Whether the record's ending may just have moved the issue out of the stage.

        Where reads do not lag, the reply to the confirmation shows this, and the answer is no.
        """
        unseen = self._settle + self._tracker.traits.grain if self._settle else ZERO
        return just_led_on(record, stage.name, snapshot, unseen)

    def roll_forward(self, record: Record) -> None:
        """Paint the ending that a vanished holder decided."""
        self._leases.roll_forward(record, self._paint)
        self._observer.observe(about(EventKind.ROLLED_FORWARD, record.lease, at=record.as_of))

    def _accept(self, granted: Granted, wish: _Wish) -> ClaimResult:
        """Judge the issue again under the lease. Show the lease, or concede it if refused."""
        lease, look = granted.lease, wish.look
        try:
            if look is not None:
                snapshot, failed = look.snapshot, look.verdict.failed_attempts
                refusal = self._unusable(granted, look.standing.highest)
            else:
                snapshot = granted.snapshot or self._tracker.read(lease.issue)
                refusal, failed = self._judge_again(granted, snapshot, wish.stage, wish.options)
            self._reached(Step.CLAIM_JUDGED)
            if refusal is not None:
                self._leases.concede(lease)
                return refusal
        except Outage:
            self._leases.concede(lease)
            raise
        if self._clock.now() >= wish.terms.trusted_until(wish.asked_at):
            return Doubtful(lease.issue, "the lease ran out before it could be shown")
        won = Claimed(lease, wish.stage, wish.terms, wish.asked_at, snapshot, failed)
        return self._show(won, wish.options)

    def _show(self, won: Claimed, options: ClaimOptions) -> ClaimResult:
        """Paint the labels and write the card, then judge the issue in the reply."""
        lease, stage, snapshot = won.lease, won.stage, won.snapshot
        try:
            paint = claim_effects(self._pipeline, stage, snapshot.issue.labels)
            shown = self._leases.show(lease, paint)
        except Outage:
            self._give_back(lease)
            self._put_back(lease, stage)
            raise
        match shown:
            case Renewed(held, seen):
                self._reached(Step.CLAIM_PAINTED)
                won = replace(won, lease=held, snapshot=seen or snapshot)
                if not self._at_once:
                    if seen is not None and fallen_out(self._pipeline, stage, seen.issue.labels):
                        self._put_back(held, stage)
                    refusal = self._look_once_more(held, seen or snapshot, stage, options)
                    if refusal is not None:
                        self._give_back(held)
                        return refusal
                if seen is not None and not options.kept:
                    self.rests.note_held(seen.issue, held.expires_at)
                return won
            case StopAsked(why):
                self._give_back(lease)
                return Doubtful(lease.issue, why)
            case Lost(why):
                self._put_back(lease, stage)
                return Doubtful(lease.issue, why)
            case never:
                assert_never(never)

    def _put_back(self, lease: Lease, stage: Stage) -> None:
        put_back(self._tracker, self._clock, self._pipeline, stage, lease.issue)

    def _give_back(self, lease: Lease) -> None:
        """End a lease that may have been shown already. During an outage it expires instead."""
        with suppress(Outage):
            self._leases.finish(lease, Ending(Outcome.RETURNED), self._paint)

    def _unusable(self, granted: Granted, highest: Fence) -> Refused | None:
        """Refuse a grant of a store which may not grant, or has lost records.

        `highest`: the highest fence on the cards. A store with all records grants a higher fence.
        """
        lease = granted.lease
        reason = self._granting.refusal_of(lease.fence, since=granted.asked_at)
        if reason is None and lease.fence <= highest:
            self._observer.observe(about(EventKind.FENCE_REGRESSED, lease, seen=str(highest)))
            reason = regressed(lease.fence, highest)
        return None if reason is None else Refused(lease.issue, (reason,), after_grant=True)

    def _judge_again(
        self, granted: Granted, snapshot: Snapshot, stage: Stage, options: ClaimOptions
    ) -> tuple[Refused | None, int]:
        lease = granted.lease
        before = self._leases.standing(snapshot, apart_from=lease.run)
        lost = before.highest if before.record is None else Fence(0)
        if (refusal := self._unusable(granted, lost)) is not None:
            return refusal, 0
        if before.unpainted is not None:
            # The next read may not show what we have just painted: a later claim looks again.
            if not self._being_painted(before.unpainted):
                self.roll_forward(before.unpainted)
            return Refused(lease.issue, (_moved(stage),), after_grant=True), 0
        if before.record is not None and self._may_have_left(before.record, stage, snapshot):
            return Refused(lease.issue, (_moved(stage),), after_grant=True), 0
        rivals = self._ahead_of(lease, stage)
        verdict = _overlooking(
            judge_claimable(
                snapshot, before.tries, self._judging(snapshot.issue), self.surroundings(rivals, ())
            ),
            options,
        )
        if verdict.reasons:
            return Refused(lease.issue, verdict.reasons, after_grant=True), verdict.failed_attempts
        if verdict.stage is None or verdict.stage.name != stage.name:
            refused = Refused(lease.issue, (_moved(stage),), after_grant=True)
            return refused, verdict.failed_attempts
        return None, verdict.failed_attempts

    def _look_once_more(
        self, lease: Lease, snapshot: Snapshot, stage: Stage, options: ClaimOptions
    ) -> Refused | None:
        """Refuse if the reply to the confirmation shows a veto, a full limit, another stage, or a
        text that nobody released: the handler gets the text of this reply.

        A snapshot is not taken in one moment: the labels may be older than a card which reports a
        change of the labels. The card was written after the change, and the labels of the reply
        were read after the card: hence the reply shows the change.
        """
        verdict = judge_picture(snapshot.issue, self._pipeline)
        reasons = verdict.reasons if vetoed(snapshot.issue, self._pipeline) else ()
        tries = tries_by_cards(snapshot)
        reasons = (*reasons, *gate_reasons(snapshot, tries, stage, self._pipeline))
        reasons = (*reasons, *text_reasons(snapshot, tries, stage, self._pipeline))
        if self._pipeline.has_left(stage, snapshot.issue.labels):
            reasons = (*reasons, _moved(stage))
        ahead = self._ahead_of(lease, stage)
        if stage.wip is not None and ahead is not None and ahead >= stage.wip:
            reasons = (*reasons, over_limit(stage, ahead))
        kept = tuple(reason for reason in reasons if reason.code not in options.overlook)
        return Refused(lease.issue, kept, after_grant=True) if kept else None

    def _ahead_of(self, lease: Lease, stage: Stage) -> int | None:
        """How many other leases of the stage are live; None if there is no limit to keep.

        None too if the store has kept the limit as it granted. Any other store shows grants late,
        or stamps them by several clocks: no grant is known to be earlier than ours, so all count.
        """
        if stage.wip is None or Guarantee.COUNTED in self._leases.guarantees:
            return None
        live = self._leases.live(stage.name, limit=stage.wip * 2 + 8)
        return sum(held.lease.issue != lease.issue for held in live)

    def _paint(self, record: Record, snapshot: Snapshot) -> Painting:
        return ending_paint(self._pipeline, record, snapshot)

    def surroundings(
        self, in_flight: int | None = None, objections: tuple[Reason, ...] | None = None
    ) -> Surroundings:
        return Surroundings(
            self._pauses.pauses(),
            self._grace,
            in_flight,
            objections=self._granting.objections() if objections is None else objections,
            protected=PROTECTIVE in self._leases.guarantees,
        )


def _terms(stage: Stage, ttl: timedelta | None, longest: timedelta) -> LeaseTerms:
    if ttl is None or ttl == stage.terms.ttl:
        return stage.terms
    if ttl > longest:
        raise BadTtl(f"{format_duration(ttl)} is over max_ttl {format_duration(longest)}")
    try:
        return terms_for(ttl, grain=stage.terms.grain, max_hold=stage.terms.max_hold)
    except ValueError as flaw:
        raise BadTtl(str(flaw)) from flaw


def _moved(stage: Stage) -> Reason:
    return Reason(
        ReasonCode.NOT_SERVED,
        f"it left stage {stage.name!r} while it was being claimed",
        "look again: another stage's worker may want it",
    )


def _overlooking(verdict: Verdict, options: ClaimOptions) -> Verdict:
    overlooked = options.overlook
    if options.unqueued is not None:
        overlooked |= {ReasonCode.NO_STAGE}
    kept = tuple(reason for reason in verdict.reasons if reason.code not in overlooked)
    return replace(verdict, reasons=kept, stage=verdict.stage or options.unqueued)
