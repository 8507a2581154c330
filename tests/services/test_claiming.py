"""Claiming: every way it can go is a value, and nobody wins on doubt."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.eligibility import PauseScope, ReasonCode
from dibs.core.errors import Unavailable
from dibs.core.events import Step
from dibs.core.issue import Snapshot
from dibs.core.labels import RemoveLabels
from dibs.core.presets import AGENT
from dibs.services.claiming import Beaten, Claimed, Claiming, ClaimOptions, Doubtful, Refused

from .world import (
    TTL,
    TTL_S,
    Crash,
    World,
    at,
    codes,
    crashing,
    decided_and_not_painted,
    outage,
    pipeline_of,
)

READY = {"stage:ready"}
HELD = {"stage:ready", "stage:processing", "claimed"}


# Winning


def test_a_free_issue_is_won_and_shown(world):
    issue, process = world.add(), world.process()
    result = process.claim(issue)
    assert isinstance(result, Claimed)
    assert world.labels(issue) == HELD
    assert world.states(issue) == [("w1-1", "held")]
    assert result.stage.name == "ready"
    assert result.lease.holder == "w1"
    assert result.lease.ttl == TTL
    assert result.failed_attempts == 0
    assert result.snapshot.issue.labels == HELD
    assert world.events() == ["claimed"]
    assert process.services.leases.mine(world.read(issue), result.lease.run).fence == (
        result.lease.fence
    )


def test_a_winner_counts_its_trust_from_before_it_asked(world):
    issue, process = world.add(), world.process()
    before = world.clock.now()

    def slow(call):
        if call.name in ("acquire", "show"):
            world.clock.advance(3)

    process.leases.before = slow
    assert process.claimed(issue).asked_at == before


def test_the_journal_counts_attempts_from_one(world):
    issue = world.add()
    for attempt in ("1", "2"):
        world.process().fail(issue)
        claimed = [event for event in world.journal.events if event.kind == "claimed"]
        assert claimed[-1].detail["attempt"] == attempt
        world.clock.advance(TTL_S)


def test_another_ttl_may_be_asked_for(world):
    claimed = world.process().claimed(world.add(), ttl=timedelta(hours=2))
    assert claimed.lease.ttl == claimed.terms.ttl == timedelta(hours=2)
    assert claimed.terms.renew_every * 3 <= claimed.terms.ttl


def test_a_finished_issue_is_claimed_again_in_its_next_stage(world):
    issue, process = world.add(), world.process()
    process.advance(issue)
    world.tracker.edit_labels(issue, add=("approved",))
    again = process.claimed(issue)
    assert again.stage.name == "review"
    assert again.failed_attempts == 0


def test_each_grant_on_an_issue_outranks_the_one_before(world):
    issue, process = world.add(), world.process()
    fences = []
    for _ in range(3):
        keeper = process.hold(issue)
        fences.append(keeper.fence)
        process.services.advancing.give_back(keeper)
    assert fences == sorted(set(fences))


def test_the_next_attempt_is_told_how_many_failed(world):
    issue, process = world.add(), world.process()
    process.fail(issue)
    world.clock.advance(31)
    assert process.claimed(issue).failed_attempts == 1


# Losing


def test_a_loser_leaves_nothing_but_its_own_card(world):
    issue = world.add()
    winner = world.process("winner")
    loser = world.process("loser", reached=at(Step.CLAIM_STARTED, lambda: winner.claimed(issue)))
    result = loser.claim(issue)
    assert isinstance(result, Beaten)
    assert result.record.lease.holder == "winner"
    assert world.labels(issue) == HELD
    if world.on_comments:
        assert world.states(issue) == [("winner-1", "held"), ("loser-1", "conceded")]
        own = world.read(issue).comments[-1].id
        assert [call.name for call in loser.tracker.written] == ["comment", "edit_comment"]
        assert loser.tracker.written[-1].args[1] == own
    else:
        assert world.states(issue) == [("winner-1", "held")]
        assert loser.tracker.written == []
    assert world.events() == ["claimed", "claim_lost"]


def test_a_loser_does_not_keep_the_issue_busy_after_the_winner_is_done(world):
    issue = world.add()
    winner, keepers = world.process("winner"), []
    loser = world.process(
        "loser", reached=at(Step.CLAIM_STARTED, lambda: keepers.append(winner.hold(issue)))
    )
    assert isinstance(loser.claim(issue), Beaten)
    winner.services.advancing.give_back(keepers[0])
    assert isinstance(loser.claim(issue), Claimed)


def test_of_two_bids_in_the_same_instant_exactly_one_wins(world):
    issue = world.add()
    second, results = world.process("second"), []
    first = world.process(
        "first", reached=at(Step.CLAIM_BID, lambda: results.append(second.claim(issue, "ready")))
    )
    results.append(first.claim(issue))
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert world.labels(issue) == HELD


def test_a_held_issue_is_refused_before_anything_is_bid(world):
    issue = world.add()
    world.process("winner").claimed(issue)
    late = world.process("late")
    result = late.claim(issue)
    assert isinstance(result, Refused)
    assert codes(result) == ["HELD"]
    assert "winner holds it" in result.reasons[0].text
    assert late.tracker.written == []


def test_an_unconfirmed_bid_keeps_others_off_until_it_expires():
    world = World("comments")
    issue = world.add()
    dying = world.process("dying", reached=crashing(Step.CLAIM_GRANTED))
    with pytest.raises(Crash):
        dying.claim(issue)
    late = world.process("late")
    assert codes(late.claim(issue)) == ["BID_PENDING"]
    world.clock.advance(TTL_S)
    assert isinstance(late.claim(issue), Claimed)


def test_an_expired_lease_may_be_bid_for_at_once(world):
    issue = world.add()
    first = world.process("first").claimed(issue)
    second = world.process("second")
    world.clock.advance(TTL_S - 1)
    assert codes(second.claim(issue)) == ["HELD"]
    world.clock.advance(1)
    claimed = second.claimed(issue)
    assert claimed.lease.fence > first.lease.fence
    assert claimed.failed_attempts == 1, "a holder that vanished has failed"
    assert world.labels(issue) == HELD


def test_an_expired_lease_is_left_alone_during_its_grace(kind):
    world = World(kind, grace=timedelta(seconds=10))
    issue = world.add()
    world.process("first").claimed(issue)
    world.clock.advance(TTL_S + 9)
    assert codes(world.process("second").claim(issue)) == ["IN_GRACE"]
    world.clock.advance(1)
    assert isinstance(world.process("second").claim(issue), Claimed)


# Being refused


def _close(world, issue):
    world.tracker.close(issue)


def _labels(add=(), remove=()):
    return lambda world, issue: world.tracker.edit_labels(issue, add=add, remove=remove)


def _pause(scope):
    return lambda world, issue: world.pauses.pause(scope, repo="", reason="deploy", by="ada")


def _fail(world, issue):
    world.process("failing").fail(issue)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_close, ["CLOSED"]),
        (_labels(remove=("stage:ready",)), ["NO_STAGE"]),
        (_labels(add=("stage:review", "approved")), ["SEVERAL_STAGES"]),
        (_labels(add=("stage:done",), remove=("stage:ready",)), ["FINAL_STAGE"]),
        (_labels(add=("stage:review",), remove=("stage:ready",)), ["GATE_SHUT"]),
        (_labels(add=("paused",)), ["PAUSED"]),
        (_labels(add=("parked",)), ["PARKED"]),
        (_labels(add=("do-not-pickup",)), ["BLOCKED"]),
        (_labels(add=("claimed",)), ["CLAIM_LABEL_ONLY"]),
        (_pause(PauseScope.REPOSITORY), ["REPOSITORY_PAUSED"]),
        (_pause(PauseScope.FLEET), ["FLEET_PAUSED"]),
        (_fail, ["BACKING_OFF"]),
        (_labels(add=("paused", "parked", "do-not-pickup")), ["PAUSED", "PARKED", "BLOCKED"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_a_refusal_gives_every_reason_and_writes_nothing(world, spoil, expected):
    issue, process = world.add(), world.process()
    spoil(world, issue)
    before = world.read(issue)
    result = process.claim(issue)
    assert isinstance(result, Refused)
    assert codes(result) == expected
    assert all(reason.text and reason.remedy for reason in result.reasons)
    assert process.tracker.written == []
    assert world.read(issue).comments == before.comments


def test_a_person_may_overlook_some_reasons_and_not_others(world):
    issue, process = world.add(), world.process()
    process.fail(issue)
    refused = process.claim(issue, overlook=frozenset({ReasonCode.GATE_SHUT}))
    assert codes(refused) == ["BACKING_OFF"]
    assert isinstance(process.claim(issue, overlook=frozenset({ReasonCode.BACKING_OFF})), Claimed)


def test_a_repository_that_is_not_ours_may_be_paused(world):
    world.pauses.pause(PauseScope.REPOSITORY, repo="acme/other", reason="x", by="ada")
    assert isinstance(world.process().claim(world.add()), Claimed)


# Looking again under the lease


def test_a_stage_that_was_finished_meanwhile_is_not_run_again(world):
    """Bull's issue 377: claimable when listed, finished by another, then granted to us."""
    issue = world.add()
    rival = world.process("rival")
    late = world.process("late", reached=at(Step.CLAIM_STARTED, lambda: rival.advance(issue)))
    result = late.claim(issue)
    assert isinstance(result, Refused)
    assert codes(result) == ["GATE_SHUT"]
    assert world.labels(issue) == {"stage:review"}
    assert world.process("other").services.leases.standing(world.read(issue)).live is None


