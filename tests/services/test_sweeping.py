"""Sweeping: it brings the picture back to the truth and never ends a live lease."""

from datetime import timedelta

import pytest

from dibs.core.events import Step
from dibs.core.issue import Snapshot
from dibs.services.claiming import Claimed, Refused
from dibs.services.sweeping import Sweep

from .world import BEAT_S, TTL_S, Crash, World, at, crashing, decided_and_not_painted

HELD = {"stage:ready", "stage:processing", "claimed"}


def actions(report):
    return [entry.action for entry in report.swept]


def decide_and_die(world, issue):
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)


def test_a_live_lease_is_never_ended(world):
    issue = world.add()
    keeper, sweeper = world.process().hold(issue), world.process("sweeper")
    while world.clock.passed_s < 5 * TTL_S:
        world.clock.advance(BEAT_S)
        keeper.beat()
        assert actions(sweeper.sweep()) == [Sweep.LIVE]
        keeper.check()
    assert sweeper.tracker.written == []
    assert world.labels(issue) == HELD


def test_a_live_lease_is_kept_to_its_last_instant(world):
    issue = world.add()
    world.process().claimed(issue)
    world.clock.advance(TTL_S - 0.001)
    assert actions(world.process("sweeper").sweep()) == [Sweep.LIVE]
    world.clock.advance(0.001)
    assert actions(world.process("sweeper").sweep()) == [Sweep.FREED]


def test_an_expired_lease_is_freed_and_the_issue_offered_again(world):
    issue, sweeper = world.add(), world.process("sweeper")
    world.process().claimed(issue)
    world.clock.advance(TTL_S)
    report = sweeper.sweep()
    assert report.looked_at == 1
    assert [entry.issue for entry in report.changed] == [issue]
    assert world.labels(issue) == {"stage:ready"}
    assert "freed" in world.events()
    assert sweeper.sweep().looked_at == 0
    assert isinstance(world.process("next").claim(issue), Claimed)


def test_an_expired_lease_is_kept_during_its_grace(kind):
    world = World(kind, grace=timedelta(seconds=10))
    issue, sweeper = world.add(), world.process("sweeper")
    world.process().claimed(issue)
    world.clock.advance(TTL_S + 9.999)
    assert actions(sweeper.sweep()) == [Sweep.YOUNG]
    assert world.labels(issue) == HELD
    world.clock.advance(0.001)
    assert actions(sweeper.sweep()) == [Sweep.FREED]


def test_a_claimed_label_without_a_card_is_given_a_full_ttl(world):
    issue, sweeper = world.add(), world.process("sweeper")
    world.clock.advance(100 * TTL_S)
    world.tracker.edit_labels(issue, add=("claimed",))
    world.clock.advance(TTL_S - 1)
    assert actions(sweeper.sweep()) == [Sweep.YOUNG]
    assert "claimed" in world.labels(issue)
    world.clock.advance(1)
    assert actions(sweeper.sweep()) == [Sweep.FREED]
    assert world.labels(issue) == {"stage:ready"}


def test_a_working_label_without_a_card_is_given_a_full_ttl(world):
    issue, sweeper = world.add(), world.process("sweeper")
    world.clock.advance(100 * TTL_S)
    world.tracker.edit_labels(issue, add=("stage:processing",))
    world.clock.advance(TTL_S - 1)
    assert actions(sweeper.sweep()) == [Sweep.YOUNG]
    world.clock.advance(1)
    assert actions(sweeper.sweep()) == [Sweep.FREED]
    assert world.labels(issue) == {"stage:ready"}


def test_working_labels_without_claimed_are_looked_at_once_all_claimed_issues_were(world):
    claimed = [world.add("stage:ready", "claimed") for _ in range(3)]
    stray = world.add("stage:ready", "stage:processing")
    world.tracker.close(stray)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")
    first = sweeper.sweep(limit=3, dry_run=True)
    assert ([entry.issue for entry in first.swept], first.resume_after) == (claimed, claimed[-1])
    rest = sweeper.sweep(limit=3, dry_run=True, after=first.resume_after)
    assert ([entry.issue for entry in rest.swept], rest.resume_after) == ([stray], None)
    assert [entry.issue for entry in sweeper.sweep().changed] == [*claimed, stray]
    assert world.labels(stray) == {"stage:ready"}


def test_a_bid_that_may_still_be_confirmed_is_left_alone():
    world = World("comments")
    issue = world.add("stage:ready", "claimed")
    dying = world.process("dying", reached=crashing(Step.CLAIM_BID))
    world.clock.advance(TTL_S)
    with pytest.raises(Crash):
        dying.claim(issue, "ready", look_first=False)
    assert actions(world.process("sweeper").sweep()) == [Sweep.YOUNG]
    world.clock.advance(TTL_S)
    assert actions(world.process("sweeper").sweep()) == [Sweep.FREED]


def test_a_decided_ending_is_rolled_forward_at_once(world):
    issue = world.add()
    decide_and_die(world, issue)
    report = world.process("sweeper").sweep()
    assert actions(report) == [Sweep.ROLLED_FORWARD]
    assert "to review" in report.swept[0].text
    assert world.labels(issue) == {"stage:review"}
    assert "rolled_forward" in world.events()
    assert world.process("second").sweep().looked_at == 0, "once painted, and said so, it is done"


