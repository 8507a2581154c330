"""The scan where asking costs something: one list for many claims, and no look while idle."""

import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.card import parse_mark
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import IssueLocked, IssueMoved, NotPermitted, RateLimited, Unavailable
from dibs.core.events import Step
from dibs.core.ids import later
from dibs.core.issue import Person, Pull
from dibs.ports.tracker import IssueQuery
from dibs.services.scanning import COSTLY, Scanner, Spread
from dibs.services.working import Until

from .costly import CostlyWorld
from .test_working import Handler, make_worker, work
from .world import TTL, Crash, crashing, pipeline_of

PATIENCE_S = 0.03
POLL_S = 5.0


@pytest.fixture
def world():
    return CostlyWorld()


@pytest.fixture
def busy():
    """A world with threads in it."""
    return CostlyWorld(patience_s=PATIENCE_S)


class Scan:
    """One worker's, over a wire of its own."""

    def __init__(self, world, seed=1):
        self.world = world
        process = world.process("scanner")
        self.wire = process.tracker
        self.shortlisting = Scanner(
            process.services.backlog,
            COSTLY,
            poll_s=POLL_S,
            dice=random.Random(seed),
        )
        self.spread = Spread(random.Random(seed), COSTLY)

    def next(self, *names):
        stages = [self.world.pipeline.stage(name) for name in names or ("ready",)]
        return self.shortlisting.next_candidate(stages, self.spread)

    def ref(self, *names):
        found = self.next(*names)
        return found.issue.ref if found else None

    def take(self, *names):
        """Claimed, or found to be somebody's: not to be offered again."""
        ref = self.ref(*names)
        if ref is not None:
            self.shortlisting.resting.rest(ref, 3600)
        return ref

    def left(self, *names):
        stages = [self.world.pipeline.stage(name) for name in names or ("ready",)]
        return self.shortlisting.anything_left(stages)

    def refuse(self, candidate, *reasons, paid=False):
        self.shortlisting.resting.refused(candidate.issue, reasons, candidate.now, paid=paid)

    @property
    def requests(self):
        return dict(self.wire.requests)


# The order of the list


def test_the_oldest_issue_comes_first(world):
    issues = [world.add() for _ in range(30)]
    scan = Scan(world)
    assert [scan.ref() for _ in issues] == issues


def test_urgent_issues_jump_the_queue_wherever_they_are():
    world = CostlyWorld(pipeline=replace(pipeline_of(), priorities=("urgent", "soon")))
    plain = [world.add() for _ in range(120)]
    soon, urgent = world.add("stage:ready", "soon"), world.add("stage:ready", "urgent", "soon")
    scan = Scan(world)
    assert [scan.ref() for _ in range(3)] == [urgent, soon, plain[0]]
    assert scan.requests == {"find": 3, "read_many": 1}


def test_urgent_issues_of_a_short_list_need_no_question_of_their_own():
    world = CostlyWorld(pipeline=replace(pipeline_of(), priorities=("urgent",)))
    plain, urgent = world.add(), world.add("stage:ready", "urgent")
    scan = Scan(world)
    assert [scan.ref(), scan.ref()] == [urgent, plain]
    assert scan.requests == {"find": 1, "read_many": 1}


def test_the_first_stage_that_has_any_is_the_one_worked(world):
    ready, approved = world.add(), world.add("stage:review", "approved")
    scan = Scan(world)
    assert scan.ref("review", "ready") == approved
    assert scan.requests == {"find": 1, "read_many": 1}, "the other stage was not even asked for"
    assert scan.ref("review", "ready") == ready


def test_what_cannot_be_claimed_is_not_offered(world):
    for label in ("claimed", "paused", "parked", "do-not-pickup"):
        world.add("stage:ready", label)
    closed = world.add()
    world.tracker.close(closed)
    world.add("stage:review")
    scan = Scan(world)
    assert scan.ref("ready", "review") is None
    assert "read_many" not in scan.requests


def test_a_candidate_comes_with_everything_that_is_known_of_it(world):
    issue = world.add()
    world.tracker.comment(issue, "hello")
    world.clock.advance(7)
    found = Scan(world).next()
    assert (found.issue.ref, found.stage.name, found.now) == (
        issue,
        "ready",
        world.clock.server_now(),
    )
    assert found.snapshot == world.read(issue)


def test_a_page_that_is_all_taken_does_not_hide_what_is_behind_it(world):
    for _ in range(95):
        world.add("stage:ready", "claimed")
    free = world.add()
    assert Scan(world).ref() == free


