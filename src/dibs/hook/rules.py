"""Which issues a text says that it closes, in the words and spellings that GitHub honours.

Nine keywords, in any case, with or without a colon, each before one reference: `#12`, `GH-12`,
`owner/repo#12` or an issue's address. Every issue needs a keyword of its own, anywhere in a line;
"does not close #12" closes it, because nobody reads sentences. A pull request's text is Markdown,
so code, comments and quotations in it close nothing; a commit's message is not.

Refuses to know which repository a bare number is in.

What git tells a pre-push hook, and which issues a text means that is pushed somewhere.

Decides how git's lines are read, in which repository a bare number is, and who a commit says made
it. Refuses to know what is in the commits: git does.

Whether a push that closes an issue may go out, given who holds the issue and who pushes.

Refused is what would be work done twice: the issue is in flight, or somebody has an open pull
request for it, and neither is the pusher's. A holder is let through while its lease is current; one
whose lease is over is not, because another may have the issue by now. What keeps workers from
picking an issue (a label, an assignee, a gate) keeps nobody from pushing.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import timedelta

from msgspec import Struct

from dibs.core.agent_dialect import fields_of, firing_holder, firing_of
from dibs.core.durations import format_instant
from dibs.core.eligibility import ReasonCode, Surroundings, abandoned_at, judge
from dibs.core.errors import LeaseLost
from dibs.core.following import LinkedPull, PullFate
from dibs.core.foreign import foreign_claims
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Thread
from dibs.core.lease import Record, Standing
from dibs.core.pipeline import Pipeline

LONGEST_TEXT = 262_144
"""Four times what GitHub lets a pull request say. Of a longer text both its ends are read."""

_KEYWORD = r"(?<!\w)(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)"
_NUMBER = r"([1-9][0-9]{0,17})(?![0-9A-Za-z_])"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_SPACE = r"(?:[ \t]{1,20}|[ \t]{0,20}\r?\n[ \t]{0,20})"  # a line may end there, a paragraph may not
_CLOSING = re.compile(
    rf"{_KEYWORD}(?: {{0,3}}:)?{_SPACE}[\[<]?"
    rf"(?:(?:({_NAME}/{_NAME})?#|GH-){_NUMBER}"
    rf"|https?://[^\s/]{{1,253}}/({_NAME}/{_NAME})/issues/{_NUMBER})",
    re.IGNORECASE,
)

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_QUOTED = re.compile(r" {0,3}>")
_INDENTED = re.compile(r"(?: {4}| {0,3}\t)")
_LISTED = re.compile(r"\s{0,40}(?:[-*+]|[0-9]{1,9}[.)])\s")
_TICKS = re.compile(r"`+")
_GAP = "\x00"
"""Stands where something was left out: what it parted stays apart."""
_PARAGRAPHS = re.compile(rf"\n[ \t{_GAP}]*\n")
_HIDDEN = tuple(
    (re.compile(start), re.compile(end, re.IGNORECASE))
    for start, end in (
        ("<!--", "-->|\\Z"),
        ("(?i:<pre\\b)", "</pre>"),
        ("(?i:<code\\b)", "</code>"),
    )
)
"""Where hidden text begins and ends. A comment that nobody ends goes on to the end of the text."""


def closed_by_commit(message: str) -> tuple[IssueRef, ...]:
    """What a commit closes once it is on the default branch. A bare number has no repository."""
    return _closed_by(_bounded(message))


def closed_by_pull(body: str) -> tuple[IssueRef, ...]:
    """What a pull request closes once it is merged, by its text."""
    return _closed_by(_spoken(_bounded(body)))


def _bounded(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2  # trailers stand at the end
    return f"{text[:half]}\n\n{text[-half:]}"


def _closed_by(text: str) -> tuple[IssueRef, ...]:
    found = (IssueRef(one[1] or one[3] or "", one[2] or one[4]) for one in _CLOSING.finditer(text))
    return tuple(dict.fromkeys(found))


# Markdown, as far as it hides words from GitHub


def _spoken(text: str) -> str:
    """The text without code, comments and quotations."""
    shown = "\n".join(_outside_blocks(text.splitlines()))
    for start, end in _HIDDEN:
        shown = _without(shown, start, end)
    return f"\n{_GAP}\n".join(_without_code(paragraph) for paragraph in _PARAGRAPHS.split(shown))


def _outside_blocks(lines: list[str]) -> Iterator[str]:
    """Lines that are in no fenced or indented code and in no quotation."""
    fence = ""
    after_blank, in_list = True, False
    for line in lines:
        opened = _FENCE.match(line)
        if fence:
            if opened and opened[1].startswith(fence) and not line[opened.end() :].strip():
                fence = ""
            yield _GAP
            continue
        if opened:
            fence = opened[1]
        elif _QUOTED.match(line):
            pass
        elif not (after_blank and not in_list and _INDENTED.match(line)):
            yield line
            if line.strip():
                in_list = bool(_LISTED.match(line)) or (in_list and line[:1] in " \t")
                after_blank = False
            else:
                after_blank = True
            continue
        yield _GAP


def _without(text: str, start: re.Pattern[str], end: re.Pattern[str]) -> str:
    """What stands between the two is left out."""
    kept: list[str] = []
    place = 0
    while (found := start.search(text, place)) and (over := end.search(text, found.end())):
        kept.append(text[place : found.start()])
        place = over.end()
    return _GAP.join([*kept, text[place:]])


def _without_code(paragraph: str) -> str:
    """Code between as many backticks as began it; without such an end they are backticks."""
    runs = list(_TICKS.finditer(paragraph))
    places: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        places.setdefault(len(run[0]), []).append(number)
    kept: list[str] = []
    at = number = 0
    while number < len(runs):
        alike = places[len(runs[number][0])]
        following = bisect_right(alike, number)
        if following == len(alike):
            number += 1
            continue
        kept.append(paragraph[at : runs[number].start()])
        at = runs[alike[following]].end()
        number = alike[following] + 1
    return _GAP.join([*kept, paragraph[at:]])


_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?([^/:]*)(?::[0-9]*)?/(.*)", re.IGNORECASE)
_SCP = re.compile(r"(?:[^@/:]+@)?([^/:]{2,}):(?!//)(.*)")  # one letter would be a drive
_NAMED = re.compile(r"(?:^|/)([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?)(?:\.git)?/*$")
_TRAILER = re.compile(r"^Agent-(Codename|Firing-Id):[ \t]{0,20}(\S{1,200})[ \t]*$", re.MULTILINE)
_BRANCH = "refs/heads/"


class NotGits(ValueError):
    """It is not what git writes to a pre-push hook."""


class RefUpdate(Struct, frozen=True):
    """One line of what is pushed."""

    source: str
    """Our name for it, as it was typed; empty if it is to be deleted."""
    commit: str
    target: str
    """The ref on the remote."""
    before: str
    """What the remote has there now."""

    @property
    def deletes(self) -> bool:
        return not self.commit.strip("0")

    @property
    def creates(self) -> bool:
        return not self.before.strip("0")

    @property
    def branch(self) -> str | None:
        """The branch on the remote that is written; None for tags and the like."""
        written = self.target.startswith(_BRANCH) and not self.deletes
        return self.target.removeprefix(_BRANCH) if written else None


def parse_updates(said: bytes) -> tuple[RefUpdate, ...]:
    """Git's lines. Raises NotGits for anything else."""
    lines = said.decode("utf-8", "surrogateescape").split("\n")
    if lines.pop():
        raise NotGits("the last line has no end")
    return tuple(_update(line) for line in lines)


