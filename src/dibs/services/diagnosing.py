"""The checks of `dibs doctor`: whether tracker, store, keys, stages and settings go together.

The checks write nothing to the tracker; in a lease store of its own they take one lease on a name
and give it back, because a store that answers need not grant. Every finding is a value. A tracker
that does not answer is a finding as well, and gets no second request. Refuses to know where
settings come from and how findings are shown.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil
from statistics import median
from typing import assert_never

from msgspec import Struct

from dibs.core.durations import describe_span, format_duration, format_instant
from dibs.core.environment import looks_secret, passed_on
from dibs.core.errors import DibsError, Misuse, Unavailable
from dibs.core.granter import Appointed, Moving
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Busy, Ending, Granted, Outcome, Released
from dibs.core.pipeline import (
    Command,
    NoHandler,
    NoWorktree,
    Pipeline,
    PythonCallable,
    SignedGate,
)
from dibs.core.references import this_machine
from dibs.core.signing import Keyring, Signed, Strictness, verify
from dibs.ports.leases import PROTECTIVE, LeaseStore, Pauses, ShownLeases, Worrying
from dibs.ports.system import Clock, Runner, Workplaces
from dibs.ports.tracker import (
    BudgetReport,
    IssueQuery,
    Lag,
    ProbeVerdict,
    Probing,
    Tracker,
    TrackerTraits,
)
from dibs.services.backlog import Granting, OwnedStore
from dibs.services.reading import walk_snapshots

_MOST_LOOKED_AT = 200
_MOST_LISTED = 50
_SCARCE = 0.1
"""Below so much of its limit, a budget is scarce."""
_SETTLES_PER_TTL = 5
_PROBE, _PROBE_STAGE = IssueRef("~doctor", "probe"), StageName("~owner")
"""The stage of owners: a live lease in it is not taken for the work of another backlog."""
_PROBE_TTL, _PROBE_AGAIN_S = timedelta(seconds=5), 0.2


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    check: str
    level: Level
    text: str
    look: str = ""
    """Where to look next. Never a command that changes leases, issues or settings of others."""


def fine(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def failed(check: str, error: DibsError, look: str = "") -> Finding:
    """`look`: where to look if the error itself does not say."""
    return Finding(check, Level.FAIL, str(error), error.hint or look)


class Subject(Struct, frozen=True):
    """The parts of a backlog that the checks examine."""

    tracker: Tracker
    leases: ShownLeases
    store: LeaseStore | None
    """None if the tracker's comments are the leases."""
    granting: Granting
    pauses: Pauses
    pipeline: Pipeline
    settle: timedelta | None
    """As set in the settings; None for the tracker's own value."""
    keyring: Keyring | None
    author: str
    """The name under which this process writes, if the tracker has no accounts."""
    local_now: Callable[[], datetime]
    clock: Clock
    new_run: Callable[[], RunId]
    store_page: str
    """Where the documentation describes the store; empty for another distribution's."""
    budgets: Callable[[], tuple[BudgetReport, ...]]
    probing: Callable[[], Probing] | None = None
    """None: the tracker is no server elsewhere about which anything is assumed."""


_Check = Callable[[Subject], Iterator[Finding]]
_CHECKS: dict[str, _Check] = {}
"""The checks that need a tracker that answers, by name, in the order in which they run."""


def _check(name: str) -> Callable[[_Check], _Check]:
    """Register a check of `Diagnosing.examine`. The checks run in the order of their definition."""

    def register(check: _Check) -> _Check:
        _CHECKS[name] = check
        return check

    return register


class Diagnosing:
    def __init__(self, subject: Subject) -> None:
        self._of = subject

    def trial(self) -> "Trial":
        """A run of the probes. Raises Misuse for a tracker about which nothing is assumed."""
        of, traits = self._of, self._of.tracker.traits
        if of.probing is None:
            raise Misuse(f"{traits.name} has nothing to try: --live is for trackers on GitHub")
        settle = traits.settle if of.settle is None else of.settle
        return Trial(of.probing(), settle, traits.settle)

    def examine(self, unopened: Finding | None = None) -> Iterator[Finding]:
        """Run the checks that ask the tracker or the store, with a few requests at most for each.

        An error ends only its own check, with a failed finding. If the tracker does not answer, no
        further check asks the tracker. `unopened`: that the configured store cannot be opened; then
        no check asks a store.
        """
        of = self._of
        try:
            traits = of.tracker.traits
            now = of.tracker.find(IssueQuery(limit=1)).now
            place = f", repository {traits.repo}" if traits.repo not in traits.name else ""
            ahead_s = now.timestamp() - of.local_now().timestamp()
            side = "ahead of" if ahead_s > 0 else "behind"
            difference = f"{describe_span(timedelta(seconds=ahead_s))} {side} ours"
            clock = f"its clock is {difference}, and only its own counts"
            reached = fine("tracker", f"{traits.name}{place} answers; {clock}")
        except DibsError as error:
            reached = failed("tracker", error)
        yield reached
        yield from about_terms(of.pipeline, of.settle, of.tracker.traits)
        names = tuple(_CHECKS)
        if reached.level is Level.FAIL:
            names = ("leases",) if of.store is not None else ()
        if unopened is not None:
            yield unopened
            names = tuple(name for name in names if name not in ("leases", "granter", "signing"))
        for name in names:
            try:
                yield from _CHECKS[name](of)
            except DibsError as error:
                yield failed(name, error, of.store_page if name == "leases" else "")