def test_a_page_that_rests_does_not_hide_what_is_behind_it(world):
    issues = [world.add() for _ in range(250)]
    scan = Scan(world)
    for issue in issues[:-1]:
        scan.shortlisting.resting.rest(issue, 1000)
    assert scan.take() == issues[-1]
    assert scan.take() is None


# What it costs


def test_many_claims_are_one_list_and_a_look_or_two(world):
    issues = [world.add() for _ in range(80)]
    for issue in issues[::2]:
        world.tracker.comment(issue, "talk")
    scan = Scan(world)
    assert [scan.ref() for _ in issues] == issues
    assert scan.requests == {"find": 1, "read_many": 2}


def test_an_idle_poll_is_one_question_for_each_stage_and_no_look(world):
    world.add("stage:ready", "claimed")
    scan = Scan(world)
    for _ in range(100):
        assert scan.ref("review", "ready") is None
        assert scan.left("review", "ready")
        world.clock.advance(POLL_S)
    assert scan.requests == {"find": 200}


def test_issues_that_only_a_person_can_free_are_not_looked_at_in_every_poll(world):
    """Assigned to somebody, and nothing of it changes."""
    world.tracker.concern(world.add(), assignees=(Person("ada"),))
    scan = Scan(world)
    assigned = Reason(ReasonCode.ASSIGNED, "it is ada's", "ask her")
    scan.refuse(scan.next(), assigned)
    assert not scan.left(), "a draining worker does not wait for people"
    for _ in range(50):
        world.clock.advance(POLL_S)
        assert scan.ref() is None
    assert scan.requests["read_many"] == 1
    world.clock.advance(POLL_S)
    for _ in range(20):
        world.clock.advance(POLL_S)
        if (found := scan.next()) is not None:
            scan.refuse(found, assigned)
    assert scan.requests["read_many"] == 2, "now and then it is: not everything changes an issue"


def test_an_issue_that_no_look_agrees_about_is_looked_at_less_and_less(world):
    """As where a list counts a comment that is shown to nobody: it never is as the list has it."""
    odd, free = world.add(), world.add()
    scan = Scan(world)
    find = world.tracker.find

    def counting_one_more(query):
        found = find(query)
        issues = tuple(
            replace(issue, comment_count=1) if issue.ref == odd else issue for issue in found.issues
        )
        return replace(found, issues=issues)

    world.tracker.find = counting_one_more
    assert scan.take() == free
    for _ in range(200):
        world.clock.advance(POLL_S)
        assert scan.ref() is None
    assert scan.requests["read_many"] <= 12
    world.tracker.find = find
    world.clock.advance(300)
    assert scan.ref() == odd


def test_an_issue_that_readings_of_many_show_late_is_read_alone_and_offered(world):
    """As on GitHub, where a reading of many may lag behind the list by more than some seconds."""
    late = world.add()
    scan = Scan(world)
    scan.wire.change = lambda call, answer: {} if call.name == "read_many" else answer
    started = world.clock.passed_s
    while (found := scan.ref()) is None and world.clock.passed_s < started + 60:
        assert scan.left(), "a draining worker waits for it"
        world.clock.advance(1)
    assert found == late
    assert (scan.requests["read_many"], scan.requests["read"]) == (3, 1)


def test_an_issue_that_no_reading_shows_for_a_minute_is_offered_as_soon_as_one_does(world):
    late = world.add()
    scan = Scan(world)

    def lag(call):
        if call.name == "read" and world.clock.passed_s < started + 60:
            raise Unavailable("it is there, and not seen yet")

    scan.wire.before = lag
    scan.wire.change = lambda call, answer: {} if call.name == "read_many" else answer
    started = world.clock.passed_s
    while (found := scan.ref()) is None and world.clock.passed_s < started + 600:
        assert scan.left()
        world.clock.advance(1)
    assert found == late
    assert scan.requests["read"] <= 6


def test_an_issue_that_is_not_there_is_given_up_for_certain(world):
    gone = world.add()
    scan = Scan(world)
    find = world.tracker.find(IssueQuery(("stage:ready",)))
    world.tracker.find = lambda _: find
    world.tracker.delete(gone)
    for _ in range(100):
        assert scan.ref() is None
        world.clock.advance(1)
    assert not scan.left()
    assert scan.requests["read"] == 1


def test_however_many_only_a_person_can_free_a_draining_worker_does_not_wait(world):
    """More than a list shows at once: what is behind them is looked at before it is waited for."""
    issues = [world.add() for _ in range(130)]
    scan = Scan(world)
    assigned = Reason(ReasonCode.ASSIGNED, "it is ada's", "ask her")
    for _ in issues:
        scan.refuse(scan.next(), assigned)
    assert scan.ref() is None
    assert not scan.left()
    world.add()
    scan.shortlisting.look_anew()
    assert scan.left()


