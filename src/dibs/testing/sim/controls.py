"""Two other protocols in the same world: what a proof must be able to refute.

Both are written from the descriptions in the documents this project grew out of, as small models
on the same wires, with the same faults, judged by the same checkers. `seed_script` is the worked
example of labels as locks; `state_machine` is the published issue-claim state machine.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from dibs.core.errors import DibsError
from dibs.core.ids import Fence, IssueRef, RunId, ServerTime
from dibs.core.issue import Comment, Thread
from dibs.ports.tracker import IssueQuery
from dibs.testing.sim import hands
from dibs.testing.sim.fibres import Killed, Process
from dibs.testing.sim.history import Advances, Holds, LetsGo
from dibs.testing.sim.wires import Wire, WiredTracker
from dibs.testing.sim.world import World


@dataclass(slots=True)
class Control:
    """One worker of another protocol. It keeps no lease object: once it has won, it works."""

    world: World
    process: Process
    wire: Wire
    tracker: WiredTracker

    @property
    def stage(self) -> str:
        return self.world.pipeline.stages[0].label

    @property
    def done(self) -> str:
        return self.world.pipeline.stages[-1].label

    @property
    def ttl(self) -> timedelta:
        return self.world.scenario.terms.ttl

    def work(self, issue: IssueRef, run: RunId, fence: Fence) -> None:
        """Nothing renews, nothing checks: that is how both are described."""
        self.wire.note(Holds(issue, run, fence))
        self.process.sleep(self.world.dice.uniform(*self.world.scenario.work_s))

    def pause(self) -> None:
        poll_s = self.world.scenario.ttl_s / 4
        self.process.wait_idly(self.world.dice.uniform(0.5, 1.0) * poll_s)


def seed_script(control: Control) -> None:
    """One pass: scan, label, comment, read, earliest claim ever wins, loser takes the label off."""
    _sweep_by_age(control)
    tracker, claimed = control.tracker, "claimed"
    found = tracker.find(IssueQuery((control.stage,), (claimed,), limit=1)).issues
    if not found:
        return
    issue, run = found[0].ref, control.world.new_run()
    tracker.edit_labels(issue, add=(claimed,))
    ttl_s = round(control.ttl.total_seconds())
    mine = tracker.comment(issue, f"<!-- claim run={run} ttl={ttl_s}s --> {control.process.name}")
    claims = _seed_claims(tracker.read(issue))
    earliest = min(claims, key=lambda one: one.created_at, default=mine)
    if f"run={run} " not in earliest.body:
        tracker.edit_labels(issue, remove=(claimed,))
        return
    control.work(issue, run, Fence(mine.id))
    tracker.edit_labels(issue, add=(control.done,))
    tracker.edit_labels(issue, remove=(control.stage, claimed))
    control.wire.note(Advances(issue, run))
    control.wire.note(LetsGo(run))


def _seed_claims(thread: Thread) -> list[Comment]:
    return [one for one in thread.comments if one.body.startswith("<!-- claim run=")]


def _sweep_by_age(control: Control) -> None:
    """Its sweep: the latest claim is older than its ttl, so the label comes off."""
    for issue in control.tracker.find(IssueQuery((control.stage, "claimed"))).issues:
        thread = control.tracker.read(issue.ref)
        claims = _seed_claims(thread)
        if claims and claims[-1].created_at + control.ttl < thread.now:
            control.tracker.edit_labels(issue.ref, remove=("claimed",))


_CLAIM = re.compile(r"<!-- agent-claim:codename=(\S+) firing_id=(\S+) ")
_RELEASE = re.compile(r"<!-- agent-release:codename=(\S+) firing_id=(\S+) ")
_IN_FLIGHT = "agent:in-flight"
_WINDOW = 50


def state_machine(control: Control) -> None:
    """One firing: claim, yield to a strictly earlier claim, work, release; sweep what is old."""
    _sweep_stale(control)
    tracker = control.tracker
    found = tracker.find(IssueQuery((control.stage,), (_IN_FLIGHT,), limit=1)).issues
    if not found:
        return
    issue, run = found[0].ref, control.world.new_run()
    seen = tracker.read(issue).issue
    if not seen.open or _IN_FLIGHT in seen.labels or control.done in seen.labels:
        return
    tracker.edit_labels(issue, add=(_IN_FLIGHT,))
    tracker.edit_labels(issue, remove=(control.stage,))
    name = control.process.name
    mine = tracker.comment(issue, f"<!-- agent-claim:codename={name} firing_id={run} -->")
    if _yields(tracker.read(issue), run, control.ttl):
        _put_back(control, issue, name, run, "race-yielded")
        return
    control.work(issue, run, Fence(mine.id))
    tracker.edit_labels(issue, add=(control.done,))
    tracker.edit_labels(issue, remove=(_IN_FLIGHT,))
    tracker.comment(issue, f"<!-- agent-release:codename={name} firing_id={run} -->")
    control.wire.note(Advances(issue, run))
    control.wire.note(LetsGo(run))


def _put_back(control: Control, issue: IssueRef, name: str, run: str, outcome: str) -> None:
    control.tracker.edit_labels(issue, add=(control.stage,))
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


def _yields(thread: Thread, run: str, window: timedelta) -> bool:
    """Only to a claim with a strictly smaller timestamp; an own claim that is not seen has won."""
    claims = _unreleased(thread.comments)
    mine = next((at for _, firing, at in claims if firing == run), None)
    if mine is None:
        return False
    return any(
        firing != run and at < mine and at + window >= thread.now for _, firing, at in claims
    )


def _sweep_stale(control: Control) -> None:
    """A label without a claim counts as stale at once; a claim, once it is older than the limit."""
    tracker = control.tracker
    for issue in tracker.find(IssueQuery((_IN_FLIGHT,))).issues:
        thread = tracker.read(issue.ref)
        claims = _unreleased(thread.comments)
        stale = [one for one in claims if one[2] + control.ttl < thread.now]
        if not claims:
            tracker.edit_labels(issue.ref, add=(control.stage,))
            tracker.edit_labels(issue.ref, remove=(_IN_FLIGHT,))
        for name, run, _ in stale:
            _put_back(control, issue.ref, name, run, "stale-swept")


Protocol = Callable[[Control], None]


def workers_of(protocol: Protocol) -> Callable[[World], None]:
    """A cast: as many workers of another protocol as the scenario has of ours."""

    def cast(world: World) -> None:
        for number in range(1, world.scenario.workers + 1):
            _start(world, protocol, f"w{number}", doomed=True)
        hands.set_out(world)

    return cast


def _start(world: World, protocol: Protocol, name: str, *, doomed: bool) -> None:
    process = world.process(name)
    wire = world.wire(process)
    control = Control(world, process, wire, world.tracker(wire))
    if doomed:
        world.weather.doom(process)

    def main() -> None:
        try:
            process.sleep(world.dice.uniform(0.0, 0.1))
            while True:
                try:
                    protocol(control)
                except DibsError:
                    control.pause()  # the script ends with an error and is started again
                control.pause()
        except Killed:
            world.replace_dead(name, lambda: _start(world, protocol, name, doomed=False))
            raise

    process.start(main, "main")
