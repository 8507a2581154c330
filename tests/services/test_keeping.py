"""Keeping a lease: when to renew, when to stop trusting, and that nothing revives it."""

import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.adapters.system import SystemThreads
from dibs.core.durations import REFUSED, terms_for
from dibs.core.errors import LeaseLost, Unavailable, Unconfirmed
from dibs.core.issue import Snapshot
from dibs.core.lease import Lost, StopAsked
from dibs.services.ending import FinishRefused
from dibs.services.keeping import Holding, Overdue, Supervision

from .world import BEAT_S, TERMS, TRUST_S, TTL_S, World, outage, pipeline_of

WAIT_S = 60.0
"""For what comes at once, on however busy a machine."""


def revoke(world, keeper, **options):
    boss = world.process("boss")
    return boss.services.steering.revoke(
        keeper.issue, keeper.run, by="ada", reason="wrong branch", **{"force": False, **options}
    )


def lost_text(keeper):
    with pytest.raises(LeaseLost) as caught:
        keeper.check()
    return caught.value.why


# Beats


def test_a_beat_before_its_time_renews_nothing_and_says_how_long_to_wait(world):
    process = world.process()
    keeper = process.hold(world.add())
    assert keeper.beat() == pytest.approx(BEAT_S)
    world.clock.advance(7)
    assert keeper.beat() == pytest.approx(BEAT_S - 7)
    assert keeper.lease.beats == 0
    assert not [call for call in process.leases.calls if call.name == "renew"]


def test_a_beat_in_time_renews_and_shows_it_on_the_card(world):
    issue = world.add()
    keeper = world.process().hold(issue)
    for beats in (1, 2, 3):
        world.clock.advance(BEAT_S)
        assert keeper.beat() == pytest.approx(BEAT_S)
        assert keeper.lease.beats == beats
        assert [card.beats for card in world.cards(issue)] == [beats]
    assert world.clock.passed_s == pytest.approx(TTL_S)
    keeper.check()
    assert len(world.read(issue).comments) == 1, "renewing edits the card and posts nothing"


def test_a_kept_lease_outlives_its_first_ttl_many_times_over(world):
    issue = world.add()
    keeper, rival = world.process().hold(issue), world.process("rival")
    while world.clock.passed_s < 10 * TTL_S:
        world.clock.advance(keeper.beat())
        assert rival.why(issue)[0] == "HELD"
        keeper.check()


def test_a_beat_that_comes_late_still_renews_while_the_lease_is_trusted(world):
    keeper = world.process().hold(world.add())
    world.clock.advance(TRUST_S - 0.5)
    assert keeper.beat() == pytest.approx(BEAT_S)
    assert keeper.remaining_s() == pytest.approx(world.trust_s)


