"""Leases in comments on a tracker that takes several effects in one request, one after another.

What is counted here are requests; what is broken is a request in the middle, its reply, or the time
between two of its effects. `dibs_lab.sim` plays the same at random.
"""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.card import ShownMark, parse_mark
from dibs.core.errors import LeaseLost, RateLimited, Unavailable
from dibs.core.events import Step
from dibs.core.ids import later
from dibs.core.issue import Snapshot
from dibs.core.labels import AddLabels, CloseIssue, EditComment, RemoveLabels
from dibs.core.lease import Ending, Outcome, Released
from dibs.core.pipeline import NoGate
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Beaten, Claimed, Doubtful
from dibs.services.ending import Finished, FinishRefused
from dibs.services.keeping import Lost, NotRenewed
from dibs.services.sweeping import Sweep

from .world import (
    BEAT_S,
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

IN_FLIGHT_S = 8.0
HELD = {"stage:ready", "stage:processing", "claimed"}


def worked_stages():
    """ready, review, check, done: each but the last is worked."""
    base = pipeline_of()
    ready, review, done = (replace(stage, gate=NoGate()) for stage in base.stages)
    check = replace(review, name="check", label="stage:check", next=("done",))
    return replace(base, stages=(ready, replace(review, next=("check",)), check, done))


@pytest.fixture
def world():
    return World("trips", pipeline=worked_stages())


@pytest.fixture
def bounded(world):
    """The same, where it is known how long a request may be under way."""
    in_flight = timedelta(seconds=IN_FLIGHT_S)
    world.tracker.traits = replace(world.tracker.traits, in_flight=in_flight)
    return world


def requests(process):
    return [call.name for call in process.tracker.calls]


def stage_of(world, issue):
    return {label for label in world.labels(issue) if label.startswith("stage:")}


# What it says


@pytest.mark.parametrize("kind", ["trips", "comments"])
def test_a_renewal_that_is_sent_again_counts_from_then(kind, monkeypatch):
    """Nobody promises that an edit which changes nothing is one: here it leaves the time as it was.

    The first renewal landed and its reply was lost. The second must not say the very same, or the
    worker trusts the lease for longer than it runs.
    """
    world = World(kind)
    edit = world.tracker.edit_comment

    def unless_it_says_so_already(issue, comment, body):
        known = next(one for one in world.read(issue).comments if one.id == comment)
        return known if known.body == body else edit(issue, comment, body)

    monkeypatch.setattr(world.tracker, "edit_comment", unless_it_says_so_already)
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.after = outage("apply", "edit_comment", times=1)
    world.clock.advance(BEAT_S)
    assert isinstance(keeper.renew_now(), NotRenewed)
    world.clock.advance(BEAT_S / 5)
    assert keeper.renew_now() is None
    assert keeper.lease.expires_at == later(world.clock.server_now(), keeper.lease.ttl)
    shown = process.services.leases.read(keeper.lease.issue)
    assert shown.lease.expires_at == keeper.lease.expires_at


@pytest.mark.parametrize("kind", ["trips", "comments"])
def test_labels_that_are_older_than_the_cards_beside_them_win_nothing(kind, monkeypatch):
    """No reading is one moment. The holder ended in the second of the bid, and painted while the
    bidder read: the labels before that, and the card after it, which says that they are changed.
    """
    world = World(kind, pipeline=worked_stages())
    issue, holder, bidder = world.add(), world.process("a"), world.process("b")
    keeper = holder.hold(issue, stage="ready")
    old, read = world.labels(issue), world.tracker.read
    assert isinstance(holder.services.advancing.advance(keeper), Finished)

    def torn(ref):
        monkeypatch.setattr(world.tracker, "read", read)
        snapshot = read(ref)
        return replace(snapshot, issue=replace(snapshot.issue, labels=old))

    monkeypatch.setattr(world.tracker, "read", torn)
    assert codes(bidder.claim(issue, "ready", look_first=False)) == ["NOT_SERVED"]
    assert world.labels(issue) == {"stage:review"}
    assert [card.ending.outcome.value for card in world.cards(issue)] == ["advanced", "returned"]


@pytest.mark.parametrize("kind", ["trips", "comments"])
@pytest.mark.parametrize(("set_s", "tracker_s"), [(None, 3), (10, 0), (10, 2), (0, 3)])
def test_labels_that_stay_older_than_the_cards_beside_them_win_nothing(
    kind, set_s, tracker_s, monkeypatch
):
    """Where readers lag, the look after the confirmation may show the old labels once more: on a
    tracker that takes no trips, and where a trip's reply is too long. But the cards tell when the
    ending was said to be shown, and until `settle` after that its stage's label proves nothing:
    the tracker's own or the one that is set, whichever is longer.
    """
    world = World(kind, pipeline=worked_stages(), settle=timedelta(seconds=tracker_s))
    if set_s is not None:
        world.settings = replace(world.settings, settle=timedelta(seconds=set_s))
    issue, holder, painter = world.add(), world.process("a"), world.process("c")
    keeper = holder.hold(issue, stage="ready")
    old, read = world.labels(issue), world.tracker.read
    ended = holder.services.leases.release(keeper.lease, Ending(Outcome.ADVANCED, "review"))
    assert isinstance(ended, Released)

    def torn(ref):
        if "stage:review" not in read(ref).issue.labels:  # painted late, while the bid settles
            monkeypatch.setattr(world.tracker, "read", read)
            painter.services.claiming.roll_forward(ended.record)
            monkeypatch.setattr(world.tracker, "read", torn)
        snapshot = read(ref)
        return replace(snapshot, issue=replace(snapshot.issue, labels=old))

    monkeypatch.setattr(world.tracker, "read", torn)
    assert codes(world.process("b").claim(issue, "ready", look_first=False)) == ["NOT_SERVED"]
    monkeypatch.setattr(world.tracker, "read", read)
    assert world.labels(issue) == {"stage:review"}
    assert [card.state.value for card in world.cards(issue)] == ["released", "conceded"]


def test_a_sweep_leaves_labels_alone_that_are_older_than_the_cards_beside_them(world, monkeypatch):
    world.tracker.traits = replace(world.tracker.traits, in_flight=timedelta(seconds=IN_FLIGHT_S))
    issue, holder, sweeper = world.add(), world.process("a"), world.process("b")
    keeper = holder.hold(issue, stage="ready")
    before, read = world.read(issue).issue, world.tracker.read
    found = replace(world.tracker.find(IssueQuery(("claimed",))), issues=(before,))
    assert isinstance(holder.services.advancing.advance(keeper), Finished)

    def torn(ref):
        snapshot = read(ref)
        return replace(snapshot, issue=replace(snapshot.issue, labels=before.labels))

    monkeypatch.setattr(world.tracker, "find", lambda _: found)
    monkeypatch.setattr(world.tracker, "read", torn)
    swept = sweeper.sweep().swept[0]
    assert (swept.action, sweeper.tracker.written) == (Sweep.YOUNG, [])
    world.clock.advance(31)
    swept = sweeper.sweep().swept[0]
    assert swept.action is Sweep.FREED


# What it costs


def test_a_claim_is_three_requests_a_renewal_one_and_an_ending_two(world):
    issue, process = world.add(), world.process()
    keeper = process.hold(issue, stage="ready", look_first=False)
    assert requests(process) == ["comment", "read", "apply"]
    process.tracker.calls.clear()
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert keeper.lease.beats == 1
    assert requests(process) == ["apply"]
    process.tracker.calls.clear()
    finished = process.services.advancing.advance(keeper)
    assert finished.record.painted
    assert requests(process) == ["apply", "apply"]
    assert len(world.read(issue).comments) == 1
    assert world.labels(issue) == {"stage:review"}


def test_a_lost_race_is_three_requests_and_one_comment(world):
    issue = world.add()
    world.process("winner").claimed(issue)
    loser = world.process("loser")
    assert isinstance(loser.claim(issue, "ready", look_first=False), Beaten)
    assert requests(loser) == ["comment", "read", "edit_comment"]


def test_the_close_goes_with_the_labels_and_only_once(world):
    issue = world.add("stage:check")
    process = world.process()
    keeper = process.hold(issue)
    effects = []
    world.tracker.before = effects.append
    process.services.advancing.advance(keeper)
    assert [type(effect) for effect in effects] == [
        EditComment,  # decided, and looked at, before any label is touched
        AddLabels,
        RemoveLabels,
        CloseIssue,
        EditComment,
        RemoveLabels,
    ]
    assert not world.read(issue).issue.open


def test_whoever_paints_for_the_dead_reads_and_makes_one_trip(world):
    issue = world.add()
    holder = world.process("holder", reached=crashing(Step.FINISH_DECIDED))
    keeper = holder.hold(issue)
    with pytest.raises(Crash):
        holder.services.advancing.advance(keeper)
    sweeper = world.process("sweeper")
    sweeper.sweep()
    assert requests(sweeper).count("apply") == 1
    assert world.labels(issue) == {"stage:review"}
    assert isinstance(parse_mark(world.read(issue).comments[-1].body), ShownMark)


# Confirming and renewing


def test_a_confirmation_that_lands_late_wins_nothing_and_its_labels_are_swept(world):
    issue, process = world.add(), world.process()

    def slow(effect):
        if isinstance(effect, EditComment):
            world.clock.advance(TTL_S)

    world.tracker.before = slow
    assert isinstance(process.claim(issue, "ready", look_first=False), Doubtful)
    assert world.labels(issue) == HELD, "they went along with it; they are only the picture"
    world.tracker.before = lambda _: None
    assert [one.action for one in world.process("sweeper").sweep().swept] == [Sweep.FREED]
    assert world.labels(issue) == {"stage:ready"}
    assert isinstance(world.process("next").claim(issue), Claimed)


def test_a_renewal_that_lands_late_is_lost(world):
    process = world.process()
    keeper = process.hold(world.add())
    world.clock.advance(BEAT_S)
    process.tracker.before = lambda call: world.clock.advance(TTL_S if call.name == "apply" else 0)
    keeper.renew_now()
    with pytest.raises(LeaseLost):
        keeper.check()


@pytest.mark.parametrize("pages", [True, False], ids=["stale", "incomplete"])
def test_a_reply_that_does_not_show_the_renewal_renews_nothing(world, pages):
    process = world.process()
    keeper = process.hold(world.add())
    before = world.read(keeper.issue)
    world.clock.advance(BEAT_S)
    process.tracker.change = lambda call, answer: (
        Snapshot(before.issue, before.comments if pages else (), answer.now, all_pages=pages)
        if call.name == "apply"
        else answer
    )
    assert isinstance(keeper.renew_now(), NotRenewed)
    assert keeper.lease.beats == 0
    keeper.check()


def test_a_card_that_is_deleted_is_a_lease_that_is_lost(world):
    process = world.process()
    keeper = process.hold(world.add())
    world.tracker.delete_comment(keeper.issue, keeper.lease.card)
    keeper.renew_now()
    assert isinstance(keeper.condition, Lost)
    other = process.hold(world.add())
    world.tracker.delete_comment(other.issue, other.lease.card)
    assert isinstance(process.services.advancing.advance(other), FinishRefused)
    assert world.labels(other.issue) == HELD


# Deciding


def test_a_decision_that_lands_late_is_lost_and_touches_no_label(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.before = lambda call: world.clock.advance(TTL_S if call.name == "apply" else 0)
    assert isinstance(process.services.advancing.advance(keeper), FinishRefused)
    assert world.labels(keeper.issue) == HELD
    process.tracker.before = lambda _: None
    assert world.process("rival").claimed(keeper.issue).stage.name == "ready"


def test_a_decision_that_a_forced_revoke_forestalled_is_lost_and_touches_no_label(world):
    process, boss = world.process(), world.process("boss")
    keeper = process.hold(world.add())

    def force(call):
        if call.name == "apply":
            process.tracker.before = lambda _: None
            world.clock.advance(1)
            boss.services.steering.revoke(keeper.issue, keeper.run, by="a", reason="b", force=True)
            world.clock.advance(1)

    process.tracker.before = force
    assert isinstance(process.services.advancing.advance(keeper), FinishRefused)
    assert stage_of(world, keeper.issue) == {"stage:ready", "stage:processing"}
    assert world.process("rival").claimed(keeper.issue).stage.name == "ready"


def test_a_superseded_holder_writes_into_its_own_card_and_nothing_else(world):
    old, boss = world.process("old"), world.process("boss")
    keeper = old.hold(world.add())
    world.clock.advance(1)
    boss.services.steering.revoke(keeper.issue, keeper.run, by="a", reason="b", force=True)
    world.clock.advance(1)
    rival = world.process("new").hold(keeper.issue)
    before = world.read(keeper.issue)
    assert isinstance(old.services.advancing.advance(keeper), FinishRefused)
    after = world.read(keeper.issue)
    assert after.issue.labels == before.issue.labels
    assert after.comments[1:] == before.comments[1:]
    assert rival.renew_now() is None
    rival.check()


@pytest.mark.parametrize("lost", ["decision", "incomplete"])
def test_a_decision_whose_reply_proves_nothing_is_looked_up_and_not_written_again(world, lost):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.calls.clear()
    if lost == "decision":
        process.tracker.after = outage("apply", times=1)
    else:
        spoilt = []

        def shorten(call, answer):
            if call.name == "apply" and not spoilt:
                spoilt.append(call)
                return replace(answer, all_pages=False)
            return answer

        process.tracker.change = shorten
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert requests(process) == ["apply", "read", "apply"]
    assert world.labels(keeper.issue) == {"stage:review"}


def test_a_finished_lease_that_is_finished_again_is_looked_at_and_not_touched(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.services.advancing.advance(keeper)
    before = world.read(keeper.issue)
    process.tracker.calls.clear()
    process.services.advancing.advance(keeper)
    assert requests(process) == ["read"]
    assert world.read(keeper.issue).comments == before.comments


# Painting: a request that happens in part

PAINTING = 5
"""Add the next stage, take the old one off, and the working label; say so; let go."""


def counting(strike, *, number):
    """Strike before the n-th effect after the decision, counted from one."""
    seen = []

    def before(effect):
        seen.append(effect)
        if len(seen) == number + 1:  # the decision is a trip of its own
            strike(effect)

    return before


@pytest.mark.parametrize("number", range(1, PAINTING + 1))
def test_whatever_part_of_a_painting_stands_when_everybody_dies_is_finished_by_a_sweep(
    world, number
):
    def die(effect):
        raise Crash(effect)

    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    world.tracker.before = counting(die, number=number)
    with pytest.raises(Crash):
        process.services.advancing.advance(keeper)
    world.tracker.before = lambda _: None
    sweeper = world.process("sweeper")
    sweeper.sweep()
    assert world.labels(issue) == {"stage:review"}
    assert sweeper.sweep().looked_at == 0
    following = world.process("next").claimed(issue)
    assert following.stage.name == "review", "the finished stage was run again"


@pytest.mark.parametrize("number", range(1, PAINTING + 1))
def test_an_effect_that_fails_while_those_after_it_happen_is_done_by_its_painter(world, number):
    def fail(effect):
        raise Unavailable(f"{effect} failed")

    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    world.tracker.before = counting(fail, number=number)
    finished = process.services.advancing.advance(keeper)
    assert finished.record.painted
    assert world.labels(issue) == {"stage:review"}
    (card,) = world.cards(issue)
    assert card.shown
    assert len(world.read(issue).comments) == 1


@pytest.mark.parametrize("number", range(1, PAINTING))
def test_the_same_for_whoever_paints_for_another_and_says_so_once(world, number):
    issue = world.add()
    holder = world.process("holder", reached=crashing(Step.FINISH_DECIDED))
    keeper = holder.hold(issue)
    with pytest.raises(Crash):
        holder.services.advancing.advance(keeper)
    failed = []

    def fail(effect):
        failed.append(effect)
        if len(failed) == number:
            raise Unavailable(f"{effect} failed")

    world.tracker.before = fail
    world.process("sweeper").sweep()
    assert world.labels(issue) == {"stage:review"}
    marks = [parse_mark(one.body) for one in world.read(issue).comments]
    assert sum(isinstance(mark, ShownMark) for mark in marks) == 1


def test_without_trips_a_painting_that_fails_is_left_to_the_next_painter():
    """Nobody sleeps over it: the store knows that the ending is not painted."""
    world = World("store")
    issue, painter = world.add(), world.process("painter")
    holder = world.process("holder", reached=crashing(Step.FINISH_DECIDED))
    with pytest.raises(Crash):
        holder.services.advancing.advance(holder.hold(issue))
    record, began = painter.store.read(issue), world.clock.now()
    painter.tracker.before = outage("edit_labels", times=1)
    with pytest.raises(Unavailable):
        painter.services.claiming.roll_forward(record)
    assert world.clock.now() == began
    painter.services.claiming.roll_forward(record)
    assert world.labels(issue) == {"stage:review"}


def test_a_painting_whose_reply_was_lost_is_looked_at_and_not_done_again(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.calls.clear()
    process.tracker.after = outage("apply", times=1, skip=1)
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert requests(process) == ["apply", "apply", "read"]
    assert world.labels(keeper.issue) == {"stage:review"}


def test_labels_that_a_bot_wrote_back_in_the_middle_of_it_are_painted_again(world):
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    old = world.labels(issue)

    def write_back(_):
        now = world.labels(issue)
        world.tracker.edit_labels(issue, add=tuple(old - now), remove=tuple(now - old))

    world.tracker.before = counting(write_back, number=4)
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert stage_of(world, issue) == {"stage:review"}
    assert world.process("next").claimed(issue).stage.name == "review"


def test_a_card_that_is_deleted_while_its_ending_is_painted_breaks_nothing(world):
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    world.tracker.before = counting(
        lambda _: world.tracker.delete_comment(issue, keeper.lease.card), number=2
    )
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert world.labels(issue) == {"stage:review"}


# Painters that wake up late


def moved_on(world, issue):
    """Somebody paints for the sleeper, and two others take the issue further."""
    world.process("sweeper").sweep()
    world.process("second").advance(issue)
    third = world.process("third")
    return third, third.hold(issue)


@pytest.mark.parametrize("number", range(1, PAINTING + 1))
def test_a_painter_that_wakes_up_two_stages_later_puts_right_what_it_painted(world, number):
    issue, late = world.add(), world.process("late")
    keeper, holding = late.hold(issue), []

    def sleep(_):
        world.tracker.before = lambda _: None
        holding.append(moved_on(world, issue))

    world.tracker.before = counting(sleep, number=number)
    late.services.advancing.advance(keeper)
    third, held = holding[0]
    assert stage_of(world, issue) == {"stage:check"}
    third.services.advancing.advance(held)
    assert world.labels(issue) == {"stage:done"}


def test_the_same_if_the_server_died_after_its_first_label(world):
    issue, late = world.add(), world.process("late")
    keeper, seen = late.hold(issue), []

    def sleep_and_be_cut(effect):
        seen.append(effect)
        if len(seen) == 2:
            others = world.tracker.before
            world.tracker.before = lambda _: None
            moved_on(world, issue)
            world.tracker.before = others
        elif 2 < len(seen) <= PAINTING + 1:
            raise Unavailable("502")

    world.tracker.before = sleep_and_be_cut
    late.services.advancing.advance(keeper)
    assert stage_of(world, issue) == {"stage:check"}


def test_a_painting_whose_reply_lacks_a_page_is_looked_at_by_a_painter_that_was_late(world):
    """The page that is missing is the one on which somebody else had said that it is shown."""
    issue, late = world.add(), world.process("late")
    keeper, holding = late.hold(issue), []

    def sleep(_):
        world.tracker.before = lambda _: None
        holding.append(moved_on(world, issue))
        lacking = [late]

        def first_page_only(call, answer):
            if call.name != "apply" or not lacking:
                return answer
            lacking.pop()
            return replace(answer, comments=answer.comments[:1])

        late.tracker.change = first_page_only

    world.tracker.before = counting(sleep, number=1)
    late.services.advancing.advance(keeper)
    assert stage_of(world, issue) == {"stage:check"}


def test_whoever_slept_since_its_decision_looks_again_before_it_paints(world):
    issue = world.add()

    def meanwhile():
        world.clock.advance(60)
        world.process("sweeper").sweep()
        world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))

    late = world.process("late", reached=at(Step.FINISH_DECIDED, meanwhile))
    assert isinstance(late.advance(issue), Finished)
    assert world.labels(issue) == {"stage:ready"}, "what a person put back stays"


# Requests that are still under way when their sender has given up


def lose_the_next_renewal(world, keeper, process):
    process.tracker.after = outage("apply", "edit_comment", times=1)
    world.clock.advance(BEAT_S)
    assert isinstance(keeper.renew_now(), NotRenewed)


def test_an_ending_waits_for_a_renewal_that_may_still_be_under_way(bounded):
    process = bounded.process()
    keeper = process.hold(bounded.add())
    lose_the_next_renewal(bounded, keeper, process)
    asked_s = bounded.clock.passed_s
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert bounded.clock.passed_s - asked_s == pytest.approx(IN_FLIGHT_S)


def test_nobody_waits_where_nobody_knows_how_long(world):
    process = world.process()
    keeper = process.hold(world.add())
    lose_the_next_renewal(world, keeper, process)
    asked_s = world.clock.passed_s
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert world.clock.passed_s == asked_s


def test_nobody_waits_where_a_lease_is_too_short_for_it(bounded):
    in_flight = timedelta(seconds=31)
    bounded.tracker.traits = replace(bounded.tracker.traits, in_flight=in_flight)
    process = bounded.process()
    keeper = process.hold(bounded.add())
    lose_the_next_renewal(bounded, keeper, process)
    asked_s = bounded.clock.passed_s
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert bounded.clock.passed_s == asked_s


def test_nobody_waits_to_give_an_issue_back(bounded):
    """An ending that is erased then costs a ttl, and nothing is run twice."""
    process = bounded.process()
    keeper = process.hold(bounded.add())
    lose_the_next_renewal(bounded, keeper, process)
    asked_s = bounded.clock.passed_s
    assert isinstance(process.services.advancing.give_back(keeper), Finished)
    assert bounded.clock.passed_s == asked_s


def test_a_lease_that_does_not_last_so_long_is_renewed_before_it_is_ended(bounded):
    in_flight = timedelta(seconds=30)
    bounded.tracker.traits = replace(bounded.tracker.traits, in_flight=in_flight)
    process = bounded.process()
    keeper = process.hold(bounded.add())
    lose_the_next_renewal(bounded, keeper, process)
    bounded.clock.advance(10)
    process.tracker.after = outage("apply", times=1)
    assert isinstance(keeper.renew_now(), NotRenewed)
    with pytest.raises(Unavailable, match="may still take effect"):
        process.services.advancing.advance(keeper)
    assert keeper.renew_now() is None, "it is held, and may be renewed"
    assert keeper.lease.beats == 1
    assert isinstance(process.services.advancing.advance(keeper), Finished)


def test_an_ending_in_doubt_is_not_renewed_over_and_not_given_up(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.before = outage("apply", "read")
    with pytest.raises(Unavailable):
        process.services.advancing.advance(keeper)
    process.tracker.before = lambda _: None
    world.clock.advance(BEAT_S)
    assert isinstance(keeper.renew_now(), NotRenewed)
    keeper.check()
    assert isinstance(process.services.advancing.advance(keeper), Finished)


def test_an_ending_that_was_refused_for_now_may_be_renewed_over(world):
    process = world.process()
    keeper = process.hold(world.add())

    def limit(call):
        if call.name == "apply":
            raise RateLimited("slow down", retry_after_s=9)

    process.tracker.before = limit
    with pytest.raises(RateLimited):
        process.services.advancing.advance(keeper)
    process.tracker.before = lambda _: None
    world.clock.advance(BEAT_S)
    assert keeper.renew_now() is None
    assert keeper.lease.beats == 1
    assert isinstance(process.services.advancing.advance(keeper), Finished)


def test_a_refusal_for_now_does_not_settle_what_became_of_the_ending_before_it(world):
    process = world.process()
    keeper = process.hold(world.add())
    struck = []

    def lose_then_limit(call):
        if call.name == "apply":
            struck.append(call)
            if len(struck) == 1:
                raise Unavailable("no answer")
            if len(struck) == 2:
                raise RateLimited("slow down", retry_after_s=9)

    process.tracker.before = lose_then_limit
    with pytest.raises(RateLimited):
        process.services.advancing.advance(keeper)
    world.clock.advance(BEAT_S)
    assert isinstance(keeper.renew_now(), NotRenewed), "the first may have landed meanwhile"
    assert isinstance(process.services.advancing.advance(keeper), Finished)


def test_an_ending_that_might_land_after_its_lease_is_over_is_not_sent_again(bounded):
    """The second one would count, and the first would undo it when it comes."""
    process = bounded.process()
    keeper = process.hold(bounded.add())
    bounded.clock.advance(TTL_S - IN_FLIGHT_S + 1)
    process.tracker.before = outage("apply", times=1)
    process.tracker.calls.clear()
    with pytest.raises(Unavailable):
        process.services.advancing.advance(keeper)
    assert requests(process).count("apply") == 1
    assert [state for _, state in bounded.states(keeper.issue)] == ["held"]


# Endings that are being painted


def test_others_leave_an_ending_alone_that_is_most_likely_being_painted(bounded):
    issue = decided_and_not_painted(bounded)
    assert [one.action for one in bounded.process("sweeper").sweep().swept] == [Sweep.YOUNG]
    assert codes(bounded.process("next").claim(issue)) == ["UNPAINTED"]
    assert len(bounded.read(issue).comments) == 1
    bounded.clock.advance(IN_FLIGHT_S)
    sweeper = bounded.process("sweeper")
    assert [one.action for one in sweeper.sweep().swept] == [Sweep.ROLLED_FORWARD]
    assert bounded.process("next").claimed(issue).stage.name == "review"


def test_so_does_whoever_lost_to_it(bounded, monkeypatch):
    """It bid while the issue was held, and read it when the ending was decided. It asks no more."""
    issue, holder, bidder = bounded.add(), bounded.process("a"), bounded.process("b")
    keeper, read = holder.hold(issue), bounded.tracker.read

    def decided_meanwhile(ref):
        monkeypatch.setattr(bounded.tracker, "read", read)
        bounded.clock.advance(1)
        holder.services.leases.release(keeper.lease, Ending(Outcome.ADVANCED, "review"))
        return read(ref)

    monkeypatch.setattr(bounded.tracker, "read", decided_meanwhile)
    bidder.tracker.calls.clear()
    beaten = bidder.claim(issue, "ready", look_first=False)
    assert isinstance(beaten, Beaten)
    assert beaten.record.unpainted
    assert requests(bidder) == ["comment", "read", "edit_comment"]
    bounded.clock.advance(IN_FLIGHT_S)
    assert bounded.process("next").claimed(issue).stage.name == "review"


def test_where_nothing_lags_it_is_painted_at_once(world):
    issue = decided_and_not_painted(world)
    assert world.process("next").claimed(issue).stage.name == "review"
