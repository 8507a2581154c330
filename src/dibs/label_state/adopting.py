"""Check single issues, and take over repositories that run on the published state machine.

`issue_dedup_check` reports on an issue before an agent starts on it. It asks the same questions as
`claim_issue`, so the two cannot disagree. An issue that cannot be read is not claimable.

`Adopting` takes over whole repositories. Labels and comments that already mean the right thing stay
as they are. It changes only what the rules of the state machine leave behind: claims that are over,
in-flight labels without a claim, several states on one issue, and the pull-request labels of single
agents, which dibs does not follow. Running work goes on. Where the intent of a person is in doubt,
it reports the issue and leaves the decision to a person.

Each issue is changed in one write, and only if it is still as it was read. If a run dies, the next
run does the rest; a run that finds nothing to change writes nothing.
"""

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.agent_dialect import CLAIM_PREFIX, fields_of, firing_of
from dibs.core.card import Card, parse_mark
from dibs.core.durations import format_instant
from dibs.core.eligibility import Reason, ReasonCode, abandoned_at
from dibs.core.errors import DibsError, Misuse
from dibs.core.fold import confirmed
from dibs.core.ids import IssueRef
from dibs.core.issue import Snapshot
from dibs.core.labels import AddLabels, Effects, RemoveLabels, freeing_effects, labels_after
from dibs.core.pipeline import Dialect, People
from dibs.core.presets import EVERY
from dibs.label_state import labels
from dibs.label_state.backlogs import Backlog, NoOrganisation, backlog_of
from dibs.label_state.claims import TheirClaim, their_claims
from dibs.label_state.pauses import pause_in_log, paused_by_file, paused_by_log
from dibs.label_state.stale import StaleClaim, free, stale_on
from dibs.ports.tracker import IssueQuery
from dibs.services.effects import apply_to
from dibs.services.reading import walk_snapshots
from dibs.wiring.services import Services

_NOT_REPORTED = {
    *(ReasonCode.NO_STAGE, ReasonCode.BACKING_OFF),  # `claim_issue` overlooks both
    *(ReasonCode.REPOSITORY_PAUSED, ReasonCode.FLEET_PAUSED),  # reported as "repo paused"
    *(ReasonCode.BLOCKED, ReasonCode.PARKED),  # reported by the name of the label
}


def issue_dedup_check(repo_slug: str, num: int) -> dict[str, object]:
    """Report on an issue; `claimable` is true if `claim_issue` would find no objection."""
    return examine(repo_slug, num)[0]


def examine(repo_slug: str, num: int) -> tuple[dict[str, object], tuple[str, ...]]:
    """The published answer of `issue_dedup_check`, and every reason against a claim.

    If the tracker fails, the failure is the only reason, and the state is UNKNOWN. Raises
    NoOrganisation.
    """
    number = int(num)
    paused = paused_here = paused_by_file(repo_slug)
    names, in_flight, latest, state = frozenset[str](), False, None, "UNKNOWN"
    try:
        backlog = backlog_of(repo_slug)
        snapshot = backlog.read(number)
        paused = paused_here or paused_by_log(backlog)
        verdict = backlog.services.claiming.judge(snapshot)
        in_flight = backlog.services.leases.standing(snapshot).live is not None
    except NoOrganisation:
        raise
    except DibsError as failure:
        reasons, paused = [f"unreadable ({failure.code}: {failure})"], paused_here
    else:
        names, latest = snapshot.issue.labels, latest_claim(snapshot)
        state = "OPEN" if snapshot.issue.open else "CLOSED"
        reasons = [*_reason_texts(verdict.reasons, snapshot), *(["repo paused"] if paused else [])]
    facts = {
        "repo": repo_slug,
        "number": number,
        "state": state,
        "labels": sorted(names),
        "in_flight": labels.IN_FLIGHT in names or in_flight,
        "pr_open": any(label.endswith(labels.AGENT_PR_OPEN_SUFFIX) for label in names)
        or labels.PR_OPEN in names,
        "do_not_pickup": labels.DO_NOT_PICKUP in names,
        "needs_human_scope": labels.NEEDS_HUMAN_SCOPE in names,
        "claimable": not reasons,
        "latest_claim": latest,
        "repo_paused": paused,
    }
    return facts, tuple(dict.fromkeys(reasons))