def test_the_last_pause_before_trust_ends_is_never_longer_than_trust(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.leases.before = outage("renew")
    world.clock.advance(TRUST_S - 1)
    assert keeper.beat() <= 1


# Trust


def test_trust_ends_a_margin_before_the_lease_does(world):
    keeper = world.process().hold(world.add())
    assert keeper.remaining_s() == pytest.approx(world.trust_s)
    world.clock.advance(world.trust_s - 0.001)
    keeper.check()
    world.clock.advance(0.001)
    assert "not renewed in time" in lost_text(keeper)
    assert keeper.remaining_s() == 0.0
    assert keeper.over.is_set()
    assert keeper.beat() is None
    rival = world.process("rival")
    assert rival.why(keeper.issue)[0] == "HELD", "the store still keeps others out by then"


def test_trust_is_counted_from_before_the_claim_was_sent(world):
    issue, process = world.add(), world.process()

    def slow(call):
        if call.name == "acquire":
            world.clock.advance(10)

    process.leases.before = slow
    keeper = process.hold(issue)
    assert keeper.remaining_s() == pytest.approx(world.trust_s - 10)


def test_trust_is_counted_from_before_the_renewal_was_sent(world):
    process = world.process()
    keeper = process.hold(world.add())
    world.clock.advance(BEAT_S)
    asked_at = world.clock.now()

    def slow(call):
        if call.name == "renew":
            world.clock.advance(9)

    process.leases.after = slow
    keeper.beat()
    assert keeper.trusted_until == pytest.approx(asked_at + world.trust_s)
    assert keeper.remaining_s() == pytest.approx(world.trust_s - 9)


@pytest.mark.parametrize("late_s", [0.0, 1.0, BEAT_S - 1])
def test_a_reply_that_comes_after_trust_has_ended_revives_nothing(world, late_s):
    """Although by its own word, counted from when it was asked for, the lease would go on."""
    process = world.process()
    keeper = process.hold(world.add())
    world.clock.advance(BEAT_S)

    def slow(call):
        if call.name == "renew":
            world.clock.advance(world.trust_s - BEAT_S + late_s)

    process.leases.after = slow
    keeper.beat()
    assert world.clock.passed_s < BEAT_S + world.trust_s, "the renewal itself is not over yet"
    assert isinstance(keeper.condition, Lost)
    process.leases.after = lambda call: None
    assert keeper.beat() is None
    keeper.renew_now()
    assert "not renewed in time" in lost_text(keeper)
    assert [call.name for call in process.leases.calls].count("renew") == 1


def test_a_lost_lease_stays_lost_even_if_the_store_would_still_have_it(world):
    process = world.process()
    keeper = process.hold(world.add())
    keeper.give_up("the disk is full")
    world.clock.advance(BEAT_S)
    assert keeper.beat() is None
    keeper.renew_now()
    assert lost_text(keeper) == "the disk is full"
    assert not [call for call in process.leases.calls if call.name == "renew"]


# Transport errors


def test_transport_errors_are_retried_until_one_gets_through(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.leases.before = outage("renew", times=3)
    world.clock.advance(BEAT_S)
    pauses = []
    while keeper.lease.beats == 0:
        pauses.append(keeper.beat())
        keeper.check()
        world.clock.advance(pauses[-1])
    assert pauses[:3] == [pytest.approx(BEAT_S / 5)] * 3
    assert world.clock.passed_s < TRUST_S + BEAT_S


def test_a_refusal_that_may_be_a_mistake_is_tried_again_as_soon_as_it_may_be_believed():
    terms = terms_for(timedelta(minutes=30))
    world = World("comments", pipeline=pipeline_of(terms=terms))
    process = world.process()
    keeper = process.hold(world.add())
    failures = [Unconfirmed("401, perhaps"), Unavailable("502")]

    def refuse(call):
        if call.name == "renew" and failures:
            raise failures.pop(0)

    process.leases.before = refuse
    world.clock.advance(terms.renew_every.total_seconds())
    pauses = []
    for _ in range(3):
        pauses.append(keeper.beat())
        world.clock.advance(pauses[-1])
    retry_s = terms.renew_every.total_seconds() / 5
    assert pauses[:2] == [pytest.approx(REFUSED.pause_s), pytest.approx(retry_s)]
    assert keeper.lease.beats == 1


def test_transport_errors_end_the_lease_only_when_trust_is_over(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.leases.before = outage("renew")
    last_holding = 0.0
    while (pause := keeper.beat()) is not None:
        last_holding = world.clock.passed_s
        world.clock.advance(pause)
    assert world.clock.passed_s == pytest.approx(world.trust_s, abs=0.1)
    assert TRUST_S - last_holding <= BEAT_S / 5 + 0.1
    assert isinstance(keeper.condition, Lost)


def test_a_tracker_outage_does_not_end_a_lease_that_the_store_renewed():
    world = World("store")
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.before = outage("read", "edit_comment", "edit_labels")
    for _ in range(5):
        world.clock.advance(BEAT_S)
        keeper.beat()
    keeper.check()
    assert keeper.lease.beats == 5


def test_a_tracker_outage_longer_than_trust_ends_a_comment_lease():
    world = World("comments")
    process = world.process()
    keeper = process.hold(world.add())
    process.tracker.before = outage("read", "edit_comment", "edit_labels")
    while (pause := keeper.beat()) is not None:
        world.clock.advance(pause)
    assert isinstance(keeper.condition, Lost)
    assert world.clock.passed_s < TTL_S


def test_a_renewal_whose_reply_was_lost_is_asked_for_again(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.leases.after = outage("renew", times=1)
    world.clock.advance(BEAT_S)
    world.clock.advance(keeper.beat())
    keeper.beat()
    assert keeper.remaining_s() == pytest.approx(world.trust_s)
    keeper.check()


def test_a_renewal_on_an_incomplete_list_extends_no_trust():
    """A renewal that did not look is not a renewal: the page it missed may hold a revoke."""
    world = World("comments")
    issue = world.add()
    process = world.process()
    keeper = process.hold(issue)
    revoke(world, keeper)
    revoked_at = world.clock.passed_s

    def first_page_only(call, answer):
        if call.name != "read":
            return answer
        return Snapshot(answer.issue, answer.comments[:1], answer.now)

    process.tracker.change = first_page_only
    while (pause := keeper.beat()) is not None and world.clock.passed_s < 5 * TTL_S:
        world.clock.advance(pause)
    assert world.clock.passed_s <= revoked_at + TTL_S, (
        "a revoked holder trusted its lease beyond the moment another may bid"
    )


# Definite losses


def test_a_forced_revoke_ends_the_lease_with_the_next_beat(world):
    keeper = world.process().hold(world.add())
    told = []
    keeper.on_lost(told.append)
    revoke(world, keeper, force=True)
    keeper.check()
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, Lost)
    assert keeper.over.is_set()
    assert len(told) == 1
    assert "lease_lost" in world.events()


def test_a_beat_that_finds_the_lease_lost_says_that_it_is_over(world):
    keeper = world.process().hold(world.add())
    revoke(world, keeper, force=True)
    world.clock.advance(BEAT_S)
    assert keeper.beat() is None


def test_a_graceful_revoke_asks_the_holder_to_stop_and_lets_it_finish(world):
    process = world.process()
    keeper = process.hold(world.add())
    revoke(world, keeper)
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, StopAsked)
    assert "wrong branch" in lost_text(keeper)
    assert keeper.over.is_set()
    finished = process.services.advancing.give_back(keeper, "stopped")
    assert finished.outcome == "returned"
    assert world.labels(keeper.issue) == {"stage:ready"}


def test_a_holder_that_was_superseded_learns_it_with_its_next_beat(world):
    issue = world.add()
    keeper = world.process().hold(issue)
    revoke(world, keeper, force=True)
    world.process("next").claimed(issue)
    before = world.read(issue)
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, Lost)
    assert world.labels(issue) == before.issue.labels
    assert world.states(issue)[-1] == ("next-1", "held")


def test_a_superseded_holder_does_not_take_anothers_ending_for_its_own(world):
    """It would report as finished what it never finished."""
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    revoke(world, keeper, force=True)
    world.process("next").give_back(issue)
    refused = process.services.advancing.advance(keeper)
    assert isinstance(refused, FinishRefused)
    assert world.labels(issue) == {"stage:ready"}


def test_a_deleted_card_ends_a_comment_lease():
    world = World("comments")
    issue = world.add()
    keeper = world.process().hold(issue)
    world.tracker._comments[issue].clear()
    world.tracker._issues[issue] = replace(world.tracker._issues[issue], comment_count=0)
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert keeper.condition == Lost("the card was deleted")


def test_an_issue_that_is_deleted_ends_a_comment_lease_and_says_so():
    world = World("comments")
    issue = world.add()
    keeper = world.process().hold(issue)
    del world.tracker._issues[issue], world.tracker._comments[issue]
    world.clock.advance(BEAT_S)
    assert keeper.beat() is None
    assert keeper.condition == Lost(f"the tracker has no issue {issue}")


def test_a_deleted_card_does_not_end_a_lease_of_the_store():
    world = World("store")
    issue = world.add()
    keeper = world.process().hold(issue)
    world.tracker._comments[issue].clear()
    world.tracker._issues[issue] = replace(world.tracker._issues[issue], comment_count=0)
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None
    keeper.check()


def test_watchers_are_told_why_and_only_once(world):
    keeper = world.process().hold(world.add())
    told = []
    keeper.on_lost(told.append)
    keeper.on_lost(told.append)
    keeper.ask_to_stop("a person says so")
    keeper.give_up("and again")
    world.clock.advance(2 * TTL_S)
    assert keeper.beat() is None
    assert told == ["a person says so"] * 2
    assert world.events().count("lease_lost") == 1


# What people do to the issue


@pytest.mark.parametrize("label", ["paused", "parked", "do-not-pickup"])
def test_a_veto_label_stops_the_work_with_the_next_beat(world, label):
    keeper = world.process().hold(world.add())
    world.tracker.edit_labels(keeper.issue, add=(label,))
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, StopAsked)
    assert label in lost_text(keeper)