def test_an_issue_that_moved_on_is_not_claimed_for_the_stage_it_left(world):
    issue = world.add()
    rival = world.process("rival")

    def finish_and_approve():
        rival.advance(issue)
        world.tracker.edit_labels(issue, add=("approved",))

    late = world.process("late", reached=at(Step.CLAIM_STARTED, finish_and_approve))
    assert codes(late.claim(issue)) == ["NOT_SERVED"]
    assert world.labels(issue) == {"stage:review", "approved"}
    assert world.process("next").claimed(issue).stage.name == "review"


@pytest.mark.parametrize("label", ["paused", "parked", "do-not-pickup"])
def test_a_veto_that_came_between_the_look_and_the_grant_is_heeded(world, label):
    issue = world.add()
    process = world.process(
        reached=at(Step.CLAIM_STARTED, lambda: world.tracker.edit_labels(issue, add=(label,)))
    )
    assert isinstance(process.claim(issue), Refused)
    assert world.labels(issue) == {"stage:ready", label}
    world.tracker.edit_labels(issue, remove=(label,))
    assert isinstance(world.process("other").claim(issue), Claimed)


@pytest.mark.parametrize("step", [Step.CLAIM_STARTED, Step.CLAIM_GRANTED, Step.CLAIM_JUDGED])
def test_a_text_that_a_stranger_changes_while_it_is_claimed_is_not_worked(world, step):
    """The text that was judged is the text that is handed over, whenever the edit came."""
    issue = world.add()
    edit = at(step, lambda: world.tracker.rewrite(issue, "worse", by="mallory"))
    refused = world.process(reached=edit).claim(issue, "ready")
    assert isinstance(refused, Refused)
    assert codes(refused) == [ReasonCode.TEXT_CHANGED]
    assert refused.after_grant
    assert world.labels(issue) == READY
    assert not isinstance(world.process("w2").claim(issue, "ready"), Claimed)
    world.tracker.rewrite(issue, "better")
    assert isinstance(world.process("w3").claim(issue, "ready"), Claimed)


