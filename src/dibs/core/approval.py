"""Approvals: which text a person approved, in which visit of a gate's stage, and whether it counts.

A handler, or a person, posts a `Plan` on the issue. One digest (`text_of`) names the title, the
body and the plan: an approval names this digest, so an edit of any of the three voids the approval.
The reason: the author of an issue may change its text, and whoever may write may edit a plan, and
only the text that a person has read may be worked on under an approval.

A `Visit` is one stay of an issue in the stage of a gate. It begins when a run or a person moves the
issue there. An approval of an earlier visit opens nothing.

A `Ruling` is a person's yes or no: the mark of `dibs approve` and `dibs reject`, or a comment that
begins with `/approve` or `/reject`. A comment without a digest means the text as it was when the
comment was written, and counts only where the tracker tells when a text was changed.

The label of the gate, put on by hand, is a weaker yes: it names no text. It counts only if a person
put the label on in this visit, and the plan is older. Where a tracker keeps no history of labels,
it counts as long as the issue has no ruling for the stage.

`Approval` in `pipeline` says whose rulings count. This module decides how rulings and plans are
spelt, and refuses to know how a tracker proves who wrote a comment.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import Card, CardState, parse_mark
from dibs.core.durations import format_instant
from dibs.core.eligibility import APPROVE, GATE_KINDS, REJECT, is_ruling
from dibs.core.ids import RunId, ServerTime, StageName, later
from dibs.core.issue import Comment, Issue, Labelling, Snapshot
from dibs.core.lease import Outcome, Try
from dibs.core.marker import (
    VERSION,
    marks,
    plain,
    quoted,
    read_line,
    shortened,
    starts_as,
    write_line,
)
from dibs.core.pipeline import Approval, ApprovalGate, Pipeline, SignedGate, Stage

APPROVED, REJECTED, EXPIRED, _PLAN, _LABELLED = GATE_KINDS
LONGEST_PLAN = 60_000
"""The longest plan, in characters: GitHub takes comments of 65,536."""
FIRST_VISIT = "first"
_DIGITS = 32
_UNEDITED = timedelta(seconds=1)
"""Trackers may stamp a comment that nobody edited with two times so far apart."""


# Plans


class PostedPlan(Struct, frozen=True):
    """A plan in a comment by somebody who may write."""

    text: str
    stage: StageName
    """The stage in which the plan was made."""
    run: RunId
    """The run that posted the plan; empty if a person did."""
    by: str
    at: ServerTime
    edited_at: ServerTime
    as_posted: bool
    """Whether the text is the one that was posted: else somebody edited it since."""
    comment: int


def render_plan(stage: StageName, run: str, by: str, text: str) -> str:
    """The comment with a plan.

    The plan stands in a block of code: so the reader sees every character that the next handler
    gets, and nothing in it is a link, a mention or hidden.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    fence = "~" * (3 + max((len(run) for run in re.findall("~+", text)), default=0))
    fields = [("stage", stage), ("run", run), ("by", shortened(by, 300))]
    line = write_line(_PLAN, [*fields, ("text", _digest(text)), ("v", str(VERSION))])
    asks = f"An approver answers with a comment: `{APPROVE}`, or `{REJECT}` and why."
    return f"{line}\nA plan by {quoted(by)}. {asks}\n\n{fence}markdown\n{text}\n{fence}"


def plans(snapshot: Snapshot) -> tuple[PostedPlan, ...]:
    """The plans on the issue, the oldest first.

    The text is the block of the comment; all below the mark, if anything stands beside the block.
    """
    found: list[PostedPlan] = []
    for comment, _, fields in marks(snapshot.comments, (_PLAN,)):
        rest = comment.body.replace("\r\n", "\n").partition("\n")[2]
        block = re.search(r"^(~{3,})markdown\n(.*?)\n?^\1$", rest, re.DOTALL | re.MULTILINE)
        whole = block is not None and not rest[block.end() :].strip()
        text = block[2] if block is not None and whole else rest
        plan = PostedPlan(
            text=text,
            stage=StageName(fields.get("stage", "")),
            run=RunId(fields.get("run", "")),
            by=fields.get("by", ""),
            at=comment.created_at,
            edited_at=comment.updated_at,
            as_posted=_digest(text) == fields.get("text"),
            comment=comment.id,
        )
        found.append(plan)
    return tuple(found)


