"""The faults of a run, and the random numbers that decide when they happen.

All chances are per port call unless the docstring says otherwise. They end with the storm; delays
and lag are properties of the tracker, and stay.
"""

import random
from enum import StrEnum
from typing import NoReturn

from msgspec import Struct

from dibs.core.errors import RateLimited, Unavailable
from dibs.core.events import Step
from dibs_lab.sim.fibres import Process, microseconds
from dibs_lab.sim.history import Fault, History
from dibs_lab.sim.tearing import Tear

_LIVES = 60
"""A process that is to die does so within this many steps: about two claims and a finish."""
_GIVING_UP_S = 10.0
_HALF = 0.5


class Faults(Struct, frozen=True):
    delay_s: float = 0.3
    """Request and reply each take up to this long, so requests overtake each other."""
    slow: float = 0.0
    slow_s: float = 40.0
    """One call takes up to this much longer; the rest of its process continues."""
    freeze: float = 0.0
    freeze_s: float = 40.0
    """The whole process stops for up to this long, without noticing."""
    crash: float = 0.0
    """The chance that a process dies at all, at any step: between two calls or within one."""
    lost_reply: float = 0.0
    """The write takes effect, but its reply does not arrive."""
    straggle: float = 0.0
    """A write's sender gives up on it, and it takes effect later."""
    in_flight_s: float | None = None
    """The longest time that a request may be under way; None: the tracker declares none."""
    cut_short: float = 0.0
    """The server dies in the middle of a trip: the effects before that remain."""
    failed_in_part: float = 0.0
    """One effect of a trip does not happen, and all others do."""
    unavailable: float = 0.0
    rate_limited: float = 0.0
    truncated: float = 0.0
    """A read lacks some of the comments."""
    fail: float = 0.0
    """The chance that a handler fails."""
    read_lag_s: float = 0.0
    """Readers see the server as it was up to this long ago, in order."""
    write_lag_s: float = 0.0
    """Each write becomes visible up to this much later, independently of all others."""
    torn_s: float = 0.0
    """A read takes up to this long: its labels are from its start and its comments from its end, or
    the other way round. Where readers lag, labels and comments lag separately."""
    read_again: float = 0.0
    """A trip's reply does not show the whole issue, so its sender reads the issue as usual."""
    grain_s: float = 1.0
    """The step of the server's timestamps."""
    clock_offset_s: float = 3600.0
    """Every process's clock is wrong by up to this much, in either direction."""
    operator: int = 0
    """The number of graceful revokes."""
    force: int = 0
    """The number of forced revokes."""
    person: int = 0
    """The number of label changes, pauses and re-queues by people."""
    vandal: int = 0
    """The number of cards edited or deleted by people with write access."""
    stranger: int = 0
    """The number of forged cards and revokes by people without write access."""
    bot: int = 0
    """How often another bot writes back the whole set of labels it read a while ago."""

    @property
    def lag_s(self) -> float:
        return self.read_lag_s + self.write_lag_s

    @property
    def tampers(self) -> bool:
        """Whether people with write access end trusted leases: forced revokes, deleted cards."""
        return bool(self.force or self.vandal)


class Trouble(StrEnum):
    NONE = "none"
    UNAVAILABLE = "unavailable"
    RATE_LIMITED = "rate limited"
    LOST_REPLY = "reply lost"
    TRUNCATED = "truncated"
    STRAGGLING = "given up on"
    CUT_SHORT = "cut short"
    FAILED_IN_PART = "failed in part"


