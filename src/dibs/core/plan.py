"""Label changes as ordered values: add first, remove after, `claimed` last.

Decides what is painted and in which order, so that an issue is never seen without a stage and a
crash anywhere in between can be finished by the next reader. Nothing here writes: services hand
the effects to a tracker. The whole label set is never replaced: other bots' labels would be lost.
"""

from msgspec import Struct

from dibs.core.errors import IllegalMove, NoSuchStage
from dibs.core.ids import StageName
from dibs.core.lease import Ending, Outcome, Record
from dibs.core.pipeline import ApprovalGate, Pipeline, Stage


class AddLabels(Struct, frozen=True):
    labels: tuple[str, ...]


class RemoveLabels(Struct, frozen=True):
    labels: tuple[str, ...]


class PostComment(Struct, frozen=True):
    body: str


class EditComment(Struct, frozen=True):
    comment: int
    body: str


class CloseIssue(Struct, frozen=True):
    pass


Effect = AddLabels | RemoveLabels | PostComment | EditComment | CloseIssue
Effects = tuple[Effect, ...]


def claim_effects(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    """Show that a lease is held."""
    wanted = (pipeline.labels.claimed, *((stage.working_label,) if stage.working_label else ()))
    unwanted = (stage.label,) if stage.gives_way and pipeline.swaps_labels else ()
    return (*_adding(wanted, labels), *_removing(unwanted, labels))


def fallen_out(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    """Put back a label that gave way to a `claimed` that is not there any more.

    Whoever painted its claim late may have taken the last label off that a query could find.
    """
    shown = pipeline.labels.claimed in labels or pipeline.stages_of(labels)
    return () if shown or not stage.gives_way else _adding((stage.label,), labels)


def ending_effects(pipeline: Pipeline, record: Record, labels: frozenset[str]) -> Effects:
    """Show what came of a lease. Idempotent: run again on a half-painted issue, it finishes it."""
    ending = record.ending
    assert ending is not None, "only an ended lease is painted"
    try_stage = _stage_named(pipeline, record.lease.stage)
    if try_stage is None:  # the stage was renamed or dropped from the configuration meanwhile
        return _removing((pipeline.labels.claimed,), labels)
    if ending.outcome is Outcome.ADVANCED:
        return _advancing(pipeline, try_stage, ending, labels)
    parked = (pipeline.labels.parked,) if ending.outcome is Outcome.PARKED else ()
    return (*_adding(parked, labels), *_going_back(pipeline, try_stage, labels))


def _stage_named(pipeline: Pipeline, name: StageName) -> Stage | None:
    try:
        return pipeline.stage(name)
    except NoSuchStage:
        return None


def _advancing(pipeline: Pipeline, stage: Stage, ending: Ending, labels: frozenset[str]) -> Effects:
    try:
        target = pipeline.target(stage.name, ending.next)
    except IllegalMove:  # the move was dropped from the configuration meanwhile
        return _going_back(pipeline, stage, labels)
    moved_by_hand = [
        other for other in pipeline.stages_of(labels) if other.name not in (stage.name, target.name)
    ]
    if moved_by_hand:  # a person put the issue elsewhere while we worked: theirs is the last word
        return (
            *_removing((stage.label,), labels),
            *_letting_go(pipeline, stage, labels),
        )
    gate = stage.gate
    old = (stage.label, *((gate.label,) if isinstance(gate, ApprovalGate) else ()))
    return (
        *_adding((target.label,), labels),
        *_removing(old, labels),
        *((CloseIssue(),) if target.closes else ()),
        *_letting_go(pipeline, stage, labels),
    )


def _letting_go(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    working = _removing((stage.working_label,), labels) if stage.working_label else ()
    return (*working, *_removing((pipeline.labels.claimed,), labels))


def _going_back(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    """To where it came from: a label that gave way is put back, unless the issue is elsewhere."""
    moved = pipeline.stages_of(labels)
    back = _adding((stage.label,), labels) if stage.gives_way and not moved else ()
    return (*back, *_letting_go(pipeline, stage, labels))


def freeing_effects(
    pipeline: Pipeline, labels: frozenset[str], worked: StageName | None = None
) -> Effects:
    """Take off what a vanished holder left: every working label, then `claimed`.

    `worked` is the stage of its lease, where a card tells: its label may have given way.
    """
    stage = pipeline.worked_stage(labels, worked)
    return (
        *(_adding((stage.label,), labels) if stage is not None and stage.gives_way else ()),
        *_removing(pipeline.working_labels, labels),
        *_removing((pipeline.labels.claimed,), labels),
    )


def _adding(wanted: tuple[str, ...], labels: frozenset[str]) -> Effects:
    missing = tuple(label for label in wanted if label not in labels)
    return (AddLabels(missing),) if missing else ()


def _removing(unwanted: tuple[str, ...], labels: frozenset[str]) -> Effects:
    present = tuple(label for label in unwanted if label in labels)
    return (RemoveLabels(present),) if present else ()


def labels_after(effects: Effects, labels: frozenset[str]) -> frozenset[str]:
    """What an issue carries once the effects are through."""
    for effect in effects:
        match effect:
            case AddLabels(added):
                labels |= set(added)
            case RemoveLabels(removed):
                labels -= set(removed)
            case PostComment() | EditComment() | CloseIssue():
                pass
    return labels