@pytest.mark.parametrize("step", [Step.CLAIM_GRANTED, Step.CLAIM_JUDGED])
@pytest.mark.parametrize("label", ["paused", "do-not-pickup"])
def test_a_veto_that_came_before_the_grant_was_shown_is_heeded(world, step, label):
    """The confirming edit's reply is read together with the labels: no work is begun."""
    issue = world.add()
    veto = at(step, lambda: world.tracker.edit_labels(issue, add=(label,)))
    result = world.process(reached=veto).claim(issue)
    assert isinstance(result, Refused), "work was begun on an issue that a person took back"
    assert result.after_grant
    assert world.process("other").services.leases.standing(world.read(issue)).live is None


def test_a_refusal_under_the_lease_says_so_and_counts_no_attempt(world):
    issue = world.add()
    veto = at(Step.CLAIM_STARTED, lambda: world.tracker.edit_labels(issue, add=("paused",)))
    refused = world.process(reached=veto).claim(issue)
    assert codes(refused) == ["PAUSED"]
    assert refused.after_grant
    world.tracker.edit_labels(issue, remove=("paused",))
    assert world.process("other").claimed(issue).failed_attempts == 0


# Finishing what a vanished holder left


def crash_at_the_decision(world, issue, finish):
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        finish(dying.services.advancing, keeper)
    assert world.labels(issue) == HELD