def _digest(text: str) -> str:
    from hashlib import sha256  # loads OpenSSL: not at every start

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def text_of(issue: Issue, plan: PostedPlan | None = None) -> str:
    """A digest of title, body and plan: the name of the text in an approval."""
    text = f"{len(issue.title)}:{issue.title}"
    if plan is not None:
        return _digest(f"plan {text}{len(issue.body)}:{issue.body}{plan.text}")
    return _digest(text + issue.body)


# Visits


class Visit(Struct, frozen=True):
    """One stay of an issue in the stage of a gate."""

    name: str
    """The run that led the issue here, or the time at which a person moved it."""
    began_at: ServerTime
    """By the tracker's clock."""
    by_run: bool = False
    """Whether a run began it: its card may have been written later in the same instant."""

    def covers(self, moment: ServerTime) -> bool:
        """Whether the moment is in this visit, and not before it."""
        return moment > self.began_at or (moment == self.began_at and not self.by_run)


def visit_of(snapshot: Snapshot, tries: Sequence[Try], stage: Stage, pipeline: Pipeline) -> Visit:
    """The present visit of the issue to the stage.

    It began with the last run that worked in another stage or moved the issue out of this one, or
    with the last time since that a person put the stage's label on.
    """
    visit = Visit(FIRST_VISIT, snapshot.issue.created_at)
    elsewhere = [one for one in tries if one.stage != stage.name or one.outcome is Outcome.ADVANCED]
    if elsewhere:
        # The first card of each run counts: a copy of an old card begins no old visit again.
        run = next(reversed(dict.fromkeys(one.run for one in elsewhere)))
        last = next(one for one in elsewhere if one.run == run)
        card = _card_of(snapshot, last.run)
        ended_at = card.updated_at if card else last.ended_at or snapshot.now
        visit = Visit(last.run, ended_at, by_run=True)
    by_hand = [
        one
        for one in labelled_by_people(snapshot, pipeline)
        if one.label == stage.label and one.at > visit.began_at
    ]
    if by_hand:
        at = max(one.at for one in by_hand)
        visit = Visit(f"at {format_instant(at)}", at)
    return visit


_PAINTING = timedelta(minutes=1)
"""So long after the last edit of a card may the labels of its ending still be put on."""


def labelled_by_people(snapshot: Snapshot, pipeline: Pipeline) -> list[Labelling]:
    """When people put labels of stages and gates on the issue, the oldest first.

    The labels of runs are left out: those of the time that a card covers, with a minute for the
    labels of its ending, and the first label after a card which its ending leads to, however late a
    sweep paints it.
    """
    labels = {label for stage in pipeline.stages for label in stage.entry_labels}
    stages = {stage.name: stage for stage in pipeline.stages}
    labelled = sorted(snapshot.issue.labelled, key=lambda one: one.at)
    runs: list[tuple[ServerTime, ServerTime]] = []
    painted: list[Labelling] = []
    for comment in snapshot.comments:
        mark = parse_mark(comment.body) if comment.by_writer else None
        if mark is not None:
            # A sweep puts the label of a vanished holder's stage on again, after the ttl.
            painting = _PAINTING
            if isinstance(mark, Card) and mark.state is not CardState.RELEASED:
                painting += 2 * mark.ttl
            runs.append((comment.created_at, later(comment.updated_at, painting)))
        if isinstance(mark, Card):
            # A sweep paints the ending of a dead run however late: the first such label is the
            # run's.
            own, ending = stages.get(mark.stage), mark.ending
            into = stages.get(ending.next) if ending is not None and ending.next else None
            for stage in (own if own and own.gives_way else None, into):
                after = (one for one in labelled if one.at > comment.created_at)
                theirs = (one for one in after if stage and one.label in stage.entry_labels)
                painted += [one for one in (next(theirs, None),) if one is not None]
    found = [
        one
        for one in labelled
        if one.label in labels
        and one not in painted
        and not any(start < one.at <= end for start, end in runs)
    ]
    return sorted((*found, *_labelled_by_command(snapshot)), key=lambda one: one.at)


