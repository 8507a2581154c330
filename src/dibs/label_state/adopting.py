"""Taking over a repository that runs on the published state machine, with what lies about in it.

Labels and comments stay as they are wherever they already say what they mean. Changed is only what
its rules leave behind: claims that are over, labels that nobody explains, more than one state at a
time, pull-request labels that nothing follows. What runs is left to run; where a person's intent is
in doubt, it is named and left to a person.

Done issue by issue, each in one trip and only if it is as it was seen: a run that dies in the
middle is finished by the next one, and one that has nothing to do writes nothing.

`issue_dedup_check`: what is known of an issue before anybody starts on it.

Judged by what a claim is judged by, so that the two cannot disagree. What cannot be read is not
claimable.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from dibs.core.agent_dialect import CLAIM_PREFIX, fields_of, firing_of
from dibs.core.card import Card, parse_mark
from dibs.core.durations import format_instant
from dibs.core.eligibility import PauseScope, Reason, ReasonCode, abandoned_at
from dibs.core.errors import DibsError, Misuse
from dibs.core.fold import confirmed
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Thread
from dibs.core.labels import AddLabels, Effects, RemoveLabels
from dibs.core.lease import Record
from dibs.core.pipeline import Dialect
from dibs.label_state import labels
from dibs.label_state.backlogs import Backlog, NoOrganisation, backlog_of, missing_labels
from dibs.label_state.claims import their_claims
from dibs.label_state.pauses import paused_by_file, paused_by_log
from dibs.label_state.stale import Stale, free, stale_on
from dibs.ports.tracker import IssueQuery
from dibs.services.effects import apply_to
from dibs.services.reading import walk_threads
from dibs.settings import load as config
from dibs.wiring.services import Services

_OVERLOOKED = {ReasonCode.NO_STAGE, ReasonCode.BACKING_OFF}
_PAUSED = {ReasonCode.REPOSITORY_PAUSED, ReasonCode.FLEET_PAUSED}


@dataclass(frozen=True, slots=True)
class Examined:
    """One look at an issue."""

    slug: str
    number: int
    thread: Thread | None
    """None if it could not be read."""
    reasons: tuple[str, ...]
    """Why it is not claimable, in the words of `dedup-check`."""
    holder: Record | None
    paused: bool

    @property
    def on(self) -> frozenset[str]:
        return self.thread.issue.labels if self.thread is not None else frozenset()

    @property
    def state(self) -> str:
        if self.thread is None:
            return "UNKNOWN"
        return "OPEN" if self.thread.issue.open else "CLOSED"

    @property
    def claimable(self) -> bool:
        return not self.reasons

    def told(self) -> dict[str, object]:
        return {
            "repo": self.slug,
            "number": self.number,
            "state": self.state,
            "labels": sorted(self.on),
            "in_flight": labels.IN_FLIGHT in self.on or self.holder is not None,
            "pr_open": any(label.endswith(labels.AGENT_PR_OPEN_SUFFIX) for label in self.on)
            or labels.PR_OPEN in self.on,
            "do_not_pickup": labels.DO_NOT_PICKUP in self.on,
            "needs_human_scope": labels.NEEDS_HUMAN_SCOPE in self.on,
            "claimable": self.claimable,
            "latest_claim": None if self.thread is None else latest_claim(self.thread),
            "repo_paused": self.paused,
        }


def issue_dedup_check(repo_slug: str, num: int) -> dict[str, object]:
    """What is known of it; `claimable` is what `claim_issue` would find."""
    return examine(repo_slug, num).told()


def examine(repo_slug: str, num: int) -> Examined:
    number = int(num)
    here = paused_by_file(repo_slug)
    try:
        backlog = backlog_of(repo_slug)
        thread = backlog.read(number)
        paused = here or paused_by_log(backlog)
        return _judged(backlog, number, thread, paused=paused)
    except NoOrganisation:
        raise
    except DibsError as failure:
        reasons = (f"unreadable ({failure.code}: {failure})",)
        return Examined(repo_slug, number, None, reasons, None, here)


def _judged(backlog: Backlog, number: int, thread: Thread, *, paused: bool) -> Examined:
    services = backlog.services
    verdict = services.claiming.judge(thread)
    record = services.leases.standing(thread).live
    told = [_finding_in_words(reason, thread) for reason in verdict.reasons if _matters(reason)]
    blocking = labels.claim_blocking_labels(thread.issue.labels)
    told += [_of_a_label(label, thread) for label in blocking]
    told += ["repo paused"] if paused else []
    unique = tuple(dict.fromkeys(told))
    return Examined(backlog.slug, number, thread, unique, record, paused)


def _matters(reason: Reason) -> bool:
    return reason.code not in _OVERLOOKED | _PAUSED | {ReasonCode.BLOCKED, ReasonCode.PARKED}


def _finding_in_words(reason: Reason, thread: Thread) -> str:
    match reason.code:
        case ReasonCode.CLOSED:
            return "state=CLOSED"
        case ReasonCode.HELD | ReasonCode.FOREIGN_CLAIM | ReasonCode.BID_PENDING:
            return _in_flight(thread)
        case ReasonCode.FINAL_STAGE:
            return labels.DONE
        case ReasonCode.GATE_SHUT:
            return labels.PLAN_PENDING_APPROVAL
        case _:
            return reason.text


def _of_a_label(label: str, thread: Thread) -> str:
    match label:
        case labels.IN_FLIGHT:
            return _in_flight(thread)
        case labels.PR_OPEN:
            return "PR open"
        case _:
            return label


def _in_flight(thread: Thread) -> str:
    claim = latest_claim(thread)
    if claim is None:
        return "in-flight"
    return f"in-flight ({claim.get('codename', '?')}:{claim.get('firing_id', '?')})"


def latest_claim(thread: Thread) -> dict[str, str] | None:
    """The newest claim comment, released or not, among all of them; a stranger's is none, nor is
    the bid of somebody who lost.
    """
    claims = [said for comment in thread.comments if (said := _claim(comment))]
    return claims[-1] if claims else None


def _claim(comment: Comment) -> dict[str, str]:
    if not comment.by_writer:
        return {}
    mark = parse_mark(comment.body)
    if isinstance(mark, Card) and not confirmed(mark):
        return {}
    if comment.body.lstrip().startswith(CLAIM_PREFIX):
        said = fields_of(comment.body)
    elif isinstance(mark, Card):
        codename, firing_id = firing_of(mark.holder) or (mark.holder, mark.run)
        said = {"codename": codename, "firing_id": firing_id, "run": mark.run}
    else:
        return {}
    return {**said, "createdAt": format_instant(comment.created_at)}


_STATES = (labels.DONE, labels.PR_OPEN, labels.PLAN_PENDING_APPROVAL, labels.IMPLEMENT)
"""The most advanced first: that one counts."""
_ATTEMPT = "-attempt-"


class Found(StrEnum):
    """What there is to say of an issue or a repository."""

    MISSING_LABELS = "MISSING_LABELS"
    PAUSED_HERE = "PAUSED_HERE"
    HELD = "HELD"
    YOUNG = "YOUNG"
    STALE_CLAIM = "STALE_CLAIM"
    UNCLAIMED_LABEL = "UNCLAIMED_LABEL"
    STATES = "STATES"
    FELL_OUT = "FELL_OUT"
    ATTEMPTS = "ATTEMPTS"
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True, slots=True)
class Finding:
    place: str
    """An issue, or a repository."""
    found: Found
    text: str
    changes: bool = False
    """Whether something is to be written; anything else is only said."""
    done: bool = False


class Adopting:
    def __init__(self, services: Services, *, window: timedelta, apply: bool) -> None:
        if services.pipeline.dialect is not Dialect.AGENT:
            raise Misuse('the labels are those of preset "agent": set it in dibs.toml first')
        self._services = services
        self._window = window
        self._apply = apply

    def adopt(self) -> Iterator[Finding]:
        """Each as it is found; with `apply`, as it was done. Raises what the tracker raises: then
        those before it are done, and the next run goes on.
        """
        traits = self._services.tracker.traits
        for repo in traits.repos or (traits.repo,):
            yield from self._repository(Backlog(repo, repo, self._services))
        for thread in self._threads():
            yield from self._issue(thread)

    # A repository

    def _repository(self, backlog: Backlog) -> Iterator[Finding]:
        name = backlog.repo or self._services.tracker.traits.name
        missing = missing_labels(backlog)
        if missing:
            if self._apply:
                self._services.tracker.prepare(missing)
            text = f"labels to make: {', '.join(missing)}"
            yield Finding(name, Found.MISSING_LABELS, text, changes=True, done=self._apply)
        if backlog.repo and paused_by_file(backlog.repo) and not paused_by_log(backlog):
            if self._apply:
                self._pause(backlog)
            text = "paused on this machine only: workers elsewhere do not know of it"
            yield Finding(name, Found.PAUSED_HERE, text, changes=True, done=self._apply)

    def _pause(self, backlog: Backlog) -> None:
        self._services.adapters.pauses.pause(
            PauseScope.REPOSITORY, repo=backlog.repo, reason="label-state", by=config.actor()
        )

    # An issue

    def _threads(self) -> Iterator[Thread]:
        """Every open issue, and closed ones that look claimed."""
        seen: set[IssueRef] = set()
        queries = (
            IssueQuery(limit=sys.maxsize),
            IssueQuery((labels.IN_FLIGHT,), limit=sys.maxsize, closed_too=True),
        )
        for query in queries:
            for thread in walk_threads(self._services.tracker, query):
                if thread.issue.ref not in seen:
                    seen.add(thread.issue.ref)
                    yield thread

    def _issue(self, thread: Thread) -> Iterator[Finding]:
        ref, backlog = str(thread.issue.ref), self._backlog(thread)
        if not thread.complete:
            yield Finding(ref, Found.UNREADABLE, "not all its comments could be read: left alone")
            return
        stale = list(stale_on(backlog, thread, self._window))
        if stale:
            yield from (self._stale(backlog, one) for one in stale)
        elif (held := self._held(backlog, thread)) is not None:
            yield held
        else:
            yield from self._states(thread)
        yield from _attempts(thread)

    def _backlog(self, thread: Thread) -> Backlog:
        repo = thread.issue.ref.repo
        return Backlog(repo, repo, self._services)

    def _stale(self, backlog: Backlog, stale: Stale) -> Finding:
        thread, ref = stale.thread, str(stale.thread.issue.ref)
        if stale.identified and stale.label_drift and not _in_a_state(thread):
            text = f"{stale.codename} claimed it and never released it, and it is in no state"
            return Finding(ref, Found.FELL_OUT, f"{text}: queue it if it is still wanted")
        found = Found.STALE_CLAIM if stale.identified else Found.UNCLAIMED_LABEL
        text = f"{labels.IN_FLIGHT} is on it, and no claim says whose it is: taken off"
        if stale.identified:
            since = "its claim is older than the window"
            text = f"{stale.codename}:{stale.firing_id} is not heard of, {since}: released"
        done = self._apply and self._freed(backlog, stale)
        return Finding(ref, found, text, changes=True, done=done)

    def _freed(self, backlog: Backlog, stale: Stale) -> bool:
        sweep_id = stale.thread.now.strftime("%Y%m%d-%H%M%S-migrate")
        return bool(free(backlog, stale, sweep_id=sweep_id, max_age=self._window))

    def _held(self, backlog: Backlog, thread: Thread) -> Finding | None:
        ref, live = str(thread.issue.ref), backlog.services.leases.standing(thread).live
        if live is not None:
            return Finding(ref, Found.HELD, f"{live.lease.holder} holds it, with a lease of ours")
        theirs = their_claims(thread)
        if theirs:
            since = format_instant(theirs[0].since)
            text = f"{theirs[0].codename} has it since {since}: left to finish"
            return Finding(ref, Found.HELD, text)
        if labels.IN_FLIGHT in thread.issue.labels:
            due = format_instant(abandoned_at(thread.issue, self._services.pipeline))
            text = f"{labels.IN_FLIGHT} is on it without a claim; taken off after {due}"
            return Finding(ref, Found.YOUNG, text)
        return None

    def _states(self, thread: Thread) -> Iterator[Finding]:
        effects = tidying(thread.issue.labels) if thread.issue.open else ()
        if not effects:
            return
        done = self._apply and apply_to(self._services.tracker, thread.issue, effects) is not None
        yield Finding(
            str(thread.issue.ref), Found.STATES, _in_words(effects), changes=True, done=done
        )


def tidying(on: frozenset[str]) -> Effects:
    """One state where there are several, the most advanced; and `agent:pr-open`, which is followed,
    for the labels of single agents that say the same and never went away.
    """
    legacy = {label for label in on if label.endswith(labels.AGENT_PR_OPEN_SUFFIX)}
    known = on | ({labels.PR_OPEN} if legacy else set())
    state, *others = [one for one in _STATES if one in known] or [""]
    missing = (AddLabels((state,)),) if state and state not in on else ()
    surplus = tuple(sorted((legacy | set(others)) & on))
    return (*missing, *((RemoveLabels(surplus),) if surplus else ()))


def _in_words(effects: Effects) -> str:
    added = [label for one in effects if isinstance(one, AddLabels) for label in one.labels]
    gone = [label for one in effects if isinstance(one, RemoveLabels) for label in one.labels]
    said = [f"{', '.join(added)} is put on"] if added else []
    return "; ".join([*said, f"{', '.join(gone)} is taken off"])


def _in_a_state(thread: Thread) -> bool:
    return not thread.issue.labels.isdisjoint(_STATES)


def _attempts(thread: Thread) -> Iterator[Finding]:
    counted = sorted(label for label in thread.issue.labels if _ATTEMPT in label)
    if counted:
        text = f"{', '.join(counted)}: not counted, attempts are those that failed from now on"
        yield Finding(str(thread.issue.ref), Found.ATTEMPTS, text)