class Weather:
    """The faults of one run, drawn from its seed."""

    def __init__(
        self, faults: Faults, dice: random.Random, history: History, *, calm_from_us: int
    ) -> None:
        self.faults = faults
        self.dice = dice
        self._history = history
        self._calm_from_us = calm_from_us
        self._fatal: dict[Process, int] = {}
        delay_us = microseconds(faults.delay_s)
        self._delay_us = delay_us
        self._interrupts = faults.slow > 0 or faults.freeze > 0
        self._troubles = (
            faults.unavailable
            + faults.rate_limited
            + faults.lost_reply
            + faults.truncated
            + faults.straggle
            + faults.cut_short
            + faults.failed_in_part
            > 0
        )
        self._slow_out_us = microseconds(
            faults.slow_s if faults.in_flight_s is None else min(faults.slow_s, faults.in_flight_s)
        )

    def doom(self, process: Process) -> None:
        """Draw whether this process is to die, and at which of its steps."""
        if self.faults.crash > 0 and self.dice.random() < self.faults.crash:
            self._fatal[process] = self.dice.randint(1, _LIVES)

    def storms(self, process: Process) -> bool:
        return process.simulation.now_us < self._calm_from_us

    def travel(self, process: Process, *, out: bool = False) -> None:
        """A request or a reply under way; faults may strike the process meanwhile."""
        self.step(process)
        simulation = process.simulation
        delay_us = int(self.dice.random() * self._delay_us)
        if self._interrupts and self.storms(process):
            if self.dice.random() < self.faults.slow:
                slow_us = self._slow_out_us if out else microseconds(self.faults.slow_s)
                delay_us += int(self.dice.random() * slow_us)
            if self.dice.random() < self.faults.freeze:
                frozen_s = self.dice.random() * self.faults.freeze_s
                self._note(process, Fault("frozen", f"for {frozen_s:.1f} s"))
                process.freeze(frozen_s)
        simulation.pause(delay_us)

    def step(self, process: Process, at: Step | None = None) -> None:
        """Count one step; a process that is to die may die here."""
        process.insist_alive()
        if process not in self._fatal:
            return
        self._fatal[process] -= 1
        if self._fatal[process] <= 0 and self.storms(process):
            self._note(process, Fault("killed", f"after {at.value}" if at else "during a call"))
            process.die()

    def trouble(self, process: Process, *, writes: bool, trip: bool = False) -> Trouble:
        if not self._troubles or not self.storms(process):
            return Trouble.NONE
        drawn, faults = self.dice.random(), self.faults
        for chance, trouble in (
            (faults.unavailable, Trouble.UNAVAILABLE),
            (faults.rate_limited, Trouble.RATE_LIMITED),
            (faults.lost_reply, Trouble.LOST_REPLY if writes else Trouble.UNAVAILABLE),
            (faults.truncated, Trouble.TRUNCATED if trip or not writes else Trouble.NONE),
            (faults.straggle, Trouble.STRAGGLING if writes else Trouble.UNAVAILABLE),
            (faults.cut_short, Trouble.CUT_SHORT if trip else Trouble.NONE),
            (faults.failed_in_part, Trouble.FAILED_IN_PART if trip else Trouble.NONE),
        ):
            if drawn < chance:
                return trouble
            drawn -= chance
        return Trouble.NONE

    def refuse(self, process: Process, trouble: Trouble, op: str) -> NoReturn:
        """The server refuses the request, and answers that it does."""
        self._note(process, Fault(trouble.value, op))
        if trouble is Trouble.RATE_LIMITED:
            raise RateLimited("slow down", retry_after_s=self.dice.uniform(1.0, 10.0))
        raise Unavailable(f"{op}: 502")

    def tear(self) -> Tear | None:
        """How the next read is torn; None if reads are of one moment."""
        torn_us = microseconds(self.faults.torn_s)
        if not torn_us:
            return None
        return Tear(int(self.dice.random() * torn_us), comments_first=self.dice.random() < _HALF)

    def reads_again(self) -> bool:
        """Whether the reply to the next trip shows too little."""
        return self.faults.read_again > 0 and self.dice.random() < self.faults.read_again

    def straggles_us(self) -> int:
        """How long a write that its sender has given up on waits before it takes effect."""
        return int(self.dice.random() * microseconds(self.faults.in_flight_s or 0.0))

    def lose_reply(
        self, process: Process, op: str, trouble: Trouble = Trouble.LOST_REPLY
    ) -> NoReturn:
        """The server did it, or will, and the reply does not arrive."""
        self._note(process, Fault(trouble.value, op))
        process.sleep(self.dice.uniform(0.0, _GIVING_UP_S))
        raise Unavailable(f"{op}: no reply")

    def _note(self, process: Process, fault: Fault) -> None:
        running = process.simulation.running
        self._history.note(process.name, running.number if running else 0, fault)
