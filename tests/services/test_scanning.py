"""Which issue to try next, and how a crowd of workers keeps out of its own way."""

import random
import sys
import threading
from collections import Counter

import pytest
from msgspec.structs import replace

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.ids import IssueRef, later
from dibs.services.claiming import Beaten, Claimed, Doubtful, Refused
from dibs.services.scanning import CHEAP, Scanner, Spread

from .world import TTL, World, pipeline_of


def scanner(world, seed=2):
    return Scanner(world.process().services.backlog, CHEAP, dice=random.Random(seed))


def stages(world, *names):
    return [world.pipeline.stage(name) for name in names]


def alone():
    """A spread that always takes the foremost."""
    return Spread(random.Random(1))


def first(world, scanning, *names):
    found = scanning.next_candidate(stages(world, *(names or ("ready",))), alone())
    return found.issue.ref if found else None


def refuse(scanning, candidate, reasons):
    scanning.resting.refused(candidate.issue, reasons, candidate.now)


def in_turn(world, scanning, *names):
    """The order in which a lone worker would try everything."""
    order = []
    while (issue := first(world, scanning, *names)) is not None:
        order.append(issue)
        scanning.resting.rest(issue, 3600)
    return order


# The order of the list


def test_the_oldest_issue_comes_first(world):
    issues = [world.add() for _ in range(5)]
    assert in_turn(world, scanner(world)) == issues


def test_urgent_issues_jump_the_queue(kind):
    world = World(kind, pipeline=replace(pipeline_of(), priorities=("urgent", "soon")))
    plain, soon = world.add(), world.add("stage:ready", "soon")
    urgent = world.add("stage:ready", "urgent", "soon")
    assert in_turn(world, scanner(world)) == [urgent, soon, plain]


def test_the_first_stage_that_has_any_is_the_one_worked(world):
    ready, approved = world.add(), world.add("stage:review", "approved")
    assert first(world, scanner(world), "review", "ready") == approved
    assert first(world, scanner(world), "ready", "review") == ready
    assert scanner(world).next_candidate([], alone()) is None


def test_what_cannot_be_claimed_is_not_offered(world):
    for label in ("claimed", "paused", "parked", "do-not-pickup"):
        world.add("stage:ready", label)
    closed = world.add()
    world.tracker.close(closed)
    world.add("stage:review")
    assert first(world, scanner(world), "ready", "review") is None


def test_an_issue_nobody_wrote_on_needs_no_reading_before_the_bid(world):
    world.add()
    scanning = scanner(world)
    assert scanning.next_candidate(stages(world, "ready"), alone()).untouched
    chatty = world.add("stage:review", "approved")
    world.tracker.comment(chatty, "hello")
    assert not scanning.next_candidate(stages(world, "review"), alone()).untouched


def test_a_candidate_says_where_and_when_it_was_seen(world):
    issue = world.add()
    world.clock.advance(7)
    found = scanner(world).next_candidate(stages(world, "ready"), alone())
    assert (found.issue.ref, found.stage.name, found.now) == (
        issue,
        "ready",
        world.clock.server_now(),
    )


# Resting


def test_a_resting_issue_is_left_out_until_its_time_has_come(world):
    oldest, newest = world.add(), world.add()
    scanning = scanner(world)
    scanning.resting.rest(oldest, 10)
    assert first(world, scanning) == newest
    world.clock.advance(10)
    assert first(world, scanning) == oldest


def test_many_resting_issues_do_not_hide_the_one_behind_them(world):
    issues = [world.add() for _ in range(300)]
    scanning = scanner(world)
    for issue in issues[:-1]:
        scanning.resting.rest(issue, 10)
    assert first(world, scanning) == issues[-1]
    scanning.resting.rest(issues[-1], 10)
    assert first(world, scanning) is None


def test_a_wide_search_finds_the_last_free_issue_among_resting_ones(world):
    issues = [world.add() for _ in range(20)]
    scanning, spread = scanner(world), Spread(random.Random(3))
    spread.lost()
    for issue in issues[1:]:
        scanning.resting.rest(issue, 10)
    for _ in range(20):
        found = scanning.next_candidate(stages(world, "ready"), spread)
        assert found is not None
        assert found.issue.ref == issues[0]


