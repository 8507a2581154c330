"""Where effects become calls on a tracker, and where a change that came too late is taken back.

`apply` and `apply_to` make the changes. A tracker that applies in one step or in one request gets
them in one call. Any other gets one call per effect, in the order of the plan, and then a read:
every write is looked at afterwards.

`roll_forward` and `free_issue` look at the reply for signs that the change came too late. For
example, `free_issue` takes off the labels of a vanished holder and puts the stage label back. A
sweeper that slept since its read would put the stage label onto an issue which others have moved
on. So it reads the reply, and takes its labels back if the issue has advanced. The holder of that
time repaints the labels of its own lease.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Protocol, assert_never

from msgspec.structs import replace

from dibs.core.card import same_mark
from dibs.core.durations import UNSEEN_WRITE, Retries
from dibs.core.errors import NoSuchComment, Outage, Unavailable
from dibs.core.events import Reached, Step, unwatched
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Snapshot
from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    Effect,
    Painting,
    PostComment,
    RemoveLabels,
    fallen_out,
    freeing_effects,
    put_right,
)
from dibs.core.lease import Outcome, Record, Standing
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.leases import Painter, ShownLeases
from dibs.ports.system import Clock
from dibs.ports.tracker import Applies, Tracker

_REPAIRS = 5
_PAINTINGS = 20


def in_one_request(tracker: Tracker) -> bool:
    """Whether several effects are one request but not one step: any part of it may happen."""
    return tracker.traits.applies is Applies.IN_ONE_REQUEST


def apply(
    tracker: Tracker,
    issue: IssueRef,
    effects: Sequence[Effect],
    reached: Reached = unwatched,
) -> Snapshot:
    """Apply the effects to the issue in any state. Returns the issue afterwards."""
    if not effects:
        return tracker.read(issue)
    snapshot = tracker.apply(issue, effects, reached=reached)
    assert snapshot is not None, "without a condition the effects are always applied"
    return snapshot


def apply_to(
    tracker: Tracker, seen: Issue, effects: Sequence[Effect], reached: Reached = unwatched
) -> Snapshot | None:
    """Apply the effects only if the issue is still as `seen`; None if the issue has changed.

    Only a tracker which applies in one step keeps the condition strictly. With any different
    tracker the issue may change between the look and the first effect; a sleeper may then spoil the
    picture, never the truth. Where several effects are one request, nobody looks again after
    `seen`: a read before the request would double the cost and change little.
    """
    if not effects and in_one_request(tracker):
        return tracker.read(seen.ref)
    return tracker.apply(seen.ref, effects, if_unchanged=seen, reached=reached)


def paint_ending(
    tracker: Tracker,
    seen: Snapshot,
    plan: Callable[[Snapshot], Painting],
    mark: Sequence[Effect],
    reached: Reached = unwatched,
    *,
    tried_on: Snapshot | None = None,
) -> Snapshot | None:
    """Paint the labels of an ending, then mark the ending as shown, then take `claimed` off.

    Label changes undone by another worker are made once more. If the reply reveals a shown mark by
    another worker, we painted late, and take our changes back. None if the issue is not as `seen`,
    or if the labels still differ: then the caller reads again.

    `tried_on` is the snapshot before an earlier request of ours which failed: any part of the
    request may have happened, so a shown mark with our text proves nothing.
    """
    ref = seen.issue.ref
    write = partial(apply, tracker, ref)
    match tracker.traits.applies:
        case Applies.IN_ONE_STEP:
            paint = plan(seen)
            effects = (*paint.showing, *mark, *paint.letting_go)
            return tracker.apply(ref, effects, if_unchanged=seen.issue)
        case Applies.IN_ONE_REQUEST if tried_on is not None:
            paint, left = plan(seen), plan(_without_our_mark(seen, tried_on, mark))
            if left.shown:
                added = _labels_in(plan(tried_on).showing, AddLabels)
                return _take_back(write, seen, plan, added)
            effects = (*left.showing, *(() if paint.shown else mark), *paint.letting_go)
            return write(effects) if effects else seen
        case Applies.IN_ONE_REQUEST:
            paint = plan(seen)
            painted = write((*paint.showing, *mark, *paint.letting_go))
            if not painted.complete:
                raise Unavailable(f"{ref}: the reply does not show all comments")
            left = plan(_without_our_mark(painted, seen, mark))
            if left.shown and not paint.shown:
                return _take_back(write, painted, plan, _labels_in(paint.showing, AddLabels))
            return write(_without_closing(left.showing)) if left.labels_differ else painted
        case Applies.ONE_BY_ONE:
            return _paint_one_by_one(tracker, seen, plan, mark, reached)


def _paint_one_by_one(
    tracker: Tracker,
    seen: Snapshot,
    plan: Callable[[Snapshot], Painting],
    mark: Sequence[Effect],
    reached: Reached,
) -> Snapshot | None:
    """Paint the labels, look at the reply, and only then mark the ending as shown."""
    ref = seen.issue.ref
    paint = plan(seen)
    painted = apply_to(tracker, seen.issue, paint.showing, reached)
    if painted is None:
        return None
    left = plan(painted)
    if left.shown and not paint.shown:
        write = partial(apply, tracker, ref)
        return _take_back(write, painted, plan, _labels_in(paint.showing, AddLabels))
    if left.labels_differ:
        painted = apply(tracker, ref, _without_closing(left.showing), reached)
        if plan(painted).labels_differ:
            return None
    return apply(tracker, ref, (*mark, *paint.letting_go), reached)


class EndingState(Enum):
    """What a snapshot, and the store that decided an ending, say about painting the ending."""

    UNCLEAR = auto()
    """The snapshot is incomplete, or older than the ending: read again."""
    UNPAINTED = auto()
    PAINTED = auto()
    SUPERSEDED = auto()
    """The issue has a later lease: the labels of this ending would be wrong now."""
    VOID = auto()
    """The ending does not count: an operator had ended the lease before."""


class EndingToPaint(Protocol):
    """An ending of a lease, known from cards or from a store."""

    @property
    def record(self) -> Record: ...

    def state(self, snapshot: Snapshot, *, tried: bool) -> EndingState:
        """`tried`: an earlier request of ours may have painted a part of the ending."""

    def mark(self, snapshot: Snapshot) -> Sequence[Effect]:
        """The effects that mark the ending as shown."""

    def went_with_card(self) -> bool:
        """The card that `mark` edits was deleted: whether the ending went with it."""

    def acknowledge(self) -> None:
        """Record that the labels show the ending: from now on the issue can be granted again."""


def roll_forward(
    tracker: Tracker,
    clock: Clock,
    ending: EndingToPaint,
    painter: Painter,
    *,
    settle_s: float,
    retries: Retries,
    reached: Reached = unwatched,
    seen: Snapshot | None = None,
) -> bool:
    """Paint the ending: stage labels, then the card, then take `claimed` off; acknowledge last.

    Paint only while the ending is unpainted and the issue is unchanged: a process that slept here
    must not undo later changes. A request that got no answer may have painted any part, so it is
    repeated and not left like that. `seen` is a fresh snapshot, if the caller has one. False if the
    ending does not count.
    """
    issue, plan = ending.record.lease.issue, partial(painter, ending.record)
    repair = partial(_repair_labels, tracker, clock, plan, settle_s)
    tried_on: Snapshot | None = None
    failed = 0
    for _ in range(_PAINTINGS):
        sent_on: Snapshot | None = None
        try:
            snapshot, seen = seen or tracker.read(issue), None
            state = ending.state(snapshot, tried=tried_on is not None)
            if state is EndingState.UNCLEAR:
                clock.sleep(UNSEEN_WRITE.pause_s)
                continue
            if state is not EndingState.UNPAINTED:
                repair(state, tried_on)
                return state is not EndingState.VOID
            mark, sent_on = ending.mark(snapshot), snapshot
            painted = paint_ending(tracker, snapshot, plan, mark, reached, tried_on=tried_on)
        except NoSuchComment:
            if ending.went_with_card():
                return True
            continue
        except Unavailable:
            tried_on, failed = tried_on or sent_on, failed + 1
            may_retry = in_one_request(tracker) and tried_on is not None
            if not may_retry or failed == retries.most:
                raise
            clock.sleep(settle_s + retries.pause_after(failed))
            continue
        if painted is None:
            continue
        if in_one_request(tracker):  # nobody looks between the labels and the card
            repair(ending.state(painted, tried=True), snapshot)
        reached(Step.FINISH_PAINTED)
        ending.acknowledge()
        reached(Step.FINISH_ACKNOWLEDGED)
        return True
    raise Unavailable(f"{issue}: its ending could not be painted")


def _repair_labels(
    tracker: Tracker,
    clock: Clock,
    plan: Callable[[Snapshot], Painting],
    settle_s: float,
    state: EndingState,
    tried_on: Snapshot | None,
) -> None:
    """If the issue has a later lease, take back the labels that we may have added since `tried_on`.

    Wait for the settle time first: a read may not show the newest cards yet.
    """
    if state is not EndingState.SUPERSEDED or tried_on is None:
        return
    clock.sleep(settle_s)
    write = partial(apply, tracker, tried_on.issue.ref)
    added = _labels_in(plan(tried_on).showing, AddLabels)
    _take_back(write, tracker.read(tried_on.issue.ref), plan, added)


def _without_our_mark(painted: Snapshot, seen: Snapshot, mark: Sequence[Effect]) -> Snapshot:
    """The reply as if we had not marked the ending as shown: a mark by another worker stays."""
    before = {comment.id: comment for comment in seen.comments}
    comments = list(painted.comments)
    for effect in mark:
        match effect:
            case EditComment(number):
                comments = [
                    before.get(comment.id, comment) if comment.id == number else comment
                    for comment in comments
                ]
            case PostComment(body):
                ours = [
                    comment
                    for comment in comments
                    if comment.id not in before and same_mark(comment.body, body)
                ]
                comments = [comment for comment in comments if comment not in ours[-1:]]
            case AddLabels() | RemoveLabels() | CloseIssue():
                pass
            case never:
                assert_never(never)
    return replace(painted, comments=tuple(comments))


def _without_closing(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """The effects for a second try: a closed issue stays closed, even if a read lags."""
    return tuple(effect for effect in effects if not isinstance(effect, CloseIssue))


def _take_back(
    write: Callable[[Sequence[Effect]], Snapshot],
    painted: Snapshot,
    plan: Callable[[Snapshot], Painting],
    added: frozenset[str],
) -> Snapshot:
    """Take back the labels which we `added` late, again and again until no change is left to make.

    Again and again, because a painter which slept once may sleep again during the repair. The last
    card shows where the issue stands, so an incomplete list of comments is read again first.
    """
    for _ in range(_REPAIRS):
        if not painted.complete:
            painted = write(())
            continue
        right = plan(painted).putting_right(added)
        if not right:
            break
        painted = write(right)
        added = (added | _labels_in(right, AddLabels)) - _labels_in(right, RemoveLabels)
    return painted


def _labels_in(
    effects: Sequence[Effect], kind: type[AddLabels] | type[RemoveLabels]
) -> frozenset[str]:
    return frozenset(
        label for effect in effects if isinstance(effect, kind) for label in effect.labels
    )


def put_back(
    tracker: Tracker, clock: Clock, pipeline: Pipeline, stage: Stage, issue: IssueRef
) -> None:
    """Put the stage label back if no label is left by which a query would find the issue.

    For a worker that painted a claim and may have been too late: its change may have taken off the
    last label. The function waits until every reader sees the change, then looks.
    """
    if not (stage.gives_way and pipeline.swaps_labels):
        return
    clock.sleep(tracker.traits.settle.total_seconds())
    with suppress(Outage):
        labels = tracker.read(issue).issue.labels
        if missing := fallen_out(pipeline, stage, labels):
            apply(tracker, issue, missing)


def free_issue(
    tracker: Tracker,
    leases: ShownLeases,
    pipeline: Pipeline,
    snapshot: Snapshot,
    standing: Standing,
    *,
    first: Sequence[Effect] = (),
) -> Snapshot | None:
    """Apply `first`, then take off the labels of a vanished holder. Returns the issue afterwards.

    None if the issue had changed since the snapshot. If the reply shows an advance by another
    worker, a stage label which we put back came too late: the label is taken back.
    """
    worked = standing.record.lease.stage if standing.record is not None else None
    paint = freeing_effects(pipeline, snapshot.issue, worked)
    freed = apply_to(tracker, snapshot.issue, (*first, *paint))
    if freed is None:
        return None
    added = _labels_in(paint, AddLabels)
    if not added or not freed.complete:  # an incomplete list decides nothing
        return freed
    record = leases.standing(freed).record
    ending = record.ending if record is not None else None
    if ending is None or ending.outcome is not Outcome.ADVANCED:
        return freed

    def plan(seen: Snapshot) -> Painting:
        return Painting(putting_right=partial(put_right, pipeline, seen))

    _take_back(partial(apply, tracker, freed.issue.ref), freed, plan, added)
    return None
