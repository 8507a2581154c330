"""Virtual time and its fibres.

A fibre is a part of a process: its main loop, a job, a keeper. It runs alone until it waits, and
every port call waits. Only the times for which fibres wait decide which fibre runs next, so the
same seed gives the same run. Processes can be killed and frozen from outside, as an operating
system does it: the code in them is not notified.
"""

import heapq
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil

from greenlet import getcurrent, greenlet

from dibs.core.ids import LocalTime, ServerTime

EPOCH = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
_LOCAL_START_S = 100_000.0
_NEVER_US = 1 << 62


def microseconds(seconds: float) -> int:
    """Rounded up: a wait for any positive time must move the clock."""
    return ceil(seconds * 1_000_000)


class Killed(BaseException):
    """The process dies here. Not an Exception: no code of the program may catch it."""


class Fibre:
    """One thread of execution in a process."""

    __slots__ = ("_greenlet", "due", "ended", "name", "number", "process", "watching")

    def __init__(
        self, process: "Process", number: int, name: str, work: Callable[[], None]
    ) -> None:
        self.process = process
        self.number = number
        self.name = name
        self.ended = threading.Event()
        self.watching: threading.Event | None = None
        """The event that ends its wait early."""
        self.due = 0
        """The number of its valid entry in the queue; older entries are void."""
        self._greenlet = greenlet(self._run_to_its_end(work), process.simulation.hub)

    def _run_to_its_end(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Killed:
                pass
            finally:
                self.ended.set()
                self.process.fibres.discard(self)

        return run

    def resume(self) -> None:
        self._greenlet.switch()

    def kill(self) -> None:
        """Let it die at its current point. Its clean-up code runs, and every port refuses it."""
        if self._greenlet:
            self._greenlet.throw(Killed())
        else:  # it never ran
            self.ended.set()
            self.process.fibres.discard(self)

    def join(self) -> None:
        """Wait for its end, as `ports.system` requires."""
        self.process.insist_alive()
        if not self.ended.is_set() and self is not self.process.simulation.running:
            self.process.simulation.wait(self.ended, None)


class Process:
    """A unit that dies at once and freezes as a whole. A `ports.system.Threads`, and a `Clock`."""

    def __init__(self, simulation: "Simulation", name: str, *, clock_offset_s: float = 0.0) -> None:
        self.simulation = simulation
        self.name = name
        self.alive = True
        self.frozen_until_us = 0
        self.fibres: set[Fibre] = set()
        self._nothing = threading.Event()
        self._offset_s = _LOCAL_START_S + clock_offset_s

    # ports.system

    def start(self, work: Callable[[], None], name: str) -> Fibre:
        return self.simulation.start(self, work, name)

    def start_within(
        self,
        seconds: float,
        work: Callable[[], None],
        name: str,
        otherwise: Callable[[], None],
    ) -> Fibre:
        return self.start(work, name)

    # ports.system

    def now(self) -> LocalTime:
        return LocalTime(self._offset_s + self.simulation.now_us / 1_000_000)

    def sleep(self, seconds: float) -> None:
        self.insist_alive()
        if seconds > 0:
            self.simulation.pause(microseconds(seconds))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.insist_alive()
        return self.simulation.wait(event, microseconds(seconds))

    def wait_idly(self, seconds: float) -> None:
        """A rest between two rounds, while no request is under way."""
        self.wait(self._nothing, seconds)

    # What is done to the process

    def insist_alive(self) -> None:
        if not self.alive:
            raise Killed

    def freeze(self, seconds: float) -> None:
        """Nothing in the process runs for so long, and it does not notice."""
        until_us = self.simulation.now_us + microseconds(seconds)
        self.frozen_until_us = max(self.frozen_until_us, until_us)

    def die(self) -> None:
        """Die, called from one of its own fibres; the call does not return."""
        self.alive = False
        self.simulation.leave_dying(self)
        raise Killed

    def kill(self) -> None:
        """Kill the process from outside."""
        self.alive = False
        for fibre in sorted(self.fibres, key=lambda one: one.number):
            fibre.kill()

    @property
    def idle(self) -> bool:
        """Only its main loop exists, and that waits for something to do."""
        if not self.alive or not self.fibres:
            return True
        return len(self.fibres) == 1 and all(one.watching is not None for one in self.fibres)


class Simulation:
    """The queue of all waiting fibres, in the order of virtual time."""

    def __init__(self, *, grain: timedelta = timedelta(milliseconds=1)) -> None:
        self.now_us = 0
        self.switches = 0
        self.running: Fibre | None = None
        self._stepped: Fibre | None = None
        self._grain_us = max(1, grain // timedelta(microseconds=1))
        self._told_grains, self._told = 0, ServerTime(EPOCH)
        self.hub = getcurrent()
        self._queue: list[tuple[int, int, Fibre, int]] = []
        self._order = count()
        self._numbers = count(1)
        self._dying: list[Process] = []

    def server_now(self) -> ServerTime:
        """The server's clock, in whole grains."""
        grains = self.now_us // self._grain_us
        if grains != self._told_grains:
            passed = timedelta(microseconds=grains * self._grain_us)
            self._told_grains, self._told = grains, ServerTime(EPOCH + passed)
        return self._told

    @property
    def passed_s(self) -> float:
        return self.now_us / 1_000_000

    def start(self, process: Process, work: Callable[[], None], name: str) -> Fibre:
        process.insist_alive()
        fibre = Fibre(process, next(self._numbers), name, work)
        process.fibres.add(fibre)
        self._put(fibre, self.now_us)
        return fibre

    # From within a fibre

    def pause(self, duration_us: int) -> None:
        fibre = self._me()
        self._put(fibre, self.now_us + max(0, duration_us))
        self._switch_away(fibre)

    def wait(self, event: threading.Event, duration_us: int | None) -> bool:
        """Wait until the event is set or the time is over; None waits for ever."""
        if event.is_set():
            return True
        fibre = self._me()
        fibre.watching = event
        if duration_us is None:
            fibre.due = next(self._order)  # no time wakes it, so it waits in no queue
        else:
            self._put(fibre, self.now_us + max(0, duration_us))
        try:
            self._switch_away(fibre)
        finally:
            fibre.watching = None
        return event.is_set()

    def park(self) -> None:
        """Wait until this fibre is stepped by hand: no time wakes it."""
        fibre = self._me()
        fibre.due = next(self._order)
        self._switch_away(fibre)

    def leave_dying(self, process: Process) -> None:
        """Let the hub kill the process: a fibre cannot kill its siblings, only return there."""
        self._dying.append(process)

    def _me(self) -> Fibre:
        assert self.running is not None, "only a fibre can wait"
        return self.running

    def _switch_away(self, fibre: Fibre) -> None:
        self.hub.switch()
        if not fibre.process.alive:
            raise Killed

    # From the hub

    def run(self, until_us: int, *, over: Callable[[], bool] = lambda: False) -> None:
        """Run until the time, or until `over` is true because nothing more can happen."""
        while self._queue:
            moment_us, _, fibre, due = self._queue[0]
            if moment_us > until_us:
                break
            heapq.heappop(self._queue)
            process = fibre.process
            if due != fibre.due or fibre.ended.is_set():
                continue
            if process.frozen_until_us > moment_us:
                self._put(fibre, process.frozen_until_us)
                continue
            self.now_us = max(self.now_us, moment_us)
            self.step(fibre)
            waits = fibre.watching is not None or fibre.ended.is_set()
            if waits and process.idle and over():
                return
        self.now_us = max(self.now_us, min(until_us, _NEVER_US))

    def step(self, fibre: Fibre) -> None:
        """Let one fibre run until it waits again."""
        self.switches += 1
        self.running = self._stepped = fibre
        try:
            fibre.resume()
        finally:
            self.running = None
        while self._dying:
            self._dying.pop().kill()
        self._wake_watchers(fibre.process)

    def _wake_watchers(self, process: Process) -> None:
        """Wake fibres whose event is set. Events belong to one process, so only its fibres wait."""
        if len(process.fibres) == 1 and self._stepped in process.fibres:
            return
        woken = [
            one for one in process.fibres if one.watching is not None and one.watching.is_set()
        ]
        for fibre in sorted(woken, key=_number):
            fibre.watching = None
            self._put(fibre, self.now_us)

    def _put(self, fibre: Fibre, moment_us: int) -> None:
        fibre.due = next(self._order)
        heapq.heappush(self._queue, (moment_us, fibre.due, fibre, fibre.due))


def _number(fibre: Fibre) -> int:
    return fibre.number