_LEVELS = {
    ProbeVerdict.HOLDS: Level.OK,
    ProbeVerdict.DIFFERS: Level.WARN,
    ProbeVerdict.UNKNOWN: Level.WARN,
    ProbeVerdict.BREAKS: Level.FAIL,
}
_ASSUMPTIONS = "see docs/internals/github-assumptions.md"


class Trial(Struct):
    """One run of the tracker's probes: `doctor --live`."""

    probing: Probing
    settle: timedelta
    """In force now."""
    own: timedelta
    """The adapter's own settle, and the least that is proposed: few reads show no rare lag."""
    lags: list[Lag] = []

    @property
    def proposed(self) -> timedelta:
        """Twice the longest lag that was seen, in whole seconds; at least the adapter's own."""
        return max(self.own, timedelta(seconds=ceil(2 * self._longest_s)))

    @property
    def _longest_s(self) -> float:
        return max((max(lag.seconds) for lag in self.lags), default=0.0)

    def run(self) -> Generator[Finding]:
        """A finding for each probe, as it ends. Closing the iterator cleans up as well."""
        with closing(self.probing.run()) as probes:
            for probed in probes:
                if isinstance(probed, Lag):
                    self.lags.append(probed)
                    text = f"over {probed.over}: p50 {median(probed.seconds):.2f} s, "
                    text += f"max {max(probed.seconds):.2f} s in {len(probed.seconds)} writes"
                    yield fine("lag", text)
                else:
                    level = _LEVELS[probed.verdict]
                    look = "" if level is Level.OK else _ASSUMPTIONS
                    yield Finding(probed.probe, level, probed.text, look)
        now, proposed = format_duration(self.settle), format_duration(self.proposed)
        if not self.lags:
            text = "the lag could not be measured, so nothing is known of settle"
            yield Finding("settle", Level.WARN, text, _ASSUMPTIONS)
        elif self.settle < self.proposed:
            text = f"settle is {now}, and {proposed} follows from the lag"
            look = f'set settle = "{proposed}" in the settings of every worker'
            seen = self._longest_s > self.settle.total_seconds()
            yield Finding("settle", Level.FAIL if seen else Level.WARN, text, look)
        else:
            yield fine("settle", f"settle is {now}; {proposed} would follow from the lag")


@_check("account")
def _account(of: Subject) -> Iterator[Finding]:
    if not of.tracker.traits.accounts:
        yield fine("account", f"the tracker has no accounts; we write as {of.author}")
    elif (login := of.tracker.login()) is None:
        text = "the tracker does not say which account this is"
        look = "name the fleet's own accounts in [people] fleet"
        yield Finding("account", Level.WARN, text, look)
    else:
        yield fine("account", f"we are {login}")


@_check("trust")
def _trust(of: Subject) -> Iterator[Finding]:
    if not of.tracker.traits.accounts:
        yield fine("trust", "every account that can write to the tracker is trusted")
        return
    stands = of.tracker.standpoint()
    if stands.may_write is False:
        text = f"we may not write here ({stands.permission or 'no permission'})"
        yield Finding("account", Level.FAIL, text, "give the account or the token write access")
    elif stands.permission:
        yield fine("account", f"our permission: {stands.permission}")
    yield fine("trust", f"trusted: {stands.believed}")
    if stands.doubt:
        look = "name all accounts of the fleet in [github] trusted, in every worker's settings"
        yield Finding("trust", Level.WARN, stands.doubt, look)
    if stands.ours_count is False:
        text = "cards by our own account do not count, so no claim of ours would count"
        look = "give the account write access, or name it in [github] trusted"
        yield Finding("trust", Level.FAIL, text, look)