def test_an_unpainted_advance_is_rolled_forward_before_the_claim(world):
    issue = world.add()
    crash_at_the_decision(world, issue, lambda advancing, keeper: advancing.advance(keeper))
    result = world.process("next").claim(issue)
    assert codes(result) == ["GATE_SHUT"], "the stage was finished and must not run again"
    assert world.labels(issue) == {"stage:review"}
    assert "rolled_forward" in world.events()


def test_an_unpainted_return_is_rolled_forward_and_the_issue_claimed(world):
    issue = world.add()
    crash_at_the_decision(world, issue, lambda advancing, keeper: advancing.give_back(keeper))
    claimed = world.process("next").claimed(issue)
    assert claimed.failed_attempts == 0, "a return is not a failure"
    assert world.labels(issue) == HELD


def test_a_claimer_that_did_not_look_first_does_not_run_an_unpainted_stage_again(world):
    issue = world.add()
    crash_at_the_decision(world, issue, lambda advancing, keeper: advancing.advance(keeper))
    hasty = world.process("hasty")
    assert not isinstance(hasty.claim(issue, "ready", look_first=False), Claimed)
    assert not isinstance(hasty.claim(issue), Claimed)
    assert world.labels(issue) == {"stage:review"}


def test_a_park_that_was_rolled_forward_is_remembered_when_a_person_resumes_the_issue(kind):
    """The third failure was decided, then the process died; a sweep painted `parked`."""
    world = World(kind, pipeline=pipeline_of(attempts=2))
    issue = world.add()
    world.process("first").fail(issue)
    world.clock.advance(31)
    crash_at_the_decision(world, issue, lambda advancing, keeper: advancing.fail(keeper, "broke"))
    world.process("sweeper").sweep()
    assert world.labels(issue) == {"stage:ready", "parked"}
    person = world.process("person")
    assert person.services.steering.resume_issue(issue, by="ada")
    world.clock.advance(600)
    claimed = world.process("next").claim(issue)
    assert isinstance(claimed, Claimed), "a re-queued issue starts afresh"
    assert claimed.failed_attempts == 0


def test_a_return_that_was_rolled_forward_never_counts_as_a_failure(world):
    issue = world.add()
    crash_at_the_decision(world, issue, lambda advancing, keeper: advancing.give_back(keeper))
    world.process("sweeper").sweep()
    process = world.process("next")
    process.give_back(issue)
    assert process.claimed(issue).failed_attempts == 0


# Outages


def test_an_outage_while_showing_gives_the_grant_back(world):
    issue, process = world.add(), world.process()
    process.tracker.before = outage("edit_labels", "apply", times=1)
    with pytest.raises(Unavailable):
        process.claim(issue)
    assert world.process("other").services.leases.standing(world.read(issue)).live is None
    assert isinstance(world.process("other").claim(issue), Claimed)


def test_an_outage_while_showing_is_not_a_failed_attempt(world):
    issue, process = world.add(), world.process()
    process.tracker.before = outage("edit_labels", "apply", times=1)
    with pytest.raises(Unavailable):
        process.claim(issue)
    claimed = world.process("other").claimed(issue)
    assert claimed.failed_attempts == 0, "the tracker's outage was blamed on the issue"


def test_a_lost_reply_while_showing_gives_the_grant_back(world):
    issue, process = world.add(), world.process()
    process.tracker.after = outage("edit_labels", "apply", times=1)
    with pytest.raises(Unavailable):
        process.claim(issue)
    assert world.process("other").services.leases.standing(world.read(issue)).live is None
    world.clock.advance(TTL_S)
    world.process("sweeper").sweep()
    assert world.labels(issue) == READY
    assert isinstance(world.process("other").claim(issue), Claimed)


