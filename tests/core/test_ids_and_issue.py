"""Identities, the two kinds of time, and the normalised issue."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.ids import (
    LONGEST_HOLDER,
    ZERO,
    Fence,
    HolderId,
    IssueRef,
    LocalTime,
    RunId,
    StageName,
    holder_name,
    later,
    local_after,
    server_time,
)
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.references import parse_reference

from .builders import REF, at, bid, make_issue, make_snapshot, s


@given(st.datetimes(), st.integers(-14 * 60, 14 * 60))
def test_a_server_time_is_the_same_instant_in_utc(moment, minutes):
    if not datetime(1900, 1, 1) < moment < datetime(9000, 1, 1):  # noqa: DTZ001
        moment = moment.replace(year=2026, day=1)
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    taken = server_time(aware)
    assert taken == aware
    assert taken.tzinfo is UTC


def test_a_timestamp_without_a_zone_is_refused_and_named():
    with pytest.raises(ValueError, match="time zone") as refusal:
        server_time(datetime(2026, 5, 1))  # noqa: DTZ001
    assert "2026" in str(refusal.value)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_later_adds_a_span_to_a_server_time(start, span):
    assert later(at(start), s(span)) == at(start + span)


@given(st.floats(0, 1e9), st.integers(0, 10**6))
def test_local_time_is_counted_in_plain_seconds(start, span):
    assert local_after(LocalTime(start), s(span)) == pytest.approx(start + span)


def test_zero_is_no_time_at_all():
    assert timedelta(0) == ZERO


def test_names_are_the_plain_values_they_name():
    assert (RunId("r"), HolderId("h"), StageName("s"), Fence(3)) == ("r", "h", "s", 3)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("worker-7", "worker-7"),
        ("  Ann \n Smith\t", "Ann Smith"),
        ("", "unnamed"),
        (" \n ", "unnamed"),
        ("w" * 500, "w" * LONGEST_HOLDER),
    ],
)
def test_a_holders_name_is_one_line_that_somebody_would_read(text, name):
    assert holder_name(text) == name


@pytest.mark.parametrize(
    ("ref", "text", "typed"),
    [
        (IssueRef("acme/shop", "7"), "acme/shop#7", "acme/shop#7"),
        (IssueRef("", "7"), "#7", "7"),  # a shell takes a bare `#7` for a comment
        (IssueRef("", "ABC-12"), "ABC-12", "ABC-12"),
        (IssueRef("acme/shop", "ABC-12"), "ABC-12", "ABC-12"),
    ],
)
def test_a_reference_is_written_as_people_write_it_and_type_it(ref, text, typed):
    assert str(ref) == text
    assert ref.typed == typed
    assert parse_reference(typed, default_repo=ref.repo) == ref


def test_references_are_ordered_hashable_and_fixed():
    assert IssueRef("a", "2") < IssueRef("b", "1")
    assert len({IssueRef("a", "1"), IssueRef("a", "1")}) == 1
    with pytest.raises(AttributeError):
        REF.key = "8"


@pytest.mark.parametrize(
    ("listed", "counted", "all_pages", "complete"),
    [
        (0, 0, True, True),
        (2, 2, True, True),
        (3, 2, True, True),  # a comment came between the two requests
        (1, 2, True, False),  # the list lags behind the count
        (0, 1, True, False),
        (2, 2, False, False),  # the count may lag too: without every page there is no proof
    ],
)
def test_a_thread_is_complete_only_if_nothing_can_be_missing(listed, counted, all_pages, complete):
    comments = tuple(bid("a", number, number) for number in range(1, listed + 1))
    snapshot = Snapshot(make_issue(count=counted), comments, at(9), all_pages=all_pages)
    assert snapshot.complete is complete


def test_an_issue_a_comment_and_a_draft_have_modest_defaults():
    issue = Issue(REF, "t", True, frozenset(), 0, at(0), at(0))
    assert (issue.body, issue.author, issue.url) == ("", "", "")
    comment = Comment(1, "hello", at(0), at(0))
    assert (comment.author, comment.by_writer) == ("", True)
    assert Draft("t") == Draft("t", "", frozenset())
    assert make_snapshot().all_pages