def _reason_texts(reasons: Iterable[Reason], snapshot: Snapshot) -> Iterator[str]:
    """Reasons and blocking labels in the words of `dedup-check`, possibly with duplicates."""
    in_flight = "in-flight"
    if (claim := latest_claim(snapshot)) is not None:
        in_flight += f" ({claim.get('codename', '?')}:{claim.get('firing_id', '?')})"
    for reason in reasons:
        match reason.code:
            case code if code in _NOT_REPORTED:
                continue
            case ReasonCode.CLOSED:
                yield "state=CLOSED"
            case ReasonCode.HELD | ReasonCode.FOREIGN_CLAIM | ReasonCode.BID_PENDING:
                yield in_flight
            case ReasonCode.FINAL_STAGE:
                yield labels.DONE
            case ReasonCode.GATE_SHUT:
                yield labels.PLAN_PENDING_APPROVAL
            case _:
                yield reason.text
    shown_as = {labels.IN_FLIGHT: in_flight, labels.PR_OPEN: "PR open"}
    for label in labels.claim_blocking_labels(snapshot.issue.labels):
        yield shown_as.get(label, label)


def latest_claim(snapshot: Snapshot) -> dict[str, str] | None:
    """The fields of the newest claim comment, released or not.

    Skips comments of people without write access, and cards of bidders that never proved a win.
    """
    for comment in reversed(snapshot.comments):
        mark = parse_mark(comment.body)
        if not comment.by_writer or (isinstance(mark, Card) and not confirmed(mark)):
            continue
        if comment.body.lstrip().startswith(CLAIM_PREFIX):
            fields = fields_of(comment.body)
        elif isinstance(mark, Card):
            codename, firing_id = firing_of(mark.holder) or (mark.holder, mark.run)
            fields = {"codename": codename, "firing_id": firing_id, "run": mark.run}
        else:
            continue
        return {**fields, "createdAt": format_instant(comment.created_at)}
    return None


# Taking over repositories

_STATES = (labels.DONE, labels.PR_OPEN, labels.PLAN_PENDING_APPROVAL, labels.IMPLEMENT)
"""The most advanced state first: if an issue has several, the first of this list stays."""
_ATTEMPT = "-attempt-"


class FindingCode(StrEnum):
    MISSING_LABELS = "MISSING_LABELS"
    PAUSED_HERE = "PAUSED_HERE"
    HELD = "HELD"
    YOUNG = "YOUNG"
    STALE_CLAIM = "STALE_CLAIM"
    UNCLAIMED_LABEL = "UNCLAIMED_LABEL"
    STATES = "STATES"
    PLAN_WAITS = "PLAN_WAITS"
    IN_DOUBT = "IN_DOUBT"
    FELL_OUT = "FELL_OUT"
    ATTEMPTS = "ATTEMPTS"
    UNREADABLE = "UNREADABLE"


class AdoptionFinding(Struct, frozen=True):
    place: str
    """An issue, or a repository."""
    code: FindingCode
    text: str
    changes: bool = False
    """Whether the finding calls for a write; if not, it is only reported."""
    done: bool = False