def test_an_outage_after_the_grant_keeps_nobody_off_the_issue(kind):
    """Judging again, the winner reads the issue, or who else is at work in the stage."""
    world = World(kind, pipeline=pipeline_of(wip=1))
    issue = world.add()

    def fall_silent():
        process.tracker.before = outage("read", "find", times=1)
        process.leases.before = outage("live", times=1)

    process = world.process(reached=at(Step.CLAIM_GRANTED, fall_silent))
    with pytest.raises(Unavailable):
        process.claim(issue, "ready", look_first=False)
    assert isinstance(world.process("other").claim(issue), Claimed)


@pytest.mark.parametrize("reply", ["comes", "is lost"])
def test_a_loser_whose_labels_came_late_leaves_the_issue_in_its_stage(reply):
    """Before the stage label gives way, the lease is revoked by force and the issue swept.

    Without any label no query would ever find the issue again.
    """
    world = World("trips", pipeline=pipeline_of(AGENT))
    issue = world.add("agent:implement")
    process = world.process()

    def forestall(effect):
        if isinstance(effect, RemoveLabels):
            world.tracker.before = lambda _: None
            [(run, _)] = world.states(issue)
            boss = world.process("boss").services.steering
            boss.revoke(issue, run, by="ada", reason="mine", force=True)
            world.process("sweeper").sweep()
            assert world.labels(issue) == {"agent:implement"}
            if reply == "is lost":
                process.tracker.after = outage("apply", times=1)

    world.tracker.before = forestall
    if reply == "comes":
        assert isinstance(process.claim(issue), Doubtful)
    else:
        with pytest.raises(Unavailable):
            process.claim(issue)
    assert world.labels(issue) == {"agent:implement"}


def test_an_ending_among_comments_that_cannot_all_be_read_is_a_refusal_and_no_outage(world):
    issue = decided_and_not_painted(world)
    world.tracker.comment(issue, "chatter")
    before, started = world.labels(issue), world.clock.passed_s
    blind = world.process("blind")

    def first_page_only(call, answer):
        if call.name != "read":
            return answer
        return Snapshot(answer.issue, answer.comments[:1], answer.now)

    blind.tracker.change = first_page_only
    assert "UNREADABLE" in codes(blind.claim(issue))
    assert world.clock.passed_s == started
    assert world.labels(issue) == before


def test_an_issue_that_cannot_be_read_is_not_claimed(world):
    issue, process = world.add(), world.process()
    process.tracker.before = outage("read")
    with pytest.raises(Unavailable):
        process.claim(issue)
    assert process.tracker.written == []


def test_a_store_that_does_not_answer_leaves_no_trace_on_the_tracker():
    world = World("store")
    issue, process = world.add(), world.process()
    process.store.before = outage("acquire")
    with pytest.raises(Unavailable):
        process.claim(issue)
    assert process.tracker.written == []
    assert world.labels(issue) == READY


def test_a_bid_whose_reply_was_lost_is_found_by_its_run_and_not_posted_twice():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.after = outage("comment", times=1)
    claimed = process.claimed(issue)
    assert world.states(issue) == [("w1-1", "held")]
    assert claimed.lease.card == world.read(issue).comments[0].id
    assert [call.name for call in process.tracker.written].count("comment") == 1


def test_a_bidder_waits_for_its_own_card_to_show():
    """Reads lag for a second, on a tracker that declares no settle: it reads again, not at once."""
    world = World("comments")
    issue, process = world.add(), world.process()

    def lagging(call, answer):
        if call.name != "read":
            return answer
        lag = timedelta(seconds=1)
        seen = tuple(one for one in answer.comments if one.created_at + lag <= answer.now)
        counted = replace(answer.issue, comment_count=len(seen))
        return Snapshot(counted, seen, answer.now)

    process.tracker.change = lagging
    process.claimed(issue)
    assert world.states(issue) == [("w1-1", "held")]


def test_a_bid_that_was_never_posted_is_posted_again():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.before = outage("comment", times=2)
    process.claimed(issue)
    assert world.states(issue) == [("w1-1", "held")]


