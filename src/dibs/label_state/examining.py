"""`issue_dedup_check`: what is known of an issue before anybody starts on it.

Judged by what a claim is judged by, so that the two cannot disagree. What cannot be read is not
claimable.
"""

from dataclasses import dataclass

from dibs.core.agent_dialect import CLAIM_PREFIX, fields_of, firing_of
from dibs.core.card import Card, parse_mark
from dibs.core.durations import format_instant
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import DibsError
from dibs.core.fold import confirmed
from dibs.core.issue import Comment, Thread
from dibs.core.lease import Record
from dibs.label_state import labels
from dibs.label_state.answers import NoOrganisation
from dibs.label_state.backlogs import Backlog, backlog_of
from dibs.label_state.pauses import paused_by_file, paused_by_log

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
    told = [_in_words(reason, thread) for reason in verdict.reasons if _matters(reason)]
    blocking = labels.claim_blocking_labels(thread.issue.labels)
    told += [_of_a_label(label, thread) for label in blocking]
    told += ["repo paused"] if paused else []
    unique = tuple(dict.fromkeys(told))
    return Examined(backlog.slug, number, thread, unique, record, paused)


def _matters(reason: Reason) -> bool:
    return reason.code not in _OVERLOOKED | _PAUSED | {ReasonCode.BLOCKED, ReasonCode.PARKED}


def _in_words(reason: Reason, thread: Thread) -> str:
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
