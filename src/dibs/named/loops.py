"""Loops: one tick in each window across all replicas, on schedule; and commands under a lease.

A replica holds the lease for a window until the window ends, however soon its tick is done, so no
other replica ticks in the same window. The lease ends with the window, so the next tick is not
late: it is granted for exactly the time left in the window, by the store's clock. If a replica dies
during its tick, at most this window is lost. If a tick takes longer than its window, its lease is
renewed until the tick is over.

`run_kept` runs a command under the lease of a hold or a loop, and ends the command before another
holder can get the lease.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import assert_never

from msgspec import Struct

from dibs.core.durations import SHORTEST_TTL, format_duration, terms_for
from dibs.core.errors import BadConfiguration, BadTtl, Outage
from dibs.core.events import EventKind, about
from dibs.core.ids import Fence, HolderId, RunId
from dibs.core.lease import Bid, Busy, Full, Granted, Lease, Lost, Unproven
from dibs.core.named import LOOP_STAGE, SHORTEST_WINDOW, Window, checked_name, loop_ref, window_at
from dibs.core.pipeline import Command, Env, Stage
from dibs.named.holds import NamedLeases
from dibs.ports.leases import Guarantee, Lingering
from dibs.ports.system import Assignment, Clock, Exited, Runner, Stopped, Threads
from dibs.services.backlog import acquire_patiently
from dibs.services.keeping import Grant, Keeper, Supervision

_log = logging.getLogger("dibs.looping")
_NEEDS = Guarantee.ATOMIC | Guarantee.SERVER_CLOCK
_MOST_JITTER_S = 0.5
_RETRY = timedelta(seconds=2)
_EARLY = timedelta(seconds=5)


class Tick(Struct, frozen=True):
    """A tick of a loop, for the replica with the window's lease."""

    loop: str
    window: Window
    keeper: Keeper

    @property
    def run(self) -> RunId:
        return self.keeper.run

    @property
    def fence(self) -> Fence:
        return self.keeper.fence

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost when you must stop."""
        self.keeper.check()


class Rhythm(Struct, frozen=True):
    """The function called in each window, and the length of a window."""

    name: str
    every: timedelta
    tick: Callable[[Tick], None]
    holder: HolderId


class Loop(NamedLeases, eq=False):
    """A loop as run by a single replica."""

    rhythm: Rhythm
    _renewed: Lease | None = None
    """A lease renewed beyond its window, to be given back after the tick."""

    def __post_init__(self) -> None:
        name, every, store = self.rhythm.name, self.rhythm.every, self.store
        if _NEEDS not in store.guarantees:
            raise BadConfiguration(
                f"loop {name!r} needs a lease store that is atomic and has a clock, "
                f"and {store.name} is not; see dibs stores"
            )
        if every < SHORTEST_WINDOW:
            raise BadTtl(f"loop {name!r}: every must be at least {SHORTEST_WINDOW}")
        able: object = store
        late = able.lingers(every) if isinstance(able, Lingering) else timedelta()
        if late > every / 4:
            raise BadTtl(
                f"loop {name!r}: {store.name} keeps a lease for up to {format_duration(late)} after"
                f" its time, which is too long for windows of {format_duration(every)}"
            )
        checked_name(name)

    @property
    def name(self) -> str:
        return self.rhythm.name

    def run(self, stop: threading.Event) -> None:
        """Take part in the loop until `stop` is set; a store outage is retried."""
        try:
            while not stop.is_set():
                try:
                    wait_s = self.step()
                except Outage as failure:
                    if not failure.retryable:
                        raise
                    _log.warning(
                        "loop %s: the store is not available, trying again: %s", self.name, failure
                    )
                    wait_s = self._soon()
                self.clock.wait(stop, wait_s)
        finally:
            self._give_back_renewed()

    def step(self) -> float:
        """Claim the present window if it is free, and tick. Returns seconds until the next step."""
        if against := self.granting.objections():
            _log.warning("loop %s waits: %s", self.name, against[0].text)
            return self._soon()
        self._give_back_renewed()
        record = self.store.read(loop_ref(self.name))
        if record is None:
            # The loop never had a lease, so the store's time is unknown: take a lease and give it
            # back, to have a record to read the time from.
            granted = self.store.acquire(self._bid(SHORTEST_TTL))
            if isinstance(granted, Granted):
                self.give_back(granted.lease)
            return 0.0
        if record.live:
            return self._after(record.remaining)
        window = window_at(record.as_of, self.rhythm.every)
        left = window.ends_at - record.as_of
        if left < SHORTEST_TTL:  # too late for this window: no lease can be that short
            return self._after(left)
        return self._claim(window, left)

    def _claim(self, window: Window, left: timedelta) -> float:
        """Ask for the window's lease, and tick if it is granted. Returns seconds to wait."""
        asked_at = self.clock.now()
        match acquire_patiently(self.store, self._bid(left)):
            case Granted(lease):
                if window_at(lease.granted_at, self.rhythm.every) != window:
                    # The grant came in the next window, and the lease would end inside that one.
                    self.give_back(lease)
                    return 0.0
                if (against := self.refusal_of(lease)) is not None:
                    _log.warning("loop %s waits: %s", self.name, against.text)
                    return self._soon()
                self.observer.observe(about(EventKind.CLAIMED, lease, window=str(window.number)))
                terms = terms_for(left)
                stage = Stage(LOOP_STAGE, label=LOOP_STAGE, terms=terms)
                grant = Grant(lease, stage, terms, asked_at)
            case Busy(record):
                return self._after(record.remaining)
            case Unproven():
                return self._after(timedelta())
            case Full():
                raise AssertionError("no limit was given")
            case never:
                assert_never(never)
        keeper = self.keeper(grant)
        with _overrunning(keeper, self.clock, self.threads):
            try:
                self.rhythm.tick(Tick(self.name, window, keeper))
            except Exception:  # noqa: BLE001 - one bad tick must not end the loop
                _log.exception("loop %s: the tick of window %s failed", self.name, window.number)
        if keeper.lease.beats:  # it was renewed, so it would outlast its window
            self._renewed = keeper.lease
        spent = timedelta(seconds=self.clock.now() - grant.asked_at)
        return self._after(max(grant.terms.ttl - spent, timedelta()))

    def _bid(self, ttl: timedelta) -> Bid:
        ref, holder, floor = loop_ref(self.name), self.rhythm.holder, self.granting.look().floor
        return Bid(ref, self.new_run(), holder, LOOP_STAGE, ttl, None, floor)

    def _give_back_renewed(self) -> None:
        """Give back a lease that was renewed beyond the end of the window, if any."""
        if self._renewed is not None:
            renewed, self._renewed = self._renewed, None
            self.give_back(renewed)

    def _soon(self) -> float:
        """Seconds until a retry: short against a window, but not a busy loop."""
        return self._after(min(self.rhythm.every / 10, _RETRY))

    def _after(self, span: timedelta) -> float:
        """The span in seconds plus a random moment, so not all replicas wake at once."""
        jitter_s = min(self.rhythm.every.total_seconds() / 50, _MOST_JITTER_S)
        return max(span.total_seconds(), 0.0) + self.dice.uniform(0, jitter_s)


