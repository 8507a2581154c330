"""One token's `Spending`, shared by all processes of this machine through one small file.

GitHub counts by token, and sixteen workers on a host use the same token. Each request locks the
file for a moment, and gives up on the lock soon: the process that holds it may have been stopped.
The file proves nothing: a damaged file counts as empty, and without a writable file each process
counts alone. Times in the file are the machine's uptime, and mean nothing after a restart.

For `dibs budget`: the budgets that GitHub reports, and the requests that we counted ourselves.
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
from typing import TypeVar

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
from dibs.adapters.system import BOOT, Sharing, make_folder, open_file, state_folder
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.system import Clock
from dibs.ports.tracker import Allowance, LocalLimit, Shut

_VERSION = 1
_LOCKED_WITHIN_S = 0.05
_TRY_EVERY_S = 0.002
_LARGEST = 256 * 1024
_MOST_UNWRITTEN = 1000

T = TypeVar("T")


class _LedgerFile(Struct):
    """The content of the file. If a field is missing or has a wrong type, the file is ignored."""

    v: int
    boot: str
    spending: Spending


class FileLedger:
    """A ledger for all processes of a machine that use the same token.

    Safe for many threads. Never raises.
    """

    def __init__(self, path: Path, clock: Clock, limits: Limits | None = None) -> None:
        self._path, self._clock, self.limits = path, clock, limits or Limits()
        self._tries = round(_LOCKED_WITHIN_S / _TRY_EVERY_S)
        self._lock = threading.Lock()
        self._spending = Spending()
        """The file's content when we last read it, plus our changes since."""
        self._unwritten: deque[Outcome | LetThrough] = deque(maxlen=_MOST_UNWRITTEN)
        """Our changes that the file lacks; if it cannot be written, only the latest are kept."""
        self.shared = True
        """Whether the processes of the machine share the ledger."""
        with contextlib.suppress(OSError):
            make_folder(path.parent, Sharing.NONE)

    def admit(self, kind: Kind, purpose: Purpose) -> Refusal | None:
        """Count a request and let it through, or say how long to wait."""

        def admit(spending: Spending, now: LocalTime) -> Refusal | None:
            refusal = spending.admit(kind, purpose, self.limits, now)
            if refusal is None:
                self._unwritten.append(LetThrough(kind, now))
            return refusal

        return self.read(admit)

    def note(self, outcome: Outcome) -> None:
        """Record the outcome of a request that was let through.

        Trouble, and any outcome while the breaker is not at rest, is written to the file at once,
        for the sake of all processes; a plain success with the next request, or when too many are
        unwritten.
        """
        with self._lock:
            urgent = not isinstance(outcome, Passed) or self._spending.breaker != Breaker()
            self._spending.note(outcome)
            self._unwritten.append(outcome)
            urgent |= len(self._unwritten) >= _MOST_UNWRITTEN
        if urgent:
            self.read(lambda _, __: None)

    def spent(self, resource: Resource) -> bool:
        """Whether the budget is used up, as far as our process knows. Reads no file."""
        with self._lock:
            return self._spending.back_in(resource, self._clock.now()) is not None

    def close(self) -> None:
        if self._unwritten:
            self.read(lambda _, __: None)

    def read(self, look: Callable[[Spending, LocalTime], T]) -> T:
        """The result of `look`, called with the present state and time, which it may change.

        Reads the file, adds our unwritten changes, calls `look`, and writes the file. Without the
        file, `look` gets the state in memory, and our changes stay unwritten.
        """
        with self._lock, self._locked_file() as file:
            now = self._clock.now()
            before = b""
            if file is not None:
                with contextlib.suppress(OSError):
                    before = os.pread(file, _LARGEST, 0)
                self._spending = _decoded(before, now)
                for unwritten in self._unwritten:
                    if isinstance(unwritten, LetThrough):
                        self._spending.count(unwritten, self.limits, now)
                    else:
                        self._spending.note(unwritten)
            result = look(self._spending, now)
            if file is not None:
                with contextlib.suppress(OSError):
                    after = msgspec.json.encode(_LedgerFile(_VERSION, BOOT, self._spending))
                    if after != before:
                        os.pwrite(file, after, 0)
                        os.ftruncate(file, len(after))
                    self._unwritten.clear()
            return result

    @contextlib.contextmanager
    def _locked_file(self) -> Iterator[int | None]:
        """Open and lock the file; None if opening fails, or the lock cannot be had soon."""
        try:
            file = open_file(self._path, os.O_RDWR | os.O_CREAT, Sharing.NONE)
        except OSError:
            self.shared = False
            yield None
            return
        try:
            self.shared = True
            for _ in range(self._tries):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    self._clock.sleep(_TRY_EVERY_S)
                else:
                    yield file
                    return
            yield None
        finally:
            os.close(file)  # which unlocks it


def _decoded(text: bytes, now: LocalTime) -> Spending:
    """The state in the file; an empty state if damaged, of another version or an earlier boot."""
    try:
        content = msgspec.json.decode(text, type=_LedgerFile)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Spending()
    if (content.v, content.boot) != (_VERSION, BOOT):
        return Spending()
    return content.spending.sane(now)


def ledger_path(environment: Mapping[str, str], token_of: str, api: str) -> Path:
    """The file for a token at a server. The name, a hash, reveals neither."""
    name = hashlib.sha256(f"{api}\0{token_of}".encode()).hexdigest()[:20]
    return state_folder(environment) / f"github-{name}.json"


_NAMES = {Resource.REST: "REST", Resource.GRAPHQL: "GraphQL"}


class _RateLimit(msgspec.Struct):
    limit: int
    remaining: int
    reset: int
    used: int = 0


class _RateLimits(msgspec.Struct):
    resources: dict[str, _RateLimit]


def allowances_in(body: bytes) -> tuple[Allowance, ...]:
    """Read the body of GET /rate_limit, a free request. Raises msgspec.MsgspecError."""
    resources = msgspec.json.decode(body, type=_RateLimits).resources
    return tuple(
        Allowance(
            name,
            left.limit,
            max(left.used, left.limit - left.remaining),
            left.remaining,
            ServerTime(datetime.fromtimestamp(left.reset, UTC)),
        )
        for resource, name in _NAMES.items()
        if (left := resources.get(resource.value)) is not None
    )


def kept_in(spending: Spending, limits: Limits, now: LocalTime) -> tuple[LocalLimit, ...]:
    """How much of each secondary limit is used."""
    free = limits == Limits.none()
    return tuple(
        LocalLimit(rule.name, spending.pace.used(rule, now), None if free else rule.most)
        for rule in limits.rules
    )


def shut_in(spending: Spending, now: LocalTime) -> Shut | None:
    """Why the breaker is open, and how long a heartbeat must wait; None if it is closed."""
    breaker = spending.breaker
    return None if breaker.closed else Shut(breaker.why, breaker.wait_s(Purpose.HOLD, now))
