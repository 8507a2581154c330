"""The trackers we ship, and the proof that the suite catches one that does not conform."""

from contextlib import contextmanager

import pytest

from dibs.adapters.trackers.memory import MemoryTracker
from dibs.core.issue import Thread
from dibs.testing.clock import FakeClock
from dibs.testing.conformance import tracker as suite
from dibs.testing.conformance.report import NotApplicable, Result

from . import harnesses
from .harnesses import MemoryTrackerHarness

TRACKERS = {
    "memory": harnesses.memory_tracker,
    "memory-whole-seconds": harnesses.memory_tracker_with_seconds,
    "sqlite": harnesses.sqlite_tracker,
    "sqlite-plain": harnesses.plain_sqlite_tracker,
    "sqlite-shelf": harnesses.sqlite_tracker_with_a_shelf,
    "sqlite-two-shelves": harnesses.sqlite_tracker_with_two_shelves,
}


@pytest.mark.parametrize("check", suite.CHECKS, ids=str)
@pytest.mark.parametrize("factory", TRACKERS.values(), ids=TRACKERS)
def test_a_tracker_keeps_its_contract(factory, check):
    try:
        with factory() as harness:
            check(harness)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", ["memory", "sqlite", "sqlite-plain"])
def test_batches_were_checked_where_they_are_offered(name):
    batch_checks = (
        "a_batch_returns_the_state_after",
        "a_batch_is_all_or_nothing",
        "a_batch_that_saw_an_older_issue_does_nothing",
    )
    skipped = suite.prove(TRACKERS[name]).named(Result.SKIPPED)
    assert skipped == (() if name == "sqlite" else batch_checks)


def test_every_check_says_in_words_what_it_asks_for():
    names = [check.name for check in suite.CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.text for check in suite.CHECKS)


# Trackers that are wrong in one thing each


class ReplacesAllLabels(MemoryTracker):
    """Writes back the label set it read last, like a client that sets the whole list."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._seen = {}

    def read(self, issue):
        thread = super().read(issue)
        self._seen[issue] = thread.issue.labels
        return thread

    def edit_labels(self, issue, *, add=(), remove=()):
        labels = (self._seen.get(issue, frozenset()) | set(add)) - set(remove)
        now = super().read(issue).issue.labels
        super().edit_labels(issue, add=labels, remove=now - labels)


class ShowsTheLastPageOnly(MemoryTracker):
    def read(self, issue):
        thread = super().read(issue)
        return Thread(thread.issue, thread.comments[-3:], thread.now)


class RestampsEditedComments(MemoryTracker):
    def edit_comment(self, issue, comment, body):
        super().edit_comment(issue, comment, body)
        thread = self._comments[issue]
        place = next(place for place, known in enumerate(thread) if known.id == comment)
        old = thread[place]
        thread[place] = type(old)(old.id, old.body, self._now(), self._now(), old.author)
        return thread[place]


class FindsClosedIssues(MemoryTracker):
    def close(self, issue):
        super().read(issue)


class ForgetsWhereThePageEnded(MemoryTracker):
    def find(self, query):
        found = super().find(query)
        skipped = found.issues[1:] if query.after else found.issues
        return type(found)(skipped, found.now, found.more)


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (ReplacesAllLabels, "labels_of_others_are_kept"),
        (ShowsTheLastPageOnly, "the_comment_count_is_the_length_of_the_list"),
        (RestampsEditedComments, "an_edit_changes_the_text_and_updated_at_only"),
        (FindsClosedIssues, "a_filter_never_returns_a_closed_or_excluded_issue"),
        (ForgetsWhereThePageEnded, "paging_loses_nothing_and_repeats_nothing"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_tracker_is_caught_by_name(broken, caught_by):
    @contextmanager
    def factory():
        clock = FakeClock()
        yield MemoryTrackerHarness(clock, broken(clock.server_now))

    report = suite.prove(factory)
    assert caught_by in report.failed
    assert not report.ok
    with pytest.raises(AssertionError, match="DOES NOT CONFORM"):
        report.insist()
