"""Processes that wake up late, replies that do not come, work that never ends.

Each of these was a hole that a reader of the first version or the simulator found; the schedule
that showed it is kept here.
"""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.card import render_shown
from dibs.core.durations import terms_for
from dibs.core.errors import Unavailable
from dibs.core.events import Step
from dibs.core.lease import Outcome
from dibs.core.pipeline import NoGate
from dibs.services.claiming import Beaten, Claimed, Refused
from dibs.services.ending import Finished, FinishRefused
from dibs.services.running import StopSignal
from dibs.services.sweeping import Sweep

from .world import KINDS, STEPWISE, TTL_S, Crash, World, at, codes, crashing, outage, pipeline_of

HELD = {"stage:ready", "stage:processing", "claimed"}


def three_worked_stages():
    """ready, review (open, may send back), done."""
    base = pipeline_of()
    stages = [replace(stage, gate=NoGate()) for stage in base.stages]
    return replace(base, stages=tuple(stages))


@pytest.fixture
def world(kind):
    return World(kind, pipeline=three_worked_stages())


@pytest.mark.parametrize("target", ["ready", "done"])
def test_a_holder_that_slept_after_its_decision_does_not_paint_over_what_came_after(world, target):
    issue = world.add()

    def meanwhile() -> None:
        world.process("sweeper").sweep()
        world.process("b").advance(issue, target)

    sleeper = world.process("a", reached=at(Step.FINISH_DECIDED, meanwhile))
    assert isinstance(sleeper.advance(issue), Finished)
    assert world.labels(issue) == {f"stage:{target}"}


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_sweeper_that_slept_does_not_paint_over_what_came_after(world):
    issue = world.add()
    crashed = world.process("a")
    crashed.leases.before = lambda call: None
    keeper = crashed.hold(issue)
    crashed.tracker.before = outage("edit_labels", "apply", "close")
    assert isinstance(crashed.services.advancing.advance(keeper), Finished)
    sweeper = world.process("sweeper")

    def meanwhile(call) -> None:
        if call.name == "roll_forward":
            world.process("other").sweep()
            world.process("b").advance(issue, "ready")

    sweeper.leases.before = meanwhile
    sweeper.sweep()
    assert world.labels(issue) == {"stage:ready"}


def test_a_stage_that_was_finished_between_the_scan_and_the_look_is_not_claimed_in_the_next(world):
    issue = world.add()
    world.process("other").advance(issue)
    late = world.process("late").claim(issue, stage="ready")
    assert isinstance(late, Refused)
    assert [reason.code.value for reason in late.reasons] == ["NOT_SERVED"]
    assert world.labels(issue) == {"stage:review"}


def test_a_handler_is_not_started_under_a_lease_that_ran_out_meanwhile(world):
    issue = world.add()
    called = []
    process = world.process("a", handlers={"ready": called.append})
    claimed = process.claimed(issue)
    world.clock.advance(TTL_S)
    finished = process.services.running.run(claimed, StopSignal())
    assert isinstance(finished, FinishRefused)
    assert called == []


def test_a_claim_that_took_longer_than_its_lease_is_not_shown(world):
    issue = world.add()
    late = world.process("a", reached=at(Step.CLAIM_JUDGED, lambda: world.clock.advance(TTL_S)))
    late.claim(issue)
    assert "claimed" not in world.labels(issue)
    assert world.process("b").claimed(issue)


def test_work_that_never_ends_is_a_failed_attempt(world):
    terms = terms_for(timedelta(seconds=60), max_hold=timedelta(seconds=90))
    stages = [replace(stage, terms=terms, attempts=2) for stage in world.pipeline.stages]
    world = World(world.kind, pipeline=replace(world.pipeline, stages=tuple(stages)))
    issue = world.add()
    outcomes = []
    for _ in range(2):
        process = world.process("w")
        keeper = process.hold(issue)
        while (pause_s := keeper.beat()) is not None:
            world.clock.advance(pause_s)
        outcomes.append(process.services.advancing.fail(keeper, "wedged").outcome)
        world.clock.advance(3600)
    assert outcomes == [Outcome.FAILED, Outcome.PARKED]


def test_finished_work_is_not_thrown_away_for_one_reply_that_does_not_come(world):
    issue = world.add()
    process = world.process("a", handlers={"ready": lambda work: None})
    process.leases.before = outage("finish", times=2)
    finished = process.services.running.run(process.claimed(issue), StopSignal())
    assert isinstance(finished, Finished)
    assert finished.outcome is Outcome.ADVANCED
    assert world.labels(issue) == {"stage:review"}