def render_labelled(add: Sequence[str], by: str) -> str:
    """The mark of labels that a person put on with `dibs label`."""
    names = shortened(",".join(add))
    line = write_line(_LABELLED, [("by", shortened(by, 300)), ("add", names), ("v", str(VERSION))])
    return f"{line}\n{quoted(by)} put on: {', '.join(map(quoted, add))}"


def _labelled_by_command(snapshot: Snapshot) -> Iterator[Labelling]:
    for comment, _, fields in marks(snapshot.comments, (_LABELLED,)):
        for label in fields.get("add", "").split(","):
            yield Labelling(label, comment.author or fields.get("by", ""), comment.created_at)


# Rulings


class RulingKind(StrEnum):
    APPROVED = APPROVED
    REJECTED = REJECTED


class Void(StrEnum):
    """Why a ruling does not count."""

    EDITED = "its comment was edited; it counts in a comment of its own"
    UNSIGNED_RELAY = "a relay wrote it, and did not sign it"
    UNSIGNED = "it is not signed"
    HALF_DIGEST = "its digest is not whole"
    EARLIER_VISIT = "it is of an earlier visit"
    OTHER_TEXT = "it is for another text"
    TEXT_CHANGED = "the text was changed after it"
    NO_DIGEST = "it names no digest, and this tracker does not tell when a text was changed"
    FLEET = "an account of the fleet gave it"
    NO_APPROVER = "its author is not one of [approval] approvers"
    OWN_WORK = "its author asked for the work or had a hand in it, and four_eyes wants another"
    BY_RULING = "rulings decide, and none counts"
    BY_COMMAND = "an approval put it on, and that approval does not count"
    SEVERAL = "several people must approve"
    NOT_ON = "nobody put it on"


_OF_THE_TEXT = (Void.OTHER_TEXT, Void.TEXT_CHANGED, Void.NO_DIGEST)


class Ruling(Struct, frozen=True):
    """A person's yes or no at a gate."""

    kind: RulingKind
    by: str
    """The account that wrote the comment, where the tracker proves it; else the name given."""
    at: ServerTime
    text: str = ""
    """The digest in the ruling; empty for the text as it was at that time."""
    visit: str = ""
    """The visit in the ruling; empty for the visit of that time."""
    note: str = ""
    signed: bool = False
    void: Void | None = None
    """Why the ruling does not count; None if it does."""


def render_ruling(kind: RulingKind, gate: "AtGate", by: str, note: str = "") -> str:
    """The mark by which a person approves or rejects what stands at the gate."""
    fields = [("stage", gate.stage.name), ("text", gate.text), ("visit", gate.visit.name)]
    fields += [("v", str(VERSION)), ("by", by), ("note", note)]
    line = write_line(kind.value, [(key, shortened(value, 1500)) for key, value in fields])
    words = f": {quoted(note)}" if note else "."
    how = f"`{plain(by) or 'somebody'}`, out of `{plain(gate.stage.name)}`"
    return f"{line}\n{kind.value.capitalize()} by {how}{words}"


def render_expired(gate: "AtGate") -> str:
    """The mark of a gate at which nobody answered in time."""
    fields = [("stage", gate.stage.name), ("visit", gate.visit.name), ("text", gate.text)]
    line = write_line(EXPIRED, [*fields, ("v", str(VERSION))])
    return f"{line}\nNobody answered in time at the gate of `{plain(gate.stage.name)}`."


def render_released(text: str, stage: Stage, by: str) -> str:
    """The mark of a person who read a changed text, in a stage without a gate."""
    fields = [("stage", stage.name), ("text", text), ("v", str(VERSION))]
    line = write_line(APPROVED, [*fields, ("by", shortened(by, 300))])
    return f"{line}\nApproved by `{plain(by) or 'somebody'}`, out of `{plain(stage.name)}`."


