"""What `dibs doctor` finds: whether tracker, store, keys, stages and settings go together.

It looks and writes nothing, and every finding is a value. What cannot be reached is a finding too,
and is not asked a second time. Refuses to know where settings come from and how findings are shown.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from dibs.core.durations import describe_span, format_duration, format_instant
from dibs.core.errors import DibsError
from dibs.core.granter import Appointed, Granter, Moving
from dibs.core.issue import Thread
from dibs.core.pipeline import Command, NoWorktree, Pipeline, PythonCallable
from dibs.core.signing import Keyring, Signed, Strictness, verify
from dibs.ports.leases import PROTECTIVE, LeaseStore, Pauses, ShownLeases, Worrying
from dibs.ports.system import Runner, Workplaces
from dibs.ports.tracker import BudgetReport, IssueQuery, Tracker, TrackerTraits
from dibs.services.backlog import Granting
from dibs.services.reading import walk_threads

_MOST_LOOKED_AT = 200
_LITTLE = 0.1
_SETTLES_PER_TTL = 5


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    check: str
    level: Level
    text: str
    look: str = ""
    """Where to look next. Never a command that changes anything of anybody's."""


def fine(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def failed(check: str, error: DibsError) -> Finding:
    return Finding(check, Level.FAIL, str(error), error.hint)


class Subject(Struct, frozen=True):
    """What is examined."""

    tracker: Tracker
    leases: ShownLeases
    store: LeaseStore | None
    """None: the comments are the leases."""
    granting: Granting
    pauses: Pauses
    pipeline: Pipeline
    settle: timedelta | None
    """As it is set; None: the tracker's own."""
    keyring: Keyring | None
    author: str
    """Under which name this process writes, where a tracker has no accounts."""
    local_now: Callable[[], datetime]
    budgets: Callable[[], tuple[BudgetReport, ...]]


class Diagnosing:
    def __init__(self, subject: Subject) -> None:
        self._of = subject

    def examine(self) -> Iterator[Finding]:
        """Everything that has to be asked. One request for each question, at most a few."""
        reached = list(_trying("tracker", self._tracker))
        yield from reached
        yield from about_terms(self._of.pipeline, self._of.settle, self._of.tracker.traits)
        if any(finding.level is Level.FAIL for finding in reached):
            if self._of.store is not None:
                yield from _trying("leases", self._leases)
            return  # an answer that failed is not asked for again in other words
        yield from _trying("account", self._account)
        yield from _trying("trust", self._trust)
        yield from _trying("labels", self._labels)
        yield from _trying("leases", self._leases)
        yield from _trying("granter", self._granter)
        yield from _trying("signing", self._unsigned)
        yield from _trying("pauses", self._pauses)
        yield from _trying("budget", self._budget)
        yield from _trying("storage", self._storage)

    def _tracker(self) -> Iterator[Finding]:
        traits = self._of.tracker.traits
        now = self._of.tracker.find(IssueQuery(limit=1)).now
        place = f", repository {traits.repo}" if traits.repo not in traits.name else ""
        ahead_s = now.timestamp() - self._of.local_now().timestamp()
        told = (
            f"{describe_span(timedelta(seconds=ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}"
        )
        clock = f"its clock is {told} ours, and only its own counts"
        yield fine("tracker", f"{traits.name}{place} answers; {clock}")

    def _account(self) -> Iterator[Finding]:
        tracker = self._of.tracker
        if not tracker.traits.accounts:
            yield fine("account", f"the tracker has no accounts; we write as {self._of.author}")
        elif (login := tracker.login()) is None:
            text = "the tracker does not say which account this is"
            look = "name the fleet's own accounts in [people] fleet"
            yield Finding("account", Level.WARN, text, look)
        else:
            yield fine("account", f"we are {login}")

    def _trust(self) -> Iterator[Finding]:
        tracker = self._of.tracker
        if not tracker.traits.accounts:
            yield fine("trust", "whoever can write to the tracker is believed")
            return
        stands = tracker.standpoint()
        if stands.may_write is False:
            text = f"we may not write here ({stands.permission or 'no permission'})"
            yield Finding("account", Level.FAIL, text, "give the account or the token write access")
        elif stands.permission:
            yield fine("account", f"our permission: {stands.permission}")
        yield fine("trust", f"believed: {stands.believed}")
        if stands.doubt:
            look = "name all accounts of the fleet in [github] trusted, in every worker's settings"
            yield Finding("trust", Level.WARN, stands.doubt, look)
        if stands.ours_count is False:
            text = "cards by our own account are not believed, so nothing we claim would be ours"
            look = "give the account write access, or name it in [github] trusted"
            yield Finding("trust", Level.FAIL, text, look)

    def _labels(self) -> Iterator[Finding]:
        tracker, wanted = self._of.tracker, self._of.pipeline.every_label
        if not tracker.traits.accounts:
            yield fine("labels", "the tracker needs none made")
        elif missing := tracker.missing_labels(wanted):
            text = f"{len(missing)} of {len(wanted)} labels are not there: {', '.join(missing)}"
            yield Finding("labels", Level.WARN, text, "dibs init makes them, with their colours")
        else:
            yield fine("labels", f"all {len(wanted)} labels of the pipeline are there")

    def _leases(self) -> Iterator[Finding]:
        store, guarantees = self._of.store, self._of.leases.guarantees
        if store is not None:
            store.live(None, 1)
        yield fine("leases", f"kept in {self._of.leases.name}: {', '.join(guarantees.names)}")
        unsafe = [stage.name for stage in self._of.pipeline.stages if stage.irreversible]
        if unsafe and PROTECTIVE not in guarantees:
            text = f"stage {unsafe[0]!r} is irreversible, and this store is not atomic and fenced"
            yield Finding("leases", Level.FAIL, text, "see: dibs stores")

    def _granter(self) -> Iterator[Finding]:
        for reason in self._of.granting.objections():
            yield Finding("granter", Level.FAIL, reason.text, reason.remedy)
            return
        yield fine("granter", _said_of(self._of.granting.granter))

    def _unsigned(self) -> Iterator[Finding]:
        """While a key is handed out: whether anything in force would stop counting without it."""
        keyring = self._of.keyring
        if keyring is None or keyring.strictness is Strictness.STRICT:
            return
        claimed = IssueQuery((self._of.pipeline.labels.claimed,), limit=_MOST_LOOKED_AT)
        threads = walk_threads(self._of.tracker, claimed)
        held = [str(thread.issue.ref) for thread in threads if self._held_unsigned(thread, keyring)]
        if held:
            text = f"{len(held)} leases are held by cards without a signature: {_few(held)}"
            look = "stay lenient until they have ended or were renewed by somebody with the key"
            yield Finding("signing", Level.WARN, text, look)
        else:
            yield fine("signing", "every card in force is signed; strict would change nothing now")

    def _held_unsigned(self, thread: Thread, keyring: Keyring) -> bool:
        live = self._of.leases.standing(thread).live
        card = live.lease.card if live is not None else None
        return any(
            comment.id == card
            and verify(comment.body, thread.issue.ref, keyring) is Signed.UNSIGNED
            for comment in thread.comments
        )

    def _pauses(self) -> Iterator[Finding]:
        for pause in self._of.pauses.pauses():
            since = format_instant(pause.since)
            text = f"{pause.by or 'somebody'} paused the {pause.scope.value} at {since}"
            yield Finding("pauses", Level.WARN, f"{text}: {pause.reason}", "see: dibs status")
        if isinstance(self._of.pauses, Worrying):
            for worry in self._of.pauses.worries():
                look = "see docs/trackers/github.md"
                yield Finding("pauses", Level.WARN, worry, look)

    def _budget(self) -> Iterator[Finding]:
        for report in self._of.budgets():
            yield from _spent(report)

    def _storage(self) -> Iterator[Finding]:
        tracker = self._of.tracker
        if not tracker.traits.checks_itself:
            return
        flaws = tracker.flaws()
        for flaw in flaws:
            yield Finding("storage", Level.FAIL, flaw, "see docs/operate/recovery.md")
        if not flaws:
            yield fine("storage", "the tracker finds no damage in its own storage")


def _trying(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """An error ends this check and no other."""
    try:
        yield from look()
    except DibsError as error:
        yield failed(check, error)


def _said_of(granter: Granter | None) -> str:
    match granter:
        case None:
            return "nothing was granted yet; the first store that grants is appointed by it"
        case Appointed(store, floor):
            return f"leases are granted by {store}" + (f", above fence {floor}" if floor else "")
        case Moving(origin, target):
            return f"leases are on the move from {origin} to {target}"
        case _:
            assert_never(granter)


def _spent(report: BudgetReport) -> Iterator[Finding]:
    if report.shut is not None:
        text = f"{report.place} is left alone for {report.shut.wait_s:.0f} s: {report.shut.why}"
        yield Finding("budget", Level.WARN, text, "see: dibs budget")
    if report.trouble is not None:
        text = f"{report.place} did not say what is left: {report.trouble}"
        yield Finding("budget", Level.WARN, text, "see: dibs budget")
    for allowance in report.allowances:
        left = f"{allowance.name}: {allowance.remaining} of {allowance.limit} left"
        text = f"{left} until {format_instant(allowance.resets_at)}"
        scarce = allowance.remaining < allowance.limit * _LITTLE
        level, look = (Level.WARN, "see: dibs budget") if scarce else (Level.OK, "")
        yield Finding("budget", level, text, look)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# What needs no network


def about_signing(keyring: Keyring | None) -> Iterator[Finding]:
    if keyring is None:
        yield fine("signing", "off: marks count by who wrote them (DIBS_SIGNING_KEY is not set)")
        return
    first, *others = keyring.ids
    verified = f"; also verified: {', '.join(others)}" if others else ""
    if keyring.strictness is Strictness.LENIENT:
        text = f"lenient: we sign with {first}{verified}; what is not signed is believed, too"
        look = "set DIBS_SIGNING to strict once everybody has the key"
        yield Finding("signing", Level.WARN, text, look)
    else:
        yield fine("signing", f"strict: we sign with {first}{verified}; only signed marks count")


def about_terms(
    pipeline: Pipeline, settle: timedelta | None, traits: TrackerTraits | None
) -> Iterator[Finding]:
    """`settle` as it is set, None if it is not; `traits` if the tracker could be asked."""
    shortest = min(pipeline.stages, key=lambda stage: stage.terms.ttl)
    terms = shortest.terms
    own = traits.settle if traits is not None else None
    waited = settle if settle is not None else own
    steps = f", timestamps in steps of {format_duration(traits.grain)}" if traits else ""
    shown = "unknown here" if waited is None else format_duration(waited)
    text = f"shortest ttl {format_duration(terms.ttl)}, settle {shown}{steps}"
    if own is not None and waited is not None and waited < own:
        text = f"settle {format_duration(waited)} is below the tracker's own {format_duration(own)}"
        look = "leave settle unset: two may win where a write is not seen in time"
        yield Finding("terms", Level.WARN, text, look)
    elif waited is not None and waited * _SETTLES_PER_TTL > terms.ttl:
        text = f"stage {shortest.name!r}: ttl {format_duration(terms.ttl)} is short for settle"
        look = "see docs/guides/tune-ttl.md"
        yield Finding("terms", Level.WARN, f"{text} {format_duration(waited)}", look)
    else:
        yield fine("terms", text)


def about_places(
    pipeline: Pipeline, places: Callable[[], Workplaces], repos: tuple[str, ...]
) -> Iterator[Finding]:
    """Only where a stage wants worktrees: whether the repositories are there."""
    found, usable = 0, 0
    for stage in pipeline.stages:
        if isinstance(stage.worktree, NoWorktree):
            continue
        found += 1
        try:
            places().check(stage.worktree, repos)
            usable += 1
        except DibsError as error:
            yield Finding("worktrees", Level.FAIL, f"stage {stage.name!r}: {error}", error.hint)
    if found and usable == found:
        yield fine("worktrees", f"of {found} stages that want them, every repository is there")


def about_handlers(pipeline: Pipeline, runner: Runner) -> Iterator[Finding]:
    found, usable = 0, 0
    for stage in pipeline.stages:
        if not isinstance(stage.handler, Command | PythonCallable):
            continue
        found += 1
        try:
            runner.check(stage.handler, elsewhere=stage.worktree != NoWorktree())
            usable += 1
        except DibsError as error:
            yield Finding("handlers", Level.FAIL, f"stage {stage.name!r}: {error}", error.hint)
    if not found:
        yield fine("handlers", "no stage has one, so dibs work has nothing to run")
    elif usable == found:
        yield fine("handlers", f"{found} of {len(pipeline.stages)} stages have one that can start")
