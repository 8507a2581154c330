"""The connection between a process and what it shares with others: time, and every fault.

Every call of a port consists of a request that travels, an effect at one instant, and a reply that
travels. Nothing else in the simulated world waits, so these are the points at which processes
interleave.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from dibs.core.errors import NoSuchComment, NoSuchIssue
from dibs.core.events import Event, Reached, Step, unwatched
from dibs.core.ids import Fence, IssueRef
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import Effect, LabelLook
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Lease,
    Record,
    ReleaseResult,
    RenewResult,
    Revocation,
)
from dibs.ports.leases import Guarantee, LeaseStore
from dibs.ports.tracker import Applies, Found, FoundSnapshots, IssueQuery, OneAtATime, TrackerTraits
from dibs.services.reading import AT_ONCE
from dibs_lab.sim.faults import Trouble, Weather
from dibs_lab.sim.fibres import Process
from dibs_lab.sim.history import Called, History, What
from dibs_lab.sim.server import Server
from dibs_lab.sim.trips import Network, Trip, chart

Answer = TypeVar("Answer")
_SLOW_READINGS = 0.25
"""The share of reads whose reply travels separately. For the others, the travel of the process's
next request is the delay between the read and the action that follows from it.
"""
_TRIP_GAP_US = 150_000
"""The longest time that the server takes for each effect of a trip."""


class Wire:
    """One process's connection to the outside."""

    def __init__(
        self,
        process: Process,
        weather: Weather,
        history: History,
        network: Network | None = None,
    ) -> None:
        self._process = process
        self._weather = weather
        self._history = history
        self._network = network or Network(process.simulation)

    def call(
        self,
        op: str,
        issue: IssueRef | None,
        do: Callable[[], Answer],
        *arguments: object,
        writes: bool = False,
    ) -> Answer:
        process, weather = self._process, self._weather
        weather.travel(process, out=True)
        trouble = weather.trouble(process, writes=writes)
        if trouble in (Trouble.UNAVAILABLE, Trouble.RATE_LIMITED):
            weather.refuse(process, trouble, op)
        if trouble is Trouble.STRAGGLING:
            self._give_up(op, issue, do, arguments)
        try:
            answer = do()
        except (NoSuchIssue, NoSuchComment):
            weather.travel(process)
            raise
        self.note(Called(op, issue, arguments, answer, writes))
        if trouble is Trouble.LOST_REPLY:
            weather.lose_reply(process, op)
        if writes or weather.dice.random() < _SLOW_READINGS:
            weather.travel(process)
        return self._shortened(answer) if trouble is Trouble.TRUNCATED else answer

    def _give_up(
        self,
        op: str,
        issue: IssueRef | None,
        do: Callable[[], object],
        arguments: tuple[object, ...],
    ) -> NoReturn:
        """The sender gives up; the request takes effect later."""
        note, late_us = self._as_sender(late=True), self._weather.straggles_us()

        def deliver() -> None:
            self._network.pause(late_us)
            with suppress(NoSuchIssue, NoSuchComment):
                note(Called(op, issue, arguments, do(), writes=True))

        self._network.carry(deliver)
        self._weather.lose_reply(self._process, op, Trouble.STRAGGLING)

    def trip(self, server: Server, issue: IssueRef, effects: Sequence[Effect]) -> Snapshot:
        """Several effects in one request."""
        process, weather = self._process, self._weather
        weather.travel(process, out=True)
        trouble = weather.trouble(process, writes=True, trip=True)
        if trouble in (Trouble.UNAVAILABLE, Trouble.RATE_LIMITED):
            weather.refuse(process, trouble, "trip")
        course = chart(trouble, len(effects), weather.dice.random, _TRIP_GAP_US)
        course = replace(course, tear=weather.tear())
        if trouble is Trouble.STRAGGLING:
            course = replace(course, late_us=weather.straggles_us())
        note = self._as_sender(late=trouble is Trouble.STRAGGLING)
        trip = Trip(server, issue, tuple(effects), course, note)
        self._network.carry(lambda: trip.run(self._network))
        if trouble is Trouble.STRAGGLING:
            weather.lose_reply(process, "trip", trouble)
        process.simulation.pause(course.total_us + 1)  # by then the trip is done
        if trouble is Trouble.LOST_REPLY:
            weather.lose_reply(process, "trip")
        weather.travel(process)
        if trip.failure is not None:
            raise trip.failure
        assert trip.answer is not None, "it was not cut short"
        self.note(Called("trip", issue, (len(effects),), trip.answer, writes=False))
        return self._shortened(trip.answer) if trouble is Trouble.TRUNCATED else trip.answer

    def look(self, server: Server, issues: Sequence[IssueRef]) -> tuple[Snapshot, ...]:
        """Some issues, as one read shows them."""

        def look() -> tuple[Snapshot, ...]:
            return tuple(server.read(issue) for issue in issues)

        tear = self._weather.tear()
        return look() if tear is None else tear.read(look, self._process.simulation.pause)

    def reads_again(self) -> bool:
        return self._weather.reads_again()

    def _as_sender(self, *, late: bool) -> Callable[[What], None]:
        """Record what the network does as the sender's act; if late, in no order with the rest."""
        running = self._process.simulation.running
        name, fibre = self._process.name, running.number if running and not late else 0
        return lambda what: self._history.note(name, fibre, what)

    def _shortened(self, answer: Answer) -> Answer:
        """Remove a page of comments; sometimes the client knows that, sometimes not."""
        if isinstance(answer, Snapshot) and answer.comments:
            keep = self._weather.dice.randrange(len(answer.comments))
            newest = self._weather.dice.random() < 0.5
            kept = (
                answer.comments[len(answer.comments) - keep :] if newest else answer.comments[:keep]
            )
            known = self._weather.dice.random() < 0.5
            return replace(answer, comments=kept, all_pages=not known)
        return answer

    def note(self, what: What) -> None:
        running = self._process.simulation.running
        self._history.note(self._process.name, running.number if running else 0, what)

    # What services report

    def observe(self, event: Event) -> None:
        """A `ports.system.Observer`."""
        self.note(event)

    def reached(self, step: Step) -> None:
        self.note(step)
        self._weather.step(self._process, step)


