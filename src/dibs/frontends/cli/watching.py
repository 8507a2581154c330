"""The board on a terminal, until a key or a signal ends it.

A thread reads the survey again and again; the main thread draws and takes keys, so that a slow
tracker holds up neither. The terminal is restored at every end: a key, an error or a signal.
"""

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType

from msgspec.structs import replace
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from dibs.core.errors import DibsError, Outage, RateLimited
from dibs.core.ids import LocalTime
from dibs.frontends.cli.board import Sight, View, page, picture
from dibs.frontends.cli.operating import last_line
from dibs.ports.system import Clock
from dibs.services.board import Survey
from dibs.wiring import mask

_TICK_S = 0.5
_SHARE = 9
"""A pause is at least so many times as long as the reading before it."""
_ENTER, _ESCAPE, _ERASE = ("\r", "\n"), "\x1b", ("\x7f", "\b")
_UP, _DOWN = ("k", "\x1b[A", "\x1bOA"), ("j", "\x1b[B", "\x1bOB")
_ARROWS = (*_UP[1:], *_DOWN[1:])


class Looks:
    """Reads the survey in a thread of its own, again and again."""

    def __init__(
        self,
        look: Callable[[], Survey],
        clock: Clock,
        pace_s: Callable[[Survey], float],
        *,
        sparing: bool,
    ) -> None:
        """`pace_s`: the pause after a survey; `sparing`: longer after a reading that took long."""
        self._look, self._clock, self._pace_s, self._sparing = look, clock, pace_s, sparing
        self.survey = look()  # a first reading that fails is the answer of the command
        self.at = self.began_at = clock.now()
        self.trouble = ""
        self.failure: BaseException | None = None
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self.run, name="dibs-board", daemon=True)

    def __enter__(self) -> "Looks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._wake.set()
        self._thread.join(timeout=2.0)

    @property
    def every_s(self) -> float:
        return self._pace_s(self.survey)

    def now(self) -> None:
        """Read again without a pause."""
        self._wake.set()

    def age(self, since: LocalTime | None = None) -> timedelta:
        """The time since the last reading, or since then."""
        return timedelta(seconds=self._clock.now() - (self.at if since is None else since))

    def run(self) -> None:
        """Read and pause in turn, until the end or a failure that no repetition mends."""
        pause_s = self.every_s
        while True:
            self._clock.wait(self._wake, pause_s)
            self._wake.clear()
            if self._over.is_set():
                return
            pause_s, began = self.every_s, self._clock.now()
            try:
                self.survey, self.trouble = self._look(), ""
                self.at = self._clock.now()
            except Outage as outage:
                if not outage.retryable:
                    self.failure = outage
                    return
                self.trouble = mask(str(outage))
                if isinstance(outage, RateLimited):
                    pause_s = max(pause_s, outage.retry_after_s)
            except Exception as failure:  # noqa: BLE001 - the main thread raises it
                self.failure = failure
                return
            if self._sparing:
                pause_s = max(pause_s, _SHARE * (self._clock.now() - began))