@_check("labels")
def _labels(of: Subject) -> Iterator[Finding]:
    wanted = of.pipeline.every_label
    if not of.tracker.traits.accounts:
        yield fine("labels", "the tracker needs none made")
    elif missing := of.tracker.missing_labels(wanted):
        text = f"{len(missing)} of {len(wanted)} labels are not there: {', '.join(missing)}"
        yield Finding("labels", Level.WARN, text, "dibs init makes them, with their colours")
    else:
        yield fine("labels", f"all {len(wanted)} labels of the pipeline are there")
    if of.tracker.traits.accounts and (misspelt := of.tracker.misspelt_labels(wanted)):
        pairs = ", ".join(f"{ours!r} is {theirs!r}" for ours, theirs in misspelt.items())
        text = f"the tracker spells labels in another case, which dibs takes for the same: {pairs}"
        look = "spell them alike in the settings or in the tracker, for people and other tools"
        yield Finding("labels", Level.WARN, text, look)


@_check("comments")
def _comments(of: Subject) -> Iterator[Finding]:
    """Whether every comment of the foremost issues can be read: no other issue is ever claimed."""
    served = [stage for stage in of.pipeline.stages if stage.served]
    if not of.tracker.traits.shortlists or not served:
        return
    looks = [IssueQuery(stage.entry_labels, limit=_MOST_LISTED) for stage in served]
    seen = list(walk_snapshots(of.tracker, *looks))
    short = [snapshot for snapshot in seen if not snapshot.complete]
    if short:
        first, more = short[0], f" and {len(short) - 1} more" if len(short) > 1 else ""
        text = (
            f"only {len(first.comments)} of {first.issue.comment_count} comments of "
            f"{first.issue.ref}{more} can be read, so no worker claims it"
        )
        yield Finding("comments", Level.WARN, text, "see docs/trackers/github.md#what-is-read")
    elif seen:
        yield fine("comments", f"all comments of the {len(seen)} foremost issues can be read")


@_check("leases")
def _leases(of: Subject) -> Iterator[Finding]:
    probed = ""
    if of.store is not None:
        of.store.live(None, 1)
        of.store.read(IssueRef(_PROBE.repo, "owner"))  # compares the owner of the names
        probed = f"; a probe lease was granted and given back, fence {_probe(of, of.store)}"
    guarantees = of.leases.guarantees
    yield fine("leases", f"kept in {of.leases.name}: {', '.join(guarantees.names)}{probed}")
    for worry in worries_of(of.store):
        yield Finding("leases", Level.WARN, worry, of.store_page)
    unsafe = [stage.name for stage in of.pipeline.stages if stage.irreversible]
    if unsafe and PROTECTIVE not in guarantees:
        text = f"stage {unsafe[0]!r} is irreversible, and this store is not atomic and fenced"
        yield Finding("leases", Level.FAIL, text, "see: dibs stores")


def _probe(of: Subject, store: LeaseStore) -> int:
    """Take a lease on a name of its own, give it back, and return its fence.

    Asks the store beneath `OwnedStore`: a look must not make the backlog an owner. A probe that
    another doctor holds is waited for: it is given back at once, or runs out.
    """
    beneath = store.store if isinstance(store, OwnedStore) else store
    bid = Bid(_PROBE, of.new_run(), HolderId(of.author), _PROBE_STAGE, _PROBE_TTL)
    until = of.clock.now() + 2 * _PROBE_TTL.total_seconds()
    answer = beneath.acquire(bid)
    while isinstance(answer, Busy) and of.clock.now() < until:
        of.clock.sleep(_PROBE_AGAIN_S)
        answer = beneath.acquire(bid)
    if not isinstance(answer, Granted):
        raise Unavailable(f"{store.name} granted no probe lease ({answer})")
    given_back = beneath.release(answer.lease, Ending(Outcome.CONCEDED))
    if not isinstance(given_back, Released):
        raise Unavailable(f"{store.name} lost a probe lease within {_PROBE_TTL.seconds} s")
    return answer.lease.fence


def worries_of(store: LeaseStore | None) -> tuple[str, ...]:
    """What the server of the store does not keep, although its kind of store promises it."""
    beneath: object = store.store if isinstance(store, OwnedStore) else store
    return beneath.worries() if isinstance(beneath, Worrying) else ()


