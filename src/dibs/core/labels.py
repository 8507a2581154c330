"""The labels of an issue: changes that show a lease and its ending, and that mend a wrong picture.

Label changes are ordered values: add first, remove after, `claimed` last. So an issue is never seen
without a stage, and the next reader can finish after a crash anywhere in between. No function here
writes: services hand the effects to a tracker. The whole label set is never replaced: labels of
other bots would be lost.

A late painter: labels cannot be changed on a condition everywhere, so a worker that slept may paint
over an issue which others have moved on since. The cards still show where the issue stands, and so
the traces of a late painter can be recognised: the label of a stage to which an ending led and
which runs have left behind, beside the label of the stage where the issue stands. A person may have
put such a label on as well, so `leftovers` takes it off only after a ttl without a change.

The comment on a parking lists each failed attempt, for the person who looks at the issue. There is
one comment for each parking: it carries the run that parked the issue, so that a second painter
finds it. The comment is made of the cards alone, so every painter would write the same. A handler's
output is no part of it: output may hold anything, and everybody reads comments.

`diagnose` names where the labels contradict the leases. It repairs only labels that follow from the
leases; where a person's intent is in doubt, the flaw is named and left to a person.

`label_looks` gives colours and descriptions, by the use that the pipeline makes of a label. Whether
the label exists is the tracker's business.
"""

from collections.abc import Callable, Iterator, Mapping
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
    ANY_TTL,
    Marks,
    cards_that_counted,
    read_marks,
    said_shown_at,
    shows_ending,
    tries_on_comments,
    tries_on_picture,
)
from dibs.core.foreign import by_runners
from dibs.core.granter import CONTROL_LABEL
from dibs.core.ids import IssueRef, RunId, StageName, later
from dibs.core.issue import Issue, Snapshot
from dibs.core.lease import Outcome, Record, Standing, Try, asked
from dibs.core.marker import VERSION, plain, quoted, write_line
from dibs.core.pipeline import ApprovalGate, Dialect, FollowsPull, Pipeline, Stage
from dibs.core.presets import EVERY, IMPLEMENT


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


def labels_after(effects: Effects, labels: frozenset[str]) -> frozenset[str]:
    """The labels of an issue with these labels, once the effects are applied."""
    for effect in effects:
        if isinstance(effect, AddLabels):
            labels |= set(effect.labels)
        elif isinstance(effect, RemoveLabels):
            labels -= set(effect.labels)
    return labels


