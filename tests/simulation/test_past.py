"""What a journal tells about the fleet that wrote it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from dibs.adapters.system import describe
from dibs.core.durations import format_instant
from dibs.core.events import Event, EventKind
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs_lab.sim.past import read_journal

TTL = timedelta(minutes=10)
NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def line(minute, kind, run="r1", issue="1", holder="w1", stage="ready", **detail):
    """As the journal itself writes it, but for the time of day."""
    event = Event(
        EventKind(kind),
        issue=IssueRef("", issue),
        run=RunId(run),
        holder=HolderId(holder),
        stage=StageName(stage),
        detail=detail,
    )
    said = describe(event)
    return json.dumps({**said, "logged_at": format_instant(NOON + timedelta(minutes=minute))})


def run(start, length, name, *, issue="1", holder="w1", stage="ready", verdict="advance"):
    about = {"run": name, "issue": issue, "holder": holder, "stage": stage}
    return [
        line(start, "claimed", **about),
        line(start, "handler_started", **about),
        line(start + length, "handler_exited", **about, verdict=verdict),
        line(start + length, "advanced", **about),
    ]


def test_work_is_from_the_start_of_a_handler_to_its_end():
    past = read_journal([*run(0, 7, "r1"), *run(10, 3, "r2", issue="2")], ttl=TTL)
    assert past.work_s == (420.0, 180.0)
    assert (past.issues, past.workers, past.vanished) == (2, 1, 0)
    assert past.crash_per_hour == 0


def test_work_that_was_given_back_says_nothing_about_its_length():
    past = read_journal(run(0, 7, "r1", verdict="return"), ttl=TTL)
    assert past.work_s == ()


def test_arrivals_are_the_gaps_between_first_starts():
    told = [*run(0, 1, "r1"), *run(5, 1, "r2", issue="2"), *run(30, 1, "r3", issue="3")]
    again = run(40, 1, "r4", issue="2")
    assert read_journal([*told, *again], ttl=TTL).gaps_s == (300.0, 1500.0)


def test_each_stage_of_an_issue_is_a_piece_of_work():
    told = [*run(0, 1, "r1"), *run(5, 1, "r2", stage="check")]
    assert read_journal(told, ttl=TTL).issues == 2


def test_a_run_without_a_last_word_has_vanished():
    vanished = [*run(0, 0, "r1")[:2], line(6, "renewed", run="r1")]
    past = read_journal([*vanished, *run(60, 54, "r2", holder="w2")], ttl=TTL)
    assert (past.vanished, past.workers) == (1, 2)
    assert past.held_s == 60 * 60
    assert past.crash_per_hour == pytest.approx(1.0)


def test_a_run_that_was_heard_of_a_moment_ago_may_be_going_on():
    going_on = [*run(0, 20, "r1"), *run(15, 0, "r2", issue="2")[:2]]
    assert read_journal(going_on, ttl=TTL).vanished == 0
    assert read_journal(going_on, ttl=timedelta(minutes=1)).vanished == 1


@pytest.mark.parametrize("word", ["lease_lost", "finish_refused", "rolled_forward", "returned"])
def test_a_run_that_ended_in_any_way_has_not_vanished(word):
    told = [*run(0, 0, "r1")[:2], line(1, word), *run(60, 1, "r2", issue="2")]
    assert read_journal(told, ttl=TTL).vanished == 0


def test_people_and_scripts_are_left_out():
    taken = [line(0, "claimed", holder="ada"), line(90, "renewed", holder="ada")]
    past = read_journal([*taken, *run(0, 7, "r2", issue="2"), line(200, "paused")], ttl=TTL)
    assert (past.workers, past.issues, past.vanished, past.held_s) == (1, 1, 0, 420.0)


@pytest.mark.parametrize(
    "broken",
    [
        *("{", "[]", "7", "null", "[" * 9999, '{"event": "dreamt"}', '{"event": ["claimed"]}'),
        '{"event": "claimed", "run": "r"}',
        '{"event": "claimed", "run": "r", "logged_at": "noon"}',
    ],
)
def test_lines_that_are_no_events_are_counted_and_left_out(broken):
    past = read_journal([broken, "", *run(0, 7, "r1"), broken], ttl=TTL)
    assert past.skipped == 2
    assert past.work_s == (420.0,)


def test_an_empty_journal_tells_nothing():
    past = read_journal([], ttl=TTL)
    assert (past.work_s, past.gaps_s, past.issues, past.crash_per_hour) == ((), (), 0, 0.0)
