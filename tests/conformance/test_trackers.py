"""The trackers we ship, and the proof that the suite catches one that does not conform."""

import pytest

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.ports.tracker import Applies
from dibs.testing.conformance import TRACKER_CHECKS, NotApplicable, Result, prove_tracker

from . import broken_trackers as broken
from .adapters import CHECKS_ITSELF, IN_ONE_REQUEST, IN_ONE_STEP, TRACKERS
from .broken_trackers import opening
from .harnesses import MemoryTrackerHarness

# Emulate is a GitHub of others, fetched and started for these tests.
NAMES = [
    pytest.param(name, marks=[pytest.mark.long] if name == "github-emulate" else [])
    for name in TRACKERS
]
CAPABILITIES = {
    IN_ONE_STEP: ("a_batch_is_all_or_nothing", "a_batch_that_saw_an_older_issue_does_nothing"),
    IN_ONE_REQUEST: ("a_trip_returns_the_state_after", "a_trip_tells_what_failed"),
    CHECKS_ITSELF: ("a_healthy_tracker_finds_no_flaw_in_itself",),
}


def capabilities(traits):
    checks = (CHECKS_ITSELF,) if traits.checks_itself else ()
    return (() if traits.applies is Applies.ONE_BY_ONE else (traits.applies.value,)) + checks