def test_a_confirmation_that_went_wrong_does_not_make_a_persons_requeue_skip_its_stage(world):
    issue = world.add()
    world.process("a").advance(issue)
    world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))
    unlucky = world.process("b")
    unlucky.leases.after = outage("show")
    with pytest.raises(Exception, match="did not answer"):
        unlucky.claim(issue)
    world.clock.advance(2 * TTL_S)
    world.process("sweeper").sweep()
    assert "stage:ready" in world.labels(issue)
    assert world.process("c").claimed(issue).stage.name == "ready"


def test_a_bounded_sweep_goes_on_where_it_ended(world):
    held = [world.add() for _ in range(3)]
    for issue in held:
        world.process("person").claimed(issue, ttl=timedelta(hours=8))
    crashed = world.add()
    world.process("crashed").claimed(crashed)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")
    first = sweeper.sweep(limit=3)
    assert (first.changed, first.resume_after) == ((), held[-1])
    second = sweeper.sweep(limit=3, after=first.resume_after)
    assert [entry.issue for entry in second.changed] == [crashed]
    assert second.resume_after is None


# An ending is painted when the cards say so


def asleep_before(process, wanted, meanwhile):
    """The process freezes before the first call that `wanted` picks; others go on."""
    slept = []

    def hook(call):
        if wanted(call) and not slept:
            slept.append(call)
            meanwhile()

    process.tracker.before = hook


def a_label_edit(call):
    return call.name == "edit_labels"


def takes_claimed_off(call):
    return call.name == "edit_labels" and call.kwargs.get("remove") == ("claimed",)


def drop_claimed(world, issue):
    """A bot that keeps labels tidy, or a person who does not know better."""
    world.tracker.edit_labels(issue, remove=("claimed",))


def decide_and_die(world, issue):
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)


@pytest.mark.parametrize("kind", STEPWISE)
@pytest.mark.parametrize("frozen_before", [a_label_edit, takes_claimed_off])
def test_an_ending_is_painted_although_a_late_sweeper_took_its_claimed_off(world, frozen_before):
    """The simulator's schedule: `claimed` that is not there says nothing about the painting."""
    issue = world.add()
    world.process("vanished").claimed(issue)
    world.clock.advance(TTL_S)
    holder = world.process("holder")
    keepers = []
    sweeper = world.process("sweeper")
    asleep_before(sweeper, frozen_before, lambda: keepers.append(holder.hold(issue)))
    sweeper.sweep()
    assert "claimed" not in world.labels(issue), "the late sweeper took the new holder's label"
    assert isinstance(holder.services.advancing.advance(keepers[0]), Finished)
    assert world.labels(issue) == {"stage:review"}
    assert world.process("next").claimed(issue).stage.name == "review", "ready ran a second time"


@pytest.mark.parametrize("who", ["a claim", "a sweep", "a repair"])
def test_a_dead_holders_ending_is_painted_although_a_bot_took_its_claimed_off(world, who):
    issue = world.add()
    decide_and_die(world, issue)
    drop_claimed(world, issue)
    following = world.process("next")
    match who:
        case "a sweep":
            assert [entry.action for entry in following.sweep().swept] == [Sweep.ROLLED_FORWARD]
        case "a repair":
            list(following.services.checking.check(repair=True))
    if who != "a claim":
        assert world.labels(issue) == {"stage:review"}
    assert following.claimed(issue).stage.name == "review", "ready ran a second time"


def test_a_late_claimer_that_did_not_look_does_not_run_what_a_bot_made_look_free(world):
    issue = world.add()
    decide_and_die(world, issue)
    drop_claimed(world, issue)
    world.tracker.edit_labels(issue, remove=("stage:processing",))
    hasty = world.process("hasty")
    assert not isinstance(hasty.claim(issue, "ready", look_first=False), Claimed)
    assert world.labels(issue) == {"stage:review"}


@pytest.mark.parametrize("look_first", [True, False])
def test_a_grant_that_was_given_back_unseen_does_not_keep_everybody_off_for_ever(look_first):
    """The store's answer came, the tracker's did not: no comment tells that there was a lease."""
    world = World("store", pipeline=three_worked_stages())
    issue = world.add()
    unlucky = world.process("unlucky")
    cut_off = []

    def no_answer(call):
        if cut_off or call.writes:
            cut_off.append(call)
            raise Unavailable(f"{call.name} did not answer")

    unlucky.tracker.before = no_answer
    with pytest.raises(Unavailable):
        unlucky.claim(issue)
    snapshot = world.read(issue)
    assert (snapshot.comments, snapshot.issue.labels) == ((), {"stage:ready"})
    assert not world.store.read(issue).painted
    following = world.process("next")
    if not look_first:  # as a worker does that found no comment on the issue
        assert isinstance(following.claim(issue, "ready", look_first=False), Beaten)
        assert world.store.read(issue).painted
    assert isinstance(following.claim(issue, "ready", look_first=look_first), Claimed)


