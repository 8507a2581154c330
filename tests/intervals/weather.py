"""Holders of one store in bad weather: who is killed, frozen, cut off or misled about the time.

The faults are drawn from a deck that holds each kind equally often. Most of them hit a process that
holds a lease right now, as its log shows.
"""

import heapq
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct
from tests.servers.proxy import Proxy
from tests.servers.wall_clock import WallClock

from dibs.adapters.system import SystemClock

from .grounds import Ground
from .judging import Ended, Record, read_log
from .writing_down import Orders

ROOT = Path(__file__).parents[2]
COMPILED = str(Path(tempfile.gettempdir()) / f"dibs-intervals-{os.getuid()}")
STEPS_S = (-400 * 86400, -3600, -5, 5, 3600, 400 * 86400)
PATIENCE_S = 60.0
HIT_THE_HOLDER = 0.7


class Member:
    """A holder's process, and what is its own: a log, a connection, perhaps a clock."""

    def __init__(self, orders: Orders, proxy: Proxy | None, program: str, *, stepped: bool) -> None:
        self.log, self.proxy, self.frozen = Path(orders.log), proxy, False
        self.clock = WallClock(self.log.with_suffix(".clock")) if stepped else None
        self._read, self._holds = 0, False
        self._err = self.log.with_suffix(".err")
        words = msgspec.json.encode(orders).decode()
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.intervals.{program}", words],
                cwd=ROOT,
                env=_environment(self.log.parent, self.clock),
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                start_new_session=True,
            )

    def holds(self) -> bool:
        """Whether its last record is not the end of a lease."""
        if self.log.exists():
            with self.log.open("rb") as log:
                log.seek(self._read)
                whole, newline, _ = log.read().rpartition(b"\n")
            self._read += len(whole + newline)
            for record in read_log(whole + newline):
                self._holds = not isinstance(record, Ended)
        return self._holds

    def tell(self, what: signal.Signals, *, alone: bool = False) -> None:
        """A signal to the process, and unless it is meant `alone`, to what it has started."""
        (os.kill if alone else os.killpg)(self.process.pid, what)

    def ended_badly(self) -> str:
        """What it said, if it was not we who ended it; SIGTERM may come before it listens."""
        code = self.process.returncode
        if code in (0, -signal.SIGKILL, -signal.SIGTERM):
            return ""
        said = self._err.read_text("utf-8", errors="replace").strip().splitlines()
        return f"{self.log.stem} ended with {code}: {' / '.join(said[-3:])}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


def _environment(folder: Path, clock: WallClock | None) -> dict[str, str]:
    """Ours, without the settings of dibs; and dibs is compiled once, not at each start."""
    not_ours = ("DIBS_", "PYTHONDONTWRITEBYTECODE")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(not_ours)}
    own = {"DIBS_STATE": str(folder / "state"), "PYTHONPYCACHEPREFIX": COMPILED}
    return {**ours, **own, **(clock.environment() if clock else {})}


class Repair(Struct, order=True):
    at: float
    number: int
    do: Callable[[], None]


