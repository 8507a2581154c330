"""Issues that follow their pull requests: who moves them where, and who keeps off."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.errors import NoSuchIssue, NotPermitted
from dibs.core.events import Step
from dibs.core.following import LinkedPull, PullFate
from dibs.core.ids import HolderId, IssueRef
from dibs.core.issue import Person, Pull
from dibs.core.lease import Outcome
from dibs.core.pipeline import Command, FollowsNothing, People
from dibs.core.presets import AGENT, AUTHORED
from dibs.services.following import Follow
from dibs.services.steering import Steering
from dibs.services.working import Until

from .world import TTL_S, Crash, World, at, codes, crashing, outage, pipeline_of

PULL = IssueRef("", "31")
FLEET = Person("fleet")
ANN = Person("ann")


@pytest.fixture
def world(kind):
    pipeline = pipeline_of(AGENT, handler=Command("true"))
    people = People(fleet=frozenset({"fleet"}))
    return World(kind, pipeline=replace(pipeline, people=people), patience_s=0.03)


def in_review(world, name="w1"):
    """An issue that a run has led to pr-open."""
    issue = world.add("agent:implement")
    world.process(name).advance(issue, "pr-open")
    assert world.labels(issue) == {"agent:pr-open"}
    return issue


def link(world, issue, fate, *, ref=PULL, author=FLEET, opened=None, ended=None, labels=()):
    now = world.clock.server_now()
    over = None if fate is PullFate.OPEN else ended or now
    pull = LinkedPull(ref, author, fate, opened or now, over, head="fix", labels=frozenset(labels))
    world.tracker.link(issue, pull)
    return pull


def follow(world, name="w2", **options):
    return world.process(name).services.following.follow(HolderId(name), **options)


def actions(report):
    return [entry.action for entry in report.followed]


def test_flaw_19_a_merge_moves_it_to_done_whoever_merged(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    assert actions(follow(world)) == [Follow.MOVED_ON]
    read = world.read(issue)
    assert read.issue.labels == {"agent:done"}
    assert not read.issue.open
    last = world.cards(issue)[-1]
    assert (last.stage, last.ending.outcome, last.ending.next) == (
        "pr-open",
        Outcome.ADVANCED,
        "done",
    )
    assert "#31 was merged" in last.ending.note


def test_flaw_19_a_merge_that_closed_the_issue_moves_it_too(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    world.tracker.close(issue)
    assert actions(follow(world)) == [Follow.MOVED_ON]
    assert world.labels(issue) == {"agent:done"}


def test_flaw_19_closed_unmerged_goes_back_to_be_worked_again(world):
    issue = in_review(world)
    link(world, issue, PullFate.UNMERGED)
    assert actions(follow(world)) == [Follow.MOVED_BACK]
    assert world.labels(issue) == {"agent:implement"}
    assert world.read(issue).issue.open
    world.process("w3").claimed(issue)


def test_an_open_pull_request_and_none_at_all_leave_it_where_it_is(world):
    waiting, without = in_review(world), in_review(world)
    link(world, waiting, PullFate.OPEN, labels=[AUTHORED])
    report = follow(world)
    assert (report.looked_at, report.followed) == (2, ())
    for issue in (waiting, without):
        assert world.labels(issue) == {"agent:pr-open"}


def test_whoever_closed_the_issue_itself_has_said_the_last_word(world):
    issue = in_review(world)
    link(world, issue, PullFate.UNMERGED)
    world.tracker.close(issue)
    assert follow(world).followed == ()
    assert world.labels(issue) == {"agent:pr-open"}


def test_a_pull_request_of_an_earlier_life_decides_nothing(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    world.clock.advance(60)
    # It was not enough after all: a person puts it back, and the next pull request is not linked.
    world.tracker.edit_labels(issue, add=["agent:implement"], remove=["agent:pr-open"])
    world.process("w3").advance(issue, "pr-open")
    assert follow(world).followed == ()
    assert world.labels(issue) == {"agent:pr-open"}


def test_a_person_who_puts_it_back_is_not_overruled_by_the_same_pull_request(world):
    issue = in_review(world)
    link(world, issue, PullFate.UNMERGED)
    assert actions(follow(world)) == [Follow.MOVED_BACK]
    world.clock.advance(60)
    world.tracker.edit_labels(issue, add=["agent:pr-open"], remove=["agent:implement"])
    assert follow(world).followed == ()
    assert world.labels(issue) == {"agent:pr-open"}
    world.clock.advance(60)
    link(world, issue, PullFate.MERGED, ref=IssueRef("", "32"))
    assert actions(follow(world)) == [Follow.MOVED_ON]


def test_one_that_was_merged_before_its_run_said_so_counts(world):
    """Where merging is automatic it may be through before the handler is."""
    issue = world.add("agent:implement")
    process = world.process()
    keeper = process.hold(issue)
    world.clock.advance(1)
    link(world, issue, PullFate.MERGED)
    world.clock.advance(1)
    process.services.advancing.advance(keeper, "pr-open")
    assert actions(follow(world)) == [Follow.MOVED_ON]


def test_of_two_that_see_the_merge_one_moves_it(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    reports = []
    slow = world.process(
        "slow", reached=at(Step.CLAIM_STARTED, lambda: reports.append(follow(world, "quick")))
    )
    reports.append(slow.services.following.follow(HolderId("slow")))
    assert [actions(report) for report in reports] == [[Follow.MOVED_ON], [Follow.LEFT]]
    assert world.labels(issue) == {"agent:done"}
    moves = [card for card in world.cards(issue) if card.ending and card.ending.next == "done"]
    assert len(moves) == 1


def test_nobody_moves_what_somebody_holds(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    keeper = world.process("reviewer").hold(issue)
    assert actions(follow(world)) == [Follow.LEFT]
    keeper.check()
    world.process("reviewer").services.advancing.give_back(keeper)
    assert actions(follow(world)) == [Follow.MOVED_ON]


@pytest.mark.parametrize("label", ["do-not-pickup", "needs:human-scope"])
def test_what_keeps_workers_off_does_not_keep_it_from_showing_a_merge(world, label):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    world.tracker.concern(issue, assignees=[ANN], pulls=[Pull(PULL, ANN)])
    world.tracker.edit_labels(issue, add=[label])
    assert actions(follow(world)) == [Follow.MOVED_ON]
    assert world.labels(issue) == {"agent:done", label}


def test_a_pause_is_obeyed(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    steering: Steering = world.process().services.steering
    steering.pause_issue(issue, reason="wait", by="ann")
    assert actions(follow(world)) == [Follow.LEFT]
    steering.resume_issue(issue, by="ann")
    assert actions(follow(world)) == [Follow.MOVED_ON]


def test_a_dry_run_tells_and_writes_nothing(world):
    issue = in_review(world)
    link(world, issue, PullFate.UNMERGED)
    process = world.process("w2")
    report = process.services.following.follow(HolderId("w2"), dry_run=True)
    assert actions(report) == [Follow.MOVED_BACK]
    assert process.tracker.written == []


@pytest.mark.parametrize("step", [Step.CLAIM_GRANTED, Step.CLAIM_PAINTED, Step.FINISH_DECIDED])
def test_a_crash_on_the_way_is_made_good_by_the_next(world, step):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    with pytest.raises(Crash):
        world.process("w2", reached=crashing(step)).services.following.follow(HolderId("w2"))
    world.clock.advance(2 * TTL_S)
    world.process("w3").sweep()
    follow(world, "w3")
    assert world.labels(issue) == {"agent:done"}
    assert not world.read(issue).issue.open


def test_an_outage_leaves_it_for_the_next_time(world):
    issue = in_review(world)
    link(world, issue, PullFate.MERGED)
    process = world.process("w2")
    process.tracker.before = outage("pulls_of", times=1)
    with pytest.raises(Exception, match="did not answer"):
        process.services.following.follow(HolderId("w2"))
    assert world.labels(issue) == {"agent:pr-open"}
    assert actions(follow(world)) == [Follow.MOVED_ON]


# The label of the fleet's own


def test_a_pull_request_that_a_run_opened_is_labelled_once(world):
    issue, pulled = world.add("agent:implement"), world.add("none of ours")
    process = world.process()
    keeper = process.hold(issue)
    world.clock.advance(5)
    pull = link(world, issue, PullFate.OPEN, ref=pulled)
    world.clock.advance(5)
    process.services.advancing.advance(keeper, "pr-open")
    assert actions(follow(world, dry_run=True)) == [Follow.LABELLED]
    assert AUTHORED not in world.labels(pulled)
    assert actions(follow(world)) == [Follow.LABELLED]
    assert AUTHORED in world.labels(pulled)
    world.tracker.link(issue, replace(pull, labels=frozenset({AUTHORED})))
    assert follow(world).followed == ()


def test_a_persons_own_pull_request_is_not_labelled(world):
    """Not another account's, and not our own account's if no run was at work when it was opened."""
    hers, by_hand = in_review(world), in_review(world)
    link(world, hers, PullFate.OPEN, author=ANN)
    world.clock.advance(5)
    link(world, by_hand, PullFate.OPEN)
    process = world.process("w2")
    following = process.services.following
    assert following.follow(HolderId("w2")).followed == ()
    reads = len(process.tracker.calls)
    following.follow(HolderId("w2"))
    names = [call.name for call in process.tracker.calls[reads:]]
    assert names == ["find", "pulls_of"], "what is known of them is not read again"


@pytest.mark.parametrize("refusal", [NoSuchIssue(PULL), NotPermitted("not for you")])
def test_a_pull_request_that_may_not_be_labelled_is_left_without(world, refusal):
    issue = world.add("agent:implement")
    process = world.process()
    keeper = process.hold(issue)
    link(world, issue, PullFate.OPEN)
    process.services.advancing.advance(keeper, "pr-open")
    other = world.process("w2")

    def refuse(call):
        if call.name == "edit_labels":
            raise refusal

    other.tracker.before = refuse
    following = other.services.following
    for _ in range(2):
        assert following.follow(HolderId("w2")).followed == ()
    assert [call.name for call in other.tracker.calls].count("edit_labels") == 1


# Cost, bounds, and where nothing follows


def test_a_look_costs_one_list_and_one_request_for_a_hundred(world):
    for _ in range(150):
        world.add("agent:pr-open")
    process = world.process("w2")
    assert process.services.following.follow(HolderId("w2")).looked_at == 150
    assert [call.name for call in process.tracker.calls] == ["find", "pulls_of", "pulls_of"]


def test_a_bounded_pass_goes_on_where_it_ended_so_nobody_starves(world):
    stuck, issue = in_review(world), in_review(world)
    link(world, stuck, PullFate.UNMERGED)
    world.tracker.close(stuck)
    link(world, issue, PullFate.MERGED)
    report = follow(world, limit=1)
    assert report.followed == ()
    report = follow(world, limit=1, after=report.resume_after)
    assert actions(report) == [Follow.MOVED_ON]
    assert follow(world, limit=1, after=report.resume_after).resume_after is None


def test_a_pipeline_that_follows_nothing_asks_for_nothing(world):
    stages = tuple(replace(stage, follows=FollowsNothing()) for stage in world.pipeline.stages)
    world.settings = replace(world.settings, pipeline=replace(world.pipeline, stages=stages))
    process = world.process()
    assert process.services.following.stages == ()
    process.services.following.follow(HolderId("w1"))
    assert process.tracker.calls == []


def test_an_issue_that_vanished_does_not_stop_the_others(world):
    gone, issue = in_review(world), in_review(world)
    for one in (gone, issue):
        link(world, one, PullFate.MERGED)
    process = world.process("w2")

    def vanish(call):
        if call.name == "read" and call.args[0] == gone:
            world.tracker._issues.pop(gone, None)

    process.tracker.before = vanish
    assert actions(process.services.following.follow(HolderId("w2"))) == [
        Follow.LEFT,
        Follow.MOVED_ON,
    ]


# Not picked: with the preset


def test_the_preset_leaves_an_issue_to_a_person_who_is_on_it(world):
    assigned, pulled, ours = (world.add("agent:implement") for _ in range(3))
    world.tracker.concern(assigned, assignees=[ANN])
    world.tracker.concern(pulled, pulls=[Pull(PULL, ANN)])
    world.tracker.concern(ours, assignees=[FLEET], pulls=[Pull(PULL, FLEET)])
    process = world.process()
    assert codes(process.claim(assigned)) == ["ASSIGNED"]
    assert codes(process.claim(pulled)) == ["PULL_OPEN"]
    process.claimed(ours)


# As part of a worker's rounds


def make_worker(world, handler, *, until=Until.DRAINED, hints=None):
    process = world.process("w1", handlers={"implement": handler})
    process.services.adapters.hints = hints
    stages = (process.services.pipeline.stage("implement"),)
    told = []
    worker = process.services.worker(process.holder, stages, until=until, tell=told.append)
    worker._dice.seed(7)
    return worker, told


def test_a_worker_follows_before_it_looks_for_work(world):
    merged, unmerged = in_review(world), in_review(world)
    link(world, merged, PullFate.MERGED)
    link(world, unmerged, PullFate.UNMERGED)
    worked = []
    worker, told = make_worker(world, lambda work: worked.append(work.issue["issue"]))
    report = worker.run()
    assert (report.followed, report.claimed) == (2, 1)
    assert worked == [str(unmerged)], "what came back is worked again in the same round"
    assert world.labels(merged) == {"agent:done"}
    assert sum("followed: #31 was" in line for line in told) == 2


class Hinted:
    """Says once that something has happened, and makes it happen just before."""

    every_s = 1.0

    def __init__(self, happens):
        self._happens = [happens]

    def heard(self):
        if not self._happens:
            return False
        self._happens.pop()()
        return True

    def about(self, issue):
        return Hinted(lambda: None)


def test_a_hint_is_followed_long_before_the_next_sweep(kind):
    pipeline = pipeline_of(AGENT, handler=Command("true"))
    world = World(kind, pipeline=pipeline, patience_s=0.03)
    world.settings = replace(world.settings, sweep=timedelta(hours=10))
    issue = in_review(world)
    began_at = world.clock.passed_s
    hints = Hinted(lambda: link(world, issue, PullFate.MERGED))
    worker, told = make_worker(world, lambda work: None, until=Until.STOPPED, hints=hints)

    def tell(line):
        if "followed:" in line:
            told.append(line)
            worker.leave()

    worker._tell = tell
    worker.run()
    assert "followed: #31 was merged" in told[0]
    assert world.clock.passed_s - began_at < 60
    assert world.labels(issue) == {"agent:done"}
