"""Requests of several effects in the simulator, and writes that come after their sender gave up."""

import random

import pytest
from msgspec.structs import replace

from dibs.core.card import CardState, parse_mark
from dibs.core.errors import NoSuchComment, RateLimited, Unavailable
from dibs.core.events import Event, EventKind
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment, PostComment, RemoveLabels
from dibs_lab.sim import Faults, Scenario, our_workers, play
from dibs_lab.sim.history import Called, Fault
from dibs_lab.sim.server import Server
from dibs_lab.sim.wires import WiredTracker
from dibs_lab.sim.world import World

MOVE = (AddLabels(("new",)), PostComment("said"), RemoveLabels(("old",)))
GRAIN = Scenario().terms.grain
ONE_TRIP = Scenario(one_trip=True, faults=Faults(in_flight_s=4.0))


def world_of(**faults):
    return World(replace(ONE_TRIP, faults=replace(ONE_TRIP.faults, **faults)), seed=1)


def an_issue(world):
    return world.server.create(Draft("Prices", labels=frozenset({"old"}))).ref


def sent(world, issue, effects=MOVE, *, name="sender"):
    """A process that makes one trip; what came of it is put into a list."""
    process, came = world.process(name), []
    tracker = world.tracker(world.wire(process))

    def main():
        try:
            came.append(tracker.apply(issue, effects))
        except (Unavailable, NoSuchComment) as failure:
            came.append(failure)

    process.start(main, "main")
    return process, came


def labels(world, issue):
    return world.server.truth.read(issue).issue.labels


def run_for(world, seconds):
    world.simulation.run(world.simulation.now_us + int(seconds * 1e6))


def test_the_effects_of_a_trip_happen_in_order_each_at_an_instant_of_its_own():
    world = world_of()
    issue = an_issue(world)
    _, came = sent(world, issue)
    run_for(world, 5)
    assert came[0].issue.labels == {"new"}
    done = [note for note in world.history.notes if getattr(note.what, "writes", False)]
    assert [note.what.op for note in done] == ["edit_labels", "comment", "edit_labels"]
    assert len({note.at_us for note in done}) == 3
    assert {note.process for note in done} == {"sender"}


def test_what_was_sent_is_done_although_its_sender_dies():
    world = world_of()
    issue = an_issue(world)
    process, came = sent(world, issue)
    while labels(world, issue) == {"old"}:
        run_for(world, 0.01)
    process.kill()
    run_for(world, 5)
    assert came == []
    assert labels(world, issue) == {"new"}


def test_a_trip_that_is_cut_short_leaves_a_beginning_of_it():
    left = set()
    for seed in range(40):
        world = World(replace(ONE_TRIP, faults=Faults(cut_short=1.0, in_flight_s=4.0)), seed)
        issue = an_issue(world)
        _, came = sent(world, issue)
        run_for(world, 5)
        assert isinstance(came[0], Unavailable)
        left.add((labels(world, issue), len(world.server.truth.read(issue).comments)))
    assert left == {
        (frozenset({"old"}), 0),
        (frozenset({"old", "new"}), 0),
        (frozenset({"old", "new"}), 1),
    }


def test_a_trip_that_fails_in_part_lacks_one_effect_and_has_those_after_it():
    left = set()
    for seed in range(40):
        world = World(replace(ONE_TRIP, faults=Faults(failed_in_part=1.0, in_flight_s=4.0)), seed)
        issue = an_issue(world)
        _, came = sent(world, issue)
        run_for(world, 5)
        assert isinstance(came[0], Unavailable)
        left.add((labels(world, issue), len(world.server.truth.read(issue).comments)))
    assert left == {
        (frozenset(), 1),
        (frozenset({"new"}), 0),
        (frozenset({"old", "new"}), 1),
    }


def test_an_effect_that_is_refused_does_not_stop_those_after_it():
    world = world_of()
    issue = an_issue(world)
    _, came = sent(world, issue, (EditComment(99, "x"), AddLabels(("new",))))
    run_for(world, 5)
    assert isinstance(came[0], NoSuchComment)
    assert labels(world, issue) == {"old", "new"}


def test_what_its_sender_gave_up_on_comes_within_the_time_that_the_tracker_names():
    late = []
    for seed in range(60):
        world = World(replace(ONE_TRIP, faults=Faults(straggle=1.0, in_flight_s=4.0)), seed)
        issue = an_issue(world)
        _, came = sent(world, issue)
        run_for(world, 30)
        assert isinstance(came[0], Unavailable)
        assert labels(world, issue) == {"new"}
        notes = world.history.notes
        given_up = next(n.at_us for n in notes if isinstance(n.what, Fault))
        last = max(n.at_us for n in notes if isinstance(n.what, Called))
        late.append((last - given_up) / 1e6)
    in_flight_s = world.tracker(world.wire(world.processes[0])).traits.in_flight.total_seconds()
    assert 3 < max(late) < in_flight_s
    assert min(late) < 1