class Adopting(Struct, frozen=True):
    services: Services
    window: timedelta
    apply: bool

    def __post_init__(self) -> None:
        if self.services.pipeline.dialect is not Dialect.AGENT:
            raise Misuse('the labels are those of preset "agent": set it in dibs.toml first')

    def adopt(self) -> Iterator[AdoptionFinding]:
        """Walk the repositories, then all open issues and the closed issues labelled in flight.

        Yields each finding at once; with `apply`, after the change was tried. Errors of the tracker
        are raised: the changes before the error are done, and the next run does the rest.
        """
        tracker = self.services.tracker
        for repo in tracker.traits.repos or (tracker.traits.repo,):
            yield from self._adopt_repository(Backlog(repo, self.services))
        seen: set[IssueRef] = set()
        queries = (
            IssueQuery(limit=sys.maxsize),
            IssueQuery((labels.IN_FLIGHT,), limit=sys.maxsize, closed_too=True),
        )
        for query in queries:
            for snapshot in walk_snapshots(tracker, query):
                if snapshot.issue.ref not in seen:
                    seen.add(snapshot.issue.ref)
                    yield from self._adopt_issue(snapshot)

    def _adopt_repository(self, backlog: Backlog) -> Iterator[AdoptionFinding]:
        """Make missing labels, and publish a pause found only in the local file."""
        tracker = self.services.tracker
        name = backlog.repo or tracker.traits.name
        if missing := tracker.missing_labels([label.name for label in EVERY]):
            if self.apply:
                tracker.prepare(missing)
            code, text = FindingCode.MISSING_LABELS, f"labels to make: {', '.join(missing)}"
            yield AdoptionFinding(name, code, text, changes=True, done=self.apply)
        if backlog.repo and paused_by_file(backlog.repo) and not paused_by_log(backlog):
            if self.apply:
                pause_in_log(backlog)
            code = FindingCode.PAUSED_HERE
            text = "paused on this machine only: workers elsewhere do not know of it"
            yield AdoptionFinding(name, code, text, changes=True, done=self.apply)

    def _adopt_issue(self, snapshot: Snapshot) -> Iterator[AdoptionFinding]:
        """Release stale claims; then leave running work alone, or reduce the states to one.

        Also reports labels with which the state machine counted attempts: dibs does not read them.
        """
        issue, ref = snapshot.issue, str(snapshot.issue.ref)
        backlog = Backlog(issue.ref.repo, self.services)
        if not snapshot.complete:
            text = "not all its comments could be read: left alone"
            yield AdoptionFinding(ref, FindingCode.UNREADABLE, text)
            return
        stale = list(stale_on(backlog, snapshot, self.window))
        freed = [self._release_stale(backlog, claim) for claim in stale]
        yield from freed
        if stale:
            snapshot = self._freed(backlog, snapshot)
        if not all(finding.done for finding in freed if finding.changes and self.apply):
            return  # it changed meanwhile: the next run looks again
        if (in_progress := self._in_progress(snapshot)) is not None:
            yield in_progress
        elif snapshot.issue.open:
            yield from self._tidy(snapshot)
        counted = sorted(label for label in issue.labels if _ATTEMPT in label)
        if counted:
            text = f"{', '.join(counted)}: not counted, attempts are those that failed from now on"
            yield AdoptionFinding(ref, FindingCode.ATTEMPTS, text)

    def _freed(self, backlog: Backlog, snapshot: Snapshot) -> Snapshot:
        """The issue once its stale claims are released; in a dry run, as it would be then."""
        if self.apply:
            return backlog.read(int(snapshot.issue.ref.key))
        standing = self.services.leases.standing(snapshot)
        worked = standing.record.lease.stage if standing.record is not None else None
        effects = freeing_effects(self.services.pipeline, snapshot.issue, worked)
        kept = self._their_newer(snapshot) or labels.IN_FLIGHT not in snapshot.issue.labels
        after = snapshot.issue.labels if kept else labels_after(effects, snapshot.issue.labels)
        return replace(snapshot, issue=replace(snapshot.issue, labels=after))

    def _tidy(self, snapshot: Snapshot) -> Iterator[AdoptionFinding]:
        """Reduce the states of the issue to one, unless a person may have meant several."""
        issue, ref = snapshot.issue, str(snapshot.issue.ref)
        if doubt := doubted(snapshot, self.services.pipeline.people):
            yield AdoptionFinding(ref, FindingCode.IN_DOUBT, doubt)
        elif _lifecycle(issue.labels) == [labels.PLAN_PENDING_APPROVAL, labels.IMPLEMENT]:
            text = f"its plan waits: a person approves it by taking {labels.PLAN_PENDING_APPROVAL}"
            yield AdoptionFinding(ref, FindingCode.PLAN_WAITS, f"{text} off")
        elif effects := tidying(issue.labels):
            done = self.apply and apply_to(self.services.tracker, issue, effects) is not None
            added = [name for e in effects if isinstance(e, AddLabels) for name in e.labels]
            removed = [name for e in effects if isinstance(e, RemoveLabels) for name in e.labels]
            texts = [f"{', '.join(added)} is put on"] if added else []
            text = "; ".join([*texts, f"{', '.join(removed)} is taken off"])
            yield AdoptionFinding(ref, FindingCode.STATES, text, changes=True, done=done)

    def _release_stale(self, backlog: Backlog, stale: StaleClaim) -> AdoptionFinding:
        """With `apply`, release the claim, unless the issue has dropped out of the lifecycle.

        Then the claim is only reported: a person has to decide whether the issue is still wanted.
        """
        snapshot, ref = stale.snapshot, str(stale.snapshot.issue.ref)
        in_no_state = snapshot.issue.labels.isdisjoint(_STATES)
        if stale.identified and stale.label_drift and in_no_state:
            text = f"{stale.key.codename} claimed it and never released it, and it is in no state"
            text += ": queue it if it is still wanted"
            return AdoptionFinding(ref, FindingCode.FELL_OUT, text)
        if stale.identified:
            code = FindingCode.STALE_CLAIM
            since = "its claim is older than the window"
            text = f"{':'.join(stale.key)} is not heard of, {since}: released"
        else:
            code = FindingCode.UNCLAIMED_LABEL
            text = f"{labels.IN_FLIGHT} is on it, and no claim says whose it is: taken off"
        done = False
        if self.apply:
            sweep_id = snapshot.now.strftime("%Y%m%d-%H%M%S-migrate")
            done = bool(free(backlog, stale, sweep_id=sweep_id, max_age=self.window))
        return AdoptionFinding(ref, code, text, changes=True, done=done)

    def _in_progress(self, snapshot: Snapshot) -> AdoptionFinding | None:
        """Who works the issue: one of our leases, a claim of theirs, or a fresh in-flight label."""
        ref, live = str(snapshot.issue.ref), self.services.leases.standing(snapshot).live
        if live is not None:
            text = f"{live.lease.holder} holds it, with a lease of ours"
            return AdoptionFinding(ref, FindingCode.HELD, text)
        if theirs := self._their_newer(snapshot):
            since = format_instant(theirs[0].since)
            text = f"{theirs[0].key.codename} has it since {since}: left to finish"
            return AdoptionFinding(ref, FindingCode.HELD, text)
        if labels.IN_FLIGHT in snapshot.issue.labels:
            due = format_instant(abandoned_at(snapshot.issue, self.services.pipeline))
            text = f"{labels.IN_FLIGHT} is on it without a claim; taken off after {due}"
            return AdoptionFinding(ref, FindingCode.YOUNG, text)
        return None

    def _their_newer(self, snapshot: Snapshot) -> list[TheirClaim]:
        """The runners' claims which are not over: they stand once the stale claims are released."""
        claims = their_claims(snapshot)
        return [claim for claim in claims if snapshot.now - claim.since < self.window]


