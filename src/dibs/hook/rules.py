"""The rules of the pre-push hook. Pure: from texts and values to a judgement.

`closed_by_commit` and `closed_by_pull` find the issues that a text closes, with the keywords and
spellings that GitHub accepts: nine keywords, in any case, with or without a colon, each before one
reference: `#12`, `GH-12`, `owner/repo#12` or an issue's address. Every issue needs a keyword of its
own, anywhere in a line; "does not close #12" closes it, because GitHub does not parse sentences. A
pull request's text is Markdown, so code, comments and quotations in it close no issue; a commit's
message is not Markdown.

`parse_updates` reads the lines that git writes to a pre-push hook; `numbered_in` decides in which
repository a bare number is; `firing_in` reads from a commit which agent made it. The commits
themselves are read by git, in `dibs.hook.git`.

`judge_push` decides whether a push that closes an issue may go out, given the issue's holder and
the pusher. It refuses a push that would duplicate work: the issue is in flight, another person has
an open pull request for it, or it is in a stage that follows a pull request. A holder may push
while its lease is current. A holder whose lease is over may not, because another holder may have
the issue by now. Other labels, an assignee or a gate, which keep workers from picking an issue, do
not keep anyone from pushing.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import timedelta

from msgspec import Struct

from dibs.core.agent_dialect import fields_of, firing_holder, firing_of, first_turn
from dibs.core.durations import format_instant
from dibs.core.eligibility import ReasonCode, Surroundings, Whose, abandoned_at, judge, reasons_with
from dibs.core.errors import LeaseLost
from dibs.core.following import LinkedPull, PullFate, decided_by, entered_at, heeded, undecided
from dibs.core.foreign import ForeignClaim, foreign_claims
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Snapshot
from dibs.core.lease import Outcome, Standing
from dibs.core.pipeline import FollowsPull, Pipeline, WhosePulls

LONGEST_TEXT = 262_144
"""Four times the longest text of a pull request. Of a longer text, only the two ends are read."""

_KEYWORD = r"(?<!\w)(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)"
_NUMBER = r"([1-9][0-9]{0,17})(?![0-9A-Za-z_])"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_SPACE = r"(?:[ \t]{1,20}|[ \t]{0,20}\r?\n[ \t]{0,20})"  # a line may end here, a paragraph may not
_ISSUE = (
    rf"(?:(?:({_NAME}/{_NAME})?#|GH-){_NUMBER}"
    rf"|https?://[^\s/]{{1,253}}/({_NAME}/{_NAME})/issues/{_NUMBER})"
)
_CLOSING = re.compile(rf"{_KEYWORD}(?: {{0,3}}:)?{_SPACE}[\[<]?{_ISSUE}", re.IGNORECASE)
_NAMING = re.compile(rf"(?<![\w/&#.-]){_ISSUE}", re.IGNORECASE)

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_QUOTED = re.compile(r" {0,3}>")
_INDENTED = re.compile(r"(?: {4}| {0,3}\t)")
_LISTED = re.compile(r"\s{0,40}(?:[-*+]|[0-9]{1,9}[.)])\s")
_TICKS = re.compile(r"`+")
_GAP = "\x00"
"""Replaces text that was left out, so the words before and after it stay separate."""
_PARAGRAPHS = re.compile(rf"\n[ \t{_GAP}]*\n")
_HIDDEN = tuple(
    (re.compile(start), re.compile(end, re.IGNORECASE))
    for start, end in (
        ("<!--", "-->|\\Z"),
        ("(?i:<pre\\b)", "</pre>"),
        ("(?i:<code\\b)", "</code>"),
    )
)
"""Begin and end of hidden text. A comment without an end hides the rest of the text."""


def closed_by_commit(message: str) -> tuple[IssueRef, ...]:
    """The issues closed by a commit on the default branch. A bare number has no repository."""
    return _found(_CLOSING, _bounded(message))


def closed_by_pull(body: str) -> tuple[IssueRef, ...]:
    """The issues closed by a pull request with this text, when it is merged."""
    return _found(_CLOSING, _shown(body))


def named_by_pull(body: str) -> tuple[IssueRef, ...]:
    """The issues that a pull request with this text names, with a keyword or without."""
    return _found(_NAMING, _shown(body))


def _shown(body: str) -> str:
    """The text without its code, comments and quotations, in which GitHub sees no issue."""
    shown = "\n".join(_outside_blocks(_bounded(body).splitlines()))
    for start, end in _HIDDEN:
        parts: list[str] = []
        place = 0
        while (found := start.search(shown, place)) and (over := end.search(shown, found.end())):
            parts.append(shown[place : found.start()])
            place = over.end()
        shown = _GAP.join([*parts, shown[place:]])
    paragraphs = (_without_code(paragraph) for paragraph in _PARAGRAPHS.split(shown))
    return f"\n{_GAP}\n".join(paragraphs)


def _bounded(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2  # trailers are at the end
    return f"{text[:half]}\n\n{text[-half:]}"


def _found(pattern: re.Pattern[str], text: str) -> tuple[IssueRef, ...]:
    matches = pattern.finditer(text)
    found = (IssueRef(match[1] or match[3] or "", match[2] or match[4]) for match in matches)
    return tuple(dict.fromkeys(found))


# The parts of Markdown that hide words from GitHub


def _outside_blocks(lines: list[str]) -> Iterator[str]:
    """Replace the lines of fenced code, indented code and quotations by gaps."""
    fence = ""
    after_blank, in_list = True, False
    for line in lines:
        opened, shown = _FENCE.match(line), _GAP
        if fence:
            if opened and opened[1].startswith(fence) and not line[opened.end() :].strip():
                fence = ""
        elif opened:
            fence = opened[1]
        elif not _QUOTED.match(line) and (in_list or not (after_blank and _INDENTED.match(line))):
            shown, after_blank = line, not line.strip()
            if not after_blank:
                in_list = bool(_LISTED.match(line)) or (in_list and line[:1] in " \t")
        yield shown


def _without_code(paragraph: str) -> str:
    """Replace code spans by gaps.

    A run of backticks opens a span if a later run of the same length closes it; otherwise the run
    is plain text. Takes linear time, apart from a binary search for each run.
    """
    runs = list(_TICKS.finditer(paragraph))
    places: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        places.setdefault(len(run[0]), []).append(number)
    parts: list[str] = []
    at = number = 0
    while number < len(runs):
        same_length = places[len(runs[number][0])]
        following = bisect_right(same_length, number)
        if following == len(same_length):
            number += 1
            continue
        parts.append(paragraph[at : runs[number].start()])
        at = runs[same_length[following]].end()
        number = same_length[following] + 1
    return _GAP.join([*parts, paragraph[at:]])


_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?([^/:]*)(?::[0-9]*)?/(.*)", re.IGNORECASE)
_SCP = re.compile(r"(?:[^@/:]+@)?([^/:]{2,}):(?!//)(.*)")  # a single letter would be a drive
_NAMED = re.compile(r"(?:^|/)([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?)(?:\.git)?/*$")
_TRAILER = re.compile(r"^Agent-(Codename|Firing-Id):[ \t]{0,20}(\S{1,200})[ \t]*$", re.MULTILINE)
_BRANCH = "refs/heads/"


class NotGits(ValueError):
    """The input does not have the format in which git writes to a pre-push hook."""


class RefUpdate(Struct, frozen=True):
    """A ref to be pushed, from a line of git's input."""

    source: str
    """The local name, as the user typed it; for a deletion, git writes `(delete)`."""
    commit: str
    target: str
    """The ref on the remote."""
    before: str
    """The commit of the ref on the remote now."""

    @property
    def deletes(self) -> bool:
        return not self.commit.strip("0")

    @property
    def creates(self) -> bool:
        return not self.before.strip("0")

    @property
    def branch(self) -> str | None:
        """The branch to be written on the remote; None for a deletion, a tag or another ref."""
        written = self.target.startswith(_BRANCH) and not self.deletes
        return self.target.removeprefix(_BRANCH) if written else None