def test_an_issue_that_our_own_handler_keeps_giving_back_is_left_longer_each_time(world):
    issue = world.add()
    scanning = scanner(world)
    rests = []
    for _ in range(4):
        scanning.resting.returned(issue, 5)
        before = world.clock.passed_s
        while first(world, scanning) is None:
            world.clock.advance(1)
        rests.append(world.clock.passed_s - before)
    assert rests == [5, 10, 20, 40]


def test_a_refused_issue_comes_back_when_its_reasons_have_lifted(world):
    issue = world.add()
    scanning = scanner(world)
    candidate = scanning.next_candidate(stages(world, "ready"), alone())
    held = Reason(ReasonCode.HELD, "x", "y", until=later(candidate.now, TTL))
    resting = Reason(ReasonCode.BACKING_OFF, "x", "y", until=candidate.now)
    refuse(scanning, candidate, (held, resting))
    world.clock.advance(59)
    assert first(world, scanning) is None
    world.clock.advance(1)
    assert first(world, scanning) == issue


def test_a_refused_issue_is_not_tried_again_in_the_same_breath(world):
    issue = world.add()
    scanning = scanner(world)
    refuse(scanning, scanning.next_candidate(stages(world, "ready"), alone()), ())
    assert first(world, scanning) is None
    world.clock.advance(1)
    assert first(world, scanning) == issue


def test_an_issue_that_only_a_person_can_free_does_not_keep_a_draining_worker_waiting(world):
    issue = world.add()
    scanning = scanner(world)
    candidate = scanning.next_candidate(stages(world, "ready"), alone())
    assert scanning.anything_left(stages(world, "ready"))
    several = Reason(ReasonCode.SEVERAL_STAGES, "two", "fsck")
    refuse(scanning, candidate, (several,))
    assert not scanning.anything_left(stages(world, "ready"))
    scanning.resting.forget(issue)
    assert scanning.anything_left(stages(world, "ready"))


def test_issues_that_are_held_or_rest_are_still_left_to_do(world):
    issue = world.add()
    world.process().claimed(issue)
    assert scanner(world).anything_left(stages(world, "ready"))
    world.tracker.edit_labels(issue, add=("paused",))
    assert not scanner(world).anything_left(stages(world, "ready"))


def test_a_job_that_gives_back_while_the_worker_scans_disturbs_nothing():
    """Jobs end in threads of their own and say so to the scan of the worker's."""
    world = World()
    world.add()
    scanning, flaws, done = scanner(world), [], threading.Event()
    for number in range(2000):
        scanning.resting.rest(IssueRef("", str(100_000 + number)), 1e9)

    def scan():
        try:
            while not done.is_set():
                first(world, scanning)
                world.clock.advance(0.5)
        except RuntimeError as flaw:
            flaws.append(flaw)

    patient = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=scan)
        thread.start()
        for number in range(20_000):
            if flaws:
                break
            scanning.resting.returned(IssueRef("", str(number + 2)), 5)
    finally:
        sys.setswitchinterval(patient)
        done.set()
        thread.join(30)
    assert flaws == []


# Spreading


def test_a_worker_alone_takes_the_first(world):
    issues = [world.add() for _ in range(5)]
    scanning = scanner(world)
    for _ in range(50):
        assert first(world, scanning) == issues[0]
        world.clock.advance(CHEAP.kept_s)


def test_a_cheap_list_serves_several_claims_in_order_for_a_moment_and_while_alone(world):
    issues = [world.add() for _ in range(5)]
    scanning, spread, ready = scanner(world), alone(), stages(world, "ready")
    assert [first(world, scanning) for _ in range(4)] == issues[:4]
    scanning.resting.rest(issues[4], 60.0)
    assert first(world, scanning) == issues[0]
    world.clock.advance(CHEAP.kept_s)
    assert first(world, scanning) == issues[0]
    spread.met()
    world.tracker.edit_labels(issues[1], add=("claimed",))
    found = {scanning.next_candidate(ready, spread).issue.ref for _ in range(40)}
    assert found == {issues[0], issues[2], issues[3]}