def tidying(names: frozenset[str]) -> Effects:
    """Label changes which leave an issue with only the most advanced state.

    They also replace the pull-request labels of single agents, which were never removed, by
    `agent:pr-open`, which dibs follows. A plan waiting for approval keeps the queue label: people
    approve a plan by taking the gate's label off.
    """
    state, *lesser = _lifecycle(names) or [""]
    if state == labels.PLAN_PENDING_APPROVAL:
        return ()
    missing = (AddLabels((state,)),) if state and state not in names else ()
    surplus = tuple(sorted({*labels.agent_pr_open_labels(names), *lesser} & names))
    return (*missing, *((RemoveLabels(surplus),) if surplus else ()))


def doubted(snapshot: Snapshot, people: People) -> str:
    """A person's possible meaning of the labels: then only a person may change the labels.

    Empty without a doubt. A queue label beside a further state may be a leftover, or a person's
    word to work the issue again; only an open pull request decides, and not a stranger's.
    """
    issue, names = snapshot.issue, snapshot.issue.labels
    agents = labels.agent_pr_open_labels(names)
    ahead = [name for name in (labels.DONE, labels.PR_OPEN, *agents) if name in names]
    counted = len(issue.pulls) > len(people.strangers_pulls(issue))
    told = counted and labels.DONE not in names
    if labels.IMPLEMENT in names and ahead and not told:
        return f"{labels.IMPLEMENT} and {ahead[0]}: a person may have queued it again; take one off"
    known = {label.name for label in EVERY} | {labels.LEGACY_PR_OPEN}
    claims = (latest_claim(replace(snapshot, comments=(one,))) for one in snapshot.comments)
    named = {f"{claim.get('codename')}{labels.AGENT_PR_OPEN_SUFFIX}" for claim in claims if claim}
    if agents and known.isdisjoint(names) and named.isdisjoint(agents):
        return f"{', '.join(agents)}: no agent is known to have put it on"
    return ""


def _lifecycle(names: frozenset[str]) -> list[str]:
    """The states that the labels show, the most advanced first."""
    meant = names | ({labels.PR_OPEN} if labels.agent_pr_open_labels(names) else set())
    return [label for label in _STATES if label in meant]