def parse_updates(data: bytes) -> tuple[RefUpdate, ...]:
    """Parse the lines that git writes to a pre-push hook. Raises `NotGits`."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if lines.pop():
        raise NotGits("the last line has no end")
    updates = []
    for line in lines:
        # Only the first field may contain spaces: the name as typed, such as ":/some words".
        words = line.rsplit(" ", 3)
        if len(words) != 4 or not all(_OBJECT.fullmatch(words[at]) for at in (1, 3)):
            raise NotGits(f"{line[:80]!r} is not a line about a ref")
        updates.append(RefUpdate(*words))
    return tuple(updates)


# The repository of an issue


def repository_at(address: str) -> str | None:
    """The `owner/repo` at the end of a remote's address; empty if the address has none.

    None for a folder on the local machine.
    """
    place = _ADDRESS.match(address) or _SCP.match(address)
    if place is None or not place[1]:
        return None
    named = _NAMED.search(place[2].rstrip("/"))
    return named[1] if named else ""


def server_at(address: str) -> str:
    """The host in a remote's address; empty for a folder on the local machine."""
    place = _ADDRESS.match(address) or _SCP.match(address)
    return place[1].casefold() if place is not None else ""


def numbered_in(address: str, tracked: Sequence[str]) -> str | None:
    """The tracked repository of a bare issue number in a push to this address; None if unclear.

    The repository with the address's name, or the only tracked repository with the same name under
    another owner: a push to a fork ends up in the original. For a folder, which has no name: the
    only tracked repository.
    """
    only = tracked[0] if len(tracked) == 1 else None
    if only == "":
        return only  # the backlog has no repositories
    named = repository_at(address)
    if named is None:
        return only
    same = [repo for repo in tracked if repo.casefold() == named.casefold()]
    forked = [repo for repo in tracked if _without_owner(repo) == _without_owner(named)]
    found = same or (forked if len(forked) == 1 else [])
    return found[0] if found else None


