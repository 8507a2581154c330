"""Requests under way: a request takes effect whether or not its sender gets the reply.

A trip has several effects in one request, each at its own instant, so that others may write in
between. The server may die halfway, and one effect may fail while the later ones happen. A write
that its sender has given up on may take effect later, within the time that the tracker declares.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec import Struct

from dibs.core.errors import DibsError, NoSuchComment, NoSuchIssue, Unavailable
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Snapshot
from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    Effect,
    PostComment,
    RemoveLabels,
)
from dibs_lab.sim.faults import Trouble
from dibs_lab.sim.fibres import Process, Simulation
from dibs_lab.sim.history import Called
from dibs_lab.sim.server import Own, Server
from dibs_lab.sim.tearing import Tear

Note = Callable[[Called], None]


class Network:
    """Carries requests separately from the processes that sent them, which may die or freeze."""

    def __init__(self, simulation: Simulation) -> None:
        self.process = Process(simulation, "network")

    def carry(self, request: Callable[[], None]) -> None:
        self.process.start(request, "courier")

    def pause(self, duration_us: int) -> None:
        self.process.simulation.pause(duration_us)


class Course(Struct, frozen=True):
    """The faults that strike one trip."""

    gaps_us: tuple[int, ...]
    """How long the server takes before each effect."""
    cut_at: int | None = None
    """The effect before which the server dies."""
    failing: int | None = None
    """The effect that does not happen, while all others do."""
    late_us: int = 0
    """How long the request waits before its first effect."""
    tear: Tear | None = None
    """How its reply is torn."""

    @property
    def total_us(self) -> int:
        reading_us = self.tear.gap_us if self.tear is not None else 0
        return self.late_us + sum(self.gaps_us) + reading_us


class Trip(Struct):
    """One request with several effects, and its results."""

    server: Server
    issue: IssueRef
    effects: Sequence[Effect]
    course: Course
    note: Note
    failure: DibsError | None = None
    answer: Snapshot | None = None

    def run(self, network: Network) -> None:
        network.pause(self.course.late_us)
        own: Own = []
        for place, effect in enumerate(self.effects):
            network.pause(self.course.gaps_us[place])
            if place == self.course.cut_at:
                self.failure = self.failure or Unavailable("trip: 502 in the middle of it")
                return
            if place == self.course.failing:
                self.failure = self.failure or Unavailable("trip: one of its effects failed")
                continue
            try:
                self.note(do(self.server, self.issue, effect, own))
            except (NoSuchIssue, NoSuchComment) as refusal:
                self.failure = self.failure or refusal
        self.answer = self._reply(network, own)

    def _reply(self, network: Network, own: Own) -> Snapshot:
        def look() -> tuple[Snapshot, ...]:
            return (self.server.read_after(self.issue, own),)

        tear = self.course.tear
        (reply,) = look() if tear is None else tear.read(look, network.pause)
        return reply


def do(server: Server, issue: IssueRef, effect: Effect, own: Own | None = None) -> Called:
    """Make one effect on the server; returns the call that it would be as a single request."""
    with server.noting(own):
        match effect:
            case AddLabels(labels):
                server.edit_labels(issue, add=labels)
                return Called("edit_labels", issue, (labels, ()), None, writes=True)
            case RemoveLabels(labels):
                server.edit_labels(issue, remove=labels)
                return Called("edit_labels", issue, ((), labels), None, writes=True)
            case PostComment(body):
                posted: Comment = server.comment(issue, body)
                return Called("comment", issue, (body,), posted, writes=True)
            case EditComment(number, body):
                edited = server.edit_comment(issue, number, body)
                return Called("edit_comment", issue, (number, body), edited, writes=True)
            case CloseIssue():
                server.close(issue)
                return Called("close", issue, (), None, writes=True)
            case never:
                assert_never(never)


def chart(trouble: Trouble, effects: int, dice: Callable[[], float], gap_us: int) -> Course:
    """Draw the faults of a trip that meets this trouble."""
    gaps = tuple(int(dice() * gap_us) for _ in range(effects))
    return Course(
        gaps,
        cut_at=int(dice() * effects) if trouble is Trouble.CUT_SHORT else None,
        failing=int(dice() * effects) if trouble is Trouble.FAILED_IN_PART else None,
    )