def test_a_bid_that_cannot_be_posted_is_an_outage_and_not_a_loss():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.before = outage("comment")
    with pytest.raises(Unavailable):
        process.claim(issue)
    assert world.read(issue).comments == ()


def test_a_bidder_that_cannot_read_concedes_in_doubt():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.before = outage("read")
    result = process.claim(issue, "ready", look_first=False)
    assert isinstance(result, Doubtful)
    assert world.states(issue) == [("w1-1", "conceded")]
    assert isinstance(world.process("other").claim(issue), Claimed)


def test_a_bidder_whose_reading_fails_once_reads_again():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.before = outage("read", times=2)
    assert isinstance(process.claim(issue, "ready", look_first=False), Claimed)


# Doubt


def last_page_only(call, answer):
    """A tracker that hands out the newest two comments and says nothing about the rest."""
    if call.name != "read":
        return answer
    return Snapshot(answer.issue, answer.comments[-2:], answer.now, answer.all_pages)


def missing_page(call, answer):
    if call.name != "read":
        return answer
    return Snapshot(answer.issue, answer.comments, answer.now, all_pages=False)


@pytest.mark.parametrize("spoil", [last_page_only, missing_page])
def test_an_incomplete_list_is_never_a_win(world, spoil):
    issue, process = world.add(), world.process()
    for number in range(5):
        world.tracker.comment(issue, f"chatter {number}")
    process.tracker.change = spoil
    looked = process.claim(issue)
    assert codes(looked) == ["UNREADABLE"]
    result = process.claim(issue, "ready", look_first=False)
    if world.on_comments:
        assert isinstance(result, Doubtful)
        assert world.states(issue) == [("w1-1", "conceded")]
    else:
        assert codes(result) == ["UNREADABLE"]
        assert world.states(issue) == []
    assert world.labels(issue) == READY
    assert isinstance(world.process("other").claim(issue), Claimed)


def test_a_truncated_list_that_hides_the_holder_is_never_a_win():
    world = World("comments")
    issue = world.add()
    world.process("holder").claimed(issue)
    for number in range(5):
        world.tracker.comment(issue, f"chatter {number}")
    blind = world.process("blind")
    blind.tracker.change = last_page_only
    assert isinstance(blind.claim(issue, "ready", look_first=False), Doubtful)


def test_a_winner_that_cannot_read_every_comment_after_confirming_has_not_won():
    """The confirming edit's reply is read too: a revoke may have come, a page may be missing."""
    world = World("comments")
    issue = world.add()
    for number in range(5):
        world.tracker.comment(issue, f"chatter {number}")
    process = world.process()

    def hide_after_confirming(call, answer):
        confirmed = any(seen.name == "edit_comment" for seen in process.tracker.calls)
        return last_page_only(call, answer) if confirmed else answer

    process.tracker.change = hide_after_confirming
    try:
        result = process.claim(issue)
    except Unavailable:
        result = None
    assert not isinstance(result, Claimed), "a win was confirmed on an incomplete list"


# Settling


def test_a_bidder_waits_for_the_tracker_to_settle_before_it_believes_its_reading():
    world = World("comments", settle=timedelta(seconds=2))
    issue, process = world.add(), world.process()
    claimed = process.claimed(issue)
    assert world.clock.passed_s >= 2
    assert claimed.asked_at + 2 <= world.clock.now()


def test_within_the_settle_of_the_tracker_two_bidders_cannot_both_win():
    """Every write becomes visible a second and a half late, to its own writer too."""
    world = World("comments", settle=timedelta(seconds=2))
    issue = world.add()
    lag = timedelta(seconds=1.5)

    def lagging(call, answer):
        if call.name != "read":
            return answer
        seen = tuple(c for c in answer.comments if c.created_at + lag <= answer.now)
        return Snapshot(answer.issue, seen, answer.now)

    second, results = world.process("second"), []
    second.tracker.change = lagging

    def meanwhile():
        world.clock.advance(1)
        results.append(second.claim(issue, "ready", look_first=False))

    first = world.process("first", reached=at(Step.CLAIM_BID, meanwhile))
    first.tracker.change = lagging
    results.append(first.claim(issue))
    assert [type(result) for result in results] == [Beaten, Claimed]
    assert world.states(issue) == [("first-1", "held"), ("second-1", "conceded")]