def _update(line: str) -> RefUpdate:
    # What was typed may have spaces in it, as ":/some words" has; the rest cannot.
    words = line.rsplit(" ", 3)
    if len(words) != 4 or not all(_OBJECT.fullmatch(words[at]) for at in (1, 3)):
        raise NotGits(f"{line[:80]!r} is not a line about a ref")
    return RefUpdate(*words)


# Which issues are meant


def repository_at(address: str) -> str | None:
    """The `owner/repo` that a remote's address ends in; None for a folder of this machine."""
    place = _ADDRESS.match(address) or _SCP.match(address)
    if place is None or not place[1]:
        return None
    named = _NAMED.search(place[2].rstrip("/"))
    return named[1] if named else ""


def numbered_in(address: str, tracked: Sequence[str]) -> str | None:
    """In which of the tracked repositories a bare number is that is pushed there.

    In the one that is pushed to, or that it is a fork of by its name: what is pushed to a fork ends
    up there. A folder says nothing, so it is the only one that is tracked. None if it is in none.
    """
    only = tracked[0] if len(tracked) == 1 else None
    if only == "":
        return only  # a backlog that has no repositories
    named = repository_at(address)
    if named is None:
        return only
    alike = [one for one in tracked if one.casefold() == named.casefold()]
    forked = [one for one in tracked if _bare(one) == _bare(named)]
    found = alike or (forked if len(forked) == 1 else [])
    return found[0] if found else None