def _rulings(snapshot: Snapshot, stage: Stage, approval: Approval) -> Iterator[Ruling]:
    """The rulings on the issue that are for this stage, the oldest first, valid or not."""
    ordered = sorted(snapshot.comments, key=lambda comment: (comment.created_at, comment.id))
    for comment in ordered:
        if not comment.by_writer or not is_ruling(comment.body):
            continue
        edited = comment.updated_at - comment.created_at > _UNEDITED
        void = Void.EDITED if edited else None
        by = comment.author
        if starts_as(comment.body, (APPROVED, REJECTED)):
            try:
                kind, pairs = read_line(comment.body)
                fields = dict(pairs.rest)
            except ValueError:
                continue
            if fields.get("stage") != stage.name or not fields.get("text"):
                continue
            if not approval.proven or by.casefold() in approval.relays:
                by = fields.get("by", "")
                if approval.proven and not comment.signed:
                    void = void or Void.UNSIGNED_RELAY
            text, visit, note = fields["text"], fields.get("visit", ""), fields.get("note", "")
        else:
            first, _, more = comment.body.strip().partition("\n")
            word, _, words = (part.strip() for part in first.partition(" "))
            kind, visit = (APPROVED if word == APPROVE else REJECTED), ""
            text, note = ("", f"{words}\n{more}".strip()) if kind == REJECTED else (words, "")
            if text and not re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", text):
                void = void or Void.HALF_DIGEST
        yield Ruling(
            RulingKind(kind), by, comment.created_at, text, visit, note, comment.signed, void
        )


def not_entitled(by: str, snapshot: Snapshot, pipeline: Pipeline) -> Void | None:
    """Why this person's rulings do not count; None if they do."""
    approval, name = pipeline.approval, by.casefold()
    if approval.proven and name in pipeline.people.fleet:
        return Void.FLEET
    if approval.approvers and name not in approval.approvers:
        return Void.NO_APPROVER
    if not approval.four_eyes:
        return None
    hands = {snapshot.issue.author, *(plan.by for plan in plans(snapshot))}
    for comment in snapshot.comments:
        mark = parse_mark(comment.body) if comment.by_writer else None
        if isinstance(mark, Card):
            hands |= {mark.holder, comment.author if approval.proven else ""}
    return Void.OWN_WORK if name in {one.casefold() for one in hands if one} else None


# The gate


class AtGate(Struct, frozen=True):
    """What stands at a gate: the text, the visit, and the rulings on them."""

    stage: Stage
    visit: Visit
    plan: PostedPlan | None
    text: str
    """The digest that an approval has to name."""
    rulings: tuple[Ruling, ...]
    """Of this stage, the oldest first; those that do not count say why."""
    needed: int
    label_void: Void | None
    """Why the label of the gate alone opens nothing; None if a person's label opens it."""
    labelled_by: str
    since: ServerTime
    """When the wait for an answer began."""

    @property
    def approvals(self) -> tuple[Ruling, ...]:
        """The rulings that count and approve: of each person the last one."""
        return tuple(one for one in self._last() if one.kind is RulingKind.APPROVED)

    @property
    def rejection(self) -> Ruling | None:
        """The newest rejection that counts, unless that person approved since."""
        rejected = [one for one in self._last() if one.kind is RulingKind.REJECTED]
        return max(rejected, key=lambda one: one.at, default=None)

    @property
    def missing(self) -> int:
        """How many approvals are missing; 0 if the gate is open."""
        missing = max(0, self.needed - len(self.approvals))
        if self.rejection is not None:
            return max(1, missing)
        return missing if self.label_void is not None else 0

    def _last(self) -> tuple[Ruling, ...]:
        return tuple({one.by.casefold(): one for one in self.rulings if not one.void}.values())