@pytest.mark.parametrize("check", TRACKER_CHECKS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_keeps_its_contract(name, check):
    factory, _ = TRACKERS[name]
    try:
        with factory() as harness:
            check(harness)
    except NotApplicable as reason:
        if not check.optional:
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_offers_what_its_line_says_and_that_is_checked(name):
    factory, offers = TRACKERS[name]
    with factory() as harness:
        assert offers == capabilities(harness.tracker.traits)
    for kind, checks in CAPABILITIES.items():
        made = [_made(check, factory) for check in TRACKER_CHECKS if check.name in checks]
        assert made == [kind in offers] * len(checks)


def _made(check, factory):
    try:
        with factory() as harness:
            check(harness)
    except NotApplicable:
        return False
    return True


def test_every_check_says_in_words_what_it_asks_for():
    names = [check.name for check in TRACKER_CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.text for check in TRACKER_CHECKS)


# Trackers that are wrong in one thing each


# Each of them, the surroundings it needs, and the check that must see it.
WRONG = [
    (broken.KeepsOneLineOfTheBody, MemoryTrackerHarness, "an_issue_is_as_it_was_drafted"),
    (broken.ForgivesMissingIssues, MemoryTrackerHarness, "a_missing_issue_is_said_to_be_missing"),
    (broken.FindsClosedIssues, MemoryTrackerHarness, "closing_twice_is_closing_once"),
    (broken.LocksClosedIssues, MemoryTrackerHarness, "a_closed_issue_can_still_be_written_on"),
    (broken.ReplacesAllLabels, MemoryTrackerHarness, "labels_are_added_and_removed_idempotently"),
    (broken.ReplacesAllLabels, MemoryTrackerHarness, "labels_of_others_are_kept"),
    (broken.TidiesLabels, MemoryTrackerHarness, "labels_may_be_spelt_oddly"),
    (broken.CountsClosedIssues, MemoryTrackerHarness, "a_tally_counts_open_issues"),
    (
        broken.FindsClosedIssues,
        MemoryTrackerHarness,
        "a_filter_never_returns_a_closed_or_excluded_issue",
    ),
    (
        broken.NeverShowsClosedIssues,
        MemoryTrackerHarness,
        "every_combination_of_labels_is_filtered_rightly",
    ),
    (broken.NeverShowsClosedIssues, MemoryTrackerHarness, "closed_issues_are_found_when_asked_for"),
    (broken.SkipsBeforeItFilters, MemoryTrackerHarness, "skipping_passes_over_the_foremost"),
    (
        broken.ForgetsWhereThePageEnded,
        MemoryTrackerHarness,
        "paging_loses_nothing_and_repeats_nothing",
    ),
    (broken.FindsTheFirstPage, MemoryTrackerHarness, "a_long_list_is_walked_to_its_end"),
    (
        broken.FindsWithoutCounting,
        MemoryTrackerHarness,
        "a_finding_shows_the_issue_as_a_reading_does",
    ),
    (broken.ListsTheNewestFirst, MemoryTrackerHarness, "comments_come_in_the_servers_order"),
    (broken.NumbersWithinTheIssue, MemoryTrackerHarness, "comment_ids_only_grow"),
    (
        broken.RestampsEditedComments,
        MemoryTrackerHarness,
        "an_edit_changes_the_text_and_updated_at_only",
    ),
    (
        broken.ShowsTheLastPageOnly,
        MemoryTrackerHarness,
        "the_comment_count_is_the_length_of_the_list",
    ),
    (broken.ReadsTheFirstPage, MemoryTrackerHarness, "a_long_thread_is_read_to_its_end"),
    (
        broken.ForgivesMissingComments,
        MemoryTrackerHarness,
        "a_missing_comment_is_said_to_be_missing",
    ),
    (broken.StripsHtmlComments, MemoryTrackerHarness, "unknown_marks_are_left_alone"),
    (broken.TwoServers, MemoryTrackerHarness, "server_time_never_runs_backwards"),
    (broken.ForgetsToStamp, MemoryTrackerHarness, "a_change_is_stamped_on_the_issue"),
    (broken.LosesWrites, MemoryTrackerHarness, "concurrent_writers_lose_nothing"),
    (broken.CriesWolf, MemoryTrackerHarness, "a_healthy_tracker_finds_no_flaw_in_itself"),
    (broken.BatchTellsWhatWas, MemoryTrackerHarness, "a_batch_returns_the_state_after"),
    (broken.BatchStopsHalfWay, MemoryTrackerHarness, "a_batch_is_all_or_nothing"),
    (broken.BatchNeverLooks, MemoryTrackerHarness, "a_batch_that_saw_an_older_issue_does_nothing"),
    (broken.TripTellsWhatWas, MemoryTrackerHarness, "a_trip_returns_the_state_after"),
    (broken.TripSwallowsFailures, MemoryTrackerHarness, "a_trip_tells_what_failed"),
    (broken.ReadsManyButNotAll, MemoryTrackerHarness, "many_snapshots_are_read_as_each_alone"),
    (broken.ReadsManyTwice, MemoryTrackerHarness, "many_snapshots_are_read_as_each_alone"),
    (broken.TakesAnyOfTheLabels, MemoryTrackerHarness, "snapshots_are_found_as_issues_are"),
    (
        broken.RestsThroughChanges,
        MemoryTrackerHarness,
        "a_rest_ends_by_time_by_a_change_and_by_other_rules",
    ),
    (
        broken.ForgetsWhatItArchives,
        MemoryTrackerHarness,
        "archived_comments_leave_the_thread_and_are_kept",
    ),
    (broken.BelievesEverybody, MemoryTrackerHarness, "strangers_are_told_from_writers"),
    (broken.LeaksItsLibrarysError, broken.CuttableHarness, "an_outage_is_told_as_one"),
]


@pytest.mark.parametrize(
    ("tracker", "harness", "caught_by"),
    [pytest.param(*row, id=f"{row[0].__name__}-{row[2]}") for row in WRONG],
)
def test_a_broken_tracker_is_caught_by_name(tracker, harness, caught_by):
    report = prove_tracker(opening(tracker, harness))
    assert caught_by in report.failed
    assert not report.ok
    with pytest.raises(AssertionError, match="DOES NOT CONFORM"):
        report.insist()


def test_every_check_can_fail():
    assert {row[2] for row in WRONG} == {check.name for check in TRACKER_CHECKS}


@pytest.mark.parametrize(
    ("tracker", "harness"),
    [
        (MemoryTracker, MemoryTrackerHarness),
        (broken.Cuttable, broken.CuttableHarness),
        (broken.SelfChecking, MemoryTrackerHarness),
        (broken.BatchingMemory, MemoryTrackerHarness),
        (broken.TrippingMemory, MemoryTrackerHarness),
        (broken.ReadingMemory, MemoryTrackerHarness),
    ],
    ids=lambda value: value.__name__,
)
def test_the_healthy_trackers_that_the_broken_ones_derive_from_conform(tracker, harness):
    prove_tracker(opening(tracker, harness)).insist()


def test_a_check_that_the_harness_does_not_allow_is_missed_and_not_forgiven():
    report = prove_tracker(opening(MemoryTracker, broken.TimelessHarness))
    assert report.failed == ()
    assert "an_edit_changes_the_text_and_updated_at_only" in report.missed
    assert "an_outage_is_told_as_one" in report.named(Result.SKIPPED)
    assert not report.ok