def test_a_change_ends_a_rest_that_a_refusal_began(world):
    issue = world.add()
    scan = Scan(world)
    found = scan.next()
    held = Reason(ReasonCode.HELD, "x", "y", until=later(found.now, 10 * TTL))
    scan.refuse(found, held)
    world.clock.advance(60)
    assert scan.ref() is None
    world.tracker.comment(issue, "it is free again")
    world.clock.advance(60)
    assert scan.ref() == issue


def test_what_a_bid_found_out_is_not_bid_for_again_because_of_the_bid(world):
    issue = world.add()
    scan = Scan(world)
    scan.refuse(scan.next(), paid=True)
    world.tracker.comment(issue, "our own bid")
    scan.shortlisting.look_anew()
    assert scan.ref() is None
    world.clock.advance(30)
    assert scan.ref() == issue


@pytest.mark.parametrize("code", [ReasonCode.PAUSED, ReasonCode.BACKING_OFF])
def test_what_a_bid_found_out_is_looked_at_again_soon_because_no_change_can_end_its_rest(
    world, code
):
    issue = world.add()
    scan = Scan(world)
    found = scan.next()
    scan.refuse(found, Reason(code, "x", "y", until=later(found.now, 10 * TTL)), paid=True)
    world.tracker.comment(issue, "our own bid")
    world.tracker.edit_labels(issue, add=("paused",))
    world.tracker.edit_labels(issue, remove=("paused",))
    scan.shortlisting.look_anew()
    assert scan.ref() is None
    world.clock.advance(30)
    assert scan.ref() == issue


def test_a_look_is_used_once(world):
    """What keeps an issue back may lift by time alone; a reading of then would never say so."""
    issue = world.add()
    scan = Scan(world)
    first = scan.next()
    until = later(first.now, timedelta(seconds=1))
    scan.refuse(first, Reason(ReasonCode.BID_PENDING, "x", "y", until=until))
    world.clock.advance(100)
    again = scan.next()
    assert again.issue.ref == issue
    assert again.now > first.now
    assert scan.requests["read_many"] == 2


# How long it lasts


def test_a_list_is_made_anew_after_a_while_and_looks_that_still_hold_are_kept(world):
    issues = [world.add() for _ in range(10)]
    scan = Scan(world)
    assert scan.take() == issues[0]
    world.clock.advance(1)
    world.tracker.edit_labels(issues[1], add=("paused",))
    world.tracker.comment(issues[2], "changed")
    newest = world.add()
    world.clock.advance(60)
    order = []
    while (ref := scan.take()) is not None:
        order.append(ref)
    assert order == [*issues[2:], newest]
    first, second = (call.args[0] for call in scan.wire.calls if call.name == "read_many")
    assert len(first) == 10
    assert set(second) == {issues[2], newest}, "what has not changed is not looked at again"


def test_a_hint_makes_it_anew_at_once(world):
    plain = [world.add() for _ in range(3)]
    scan = Scan(world)
    assert scan.ref() == plain[0]
    world.tracker.edit_labels(plain[1], add=("paused",))
    scan.shortlisting.look_anew()
    world.tracker.edit_labels(plain[0], add=("claimed",))
    assert scan.ref() == plain[2]


def test_looks_at_what_others_took_are_forgotten_however_often_it_is_hinted_at(world):
    scan = Scan(world)
    for _ in range(20):
        issues = [world.add() for _ in range(10)]
        assert scan.ref() == issues[0]
        for issue in issues:
            world.tracker.edit_labels(issue, add=("stage:review",), remove=("stage:ready",))
        scan.shortlisting.look_anew()
    assert len(scan.shortlisting._looks) <= 20


def test_it_is_made_anew_when_it_is_used_up_and_once_only(world):
    issues = [world.add() for _ in range(200)]
    scan = Scan(world)
    for issue in issues:
        assert scan.ref() == issue
        world.tracker.edit_labels(issue, add=("stage:review",), remove=("stage:ready",))
    assert scan.ref() is None
    assert scan.requests["find"] <= 5
    assert scan.requests["read_many"] <= 7


def test_another_stage_that_may_be_worked_by_now_is_asked_for(world):
    world.add()
    scan = Scan(world)
    scan.ref("ready")
    approved = world.add("stage:review", "approved")
    assert scan.ref("review", "ready") == approved