@_check("granter")
def _granter(of: Subject) -> Iterator[Finding]:
    for reason in of.granting.objections():
        yield Finding("granter", Level.FAIL, reason.text, reason.remedy)
        return
    granter = of.granting.granter
    match granter:
        case None:
            text = (
                "nothing was granted yet; the first store that grants a lease becomes the granter"
            )
        case Appointed(store, floor):
            text = f"leases are granted by {store}" + (f", above fence {floor}" if floor else "")
        case Moving(origin, target):
            text = f"leases are moving from {origin} to {target}"
        case _:
            assert_never(granter)
    yield fine("granter", text)


@_check("signing")
def _signing(of: Subject) -> Iterator[Finding]:
    """While the signing is lenient: whether a live lease would not count under strict signing."""
    keyring = of.keyring
    if keyring is None or keyring.strictness is Strictness.STRICT:
        return
    held: list[str] = []
    claimed = IssueQuery((of.pipeline.labels.claimed,), limit=_MOST_LOOKED_AT)
    for snapshot in walk_snapshots(of.tracker, claimed):
        live = of.leases.standing(snapshot).live
        card = live.lease.card if live is not None else None
        bodies = [comment.body for comment in snapshot.comments if comment.id == card]
        ref = snapshot.issue.ref
        if any(verify(body, ref, keyring) is Signed.UNSIGNED for body in bodies):
            held.append(str(ref))
    if held:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        few = ", ".join(held[:3]) + more
        text = f"{len(held)} leases are held by cards without a signature: {few}"
        look = "stay lenient until they have ended or were renewed by a process with the key"
        yield Finding("signing", Level.WARN, text, look)
    else:
        yield fine("signing", "every card in force is signed; strict would change nothing now")


@_check("pauses")
def _pauses(of: Subject) -> Iterator[Finding]:
    for pause in of.pauses.pauses():
        since = format_instant(pause.since)
        text = f"{pause.by or 'somebody'} paused the {pause.scope.value} at {since}"
        yield Finding("pauses", Level.WARN, f"{text}: {pause.reason}", "see: dibs status")
    if isinstance(of.pauses, Worrying):
        for worry in of.pauses.worries():
            yield Finding("pauses", Level.WARN, worry, "see docs/trackers/github.md")


@_check("budget")
def _budget(of: Subject) -> Iterator[Finding]:
    for report in of.budgets():
        if report.shut is not None:
            text = f"{report.place} is left alone for {report.shut.wait_s:.0f} s: {report.shut.why}"
            yield Finding("budget", Level.WARN, text, "see: dibs budget")
        if report.trouble is not None:
            text = f"{report.place} did not say what is left: {report.trouble}"
            yield Finding("budget", Level.WARN, text, "see: dibs budget")
        for allowance in report.allowances:
            left = f"{allowance.name}: {allowance.remaining} of {allowance.limit} left"
            text = f"{left} until {format_instant(allowance.resets_at)}"
            scarce = allowance.remaining < allowance.limit * _SCARCE
            level, look = (Level.WARN, "see: dibs budget") if scarce else (Level.OK, "")
            yield Finding("budget", level, text, look)


@_check("storage")
def _storage(of: Subject) -> Iterator[Finding]:
    if not of.tracker.traits.checks_itself:
        return
    flaws = of.tracker.flaws()
    for flaw in flaws:
        yield Finding("storage", Level.FAIL, flaw, "see docs/operate/recovery.md")
    if not flaws:
        yield fine("storage", "the tracker finds no damage in its own storage")


# Checks that need no network


def about_signing(keyring: Keyring | None) -> Iterator[Finding]:
    """Whether marks are signed, and with which keys."""
    if keyring is None:
        yield fine("signing", "off: marks count by who wrote them (DIBS_SIGNING_KEY is not set)")
        return
    first, *others = keyring.ids
    verified = f"; also verified: {', '.join(others)}" if others else ""
    if keyring.strictness is Strictness.LENIENT:
        text = f"lenient: we sign with {first}{verified}; unsigned marks count, too"
        look = "set DIBS_SIGNING to strict once every process has the key"
        yield Finding("signing", Level.WARN, text, look)
    else:
        yield fine("signing", f"strict: we sign with {first}{verified}; only signed marks count")


def about_gates(pipeline: Pipeline, keyring: Keyring | None) -> Iterator[Finding]:
    """Whether the gates that demand signed approvals can be opened, and what they keep."""
    signed = [stage for stage in pipeline.stages if isinstance(stage.gate, SignedGate)]
    if signed and keyring is None:
        text = f"stage {signed[0].name!r} demands signed approvals; DIBS_SIGNING_KEY is not set"
        yield Finding("gates", Level.FAIL, text, "see docs/guides/sign-your-marks.md")
    for stage in signed:
        if isinstance(stage.handler, NoHandler):
            text = f"stage {stage.name!r} has a signed gate and no handler: a label leads around it"
            look = "see docs/concepts/stages-and-gates.md#signed-gates"
            yield Finding("gates", Level.WARN, text, look)


