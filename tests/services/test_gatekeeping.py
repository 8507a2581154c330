"""Gates: rulings by command and by comment, who moves the issue, and what nobody may pass."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.approval import Void, passage_for, render_plan
from dibs.core.eligibility import ReasonCode
from dibs.core.ids import HolderId
from dibs.core.lease import Outcome
from dibs.core.pipeline import AfterTimeout, Approval, Command
from dibs.core.presets import AGENT
from dibs.services.board import RowState
from dibs.services.gatekeeping import GateAct
from dibs.services.running import Advance, StopSignal, verdict_of
from dibs.services.steering import NotEntitled, Ruled, TextDiffers

from .world import Crash, World, pipeline_of

GATE = AGENT.stage("plan-pending-approval").gate


def with_gate(**changes):
    """The agent preset with a handler in `implement`, and changes of its gate."""
    pipeline = pipeline_of(AGENT, handler=Command("true"))
    stages = [
        replace(stage, gate=replace(GATE, **changes)) if stage.gate == GATE else stage
        for stage in pipeline.stages
    ]
    return replace(pipeline, stages=tuple(stages))


@pytest.fixture
def world(kind):
    return World(kind, pipeline=with_gate(), patience_s=0.03)


def planned(world, text="1. read\n2. write", name="w1"):
    """An issue that a run has led to the gate, with its plan."""
    issue = world.add("agent:implement")
    return plan_again(world, issue, text, name)


def plan_again(world, issue, text, name="w1"):
    world.clock.sleep(1)
    process = world.process(name)
    keeper = process.hold(issue)
    body = render_plan(keeper.lease.stage, keeper.lease.run, name, text)
    world.tracker.comment(issue, body)
    world.clock.sleep(1)
    process.services.advancing.advance(keeper, "plan-pending-approval")
    world.clock.sleep(1)
    assert world.labels(issue) == {"agent:plan-pending-approval"}
    return issue


def watch(world, name="w2"):
    return world.process(name).services.gatekeeping.watch(HolderId(name))


def acts(done):
    return [entry.act for entry in done]


def comment(world, issue, body, author="ann", **options):
    world.clock.sleep(1)
    posted = world.tracker.comment(issue, body, author=author, **options)
    world.clock.sleep(1)
    return posted


def gate_of(world, issue):
    _, gate = world.process("looks").services.steering._at_gate(issue)
    return gate


def approve(world, issue, by="ann", **options):
    result = world.process(by).services.steering.approve(issue, by=by, **options)
    world.clock.sleep(1)
    return result


def passes(world, issue, name="w3"):
    """Whether a worker gets the issue at its gate."""
    why = world.process(name).why(issue)
    return not {"GATE_SHUT", "TEXT_CHANGED"} & set(why)


# By comment


def test_a_comment_opens_the_gate_and_a_worker_moves_it_on(world):
    issue = planned(world)
    assert watch(world) == ()
    comment(world, issue, "/approve")
    assert acts(watch(world)) == [GateAct.OPENED]
    assert passes(world, issue)
    assert acts(watch(world)) == []
    world.process("w3").advance(issue)
    assert world.labels(issue) == {"agent:implement"}


def test_a_rejection_by_comment_sends_it_back_with_its_words(world):
    issue = planned(world)
    comment(world, issue, "/reject say which table")
    (done,) = watch(world)
    assert (done.act, world.labels(issue)) == (GateAct.SENT_BACK, {"agent:implement"})
    assert "rejected by ann: say which table" in done.text
    assert world.cards(issue)[-1].ending.outcome is Outcome.ADVANCED
    assert watch(world) == ()


def test_a_strangers_comment_moves_nothing(world):
    issue = planned(world)
    comment(world, issue, "/approve", "mallory", by_writer=False)
    comment(world, issue, "/reject", "mallory", by_writer=False)
    assert watch(world) == ()
    assert not passes(world, issue)


def test_what_did_not_change_is_not_read_again(world):
    issue = planned(world)
    process = world.process("w2")
    process.services.gatekeeping.watch(HolderId("w2"))
    process.tracker.calls.clear()
    process.services.gatekeeping.watch(HolderId("w2"))
    assert [call.name for call in process.tracker.calls] == ["find"]
    comment(world, issue, "hello")
    process.services.gatekeeping.watch(HolderId("w2"))
    assert "read" in [call.name for call in process.tracker.calls]


# By command


def test_twice_is_once(world):
    issue = planned(world)
    first, second = approve(world, issue), approve(world, issue)
    assert (first, second) == (
        Ruled(first.stage),
        Ruled(first.stage, again=True),
    )
    said = [one for one in world.read(issue).comments if one.body.startswith("<!-- approved")]
    assert len(said) == 1
    assert world.events().count("approved") == 1


def test_what_was_read_is_approved_or_nothing_is(world):
    """A5: the text changed between the look and the yes."""
    issue = planned(world)
    read = gate_of(world, issue).text
    world.tracker.rewrite(issue, "v2")
    now = gate_of(world, issue).text
    assert approve(world, issue, text=read) == TextDiffers(now)
    assert not passes(world, issue)
    assert isinstance(approve(world, issue, text=now), Ruled)
    assert passes(world, issue)


def test_an_edit_of_the_plan_voids_the_approval(world):
    """A1."""
    issue = planned(world)
    approve(world, issue)
    assert passes(world, issue)
    plan = gate_of(world, issue).plan
    body = next(one.body for one in world.read(issue).comments if one.id == plan.comment)
    world.tracker.edit_comment(issue, plan.comment, body.replace("write", "delete"))
    assert not passes(world, issue)
    _, row, _ = world.process("looks").services.board.show(issue)
    assert row.state is RowState.GATED, "B2: the board says the same"
    (listed,) = world.process("looks").services.board.rows()
    assert listed.state is RowState.GATED
    assert world.process("looks").services.board.ready() == ()


def test_an_approval_opens_no_gate_for_the_next_plan(world):
    """A2: approved, sent back by hand with the label still on, planned anew with the same text."""
    issue = planned(world)
    approve(world, issue)
    world.tracker.edit_labels(
        issue, add=("agent:implement",), remove=("agent:plan-pending-approval",), by="ann"
    )
    plan_label = world.labels(issue) & {"agent:plan-approved"}
    assert plan_label
    world.clock.sleep(1)
    process = world.process("w1")
    keeper = process.hold(issue)
    process.services.advancing.advance(keeper, "plan-pending-approval")
    world.clock.sleep(1)
    assert not passes(world, issue)
    assert acts(watch(world)) == [GateAct.SHUT]
    assert world.labels(issue) == {"agent:plan-pending-approval"}


def test_a_label_by_hand_opens_the_gate_after_an_older_approval(world):
    """A3: the text changed since somebody approved it once."""
    issue = planned(world)
    approve(world, issue)
    world.tracker.rewrite(issue, "v2")
    world.clock.sleep(1)
    assert not passes(world, issue)
    label = ("agent:plan-approved",)
    world.tracker.edit_labels(issue, remove=label, by="ann")
    world.clock.sleep(1)
    world.tracker.edit_labels(issue, add=label, by="ann")
    assert passes(world, issue)


def test_a_dry_run_looks(world):
    """A7."""
    issue, elsewhere = planned(world), world.add("agent:implement")
    before = len(world.read(issue).comments)
    assert isinstance(approve(world, issue, dry_run=True), Ruled)
    assert not isinstance(approve(world, elsewhere, dry_run=True), Ruled)
    assert (len(world.read(issue).comments), passes(world, issue)) == (before, False)


def test_a_held_issue_stands_in_the_stage_of_its_lease(world):
    """B1: its label gives way while a lease is held."""
    issue = planned(world)
    approve(world, issue)
    world.process("w3").claimed(issue)
    board = world.process("looks").services.board
    _, row, _ = board.show(issue)
    (listed,) = board.rows()
    assert (row.stage.name, listed.stage.name) == ("plan-pending-approval",) * 2
    assert isinstance(approve(world, issue), Ruled)


def test_a_rejection_carries_its_note_to_the_next_handler(kind):
    world = World(kind, pipeline=with_gate(), patience_s=0.03)
    issue = planned(world)
    found = world.process("ann").services.steering.reject(issue, by="ann", note="too vague")
    assert isinstance(found, Ruled)
    world.clock.sleep(1)
    assert world.process("ann").services.gatekeeping.look(issue, HolderId("ann")).changed
    assert world.labels(issue) == {"agent:implement"}
    process = world.process("w4")
    claimed = process.claimed(issue)
    tries = process.services.leases.standing(claimed.snapshot).tries
    passage = passage_for(claimed.snapshot, tries, claimed.stage, world.pipeline)
    assert (passage.verdict, passage.by, passage.note) == ("rejected", "ann", "too vague")
    assert passage.plan.text == "1. read\n2. write"


def test_after_so_many_rounds_a_person_gets_it(kind):
    world = World(kind, pipeline=with_gate(replans=2), patience_s=0.03)
    issue = planned(world)
    found = []
    for place in range(3):
        comment(world, issue, f"/reject no {place}")
        found += acts(watch(world))
        if world.labels(issue) == {"agent:implement"}:
            plan_again(world, issue, f"plan {place}")
    assert found == [GateAct.SENT_BACK, GateAct.SENT_BACK, GateAct.PARKED]
    assert "needs:human-scope" in world.labels(issue)


@pytest.mark.parametrize(
    ("unanswered", "act", "left"),
    [
        (AfterTimeout.BACK, GateAct.SENT_BACK, "agent:implement"),
        (AfterTimeout.PARK, GateAct.PARKED, "needs:human-scope"),
        (AfterTimeout.STAY, None, "agent:plan-pending-approval"),
    ],
)
def test_a_gate_waits_so_long_and_no_longer(kind, unanswered, act, left):
    gate = {"timeout": timedelta(hours=1), "after_timeout": unanswered}
    world = World(kind, pipeline=with_gate(**gate), patience_s=0.03)
    issue, process = planned(world), world.process("w2")
    world.clock.sleep(3500)
    assert process.services.gatekeeping.watch(HolderId("w2")) == ()
    world.clock.sleep(101)
    done = process.services.gatekeeping.watch(HolderId("w2"))
    assert acts(done) == ([act] if act else [])
    assert left in world.labels(issue)


def test_nobody_who_worked_on_it_approves_it_where_four_eyes_are_wanted(kind):
    pipeline = replace(with_gate(), approval=Approval(four_eyes=True))
    world = World(kind, pipeline=pipeline, patience_s=0.03)
    issue = planned(world, name="w1")
    assert approve(world, issue, by="w1") == NotEntitled("w1", Void.OWN_WORK)
    assert isinstance(approve(world, issue, by="ann"), Ruled)


# Plans


def test_a_plan_of_a_handler_is_part_of_the_text_at_the_gate(world):
    issue = world.add("agent:implement")
    answer = {"next": "plan-pending-approval", "plan": "# Plan"}
    process = world.process("w1", handlers={"implement": lambda _: answer})
    process.services.running.run(process.claimed(issue), StopSignal())
    gate = gate_of(world, issue)
    assert (gate.plan.text, gate.plan.run) == ("# Plan", gate.visit.name)


def test_a_plan_for_a_move_that_is_not_legal_is_not_posted(world):
    issue = world.add("agent:implement")
    process = world.process("w1", handlers={"implement": lambda _: {"next": "no", "plan": "p"}})
    process.services.running.run(process.claimed(issue), StopSignal())
    assert world.cards(issue)[-1].ending.outcome is Outcome.FAILED
    assert not [one for one in world.read(issue).comments if one.body.startswith("<!-- plan")]


def test_a_plan_that_was_edited_after_the_gate_reaches_no_handler(world):
    issue = planned(world)
    approve(world, issue)
    world.process("w3").advance(issue)
    world.clock.sleep(1)
    assert passes(world, issue)
    plan = next(one for one in world.read(issue).comments if one.body.startswith("<!-- plan"))
    world.tracker.edit_comment(issue, plan.id, plan.body.replace("write", "delete"))
    assert world.process("w4").why(issue) == ["TEXT_CHANGED"]
    assert codes_of(world.process("w4").claim(issue)) == {ReasonCode.TEXT_CHANGED}
    approve(world, issue)
    assert passes(world, issue), "a person read it again"


def codes_of(result):
    return {reason.code for reason in result.reasons}


# Crashes


@pytest.mark.parametrize("body", ["/approve", "/reject no"])
def test_killed_at_every_write_it_is_moved_once(kind, body):
    """The worker that acts on the ruling dies after each of its writes; the next one goes on."""
    for last in range(1, 12):
        world = World(kind, pipeline=with_gate(), patience_s=0.03)
        issue = planned(world)
        comment(world, issue, body)
        process = world.process("dies")
        left = {"writes": last}

        def after(call, left=left):
            if call.writes:
                left["writes"] -= 1
                if left["writes"] == 0:
                    raise Crash(call.name)

        process.tracker.after = after
        if process.store is not None:
            process.store.after = after
        try:
            process.services.gatekeeping.watch(HolderId("dies"))
        except Crash:
            pass
        else:
            assert last > 1
            break
        world.clock.sleep(120)
        world.process("w5").sweep()
        world.clock.sleep(120)
        watch(world, "w5")
        world.clock.sleep(120)
        world.process("w5").sweep()
        if body == "/approve":
            assert passes(world, issue)
        else:
            assert world.labels(issue) == {"agent:implement"}
            marks = [one for one in world.read(issue).comments if "<!-- rejected" in one.body]
            assert len(marks) == 1
            moved = [card for card in world.cards(issue) if card.ending and card.ending.next]
            assert [card.ending.next for card in moved] == ["plan-pending-approval", "implement"]
    else:
        raise AssertionError("it never ran to its end")


def test_an_answer_with_a_plan_is_read(kind):
    assert verdict_of({"plan": "p"}) == Advance(None, "", "p")
    assert verdict_of({"plan": "p" * 60_001}).note.startswith("its plan has 60001 characters")