def test_a_worker_that_lost_reaches_far_down_the_list_and_narrows_with_every_win(world):
    issues = [world.add() for _ in range(CHEAP.widest + 5)]
    spread, scanning = alone(), scanner(world)
    spread.lost()
    assert spread.window == CHEAP.widest
    reached = Counter(
        scanning.next_candidate(stages(world, "ready"), spread).issue.ref
        for _ in range(20 * CHEAP.widest)
    )
    assert set(reached) == set(issues[: CHEAP.widest])
    windows = []
    while spread.window > 1:
        windows.append(spread.window)
        spread.won()
        assert len(windows) <= CHEAP.widest
    assert windows == sorted(set(windows), reverse=True)
    spread.won()
    assert spread.window == 1


def test_in_a_crowd_the_urgent_issues_are_still_tried_first(kind):
    world = World(kind, pipeline=replace(pipeline_of(), priorities=("urgent",)))
    plain = [world.add() for _ in range(20)]
    urgent = {world.add("stage:ready", "urgent") for _ in range(3)}
    scanning, spread = scanner(world), Spread(random.Random(1))
    spread.lost()
    tried = set()
    for _ in range(3):
        issue = scanning.next_candidate(stages(world, "ready"), spread).issue.ref
        scanning.resting.rest(issue, 3600)
        tried.add(issue)
    assert tried == urgent
    assert scanning.next_candidate(stages(world, "ready"), spread).issue.ref in plain


def test_a_wide_window_reaches_all_of_a_short_list_alike(world):
    """Else a crowd would meet on some issues, and the oldest would wait for ever."""
    issues = [world.add() for _ in range(3)]
    spread = alone()
    spread.lost()
    scanning = scanner(world)
    reached = Counter(
        scanning.next_candidate(stages(world, "ready"), spread).issue.ref for _ in range(600)
    )
    assert all(reached[issue] >= 120 for issue in issues), reached.values()


# A crowd


class Simulated:
    """One worker as a sequence of steps that others come between: scan, claim, work, finish."""

    def __init__(self, world, number, dice):
        self.process = world.process(f"w{number}")
        self._world, self._dice = world, dice
        self._scanning = scanner(world, number)
        self._spread = Spread(random.Random(number))
        self.lost = self.won = self.refused = 0

    @property
    def bids(self):
        return sum(call.name == "acquire" for call in self.process.leases.calls)

    def live(self):
        ready = [self._world.pipeline.stages[0]]
        while True:
            candidate = self._scanning.next_candidate(ready, self._spread)
            if candidate is None:
                if not self._scanning.anything_left(ready):
                    return
                yield
                continue
            yield  # what was seen goes stale here
            match self.process.claim(
                candidate.issue.ref, "ready", look_first=not candidate.untouched
            ):
                case Claimed() as claimed:
                    self.won += 1
                    self._spread.won()
                    for _ in range(self._dice.randrange(5, 30)):
                        yield  # at work
                    keeper = self.process.services.keep(claimed)
                    self.process.services.advancing.advance(keeper)
                case Beaten(issue, record):
                    self.lost += 1
                    self._spread.lost()
                    self._scanning.resting.rest(issue, record.remaining.total_seconds())
                case Doubtful(issue):
                    self.lost += 1
                    self._spread.lost()
                    self._scanning.resting.rest(issue, 5)
                case Refused(_, reasons):
                    self.refused += 1
                    refuse(self._scanning, candidate, reasons)
            yield


@pytest.mark.parametrize("order", ["round-robin", "random"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_crowd_of_workers_seldom_bids_for_the_same_issue(kind, order, seed):
    world = World(kind)
    issues = [world.add() for _ in range(500)]
    dice = random.Random(seed)
    workers = [Simulated(world, number, dice) for number in range(32)]
    running = {number: worker.live() for number, worker in enumerate(workers)}
    steps = 0
    while running:
        turn = list(running)
        for number in turn if order == "round-robin" else dice.choices(turn, k=len(turn)):
            if number in running and next(running[number], running) is running:
                del running[number]
            steps += 1
            assert steps < 200_000, "the crowd never gets done"
        world.clock.advance(0.01)
    assert all(world.labels(issue) == {"stage:review"} for issue in issues)
    assert sum(worker.won for worker in workers) == 500, "every issue was worked exactly once"
    bids = sum(worker.bids for worker in workers)
    refused = sum(worker.refused for worker in workers)
    print(
        f"{kind}, {order}, seed {seed}: {bids / 500:.3f} bids an issue,"
        f" {sum(worker.lost for worker in workers)} lost, {refused} refused"
    )
    assert bids / 500 <= 1.15