def test_an_issue_that_vanished_or_changed_before_the_look_is_passed_over(world):
    gone, moved, kept = (world.add() for _ in range(3))

    def meanwhile(call):
        if call.name == "read_many" and gone in call.args[0]:
            world.tracker.delete(gone)
            world.tracker.edit_labels(moved, add=("claimed",))

    scan = Scan(world)
    scan.wire.before = meanwhile
    assert scan.take() == kept
    assert scan.take() is None


def test_a_thread_too_long_for_a_look_at_many_is_read_when_its_turn_has_come():
    world = CostlyWorld(page=2)
    short, long = world.add(), world.add()
    for number in range(5):
        world.tracker.comment(long, f"comment {number}")
    scan = Scan(world)
    assert scan.next().snapshot == world.read(short)
    assert scan.requests == {"find": 1, "read_many": 1}
    assert scan.next().snapshot == world.read(long)
    assert scan.requests == {"find": 1, "read_many": 1, "read": 1}


# Company


def test_what_others_hold_makes_a_worker_look_right_before_it_bids(world):
    for _ in range(20):
        world.add()
    taken = world.add()
    scan = Scan(world)
    scan.next()
    world.clock.advance(10)
    scan.next()
    assert scan.requests["find"] == 1, "alone, a list lasts"
    world.tracker.edit_labels(taken, add=("claimed",))
    world.clock.advance(60)
    scan.next()
    world.clock.advance(10)
    scan.next()
    assert scan.requests["find"] == 3


def test_its_own_issues_are_no_company(world):
    for _ in range(20):
        world.add()
    world.add("stage:ready", "claimed")
    scan = Scan(world)
    scan.spread.holding = 1
    for _ in range(5):
        scan.next()
        world.clock.advance(10)
    assert scan.requests["find"] == 1


def test_the_busier_others_are_the_more_there_is_to_choose_from(world):
    for _ in range(5):
        world.add("stage:ready", "claimed")
    issues = [world.add() for _ in range(60)]
    seen = {Scan(world, seed).ref() for seed in range(200)}
    assert seen == set(issues[:20]), "four for each that was taken lately"
    world.clock.advance(31)
    assert {Scan(world, seed).ref() for seed in range(20)} == {issues[0]}, "nobody is in a hurry"


def test_after_a_lost_race_any_of_the_list_is_tried(world):
    issues = [world.add() for _ in range(80)]
    seen = set()
    for seed in range(300):
        scan = Scan(world, seed)
        scan.spread.lost()
        seen.add(scan.ref())
    assert len(seen) > 70
    assert seen <= set(issues)


def test_a_few_wins_narrow_it_again():
    spread = Spread(random.Random(1), COSTLY)
    spread.lost()
    for _ in range(4):
        assert spread.in_a_crowd
        spread.won()
    assert not spread.in_a_crowd
    assert isinstance(spread, Spread)


# The whole worker


def test_every_issue_is_worked_once_and_few_requests_are_spent_on_finding_them(busy):
    issues = [busy.add() for _ in range(40)]
    for issue in issues[::3]:
        busy.tracker.comment(issue, "talk")
    process, report = work(busy, Handler(None))
    assert report.outcomes == {"advanced": 40}
    assert all(busy.labels(issue) == {"stage:review"} for issue in issues)
    spent = process.tracker.requests
    assert spent["read_many"] == 1
    assert spent["find"] + spent["find_snapshots"] <= 6
    assert spent["comment"] == 40, "a comment each"
    assert spent["read"] <= 40, "one reading for each: the proof"
    assert spent["apply"] <= 120


def test_a_claim_does_not_look_at_what_the_scan_has_looked_at(busy):
    issue = busy.add()
    busy.tracker.comment(issue, "talk")
    process, report = work(busy, Handler(None), until=Until.ONCE)
    assert report.claimed == 1
    order = [call.name for call in process.tracker.calls]
    assert order.index("comment") < order.index("read"), "the bid is not preceded by a reading"


def test_whom_an_issue_belongs_to_is_seen_without_a_bid(busy):
    assigned, pulled, free = (busy.add() for _ in range(3))
    busy.tracker.concern(assigned, assignees=(Person("ada"),))
    busy.tracker.concern(pulled, pulls=(Pull(busy.add("x"), Person("ada")),))
    process, report = work(busy, Handler(None))
    assert report.outcomes == {"advanced": 1}
    assert busy.labels(free) == {"stage:review"}
    assert process.tracker.requests["comment"] == 1
    assert busy.read(assigned).comments == busy.read(pulled).comments == ()