def deleting_the_card(world, issue, *, before_edit):
    """A person deletes the card just before it would be edited for the n-th time."""
    edits = []

    def hook(call):
        if call.name == "edit_comment":
            edits.append(call.args[1])
            if len(edits) == before_edit:
                world.tracker.delete_comment(issue, call.args[1])

    return hook


def test_an_ending_whose_card_is_deleted_while_it_is_painted_is_painted_without_it():
    world = World("store", pipeline=three_worked_stages())
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    process.tracker.before = deleting_the_card(world, issue, before_edit=1)
    finished = process.services.advancing.advance(keeper)
    assert isinstance(finished, Finished)
    assert finished.record.painted
    assert world.labels(issue) == {"stage:review"}
    assert world.read(issue).comments == ()
    assert world.process("next").claimed(issue).stage.name == "review"


def test_a_card_that_is_deleted_after_its_labels_were_painted_breaks_nothing():
    """On comments the decision goes with the card; its labels are there, `claimed` is swept."""
    world = World("comments", pipeline=three_worked_stages())
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    process.tracker.before = deleting_the_card(world, issue, before_edit=2)
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert world.labels(issue) == {"stage:review", "claimed"}
    world.clock.advance(TTL_S)
    world.process("sweeper").sweep()
    assert world.labels(issue) == {"stage:review"}
    assert world.process("next").claimed(issue).stage.name == "review"


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_working_label_that_stands_without_claimed_is_swept_once_its_lease_is_over(world):
    """A sweeper slept between its two labels, and the holder that came in between died."""
    issue = world.add()
    world.process("vanished").claimed(issue)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")
    asleep_before(sweeper, takes_claimed_off, lambda: world.process("dying").claimed(issue))
    sweeper.sweep()
    assert world.labels(issue) == {"stage:ready", "stage:processing"}
    other = world.process("other")
    assert [entry.action for entry in other.sweep().swept] == [Sweep.LIVE]
    assert world.labels(issue) == {"stage:ready", "stage:processing"}
    world.clock.advance(TTL_S)
    assert [entry.action for entry in other.sweep().swept] == [Sweep.FREED]
    assert world.labels(issue) == {"stage:ready"}
    assert other.sweep().looked_at == 0


@pytest.mark.parametrize("kind", STEPWISE)
def test_labels_that_a_bot_wrote_back_as_a_whole_while_an_ending_was_painted_are_painted_again(
    world,
):
    """It had read them before; setting what it read undoes the stage that was just put on."""
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    old = world.labels(issue)
    written_back = []

    def bot(call):
        if call.kwargs.get("remove") == ("stage:processing",) and not written_back:
            written_back.append(call)
            now = world.labels(issue)
            world.tracker.edit_labels(issue, add=tuple(old - now), remove=tuple(now - old))

    process.tracker.after = bot
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert written_back
    assert world.labels(issue) == {"stage:review"}
    assert world.process("next").claimed(issue).stage.name == "review", "ready ran a second time"


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_sweeper_that_slept_after_its_look_does_not_free_what_was_claimed_meanwhile(world):
    issue = world.add()
    world.process("vanished").claimed(issue)
    world.clock.advance(TTL_S)
    sweeper, holder, slept = world.process("sweeper"), world.process("holder"), []

    def meanwhile(call):
        if call.name == "standing" and not slept:
            slept.append(call)
            holder.claimed(issue)

    sweeper.leases.after = meanwhile
    assert [entry.action for entry in sweeper.sweep().swept] == [Sweep.YOUNG]
    assert sweeper.tracker.written == []
    assert world.labels(issue) == HELD
    assert "freed" not in world.events()


def test_a_reading_older_than_the_decision_does_not_count_as_painted():
    """A replica that lags shows the card still held: that says nothing about its labels."""
    world = World("comments")
    issue = world.add()
    process = world.process()
    keeper = process.hold(issue)
    before, stale = world.read(issue), []

    def lagging(call, answer):
        ended = any(state == "released" for _, state in world.states(issue))
        if call.name == "read" and ended and len(stale) < 2:
            stale.append(call)
            return before
        return answer

    process.tracker.change = lagging
    process.services.advancing.advance(keeper)
    assert len(stale) == 2
    assert world.labels(issue) == {"stage:review"}


def test_a_bidder_that_paints_an_ending_does_not_take_the_issue_on_the_next_reading():
    """What it has just painted need not show in it: the finished stage would be run again."""
    world = World("comments")
    issue = world.add()
    holder = world.process("holder", reached=crashing(Step.FINISH_DECIDED))
    keeper = holder.hold(issue)
    with pytest.raises(Crash):
        holder.services.advancing.advance(keeper)
    bidder = world.process("bidder")
    result = bidder.claim(issue, "ready", look_first=False)
    assert codes(result) == ["NOT_SERVED"]
    assert world.labels(issue) == {"stage:review"}
    assert [state for _, state in world.states(issue)] == ["released", "conceded"]