def _bare(repo: str) -> str:
    return repo.rpartition("/")[2].casefold()


def tracked_issue(ref: IssueRef, tracked: Sequence[str], numbered: str | None) -> IssueRef | None:
    """The issue as the tracker names it; None if it is not the tracker's."""
    if not ref.repo:
        return IssueRef(numbered, ref.key) if numbered is not None else None
    for repo in tracked:
        if repo.casefold() == ref.repo.casefold():
            return IssueRef(repo, ref.key)
    return None


# Who a commit says made it


def firing_in(message: str) -> tuple[str, str] | None:
    """Codename and firing id out of the trailers that a runner of the state machine writes."""
    said = {match[1]: match[2] for match in _TRAILER.finditer(message)}
    return (said["Codename"], said["Firing-Id"]) if len(said) > 1 else None


_MOST_NAMED = 3
_IN_FLIGHT = frozenset(
    {
        ReasonCode.HELD,
        ReasonCode.BID_PENDING,
        ReasonCode.IN_GRACE,
        ReasonCode.CLAIM_LABEL_ONLY,
    }
)


class Pusher(Struct, frozen=True):
    """Who pushes, as far as it can be told."""

    runs: frozenset[RunId] = frozenset()
    """The leases it says that it has."""
    issue: IssueRef | None = None
    """What the only one of them is for, if that is said."""
    fence: Fence | None = None
    """Of that one."""
    firings: frozenset[tuple[str, str]] = frozenset()
    """Codename and firing id, as its commits say."""
    branches: frozenset[str] = frozenset()
    """What it pushes to."""
    repo: str = ""
    """Where; empty if nobody can say."""


class Objection(Struct, frozen=True):
    """Why a push may not go out."""

    issue: IssueRef
    code: str
    text: str
    look: str


class Judged(Struct, frozen=True):
    objections: tuple[Objection, ...] = ()
    remarks: tuple[str, ...] = ()
    """What the pusher should know, though it may push."""


def judge_push(
    thread: Thread,
    standing: Standing,
    pulls: Sequence[LinkedPull],
    pipeline: Pipeline,
    grace: timedelta,
    pusher: Pusher,
) -> Judged:
    """Of one issue that the push would close. The thread must be complete."""
    held = standing.live
    others = tuple(_others(thread.issue.ref, pulls, pusher)) if pipeline.people.pulls else ()
    if held is not None and _is_held_by(held, pusher):
        if stale := tuple(_stale_fence(held, pusher)):
            return Judged(stale)
        return Judged(remarks=tuple(_remarks(held, others)))
    reasons = judge(thread, standing, pipeline, Surroundings(grace=grace)).reasons
    look = f"dibs show {thread.issue.ref.typed} tells who has it and until when"
    in_flight = [
        Objection(thread.issue.ref, reason.code.value, reason.text, look)
        for reason in reasons
        if reason.code in _IN_FLIGHT
    ]
    if not in_flight and standing.record is None:
        in_flight = list(_labels(thread, pipeline))
    foreign = _foreign(thread, pipeline, pusher)
    return Judged((*_lost(thread, standing, pusher), *in_flight, *foreign, *others))


def _is_held_by(held: Record, pusher: Pusher) -> bool:
    firing = firing_of(held.lease.holder)
    return held.lease.run in pusher.runs or (firing is not None and _fired(firing, pusher))


def _fired(firing: tuple[str, str], pusher: Pusher) -> bool:
    """Whether the commits are of this firing; one that claims again counts its turns.

    A card says a long name in short.
    """
    codename, name = firing
    first, again, turn = name.rpartition("~")
    names = {name, first if again and turn.isdigit() else name}
    known = {*pusher.firings, *(firing_of(firing_holder(*one)) for one in pusher.firings)}
    return any((codename, one) in known for one in names)