def at_gate(snapshot: Snapshot, tries: Sequence[Try], stage: Stage, pipeline: Pipeline) -> AtGate:
    """What stands at the gate of this stage, by a complete reading of the issue."""
    issue, visit = snapshot.issue, visit_of(snapshot, tries, stage, pipeline)
    plan = next(
        (
            one
            for one in reversed(plans(snapshot))
            if one.run == visit.name or (not one.run and visit.covers(one.at))
        ),
        None,
    )
    edited = issue.edited_at is not None and issue.edited_at > issue.created_at
    changes = (issue.edited_at if edited else None, plan.edited_at if plan is not None else None)
    changed_at = max((at for at in changes if at is not None), default=None)
    text = text_of(issue, plan)
    rulings = tuple(
        replace(
            one,
            void=one.void
            or _void(one, text, visit, stage, issue.edited_at, changed_at)
            or not_entitled(one.by, snapshot, pipeline),
        )
        for one in _rulings(snapshot, stage, pipeline.approval)
    )
    labelled, label_void = _by_label(snapshot, stage, visit, changed_at, pipeline, rulings)
    known = visit.name != FIRST_VISIT or issue.labelled
    return AtGate(
        stage=stage,
        visit=visit,
        plan=plan,
        text=text,
        rulings=rulings,
        needed=pipeline.approval.needed,
        label_void=label_void,
        labelled_by=labelled.by if labelled is not None else "",
        since=visit.began_at if known else max(visit.began_at, issue.updated_at),
    )


def _void(
    ruling: Ruling,
    text: str,
    visit: Visit,
    stage: Stage,
    edited_at: ServerTime | None,
    changed_at: ServerTime | None,
) -> Void | None:
    """Why a ruling of any person does not count for this text and visit.

    `edited_at`: when the issue's text was last changed, if known; `changed_at`: that or the plan's.
    """
    here = ruling.visit == visit.name if ruling.visit else visit.covers(ruling.at)
    if not here:
        return Void.EARLIER_VISIT
    if ruling.kind is RulingKind.REJECTED:
        return None
    if ruling.text and ruling.text != text:
        return Void.OTHER_TEXT
    if isinstance(stage.gate, SignedGate) and not (ruling.signed and ruling.text and ruling.visit):
        return Void.UNSIGNED
    if not ruling.text and edited_at is None:
        return Void.NO_DIGEST
    late = not ruling.text and changed_at is not None and ruling.at <= changed_at
    return Void.TEXT_CHANGED if late else None


def _by_label(
    snapshot: Snapshot,
    stage: Stage,
    visit: Visit,
    changed_at: ServerTime | None,
    pipeline: Pipeline,
    rulings: Sequence[Ruling],
) -> tuple[Labelling | None, Void | None]:
    """Who put the gate's label on by hand, and why that opens nothing.

    A command that approves puts the label on as well: the first label after a ruling is the
    command's, and no word of its own.
    """
    gate, approval = stage.gate, pipeline.approval
    assert isinstance(gate, ApprovalGate), "only such a stage has something at its gate"
    if gate.label not in snapshot.issue.labels:
        return None, Void.NOT_ON
    history = (*snapshot.issue.labelled, *_labelled_by_command(snapshot))
    labelled = sorted((one for one in history if one.label == gate.label), key=lambda one: one.at)
    yes = [one.at for one in rulings if one.kind is RulingKind.APPROVED]
    commands = [next((one for one in labelled if one.at >= at), None) for at in yes]
    by_hand = [one for one in labelled if one not in commands]
    last = by_hand[-1] if by_hand else None
    if isinstance(gate, SignedGate):
        return last, Void.UNSIGNED
    if approval.needed > 1:
        return last, Void.SEVERAL
    if labelled and (last or labelled[-1]).at < visit.began_at:
        return last, Void.EARLIER_VISIT
    if last is None and (labelled or rulings):
        return None, Void.BY_COMMAND if labelled else Void.BY_RULING
    if last is not None and changed_at is not None and changed_at >= last.at:
        return last, Void.TEXT_CHANGED
    return last, not_entitled(last.by if last is not None else "", snapshot, pipeline)


