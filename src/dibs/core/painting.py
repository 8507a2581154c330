"""Which label changes show an ending, given everything that can be seen of the issue.

Labels cannot be changed on a condition everywhere, so a painter that slept may paint late: over an
issue that others have moved on since. The cards still say where it stands, and that is how its
traces are told from a person's word: a stage that an ending led to and that runs have left behind,
beside the stage where the issue stands. A person may put that there as well, so nobody is hasty.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from msgspec import Struct

from dibs.core.eligibility import abandoned_at
from dibs.core.fold import cards_that_counted, said_shown_at, shows_ending
from dibs.core.ids import StageName, later
from dibs.core.issue import Thread
from dibs.core.lease import Outcome, Record
from dibs.core.parking import parking_comment
from dibs.core.pipeline import Pipeline
from dibs.core.plan import (
    AddLabels,
    CloseIssue,
    Effects,
    PostComment,
    RemoveLabels,
    ending_effects,
)


class Painting(Struct, frozen=True):
    """What shows an ending, and what lets the issue go once the card says that it is shown."""

    showing: Effects = ()
    letting_go: Effects = ()
    shown: bool = False
    """Somebody has said already that it is shown."""
    putting_right: Callable[[frozenset[str]], Effects] = lambda _: ()
    """What a painter does that finds out only now, given the labels that it added."""

    @property
    def labels_differ(self) -> bool:
        return any(isinstance(effect, AddLabels | RemoveLabels) for effect in self.showing)


def ending_paint(pipeline: Pipeline, record: Record, thread: Thread) -> Painting:
    """Nothing but tidying up and letting go, once the ending is marked as shown.

    Whatever stage the labels say from then on is a person's later word. No stage at all is nobody's
    word: a painter that slept took off what somebody had put back. Then it stands where it ended.
    """
    claimed, labels = pipeline.labels.claimed, thread.issue.labels
    last = RemoveLabels((claimed,))
    right = partial(put_right, pipeline, thread)
    if shows_ending(thread.comments, record.lease.run):
        stood = _no_stage_at_all(pipeline, thread)
        letting_go = (last,) if claimed in labels else ()
        return Painting(stood, letting_go, shown=True, putting_right=right)
    left_behind = _left_behind(pipeline, record, thread)
    effects = ending_effects(pipeline, record, labels - set(left_behind))
    tidying = (RemoveLabels(left_behind),) if left_behind else ()
    done = (last,) if thread.issue.open else (last, CloseIssue())
    said = parking_comment(pipeline, record, thread)
    saying = (PostComment(said),) if said is not None else ()
    showing = (*(effect for effect in effects if effect not in done), *tidying, *saying)
    return Painting(showing, (last,), putting_right=right)


def being_painted(ending: Record, patience: timedelta) -> bool:
    """Whether an ending is so young that whoever decided it is most likely still painting it.

    Others leave it alone so long, and come back: painting it twice is a waste, and a comment more.
    """
    return ending.unpainted and just_ended(ending, patience)


def just_ended(record: Record, patience: timedelta) -> bool:
    """Whether it ended so lately that labels which were read with it may be older than its card."""
    young = min(patience, record.lease.ttl)
    return record.ending is not None and record.as_of < later(record.lease.expires_at, young)


def just_led_on(record: Record, stage: StageName, thread: Thread, unseen: timedelta) -> bool:
    """Whether it was led out of this stage so lately that its labels may still show the stage.

    No reading is one moment: where labels are seen up to `unseen` late, they may be older than the
    card beside them that says that they were changed. Later on, they are a person's word.
    """
    ending = record.ending
    if ending is None or ending.outcome is not Outcome.ADVANCED:
        return False
    said_at = said_shown_at(thread.comments, record.lease.run)
    left = record.lease.stage == stage and ending.next != stage
    return left and said_at is not None and thread.now < later(said_at, unseen)


def leftovers(pipeline: Pipeline, thread: Thread) -> Effects:
    """Take off the stages that runs have left behind, where the one it stands in is on as well.

    Only if nothing has changed for a ttl: a person who moves an issue adds one label and takes the
    other off, and is given the time between the two.
    """
    homes = stands_in(pipeline, thread)
    if thread.issue.labels.isdisjoint(homes):
        return ()
    stray = _passed(pipeline, thread) - set(homes)
    if not stray or thread.now < abandoned_at(thread.issue, pipeline):
        return ()
    return (RemoveLabels(tuple(sorted(stray))),)


def put_right(pipeline: Pipeline, thread: Thread, added: frozenset[str]) -> Effects:
    """For a painter that finds out only now that it was late: take back the stages it added.

    If that leaves no stage at all, it stands where its last run ended. Any other stage that is on
    was put there by somebody else, since. Where no card says where it stands, nobody knows better.
    """
    homes = stands_in(pipeline, thread)
    if not homes:
        return ()
    stages = {stage.label for stage in pipeline.stages}
    stray = tuple(sorted((added & stages) - set(homes)))
    left = (thread.issue.labels & (stages | set(homes))) - set(stray)
    missing = () if left else (AddLabels(homes[:1]),)
    return (*missing, *((RemoveLabels(stray),) if stray else ()))


def _left_behind(pipeline: Pipeline, record: Record, thread: Thread) -> tuple[str, ...]:
    """What a late painter put beside the stage of a run that is now ending."""
    names = {record.lease.stage, *_target(record)}
    own = {stage.label for stage in pipeline.stages if stage.name in names}
    worked = {
        pipeline.labels.claimed if stage.gives_way else stage.label
        for stage in pipeline.stages
        if stage.name == record.lease.stage
    }
    if not worked & thread.issue.labels:
        return ()  # a person took our stage off: whatever is on now is theirs
    return tuple(sorted(_passed(pipeline, thread) - own))


def _target(record: Record) -> tuple[StageName, ...]:
    ending = record.ending
    return (ending.next,) if ending is not None and ending.next is not None else ()


def _passed(pipeline: Pipeline, thread: Thread) -> set[str]:
    """Labels on the issue of stages that its runs led to: what a late painter may have added.

    And of those that they worked in, where a label gave way: a late sweeper may have put it back.
    """
    cards = cards_that_counted(thread.comments)
    endings = [card.ending for card in cards if card.ending is not None]
    reached = {ending.next for ending in endings if ending.next is not None}
    worked = {card.stage for card in cards}
    return {
        stage.label
        for stage in pipeline.stages
        if (stage.name in reached or (stage.gives_way and stage.name in worked))
        and stage.label in thread.issue.labels
    }


def stands_in(pipeline: Pipeline, thread: Thread) -> tuple[str, ...]:
    """The label of the stage that the last lease is in, or led to.

    Where nobody ended it and its stage gives way, `claimed` stands there as well, and first.
    """
    cards = cards_that_counted(thread.comments)
    if not cards:
        return ()
    last = cards[-1]
    ending = last.ending
    advanced = ending is not None and ending.outcome is Outcome.ADVANCED
    name = ending.next if ending is not None and advanced else last.stage
    found = next((stage for stage in pipeline.stages if stage.name == name), None)
    if found is None:
        return ()
    held = ending is None and found.gives_way
    return (pipeline.labels.claimed, found.label) if held else (found.label,)


def _no_stage_at_all(pipeline: Pipeline, thread: Thread) -> Effects:
    homes, labels = stands_in(pipeline, thread), thread.issue.labels
    if not homes or not labels.isdisjoint(homes) or pipeline.stages_of(labels):
        return ()
    return (AddLabels(homes[:1]),)