def test_closing_the_issue_stops_the_work_with_the_next_beat(world):
    keeper = world.process().hold(world.add())
    world.tracker.close(keeper.issue)
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert keeper.condition == StopAsked("the issue was closed")


def test_other_labels_and_comments_do_not_stop_the_work(world):
    keeper = world.process().hold(world.add())
    world.tracker.edit_labels(keeper.issue, add=("bug", "needs-design"))
    world.tracker.comment(keeper.issue, "any news?")
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None
    keeper.check()


@pytest.mark.parametrize(
    "taken", [("claimed",), ("stage:processing",), ("claimed", "stage:processing")]
)
def test_labels_that_somebody_took_off_are_painted_again(world, taken):
    keeper = world.process().hold(world.add())
    world.tracker.edit_labels(keeper.issue, remove=taken)
    world.clock.advance(BEAT_S)
    keeper.beat()
    keeper.check()
    assert world.labels(keeper.issue) == {"stage:ready", "stage:processing", "claimed"}


def test_a_holder_that_cannot_repaint_keeps_its_lease(world):
    process = world.process()
    keeper = process.hold(world.add())
    world.tracker.edit_labels(keeper.issue, remove=("claimed",))
    process.tracker.before = outage("edit_labels")
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None
    keeper.check()


# The absolute cap


