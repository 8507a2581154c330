"""The control issue's log: its spelling, who wins an appointment, what is paused."""

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.card import parse_mark
from dibs.core.eligibility import PauseScope
from dibs.core.granter import (
    Appointed,
    Appointment,
    Control,
    Moving,
    PauseWord,
    ResumeWord,
    fold_control,
    parse_entry,
    render_appointment,
    render_pause,
    render_resume,
)
from dibs.core.ids import Fence, server_time
from dibs.core.issue import Comment

from .builders import WILD

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
REDIS, COMMENTS = Appointed("redis://host"), Appointed("comments")
NAMES = WILD.filter(bool)
FENCES = st.integers(0, 10**15).map(Fence)
GRANTERS = st.one_of(
    st.builds(Appointed, NAMES, FENCES), st.builds(Moving, NAMES, NAMES, FENCES, WILD)
)


def said(number, body, *, by_writer=True, seconds=0):
    at = server_time(NOON + timedelta(seconds=seconds))
    return Comment(number, body, at, at, author="alice", by_writer=by_writer)


def appointed(number, granter, over, **told):
    return said(number, render_appointment(granter, over=over), **told)


# Spelling


@given(GRANTERS, st.integers(0, 10**15))
def test_an_appointment_is_read_back_as_it_was_written(granter, over):
    assert parse_entry(render_appointment(granter, over=over)) == Appointment(granter, over)


@given(st.sampled_from(PauseScope), WILD, WILD)
def test_a_pause_is_read_back_as_it_was_written(scope, by, reason):
    assert parse_entry(render_pause(PauseWord(scope, by, reason))) == PauseWord(scope, by, reason)
    assert parse_entry(render_resume(ResumeWord(scope, by))) == ResumeWord(scope, by)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "a person's comment",
        "<!-- granter -->",
        "<!-- granter store=x v=2 over=0 -->",
        "<!-- granter store= over=0 v=1 -->",
        "<!-- granter store=x over=-1 v=1 -->",
        "<!-- granter store=x over=0 over=1 v=1 -->",
        f"<!-- granter store={'x' * 1001} over=0 v=1 -->",
        f"<!-- granter store=x floor={'9' * 18} over=0 v=1 -->",
        "<!-- pause scope=world v=1 -->",
        "<!-- pause scope=fleet by=%ff v=1 -->",
        "<!-- claim run=abc ttl=600s v=1 -->",
        " <!-- pause scope=fleet v=1 -->",
    ],
)
def test_what_is_not_an_entry_says_nothing(body):
    assert parse_entry(body) is None
    assert fold_control([said(1, body)]) == Control()


def test_an_entry_is_no_card_and_a_card_is_no_entry():
    assert parse_mark(render_appointment(REDIS, over=0)) is None
    assert parse_mark(render_pause(PauseWord(PauseScope.FLEET))) is None


def test_people_can_read_it_too():
    text = render_pause(PauseWord(PauseScope.FLEET, "ann", "release\n@everybody <b>"))
    assert text.splitlines()[1] == "`ann` paused the fleet: `release @everybody <b>`."
    assert "move from `comments` to `redis://host`" in render_appointment(
        Moving("comments", "redis://host"), over=7
    )


# Who grants


def test_the_first_appointment_stands_until_one_replaces_it():
    log = [appointed(10, COMMENTS, 0), appointed(12, REDIS, 10)]
    assert fold_control(log[:1]).granter == COMMENTS
    assert (fold_control(log).granter, fold_control(log).appointment) == (REDIS, 12)


def test_of_two_at_once_the_servers_order_decides_for_every_reader():
    log = [appointed(10, COMMENTS, 0), appointed(11, REDIS, 0), appointed(12, Appointed("x"), 0)]
    for order in permutations(log):
        assert fold_control(order).granter == COMMENTS


def test_whoever_did_not_see_the_latest_replaces_nothing():
    late = appointed(14, Appointed("stale"), 10)
    log = [appointed(10, COMMENTS, 0), appointed(12, REDIS, 10), late]
    assert fold_control(log).granter == REDIS


def test_a_stranger_appoints_nobody_and_is_in_nobodys_way():
    forged = appointed(11, Appointed("mallory"), 10, by_writer=False)
    log = [appointed(10, COMMENTS, 0), forged, appointed(12, REDIS, 10)]
    assert fold_control(log).granter == REDIS


def test_a_deleted_entry_does_not_bring_back_an_older_one():
    second, third = appointed(12, REDIS, 10), appointed(15, Appointed("y"), 12)
    assert fold_control([second, third]).granter == Appointed("y")
    assert fold_control([appointed(10, COMMENTS, 0), third]).granter == Appointed("y")
    loser = appointed(14, Appointed("stale"), 10)
    assert fold_control([second, loser]).granter == REDIS


# What is paused


def test_the_last_word_on_a_scope_counts():
    fleet, repository = PauseWord(PauseScope.FLEET, "ann", "a"), PauseWord(PauseScope.REPOSITORY)
    log = [
        said(1, render_pause(fleet), seconds=1),
        said(2, render_pause(repository), seconds=2),
        said(3, render_resume(ResumeWord(PauseScope.FLEET)), seconds=3),
    ]
    both = fold_control(log[:2])
    assert both.pause(PauseScope.FLEET, repo="").by == "ann"
    assert both.pause(PauseScope.FLEET, repo="").since == NOON + timedelta(seconds=1)
    one = fold_control(log)
    assert one.pause(PauseScope.FLEET, repo="") is None
    assert one.pause(PauseScope.REPOSITORY, repo="acme/shop").repo == "acme/shop"


def test_a_stranger_neither_pauses_nor_resumes():
    pause = said(2, render_pause(PauseWord(PauseScope.FLEET, "ann", "a")))
    forged = said(3, render_resume(ResumeWord(PauseScope.FLEET)), by_writer=False)
    assert fold_control([pause, forged]).pause(PauseScope.FLEET, repo="") is not None
    assert fold_control([said(4, render_pause(PauseWord(PauseScope.FLEET)), by_writer=False)]) == (
        Control()
    )


def test_an_appointment_and_a_pause_leave_each_other_alone():
    log = [
        appointed(1, REDIS, 0),
        said(2, render_pause(PauseWord(PauseScope.FLEET))),
        appointed(3, COMMENTS, 1),
    ]
    control = fold_control(log)
    assert control.granter == COMMENTS
    assert control.pause(PauseScope.FLEET, repo="") is not None