class Screen:
    """The board, or the details of an issue, as the keys have left it."""

    def __init__(
        self, looks: Looks, title: str, runs: Path, details: Callable[[str], Sequence[str]]
    ) -> None:
        self._looks, self._title, self._runs, self._details = looks, title, runs, details
        self._view = View()
        self._opened: Sequence[str] | None = None
        self._first = 0
        stages = looks.survey.overview.stages
        self._done_before = sum(entry.issues for entry in stages if entry.stage.final)

    def draw(self, width: int, height: int) -> Group:
        if self._opened is not None:
            return Group(*page(self._opened, self._first, width, height))
        looks, survey = self._looks, self._looks.survey
        runs = [row.record.lease.run for row in survey.running if row.record]
        sight = Sight(
            survey,
            self._title,
            looks.age(),
            looks.every_s,
            {run: last_line(self._runs, run) for run in runs},
            self._done_before,
            looks.age(looks.began_at),
            looks.trouble,
        )
        return Group(*picture(sight, self._view, width, height))

    def press(self, key: str) -> bool:
        """Take a key. False if it ends the board."""
        if self._opened is not None:
            if key in ("q", _ESCAPE, *_ENTER):
                self._opened = None
            self._first = _scrolled(self._first, key)
        elif self._view.typed:
            self.type(key)
        elif key == "q":
            return False
        elif key == "/" or key.isdecimal():
            self._view = replace(self._view, typed=key, message="")
        elif key == "r":
            self._looks.now()
        elif key == _ESCAPE:
            self._view = View()
        else:
            self._view = replace(self._view, first=_scrolled(self._view.first, key), message="")
        return True

    def type(self, key: str) -> None:
        """Take a key while a filter or a number is typed. A filter counts at once."""
        view, typed = self._view, self._view.typed
        filters = typed.startswith("/")
        if key == _ESCAPE:
            self._view = replace(view, typed="", needle="" if filters else view.needle)
            return
        if key in _ENTER:
            self._view = replace(view, typed="")
            if not filters:
                self.open(typed)
            return
        if key in _ERASE:
            typed = typed[:-1]
        elif key.isprintable() and (filters or key.isdecimal()):
            typed += key
        needle = typed[1:] if filters else view.needle
        self._view = replace(view, typed=typed, needle=needle, first=0)

    def open(self, number: str) -> None:
        """Show the details of an issue, or why there are none."""
        survey = self._looks.survey
        rows = (*survey.people, *survey.running, *survey.coming)
        known = [str(row.issue.ref) for row in rows if row.issue.ref.key == number]
        try:
            lines = self._details(known[0] if known else number)
            self._opened, self._first = "\n".join(lines).splitlines(), 0
        except DibsError as error:
            self._view = replace(self._view, message=mask(str(error)))


def _scrolled(first: int, key: str) -> int:
    return max(0, first + (key in _DOWN) - (key in _UP))


def show(looks: Looks, screen: Screen) -> None:
    """Show the screen until `q`. Raises what ends it otherwise: an error, or an interrupt."""
    console = Console()
    live = Live(
        console=console,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with looks, Keyboard() as keyboard, live:
        while True:
            if looks.failure is not None:
                raise looks.failure
            measured = os.get_terminal_size(sys.stdout.fileno())
            if all(measured):  # rich prefers $COLUMNS and $LINES, which no resizing changes
                console.size = ConsoleDimensions(*measured)
            live.update(screen.draw(console.width, console.height), refresh=True)
            for key in keyboard.pressed():
                if not screen.press(key):
                    return


class Keyboard:
    """Takes keys as they are pressed, and puts the terminal back as it was.

    SIGTERM and SIGHUP end the program as an exception does, so that what is open is closed. Where
    standard input is not a terminal, no key ever comes.
    """

    def __enter__(self) -> "Keyboard":
        self._terminal = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before = termios.tcgetattr(self._terminal) if self._terminal is not None else []

        def end(number: int, _: FrameType | None) -> None:
            raise SystemExit(128 + number)

        ending = (signal.SIGTERM, signal.SIGHUP)
        self._handlers = {number: signal.signal(number, end) for number in ending}
        if self._terminal is not None:
            tty.setcbreak(self._terminal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def pressed(self) -> list[str]:
        """Wait a tick for keys: each a character, or the sequence of an arrow."""
        terminals = [self._terminal] if self._terminal is not None else []
        if not select.select(terminals, [], [], _TICK_S)[0] or self._terminal is None:
            return []
        try:
            text = os.read(self._terminal, 256).decode("utf-8", "ignore")
        except OSError:
            text = ""
        if not text:
            return ["q"]  # the terminal is gone
        keys = []
        while text:
            arrow = next((key for key in _ARROWS if text.startswith(key)), "")
            if not arrow and text[0] == _ESCAPE and text[1:2] in ("[", "O"):
                break  # the sequence of a key without a meaning here
            keys.append(arrow or text[0])
            text = text[len(keys[-1]) :]
        return keys