def test_a_closed_issue_that_is_still_claimed_is_freed_too(world):
    issue = world.add()
    world.process().claimed(issue)
    world.tracker.close(issue)
    world.clock.advance(TTL_S)
    assert actions(world.process("sweeper").sweep()) == [Sweep.FREED]
    assert world.labels(issue) == {"stage:ready"}


def test_a_dry_run_says_the_same_and_writes_nothing(world):
    for _ in range(2):
        decide_and_die(world, world.add())
    world.process("holder").claimed(world.add())
    gone = world.add()
    world.process("vanished").claimed(gone, ttl=timedelta(seconds=1))
    world.clock.advance(2)
    onlooker, before = world.process("onlooker"), world.events()
    told = onlooker.sweep(dry_run=True)
    assert onlooker.tracker.written == []
    assert onlooker.store is None or not [
        call for call in onlooker.store.calls if call.name not in ("read", "live")
    ]
    assert world.events() == before
    done = world.process("sweeper").sweep()
    assert actions(told) == actions(done)
    assert [entry.issue for entry in told.changed] == [entry.issue for entry in done.changed]


def test_a_sweep_is_bounded(world):
    issues = [world.add() for _ in range(7)]
    for issue in issues:
        world.process().claimed(issue)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")
    assert sweeper.sweep(limit=3).looked_at == 3
    assert len([issue for issue in issues if "claimed" in world.labels(issue)]) == 4
    assert sweeper.sweep(limit=0).looked_at == 0
    assert sweeper.sweep().looked_at == 4


def test_a_sweep_goes_through_all_pages(world):
    for _ in range(230):
        world.add("stage:ready", "claimed")
    world.clock.advance(TTL_S)
    report = world.process("sweeper").sweep()
    assert report.looked_at == len(report.changed) == 230


def test_an_issue_that_is_not_claimed_is_not_looked_at(world):
    world.add()
    world.process().advance(world.add())
    assert world.process("sweeper").sweep().looked_at == 0


def test_labels_of_others_are_kept(world):
    issue = world.add("stage:ready", "bug")
    world.process().claimed(issue)
    world.clock.advance(TTL_S)
    world.process("sweeper").sweep()
    assert world.labels(issue) == {"stage:ready", "bug"}


def test_two_sweeps_at_once_do_no_harm(world):
    """The second one runs while the first is in the middle of rolling forward."""
    issue = world.add()
    decide_and_die(world, issue)
    second = world.process("second")
    first = world.process("first", reached=at(Step.FINISH_LABEL_ADDED, second.sweep))
    first.sweep()
    assert world.labels(issue) == {"stage:review"}
    assert world.process("third").sweep().looked_at == 0


def first_page_only(count):
    """A tracker that hands out the oldest comments and says nothing about the rest."""

    def change(call, answer):
        if call.name != "read":
            return answer
        return Snapshot(answer.issue, answer.comments[:count], answer.now)

    return change


def test_an_issue_whose_comments_cannot_all_be_read_is_left_alone(world):
    """An incomplete list may hide the holder's card: it decides nothing."""
    issue = world.add()
    world.tracker.comment(issue, "chatter")
    world.process().claimed(issue)
    world.clock.advance(TTL_S - 1)
    sweeper = world.process("sweeper")
    sweeper.tracker.change = first_page_only(1)
    sweeper.sweep()
    assert sweeper.tracker.written == []
    assert world.labels(issue) == HELD


def test_an_old_ending_on_an_incomplete_list_is_not_rolled_forward_over_a_live_lease(world):
    """Advanced by one run, sent back by a second, held by a third whose card is not on the page."""
    issue = world.add()
    world.process("first").advance(issue)
    world.tracker.edit_labels(issue, add=("approved",))
    world.process("second").advance(issue, "ready")
    world.process("third").claimed(issue)
    sweeper = world.process("sweeper")
    sweeper.tracker.change = first_page_only(1)
    sweeper.sweep()
    assert world.labels(issue) == HELD
    blind = world.process("blind")
    blind.tracker.change = first_page_only(1)
    assert isinstance(blind.claim(issue), Refused)
    assert world.labels(issue) == HELD


def test_an_ending_among_comments_that_cannot_all_be_read_holds_no_sweep_up(world):
    """It is read once and left; the sweep goes on to the next issue."""
    unreadable = decided_and_not_painted(world)
    world.tracker.comment(unreadable, "chatter")
    vanished = world.add()
    world.process("vanished").claimed(vanished)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")

    def hide(call, answer):
        return first_page_only(1)(call, answer) if call.args[:1] == (unreadable,) else answer

    sweeper.tracker.change = hide
    before = world.labels(unreadable)
    started = world.clock.passed_s
    sweeper.sweep()
    assert world.clock.passed_s == started
    assert world.labels(unreadable) == before
    assert world.labels(vanished) == {"stage:ready"}


def test_a_holder_that_comes_back_in_time_shows_its_lease_again(world):
    """Somebody swept by hand what was live: the picture is wrong, the lease is not."""
    issue = world.add()
    keeper = world.process().hold(issue)
    world.tracker.edit_labels(issue, remove=("claimed", "stage:processing"))
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert world.labels(issue) == HELD