class WiredTracker(OneAtATime):
    """A `ports.tracker.Tracker`."""

    def __init__(
        self,
        wire: Wire,
        server: Server,
        *,
        settle: timedelta,
        grain: timedelta,
        cheap_reads: bool = False,
        in_flight: timedelta | None = None,
    ) -> None:
        self._wire = wire
        self._server = server
        self.traits = TrackerTraits(
            name="simulated",
            settle=settle,
            grain=grain,
            cheap_reads=cheap_reads,
            in_flight=in_flight,
        )

    def find(self, query: IssueQuery) -> Found:
        return self._wire.call("find", None, lambda: self._server.find(query), query)

    def read(self, issue: IssueRef) -> Snapshot:
        def read() -> Snapshot:
            return self._wire.look(self._server, (issue,))[0]

        return self._wire.call("read", issue, read)

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        def count() -> Mapping[str, int]:
            return self._server.truth.tally(labels, closed_too=closed_too)

        return self._wire.call("tally", None, count)

    def create(self, draft: Draft) -> Issue:
        return self._wire.call("create", None, lambda: self._server.create(draft), writes=True)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        def post() -> Comment:
            return self._server.comment(issue, body)

        return self._wire.call("comment", issue, post, body, writes=True)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        def edit() -> Comment:
            return self._server.edit_comment(issue, comment, body)

        return self._wire.call("edit_comment", issue, edit, comment, body, writes=True)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        def edit() -> None:
            self._server.edit_labels(issue, add=add, remove=remove)

        self._wire.call("edit_labels", issue, edit, tuple(add), tuple(remove), writes=True)

    def close(self, issue: IssueRef) -> None:
        self._wire.call("close", issue, lambda: self._server.close(issue), writes=True)

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        """Do nothing: this tracker needs no labels created."""


class WiredTrips(WiredTracker):
    """The same with effects in one request, and many issues in one read."""

    def __init__(self, wire: Wire, server: Server, **traits: Any) -> None:
        super().__init__(wire, server, **traits)
        self.traits = replace(
            self.traits,
            applies=Applies.IN_ONE_REQUEST,
            reads_together=AT_ONCE,
            shortlists=not self.traits.cheap_reads,
        )

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Snapshot:
        snapshot = self._wire.trip(self._server, issue, effects)
        return self.read(issue) if self._wire.reads_again() else snapshot

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        def read() -> Mapping[IssueRef, Snapshot]:
            looked = self._wire.look(self._server, issues)
            return dict(zip(issues, looked, strict=True))

        return self._wire.call("snapshots", None, read, len(issues))

    def find_snapshots(self, queries: Sequence[IssueQuery]) -> tuple[FoundSnapshots, ...]:
        def find() -> tuple[FoundSnapshots, ...]:
            return tuple(self._with_comments(self._server.find(query)) for query in queries)

        return self._wire.call("find_snapshots", None, find, len(queries))

    def _with_comments(self, found: Found) -> FoundSnapshots:
        snapshots = self._wire.look(self._server, [issue.ref for issue in found.issues])
        return FoundSnapshots(snapshots, found.now, found.more)


class WiredStore:
    """A `ports.leases.LeaseStore`: another server, with the same faults in between."""

    def __init__(self, wire: Wire, store: LeaseStore) -> None:
        self._wire = wire
        self._store = store
        self.name = store.name
        self.guarantees: Guarantee = store.guarantees

    def acquire(self, bid: Bid) -> AcquireResult:
        return self._wire.call(
            "acquire", bid.issue, lambda: self._store.acquire(bid), bid.run, writes=True
        )

    def renew(self, lease: Lease) -> RenewResult:
        return self._wire.call(
            "renew", lease.issue, lambda: self._store.renew(lease), lease.run, writes=True
        )

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        def release() -> ReleaseResult:
            return self._store.release(lease, ending)

        return self._wire.call(
            "release",
            lease.issue,
            release,
            lease.run,
            lease.stage,
            ending.outcome.value,
            writes=True,
        )

    def acknowledge(self, record: Record) -> None:
        def acknowledge() -> None:
            self._store.acknowledge(record)

        issue = record.lease.issue
        self._wire.call("acknowledge", issue, acknowledge, record.lease.run, writes=True)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        def revoke() -> Record | None:
            return self._store.revoke(issue, revocation)

        return self._wire.call("revoke", issue, revoke, revocation.run, writes=True)

    def read(self, issue: IssueRef) -> Record | None:
        return self._wire.call("read_lease", issue, lambda: self._store.read(issue))

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        return self._wire.call("live", None, lambda: self._store.live(stage, limit))

    def highest(self) -> Fence:
        return self._wire.call("highest", None, self._store.highest)