def test_a_lease_is_not_held_longer_than_its_absolute_cap(kind):
    terms = terms_for(timedelta(seconds=60), max_hold=timedelta(seconds=150))
    world = World(kind, pipeline=pipeline_of(terms=terms))
    keeper = world.process().hold(world.add())
    while (pause := keeper.beat()) is not None:
        world.clock.advance(pause)
    assert world.clock.passed_s == pytest.approx(150)
    assert isinstance(keeper.condition, Overdue)
    assert "max_hold" in lost_text(keeper)


# ensure


def test_ensure_is_free_while_enough_trust_is_left(world):
    process = world.process()
    keeper = process.hold(world.add())
    keeper.ensure(TRUST_S - 1)
    assert not [call for call in process.leases.calls if call.name == "renew"]


def test_ensure_renews_when_the_step_is_longer_than_what_is_left(world):
    keeper = world.process().hold(world.add())
    world.clock.advance(30)
    assert keeper.remaining_s() < 40
    keeper.ensure(40)
    assert keeper.remaining_s() == pytest.approx(world.trust_s)


def test_ensure_raises_for_a_step_longer_than_any_lease(world):
    keeper = world.process().hold(world.add())
    with pytest.raises(LeaseLost, match="only"):
        keeper.ensure(TRUST_S + 1)
    keeper.check()


