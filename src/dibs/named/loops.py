"""Loops: a tick once per window across all replicas, and on schedule.

The lease for a window is held to the window's end, however soon the tick is done, so no other
replica ticks in the same window; and it ends with the window, so the next tick is not late. It is
granted for exactly what is left of the window by the store's own clock. A replica that dies during
its tick costs that window at most; a tick that outlasts its window is renewed until it is over.

A command run under a lease that is no issue's: it is ended before the lease can be another's.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import assert_never

from msgspec import Struct

from dibs.core.durations import SHORTEST_TTL, format_duration, terms_for
from dibs.core.errors import BadConfiguration, BadTtl, Outage
from dibs.core.events import EventKind, about
from dibs.core.ids import Fence, HolderId, RunId
from dibs.core.lease import Bid, Busy, Full, Granted, Lease, Lost, Unproven
from dibs.core.named import LOOP_STAGE, SHORTEST_WINDOW, Window, loop_ref, window_at
from dibs.core.pipeline import Command, Pipeline, Stage
from dibs.named.holds import give_back, refusal_of
from dibs.ports.leases import Guarantee, LeaseStore, Lingering, acquire_patiently
from dibs.ports.system import Assignment, Clock, Exited, Journal, Runner, Stopped, Threads
from dibs.ports.tracker import Tracker
from dibs.services.claiming import Granting
from dibs.services.keeping import Grant, Keeper, Supervision

_log = logging.getLogger("dibs.looping")
_NEEDS = Guarantee.ATOMIC | Guarantee.SERVER_CLOCK
_MOST_JITTER_S = 0.5
_HITCH = timedelta(seconds=2)
_EARLY = timedelta(seconds=5)


class Tick(Struct, frozen=True):
    """One turn of a loop, in the hands of the replica that has it."""

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
    """What is done, and how often."""

    name: str
    every: timedelta
    tick: Callable[[Tick], None]
    holder: HolderId


class Loop:
    """One replica's part in a loop."""

    def __init__(
        self,
        rhythm: Rhythm,
        store: LeaseStore,
        tracker: Tracker,
        pipeline: Pipeline,
        granting: Granting,
        journal: Journal,
        clock: Clock,
        threads: Threads,
        *,
        new_run: Callable[[], RunId],
        dice: random.Random,
    ) -> None:
        name, every = rhythm.name, rhythm.every
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
        self.name, self.every = name, every
        self._ref, self._rhythm = loop_ref(name), rhythm
        self._store, self._tracker, self._pipeline = store, tracker, pipeline
        self._granting, self._journal = granting, journal
        self._clock, self._threads = clock, threads
        self._new_run, self._dice = new_run, dice
        self._renewed: Lease | None = None
        """Extended beyond its window, to be given back when that is over."""

    def run(self, stop: threading.Event) -> None:
        """Tick once per window, with all the other replicas, until told to stop."""
        try:
            while not stop.is_set():
                self._clock.wait(stop, self._patient_step())
        finally:
            self._give_back_renewed()

    def _patient_step(self) -> float:
        try:
            return self.step()
        except Outage as failure:
            if not failure.retryable:
                raise
            _log.warning(
                "loop %s: the store is not available, trying again: %s", self.name, failure
            )
            return self._soon()

    def step(self) -> float:
        """One decision, and the tick if it is ours. Returns how long to wait for the next."""
        if against := self._granting.objections():
            _log.warning("loop %s waits: %s", self.name, against[0].text)
            return self._soon()
        self._give_back_renewed()
        known = self._store.read(self._ref)
        if known is None:
            self._learn_the_time()
            return 0.0
        if known.live:
            return self._after(known.remaining)
        window = window_at(known.as_of, self.every)
        left = window.ends_at - known.as_of
        if left < SHORTEST_TTL:  # too late for this one: it could not be granted before it is over
            return self._after(left)
        return self._claim(window, left)

    def _claim(self, window: Window, left: timedelta) -> float:
        asked_at = self._clock.now()
        match acquire_patiently(self._store, self._bid(left)):
            case Granted(lease):
                if window_at(lease.granted_at, self.every) != window:
                    # The reply took us into the next window, and the lease would end inside it.
                    give_back(self._store, lease)
                    return 0.0
                if (against := refusal_of(self._granting, self._store, lease)) is not None:
                    _log.warning("loop %s waits: %s", self.name, against.text)
                    return self._soon()
                self._journal.append(about(EventKind.CLAIMED, lease, window=str(window.number)))
                terms = terms_for(left)
                stage = Stage(LOOP_STAGE, label=LOOP_STAGE, terms=terms)
                return self._turn(window, Grant(lease, stage, terms, asked_at))
            case Busy(record):
                return self._after(record.remaining)
            case Unproven():
                return self._after(timedelta())
            case Full():
                raise AssertionError("no limit was given")
            case never:
                assert_never(never)

    def _turn(self, window: Window, grant: Grant) -> float:
        keeper = Keeper(
            grant, self._store, self._tracker, self._pipeline, self._clock, self._journal
        )
        overrun = _Overrun(keeper, self._clock, self._threads)
        try:
            self._rhythm.tick(Tick(self.name, window, keeper))
        except Exception:  # noqa: BLE001 - one bad tick must not end the loop
            _log.exception("loop %s: the tick of window %s failed", self.name, window.number)
        finally:
            overrun.end()
        if keeper.lease.beats:  # it would outlast its window now
            self._renewed = keeper.lease
        spent = timedelta(seconds=self._clock.now() - grant.asked_at)
        return self._after(max(grant.terms.ttl - spent, timedelta()))

    def _bid(self, ttl: timedelta) -> Bid:
        floor = self._granting.floor()
        return Bid(self._ref, self._new_run(), self._rhythm.holder, LOOP_STAGE, ttl, None, floor)

    def _learn_the_time(self) -> None:
        """Nobody ever had this loop, so nobody knows the store's time: ask for a lease to read it
        off, and give it back.
        """
        granted = self._store.acquire(self._bid(SHORTEST_TTL))
        if isinstance(granted, Granted):
            give_back(self._store, granted.lease)

    def _give_back_renewed(self) -> None:
        """A lease that was extended beyond its window, once that is over or we leave."""
        if self._renewed is not None:
            renewed, self._renewed = self._renewed, None
            give_back(self._store, renewed)

    def _soon(self) -> float:
        """After a hitch: long before a window is over, and without hammering."""
        return self._after(min(self.every / 10, _HITCH))

    def _after(self, span: timedelta) -> float:
        """Then, and a moment more: replicas that wake at once get in each other's way."""
        jitter_s = min(self.every.total_seconds() / 50, _MOST_JITTER_S)
        return max(span.total_seconds(), 0.0) + self._dice.uniform(0, jitter_s)


