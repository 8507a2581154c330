"""Label changes as ordered values: add first, remove after, `claimed` last.

Decides what is painted and in which order, so that an issue is never seen without a stage and a
crash anywhere in between can be finished by the next reader. Nothing here writes: services hand
the effects to a tracker. The whole label set is never replaced: other bots' labels would be lost.

Which label changes show an ending, given everything that can be seen of the issue.

Labels cannot be changed on a condition everywhere, so a painter that slept may paint late: over an
issue that others have moved on since. The cards still say where it stands, and that is how its
traces are told from a person's word: a stage that an ending led to and that runs have left behind,
beside the stage where the issue stands. A person may put that there as well, so nobody is hasty.

What is said when an issue is parked: each attempt that failed, for the person who looks at it.

One comment for a parking, whoever paints it: it carries the run that parked the issue, so that a
second painter sees that it has been said. It is made of the cards alone, so every painter would say
the same. A handler's output is no part of it: that may hold anything, and comments are read by all.

How a label looks where a tracker lets labels have a colour and a description.

Decides by what the pipeline uses a label for. Whether it is there is the tracker's business.

Where an issue's picture contradicts its truth, and what would mend it.

Only what follows from the truth is mended; where a person's intent is in doubt, the flaw is named
and left to a person.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import Card, UnknownMark, parse_mark
from dibs.core.durations import format_instant
from dibs.core.eligibility import abandoned_at, failed_tries
from dibs.core.errors import IllegalMove, NoSuchStage
from dibs.core.fold import (
    FoldRules,
    Marks,
    cards_that_counted,
    read_marks,
    said_shown_at,
    shows_ending,
    tries_on_comments,
    tries_on_picture,
)
from dibs.core.granter import CONTROL_LABEL
from dibs.core.ids import IssueRef, RunId, StageName, later
from dibs.core.issue import Comment, Thread
from dibs.core.lease import Ending, Outcome, Record, Standing, Try
from dibs.core.marker import VERSION, plain, write_line
from dibs.core.pipeline import ApprovalGate, Dialect, FollowsPull, Pipeline, Stage
from dibs.core.presets import EVERY


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


_MOST_LISTED = 10
_LINK = r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]{1,300}"


def parking_comment(pipeline: Pipeline, record: Record, thread: Thread) -> str | None:
    """None if this ending parks nothing, or if somebody has said it already."""
    ending = record.ending
    if ending is None or ending.outcome is not Outcome.PARKED:
        return None
    if _said(record.lease.run, thread.comments):
        return None
    try:
        stage = pipeline.stage(record.lease.stage)
    except NoSuchStage:  # it was renamed or dropped from the configuration meanwhile
        return None
    return _render(pipeline, stage, record, thread)


def _line(run: RunId) -> str:
    return write_line("parked", [("run", run), ("v", str(VERSION))])


def _said(run: RunId, comments: Sequence[Comment]) -> bool:
    line = _line(run)
    return any(one.by_writer and one.body.startswith(line) for one in comments)


def _render(pipeline: Pipeline, stage: Stage, record: Record, thread: Thread) -> str:
    marks = read_marks(thread.comments, FoldRules(max_ttl=timedelta.max))
    cards = {posted.card.run: posted.card for posted in marks.cards}
    parking = cards.get(record.lease.run)
    if parking is not None:  # a store has decided before the card shows it
        cards[record.lease.run] = replace(parking, ending=record.ending)
    failed = _failed(marks, record, thread, stage)
    left_out = len(failed) - _MOST_LISTED
    listed = [
        f"{number}. {_told(attempt, cards.get(attempt.run))}"
        for number, attempt in enumerate(failed, 1)
    ]
    if left_out > 0:
        listed = [f"- {left_out} more before these", *listed[-_MOST_LISTED:]]
    times = f"{len(failed)} failed attempt{'s' * (len(failed) != 1)}"
    again = f"{stage.attempts} attempt{'s' * (stage.attempts != 1)}"
    label = plain(pipeline.labels.parked)
    return "\n".join(
        [
            _line(record.lease.run),
            f"Set aside for a person after {times} in `{plain(stage.name) or 'no stage'}`:",
            "",
            *listed,
            "",
            f"`dibs runs {record.lease.issue.typed}` shows them, and where a handler's output is.",
            f"Once a person has taken the label `{label}` off, it starts afresh with {again}.",
        ]
    )


def _failed(marks: Marks, record: Record, thread: Thread, stage: Stage) -> tuple[Try, ...]:
    """The attempts that were counted; the run that parked it is one, unless it came to do that."""
    shown = any(posted.card.fence for posted in marks.cards)
    rules = FoldRules(max_ttl=timedelta.max)
    tries = (
        tries_on_picture(marks, record) if shown else tries_on_comments(marks, rules, thread.now)
    )
    run = record.lease.run
    before = [attempt for attempt in tries if attempt.run != run]
    failed = failed_tries(before, stage.name)
    if len(failed) >= stage.attempts:
        return failed
    return (*failed, Try(run, stage.name, record.lease.expires_at, Outcome.PARKED))


def _told(attempt: Try, card: Card | None) -> str:
    when = format_instant(attempt.ended_at) if attempt.ended_at is not None else "now"
    who = plain(card.holder if card else "") or "an unnamed worker"
    return f"{when}, **{who}** (run `{plain(attempt.run)}`): {_why(attempt, card)}"


def _why(attempt: Try, card: Card | None) -> str:
    if attempt.outcome is None:
        return "it vanished without a word"
    note = card.ending.note if card is not None and card.ending is not None else ""
    if not note:
        return "it failed and said nothing more"
    links = " ".join(f"<{link}>" for link in re.findall(_LINK, note)[:2])
    return f"`{note.replace('`', chr(39))}`{' ' if links else ''}{links}"


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


class LabelLook(Struct, frozen=True):
    colour: str = "ededed"
    """Six hexadecimal digits."""
    description: str = ""
    """Not over 100 characters: longer ones are refused."""


def label_looks(pipeline: Pipeline) -> Mapping[str, LabelLook]:
    """Every label that the pipeline reads or writes."""
    marks = pipeline.labels
    looks = {
        marks.claimed: LabelLook("fbca04", "dibs: a lease is held; its card says whose"),
        marks.paused: LabelLook("d93f0b", "dibs: hands off, a person said so"),
        marks.parked: LabelLook("b60205", "dibs: set aside for a person to look at"),
        CONTROL_LABEL: LabelLook("5319e7", "dibs: the log of who grants and what is paused"),
    }
    for blocker in sorted(pipeline.blockers):
        looks[blocker] = LabelLook("d93f0b", "dibs: workers leave it alone")
    for place, urgent in enumerate(pipeline.priorities, start=1):
        looks[urgent] = LabelLook("e99695", f"dibs: jumps the queue, urgency {place}")
    for stage in pipeline.stages:
        looks |= _stage_looks(stage)
    if pipeline.dialect is Dialect.AGENT:
        looks |= {one.name: LabelLook(one.color, one.description) for one in EVERY}
    return looks


def _stage_looks(stage: Stage) -> dict[str, LabelLook]:
    colour = "0e8a16" if stage.final else "1d76db"
    looks = {stage.label: LabelLook(colour, f"dibs: stage {stage.name}")}
    if stage.working_label:
        looks[stage.working_label] = LabelLook("fef2c0", f"dibs: being worked, stage {stage.name}")
    if isinstance(stage.gate, ApprovalGate):
        looks[stage.gate.label] = LabelLook("0e8a16", "dibs: a person approved it")
    if isinstance(stage.follows, FollowsPull) and stage.follows.authored:
        authored = LabelLook("c5def5", "dibs: a run of the fleet opened this pull request")
        looks[stage.follows.authored] = authored
    return looks


class FlawCode(StrEnum):
    UNPAINTED_ENDING = "UNPAINTED_ENDING"
    CLAIMED_WITHOUT_LEASE = "CLAIMED_WITHOUT_LEASE"
    LEASE_WITHOUT_LABEL = "LEASE_WITHOUT_LABEL"
    SEVERAL_STAGES = "SEVERAL_STAGES"
    NO_STAGE = "NO_STAGE"
    OPEN_AT_THE_END = "OPEN_AT_THE_END"
    UNREADABLE_CARD = "UNREADABLE_CARD"


class Flaw(Struct, frozen=True):
    issue: IssueRef
    code: FlawCode
    text: str
    repair: Effects = ()
    """Empty where only a person can decide."""


def diagnose(thread: Thread, standing: Standing, pipeline: Pipeline) -> tuple[Flaw, ...]:
    if not thread.complete:
        return ()  # an incomplete list decides nothing
    if standing.unpainted is not None:
        # Half painted explains everything else about the labels; finish that first.
        paint = ending_effects(pipeline, standing.unpainted, thread.issue.labels)
        text = "an ending was decided but its labels do not show it"
        return (Flaw(thread.issue.ref, FlawCode.UNPAINTED_ENDING, text, paint),)
    return (
        *_lease(thread, standing, pipeline),
        *_stages(thread, pipeline),
        *_cards(thread),
    )


def _lease(thread: Thread, standing: Standing, pipeline: Pipeline) -> Iterator[Flaw]:
    ref, labels = thread.issue.ref, thread.issue.labels
    working = {stage.working_label for stage in pipeline.stages} & labels
    shown = pipeline.labels.claimed in labels or bool(working)
    if standing.live is not None:
        stage = _stage_called(pipeline, standing.live.lease.stage)
        missing = claim_effects(pipeline, stage, labels) if stage else ()
        if missing:
            text = f"{standing.live.lease.holder} holds it but its labels do not say so"
            yield Flaw(ref, FlawCode.LEASE_WITHOUT_LABEL, text, missing)
    elif shown and standing.bidding_until is None and not _young(thread, standing, pipeline):
        text = "its labels say claimed but no lease is live"
        worked = standing.record.lease.stage if standing.record is not None else None
        repair = freeing_effects(pipeline, labels, worked)
        yield Flaw(ref, FlawCode.CLAIMED_WITHOUT_LEASE, text, repair)


def _young(thread: Thread, standing: Standing, pipeline: Pipeline) -> bool:
    return standing.record is None and thread.now < abandoned_at(thread.issue, pipeline)


def _stages(thread: Thread, pipeline: Pipeline) -> Iterator[Flaw]:
    ref, labels = thread.issue.ref, thread.issue.labels
    stages = pipeline.stages_of(labels)
    if len(stages) > 1:
        names = ", ".join(stage.label for stage in stages)
        text = f"it carries {len(stages)} stage labels: {names}"
        yield Flaw(ref, FlawCode.SEVERAL_STAGES, text, leftovers(pipeline, thread))
    elif not stages and thread.issue.open and _fell_out(thread, pipeline):
        stood = stands_in(pipeline, thread)[0]
        text = f"it carries no stage label; by its cards it stands in {stood!r}"
        yield Flaw(ref, FlawCode.NO_STAGE, text)
    elif stages and stages[0].closes and thread.issue.open:
        text = f"it is in {stages[0].label!r} but still open"
        yield Flaw(ref, FlawCode.OPEN_AT_THE_END, text, (CloseIssue(),))


def _fell_out(thread: Thread, pipeline: Pipeline) -> bool:
    """Whether its cards know where it stands and its labels do not."""
    homes = stands_in(pipeline, thread)
    return bool(homes) and thread.issue.labels.isdisjoint(homes)


def _cards(thread: Thread) -> Iterator[Flaw]:
    for comment in thread.comments:
        mark = parse_mark(comment.body) if comment.by_writer else None  # strangers may say anything
        if isinstance(mark, UnknownMark):
            text = f"comment {comment.id} looks like a card but is left alone: {mark.why}"
            yield Flaw(thread.issue.ref, FlawCode.UNREADABLE_CARD, text)


def _stage_called(pipeline: Pipeline, name: str) -> Stage | None:
    return next((stage for stage in pipeline.stages if stage.name == name), None)