def _without_owner(repo: str) -> str:
    return repo.rpartition("/")[2].casefold()


def tracked_issue(ref: IssueRef, tracked: Sequence[str], numbered: str | None) -> IssueRef | None:
    """The issue with the tracker's spelling of its repository; None if not in the tracker."""
    same = (repo for repo in tracked if repo.casefold() == ref.repo.casefold())
    repo = next(same, None) if ref.repo else numbered
    return None if repo is None else IssueRef(repo, ref.key)


# The author of a commit


def firing_in(message: str) -> tuple[str, str] | None:
    """Codename and firing id from the trailers written by a runner of the state machine."""
    trailers = {match[1]: match[2] for match in _TRAILER.finditer(message)}
    return (trailers["Codename"], trailers["Firing-Id"]) if len(trailers) > 1 else None


_MOST_NAMED = 3
_IN_FLIGHT = reasons_with(lambda meaning: meaning.whose is Whose.RUN) - {ReasonCode.UNPAINTED}


class Pusher(Struct, frozen=True):
    """The facts available about the pusher."""

    runs: frozenset[RunId] = frozenset()
    """The runs whose leases the pusher claims to have."""
    issue: IssueRef | None = None
    """The issue of the only run, if given."""
    fence: Fence | None = None
    """The fence of the only run, if given."""
    firings: frozenset[tuple[str, str]] = frozenset()
    """Codename and firing id, from the commits."""
    branches: frozenset[str] = frozenset()
    """The branches on the remote to which the push goes."""
    repo: str = ""
    """The repository to which the push goes; empty if unknown."""
    pulls_for: frozenset[IssueRef] = frozenset()
    """The issues that open pull requests from these branches name."""


class Objection(Struct, frozen=True):
    issue: IssueRef
    code: str
    text: str
    look: str


class Judged(Struct, frozen=True):
    objections: tuple[Objection, ...] = ()
    remarks: tuple[str, ...] = ()
    """Notes for the pusher, who may push."""


def judge_push(
    snapshot: Snapshot,
    standing: Standing,
    pulls: Sequence[LinkedPull],
    pipeline: Pipeline,
    grace: timedelta,
    pusher: Pusher,
) -> Judged:
    """Judge a push which would close the snapshot's issue. The snapshot must be complete."""
    ref, held = snapshot.issue.ref, standing.live
    others: list[Objection] = []
    if pipeline.people.pulls is not WhosePulls.NONE:
        # Open pull requests from branches to which the push does not go, here or in a fork. The
        # account does not matter: a person and the person's agents often share one.
        pushed_to = pusher.repo.casefold()
        own, foreign = list[LinkedPull](), list[LinkedPull]()
        for pull in pulls:
            if pull.fate is PullFate.OPEN and pipeline.people.heeds(by_writer=pull.by_writer):
                in_fork = pushed_to not in ("", pull.ref.repo.casefold())
                is_own = pull.head and pull.head in pusher.branches and pull.foreign is in_fork
                (own if is_own else foreign).append(pull)
        for pull in foreign[:_MOST_NAMED]:
            branch = f" from branch {pull.head}" if pull.head else ""
            text = f"{pull.author.login} has an open pull request for it: {pull.ref}{branch}"
            look = f"look at {pull.ref}: add to it, or wait until it is merged or closed"
            others.append(Objection(ref, ReasonCode.PULL_OPEN.value, text, look))
        label = _label_of_pull(snapshot, standing, pulls, pipeline, pusher)
        if label is not None and not own and not others:
            text = f"it carries {label!r}: a pull request is open for it"
            look = "look for the pull request: add to its branch, or wait for its end"
            others.append(Objection(ref, ReasonCode.PULL_OPEN.value, text, look))
    firing = None if held is None else firing_of(held.lease.holder)
    own_firing = firing is not None and _made_by_firing(firing, pusher)
    if held is not None and (own_firing or held.lease.run in pusher.runs):
        issue, fence = held.lease.issue, held.lease.fence
        if pusher.fence not in (None, fence) and held.lease.run in pusher.runs:
            text = f"your fence is {pusher.fence}, and the lease's is {fence}"
            look = f"dibs show {issue.typed} shows the lease"
            return Judged((Objection(issue, LeaseLost.code, text, look),))
        remarks = [f"{other.issue}: {other.text}" for other in others]
        if held.revocation is not None:
            by = held.revocation.by or "an operator"
            reason = held.revocation.reason
            remarks.insert(0, f"{issue}: {by} asked for your lease back: {reason}")
        return Judged(remarks=tuple(remarks))
    return Judged((*_objections(snapshot, standing, pipeline, grace, pusher), *others))