# The WIP limit


def in_flight(world, stage="ready"):
    return len(world.process("counter").services.leases.live(stage))


def test_the_wip_limit_is_kept_and_lifts_when_one_is_done(kind):
    world = World(kind, pipeline=pipeline_of(wip=2))
    issues = [world.add() for _ in range(4)]
    process = world.process()
    keepers = []
    for issue in issues[:2]:
        keepers.append(process.hold(issue))
        world.clock.advance(1)
    refused = process.claim(issues[2])
    assert codes(refused) == ["WIP_LIMIT"]
    assert world.labels(issues[2]) == READY
    assert in_flight(world) == 2
    process.services.advancing.advance(keepers[0])
    world.clock.advance(1)
    assert isinstance(process.claim(issues[2]), Claimed)
    assert codes(process.claim(issues[3])) == ["WIP_LIMIT"]


def test_the_wip_limit_is_kept_among_grants_of_the_same_instant(kind):
    """Timestamps have a grain: two grants may carry the same one, in either order of issues."""
    world = World(kind, pipeline=pipeline_of(wip=1))
    older, newer = world.add(), world.add()
    results = [world.process("a").claim(newer), world.process("b").claim(older)]
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert in_flight(world) == 1


@pytest.mark.parametrize("step", [Step.CLAIM_GRANTED, Step.CLAIM_JUDGED])
def test_the_wip_limit_is_kept_by_two_that_claim_at_once(kind, step):
    """The second bids when the first has the grant, or when the first has already counted."""
    world = World(kind, pipeline=pipeline_of(wip=1))
    mine, theirs = world.add(), world.add()
    results = []

    def meanwhile():
        world.clock.advance(1)
        results.append(world.process("second").claim(theirs))
        world.clock.advance(1)

    first = world.process("first", reached=at(step, meanwhile))
    results.append(first.claim(mine))
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert in_flight(world) == 1


def test_the_wip_limit_is_kept_among_many_claimed_issues_of_another_stage(kind):
    world = World(kind, pipeline=pipeline_of(AGENT, wip=1))
    others = [world.add("agent:pr-open") for _ in range(15)]
    first, second = world.add(), world.add()
    process = world.process()
    for issue in others:
        process.claimed(issue)
        world.clock.advance(0.1)
    process.claimed(first)
    world.clock.advance(0.1)
    assert codes(process.claim(second)) == ["WIP_LIMIT"]


def test_a_refusal_by_the_wip_limit_counts_no_attempt(kind):
    world = World(kind, pipeline=pipeline_of(wip=1))
    first, second = world.add(), world.add()
    process = world.process()
    keeper = process.hold(first)
    world.clock.advance(1)
    for _ in range(4):
        assert codes(process.claim(second)) == ["WIP_LIMIT"]
        world.clock.advance(1)
    process.services.advancing.give_back(keeper)
    assert process.claimed(second).failed_attempts == 0


def test_trust_is_counted_from_before_the_step_that_grants():
    """A process that freezes inside, after the store has read its clock, trusts not longer."""
    world = World("store")
    issue = world.add()
    process = world.process("slow")
    before = world.clock.now()

    @contextmanager
    def frozen():
        world.clock.advance(30)
        yield

    backlog = replace(process.services.backlog, one_step=frozen)
    claimed = Claiming(backlog).claim(issue, None, ClaimOptions(process.holder))
    assert isinstance(claimed, Claimed)
    assert claimed.asked_at == before


def test_a_reply_that_does_not_show_the_new_card_yet_costs_no_claim():
    """Reads may lag: the store has granted, and the card is looked for with the first renewal."""
    world = World("store")
    issue, process = world.add(), world.process()

    def lagging(call, answer):
        if call.name != "read":
            return answer
        return Snapshot(replace(answer.issue, comment_count=0), (), answer.now)

    process.tracker.change = lagging
    claimed = process.claimed(issue)
    assert claimed.lease.card is None
    assert world.states(issue) == [("w1-1", "held")]
