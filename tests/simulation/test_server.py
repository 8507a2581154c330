"""What a reader is shown: the truth, a replica that lags, or each write in its own time."""

import random
from itertools import pairwise

import pytest

from dibs.core.issue import Draft
from dibs.ports.tracker import IssueQuery
from dibs_lab.sim.fibres import Process, Simulation, microseconds
from dibs_lab.sim.server import Server
from dibs_lab.sim.tearing import Tear


class World:
    def __init__(self, **lags):
        self.simulation = Simulation()
        self.server = Server(self.simulation, random.Random(1), **lags)
        self.issue = self.server.create(Draft("Prices are wrong", labels=frozenset({"a"}))).ref

    def wait(self, seconds):
        process = Process(self.simulation, "p")
        process.start(lambda: process.sleep(seconds), "f")
        self.simulation.run(self.simulation.now_us + microseconds(seconds))

    def seen(self):
        return self.server.read(self.issue)


def test_without_lag_every_reader_sees_the_truth():
    world = World()
    posted = world.server.comment(world.issue, "hello")
    world.server.edit_labels(world.issue, add=("b",), remove=("a",))
    assert world.seen() == world.server.truth.read(world.issue)
    assert world.seen().comments == (posted,)


@pytest.mark.parametrize("lags", [{"read_lag_s": 5.0}, {"write_lag_s": 5.0}])
def test_after_the_lag_everybody_sees_everything(lags):
    world = World(**lags)
    posted = world.server.comment(world.issue, "hello")
    world.server.edit_comment(world.issue, posted.id, "hello again")
    world.server.edit_labels(world.issue, add=("b",), remove=("a",))
    world.server.close(world.issue)
    world.wait(5.01)
    for _ in range(20):
        assert world.seen() == world.server.truth.read(world.issue)


def test_a_replica_shows_no_later_write_without_the_earlier_ones():
    world = World(read_lag_s=5.0)
    for number in range(5):
        world.server.comment(world.issue, f"comment {number}")
        world.wait(1.0)
    for _ in range(200):
        seen = [comment.body for comment in world.seen().comments]
        assert seen == [f"comment {number}" for number in range(len(seen))]


def test_writes_that_are_seen_in_their_own_time_overtake_each_other():
    world = World(write_lag_s=5.0)
    for number in range(6):
        world.server.comment(world.issue, f"comment {number}")
    gaps = 0
    for _ in range(50):
        world.wait(0.1)
        ids = [comment.id for comment in world.seen().comments]
        gaps += any(after - before > 1 for before, after in pairwise([0, *ids]))
    assert gaps > 0


def test_a_later_edit_that_is_seen_is_not_hidden_by_an_earlier_one_that_is_not():
    """Over many draws: what is shown is one of the versions, and in the end the last."""
    for seed in range(50):
        world = World(write_lag_s=4.0)
        world.server._dice = random.Random(seed)
        posted = world.server.comment(world.issue, "v0")
        for version in ("v1", "v2"):
            world.server.edit_comment(world.issue, posted.id, version)
        shown = []
        for _ in range(45):
            world.wait(0.1)
            shown += [comment.body for comment in world.seen().comments]
        assert set(shown) <= {"v0", "v1", "v2"}
        assert shown[-1] == "v2"


def test_the_count_of_comments_lags_by_itself():
    """So a list may be longer or shorter than the count: completeness must be proved."""
    short = long = 0
    for seed in range(60):
        world = World(write_lag_s=4.0)
        world.server._dice = random.Random(seed)
        world.server.comment(world.issue, "one")
        world.wait(2.0)
        seen = world.seen()
        short += len(seen.comments) < seen.issue.comment_count
        long += len(seen.comments) > seen.issue.comment_count
    assert short > 0
    assert long > 0


def test_a_search_lags_like_a_reading():
    world = World(write_lag_s=4.0)
    world.server.edit_labels(world.issue, add=("claimed",))
    free = IssueQuery(("a",), ("claimed",))
    found = []
    for _ in range(41):
        found.append(bool(world.server.find(free).issues))
        world.wait(0.1)
    assert found[0] is True
    assert found[-1] is False
    assert found == sorted(found, reverse=True)


def test_a_deleted_comment_is_shown_until_the_deletion_is_seen():
    world = World(write_lag_s=4.0)
    posted = world.server.comment(world.issue, "one")
    world.wait(5.0)
    world.server.delete_comment(world.issue, posted.id)
    before = len(world.seen().comments)
    world.wait(5.0)
    assert (before, len(world.seen().comments)) == (1, 0)


# Readings in two moments


def torn_reading(world, tear, meanwhile):
    """Somebody writes while the server answers."""

    def look():
        return (world.seen(),)

    (snapshot,) = tear.read(look, lambda _: meanwhile())
    return snapshot


@pytest.mark.parametrize("comments_first", [False, True])
def test_a_torn_reading_has_its_labels_and_its_comments_from_two_moments(comments_first):
    world = World()

    def end_and_paint():
        world.server.edit_labels(world.issue, add=("b",), remove=("a",))
        world.server.close(world.issue)
        world.server.comment(world.issue, "shown")

    seen = torn_reading(world, Tear(1, comments_first=comments_first), end_and_paint)
    after = world.seen()
    assert (seen.issue == after.issue) is comments_first
    assert (seen.comments == after.comments) is not comments_first
    assert seen.now == after.now


def test_where_readers_lag_each_half_of_a_torn_reading_does_so_by_itself():
    world = World(read_lag_s=5.0)
    world.server.comment(world.issue, "said")
    world.server.edit_labels(world.issue, add=("b",))
    world.wait(2.5)
    seen = set()
    for _ in range(100):
        snapshot = torn_reading(world, Tear(), lambda: None)
        seen.add((bool(snapshot.comments), "b" in snapshot.issue.labels))
    assert seen == {(False, False), (False, True), (True, False), (True, True)}
