"""Random sequences of calls on one issue, each answer judged by what the contract says of it.

The model knows no more than every store must agree on: who holds the issue, what was decided, what
was shown. A run is only ever renewed and ended through the client that it was granted by, as in
life. The dice are seeded, so that a sequence which fails once fails again.
"""

import itertools
import random
from collections.abc import Callable
from enum import Enum, auto

from msgspec import Struct

from dibs.core.ids import Fence
from dibs.core.lease import (
    Busy,
    Ending,
    Granted,
    Lease,
    Lost,
    Outcome,
    Released,
    Renewed,
    StopAsked,
)
from dibs.ports.leases import Guarantee, LeaseStore
from dibs.testing.conformance.lease_harness import (
    CONCEDED,
    LeaseHarness,
    bid,
    expire,
    hold,
    record_of,
    revocation,
)

_MOVES = 30
_MOST_WAITS = 1
_ENDINGS = tuple(Ending(outcome, note=outcome.value) for outcome in Outcome)[:-1]


class _State(Enum):
    HELD = auto()
    DECIDED = auto()
    """Ended, and not yet shown."""
    OVER = auto()


class _Term(Struct):
    """One grant, as its holder and the model know it."""

    lease: Lease
    client: LeaseStore
    state: _State = _State.HELD
    ending: Ending | None = None
    asked_to_stop: bool = False
    outlived: bool = False
    """The process that ended it is gone, and with it the lease in its hands."""