class Passage(Struct, frozen=True):
    """How the issue last left the stage of a gate, for the handler that works it now."""

    verdict: str
    by: str
    at: ServerTime
    note: str
    text: str
    plan: PostedPlan | None
    plan_changed: bool
    """Whether the plan may have been edited since the gate let the issue through."""

    def as_data(self) -> dict[str, str]:
        """As a handler reads it."""
        when = format_instant(self.at)
        found = {"verdict": self.verdict, "by": self.by, "at": when, "note": self.note}
        return {**found, "text": self.text}


def last_passage(snapshot: Snapshot, tries: Sequence[Try], pipeline: Pipeline) -> Passage | None:
    """The last time a run moved the issue out of the stage of a gate, after a ruling or a timeout.

    None if there was none, or if a person moved the issue without a ruling.
    """
    gated = {one.name: one for one in pipeline.stages if isinstance(one.gate, ApprovalGate)}
    moves = [
        place
        for place, one in enumerate(tries)
        if one.stage in gated and one.outcome is Outcome.ADVANCED
    ]
    card = _card_of(snapshot, tries[moves[-1]].run) if moves else None
    if card is None:
        return None
    issue, then = snapshot.issue, card.updated_at
    past = replace(
        snapshot,
        comments=tuple(one for one in snapshot.comments if one.created_at <= then),
        issue=replace(issue, labelled=tuple(one for one in issue.labelled if one.at <= then)),
    )
    gate = at_gate(past, tries[: moves[-1]], gated[tries[moves[-1]].stage], pipeline)
    expired = any(
        fields.get("visit") == gate.visit.name for _, _, fields in marks(past.comments, (EXPIRED,))
    )
    counted = [one for one in gate.rulings if one.void is None or one.void in _OF_THE_TEXT]
    if expired:
        last = Ruling(RulingKind.REJECTED, "", then, gate.text)
    elif counted:
        last = counted[-1]
    elif gate.label_void is None:
        last = Ruling(RulingKind.APPROVED, gate.labelled_by, then)
    else:
        return None
    plan = gate.plan
    return Passage(
        verdict=EXPIRED if expired else last.kind.value,
        by=last.by,
        at=last.at,
        note=last.note,
        text=last.text,
        plan=plan,
        plan_changed=plan is not None and plan.edited_at >= card.created_at,
    )


def passage_for(
    snapshot: Snapshot, tries: Sequence[Try], stage: Stage, pipeline: Pipeline
) -> Passage | None:
    """What the handler of this stage learns: the answer at its own gate, or at the last one."""
    if not isinstance(stage.gate, ApprovalGate):
        return last_passage(snapshot, tries, pipeline)
    gate = at_gate(snapshot, tries, stage, pipeline)
    if not gate.approvals:
        plan = gate.plan
        return Passage(APPROVED, gate.labelled_by, snapshot.now, "", "", plan, plan_changed=False)
    last = gate.approvals[-1]
    return Passage(APPROVED, last.by, last.at, last.note, gate.text, gate.plan, plan_changed=False)


def _card_of(snapshot: Snapshot, run: RunId) -> Comment | None:
    """The comment with the card of this run."""
    for comment in snapshot.comments:
        card = parse_mark(comment.body) if comment.by_writer else None
        if isinstance(card, Card) and card.run == run:
            return comment
    return None


def present_text(snapshot: Snapshot, tries: Sequence[Try], pipeline: Pipeline) -> str:
    """The digest of the text that the next handler gets, in a stage without a gate."""
    passage = last_passage(snapshot, tries, pipeline)
    return text_of(snapshot.issue, passage.plan if passage is not None else None)


def times_sent_back(snapshot: Snapshot, stage: Stage) -> int:
    """In how many visits the issue was rejected or not answered, since it last was approved."""
    visits: list[str] = []
    for _, kind, fields in marks(snapshot.comments, (APPROVED, REJECTED, EXPIRED)):
        if fields.get("stage") != stage.name:
            continue
        if kind == APPROVED:
            visits = []
        elif (name := fields.get("visit", "")) not in visits:
            visits.append(name)
    return len(visits)