def claim_effects(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    """Show that a lease is held."""
    wanted = (pipeline.labels.claimed, *((stage.working_label,) if stage.working_label else ()))
    unwanted = (stage.label,) if stage.gives_way and pipeline.swaps_labels else ()
    return (*_adding(wanted, labels), *_removing(unwanted, labels))


def fallen_out(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    """Put back the stage label of an issue which carries neither `claimed` nor a stage label.

    The label gave way to `claimed`, and `claimed` is gone: a worker which painted late may have
    taken off the last label by which a query could find the issue.
    """
    shown = pipeline.labels.claimed in labels or pipeline.stages_of(labels)
    return () if shown or not stage.gives_way else _adding((stage.label,), labels)


def ending_effects(pipeline: Pipeline, record: Record, labels: frozenset[str]) -> Effects:
    """Show the ending of a lease. Idempotent: run again on a half-painted issue, it finishes it."""
    ending = record.ending
    assert ending is not None, "only an ended lease is painted"
    try:
        stage = pipeline.stage(record.lease.stage)
    except NoSuchStage:  # the stage was renamed or dropped from the configuration since
        return _removing((pipeline.labels.claimed,), labels)
    if ending.outcome is not Outcome.ADVANCED:
        parked = (pipeline.labels.parked,) if ending.outcome is Outcome.PARKED else ()
        return (*_adding(parked, labels), *_going_back(pipeline, stage, labels))
    try:
        target = pipeline.target(stage.name, ending.next)
    except IllegalMove:  # the move was dropped from the configuration since
        return _going_back(pipeline, stage, labels)
    if moved_by_hand(pipeline, record, labels):  # a person's word is the last one
        return (
            *_removing((stage.label,), labels),
            *_letting_go(pipeline, stage, labels),
        )
    return (
        *_adding((target.label,), labels),
        *_removing(stage.entry_labels, labels),
        *((CloseIssue(),) if target.closes else ()),
        *_letting_go(pipeline, stage, labels),
    )


def moved_by_hand(
    pipeline: Pipeline, record: Record, labels: frozenset[str]
) -> tuple[StageName, ...]:
    """The stages into which a person put the issue during a lease that ends with an advance."""
    ending = record.ending
    if ending is None or ending.outcome is not Outcome.ADVANCED:
        return ()
    try:
        own = (record.lease.stage, pipeline.target(record.lease.stage, ending.next).name)
    except (NoSuchStage, IllegalMove):  # the stage or the move was dropped from the configuration
        return ()
    return tuple(stage.name for stage in pipeline.stages_of(labels) if stage.name not in own)


def _letting_go(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    working = _removing((stage.working_label,), labels) if stage.working_label else ()
    return (*working, *_removing((pipeline.labels.claimed,), labels))


def _going_back(pipeline: Pipeline, stage: Stage, labels: frozenset[str]) -> Effects:
    """Leave the issue in the stage: put back a label which gave way, unless the issue carries a
    stage label.
    """
    moved = pipeline.stages_of(labels)
    back = _adding((stage.label,), labels) if stage.gives_way and not moved else ()
    return (*back, *_letting_go(pipeline, stage, labels))


def freeing_effects(pipeline: Pipeline, issue: Issue, worked: StageName | None = None) -> Effects:
    """Take off the labels of a vanished holder: all working labels, then `claimed`.

    `worked` is the stage of the lease, if a card names one: a label which gave way is put back, but
    not on a closed issue, because a person who reopens a closed issue would find it queued.
    """
    labels = issue.labels
    stage = pipeline.worked_stage(labels, worked)
    gave_way = stage is not None and stage.gives_way and issue.open
    return (
        *(_adding((stage.label,), labels) if stage is not None and gave_way else ()),
        *_removing(pipeline.working_labels, labels),
        *_removing((pipeline.labels.claimed,), labels),
    )


def _adding(wanted: tuple[str, ...], labels: frozenset[str]) -> Effects:
    missing = tuple(label for label in wanted if label not in labels)
    return (AddLabels(missing),) if missing else ()


def _removing(unwanted: tuple[str, ...], labels: frozenset[str]) -> Effects:
    present = tuple(label for label in unwanted if label in labels)
    return (RemoveLabels(present),) if present else ()


_MOST_LISTED = 10


def parking_comment(pipeline: Pipeline, record: Record, snapshot: Snapshot) -> str | None:
    """The comment with the failed attempts of a parked issue.

    None if the ending is no parking, or if a writer has posted the comment already. Notes stand as
    code, so that no link or mention in them has effect, and are masked once more: the card of an
    older worker may hold a secret.
    """
    ending, run = record.ending, record.lease.run
    if ending is None or ending.outcome is not Outcome.PARKED:
        return None
    line = write_line("parked", [("run", run), ("v", str(VERSION))])
    opening = line.removesuffix("-->")  # a signature may follow
    if any(comment.by_writer and comment.body.startswith(opening) for comment in snapshot.comments):
        return None
    try:
        stage = pipeline.stage(record.lease.stage)
    except NoSuchStage:  # the stage was renamed or dropped from the configuration since
        return None
    marks = read_marks(snapshot.comments, ANY_TTL)
    cards = {posted.card.run: posted.card for posted in marks.cards}
    if run in cards:  # a store decides before the card shows the ending
        cards[run] = replace(cards[run], ending=ending)
    label = plain(pipeline.labels.parked)
    if asked(ending):
        return (
            f"{line}\nSet aside for a person in `{plain(stage.name) or 'no stage'}`, without a "
            f"failure: the handler {_words(ending.note)}\n\n"
            f"Answer here, then take the label `{label}` off: a worker starts afresh."
        )
    failed = _counted_failures(marks, record, snapshot, stage)
    left_out = len(failed) - _MOST_LISTED
    listed = [
        f"{number}. {_attempt_line(attempt, cards.get(attempt.run))}"
        for number, attempt in enumerate(failed, 1)
    ]
    if left_out > 0:
        listed = [f"- {left_out} more before these", *listed[-_MOST_LISTED:]]
    times = f"{len(failed)} failed attempt{'s' * (len(failed) != 1)}"
    again = f"{stage.attempts} attempt{'s' * (stage.attempts != 1)}"
    return "\n".join(
        [
            line,
            f"Set aside for a person after {times} in `{plain(stage.name) or 'no stage'}`:",
            "",
            *listed,
            "",
            f"`dibs runs {record.lease.issue.typed}` shows them, and where a handler's output is.",
            f"Once a person has taken the label `{label}` off, it starts afresh with {again}.",
        ]
    )


def _counted_failures(
    marks: Marks, record: Record, snapshot: Snapshot, stage: Stage
) -> tuple[Try, ...]:
    """The failed attempts which led to the parking.

    The run which parked the issue failed as well, unless all attempts had failed before: then the
    run had only to park the issue.
    """
    shown = any(posted.card.fence for posted in marks.cards)
    tries = (
        tries_on_picture(marks, record)
        if shown
        else tries_on_comments(marks, ANY_TTL, snapshot.now)
    )
    run = record.lease.run
    before = [attempt for attempt in tries if attempt.run != run]
    failed = failed_tries(before, stage.name)
    if len(failed) >= stage.attempts:
        return failed
    return (*failed, Try(run, stage.name, record.lease.expires_at, Outcome.PARKED))


def _words(note: str) -> str:
    from dibs.core.words import masked

    return quoted(masked(note))


def _attempt_line(attempt: Try, card: Card | None) -> str:
    when = format_instant(attempt.ended_at) if attempt.ended_at is not None else "now"
    who = plain(card.holder if card else "") or "an unnamed worker"
    note = card.ending.note if card is not None and card.ending is not None else ""
    if attempt.outcome is None:
        why = "it vanished without a word"
    elif not note:
        why = "it failed and said nothing more"
    else:
        why = _words(note)
    return f"{when}, `{who}` (run `{plain(attempt.run)}`): {why}"


class Painting(Struct, frozen=True):
    """Effects which show an ending, and effects which follow once the card is marked as shown."""

    showing: Effects = ()
    letting_go: Effects = ()
    """Take `claimed` off: after the card is marked as shown."""
    shown: bool = False
    """The ending was marked as shown before."""
    left_in: tuple[StageName, ...] = ()
    """The ending is an advance, but a person put the issue here meanwhile: here it stays."""
    putting_right: Callable[[frozenset[str]], Effects] = lambda _: ()
    """The effects for a painter that notices only afterwards that it was late (`put_right`), given
    the labels that it added.
    """

    @property
    def labels_differ(self) -> bool:
        return any(isinstance(effect, AddLabels | RemoveLabels) for effect in self.showing)


def ending_paint(pipeline: Pipeline, record: Record, snapshot: Snapshot) -> Painting:
    """The effects that show this ending: labels, closing the issue, and the comment on a parking.

    If the ending is already marked as shown: only take `claimed` off, and restore a stage label if
    none is left. From then on any stage label is a person's later word. But no person leaves an
    issue without a stage: a late painter has taken off a label which another worker had put back.
    The restored label is of the stage where the cards show the issue.
    """
    claimed, labels = pipeline.labels.claimed, snapshot.issue.labels
    last = RemoveLabels((claimed,))
    right = partial(put_right, pipeline, snapshot)
    if shows_ending(snapshot.comments, record.lease.run):
        homes = stands_in(pipeline, snapshot)
        lost = homes and labels.isdisjoint(homes) and not pipeline.stages_of(labels)
        restoring = (AddLabels(homes[:1]),) if lost else ()
        letting_go = (last,) if claimed in labels else ()
        return Painting(restoring, letting_go, shown=True, putting_right=right)
    left_behind = _left_behind(pipeline, record, snapshot)
    meant = labels - set(left_behind)
    effects = ending_effects(pipeline, record, meant)
    tidying = (RemoveLabels(left_behind),) if left_behind else ()
    done = (last,) if snapshot.issue.open else (last, CloseIssue())
    parking = parking_comment(pipeline, record, snapshot)
    posting = (PostComment(parking),) if parking is not None else ()
    showing = (*(effect for effect in effects if effect not in done), *tidying, *posting)
    left_in = moved_by_hand(pipeline, record, meant)
    return Painting(showing, (last,), left_in=left_in, putting_right=right)


def being_painted(ending: Record, patience: timedelta) -> bool:
    """Whether an ending is unpainted, and young: most likely the holder is still painting.

    Other workers leave a young ending alone and come back: to paint an ending twice is a waste, and
    costs another comment.
    """
    return ending.unpainted and just_ended(ending, patience)


def just_ended(record: Record, patience: timedelta) -> bool:
    """Whether the lease has an ending, less than `patience` (at most a ttl) ago.

    Labels from the same read may then be older than the card.
    """
    young = min(patience, record.lease.ttl)
    return record.ending is not None and record.as_of < later(record.lease.expires_at, young)


def just_led_on(record: Record, stage: StageName, snapshot: Snapshot, unseen: timedelta) -> bool:
    """Whether the lease advanced the issue out of this stage, and the ending was marked as shown
    less than `unseen` ago: the labels of this snapshot may still show the stage.

    A read is not one moment. Where labels are seen up to `unseen` late, they may be older than the
    card beside them which marks them as changed. After `unseen`, the labels are a person's word.
    """
    ending = record.ending
    if ending is None or ending.outcome is not Outcome.ADVANCED:
        return False
    shown_at = said_shown_at(snapshot.comments, record.lease.run)
    left = record.lease.stage == stage and ending.next != stage
    return left and shown_at is not None and snapshot.now < later(shown_at, unseen)


def leftovers(pipeline: Pipeline, snapshot: Snapshot) -> Effects:
    """Take off stage labels which a late painter left, or a runner that lost a race, if the label
    of the issue's stage is on too.

    Only if the issue has not changed for a ttl: a person who moves an issue adds a label and takes
    another off, and gets time between the two.
    """
    homes = stands_in(pipeline, snapshot)
    if snapshot.issue.labels.isdisjoint(homes):
        return ()
    last = cards_that_counted(snapshot.comments)[-1].run
    stray = _late_labels(pipeline, snapshot) | _put_on_by_runners(pipeline, snapshot, last)
    stray -= set(homes)
    if not stray or snapshot.now < abandoned_at(snapshot.issue, pipeline):
        return ()
    return (RemoveLabels(tuple(sorted(stray))),)


def put_right(pipeline: Pipeline, snapshot: Snapshot, added: frozenset[str]) -> Effects:
    """Take back the stage labels which a late painter added, once the painter notices it was late.

    If no stage label is left, add the label of the stage where the last lease left the issue. Any
    further stage label on the issue was put on since, by another worker or a person, and stays.
    If no card shows where the issue stands, change no label.
    """
    homes = stands_in(pipeline, snapshot)
    if not homes:
        return ()
    stages = {stage.label for stage in pipeline.stages}
    stray = tuple(sorted((added & stages) - set(homes)))
    left = (snapshot.issue.labels & (stages | set(homes))) - set(stray)
    missing = () if left else (AddLabels(homes[:1]),)
    return (*missing, *((RemoveLabels(stray),) if stray else ()))


def _left_behind(pipeline: Pipeline, record: Record, snapshot: Snapshot) -> tuple[str, ...]:
    """Stage labels beside the stage of the lease which is now ending that are no person's word: a
    late painter put them on, or a runner that lost a race.
    """
    target = record.ending.next if record.ending is not None else None
    own = {stage.label for stage in pipeline.stages if stage.name in (record.lease.stage, target)}
    queued = _put_on_by_runners(pipeline, snapshot, record.lease.run) - own
    worked = {
        pipeline.labels.claimed if stage.gives_way else stage.label
        for stage in pipeline.stages
        if stage.name == record.lease.stage
    }
    # If a person took our stage's label off, the other labels on the issue are a person's.
    late = _late_labels(pipeline, snapshot) - own if worked & snapshot.issue.labels else set()
    return tuple(sorted(late | queued))


def _put_on_by_runners(pipeline: Pipeline, snapshot: Snapshot, run: RunId) -> set[str]:
    """The stage label put on by a runner of the issue-claim state machine since the run's card.

    A runner queues an issue after each lost race and each sweep, whether or not the issue was
    queued: the comments of the runner explain the label. If the tracker names the account of the
    last labelling, one of the comments must be by that account.
    """
    if not pipeline.stages_of(snapshot.issue.labels & {IMPLEMENT}):
        return set()
    cards = read_marks(snapshot.comments, ANY_TTL).cards
    card = next((posted for posted in cards if posted.card.run == run), None)
    if card is None:
        return set()
    since = by_runners(comment for comment in snapshot.comments if comment.id > card.id)
    queued = (one for one in snapshot.issue.labelled if one.label == IMPLEMENT)
    named = [one.by for one in queued if one.at >= card.created_at]
    theirs = not named or named[-1] in {comment.author for comment in since}
    return {IMPLEMENT} if since and theirs else set()


def _late_labels(pipeline: Pipeline, snapshot: Snapshot) -> set[str]:
    """Stage labels on the issue which a late painter or a late sweeper may have added.

    A painter adds the label of a stage to which a run led. A sweeper puts back the label of a stage
    in which a run worked, if the label gives way.
    """
    cards = cards_that_counted(snapshot.comments)
    endings = [card.ending for card in cards if card.ending is not None]
    reached = {ending.next for ending in endings if ending.next is not None}
    worked = {card.stage for card in cards}
    return {
        stage.label
        for stage in pipeline.stages
        if (stage.name in reached or (stage.gives_way and stage.name in worked))
        and stage.label in snapshot.issue.labels
    }


def stands_in(pipeline: Pipeline, snapshot: Snapshot) -> tuple[str, ...]:
    """The label of the stage of the last lease, or to which the last lease led; by the cards.

    For a lease without an ending in a stage that gives way: `claimed` first, then the label. Empty
    without a card, or if the pipeline does not have the stage.
    """
    cards = cards_that_counted(snapshot.comments)
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


class LabelLook(Struct, frozen=True):
    colour: str = "ededed"
    """Six hexadecimal digits."""
    description: str = ""
    """At most 100 characters: GitHub refuses longer descriptions."""


def label_looks(pipeline: Pipeline) -> Mapping[str, LabelLook]:
    """The looks of all labels of the pipeline."""
    marks = pipeline.labels
    looks = {
        marks.claimed: LabelLook("fbca04", "dibs: a lease is held; its card says whose"),
        marks.paused: LabelLook("d93f0b", "dibs: hands off, a person paused it"),
        marks.parked: LabelLook("b60205", "dibs: set aside for a person to look at"),
        CONTROL_LABEL: LabelLook("5319e7", "dibs: the log of who grants and what is paused"),
    }
    for blocker in sorted(pipeline.blockers):
        looks[blocker] = LabelLook("d93f0b", "dibs: workers leave it alone")
    for place, urgent in enumerate(pipeline.priorities, start=1):
        looks[urgent] = LabelLook("e99695", f"dibs: jumps the queue, urgency {place}")
    for stage in pipeline.stages:
        colour = "0e8a16" if stage.final else "1d76db"
        looks[stage.label] = LabelLook(colour, f"dibs: stage {stage.name}")
        if stage.working_label:
            worked = LabelLook("fef2c0", f"dibs: being worked, stage {stage.name}")
            looks[stage.working_label] = worked
        if isinstance(stage.gate, ApprovalGate):
            looks[stage.gate.label] = LabelLook("0e8a16", "dibs: a person approved it")
        if isinstance(stage.follows, FollowsPull) and stage.follows.authored:
            authored = LabelLook("c2e0c6", "dibs: a run of the fleet opened this pull request")
            looks[stage.follows.authored] = authored
    if pipeline.dialect is Dialect.AGENT:
        looks |= {label.name: LabelLook(label.color, label.description) for label in EVERY}
    return looks


class FlawCode(StrEnum):
    UNPAINTED_ENDING = "UNPAINTED_ENDING"
    CLAIMED_WITHOUT_LEASE = "CLAIMED_WITHOUT_LEASE"
    LEASE_WITHOUT_LABEL = "LEASE_WITHOUT_LABEL"
    SEVERAL_STAGES = "SEVERAL_STAGES"
    NO_STAGE = "NO_STAGE"
    OPEN_AT_THE_END = "OPEN_AT_THE_END"
    UNREADABLE_CARD = "UNREADABLE_CARD"
    NEARLY_FULL = "NEARLY_FULL"


class Flaw(Struct, frozen=True):
    issue: IssueRef
    code: FlawCode
    text: str
    repair: Effects = ()
    """Empty where only a person can decide."""


def diagnose(
    snapshot: Snapshot, standing: Standing, pipeline: Pipeline, *, most_comments: int | None = None
) -> tuple[Flaw, ...]:
    """Name each contradiction between labels and leases, with its repair.

    Names an open issue with nearly `most_comments` comments, too: soon no claim is possible. An
    unpainted ending explains all flaws of the labels, and is then the only flaw named.
    """
    if not snapshot.complete:
        return ()  # an incomplete list decides nothing
    ref, labels = snapshot.issue.ref, snapshot.issue.labels
    if standing.unpainted is not None:
        paint = ending_effects(pipeline, standing.unpainted, labels)
        text = "an ending was decided but its labels do not show it"
        return (Flaw(ref, FlawCode.UNPAINTED_ENDING, text, paint),)
    flaws = list(_lease_flaws(snapshot, standing, pipeline))
    stages = pipeline.stages_of(labels)
    if len(stages) > 1:
        names = ", ".join(stage.label for stage in stages)
        text = f"it carries {len(stages)} stage labels: {names}"
        flaws.append(Flaw(ref, FlawCode.SEVERAL_STAGES, text, leftovers(pipeline, snapshot)))
    elif not stages and snapshot.issue.open:
        homes = stands_in(pipeline, snapshot)
        if homes and labels.isdisjoint(homes):
            text = f"it carries no stage label; by its cards it stands in {homes[0]!r}"
            flaws.append(Flaw(ref, FlawCode.NO_STAGE, text))
    elif stages and stages[0].closes and snapshot.issue.open:
        text = f"it is in {stages[0].label!r} but still open"
        flaws.append(Flaw(ref, FlawCode.OPEN_AT_THE_END, text, (CloseIssue(),)))
    for comment in snapshot.comments:
        mark = parse_mark(comment.body) if comment.by_writer else None  # strangers may write junk
        if isinstance(mark, UnknownMark):
            text = f"comment {comment.id} looks like a card but is left alone: {mark.why}"
            flaws.append(Flaw(ref, FlawCode.UNREADABLE_CARD, text))
    count = snapshot.issue.comment_count
    if most_comments and snapshot.issue.open and count * 5 >= most_comments * 4:
        text = f"it has {count:,} of {most_comments:,} comments; go on in a new issue before"
        flaws.append(Flaw(ref, FlawCode.NEARLY_FULL, f"{text} it takes no further claim"))
    return tuple(flaws)


def _lease_flaws(snapshot: Snapshot, standing: Standing, pipeline: Pipeline) -> Iterator[Flaw]:
    ref, labels = snapshot.issue.ref, snapshot.issue.labels
    working = {stage.working_label for stage in pipeline.stages} & labels
    shown = pipeline.labels.claimed in labels or bool(working)
    if standing.live is not None:
        name = standing.live.lease.stage
        found = next((stage for stage in pipeline.stages if stage.name == name), None)
        missing = claim_effects(pipeline, found, labels) if found else ()
        if missing:
            text = f"{standing.live.lease.holder} holds it but its labels do not say so"
            yield Flaw(ref, FlawCode.LEASE_WITHOUT_LABEL, text, missing)
    elif shown and standing.bidding_until is None:
        if standing.record is None and snapshot.now < abandoned_at(snapshot.issue, pipeline):
            return  # no card explains the label yet: a claim may just be under way
        text = "its labels say claimed but no lease is live"
        worked = standing.record.lease.stage if standing.record is not None else None
        repair = freeing_effects(pipeline, snapshot.issue, worked)
        yield Flaw(ref, FlawCode.CLAIMED_WITHOUT_LEASE, text, repair)