def _objections(
    snapshot: Snapshot, standing: Standing, pipeline: Pipeline, grace: timedelta, pusher: Pusher
) -> Iterator[Objection]:
    """Objections to a push by a pusher without the issue's lease, except open pull requests."""
    ref = snapshot.issue.ref
    tries = {attempt.run: attempt for attempt in standing.tries}
    for run in sorted(pusher.runs):
        attempt = tries.get(run)
        if attempt is None and pusher.issue != ref:
            continue
        if attempt is not None and attempt.outcome is not None:
            continue  # the holder ended it: the lease is over, but not lost
        # A lease that ran out is lost, even if no other holder has claimed the issue yet.
        ended = attempt.ended_at if attempt is not None else None
        since = f"ran out at {format_instant(ended)}" if ended else "is not there"
        text = f"the lease of your run {run} {since}"
        look = f"another may have it by now: dibs show {ref.typed} tells; claim it again first"
        yield Objection(ref, LeaseLost.code, text, look)

    bodies = {comment.id: comment.body for comment in snapshot.comments}
    claims: dict[ForeignClaim, bool] = {}
    """Whether the pusher made each claim of another tool."""
    for claim in foreign_claims(
        snapshot.comments, now=snapshot.now, ttl=pipeline.people.marker_ttl
    ):
        fields = fields_of(bodies[claim.comment])
        key = (fields.get("codename", ""), fields.get("firing_id", ""))
        own = _made_by_firing(key, pusher)
        if own or pipeline.people.markers:
            claims[claim] = own
    reasons = judge(snapshot, standing, pipeline, Surroundings(grace=grace)).reasons
    look = f"dibs show {ref.typed} tells who has it and until when"
    # The other tool has put the label on: its comment says whose the label is.
    unproven = {ReasonCode.CLAIM_LABEL_ONLY} if claims else set()
    in_flight = [reason for reason in reasons if reason.code in _IN_FLIGHT - unproven]
    for reason in in_flight:
        yield Objection(ref, reason.code.value, reason.text, look)
    # A stage's working label without a card counts as long as the label `claimed` does.
    labels = sorted(snapshot.issue.labels.intersection(pipeline.working_labels))
    unexplained = labels and not in_flight and not claims and standing.record is None
    if unexplained and snapshot.now < abandoned_at(snapshot.issue, pipeline):
        text = f"it carries {labels[0]!r}, but no card says whose it is"
        look = "ask whoever put the label on; without a card it stops counting one ttl later"
        yield Objection(ref, ReasonCode.CLAIM_LABEL_ONLY.value, text, look)

    others = [claim for claim, own in claims.items() if not own]
    for claim in others[:_MOST_NAMED]:
        since = format_instant(claim.since)
        text = f"another tool ({claim.tool}) says that {claim.who} has it since {since}"
        look = f"look at comment {claim.comment}: the tool takes its marker back when it is done"
        yield Objection(ref, ReasonCode.FOREIGN_CLAIM.value, text, look)


def _label_of_pull(
    snapshot: Snapshot,
    standing: Standing,
    pulls: Sequence[LinkedPull],
    pipeline: Pipeline,
    pusher: Pusher,
) -> str | None:
    """The label of a stage that follows a pull request; None for the author of the pull request.

    The author pushes to the branch of a pull request for the issue, or had the lease which moved
    the issue to the stage. A label does not count on a closed issue, nor after the end of a pull
    request: the next sweep moves the issue on.
    """
    issue, comments, record = snapshot.issue, snapshot.comments, standing.record
    author = issue.ref in pusher.pulls_for
    if record is not None and record.ending and record.ending.outcome is Outcome.ADVANCED:
        firing = firing_of(record.lease.holder)
        author |= record.lease.run in pusher.runs
        author |= firing is not None and _made_by_firing(firing, pusher)
    for stage in pipeline.stages_of(issue.labels) if issue.open and not author else ():
        if isinstance(stage.follows, FollowsPull):
            left = undecided(heeded(pulls, pipeline.people), stage.name, comments)
            since = entered_at(stage.name, comments)
            if decided_by(left, since, issue_open=issue.open) is None:
                return stage.label
    return None


def _made_by_firing(firing: tuple[str, str], pusher: Pusher) -> bool:
    """Whether the pushed commits were made by this firing.

    A card shortens a long id, so the ids of the commits are compared in full and shortened.
    """
    shortened = (firing_of(firing_holder(*pushed)) for pushed in pusher.firings)
    return not {*pusher.firings, *shortened}.isdisjoint((firing, first_turn(firing)))