class _Overrun:
    """Renews the lease of a tick that is still going when its window ends, and not before."""

    def __init__(self, keeper: Keeper, clock: Clock, threads: Threads) -> None:
        self._keeper, self._clock, self._threads = keeper, clock, threads
        self._done = threading.Event()
        self._supervision: Supervision | None = None
        self._thread = threads.start(self._wait, f"dibs-loop-{keeper.issue}")

    def _wait(self) -> None:
        terms = self._keeper.terms
        # As late as a lost reply or two allow: a lease that was renewed outlasts its window.
        early_s = min(terms.renew_every / 2, _EARLY).total_seconds()
        wait_s = self._keeper.trusted_until - self._clock.now() - early_s
        if not self._clock.wait(self._done, max(wait_s, 0.0)):
            self._supervision = Supervision(self._keeper, self._clock, self._threads)

    def end(self) -> None:
        self._done.set()
        self._thread.join()
        if self._supervision is not None:
            self._supervision.stop()


_SLICE_S = 0.2


def run_kept(
    runner: Runner,
    keeper: Keeper,
    command: Command,
    environment: Mapping[str, str],
    *,
    stop: threading.Event,
    in_sight: bool = False,
    as_typed: bool = False,
) -> Exited | Stopped:
    """To its end: by itself, because the lease is lost, or because `stop` was set."""
    if not as_typed:  # then the shell says what is wrong, where it was typed
        runner.check(command)
    running = runner.start(
        Assignment(
            run=keeper.run,
            handler=command,
            stdin=b"",
            environment={
                "DIBS_RUN": keeper.run,
                "DIBS_FENCE": str(keeper.fence),
                **environment,
            },
            stop_within=min(timedelta(seconds=5), keeper.terms.margin * 0.8),
            in_sight=in_sight,
            as_typed=as_typed,
        ),
        keeper.trusted_until,
    )
    keeper.on_lost(running.stop)
    told = keeper.trusted_until
    slice_s = min(_SLICE_S, keeper.terms.ttl.total_seconds() / 10)
    while (end := running.poll(slice_s)) is None:
        if stop.is_set():
            running.stop("told to stop")
        if isinstance(keeper.condition, Lost):
            running.stop(keeper.condition.why)
        if keeper.trusted_until != told:
            told = keeper.trusted_until
            running.trust_until(told)
    return end
