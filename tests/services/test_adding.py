"""Issues are made one by one, told as they are made, and made once whatever happens to replies."""

from datetime import timedelta

import pytest

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.errors import NotPermitted, RateLimited, Unavailable
from dibs.core.issue import Draft
from dibs.ports.tracker import IssueQuery
from dibs.services.adding import Adding
from dibs.testing.clock import FakeClock

from .world import Wire, outage

SETTLE = timedelta(seconds=5)


class Desk:
    """Somebody who adds issues over a wire that may break."""

    def __init__(self):
        self.clock = FakeClock()
        self.tracker = MemoryTracker(self.clock.server_now, settle=SETTLE)
        self.wire = Wire(self.tracker)
        self.waited = []
        self.adding = Adding(self.wire, self.clock, SETTLE)

    def add(self, *titles, once=False, patience_s=0.0):
        """The titles that are there, each with whether it was made, and the error that came."""
        said = []
        drafts = [Draft(title, "text", frozenset({"stage:ready"})) for title in titles]
        added = self.adding.add(drafts, once=once, patience_s=patience_s, waits=self._waits)
        try:
            said.extend((one.issue.title, one.made) for one in added)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return said, error
        return said, None

    def _waits(self, seconds, why):
        self.waited.append((seconds, why))

    @property
    def titles(self):
        found = self.tracker.find(IssueQuery(limit=100, closed_too=True))
        return [issue.title for issue in found.issues]


@pytest.fixture
def desk():
    return Desk()


def test_each_is_told_as_it_is_made(desk):
    drafts = [Draft("a"), Draft("b")]
    added = desk.adding.add(drafts, once=False, patience_s=0.0, waits=desk._waits)
    assert next(added).issue.title == "a"
    assert desk.titles == ["a"]
    assert next(added).issue.title == "b"
    assert desk.titles == ["a", "b"]


def test_equal_titles_are_equal_wishes_unless_asked_otherwise(desk):
    assert desk.add("a", "a") == ([("a", True), ("a", True)], None)
    assert desk.add("a", "b", "b", once=True) == ([("a", False), ("b", True), ("b", False)], None)
    assert desk.titles == ["a", "a", "b"]


def test_an_issue_whose_reply_was_lost_is_found_and_not_made_twice(desk):
    desk.add("b")
    desk.clock.advance(60)

    def lose(call):
        if call.name == "create" and call.args[0].title == "b":
            desk.wire.after = lambda _: None
            raise Unavailable("the reply was lost")

    desk.wire.after = lose
    started = desk.clock.passed_s
    assert desk.add("a", "b", "c") == ([("a", True), ("b", True), ("c", True)], None)
    assert desk.titles == ["b", "a", "b", "c"], "the first b is an older one"
    assert desk.clock.passed_s - started >= SETTLE.total_seconds(), (
        "until a list is sure to show it"
    )


@pytest.mark.parametrize("worked", ["moved on", "closed"])
def test_an_issue_that_was_worked_before_the_look_is_not_made_twice(desk, worked):
    def lose(call):
        if call.name == "create":
            desk.wire.after = lambda _: None
            (made,) = desk.tracker.find(IssueQuery(limit=2)).issues
            if worked == "closed":
                desk.tracker.close(made.ref)
            desk.tracker.edit_labels(made.ref, add=["stage:doing"], remove=["stage:ready"])
            raise Unavailable("the reply was lost")

    desk.wire.after = lose
    assert desk.add("a") == ([("a", True)], None)
    assert desk.titles == ["a"]


def test_an_issue_of_ours_with_the_same_title_is_not_taken_for_the_lost_one(desk):
    lost = iter([False, True, False])

    def lose(call):
        if call.name == "create" and next(lost):
            raise Unavailable("nothing came of it")

    desk.wire.before = lose
    assert desk.add("a", "a") == ([("a", True), ("a", True)], None)
    assert desk.titles == ["a", "a"]


def test_an_issue_that_was_not_made_is_sent_again_and_then_given_up(desk):
    desk.wire.before = outage("create", times=2)
    assert desk.add("a") == ([("a", True)], None)
    desk.wire.before = outage("create", times=3)
    said, error = desk.add("b")
    assert (said, type(error)) == ([], Unavailable)
    assert desk.titles == ["a"]


def test_an_issue_of_the_same_title_with_another_text_is_not_taken_for_ours(desk):
    def rival(call):
        if call.name == "create" and not desk.titles:
            desk.tracker.create(Draft("a", "theirs", frozenset({"stage:ready"})))
            raise Unavailable("no answer")

    desk.wire.before = rival
    assert desk.add("a") == ([("a", True)], None)
    assert desk.titles == ["a", "a"]


def test_limits_are_waited_for_as_long_as_asked_and_each_wait_is_told(desk):
    def limit(call):
        if call.name == "create" and len(desk.titles) % 2 and desk.clock.passed_s < 100:
            raise RateLimited("kept below the pace", retry_after_s=30.0)

    desk.wire.before = limit
    assert desk.add("a", "b", "c", patience_s=120.0)[1] is None
    assert desk.waited == [(30.0, "kept below the pace")] * 4


def test_no_longer_than_asked_is_waited(desk):
    def limit(call):
        if call.name == "create":
            raise RateLimited("kept below the pace", retry_after_s=30.0)

    desk.wire.before = limit
    said, error = desk.add("a", patience_s=20.0)
    assert (said, type(error), desk.waited) == ([], RateLimited, [])


def test_what_was_made_before_a_refusal_is_told_and_the_rest_can_be_made_later(desk):
    def refuse(call):
        if call.name == "create" and call.args[0].title == "c":
            raise NotPermitted("no")

    desk.wire.before = refuse
    said, error = desk.add("a", "b", "c", "d")
    assert (said, type(error)) == ([("a", True), ("b", True)], NotPermitted)
    desk.wire.before = lambda _: None
    desk.tracker.close(desk.tracker.find(IssueQuery(limit=1)).issues[0].ref)
    said, error = desk.add("a", "b", "c", "d", once=True)
    assert said == [("a", False), ("b", False), ("c", True), ("d", True)]
    assert desk.titles == ["a", "b", "c", "d"], "a was worked and closed meanwhile"
