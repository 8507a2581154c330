"""A runner of handlers that takes virtual time and ends as it was told to."""

from dataclasses import dataclass, field

from dibs.core.errors import HandlerUnusable
from dibs.ports.system import Assignment, Exited, FinishedRun, Stopped

from .clock import WatchedClock


@dataclass(eq=False)
class ScriptedRun:
    clock: WatchedClock
    assignment: Assignment
    exits: int
    after_s: float
    left: bytes
    said: str
    trusted: list[float]
    obeys: bool = True
    polled_s: float = 0.0
    stops: list[str] = field(default_factory=list)
    killed: bool = False

    def trust_until(self, moment):
        self.trusted.append(moment)

    def poll(self, seconds):
        if self.killed:
            return Stopped("killed")
        if self.stops and self.obeys:
            return Stopped(self.stops[0])
        if self.polled_s >= self.after_s:
            return Exited(self.exits)
        self.polled_s += seconds
        self.clock.pass_on(seconds)  # so that the keeper's threads do what it was time for
        return None

    def stop(self, why):
        self.stops.append(why)

    def kill(self):
        self.killed = True

    def answers(self):
        return self.left, b""

    def last_words(self):
        return self.said


@dataclass(eq=False)
class ScriptedRunner:
    """Every handler exits with `exits` after `after_s` virtual seconds and leaves `left`."""

    clock: WatchedClock
    exits: int = 0
    after_s: float = 0.0
    left: bytes = b""
    said: str = ""
    unusable: str = ""
    cannot_start: str = ""
    runs: list[ScriptedRun] = field(default_factory=list)
    of_the_dead: list[FinishedRun] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)

    def settle(self, run):
        self.settled.append(run)

    def finished_by_the_dead(self):
        while self.of_the_dead:
            yield self.of_the_dead[0]
            self.of_the_dead.pop(0)

    def check(self, handler, **_):
        if self.unusable:
            raise HandlerUnusable(self.unusable)

    def start(self, assignment, trusted_until):
        if self.cannot_start:
            raise HandlerUnusable(self.cannot_start)
        run = ScriptedRun(
            self.clock,
            assignment,
            self.exits,
            self.after_s,
            self.left,
            self.said,
            [trusted_until],
        )
        self.runs.append(run)
        return run
