"""The one writer of our own cards, and its memory of edits that nobody answered.

An edit replaces what the card says whenever it takes effect, even if its sender has given up on it
meanwhile. So a renewal that is still under way when the ending is written would erase the ending.
What may still be under way is therefore remembered here, for as long as the tracker says that it
may be. Refuses to know who holds an issue: that is `core.fold`.
"""

import threading
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import Card, CardState, render_card, same_mark
from dibs.core.errors import NoSuchComment, NotPermitted, RateLimited, Unavailable
from dibs.core.fold import card_of
from dibs.core.ids import LocalTime, RunId, ServerTime, local_after
from dibs.core.issue import Comment, Thread
from dibs.core.lease import Ending, Lease
from dibs.core.plan import EditComment, Effect
from dibs.ports.applying import trips_of
from dibs.ports.clock import Clock
from dibs.ports.tracker import OneTrip, Tracker

_REMEMBERED = 1024


class Fate(StrEnum):
    """What became of the ending that we wrote, or tried to write."""

    NONE = "none"
    IN_DOUBT = "in doubt"
    ENDED = "ended"


class Written(Struct, frozen=True):
    """An edit that took effect."""

    at: ServerTime
    seen: Thread | None = None
    """The issue right after it, if the reply shows it."""


class _Memory(Struct):
    """What is known of one run beyond its card."""

    fate: Fate = Fate.NONE
    runs_until: LocalTime | None = None
    """The lease does not end by itself before this."""
    astray_until: LocalTime | None = None
    """No edit that was given up on takes effect after this."""
    beats: int = -1
    """The last that was written, or was to be."""

    def outlasts(self, until: LocalTime, spare: timedelta) -> bool:
        """Whether the lease leaves so much time after that; it does where nobody knows better."""
        return self.runs_until is None or local_after(until, spare) < self.runs_until


class OwnCards:
    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._runs: dict[RunId, _Memory] = {}
        self._lock = threading.Lock()

    @property
    def one_trip(self) -> OneTrip | None:
        return trips_of(self._tracker)

    def concede(self, lease: Lease) -> None:
        self._edit(lease, card(lease, CardState.CONCEDED))

    def hold(self, lease: Lease, paint: Sequence[Effect]) -> Written:
        """Confirm or renew. In one trip, `paint` goes along; otherwise it is left to the caller.

        Each time it says something else: nobody promises that an edit which changes nothing moves
        the comment's time, and one that is sent again would be trusted for longer than it counts.
        """
        memory, asked_at = self._of(lease.run), self._clock.now()
        memory.beats = max(lease.beats, memory.beats + 1)
        wanted = replace(card(lease, CardState.HELD), beats=memory.beats)
        written = self._write(lease, wanted, paint)
        memory.runs_until = local_after(asked_at, lease.ttl)
        return written

    def end(self, lease: Lease, ending: Ending) -> Written:
        """Write the ending. Until the caller has judged what came of it, it is in doubt."""
        memory = self._of(lease.run)
        before, memory.fate = memory.fate, Fate.IN_DOUBT
        try:
            return self._write(lease, card(lease, CardState.RELEASED, ending), ())
        except (RateLimited, NotPermitted):
            memory.fate = before  # the server has not done it, and says so
            raise

    def fate(self, run: RunId) -> Fate:
        return self._of(run).fate

    def held_here(self, run: RunId) -> bool:
        """Whether we confirmed or renewed it ourselves, and not another process of this run."""
        return self._of(run).runs_until is not None

    def ended(self, run: RunId) -> None:
        """It is known to have been written: nothing of ours may be written over it any more."""
        self._of(run).fate = Fate.ENDED

    def outwait_strays(self, lease: Lease) -> bool:
        """Until nothing that was given up on can undo an ending that is written now.

        A renewal would erase it; an ending would come too late, and count as late. False if there
        was nothing to wait for. Raises Unavailable if the lease leaves no time for it: it has to be
        renewed before, or an ending that is in doubt already has to be left at that. Where there is
        no time for a renewal either, there is no better moment: erased is only what is not painted.
        """
        memory, traits = self._of(lease.run), self._tracker.traits
        now, until = self._clock.now(), memory.astray_until
        if until is None or until <= now or traits.in_flight is None:
            return False
        if memory.outlasts(until, min(traits.in_flight, lease.ttl / 10) + traits.grain):
            self._clock.sleep(until - now)
            return True
        if memory.fate is Fate.IN_DOUBT:  # whoever tries again looks whether it has landed
            self._clock.sleep(min(until - now, traits.in_flight.total_seconds() / 4))
        elif not memory.outlasts(now, lease.ttl / 3):
            return False
        raise Unavailable(f"{lease.issue}: what was not answered may still take effect")

    def _write(self, lease: Lease, wanted: Card, paint: Sequence[Effect]) -> Written:
        try:
            if self.one_trip is None:
                return Written(self._edit(lease, wanted).updated_at)
            return self._travel(self.one_trip, lease, wanted, paint)
        except Unavailable:
            self._of(lease.run).astray_until = self._gone_by(lease.ttl)
            raise

    @staticmethod
    def _travel(trips: OneTrip, lease: Lease, wanted: Card, paint: Sequence[Effect]) -> Written:
        edit = EditComment(own_card(lease), render_card(wanted))
        thread = trips.trip(lease.issue, (edit, *paint))
        shown = next((one for one in thread.comments if one.id == own_card(lease)), None)
        if shown is None and thread.complete:
            raise NoSuchComment(lease.issue, own_card(lease))
        if shown is None or not same_mark(shown.body, edit.body):
            raise Unavailable(f"{lease.issue}: the reply does not show what was written")
        return Written(shown.updated_at, thread)

    def _edit(self, lease: Lease, wanted: Card) -> Comment:
        return self._tracker.edit_comment(lease.issue, own_card(lease), render_card(wanted))

    def _gone_by(self, ttl: timedelta) -> LocalTime | None:
        """Counted from now, because nobody knows when in the call it was sent.

        None where nobody can say, and where a lease is too short to wait for it.
        """
        in_flight = self._tracker.traits.in_flight
        if in_flight is None or 2 * in_flight > ttl:
            return None
        return local_after(self._clock.now(), in_flight)

    def _of(self, run: RunId) -> _Memory:
        with self._lock:
            known = self._runs.get(run)
            if known is None:
                known = self._runs[run] = _Memory()
                while len(self._runs) > _REMEMBERED:
                    del self._runs[next(iter(self._runs))]
            return known


def own_card(lease: Lease) -> int:
    assert lease.card is not None, "a comment lease always has its card"
    return lease.card


def card(lease: Lease, state: CardState, ending: Ending | None = None) -> Card:
    """The lease as its card says it, against the expiry we know of."""
    return replace(card_of(lease, state, ending), floor=lease.fence - own_card(lease))
