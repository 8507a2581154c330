"""Who grants and what is paused, on control issues of the fake: over HTTP, with lag and rivals."""

import threading
from contextlib import ExitStack

import pytest

from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.limits import Budget, Resource
from dibs.core.eligibility import PauseScope
from dibs.core.errors import Misuse, NotPermitted, RateLimited, Unavailable
from dibs.core.granter import (
    CONTROL_LABEL,
    CONTROL_TITLE,
    Appointed,
    Moving,
    PauseWord,
    parse_entry,
    render_appointment,
    render_pause,
)
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.issue import Draft
from dibs.ports.tracker import IssueQuery, persons_word
from dibs_lab.fakehub import Fault, Permission, Wrong

from .hubs import REPOSITORY, Hub, PushedClock

REDIS, COMMENTS = Appointed("redis://host"), Appointed("comments")
LIST = "GET /repos/{owner}/{repo}/issues"
ISSUE = "GET /repos/{owner}/{repo}/issues/{number}"
COMMENTS_LISTED = "GET .*/comments"


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


def control_of(hub, login="fleet", *, clock=None, graphql=True, **options):
    clock = clock or PushedClock(hub)
    tracker = hub.client(login, graphql=graphql, clock=clock, **options)
    return GithubControl([tracker], clock), tracker, clock


BOTH = pytest.mark.parametrize("graphql", [True, False], ids=["graphql", "rest"])


@BOTH
def test_nobody_grants_before_the_first_appointment_which_makes_the_issue(hub, graphql):
    control, tracker, _ = control_of(hub, graphql=graphql)
    assert control.granter() is None
    assert control.pauses() == ()
    assert control.appoint(COMMENTS, instead_of=None) == COMMENTS
    made = hub.issue(1)
    assert made.title == CONTROL_TITLE
    other, _, _ = control_of(hub, "colleague", graphql=graphql)
    assert other.granter() == COMMENTS
    assert tracker.find(IssueQuery(closed_too=True)).issues == (), "it is no work"
    assert tracker.find_snapshots((IssueQuery(),))[0].snapshots == ()


@BOTH
def test_an_appointment_counts_only_instead_of_the_one_that_stands(hub, graphql):
    mine, _, _ = control_of(hub, graphql=graphql)
    theirs, _, _ = control_of(hub, "colleague", graphql=graphql)
    assert mine.appoint(COMMENTS, instead_of=None) == COMMENTS
    moving = Moving("comments", "redis://host", mover="me")
    assert theirs.appoint(REDIS, instead_of=None) == COMMENTS
    assert mine.appoint(moving, instead_of=COMMENTS) == moving
    assert theirs.appoint(REDIS, instead_of=COMMENTS) == moving
    assert mine.appoint(REDIS, instead_of=moving) == REDIS
    assert theirs.granter() == REDIS


