"""Where one token's spending is kept: for all processes of this machine in one small file.

GitHub counts by token, and sixteen workers on a host use one. The file is locked for a moment for
each request, and never waited for: whoever holds it may have been stopped. It is no proof of
anything: if it is damaged, it is empty; if it cannot be written, each process counts for itself.
Times in it are the machine's uptime, and mean nothing after a restart.

What is left of a token's budget, for people: what GitHub says, and what we counted ourselves.
"""

import contextlib
import fcntl
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from dibs.adapters.github.limits import (
    Breaker,
    Kind,
    LetThrough,
    Limits,
    Outcome,
    Passed,
    Purpose,
    Refusal,
    Resource,
    Spending,
)
from dibs.adapters.system import BOOT, state_folder
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.system import Clock
from dibs.ports.tracker import Allowance, Kept, Shut

_VERSION = 1
_LOCKED_WITHIN_S = 0.05
_TRY_EVERY_S = 0.002
_LARGEST = 256 * 1024
_MOST_UNWRITTEN = 1000

Told = TypeVar("Told")


class Ledger(Protocol):
    """Safe for many threads. Never raises."""

    @property
    def shared(self) -> bool:
        """Whether the other processes of this machine see what is noted here."""
        ...

    def admit(self, kind: Kind, purpose: Purpose) -> Refusal | None: ...

    def note(self, outcome: Outcome) -> None: ...

    def read(self, look: Callable[[Spending, LocalTime], Told]) -> Told: ...

    def spent(self, resource: Resource) -> bool:
        """Whether nothing is left, as far as this process knows: looks at no file."""
        ...

    def close(self) -> None: ...


class MemoryLedger:
    """Of one process."""

    shared = False

    def __init__(self, clock: Clock, limits: Limits | None = None) -> None:
        self._clock, self._limits = clock, limits or Limits()
        self._lock = threading.Lock()
        self._spending = Spending()

    def admit(self, kind: Kind, purpose: Purpose) -> Refusal | None:
        with self._lock:  # the clock is read inside, so that time does not run backwards
            return self._spending.admit(kind, purpose, self._limits, self._clock.now())

    def note(self, outcome: Outcome) -> None:
        with self._lock:
            self._spending.note(outcome)

    def read(self, look: Callable[[Spending, LocalTime], Told]) -> Told:
        with self._lock:
            return look(self._spending, self._clock.now())

    def spent(self, resource: Resource) -> bool:
        return self.read(lambda spending, now: spending.spent(resource, now))

    def close(self) -> None:
        """Nothing is kept."""


class _Kept(Struct):
    """The file. A field that is not there, or of another kind, makes it an empty one."""

    v: int
    boot: str
    spending: Spending


class FileLedger:
    """Of all processes that use the same token on this machine."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        limits: Limits | None = None,
        *,
        locked_within_s: float = _LOCKED_WITHIN_S,
    ) -> None:
        self._path, self._clock, self._limits = path, clock, limits or Limits()
        self._tries = max(1, round(locked_within_s / _TRY_EVERY_S))
        self._lock = threading.Lock()
        self._spending = Spending()
        """As it was when we last looked, and what we noted since."""
        self._unwritten: deque[Outcome | LetThrough] = deque(maxlen=_MOST_UNWRITTEN)
        """What the file does not say yet: of a file that cannot be written, the latest."""
        self._shared = True
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def shared(self) -> bool:
        return self._shared

    def admit(self, kind: Kind, purpose: Purpose) -> Refusal | None:
        def admit(spending: Spending, now: LocalTime) -> Refusal | None:
            refusal = spending.admit(kind, purpose, self._limits, now)
            if refusal is None:
                self._unwritten.append(LetThrough(kind, now))
            return refusal

        return self._exchange(admit)

    def note(self, outcome: Outcome) -> None:
        """What others must know at once is written at once, the rest with the next request."""
        with self._lock:
            urgent = not isinstance(outcome, Passed) or self._spending.breaker != Breaker()
            self._spending.note(outcome)
            self._unwritten.append(outcome)
            urgent |= len(self._unwritten) >= _MOST_UNWRITTEN
        if urgent:
            self._exchange(lambda _, __: None)

    def read(self, look: Callable[[Spending, LocalTime], Told]) -> Told:
        return self._exchange(look)

    def spent(self, resource: Resource) -> bool:
        with self._lock:
            return self._spending.spent(resource, self._clock.now())

    def close(self) -> None:
        if self._unwritten:
            self._exchange(lambda _, __: None)

    def _exchange(self, change: Callable[[Spending, LocalTime], Told]) -> Told:
        with self._lock, self._locked() as file:
            now = self._clock.now()
            before = _read(file) if file is not None else b""
            if file is not None:
                self._spending = _decoded(before, now)
                for one in self._unwritten:
                    if isinstance(one, LetThrough):
                        self._spending.count(one, self._limits, now)
                    else:
                        self._spending.note(one)
            told = change(self._spending, now)
            if file is not None and _written(file, before, self._spending):
                self._unwritten.clear()
            return told

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The file, for us alone; None if it cannot be had now."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self._path, flags, 0o600)
        except OSError:
            self._shared = False
            yield None
            return
        try:
            self._shared = True
            yield file if self._lock_soon(file) else None
        finally:
            os.close(file)  # which unlocks it

    def _lock_soon(self, file: int) -> bool:
        for _ in range(self._tries):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._clock.sleep(_TRY_EVERY_S)
            else:
                return True
        return False


def _read(file: int) -> bytes:
    try:
        return os.pread(file, _LARGEST, 0)
    except OSError:
        return b""


def _decoded(text: bytes, now: LocalTime) -> Spending:
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Spending()
    if (kept.v, kept.boot) != (_VERSION, BOOT):
        return Spending()
    return kept.spending.sane(now)


def _written(file: int, before: bytes, spending: Spending) -> bool:
    try:
        text = msgspec.json.encode(_Kept(_VERSION, BOOT, spending))
        if text != before:
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
    except OSError:
        return False
    return True


def ledger_path(environment: Mapping[str, str], token_of: str, api: str) -> Path:
    """One file for a token at a server. Its name tells neither."""
    name = hashlib.sha256(f"{api}\0{token_of}".encode()).hexdigest()[:20]
    return state_folder(environment) / f"github-{name}.json"


_NAMES = {Resource.REST: "REST", Resource.GRAPHQL: "GraphQL"}


class _Left(msgspec.Struct):
    limit: int
    remaining: int
    reset: int
    used: int = 0


class _Rates(msgspec.Struct):
    resources: dict[str, _Left]


def allowances_in(body: bytes) -> tuple[Allowance, ...]:
    """From the body of GET /rate_limit, which costs nothing. Raises msgspec.MsgspecError."""
    told = msgspec.json.decode(body, type=_Rates).resources
    return tuple(
        Allowance(
            name,
            left.limit,
            max(left.used, left.limit - left.remaining),
            left.remaining,
            ServerTime(datetime.fromtimestamp(left.reset, UTC)),
        )
        for resource, name in _NAMES.items()
        if (left := told.get(resource.value)) is not None
    )


def kept_in(spending: Spending, limits: Limits, now: LocalTime) -> tuple[Kept, ...]:
    free = limits == Limits.none()
    return tuple(
        Kept(rule.name, spending.pace.used(rule, now), None if free else rule.most)
        for rule in limits.rules
    )


def shut_in(spending: Spending, now: LocalTime) -> Shut | None:
    """Until when a heartbeat would be refused; None if everything passes."""
    breaker = spending.breaker
    return None if breaker.closed else Shut(breaker.why, breaker.wait_s(Purpose.HOLD, now))