class Journey:
    """One issue, and everything that happens to it."""

    def __init__(self, harness: LeaseHarness, seed: str, *, restarts: bool) -> None:
        self._harness = harness
        self._issue = harness.issue()
        self._dice = random.Random(seed)
        self._clients = (harness.store, harness.another())
        self._term: _Term | None = None
        self._past: list[_Term] = []
        # A run is never used again, not even for another issue.
        self._runs = (f"{seed}-r{number}" for number in itertools.count(1))
        self._waits = 0
        self._moves: tuple[Callable[[], None], ...] = (
            *(self.claim, self.claim, self.claim, self.renew, self.renew),
            *(self.finish, self.finish, self.show, self.show, self.concede),
            *(self.vanish, self.ask, self.force, self.stale, self.look, self.look),
            *((self.restart, self.restart) if restarts else ()),
        )
        self.path: list[str] = []
        self.fences: list[Fence] = []

    def walk(self) -> None:
        """Raises AssertionError, with the way it went, at the first wrong answer."""
        for _ in range(_MOVES):
            move = self._dice.choice(self._moves)
            self.path.append(move.__name__)
            try:
                move()
            except AssertionError as flaw:
                raise AssertionError(f"after {', '.join(self.path)}: {flaw}") from flaw

    # Moves

    def claim(self) -> None:
        """Granted if the issue is free; told who has it if it is not."""
        term, client, run = self._term, self._dice.choice(self._clients), next(self._runs)
        if term is None or term.state is _State.OVER:
            lease = hold(self._harness, self._issue, run, self._harness.long, store=client)
            self._begin(_Term(lease, client))
        elif term.state is _State.HELD or Guarantee.ATOMIC in client.guarantees:
            answer = client.acquire(bid(self._issue, run, self._harness.long))
            assert isinstance(answer, Busy), f"{run} was told {answer}, although it is not free"
            assert answer.record.lease.run == term.lease.run, "a loser was told the wrong holder"

    def renew(self) -> None:
        term = self._term
        if term is None or term.outlived:
            return
        answer = term.client.renew(term.lease)
        if term.state is not _State.HELD:
            assert isinstance(answer, Lost), f"a lease that is over was renewed: {answer}"
        elif term.asked_to_stop:
            assert isinstance(answer, StopAsked), f"a revoked holder was told {answer}"
        else:
            assert isinstance(answer, Renewed), f"a live lease was not renewed: {answer}"
            assert answer.lease.expires_at >= term.lease.expires_at, "a renewal took time away"
            assert answer.lease.fence == term.lease.fence, "a renewal changed the fence"
            term.lease = answer.lease

    def finish(self) -> None:
        """The first ending stands, however often and however differently it is asked for."""
        term = self._term
        if term is None:
            return
        ending = self._dice.choice(_ENDINGS)
        answer = term.client.release(term.lease, ending)
        if term.state is not _State.HELD and term.ending is None:
            assert isinstance(answer, Lost), f"a lease that was lost could be ended: {answer}"
            return
        assert isinstance(answer, Released), f"the holder could not release: {answer}"
        if term.state is _State.HELD:
            term.state, term.ending = _State.DECIDED, ending
        assert answer.record.ending == term.ending, "a second ending replaced the first"

    def show(self) -> None:
        term = self._term
        if term is not None and term.state is _State.DECIDED:
            client = self._dice.choice(self._clients)
            self._harness.paint(client, record_of(client, self._issue))
            term.state = _State.OVER

    def concede(self) -> None:
        """Granted and given back before it was shown."""
        if self._term is not None and self._term.state is not _State.OVER:
            return
        client = self._dice.choice(self._clients)
        granted = client.acquire(bid(self._issue, next(self._runs), self._harness.long))
        assert isinstance(granted, Granted), f"a free issue was refused: {granted}"
        released = client.release(granted.lease, CONCEDED)
        assert isinstance(released, Released), f"a grant could not be conceded: {released}"
        self._begin(_Term(granted.lease, client, _State.OVER, CONCEDED))

    def vanish(self) -> None:
        """A holder that is never heard of again."""
        free = self._term is None or self._term.state is _State.OVER
        if free and self._waits < _MOST_WAITS:
            self._waits += 1
            client, run = self._dice.choice(self._clients), next(self._runs)
            lease = hold(self._harness, self._issue, run, self._harness.short, store=client)
            expire(self._harness, self._issue)
            self._begin(_Term(lease, client, _State.OVER))

    def ask(self) -> None:
        if self._revoke(force=False) and self._term is not None:
            self._term.asked_to_stop = True

    def force(self) -> None:
        if self._revoke(force=True) and self._term is not None:
            self._term.state = _State.OVER

    def stale(self) -> None:
        """Somebody wakes up whose lease was another's long ago."""
        if self._past:
            old = self._dice.choice(self._past)
            renewed = old.client.renew(old.lease)
            assert isinstance(renewed, Lost), f"a superseded lease was renewed: {renewed}"
            released = old.client.release(old.lease, self._dice.choice(_ENDINGS))
            assert isinstance(released, Lost), f"a superseded lease was ended: {released}"

    def look(self) -> None:
        """Every client reads the same, and it is what happened."""
        term = self._term
        for client in self._clients:
            record = client.read(self._issue)
            if term is None or record is None:
                assert term is None, "a lease was forgotten"
                assert record is None, f"nobody was granted anything, but there is {record}"
                continue
            live = term.state is _State.HELD
            assert record.lease.run == term.lease.run, "the last lease is another's"
            assert record.lease.fence == term.lease.fence, "the fence is not the one granted"
            assert record.live is live, f"a lease is read as {'live' if record.live else 'over'}"
            assert record.ending == term.ending, f"the ending is read as {record.ending}"
            listed = [held.lease.run for held in client.live() if held.lease.issue == self._issue]
            assert listed == [term.lease.run] * live, f"live() lists {listed}"

    def restart(self) -> None:
        self._clients = (self._harness.restart(), self._harness.another())
        self._past = [term for term in self._past if term.ending is None]
        for term in (*self._past, *((self._term,) if self._term is not None else ())):
            term.client = self._clients[0]
            term.outlived = term.ending is not None

    # What they share

    def _begin(self, term: _Term) -> None:
        if self._term is not None and not self._term.outlived:
            self._past.append(self._term)
        self._term = term
        self.fences.append(term.lease.fence)

    def _revoke(self, *, force: bool) -> bool:
        """Whether there was a lease to revoke."""
        term, client = self._term, self._dice.choice(self._clients)
        if term is None:
            return False
        record = client.revoke(self._issue, revocation(term.lease.run, force=force))
        if term.state is not _State.HELD:
            assert record is None, "a lease that is over was revoked"
            return False
        assert record is not None, "the run that holds it was not found"
        kind = "forced" if force else "graceful"
        assert record.live is not force, f"a {kind} revoke left {record}"
        return True


def wander(harness: LeaseHarness, name: str, *, restarts: bool = False) -> list[Journey]:
    """Several journeys, each on an issue of its own."""
    journeys = []
    for number in range(harness.sequences):
        journey = Journey(harness, f"{name}-{number}", restarts=restarts)
        journey.walk()
        journeys.append(journey)
    return journeys