def test_a_failed_issue_rests_and_is_parked_after_its_attempts():
    world = CostlyWorld(pipeline=pipeline_of(attempts=2), patience_s=PATIENCE_S)
    issue = world.add()

    def fail(work):
        raise ValueError("it broke")

    handler = Handler(fail)
    _, report = work(world, handler)
    assert handler.seen == [("#1", 1), ("#1", 2)]
    assert report.outcomes == {"failed": 1, "parked": 1}
    assert world.labels(issue) == {"stage:ready", "parked"}


def test_what_a_vanished_painter_left_is_finished_on_the_way(busy):
    """No label says `claimed`, so no sweep looks at it: whoever wants the issue does."""
    issue = busy.add()
    dying = busy.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)
    busy.tracker.edit_labels(issue, remove=("claimed", "stage:processing"))
    process, report = work(busy, Handler(None))
    assert report.claimed == 0
    assert busy.labels(issue) == {"stage:review"}
    assert process.tracker.requests["comment"] == 0, "there was no bid"


@pytest.mark.parametrize("kind", [IssueLocked, IssueMoved])
def test_an_issue_that_refuses_us_is_left_alone_and_the_worker_goes_on(busy, kind):
    refusing, good = busy.add(), busy.add()
    process, worker = make_worker(busy, Handler(None))
    refusal = kind(refusing) if kind is IssueLocked else kind(refusing, "acme/other#7")

    def refuse(call):
        if call.name == "comment" and call.args[0] == refusing:
            raise refusal

    process.tracker.before = refuse
    report = worker.run()
    assert report.outcomes == {"advanced": 1}
    assert busy.labels(good) == {"stage:review"}
    tries = [
        call
        for call in process.tracker.calls
        if call.name == "comment" and call.args[0] == refusing and parse_mark(call.args[1])
    ]
    assert len(tries) == 1
    assert any("is left alone" in line for line in process.told)


def test_an_issue_that_refuses_its_ending_does_not_take_the_worker_down(busy):
    refusing, good = busy.add(), busy.add()
    process, worker = make_worker(busy, Handler(None), until=Until.STOPPED)

    def refuse(call):
        if call.name == "finish" and call.args[0].issue == refusing:
            raise IssueLocked(refusing)
        if worker.report.outcomes["advanced"]:
            worker.leave()

    process.leases.before = refuse
    process.tracker.before = lambda call: refuse(call) if call.name == "find" else None
    report = worker.run()
    assert report.outcomes["broken"] == 1
    assert busy.labels(good) == {"stage:review"}
    assert any("conversation" in line for line in process.told)


def test_a_worker_that_may_not_write_gives_back_and_goes_home(busy):
    busy.add()
    process, worker = make_worker(busy, Handler(None), until=Until.STOPPED)

    def archived(call):
        if call.writes:
            raise NotPermitted("the repository is archived")

    process.tracker.before = archived
    with pytest.raises(NotPermitted, match="archived"):
        worker.run()


def test_a_worker_that_is_limited_asks_for_nothing_until_its_time_has_come(busy):
    """Jobs that end meanwhile wake it, and it must not spin."""
    for _ in range(3):
        busy.add()
    process, worker = make_worker(busy, Handler(None), jobs=2)
    limited, asked = [], []

    def limit(call):
        asked.append(busy.clock.passed_s)
        if call.name == "comment" and len(limited) < 1 and worker.report.claimed:
            limited.append(busy.clock.passed_s)
            raise RateLimited("slow down", retry_after_s=300)

    process.tracker.before = limit
    assert worker.run().outcomes == {"advanced": 3}
    (since,) = limited
    scans = [
        call
        for call, at_s in zip(process.tracker.calls, asked, strict=True)
        if since < at_s < since + 300
        and call.name in ("find", "read_many", "find_snapshots")
        and "claimed" not in str(call.args)  # sweeps go on
    ]
    assert scans == []
    assert busy.clock.passed_s >= since + 300


def test_an_issue_that_never_shows_all_its_comments_is_left_alone_longer_each_time(busy):
    """As where GitHub counts a comment that it hides: each bid would be one more comment."""
    odd = busy.add()
    process, worker = make_worker(busy, Handler(None), until=Until.STOPPED)

    def hide(call, answer):
        if busy.clock.passed_s > 3 * 3600:
            worker.leave()
        if call.name == "read" and answer.comments:
            count = answer.issue.comment_count + 1
            return replace(answer, issue=replace(answer.issue, comment_count=count))
        return answer

    process.tracker.change = hide
    report = worker.run()
    assert report.claimed == 0
    bids = [call for call in process.tracker.calls if call.name == "comment"]
    assert 6 <= len(bids) <= 16, "six, until it rests a quarter of an hour; then four an hour"
    assert len([line for line in process.told if "comments" in line]) == len(bids)
    assert busy.labels(odd) == {"stage:ready"}
