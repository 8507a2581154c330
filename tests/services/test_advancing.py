"""Ending a lease: the order of the labels, refusals that touch nothing, crashes that converge."""

import itertools
from datetime import timedelta

import pytest

from dibs.core.card import ShownMark, parse_mark
from dibs.core.errors import IllegalMove, Unavailable
from dibs.core.events import Step
from dibs.core.lease import Outcome
from dibs.services.claiming import Claimed, Refused
from dibs.services.ending import Finished, FinishRefused
from dibs.services.keeping import Holding

from .world import (
    BEAT_S,
    STEPWISE,
    TTL_S,
    Crash,
    World,
    crashing,
    outage,
    pipeline_of,
    stage_labels,
)

HELD = {"stage:ready", "stage:processing", "claimed"}


def label_steps(process):
    """Every label that was written, in order: `+added`, `-removed`."""
    return [step for step in written_steps(process) if not step.startswith("card ")]


def written_steps(process):
    """Everything that was written, in order; for a card what it says then."""
    steps = []
    for call in process.tracker.calls:
        if call.name == "edit_comment":
            card = parse_mark(call.args[2])
            steps.append(f"card {card.state.value}{' shown' if card.shown else ''}")
        elif call.name == "edit_labels":
            steps += [f"+{label}" for label in call.kwargs.get("add", ())]
            steps += [f"-{label}" for label in call.kwargs.get("remove", ())]
        elif call.name == "close":
            steps.append("close")
    return steps


# The endings


def test_advancing_moves_the_issue_and_ends_the_lease(world):
    issue, process = world.add(), world.process()
    finished = process.advance(issue)
    assert isinstance(finished, Finished)
    assert finished.outcome is Outcome.ADVANCED
    assert finished.record.painted
    assert world.labels(issue) == {"stage:review"}
    assert world.states(issue) == [("w1-1", "released")]
    (card,) = world.cards(issue)
    assert (card.ending.next, card.shown) == ("review", True)
    assert world.read(issue).issue.comment_count == 1, "one comment for the whole lease"
    assert process.services.leases.live() == ()
    assert world.events() == ["claimed", "advanced"]


def test_an_ending_that_came_before_is_reported_and_not_the_one_asked_for(world):
    """A handler may call `dibs release` itself and exit with 0."""
    issue, process = world.add(), world.process()
    claimed = process.claimed(issue)
    advancing, keep = process.services.advancing, process.services.keep
    advancing.give_back(keep(claimed), "not now")
    late = advancing.advance(keep(claimed))
    assert isinstance(late, Finished)
    assert late.outcome is Outcome.RETURNED
    assert world.labels(issue) == {"stage:ready"}
    assert "advanced" not in world.events()