def test_of_many_who_appoint_at_once_everybody_hears_of_the_same_winner(hub):
    crowd = [control_of(hub, login) for login in ("fleet", "colleague") for _ in range(3)]
    heard, flaws = [], []
    gate = threading.Barrier(len(crowd))

    def appoint(control, number):
        gate.wait(timeout=30)
        try:
            heard.append(control.appoint(Appointed(f"store-{number}"), instead_of=None))
        except Unavailable as doubt:
            flaws.append(doubt)

    threads = [
        threading.Thread(target=appoint, args=(control, number), daemon=True)
        for number, (control, _, _) in enumerate(crowd)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert len(heard) + len(flaws) == len(crowd)
    last, _, _ = control_of(hub)
    assert set(heard) == {last.granter()}


def test_two_who_make_the_issue_at_once_agree_on_the_lower_number(hub):
    acting, repository = hub.acting("fleet"), hub.state.named(REPOSITORY)
    first = acting.create_issue(repository, CONTROL_TITLE, labels=(CONTROL_LABEL,))
    second = acting.create_issue(repository, CONTROL_TITLE, labels=(CONTROL_LABEL,))
    acting.create_comment(hub.issue(first.number), render_appointment(COMMENTS, over=0))
    acting.create_comment(hub.issue(second.number), render_appointment(REDIS, over=0))
    for graphql in (True, False):
        control, _, _ = control_of(hub, graphql=graphql)
        assert control.granter() == COMMENTS


def test_a_strangers_control_issue_and_a_strangers_words_count_for_nothing(hub):
    hub.state.grant(REPOSITORY, "mallory", Permission.TRIAGE)
    repository = hub.state.named(REPOSITORY)
    hub.acting("colleague").create_label(repository, CONTROL_LABEL)
    forged = hub.acting("mallory").create_issue(repository, "mine", labels=(CONTROL_LABEL,))
    hub.state.grant(REPOSITORY, "mallory", Permission.NONE)
    evil = render_appointment(Appointed("mallory"), over=0)
    hub.acting("mallory").create_comment(hub.issue(forged.number), evil)
    control, _, _ = control_of(hub)
    assert control.granter() is None
    control.appoint(COMMENTS, instead_of=None)
    number = int(control._home.ref.key)
    hub.acting("mallory").create_comment(hub.issue(number), evil)
    pause = render_pause(PauseWord(PauseScope.FLEET, "mallory", "ha"))
    hub.acting("mallory").create_comment(hub.issue(number), pause)
    for graphql in (True, False):
        reader, _, _ = control_of(hub, graphql=graphql)
        assert reader.granter() == COMMENTS
        assert reader.pauses() == ()


def test_an_account_that_does_not_count_appoints_nobody(hub):
    control, _, _ = control_of(hub, trusted=("somebody-else",))
    with pytest.raises(NotPermitted, match=r"\[github\] trusted"):
        control.appoint(COMMENTS, instead_of=None)


def test_closing_the_issue_changes_nothing_and_deleting_it_forgets(hub):
    control, tracker, clock = control_of(hub)
    control.appoint(COMMENTS, instead_of=None)
    hub.acting().close_issue(hub.issue(1))
    fresh, _, _ = control_of(hub)
    assert fresh.granter() == COMMENTS
    hub.state.grant(REPOSITORY, "colleague", Permission.ADMIN)
    hub.acting().delete_issue(hub.issue(1))
    clock.sleep(60)
    assert control.granter() is None
    assert control.lately() is None
    assert tracker.control_readings.number is None


# What it costs


def test_who_grants_comes_along_with_every_reading(hub):
    control, tracker, clock = control_of(hub)
    control.appoint(COMMENTS, instead_of=None)
    ref = tracker.create(Draft("one", labels=frozenset({"ready"}))).ref
    worker, reading, local = control_of(hub, "colleague")
    reading.read(ref)  # accounts are looked up once
    for read in (
        lambda: reading.read(ref),
        lambda: reading.read_many([ref]),
        lambda: reading.find_snapshots((IssueQuery(("ready",)),)),
    ):
        local.sleep(60)
        asked_at = local.now()
        with hub.counted() as counted:
            read()
            assert worker.granter(since=asked_at) == COMMENTS
            assert worker.lately() == COMMENTS
            assert worker.pauses() == ()
        assert sum(counted.values()) == 1
    local.sleep(1)
    with hub.counted() as counted:
        assert worker.granter(since=local.now()) == COMMENTS
    assert 1 <= sum(counted.values()) <= 2
    assert clock


def test_what_was_asked_for_before_does_not_do(hub):
    control, _, clock = control_of(hub)
    control.appoint(COMMENTS, instead_of=None)
    other, _, _ = control_of(hub, "colleague")
    assert control.granter(since=clock.now()) == COMMENTS
    clock.sleep(1)
    other.appoint(REDIS, instead_of=COMMENTS)
    assert control.lately() == COMMENTS, "some seconds old at most"
    assert control.granter(since=clock.now()) == REDIS


@pytest.mark.parametrize("granter", [COMMENTS, None])
def test_an_idle_fleet_asks_every_half_minute_and_pays_nothing(hub, granter):
    control, _, clock = control_of(hub)
    if granter is not None:
        control.appoint(granter, instead_of=None)
    for _ in range(2):
        clock.sleep(60)
        control.pauses()
    with hub.counted() as counted:
        for _ in range(120):
            clock.sleep(5)
            assert control.pauses() == ()
            assert control.lately() == granter
    assert sum(counted.values()) <= 2 * 20
    assert hub.points == 0


def test_a_log_that_is_too_long_to_come_along_is_read_by_itself(hub):
    control, _, _ = control_of(hub)
    control.appoint(COMMENTS, instead_of=None)
    for number in range(120):
        hub.acting("mallory").create_comment(hub.issue(1), f"junk {number}")
    reader, tracker, clock = control_of(hub, "colleague")
    ref = tracker.create(Draft("one")).ref
    asked_at = clock.now()
    tracker.read(ref)
    assert reader.granter(since=asked_at) == COMMENTS


# Which issue it is, is asked anew each time


def without_its_label(hub):
    hub.acting().remove_label(hub.issue(2), CONTROL_LABEL)


def with_a_lower_one(hub):
    hub.acting().add_labels(hub.issue(1), (CONTROL_LABEL,))


@BOTH
@pytest.mark.parametrize("happens", [without_its_label, with_a_lower_one])
def test_running_workers_and_new_ones_agree_on_the_control_issue(hub, graphql, happens):
    hub.acting().create_issue(hub.state.named(REPOSITORY), "an old issue")
    running, tracker, clock = control_of(hub, graphql=graphql)
    assert running.appoint(COMMENTS, instead_of=None) == COMMENTS
    happens(hub)
    fresh, _, _ = control_of(hub, "colleague", clock=clock, graphql=graphql)
    assert fresh.granter() is None
    assert fresh.appoint(REDIS, instead_of=None) == REDIS
    clock.sleep(60)
    assert running.granter() == REDIS
    clock.sleep(60)
    tracker.read_many([IssueRef(REPOSITORY, "1")])
    assert running.lately() == REDIS
    fresh.pause(PauseScope.FLEET, repo="", reason="stop", by="op")
    clock.sleep(60)
    assert [pause.by for pause in running.pauses()] == ["op"]


@pytest.mark.parametrize("strangers", [3, 4, 101])
def test_strangers_issues_with_the_label_hide_no_pause(hub, strangers):
    repository = hub.state.named(REPOSITORY)
    hub.acting().create_label(repository, CONTROL_LABEL)
    for number in range(strangers):
        forged = hub.acting("mallory").create_issue(repository, f"feature {number}")
        hub.acting().add_labels(forged, (CONTROL_LABEL,))
    operator, _, clock = control_of(hub, graphql=False)
    operator.pause(PauseScope.FLEET, repo="", reason="stop", by="op")
    for graphql in (True, False):
        worker, tracker, _ = control_of(hub, "colleague", clock=clock, graphql=graphql)
        assert [pause.by for pause in worker.pauses()] == ["op"]
        clock.sleep(60)
        tracker.read_many([IssueRef(REPOSITORY, "1")])
        assert [pause.by for pause in worker.pauses()] == ["op"]


# Pauses


@BOTH
def test_a_persons_word_does_not_wait_behind_workers_that_claim(hub, graphql):
    control, tracker, clock = control_of(hub, graphql=graphql)
    control.prepare()
    ref = tracker.create(Draft("one")).ref
    tracker.read(ref)

    def low():
        spending = tracker._transport._sender._ledger._spending
        low = Budget(5000, 150, LocalTime(clock.now() + 1800))
        spending.budgets.update(dict.fromkeys(Resource, low))

    low()
    with pytest.raises(RateLimited):
        tracker.comment(ref, "<!-- claim run=aaaaaaaaaaaa ttl=600s v=1 state=bid -->")
    clock.sleep(1)
    low()
    control.pause(PauseScope.FLEET, repo="", reason="runaway", by="op")
    clock.sleep(60)
    low()
    assert control.resume(PauseScope.FLEET, repo="", by="op")
    low()
    with pytest.raises(RateLimited):
        tracker.read(ref)
    with persons_word():
        tracker.read(ref)


@BOTH
def test_a_resume_says_who_resumed(hub, graphql):
    control, _, _ = control_of(hub, graphql=graphql)
    control.pause(PauseScope.FLEET, repo="", reason="stop", by="ann")
    assert control.resume(PauseScope.FLEET, repo="", by="ben")
    said = hub.state.view().comments(hub.issue(1).id)[-1].body
    assert parse_entry(said).by == "ben"
    assert "`ben` resumed the fleet." in said


@BOTH
def test_a_pause_is_seen_by_others_and_lifted_once(hub, graphql):
    ann, _, _ = control_of(hub, graphql=graphql)
    ben, _, clock = control_of(hub, "colleague", graphql=graphql)
    assert ben.pauses() == ()
    ann.pause(PauseScope.FLEET, repo="", reason="release", by="ann")
    ann.pause(PauseScope.REPOSITORY, repo=REPOSITORY, reason="move", by="ann")
    assert len(ann.pauses()) == 2, "who said it sees it at once"
    clock.sleep(31)
    fleet, repository = ben.pauses()
    assert (fleet.scope, fleet.by, fleet.reason, fleet.repo) == (
        PauseScope.FLEET,
        "ann",
        "release",
        "",
    )
    assert (repository.scope, repository.repo) == (PauseScope.REPOSITORY, REPOSITORY)
    assert ben.resume(PauseScope.FLEET, repo="", by="ann")
    assert not ben.resume(PauseScope.FLEET, repo="", by="ann")
    assert [pause.scope for pause in ben.pauses()] == [PauseScope.REPOSITORY]


def test_a_pause_of_a_repository_that_is_not_ours_is_refused(hub):
    control, _, _ = control_of(hub)
    with pytest.raises(Misuse, match="acme/other is not a repository of this backlog"):
        control.pause(PauseScope.REPOSITORY, repo="acme/other", reason="", by="ann")


# Faults


@pytest.mark.parametrize("wrong", [Wrong.ERROR_AFTER, Wrong.DROP_AFTER])
def test_an_appointment_whose_reply_is_lost_is_looked_up_and_not_written_twice(hub, wrong):
    control, tracker, _ = control_of(hub)
    control.appoint(COMMENTS, instead_of=None)
    hub.hub.faults.add(Fault(wrong, kind="POST.*comments", times=1))
    assert control.appoint(REDIS, instead_of=COMMENTS) == REDIS
    assert tracker.read(control._home.ref).issue.comment_count == 2


@pytest.mark.parametrize("wrong", [Wrong.ERROR_BEFORE, Wrong.DROP_BEFORE])
def test_a_pause_that_was_lost_is_not_taken_for_the_same_words_said_before(hub, wrong):
    """Whoever pauses for the same reason once more must not hear that it is done if it is not."""
    control, _, _ = control_of(hub)
    control.pause(PauseScope.FLEET, repo="", reason="release", by="ann")
    assert control.resume(PauseScope.FLEET, repo="", by="ann")
    hub.hub.faults.add(Fault(wrong, kind="POST", times=1))
    with pytest.raises(Unavailable, match="was lost"):
        control.pause(PauseScope.FLEET, repo="", reason="release", by="ann")
    assert control_of(hub, "colleague")[0].pauses() == ()
    hub.hub.faults.add(Fault(Wrong.ERROR_AFTER, kind="POST", times=1))
    control.pause(PauseScope.FLEET, repo="", reason="release", by="ann")
    assert [pause.by for pause in control_of(hub, "colleague")[0].pauses()] == ["ann"]


def test_an_appointment_is_read_back_once_every_reader_sees_it(hub):
    control, _, _ = control_of(hub)
    hub.hub.faults.add(Fault(Wrong.LAG, seconds=(1.0, 1.9)))
    assert control.appoint(COMMENTS, instead_of=None) == COMMENTS
    other, _, _ = control_of(hub, "colleague")
    assert other.granter() == COMMENTS


def test_a_log_that_cannot_be_read_whole_decides_nothing(hub):
    control, _, clock = control_of(hub, graphql=False)
    control.appoint(COMMENTS, instead_of=None)
    control.pause(PauseScope.FLEET, repo="", reason="", by="ann")
    hub.hub.faults.add(Fault(Wrong.SHORT, kind="comments"))
    clock.sleep(60)
    with pytest.raises(Unavailable, match="control issue"):
        control.granter()


@BOTH
def test_a_control_issue_with_comments_that_nobody_sees_stops_the_fleet_for_ten_minutes(
    hub, graphql, caplog
):
    """As where a flagged account wrote there: GitHub may count what it shows to nobody."""
    control, _, clock = control_of(hub, graphql=graphql)
    control.appoint(COMMENTS, instead_of=None)
    control.pause(PauseScope.FLEET, repo="", reason="lunch", by="ann")
    issue, mallory = hub.issue(1), hub.acting("mallory")
    mallory.create_comment(issue, "spam")
    hub.hub.faults.add(Fault(Wrong.SHORT, kind=COMMENTS_LISTED))
    clock.sleep(60)
    for _ in range(5):
        with pytest.raises(Unavailable, match="2 of the control issue's 3 comments"):
            control.granter()
        clock.sleep(108)
    clock.sleep(10)
    assert control.granter() == COMMENTS
    assert [pause.reason for pause in control.pauses()] == ["lunch"]
    (worry,) = control.worries()
    assert "counts 1 more comments of the control issue acme/shop#1 than it lists" in worry
    assert [record.message for record in caplog.records] == [worry]
    mallory.create_comment(issue, "more spam")
    hub.hub.faults.set([Fault(Wrong.SHORT, kind=COMMENTS_LISTED)])
    assert control.granter() == COMMENTS, "it lacks no more than before"
    mallory.create_comment(issue, "and more")
    hub.hub.faults.set([Fault(Wrong.SHORT, kind=COMMENTS_LISTED, count=2)])
    clock.sleep(60)
    with pytest.raises(Unavailable):
        control.granter()


def over_rest(control, tracker):
    control.granter()


def over_graphql(control, tracker):
    tracker.find_control()


@pytest.mark.parametrize("reading", [over_rest, over_graphql])
def test_a_hidden_comment_that_is_shown_again_excuses_no_late_one(hub, reading):
    control, tracker, clock = control_of(hub)
    control.appoint(COMMENTS, instead_of=None)
    hub.acting("mallory").create_comment(hub.issue(1), "spam")
    hub.hub.faults.add(Fault(Wrong.SHORT, kind=COMMENTS_LISTED))
    clock.sleep(660)
    assert control.granter() == COMMENTS
    hub.hub.faults.clear()
    reading(control, tracker)
    assert control.worries() == ()
    other, _, _ = control_of(hub, "colleague", clock=clock)
    assert other.appoint(REDIS, instead_of=COMMENTS) == REDIS
    hub.hub.faults.add(Fault(Wrong.SHORT, kind=COMMENTS_LISTED))
    with pytest.raises(Unavailable, match="2 of the control issue's 3 comments"):
        control.granter()


# Room


def test_a_control_issue_that_strangers_fill_is_told_of_in_time(hub):
    control, _, _ = control_of(hub)
    control.pause(PauseScope.FLEET, repo="", reason="lunch", by="bob")
    assert control.worries() == ()
    mallory, issue = hub.acting("mallory"), hub.issue(1)
    for _ in range(2000):
        mallory.create_comment(issue, "spam")
    (worry,) = control.worries()
    assert "acme/shop#1" in worry
    assert "2001 of 2500" in worry
    assert len(control.pauses()) == 1


def test_on_a_locked_control_issue_the_fleet_goes_on(hub):
    control, _, _ = control_of(hub)
    control.prepare()
    hub.acting("fleet").lock_issue(hub.issue(1))
    control.pause(PauseScope.FLEET, repo="", reason="lunch", by="bob")
    assert len(control.pauses()) == 1