@contextmanager
def _overrunning(keeper: Keeper, clock: Clock, threads: Threads) -> Iterator[None]:
    """Renew the lease of a tick still running at the end of its window, and not before."""
    done = threading.Event()
    supervisions: list[Supervision] = []

    def renew_late() -> None:
        # As late as possible, with time for a lost reply or two: a renewed lease outlasts its
        # window.
        early_s = min(keeper.terms.renew_every / 2, _EARLY).total_seconds()
        wait_s = keeper.trusted_until - clock.now() - early_s
        if not clock.wait(done, max(wait_s, 0.0)):
            supervisions.append(Supervision(keeper, clock, threads))

    thread = threads.start(renew_late, f"dibs-loop-{keeper.issue}")
    try:
        yield
    finally:
        done.set()
        thread.join()
        for supervision in supervisions:
            supervision.stop()


_SLICE_S = 0.2


def run_kept(
    runner: Runner,
    keeper: Keeper,
    command: Command,
    environment: Mapping[str, str],
    *,
    stop: threading.Event,
    env: Env = Env.LISTED,
    pass_env: tuple[str, ...] = (),
    in_sight: bool = False,
    as_typed: bool = False,
) -> Exited | Stopped:
    """Run a command until it ends, until the lease is lost, or until `stop` is set.

    A command as typed is not checked first: the shell reports the error where it was typed.
    """
    if not as_typed:
        runner.check(command)
    running = runner.start(
        Assignment(
            run=keeper.run,
            handler=command,
            stdin=b"",
            environment={"DIBS_RUN": keeper.run, "DIBS_FENCE": str(keeper.fence), **environment},
            env=env,
            pass_env=pass_env,
            stop_within=min(timedelta(seconds=5), keeper.terms.margin * 0.8),
            in_sight=in_sight,
            as_typed=as_typed,
        ),
        keeper.trusted_until,
    )
    keeper.on_lost(running.stop)
    trusted_until = keeper.trusted_until
    slice_s = min(_SLICE_S, keeper.terms.ttl.total_seconds() / 10)
    while (end := running.poll(slice_s)) is None:
        if stop.is_set():
            running.stop("told to stop")
        if isinstance(keeper.condition, Lost):
            running.stop(keeper.condition.why)
        if keeper.trusted_until != trusted_until:
            trusted_until = keeper.trusted_until
            running.trust_until(trusted_until)
    return end