@pytest.mark.parametrize("kind", STEPWISE)
def test_the_labels_change_in_an_order_that_a_crash_cannot_hurt(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.calls.clear()
    process.services.advancing.advance(keeper)
    assert label_steps(process) == [
        "+stage:review",
        "-stage:ready",
        "-stage:processing",
        "-claimed",
    ]


@pytest.mark.parametrize("kind", STEPWISE)
def test_the_card_says_that_it_is_shown_after_the_stages_labels_and_before_claimed_comes_off(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.calls.clear()
    process.services.advancing.advance(keeper)
    decision = ["card released"] if world.on_comments else []  # a store has its own
    assert written_steps(process) == [
        *decision,
        "+stage:review",
        "-stage:ready",
        "-stage:processing",
        "card released shown",
        "-claimed",
    ]


def test_a_shown_card_still_says_when_the_lease_ended(world):
    """Attempts rest from the decision on, however long the painting took."""
    process = world.process()
    keeper = process.hold(world.add())
    world.clock.advance(5)
    decided_at = world.clock.server_now()
    process.tracker.before = lambda call: world.clock.advance(2 if call.writes else 0)
    if world.on_comments:
        decided_at += timedelta(seconds=2)  # the decision is a write as well
    process.services.advancing.fail(keeper, "it broke")
    (card,) = world.cards(keeper.issue)
    assert (card.shown, card.prev) == (True, decided_at)
    standing = world.process("next").services.leases.standing(world.read(keeper.issue))
    (told,) = (one for one in world.read(keeper.issue).comments if "claim run=" in one.body)
    ended_at = decided_at if world.on_comments else told.updated_at
    assert [attempt.ended_at for attempt in standing.tries] == [ended_at]


@pytest.mark.parametrize("kind", STEPWISE)
def test_the_decision_is_written_before_any_label(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.calls.clear()
    labels_first = []

    def watch(call):
        if call.name == "edit_labels":
            record = process.services.leases.standing(world.read(keeper.issue)).record
            labels_first.append(record.ending is None)

    process.tracker.before = watch
    process.services.advancing.advance(keeper)
    assert labels_first == [False] * 4


def test_an_issue_is_never_seen_without_a_stage(world):
    process, seen = world.process(), []
    process.tracker.after = lambda call: seen.append(
        stage_labels(world.labels(issue), world.pipeline)
    )
    issue = world.add()
    process.advance(issue)
    world.tracker.edit_labels(issue, add=("approved",))
    process.advance(issue, "ready")
    process.give_back(issue)
    process.fail(issue)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("kind", STEPWISE)
def test_the_final_stage_closes_the_issue_before_it_lets_go(world):
    issue, process = world.add("stage:review", "approved"), world.process()
    keeper = process.hold(issue)
    process.tracker.calls.clear()
    process.services.advancing.advance(keeper, "done")
    assert label_steps(process) == [
        "+stage:done",
        "-stage:review",
        "-approved",
        "close",
        "-claimed",
    ]
    assert not world.read(issue).issue.open
    assert world.labels(issue) == {"stage:done"}


def test_an_approval_is_used_up_by_the_move(world):
    issue, process = world.add("stage:review", "approved"), world.process()
    process.advance(issue, "ready")
    process.advance(issue)
    assert codes_of(process.claim(issue)) == ["GATE_SHUT"]


def codes_of(result):
    assert isinstance(result, Refused), result
    return [reason.code.value for reason in result.reasons]


def test_giving_back_leaves_the_issue_where_it_was(world):
    issue, process = world.add(), world.process()
    finished = process.give_back(issue)
    assert finished.outcome is Outcome.RETURNED
    assert world.labels(issue) == {"stage:ready"}
    assert process.claimed(issue).failed_attempts == 0


def test_failures_are_counted_and_the_last_one_parks(kind):
    world = World(kind, pipeline=pipeline_of(attempts=3))
    issue, process = world.add(), world.process()
    outcomes = []
    for _ in range(3):
        outcomes.append(process.fail(issue).outcome)
        world.clock.advance(600)
    assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.PARKED]
    assert world.labels(issue) == {"stage:ready", "parked"}
    assert codes_of(process.claim(issue)) == ["PARKED"]


def test_a_resumed_issue_starts_counting_afresh(kind):
    world = World(kind, pipeline=pipeline_of(attempts=2))
    issue, process = world.add(), world.process()
    for _ in range(2):
        process.fail(issue)
        world.clock.advance(600)
    assert "parked" in world.labels(issue)
    process.services.steering.resume_issue(issue, by="ada")
    assert process.claimed(issue).failed_attempts == 0


def test_each_failure_rests_longer(world):
    issue, process = world.add(), world.process()
    for rest_s in (30, 60):
        process.fail(issue)
        world.clock.advance(rest_s - 1)
        assert codes_of(process.claim(issue)) == ["BACKING_OFF"]
        world.clock.advance(1)


def test_parking_sets_the_issue_aside(world):
    process = world.process()
    keeper = process.hold(world.add())
    assert process.services.advancing.park(keeper, "spent").outcome is Outcome.PARKED
    assert world.labels(keeper.issue) == {"stage:ready", "parked"}


def test_a_note_is_kept_on_the_card_in_one_line(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.services.advancing.fail(keeper, "it broke\nbadly --> <!-- claim -->")
    (card,) = world.cards(keeper.issue)
    assert card.ending.note == "it broke badly --> <!-- claim -->"


def test_a_move_that_the_pipeline_does_not_have_is_refused_before_anything_is_written(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.calls.clear()
    with pytest.raises(IllegalMove):
        process.services.advancing.advance(keeper, "done")
    assert process.tracker.written == []
    assert isinstance(keeper.condition, Holding), "the lease lives on"
    assert isinstance(process.services.advancing.advance(keeper), Finished)


def test_a_person_who_moved_the_issue_meanwhile_has_the_last_word(world):
    process = world.process()
    keeper = process.hold(world.add())
    world.tracker.edit_labels(keeper.issue, add=("stage:done",), remove=("stage:ready",))
    process.services.advancing.advance(keeper)
    assert world.labels(keeper.issue) == {"stage:done"}


def test_labels_of_others_survive_the_whole_journey(world):
    issue, process = world.add("stage:ready", "bug", "area:shop"), world.process()
    process.advance(issue)
    assert world.labels(issue) == {"stage:review", "bug", "area:shop"}


def test_a_stop_asked_for_by_a_person_is_not_a_failure(world):
    process = world.process()
    keeper = process.hold(world.add())
    keeper.ask_to_stop("paused")
    finished = process.services.advancing.fail(keeper, "killed by signal 15")
    assert finished.outcome is Outcome.RETURNED
    assert process.claimed(keeper.issue).failed_attempts == 0


# Refusals


def test_a_holder_whose_trust_is_over_is_refused_and_touches_nothing(world):
    process = world.process()
    keeper = process.hold(world.add())
    before = world.read(keeper.issue)
    process.tracker.calls.clear()
    world.clock.advance(TTL_S)
    refused = process.services.advancing.advance(keeper)
    assert isinstance(refused, FinishRefused)
    assert process.tracker.written == []
    assert world.read(keeper.issue).comments == before.comments
    assert world.events()[-1] == "finish_refused"


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_superseded_holder_cannot_finish_the_new_holders_lease(world):
    process = world.process("old")
    keeper = process.hold(world.add())
    boss = world.process("boss")
    boss.services.steering.revoke(keeper.issue, keeper.run, by="ada", reason="x", force=True)
    world.process("new").claimed(keeper.issue)
    before = world.read(keeper.issue)
    refused = process.services.advancing.advance(keeper)
    assert isinstance(refused, FinishRefused)
    after = world.read(keeper.issue)
    assert (after.issue.labels, after.comments) == (before.issue.labels, before.comments)
    assert not isinstance(keeper.condition, Holding)


@pytest.mark.parametrize("kind", STEPWISE)
def test_an_ending_that_lands_after_the_expiry_does_not_count(world):
    """Trust was not over when it was sent; the request took longer than the lease."""
    process = world.process()
    keeper = process.hold(world.add())

    def slow(call):
        if call.name in ("release", "edit_comment"):
            world.clock.advance(TTL_S)

    (process.store or process.tracker).before = slow
    refused = process.services.advancing.advance(keeper)
    assert isinstance(refused, FinishRefused)
    assert world.labels(keeper.issue) == HELD
    rival = world.process("rival").claimed(keeper.issue)
    assert rival.stage.name == "ready"


def test_nobody_advances_twice(world):
    process = world.process()
    keeper = process.hold(world.add())
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    world.tracker.edit_labels(keeper.issue, add=("approved",))
    world.process("next").claimed(keeper.issue)
    before = world.read(keeper.issue)
    assert isinstance(process.services.advancing.advance(keeper), FinishRefused)
    after = world.read(keeper.issue)
    assert (after.issue.labels, after.comments) == (before.issue.labels, before.comments)


# Outages


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_decision_stands_even_if_its_labels_cannot_be_painted(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.before = outage("edit_labels")
    finished = process.services.advancing.advance(keeper)
    assert isinstance(finished, Finished)
    assert not finished.record.painted
    assert world.labels(keeper.issue) == HELD
    world.process("sweeper").sweep()
    assert world.labels(keeper.issue) == {"stage:review"}


def test_an_ending_whose_reply_was_lost_is_not_decided_twice():
    world = World("comments")
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.after = outage("edit_comment", times=1)
    finished = process.services.advancing.advance(keeper)
    assert isinstance(finished, Finished)
    assert world.labels(keeper.issue) == {"stage:review"}
    edits = [call for call in process.tracker.calls if call.name == "edit_comment"]
    assert len(edits) == 3, "one confirmed the bid, one decided, one says that it is shown"


def test_a_store_that_does_not_answer_leaves_the_picture_alone():
    world = World("store")
    process = world.process()
    keeper = process.hold(world.add())
    process.store.before = outage("release")
    with pytest.raises(Unavailable):
        process.services.advancing.advance(keeper)
    assert world.labels(keeper.issue) == HELD


# Crashes


FINISH_STEPS = [step for step in Step if step.value.startswith("finish.")]
AFTER_THE_DECISION = FINISH_STEPS[FINISH_STEPS.index(Step.FINISH_DECIDED) :]
LABELS_BY_ENDING = {
    "advance": {"stage:review"},
    "give_back": {"stage:ready"},
    "fail": {"stage:ready"},
    "park": {"stage:ready", "parked"},
}


def crash(world, issue, finish, step, occurrence):
    """A process that dies at the step. False if it never came by."""
    dying = world.process("dying", reached=crashing(step, occurrence))
    keeper = dying.hold(issue)
    world.clock.advance(1)
    try:
        getattr(dying.services.advancing, finish)(keeper)
    except Crash:
        return True
    return False


def quiet(world, issue):
    labels = world.labels(issue)
    standing = world.process("onlooker").services.leases.standing(world.read(issue))
    return (
        "claimed" not in labels
        and "stage:processing" not in labels
        and len(stage_labels(labels, world.pipeline)) == 1
        and standing.live is None
        and standing.unpainted is None
    )


@pytest.mark.parametrize("finish", LABELS_BY_ENDING)
@pytest.mark.parametrize("step", FINISH_STEPS)
def test_a_crash_anywhere_in_an_ending_is_completed_or_undone_by_a_sweep(kind, step, finish):
    for occurrence in itertools.count(1):
        world = World(kind)
        issue = world.add()
        if not crash(world, issue, finish, step, occurrence):
            break
        decided = step in AFTER_THE_DECISION
        only_unacknowledged = decided and "claimed" not in world.labels(issue)
        if not decided:
            world.clock.advance(TTL_S)
        sweeper = world.process("sweeper")
        sweeper.sweep()
        expected = LABELS_BY_ENDING[finish] if decided else {"stage:ready"}
        assert world.labels(issue) == expected, f"occurrence {occurrence}"
        # With every label painted there is nothing to see: the next claim acknowledges it.
        assert quiet(world, issue) or only_unacknowledged
        assert sweeper.sweep().changed == ()


@pytest.mark.parametrize("finish", LABELS_BY_ENDING)
@pytest.mark.parametrize("step", FINISH_STEPS)
def test_a_crash_anywhere_in_an_ending_is_completed_or_undone_by_the_next_claim(kind, step, finish):
    for occurrence in itertools.count(1):
        world = World(kind)
        issue = world.add()
        if not crash(world, issue, finish, step, occurrence):
            break
        decided = step in AFTER_THE_DECISION
        if not decided:
            world.clock.advance(TTL_S)
        result = world.process("next").claim(issue)
        if decided and finish != "give_back":
            expected = {"advance": "GATE_SHUT", "fail": "BACKING_OFF", "park": "PARKED"}
            assert codes_of(result) == [expected[finish]]
            if step is Step.FINISH_SHOWN:  # the stage is right; only `claimed` waits for a sweep
                world.process("sweeper").sweep()
            assert world.labels(issue) == LABELS_BY_ENDING[finish]
            assert quiet(world, issue)
        else:
            assert isinstance(result, Claimed), f"occurrence {occurrence}"
            assert result.stage.name == "ready"
            assert world.labels(issue) == HELD


@pytest.mark.parametrize("step", AFTER_THE_DECISION)
def test_a_sweeper_that_dies_while_it_rolls_forward_is_followed_by_another(kind, step):
    for occurrence in itertools.count(1):
        world = World(kind)
        issue = world.add()
        assert crash(world, issue, "advance", Step.FINISH_DECIDED, 1)
        try:
            world.process("dying", reached=crashing(step, occurrence)).sweep()
        except Crash:
            world.process("sweeper").sweep()
        else:
            break
        assert world.labels(issue) == {"stage:review"}, f"occurrence {occurrence}"
        assert codes_of(world.process("next").claim(issue)) == ["GATE_SHUT"]
        assert quiet(world, issue)


@pytest.mark.parametrize("step", [step for step in Step if step.value.startswith("claim.")])
def test_a_crash_anywhere_in_a_claim_frees_the_issue_after_one_ttl(kind, step):
    world = World(kind)
    issue = world.add()
    dying = world.process("dying", reached=crashing(step))
    try:
        dying.claim(issue)
    except Crash:
        crashed = True
    else:
        crashed = False
    assert crashed or (kind, step) == ("store", Step.CLAIM_SETTLED)
    world.clock.advance(TTL_S)
    claimed = world.process("next").claimed(issue)
    assert world.labels(issue) == HELD
    assert claimed.stage.name == "ready"
    assert world.process("other").services.leases.standing(world.read(issue)).live.lease.run == (
        claimed.lease.run
    )


@pytest.mark.parametrize("step", [step for step in Step if step.value.startswith("renew.")])
def test_a_crash_anywhere_in_a_renewal_frees_the_issue_after_one_ttl(kind, step):
    world = World(kind)
    issue = world.add()
    dying = world.process("dying", reached=crashing(step))
    keeper = dying.hold(issue)
    world.clock.advance(BEAT_S)
    with pytest.raises(Crash):
        keeper.beat()
    world.clock.advance(TTL_S)
    assert isinstance(world.process("next").claim(issue), Claimed)


def test_a_person_who_moves_an_issue_back_is_not_undone_by_a_late_acknowledgement(world):
    """All labels were painted, then the process died; a person sends the issue back to ready."""
    issue = world.add()
    assert crash(world, issue, "advance", Step.FINISH_PAINTED, 1)
    assert world.labels(issue) == {"stage:review"}
    world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))
    claimed = world.process("next").claim(issue)
    assert isinstance(claimed, Claimed), "the person's move was undone"
    assert world.labels(issue) == HELD


def die_before(world, issue, wanted):
    """Advance, and die before the first call that `wanted` picks; the decision stands."""
    dying = world.process("dying")
    keeper = dying.hold(issue)

    def fatal(call):
        if wanted(call):
            raise Crash(call.name)

    dying.tracker.before = fatal
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)


def says_shown(call):
    return call.name == "edit_comment" and parse_mark(call.args[2]).shown


def takes_claimed_off(call):
    return call.name == "edit_labels" and call.kwargs.get("remove") == ("claimed",)


def marks_of(world, issue):
    return [type(parse_mark(comment.body)) for comment in world.read(issue).comments]


@pytest.mark.parametrize("claimed", ["still on", "taken off by a bot"])
def test_whoever_paints_for_the_dead_says_so_in_a_comment_and_leaves_their_card_alone(claimed):
    world = World("comments")
    issue = world.add()
    die_before(world, issue, says_shown)
    assert world.labels(issue) == {"stage:review", "claimed"}
    if claimed == "taken off by a bot":
        world.tracker.edit_labels(issue, remove=("claimed",))
    (card,) = world.read(issue).comments
    assert codes_of(world.process("next").claim(issue)) == ["GATE_SHUT"]
    after = world.read(issue).comments
    assert after[0] == card
    assert [parse_mark(comment.body) for comment in after[1:]] == [ShownMark("dying-1")]
    assert quiet(world, issue)
    assert codes_of(world.process("next").claim(issue)) == ["GATE_SHUT"]
    assert len(world.read(issue).comments) == 2, "it is said once"


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_crash_between_the_card_and_claimed_leaves_only_claimed_to_be_taken_off(world):
    issue = world.add()
    die_before(world, issue, takes_claimed_off)
    assert world.labels(issue) == {"stage:review", "claimed"}
    assert world.cards(issue)[0].shown
    before = marks_of(world, issue)
    world.process("sweeper").sweep()
    assert world.labels(issue) == {"stage:review"}
    assert quiet(world, issue)
    assert marks_of(world, issue) == before, "the holder said it already"


def test_a_persons_requeue_of_a_shown_ending_is_respected_by_every_reader(world):
    issue = world.add()
    world.process("first").advance(issue)
    world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))
    world.process("sweeper").sweep()
    list(world.process("checker").services.checking.check(repair=True))
    assert world.labels(issue) == {"stage:ready"}
    assert world.process("next").claimed(issue).stage.name == "ready"


def test_crashed_endings_are_counted_as_what_was_decided(world):
    """One failed, one given back, one failed: two failures, whoever painted them."""
    issue = world.add()
    for finish in ("fail", "give_back", "fail"):
        assert crash(world, issue, finish, Step.FINISH_DECIDED, 1)
        world.process("sweeper").sweep()
        world.clock.advance(120)
    assert world.process("next").claimed(issue).failed_attempts == 2
