"""Painting an ending on a tracker: in one request where it can be, looked at again where not."""

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment, Painting, PostComment, RemoveLabels
from dibs.ports.tracker import Applies
from dibs.services.effects import _take_back, paint_ending
from dibs.testing.clock import FakeClock

from .world import Wire

OFF = RemoveLabels(("claimed",))
MARK = PostComment("shown")
STEPS = (AddLabels(("stage:review",)), RemoveLabels(("stage:ready",)))


def plan(snapshot):
    """Move the issue from ready to review, as far as it is not there yet."""
    labels = snapshot.issue.labels
    todo = [
        *((STEPS[0],) if "stage:review" not in labels else ()),
        *((STEPS[1],) if "stage:ready" in labels else ()),
    ]
    return Painting(tuple(todo), (OFF,))


class Batched(MemoryTracker):
    """All effects in one call, which a test may look at."""

    def __init__(self, now):
        super().__init__(now)
        self.traits = replace(self.traits, applies=Applies.IN_ONE_STEP)
        self.requests = []

    def apply(self, issue, effects, *, if_unchanged=None, **_):
        if if_unchanged is not None and self.read(issue).issue != if_unchanged:
            return None
        self.requests.append(tuple(effects))
        return self.read(issue)


@pytest.fixture
def clock():
    return FakeClock()


def an_issue(tracker):
    return tracker.create(Draft("Prices", "", frozenset({"stage:ready", "claimed"}))).ref


def test_a_batching_tracker_is_sent_labels_mark_and_letting_go_in_one_request(clock):
    tracker = Batched(clock.server_now)
    issue = an_issue(tracker)
    mark = EditComment(7, "shown")
    assert paint_ending(tracker, tracker.read(issue), plan, (mark,)) is not None
    assert tracker.requests == [(*STEPS, mark, OFF)]


def test_a_batching_tracker_does_nothing_if_the_issue_is_not_as_it_was_seen(clock):
    tracker = Batched(clock.server_now)
    seen = tracker.read(an_issue(tracker))
    clock.advance(1)
    tracker.edit_labels(seen.issue.ref, add=("bug",))
    assert paint_ending(tracker, seen, plan, (MARK,)) is None
    assert tracker.requests == []


def test_any_other_tracker_is_looked_at_before_the_mark_and_after_everything(clock):
    wire = Wire(MemoryTracker(clock.server_now))
    issue = an_issue(wire.adapter)
    painted = paint_ending(wire, wire.adapter.read(issue), plan, (MARK,))
    assert [call.name for call in wire.calls] == [
        "read",
        "edit_labels",
        "edit_labels",
        "read",
        "comment",
        "edit_labels",
        "read",
    ]
    assert painted.issue.labels == {"stage:review"}


@pytest.mark.parametrize("undo", [{"add": ("stage:ready",)}, {"remove": ("stage:review",)}])
def test_labels_that_somebody_undid_once_are_painted_once_more(clock, undo):
    wire = Wire(MemoryTracker(clock.server_now))
    issue = an_issue(wire.adapter)
    seen, undone = wire.adapter.read(issue), []

    def bot(call):
        if call.kwargs.get("remove") == ("stage:ready",) and not undone:
            wire.adapter.edit_labels(issue, **undo)
            undone.append(call)

    wire.after = bot
    painted = paint_ending(wire, seen, plan, (MARK,))
    assert undone
    assert painted.issue.labels == {"stage:review"}


@pytest.mark.parametrize("undo", [{"add": ("stage:ready",)}, {"remove": ("stage:review",)}])
def test_labels_that_somebody_keeps_undoing_are_not_said_to_be_shown(clock, undo):
    wire = Wire(MemoryTracker(clock.server_now))
    issue = an_issue(wire.adapter)
    seen, undone = wire.adapter.read(issue), []

    def bot(call):
        if call.name == "edit_labels":
            wire.adapter.edit_labels(issue, **undo)
            undone.append(call)

    wire.after = bot
    assert paint_ending(wire, seen, plan, (MARK,)) is None
    assert undone
    after = wire.adapter.read(issue)
    assert "claimed" in after.issue.labels
    assert after.comments == ()


def test_nothing_is_put_right_by_a_list_that_lacks_comments(clock):
    """The last card shows where the issue stands, and it may be among those that are missing."""
    tracker = MemoryTracker(clock.server_now)
    whole = tracker.read(an_issue(tracker))
    torn = replace(whole, issue=replace(whole.issue, comment_count=1))
    written = []

    def write(effects):
        written.append(effects)
        return whole

    def by_the_cards(snapshot):
        stands = STEPS[1:] if snapshot.complete else STEPS
        return Painting(putting_right=lambda added: stands if added else ())

    added = frozenset({"stage:ready"})
    _take_back(write, torn, by_the_cards, added)
    assert written == [(), STEPS[1:]]