def test_a_reply_shows_its_own_effects_whatever_else_lags():
    world = World(replace(ONE_TRIP, faults=Faults(write_lag_s=10.0)), seed=3)
    server: Server = world.server
    issue = an_issue(world)
    theirs = server.comment(issue, "theirs")
    own = []
    with server.noting(own):
        ours = server.comment(issue, "ours")
        server.edit_labels(issue, add=("new",))
    seen = server.read_after(issue, own)
    assert ours in seen.comments
    assert "new" in seen.issue.labels
    assert theirs not in seen.comments
    assert ours not in server.read(issue).comments


def test_a_torn_reply_shows_its_own_effects_in_both_halves_whatever_lags():
    """Others write while it is read; what the trip wrote itself was there before."""
    for seed in range(20):
        faults = Faults(torn_s=2.0, read_lag_s=5.0, in_flight_s=4.0)
        world = World(replace(ONE_TRIP, faults=faults), seed)
        issue = an_issue(world)
        _, came = sent(world, issue)
        run_for(world, 9)
        assert came[0].issue.labels == {"new"}
        assert [comment.body for comment in came[0].comments] == ["said"]


def test_a_reply_that_shows_too_little_is_followed_by_a_reading_like_any_other():
    world = world_of(read_again=1.0)
    issue = an_issue(world)
    _, came = sent(world, issue)
    run_for(world, 5)
    calls = [note.what.op for note in world.history.notes if isinstance(note.what, Called)]
    assert calls[-2:] == ["trip", "read"]
    assert came[0].issue.labels == {"new"}


# What the services make of it


class Shedding(WiredTracker):
    """Asks whoever wants to end a lease to come back later, and lets everything else through."""

    open_again_s = 75.0

    def edit_comment(self, issue, comment, body):
        card = parse_mark(body)
        now_s = self._wire._process.simulation.passed_s
        if card.state is CardState.RELEASED and now_s < self.open_again_s:
            raise RateLimited("slow down", retry_after_s=self.open_again_s - now_s)
        return super().edit_comment(issue, comment, body)


def test_a_lease_whose_ending_has_to_wait_is_renewed_until_it_is_its_turn():
    """Three ttls and more: no grant of a lease lasts so long."""
    world = World(Scenario(workers=1, ttl_s=20.0, work_s=(5.0, 5.0)), seed=1)

    def tracker(wire):
        return Shedding(wire, world.server, settle=world.settings.settle, grain=GRAIN)

    world.tracker = tracker
    our_workers(world)
    world.run()
    events = [note.what for note in world.history.notes if isinstance(note.what, Event)]
    kinds = [event.kind for event in events]
    assert kinds.count(EventKind.CLAIMED) == 1
    assert kinds.count(EventKind.ADVANCED) == 1
    assert EventKind.LEASE_LOST not in kinds
    advanced_s = next(
        note.at_us / 1e6
        for note in world.history.notes
        if isinstance(note.what, Event) and note.what.kind is EventKind.ADVANCED
    )
    assert 75 <= advanced_s < 80
    world.end()


def test_requests_of_a_worker_alone_on_one_trip():
    """Bid, read, confirm and paint, decide, paint: five for an issue, and one for each renewal."""
    scenario = replace(ONE_TRIP, workers=1, work_s=(1.0, 1.0), ttl_s=60.0)
    run = play(scenario, seed=1)
    calls = [note.what for note in run.notes if isinstance(note.what, Called)]
    trips = [call for call in calls if call.op == "trip"]
    assert [call.arguments for call in trips] == [(2,), (1,), (pytest.approx(5, abs=1),)]
    within = sum(call.arguments[0] for call in trips)
    written = [call for call in calls if call.writes and call.op != "effect"]
    assert len(written) - within == 1, "everything but the bid is part of a trip"


def test_the_same_seed_is_the_same_run_with_trips_and_stragglers():
    scenario = replace(
        ONE_TRIP, faults=replace(ONE_TRIP.faults, straggle=0.1, cut_short=0.1, freeze=0.05)
    )
    seed = random.Random(7).randrange(1000)
    assert play(scenario, seed).notes == play(scenario, seed).notes