def _stale_fence(held: Record, pusher: Pusher) -> Iterator[Objection]:
    fence = held.lease.fence
    if pusher.fence is not None and held.lease.run in pusher.runs and pusher.fence != fence:
        yield Objection(
            held.lease.issue,
            LeaseLost.code,
            f"your fence is {pusher.fence}, and the lease's is {fence}",
            f"dibs show {held.lease.issue.typed} shows the lease",
        )


def _remarks(held: Record, others: Sequence[Objection]) -> Iterator[str]:
    if held.revocation is not None:
        by = held.revocation.by or "an operator"
        yield f"{held.lease.issue}: {by} asked for your lease back: {held.revocation.reason}"
    for other in others:
        yield f"{other.issue}: {other.text}"


def _lost(thread: Thread, standing: Standing, pusher: Pusher) -> Iterator[Objection]:
    """A lease that ran out is refused, also if nobody has taken it up yet. One that was ended is
    just over.
    """
    ref = thread.issue.ref
    known = {attempt.run: attempt for attempt in standing.tries}
    for run in sorted(pusher.runs):
        attempt = known.get(run)
        if attempt is None and pusher.issue != ref:
            continue
        if attempt is not None and attempt.outcome is not None:
            continue
        ended = attempt.ended_at if attempt is not None else None
        since = f"ran out at {format_instant(ended)}" if ended else "is not there"
        yield Objection(
            ref,
            LeaseLost.code,
            f"the lease of your run {run} {since}",
            f"another may have it by now: dibs show {ref.typed} tells; claim it again first",
        )


def _labels(thread: Thread, pipeline: Pipeline) -> Iterator[Objection]:
    """A stage's working label that no card explains counts as long as `claimed` does."""
    found = sorted(thread.issue.labels.intersection(pipeline.working_labels))
    if found and thread.now < abandoned_at(thread.issue, pipeline):
        yield Objection(
            thread.issue.ref,
            ReasonCode.CLAIM_LABEL_ONLY.value,
            f"it carries {found[0]!r}, but no card says whose it is",
            "ask whoever put the label on; without a card it stops counting one ttl later",
        )


def _foreign(thread: Thread, pipeline: Pipeline, pusher: Pusher) -> Iterator[Objection]:
    if not pipeline.people.markers:
        return
    bodies = {comment.id: comment.body for comment in thread.comments}
    ttl = pipeline.people.marker_ttl
    claims = foreign_claims(thread.comments, now=thread.now, ttl=ttl)
    for claim in claims[:_MOST_NAMED]:
        fields = fields_of(bodies[claim.comment])
        if _fired((fields.get("codename", ""), fields.get("firing_id", "")), pusher):
            continue
        yield Objection(
            thread.issue.ref,
            ReasonCode.FOREIGN_CLAIM.value,
            f"another tool ({claim.tool}) says that {claim.who} has it since "
            f"{format_instant(claim.since)}",
            f"look at comment {claim.comment}: the tool takes its marker back when it is done",
        )


def _others(ref: IssueRef, pulls: Sequence[LinkedPull], pusher: Pusher) -> Iterator[Objection]:
    """Open pull requests from other branches than are pushed to. Whose account it is does not
    matter: a person and the person's agents often share one.
    """
    theirs = [pull for pull in pulls if pull.fate is PullFate.OPEN and not _adds_to(pull, pusher)]
    for pull in theirs[:_MOST_NAMED]:
        branch = f" from branch {pull.head}" if pull.head else ""
        yield Objection(
            ref,
            ReasonCode.PULL_OPEN.value,
            f"{pull.author.login} has an open pull request for it: {pull.ref}{branch}",
            f"look at {pull.ref}: add to it, or wait until it is merged or closed",
        )


def _adds_to(pull: LinkedPull, pusher: Pusher) -> bool:
    """Whether the push goes to the branch that the pull request comes from, here or in a fork."""
    there = pusher.repo.casefold()
    away = there not in ("", pull.ref.repo.casefold())
    return bool(pull.head) and pull.head in pusher.branches and pull.foreign is away