def test_ensure_raises_when_the_renewal_does_not_get_through(world):
    process = world.process()
    keeper = process.hold(world.add())
    process.leases.before = outage("renew")
    world.clock.advance(30)
    with pytest.raises(LeaseLost):
        keeper.ensure(40)
    assert isinstance(keeper.condition, Holding), "a failed renewal is not yet a loss"


def test_ensure_raises_when_the_lease_is_lost(world):
    keeper = world.process().hold(world.add())
    revoke(world, keeper, force=True)
    world.clock.advance(30)
    with pytest.raises(LeaseLost):
        keeper.ensure(40)
    world.clock.advance(TTL_S)
    with pytest.raises(LeaseLost):
        keeper.ensure(0)


# Finishing


def test_renewal_stops_before_finishing_begins(world):
    process = world.process()
    keeper = process.hold(world.add())
    keeper.begin_finishing()
    world.clock.advance(BEAT_S)
    keeper.beat()
    keeper.renew_now()
    assert not [call for call in process.leases.calls if call.name == "renew"]


# The thread


def test_supervision_renews_whatever_the_work_is_doing(world):
    keeper = world.process().hold(world.add())
    supervision = Supervision(keeper, world.clock, SystemThreads())
    try:
        for beats in (1, 2, 3):
            world.clock.pass_on(BEAT_S + 0.1)
            assert keeper.lease.beats == beats
        keeper.check()
    finally:
        supervision.stop()
    world.clock.pass_on(BEAT_S + 0.1)
    assert keeper.lease.beats == 3


def test_a_lease_that_nothing_watches_is_not_trusted(world):
    """There was a thread to renew it, and none to notice that its renewals hang."""

    class LastThread(SystemThreads):
        def start(self, work, name):
            if name.startswith("dibs-watch"):
                raise RuntimeError("can't start new thread")
            return super().start(work, name)

    keeper = world.process().hold(world.add())
    supervision = Supervision(keeper, world.clock, LastThread())
    try:
        assert keeper.over.wait(10)
    finally:
        supervision.stop()
    with pytest.raises(LeaseLost, match="watch"):
        keeper.check()


def test_supervision_tells_the_work_when_the_lease_is_lost(world):
    keeper = world.process().hold(world.add())
    supervision = Supervision(keeper, world.clock, SystemThreads())
    revoke(world, keeper, force=True)
    world.clock.pass_on(BEAT_S + 0.1)
    assert keeper.over.is_set()
    supervision.stop()


def test_supervision_tells_the_work_that_trust_is_over_although_a_renewal_hangs(world):
    process = world.process()
    keeper = process.hold(world.add())
    answered = threading.Event()
    process.leases.before = lambda call: answered.wait(WAIT_S) if call.name == "renew" else None
    supervision = Supervision(keeper, world.clock, SystemThreads())
    try:
        world.clock.pass_on(BEAT_S + 0.1)
        assert [call.name for call in process.leases.calls].count("renew") == 1
        world.clock.pass_on(world.trust_s - world.clock.passed_s - 0.001)
        assert not keeper.over.is_set()
        world.clock.pass_on(0.001)
        assert keeper.over.is_set()
        assert "not renewed in time" in lost_text(keeper)
    finally:
        answered.set()
        supervision.stop()
    assert "not renewed in time" in lost_text(keeper), "the late reply revived it"


def test_a_keeper_that_breaks_takes_the_lease_with_it(world):
    process = world.process()
    keeper = process.hold(world.add())

    def broken(call):
        if call.name == "renew":
            raise ZeroDivisionError

    process.leases.before = broken
    supervision = Supervision(keeper, world.clock, SystemThreads())
    world.clock.pass_on(BEAT_S + 0.1)
    assert keeper.over.is_set()
    supervision.stop()
    assert lost_text(keeper) == "its keeper failed"


