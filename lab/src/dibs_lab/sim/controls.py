"""Two other protocols in the same world, which the proof must refute.

Both are written from the descriptions in the documents with which this project began, as small
models on the same wires, with the same faults and the same checkers. `seed_script` is the worked
example that uses labels as locks; `state_machine` is the published issue-claim state machine.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Protocol, cast

from msgspec import Struct

from dibs.core.errors import DibsError
from dibs.core.ids import Fence, IssueRef, RunId, ServerTime
from dibs.core.issue import Comment, Snapshot
from dibs.core.pipeline import Pipeline
from dibs.ports.tracker import IssueQuery, Tracker
from dibs_lab.sim import hands
from dibs_lab.sim.exhaustive import Actor, Case, Part
from dibs_lab.sim.fibres import Killed, Process
from dibs_lab.sim.history import Advances, Holds, LetsGo
from dibs_lab.sim.wires import Wire, WiredTracker
from dibs_lab.sim.world import World


class Control(Protocol):
    """One worker of another protocol. It has no lease object: once it has won, it works."""

    @property
    def name(self) -> str: ...

    @property
    def tracker(self) -> Tracker: ...

    @property
    def pipeline(self) -> Pipeline: ...

    @property
    def ttl(self) -> timedelta: ...

    def new_run(self) -> RunId: ...

    def work(self, issue: IssueRef, run: RunId, fence: Fence) -> None:
        """Work without renewals and without checks: that is how both are described."""
        ...

    def moved_on(self, issue: IssueRef, run: RunId) -> None: ...


def _stage(control: Control) -> str:
    return control.pipeline.stages[0].label


def _done(control: Control) -> str:
    return control.pipeline.stages[-1].label


def seed_script(control: Control) -> None:
    """One pass: scan, label, comment, read; the earliest claim wins, a loser removes the label."""
    _sweep_by_age(control)
    tracker, claimed = control.tracker, "claimed"
    found = tracker.find(IssueQuery((_stage(control),), (claimed,), limit=1)).issues
    if not found:
        return
    issue, run = found[0].ref, control.new_run()
    tracker.edit_labels(issue, add=(claimed,))
    ttl_s = round(control.ttl.total_seconds())
    mine = tracker.comment(issue, f"<!-- claim run={run} ttl={ttl_s}s --> {control.name}")
    claims = _seed_claims(tracker.read(issue))
    earliest = min(claims, key=lambda one: one.created_at, default=mine)
    if f"run={run} " not in earliest.body:
        tracker.edit_labels(issue, remove=(claimed,))
        return
    control.work(issue, run, Fence(mine.id))
    tracker.edit_labels(issue, add=(_done(control),))
    tracker.edit_labels(issue, remove=(_stage(control), claimed))
    control.moved_on(issue, run)


def _seed_claims(snapshot: Snapshot) -> list[Comment]:
    return [one for one in snapshot.comments if one.body.startswith("<!-- claim run=")]


def _sweep_by_age(control: Control) -> None:
    """Its sweep: if the latest claim is older than its ttl, remove the label."""
    for issue in control.tracker.find(IssueQuery((_stage(control), "claimed"))).issues:
        snapshot = control.tracker.read(issue.ref)
        claims = _seed_claims(snapshot)
        if claims and claims[-1].created_at + control.ttl < snapshot.now:
            control.tracker.edit_labels(issue.ref, remove=("claimed",))


_CLAIM = re.compile(r"<!-- agent-claim:codename=(\S+) firing_id=(\S+) ")
_RELEASE = re.compile(r"<!-- agent-release:codename=(\S+) firing_id=(\S+) ")
_IN_FLIGHT = "agent:in-flight"
_WINDOW = 50


def state_machine(control: Control) -> None:
    """One firing: claim, yield to a strictly earlier claim, work, release; sweep old claims."""
    _sweep_stale(control)
    tracker = control.tracker
    found = tracker.find(IssueQuery((_stage(control),), (_IN_FLIGHT,), limit=1)).issues
    if not found:
        return
    issue, run = found[0].ref, control.new_run()
    seen = tracker.read(issue).issue
    if not seen.open or _IN_FLIGHT in seen.labels or _done(control) in seen.labels:
        return
    tracker.edit_labels(issue, add=(_IN_FLIGHT,))
    tracker.edit_labels(issue, remove=(_stage(control),))
    name = control.name
    mine = tracker.comment(issue, f"<!-- agent-claim:codename={name} firing_id={run} -->")
    if _yields(tracker.read(issue), run, control.ttl):
        _put_back(control, issue, name, run, "race-yielded")
        return
    control.work(issue, run, Fence(mine.id))
    tracker.edit_labels(issue, add=(_done(control),))
    tracker.edit_labels(issue, remove=(_IN_FLIGHT,))
    tracker.comment(issue, f"<!-- agent-release:codename={name} firing_id={run} -->")
    control.moved_on(issue, run)


def _put_back(control: Control, issue: IssueRef, name: str, run: str, outcome: str) -> None:
    control.tracker.edit_labels(issue, add=(_stage(control),))
    control.tracker.edit_labels(issue, remove=(_IN_FLIGHT,))
    body = f"<!-- agent-release:codename={name} firing_id={run} outcome={outcome} -->"
    control.tracker.comment(issue, body)


def _unreleased(comments: Sequence[Comment]) -> list[tuple[str, str, ServerTime]]:
    recent = comments[-_WINDOW:]
    released = {match.groups() for one in recent if (match := _RELEASE.match(one.body))}
    return [
        (match[1], match[2], one.created_at)
        for one in recent
        if (match := _CLAIM.match(one.body)) and match.groups() not in released
    ]


def _yields(snapshot: Snapshot, run: str, window: timedelta) -> bool:
    """Whether an earlier claim has a smaller timestamp; False if our own claim is not visible."""
    claims = _unreleased(snapshot.comments)
    mine = next((at for _, firing, at in claims if firing == run), None)
    if mine is None:
        return False
    return any(
        firing != run and at < mine and at + window >= snapshot.now for _, firing, at in claims
    )


def _sweep_stale(control: Control) -> None:
    """A label without a claim counts as stale at once; a claim when it is older than the limit."""
    tracker = control.tracker
    for issue in tracker.find(IssueQuery((_IN_FLIGHT,))).issues:
        snapshot = tracker.read(issue.ref)
        claims = _unreleased(snapshot.comments)
        stale = [one for one in claims if one[2] + control.ttl < snapshot.now]
        if not claims:
            tracker.edit_labels(issue.ref, add=(_stage(control),))
            tracker.edit_labels(issue.ref, remove=(_IN_FLIGHT,))
        for name, run, _ in stale:
            _put_back(control, issue.ref, name, run, "stale-swept")


Firing = Callable[[Control], None]
"""One pass of another protocol, from its scan to its end."""


# In the random world


class _Simulated(Struct):
    world: World
    process: Process
    wire: Wire
    tracker: Tracker
    working: RunId | None = None

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def pipeline(self) -> Pipeline:
        return self.world.pipeline

    @property
    def ttl(self) -> timedelta:
        return self.world.scenario.terms.ttl

    def new_run(self) -> RunId:
        return self.world.new_run()

    def work(self, issue: IssueRef, run: RunId, fence: Fence) -> None:
        self.wire.note(Holds(issue, run, fence))
        self.working = run
        self.process.sleep(self.world.dice.uniform(*self.world.scenario.work_s))

    def moved_on(self, issue: IssueRef, run: RunId) -> None:
        self.wire.note(Advances(issue, run))

    def stop(self) -> None:
        if self.working is not None:
            self.wire.note(LetsGo(self.working))
            self.working = None

    def rest(self) -> None:
        poll_s = self.world.scenario.ttl_s / 4
        self.process.wait_idly(self.world.dice.uniform(0.5, 1.0) * poll_s)


def workers_of(firing: Firing) -> Callable[[World], None]:
    """A cast: as many workers of another protocol as the scenario has workers of dibs."""

    def cast(world: World) -> None:
        for number in range(1, world.scenario.workers + 1):
            start_control(world, firing, f"w{number}")
        hands.set_out(world)

    return cast


def start_control(
    world: World,
    firing: Firing,
    name: str,
    *,
    doomed: bool = True,
    through: Callable[[WiredTracker], object] = lambda tracker: tracker,
) -> None:
    """One worker of another protocol; `through` is its view of the tracker."""
    process = world.process(name)
    wire = world.wire(process)
    seen = cast("Tracker", through(world.tracker(wire)))
    control = _Simulated(world, process, wire, seen)
    if doomed:
        world.weather.doom(process)

    def main() -> None:
        try:
            process.sleep(world.dice.uniform(0.0, 0.1))
            while True:
                with suppress(DibsError):
                    firing(control)
                control.stop()  # a script that ended with an error stops
                control.rest()
        except Killed:
            again = partial(start_control, world, firing, name, doomed=False, through=through)
            world.replace_dead(name, again)
            raise

    process.start(main, "main")


# In every interleaving


class _Stepped(Struct):
    actor: Actor
    _runs: int = 0

    @property
    def name(self) -> str:
        return self.actor.name

    @property
    def tracker(self) -> Actor:
        return self.actor

    @property
    def pipeline(self) -> Pipeline:
        return self.actor.table.pipeline

    @property
    def ttl(self) -> timedelta:
        return self.pipeline.stages[0].terms.ttl

    def new_run(self) -> RunId:
        self._runs += 1
        return RunId(f"{self.name}{self._runs}")

    def work(self, issue: IssueRef, run: RunId, fence: Fence) -> None:
        self.actor.works = True
        self.actor.await_turn()

    def moved_on(self, issue: IssueRef, run: RunId) -> None:
        self.actor.works = False


def two_claimants_of(firing: Firing) -> Case:
    """The first case of `exhaustive.CASES`, for another protocol."""

    def role(actor: Actor) -> None:
        firing(_Stepped(actor))

    return Case(f"two claimants: {firing.__name__}", (Part("a", role), Part("b", role)), deaths=0)
