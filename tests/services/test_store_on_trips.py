"""Leases in an atomic store beside a tracker that takes several effects in one request.

The store never lags and the tracker's readings do, so what is shown and what is granted may part
for a while. What is made to lag or to lack a page here is one process's reading.
"""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.errors import Unavailable
from dibs.core.pipeline import NoGate
from dibs.services.claiming import Beaten, Claimed
from dibs.services.ending import Finished

from .world import STORE_ON_TRIPS, World, decided_and_not_painted, pipeline_of

SETTLE_S = 2.0


def worked_stages():
    base = pipeline_of()
    ready, review, done = (replace(stage, gate=NoGate()) for stage in base.stages)
    check = replace(review, name="check", label="stage:check", next=("done",))
    return replace(base, stages=(ready, replace(review, next=("check",)), check, done))


@pytest.fixture
def world():
    return World(STORE_ON_TRIPS, pipeline=worked_stages(), settle=timedelta(seconds=SETTLE_S))


def without_comments(*names, times=1):
    """A page is missing from the answers of these calls, and the client does not know it."""
    left = {"times": times}

    def change(call, answer):
        if call.name not in names or not left["times"]:
            return answer
        left["times"] -= 1
        return replace(answer, comments=())

    return change


# When it is acknowledged


def noting_times(world, process):
    """When the process wrote last, and when it acknowledged."""
    times = {}
    process.tracker.after = lambda call: call.writes and times.update(painted=world.clock.now())
    process.store.before = lambda call: times.update({call.name: world.clock.now()})
    return times


def test_an_ending_is_acknowledged_once_every_reader_is_sure_to_see_it(world):
    issue, holder = world.add(), world.process("holder")
    keeper = holder.hold(issue)
    times = noting_times(world, holder)
    assert isinstance(holder.services.advancing.advance(keeper), Finished)
    assert times["acknowledge"] - times["painted"] >= SETTLE_S


def test_a_bidder_whom_the_store_refuses_for_it_paints_at_once_however_young_it_is(world):
    """Nothing is granted over it, and a store may not know how old it is."""
    issue = decided_and_not_painted(world)
    beaten = world.process("next").claim(issue, "ready", look_first=False)
    assert isinstance(beaten, Beaten)
    assert world.labels(issue) == {"stage:review"}
    assert world.process("next").claimed(issue).stage.name == "review"


def test_so_is_one_that_somebody_else_paints(world):
    decided_and_not_painted(world)
    world.clock.advance(10)
    sweeper = world.process("sweeper")
    times = noting_times(world, sweeper)
    sweeper.sweep()
    assert times["acknowledge"] - times["painted"] >= SETTLE_S


def test_a_bidder_whose_reading_lags_does_not_run_the_finished_stage(world):
    """The schedule that was found: the store granted as soon as the painter had its own reply."""
    issue, holder, rival = world.add(), world.process("holder"), world.process("rival")
    keeper = holder.hold(issue)
    before = world.read(issue)
    times = noting_times(world, holder)

    def lagging(call, answer):
        lags = world.clock.now() < times["painted"] + SETTLE_S
        return before if lags and call.name == "read" else answer

    rival.tracker.change = lagging
    holder.services.advancing.advance(keeper)
    assert not isinstance(rival.claim(issue, "ready", look_first=False), Claimed)
    assert rival.claimed(issue).stage.name == "review"


# What is judged


def test_an_ending_is_not_painted_without_its_card_because_a_page_is_missing(world):
    issue, holder = world.add(), world.process("holder")
    keeper = holder.hold(issue)
    holder.tracker.change = without_comments("read")
    assert isinstance(holder.services.advancing.advance(keeper), Finished)
    assert [state for _, state in world.states(issue)] == ["released"]
    assert world.labels(issue) == {"stage:review"}


def test_a_holder_edits_its_card_although_its_reading_hides_it(world):
    """Without the card's word, a painter that slept would take the issue for one still in ready."""
    issue, holder = world.add(), world.process("holder")
    keeper = holder.hold(issue)

    def hide(call, answer):
        if call.name != "read":
            return answer
        return replace(answer, comments=(), issue=replace(answer.issue, comment_count=0))

    holder.tracker.change = hide
    assert isinstance(holder.services.advancing.advance(keeper), Finished)
    assert [state for _, state in world.states(issue)] == ["released"]


@pytest.mark.parametrize("lacking", [0, 1, 20])
def test_a_painter_that_was_overtaken_takes_off_no_stage_that_others_painted(world, lacking):
    """Its trip was not answered, others painted; a list without cards says nothing of stages."""
    issue, late = world.add(), world.process("late")
    keeper = late.hold(issue)

    def no_answer(call):
        if call.name == "apply":
            late.tracker.before = lambda _: None
            late.tracker.change = without_comments("read", "apply", times=lacking)
            world.clock.advance(10)
            world.process("sweeper").sweep()
            raise Unavailable("no reply")

    late.tracker.before = no_answer
    assert isinstance(late.services.advancing.advance(keeper), Finished)
    assert world.labels(issue) == {"stage:review"}


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_painter_that_wakes_up_two_stages_later_puts_right_what_it_painted(world, lacking):
    issue, late = world.add(), world.process("late")
    keeper, holding = late.hold(issue), []

    def sleep(call):
        if call.name == "apply":
            late.tracker.before = lambda _: None
            late.tracker.change = without_comments("apply", times=lacking)
            world.clock.advance(10)
            world.process("sweeper").sweep()
            world.process("second").advance(issue)
            third = world.process("third")
            holding.append((third, third.hold(issue)))

    late.tracker.before = sleep
    late.services.advancing.advance(keeper)
    stages = {label for label in world.labels(issue) if label.startswith("stage:")}
    assert stages == {"stage:check"}
    third, held = holding[0]
    third.services.advancing.advance(held)
    assert world.labels(issue) == {"stage:done"}