def test_supervision_can_be_stopped_by_the_thread_it_runs_in(world):
    keeper = world.process().hold(world.add())
    made, stopped = threading.Event(), threading.Event()

    def stop(why):
        assert made.wait(WAIT_S)
        supervision.stop()
        stopped.set()

    keeper.on_lost(stop)
    revoke(world, keeper, force=True)
    world.clock.advance(BEAT_S + 0.1)
    supervision = Supervision(keeper, world.clock, SystemThreads())
    made.set()
    assert stopped.wait(WAIT_S)


# Hints


class Hinted:
    """Hints about issues, which a test gives by hand."""

    every_s = 1.0

    def __init__(self):
        self.waiting = []

    def wake(self, issue=None):
        self.waiting.append(issue)

    def heard(self):
        return self._take(None)

    def about(self, issue):
        hints = Hinted()
        hints.heard = lambda: self._take(issue)
        return hints

    def _take(self, issue):
        heard = issue in self.waiting
        self.waiting = [other for other in self.waiting if other != issue]
        return heard


def hinted(world, name="w1"):
    """A process that hears hints and gives them, as those of one folder do."""
    process = world.process(name)
    process.services.adapters.hints = process.services.adapters.waker = hints = Hinted()
    return process, hints


def say(steering, word, keeper):
    issue, why = keeper.issue, {"by": "ada", "reason": "not now"}
    match word:
        case "pause":
            steering.pause_issue(issue, **why)
        case "label":
            steering.relabel(issue, add=("do-not-pickup",), remove=())
        case _:
            steering.revoke(issue, keeper.run, force=word == "force", **why)


@pytest.mark.parametrize("word", ["pause", "label", "revoke", "force"])
def test_a_persons_word_in_this_folder_stops_the_work_long_before_the_renewal(world, word):
    process, _ = hinted(world)
    keeper = process.hold(world.add())
    supervision = Supervision(keeper, world.clock, SystemThreads())
    try:
        world.clock.pass_on(1.5)
        say(process.services.steering, word, keeper)
        assert not keeper.over.is_set()
        world.clock.pass_on(1.0)
        assert keeper.over.is_set()
    finally:
        supervision.stop()


def test_a_hint_about_another_issue_or_to_idle_workers_costs_a_holder_nothing(world):
    process, hints = hinted(world)
    keeper, other = process.hold(world.add()), world.add()
    supervision = Supervision(keeper, world.clock, SystemThreads())
    try:
        asked = len(process.leases.calls) + len(process.tracker.calls)
        for _ in range(5):
            hints.wake(other)
            hints.wake()
            world.clock.pass_on(1.0)
        assert len(process.leases.calls) + len(process.tracker.calls) == asked
    finally:
        supervision.stop()


def test_a_flood_of_hints_is_a_renewal_now_and_then(world):
    process, hints = hinted(world)
    keeper = process.hold(world.add())
    supervision = Supervision(keeper, world.clock, SystemThreads())
    try:
        for _ in range(10):
            hints.wake(keeper.issue)
            world.clock.pass_on(1.0)
        assert 2 <= keeper.lease.beats <= 5
        keeper.check()
    finally:
        supervision.stop()


def test_a_hint_does_not_shorten_the_wait_after_a_failed_renewal(world):
    process, hints = hinted(world)
    keeper = process.hold(world.add())
    process.leases.before = outage("renew")
    supervision = Supervision(keeper, world.clock, SystemThreads())
    renewals = lambda: [call.name for call in process.leases.calls].count("renew")  # noqa: E731
    try:
        world.clock.pass_on(BEAT_S + 0.1)
        assert renewals() == 1
        hints.wake(keeper.issue)
        world.clock.pass_on(1.0)
        assert renewals() == 1
    finally:
        supervision.stop()


def test_the_terms_of_these_tests_are_coherent():
    assert TRUST_S > 2 * BEAT_S
    assert TERMS.margin.total_seconds() > 0
    with pytest.raises(Unavailable):
        outage("renew")(type("Call", (), {"name": "renew"}))