def about_terms(
    pipeline: Pipeline, settle: timedelta | None, traits: TrackerTraits | None
) -> Iterator[Finding]:
    """Whether the shortest ttl is long enough for settle.

    `settle` is None if not set, `traits` is None if the tracker was not asked.
    """
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
    """Whether the repositories are there, if a stage works in worktrees."""
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


def about_handlers(
    pipeline: Pipeline, runner: Runner, look_for: Callable[[str], None] | None = None
) -> Iterator[Finding]:
    """Whether the handlers of the stages can be started.

    `look_for` looks for a Python handler without importing it; None: the runner imports it.
    """
    found, usable, unimported = 0, 0, ""
    for stage in pipeline.stages:
        if not isinstance(stage.handler, Command | PythonCallable):
            continue
        found += 1
        try:
            if look_for is not None and isinstance(stage.handler, PythonCallable):
                look_for(stage.handler.target)
                unimported = "; --handlers also imports those in Python"
            else:
                runner.check(
                    stage.handler,
                    elsewhere=stage.worktree != NoWorktree(),
                    run_as=stage.run_as,
                    env=stage.env,
                    pass_env=stage.pass_env,
                )
            usable += 1
        except DibsError as error:
            yield Finding("handlers", Level.FAIL, f"stage {stage.name!r}: {error}", error.hint)
    if not found:
        text = "no stage has one, so dibs work has nothing to run"
        look = "a [[stage]] in dibs.toml sets one with run or python; dibs work --run gives one too"
        yield Finding("handlers", Level.WARN, text, look)
    elif usable == found:
        text = f"{found} of {len(pipeline.stages)} stages have one that can start{unimported}"
        yield fine("handlers", text)


_MAYBE_PLAIN = ("disable", "allow", "prefer")
"""The modes in which libpq logs in without TLS, always or if the server wants it so."""


def about_wires(place: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether a tracker's or a store's password leaves this machine without TLS."""
    from urllib.parse import parse_qsl, urlsplit

    scheme, found, rest = place.partition("://")
    try:
        parts = urlsplit(f"place://{rest}")
    except ValueError:  # opening the place says what is wrong
        return
    options = dict(parse_qsl(parts.query))
    login, _, hosts = parts.netloc.rpartition("@")
    match scheme:
        case "redis" | "redis+sentinel" | "redis+cluster" | "etcd":
            plain = ":" in login or "sentinel_password" in options
        case "git:http":  # git may find a password elsewhere
            plain = True
        case "postgresql" | "postgres":
            plain = options.get("sslmode", environment.get("PGSSLMODE")) in _MAYBE_PLAIN
            given = options.get("hostaddr") or options.get("host") or hosts
            hosts = given or environment.get("PGHOST", "")
        case _:
            plain = False
    names = [
        host if host.count(":") > 1 and "[" not in host else re.sub(r"^\[|\]?(:\d+)?$", "", host)
        for host in hosts.split(",")
    ]
    away = [name for name in names if not this_machine(name)]
    if plain and away:
        text = f"{scheme}: a password may go to {', '.join(away)} without TLS, readable on the way"
        look = "see the store's page in docs/stores: rediss://, etcds://, sslmode, https://"
        yield Finding("wires", Level.WARN, text, look)
    elif found:
        yield fine("wires", f"no password leaves this machine without TLS for {scheme}")


def about_environment(
    pipeline: Pipeline, environment: Mapping[str, str], may_pass: Callable[[str], bool]
) -> Iterator[Finding]:
    """The names of the variables for the handler of each stage; never the values."""
    for stage in pipeline.stages:
        if not isinstance(stage.handler, Command | PythonCallable):
            continue
        seen = passed_on(environment, stage.env, stage.pass_env, may_pass)
        named = f"stage {stage.name!r}"
        user = f", as the user {stage.run_as}" if stage.run_as else ""
        yield fine("environment", f"{named}{user}: a handler sees {', '.join(sorted(seen))}")
        if credentials := [name for name in sorted(seen) if looks_secret(name)]:
            text = f"{named}: these look like credentials: {', '.join(credentials)}"
            look = (
                "a handler and all that it starts can use them; see docs/reference/environment.md"
            )
            yield Finding("environment", Level.WARN, text, look)