def four_worked_stages():
    base = pipeline_of()
    ready, review, done = (replace(stage, gate=NoGate()) for stage in base.stages)
    check = replace(review, name="check", label="stage:check", next=("done",))
    return replace(base, stages=(ready, replace(review, next=("check",)), check, done))


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_painter_that_wakes_up_two_stages_later_puts_right_what_it_painted(kind):
    """Its old stage label is not a person's word: nobody runs the finished stage again."""
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    late = world.process("late")
    keeper, holding = late.hold(issue), []

    def meanwhile():
        world.process("sweeper").sweep()
        world.process("next").advance(issue)
        third = world.process("third")
        holding.append((third, third.hold(issue)))

    asleep_before(late, a_label_edit, meanwhile)
    late.services.advancing.advance(keeper)
    assert "stage:review" not in world.labels(issue)
    third, held = holding[0]
    third.services.advancing.advance(held)
    assert world.labels(issue) == {"stage:done"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_that_a_dead_painter_left_beside_a_held_one_goes_with_the_next_ending(kind):
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    world.process("first").advance(issue)
    world.process("second").advance(issue)
    third = world.process("third")
    keeper = third.hold(issue)
    world.tracker.edit_labels(issue, add=("stage:review",))  # and its painter died
    third.services.advancing.advance(keeper)
    assert world.labels(issue) == {"stage:done"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_that_a_dead_painter_left_on_a_free_issue_is_taken_off_by_who_wants_it(kind):
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    world.process("first").advance(issue)
    world.process("second").advance(issue)
    world.tracker.edit_labels(issue, add=("stage:review",))
    third = world.process("third")
    assert codes(third.claim(issue)) == ["SEVERAL_STAGES"], "it may be a person, between two clicks"
    world.clock.advance(TTL_S)
    claimed = third.claimed(issue)
    assert claimed.stage.name == "check"
    assert "stage:review" not in world.labels(issue)


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_who_moves_an_issue_while_it_is_worked_has_the_last_word(kind):
    """A move takes the old stage off; that is how it differs from what a late painter leaves."""
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    world.process("first").advance(issue)
    second = world.process("second")
    keeper = second.hold(issue)
    world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))
    second.services.advancing.advance(keeper)
    assert world.labels(issue) == {"stage:ready"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_who_puts_an_issue_back_to_the_start_in_two_clicks_is_not_undone_between(kind):
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    for name in ("first", "second"):
        world.process(name).advance(issue)
    world.tracker.edit_labels(issue, add=("stage:ready",))
    world.clock.advance(2 * TTL_S)
    assert codes(world.process("hasty").claim(issue)) == ["SEVERAL_STAGES"]
    world.tracker.edit_labels(issue, remove=("stage:check",))
    assert world.process("patient").claimed(issue).stage.name == "ready"


@pytest.mark.parametrize("kind", KINDS)
def test_a_painter_that_slept_while_a_person_put_the_issue_back_leaves_it_a_stage(kind):
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    late = world.process("late")
    keeper = late.hold(issue)

    def meanwhile():
        world.process("sweeper").sweep()
        world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))

    asleep_before(late, lambda call: call.kwargs.get("remove") == ("stage:ready",), meanwhile)
    late.services.advancing.advance(keeper)
    assert world.labels(issue) == {"stage:review"}


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_painter_that_slept_before_its_last_label_does_not_undo_a_persons_requeue(kind):
    world = World(kind, pipeline=four_worked_stages())
    issue = world.add()
    late = world.process("late")
    keeper = late.hold(issue)

    def meanwhile():
        world.process("sweeper").sweep()
        world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))

    asleep_before(late, lambda call: call.kwargs.get("remove") == ("stage:processing",), meanwhile)
    late.services.advancing.advance(keeper)
    assert world.labels(issue) == {"stage:ready"}
    assert world.process("next").claimed(issue).stage.name == "ready"


def test_that_an_ending_is_shown_means_nothing_before_there_is_one():
    world = World("comments")
    issue = world.add()
    process = world.process()
    keeper = process.hold(issue)
    world.tracker.comment(issue, render_shown(keeper.run))
    world.clock.advance(1)
    process.services.advancing.advance(keeper)
    assert world.labels(issue) == {"stage:review"}


def test_an_ending_that_a_forced_revoke_forestalled_is_lost():
    world = World("comments")
    issue = world.add()
    process, boss = world.process(), world.process("boss")
    keeper = process.hold(issue)

    def force():
        world.clock.advance(1)
        boss.services.steering.revoke(issue, keeper.run, by="ada", reason="dead", force=True)
        world.clock.advance(1)

    process.services.leases.adapter._endings._reached = at(Step.FINISH_VERIFIED, force)
    assert isinstance(process.services.advancing.advance(keeper), FinishRefused)
    assert "stage:review" not in world.labels(issue)
