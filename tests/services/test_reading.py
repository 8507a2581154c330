"""Many issues with their comments, in as few requests as the tracker can do it."""

import pytest
from msgspec.structs import replace

from dibs.ports.tracker import IssueQuery
from dibs.services.reading import read_each, walk, walk_snapshots

from .costly import CostlyWorld
from .world import World

READY = ("stage:ready",)


@pytest.fixture(params=["plain", "many"])
def world(request):
    return World("comments") if request.param == "plain" else CostlyWorld()


def refs(threads):
    return [snapshot.issue.ref for snapshot in threads]


def test_issues_are_read_in_the_order_they_are_named(world):
    first, second, third = (world.add() for _ in range(3))
    world.tracker.comment(second, "hello")
    threads = list(read_each(world.process().tracker, [third, second, first]))
    assert threads == [world.read(third), world.read(second), world.read(first)]


def test_issues_are_found_as_without_their_comments(world):
    for number in range(250):
        world.add("stage:ready" if number % 3 else "stage:review")
    query = IssueQuery(READY, limit=140)
    assert refs(walk_snapshots(world.tracker, query)) == [
        issue.ref for issue in walk(world.tracker, query)
    ]


def test_several_queries_are_all_answered(world):
    ready = [world.add() for _ in range(130)]
    review = [world.add("stage:review") for _ in range(3)]
    found = refs(
        walk_snapshots(
            world.tracker, IssueQuery(READY, limit=120), IssueQuery(("stage:review",), limit=2)
        )
    )
    assert sorted(found, key=lambda ref: int(ref.key)) == [*ready[:120], *review[:2]]


def test_a_limit_of_nothing_asks_nothing(world):
    world.add()
    process = world.process()
    assert list(walk_snapshots(process.tracker, IssueQuery(READY, limit=0))) == []
    assert process.tracker.calls == []


def test_a_walk_that_skips_does_so_once(world):
    issues = [world.add() for _ in range(420)]
    skipping = IssueQuery(READY, limit=1000, skip=5)
    assert [issue.ref for issue in walk(world.tracker, skipping)] == issues[5:]
    assert refs(walk_snapshots(world.tracker, skipping)) == issues[5:]


# What it costs


def test_a_hundred_issues_are_one_request():
    world = CostlyWorld()
    issues = [world.add() for _ in range(230)]
    wire = world.process().tracker
    assert refs(read_each(wire, issues)) == issues
    assert wire.requests == {"read_many": 3}
    wire.calls.clear()
    strays = IssueQuery(("stage:processing",), limit=500)
    assert refs(walk_snapshots(wire, IssueQuery(READY, limit=500), strays)) == issues
    assert wire.requests == {"find_snapshots": 3}


def test_no_more_is_asked_for_than_is_consumed():
    world = CostlyWorld()
    issues = [world.add() for _ in range(230)]
    wire = world.process().tracker
    assert next(read_each(wire, issues)).issue.ref == issues[0]
    assert next(walk_snapshots(wire, IssueQuery(READY, limit=500))).issue.ref == issues[0]
    assert wire.requests == {"read_many": 1, "find_snapshots": 1}


def test_a_thread_that_is_too_long_is_read_by_itself_once():
    world = CostlyWorld(page=2)
    short, long = world.add(), world.add()
    for number in range(5):
        world.tracker.comment(long, f"comment {number}")
    wire = world.process().tracker
    expected = [world.read(short), world.read(long)]
    assert list(read_each(wire, [short, long])) == expected
    assert wire.requests == {"read_many": 1, "read": 1}
    assert list(walk_snapshots(wire, IssueQuery(READY))) == expected
    assert all(snapshot.complete for snapshot in expected)


def test_issues_that_vanished_are_left_out():
    world = CostlyWorld(page=1)
    kept, gone, going = world.add(), world.add(), world.add()
    for _ in range(2):
        world.tracker.comment(going, "hello")
    world.tracker.delete(gone)
    wire = world.process().tracker
    wire.after = lambda call: world.tracker.delete(going) if call.name == "read_many" else None
    assert refs(read_each(wire, [kept, gone, going])) == [kept]


def test_a_tracker_that_is_cheap_to_ask_is_asked_for_each():
    cheap = World("comments").tracker.traits
    assert (cheap.shortlists, cheap.reads_together) == (False, 1)
    costly = CostlyWorld().tracker.traits
    assert (costly.shortlists, costly.reads_together) == (True, 100)


def test_while_it_reads_one_at_a_time_it_is_asked_for_lists_all_the_same():
    """GitHub's GraphQL budget is spent: it refuses a list, and a hundred readings are no answer."""
    world = CostlyWorld()
    issues = [world.add() for _ in range(3)]
    world.tracker.traits = replace(world.tracker.traits, reads_together=1)
    wire = world.process().tracker
    assert refs(walk_snapshots(wire, IssueQuery(("stage:ready",)))) == issues
    assert refs(read_each(wire, issues)) == issues
    assert dict(wire.requests) == {"find_snapshots": 1, "read_many": 1}