class Weather:
    """What happens to one ground, until it is called off."""

    def __init__(self, ground: Ground, seed: int, *, members: int, forward: bool) -> None:
        self._ground, self._size, self._forward = ground, members, forward
        self._dice = random.Random(seed)
        self._clock = SystemClock()
        self._numbers = itertools.count(1)
        self._repairs: list[Repair] = []
        self._crew: list[Member] = []
        self._server_hit = self._locked = False
        self.faults: Counter[str] = Counter()
        self.history: list[str] = []
        self.flaws: list[str] = []

    # From beginning to end

    def blow(self, seconds: float, enough: Callable[[Iterable[Record]], bool]) -> None:
        """For so long, and on a slow machine for up to four times as long, until it is enough."""
        deck = self._deck()
        strike_at = self._clock.now() + 2 * self._ground.ttl_s
        end = self._clock.now() + seconds
        most = end + 3 * seconds
        self._crew = [self._enlist() for _ in range(self._size)]
        while (now := self._clock.now()) < most:
            if now >= end:
                if enough(self.records()):
                    break
                end = now + seconds / 10
            while self._repairs and self._repairs[0].at <= now:
                heapq.heappop(self._repairs).do()
            self._replace_the_gone()
            if now >= strike_at:
                next(deck)()
                strike_at = now + self._ground.ttl_s * self._dice.uniform(0.2, 1.0)
            self._clock.sleep(0.02)
        self._calm()

    def records(self) -> Iterator[Record]:
        for log in sorted(self._ground.folder.glob("*.log")):
            yield from read_log(log.read_bytes())

    def close(self) -> None:
        for member in self._crew:
            member.close()

    def _calm(self) -> None:
        """Everything works again; the holders give back what they hold, and leave."""
        while self._repairs:
            heapq.heappop(self._repairs).do()
        for member in self._crew:
            member.tell(signal.SIGTERM)
        for member in self._crew:
            try:
                member.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.flaws.append(f"{member.log.stem} did not end within {PATIENCE_S:.0f} s")
            else:
                self._note_ended(member)

    # The holders

    def _enlist(self) -> Member:
        number, ground = next(self._numbers), self._ground
        who = f"holder-{number}"
        leases, folder, proxy = ground.reach(who)
        orders = Orders(
            *(leases, str(folder), who, ground.names, ground.by_issue, ground.ttl_s),
            log=str(ground.folder / f"{who}.log"),
            seed=self._dice.randrange(2**32),
        )
        return Member(orders, proxy, ground.program, stepped=number % 2 == 0)

    def _replace_the_gone(self) -> None:
        for place, member in enumerate(self._crew):
            if member.process.poll() is not None:
                self._note_ended(member)
                self._crew[place] = self._enlist()

    def _note_ended(self, member: Member) -> None:
        if flaw := member.ended_badly():
            self.flaws.append(flaw)

    def _victim(self, fit: Callable[[Member], bool] = lambda _: True) -> Member | None:
        able = [
            member
            for member in self._crew
            if not member.frozen and member.process.poll() is None and fit(member)
        ]
        holding = [member for member in able if member.holds()]
        if holding and self._dice.random() < HIT_THE_HOLDER:
            return self._dice.choice(holding)
        return self._dice.choice(able) if able else None

    # What goes wrong

    def _deck(self) -> Iterator[Callable[[], None]]:
        server = self._ground.server
        cards = [self._kill, self._freeze, self._freeze, self._step]
        cards += [self._cut, self._cut, self._stop_server, self._freeze_server] if server else []
        cards += [self._step_server] if server and server.clock else []
        cards += [self._lock] if self._ground.file else []
        while True:
            self._dice.shuffle(cards)
            yield from cards

    def _struck(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self.history.append(f"{self._clock.now():.3f} {kind}: {what}")

    def _later(self, least: float, most: float, repair: Callable[[], None]) -> None:
        """Repair it after so many ttl."""
        after_s = self._ground.ttl_s * self._dice.uniform(least, most)
        at = self._clock.now() + after_s
        heapq.heappush(self._repairs, Repair(at, next(self._numbers), repair))

    def _kill(self) -> None:
        if (member := self._victim()) is not None:
            member.tell(signal.SIGKILL, alone=self._dice.random() < 0.5)
            self._struck("kill", member.log.stem)

    def _freeze(self) -> None:
        if (member := self._victim()) is None:
            return
        alone = self._dice.random() < 0.5

        def thaw() -> None:
            member.frozen = False
            if member.process.poll() is None:
                member.tell(signal.SIGCONT, alone=alone)

        member.tell(signal.SIGSTOP, alone=alone)
        member.frozen = True
        self._struck("freeze", member.log.stem)
        self._later(0.5, 2.5, thaw)

    def _cut(self) -> None:
        member = self._victim(lambda one: one.proxy is not None)
        if member is None or (proxy := member.proxy) is None:
            return
        if self._dice.random() < 0.4:
            nth, silently = self._dice.randint(1, 3), self._dice.random() < 0.5
            proxy.lose_reply(nth, silently=silently)
            self._struck("cut", f"{member.log.stem} loses a reply")
            return
        how = self._dice.choice((Proxy.cut, Proxy.swallow, Proxy.hold_up))
        how(proxy)
        self._struck("cut", f"{member.log.stem} {how.__name__}")
        self._later(0.2, 2.0, proxy.pass_on)

    def _step(self) -> None:
        member = self._victim(lambda one: one.clock is not None)
        if member is not None and member.clock is not None:
            member.clock.step(step_s := self._dice.choice(STEPS_S))
            self._struck("step", f"{member.log.stem} {step_s:+d} s")

    def _lock(self) -> None:
        if self._locked:
            return
        try:
            connection = self._ground.lock()
        except sqlite3.OperationalError:
            return  # a holder is writing right now

        def unlock() -> None:
            connection.close()
            self._locked = False

        self._locked = True
        self._struck("lock", "the file")
        self._later(0.2, 1.5, unlock)

    def _stop_server(self) -> None:
        server = self._ground.server
        if self._server_hit or server is None:
            return

        def start() -> None:
            server.start()
            self._server_hit = False

        self._server_hit = True
        server.stop()
        self._struck("server stop", "")
        self._later(0.0, 1.0, start)

    def _freeze_server(self) -> None:
        server = self._ground.server
        if self._server_hit or server is None:
            return

        def thaw() -> None:
            server.process.thaw()
            self._server_hit = False

        self._server_hit = True
        server.process.freeze()
        self._struck("server freeze", "")
        self._later(0.2, 1.8, thaw)

    def _step_server(self) -> None:
        server = self._ground.server
        if server is not None and server.clock is not None:
            step_s = (
                self._ground.ttl_s * self._dice.uniform(0.1, 1.0) * (1 if self._forward else -1)
            )
            server.clock.step(step_s)
            self._struck("server step", f"{step_s:+.3f} s")


def weathered(
    ground: Callable[[Path, ExitStack], Ground],
    folder: Path,
    *,
    seconds: float,
    enough: Callable[[Iterable[Record]], bool],
    seed: int,
    members: int,
    forward: bool,
) -> Weather:
    """The weather when it is over, with nothing left that runs."""
    with ExitStack() as opened:
        weather = Weather(ground(folder, opened), seed, members=members, forward=forward)
        opened.callback(weather.close)
        weather.blow(seconds, enough)
        return weather
