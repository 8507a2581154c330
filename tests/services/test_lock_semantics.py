"""What a lease must mean, one behaviour each. docs/internals/failures.md has the list."""

import itertools
import threading
from datetime import timedelta

import pytest

import dibs
from dibs.core.errors import Damaged, LeaseLost, Outage, Unavailable
from dibs.core.events import Step
from dibs.core.lease import Lost
from dibs.services.claiming import Claimed, Refused
from dibs.services.ending import Finished, FinishRefused

from .test_working import PATIENCE_S, WAIT_S, Handler, make_worker
from .world import (
    BEAT_S,
    TTL_S,
    Crash,
    World,
    at,
    codes,
    crashing,
    outage,
    stage_labels,
)

HELD = {"stage:ready", "stage:processing", "claimed"}
WAITERS = 200


@pytest.fixture
def patient(kind):
    return World(kind, patience_s=PATIENCE_S)


def standing(world, issue):
    return world.process("onlooker").services.leases.standing(world.read(issue))


# Granting


def test_a_grant_whose_reply_was_lost_binds_nobody_longer_than_a_ttl(world):
    """The bidder never learns of it, so it works nothing; others wait for the ttl, no longer."""
    issue, process = world.add(), world.process()
    process.leases.after = outage("acquire", times=1)
    with pytest.raises(Unavailable):
        process.claim(issue)
    assert "claimed" not in world.events()
    assert world.labels(issue) == {"stage:ready"}
    world.clock.advance(TTL_S)
    assert world.process("next").claimed(issue).failed_attempts == 0


def test_a_crowd_that_waits_for_one_issue_costs_its_holder_nothing(world):
    """Two hundred ask again and again: nobody bids in vain, and one of them is next."""
    issue = world.add()
    keeper = world.process("holder").hold(issue)
    crowd = [world.process(f"w{number}") for number in range(WAITERS)]
    for _ in range(3):
        for waiter in crowd:
            assert codes(waiter.claim(issue)) == ["HELD"]
        world.clock.advance(5)
    assert not [call for waiter in crowd for call in waiter.tracker.written]
    assert not [call for waiter in crowd for call in waiter.leases.calls if call.name == "acquire"]
    world.process("holder").services.advancing.give_back(keeper)
    results = [waiter.claim(issue) for waiter in crowd]
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert len(world.cards(issue)) == 2


def test_whoever_asks_again_for_what_it_holds_is_refused(world):
    """A lease is passed on by hand or not at all: a name or a process opens no second door."""
    issue, process = world.add(), world.process("me")
    keeper = process.hold(issue)
    assert codes(process.claim(issue)) == ["HELD"]
    assert not isinstance(process.claim(issue, "ready", look_first=False), Claimed)
    keeper.check()
    with dibs.open(tracker="memory:", holder="me") as backlog:
        inner = backlog.add("nested")
        with backlog.lease(inner) as lease:
            with pytest.raises(dibs.NotGranted), backlog.lease(inner):
                pytest.fail("the same issue was leased twice")
            lease.check()


# Stopping in time


@pytest.mark.parametrize("beats", [0, 1, 2])
@pytest.mark.parametrize("cut_at_s", [0.0, 7.0, BEAT_S - 0.5])
def test_a_holder_that_is_cut_off_stops_before_anybody_else_can_begin(world, beats, cut_at_s):
    issue, process = world.add(), world.process("holder")
    keeper = process.hold(issue)
    for _ in range(beats):
        world.clock.advance(BEAT_S)
        keeper.beat()
    world.clock.advance(cut_at_s)
    calls = ("read", "edit_comment", "edit_labels", "find", "comment", "apply")
    process.tracker.before = outage(*calls)
    if process.store is not None:
        process.store.before = outage("renew", "release", "read", "acquire")
    rival, stopped_at = world.process("rival"), None
    for _ in range(10_000):
        if stopped_at is None and (keeper.beat() is None or keeper.over.is_set()):
            stopped_at = world.clock.passed_s
        if isinstance(rival.claim(issue), Claimed):
            break
        world.clock.advance(0.25)
    assert stopped_at is not None, "another began while the holder still trusted its lease"
    assert stopped_at < world.clock.passed_s
    with pytest.raises(LeaseLost):
        keeper.check()


def test_after_the_loss_no_guarded_write_lands_and_before_it_all_do(world):
    process, landed = world.process(), []
    healthy, doomed = process.hold(world.add()), process.hold(world.add())

    def write(keeper):
        keeper.check()
        landed.append(keeper.issue.key)

    for step in range(10):
        world.clock.advance(BEAT_S)
        healthy.beat()
        doomed.beat()
        if step == 4:
            boss = world.process("boss").services.steering
            boss.revoke(doomed.issue, doomed.run, by="ada", reason="x", force=True)
            doomed.renew_now()
        write(healthy)
        if isinstance(doomed.condition, Lost):
            with pytest.raises(LeaseLost):
                write(doomed)
        else:
            write(doomed)
    assert landed.count(healthy.issue.key) == 10
    assert landed.count(doomed.issue.key) == 4


def test_a_renewal_that_is_under_way_when_the_work_ends_is_waited_for_and_harms_nothing(world):
    """The end of the work must not make a failure of the renewal that it came upon."""
    issue = world.add()
    process = world.process()
    keeper = process.hold(issue)
    world.clock.advance(BEAT_S)
    renewing, go_on, order = threading.Event(), threading.Event(), []

    def before(call):
        if call.name == "renew":
            renewing.set()
            assert go_on.wait(WAIT_S)
        elif call.name == "finish":
            order.append("finishing")

    process.leases.before = before
    process.leases.after = lambda call: order.append("renewed") if call.name == "renew" else None
    results = []
    keeping = threading.Thread(target=keeper.beat)
    ending = threading.Thread(
        target=lambda: results.append(process.services.advancing.advance(keeper))
    )
    keeping.start()
    assert renewing.wait(WAIT_S)
    ending.start()
    ending.join(0.05)  # a chance to go wrong
    assert order == []
    go_on.set()
    for thread in (keeping, ending):
        thread.join(WAIT_S)
    (finished,) = results
    assert isinstance(finished, Finished)
    assert order == ["renewed", "finishing"]
    assert "lease_lost" not in world.events()
    assert world.labels(issue) == {"stage:review"}


# Letting go


def test_a_clean_ending_frees_at_once_and_only_a_vanished_holder_is_given_its_grace(kind):
    world = World(kind, grace=timedelta(seconds=30))
    ended, vanished = world.add(), world.add()
    process = world.process()
    process.give_back(ended)
    process.claimed(vanished)
    assert isinstance(world.process("next").claim(ended), Claimed)
    world.clock.advance(TTL_S)
    assert codes(world.process("next").claim(vanished)) == ["IN_GRACE"]
    world.clock.advance(30)
    assert isinstance(world.process("next").claim(vanished), Claimed)


class Fault:
    """Raises at the n-th call of a process, before or after it took effect."""

    def __init__(self, number, *, after, error=Unavailable):
        self._left, self._after, self._error = number, after, error
        self.struck = False

    def on(self, process):
        wires = [process.tracker, *([process.store] if process.store is not None else [])]
        for wire in wires:
            setattr(wire, "after" if self._after else "before", self._count)

    def _count(self, call):
        self._left -= 1
        if self._left == 0:
            self.struck = True
            raise self._error(f"{call.name} did not answer")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Unavailable, Damaged])
@pytest.mark.parametrize("finish", ["advance", "give_back", "fail", "park"])
def test_a_fault_at_any_call_leaks_nothing_beyond_a_ttl(kind, after, error, finish):
    """Every call of a claim, a renewal and an ending fails once; the error paths clean up."""
    for number in itertools.count(1):
        world = World(kind)
        issue, other = world.add(), world.add()
        neighbour = world.process("neighbour").hold(other)
        process, fault = world.process("unlucky"), Fault(number, after=after, error=error)
        fault.on(process)
        try:
            keeper = process.hold(issue)
            world.clock.advance(BEAT_S)
            keeper.beat()
            getattr(process.services.advancing, finish)(keeper)
        except (Outage, AssertionError):
            assert fault.struck, "only the fault may stop it"
        if not fault.struck:
            assert number > (6 if kind == "trips" else 8), "the whole way was walked"
            return
        world.clock.advance(BEAT_S)
        assert neighbour.beat() is not None, f"call {number} hit another issue's lease"
        world.clock.advance(TTL_S)
        world.process("sweeper").sweep()
        labels = world.labels(issue)
        assert "claimed" not in labels, f"call {number} left the issue claimed"
        assert len(stage_labels(labels, world.pipeline)) == 1
        assert standing(world, issue).live is None


# Taking over


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("grace_s", [0, 10])
@pytest.mark.parametrize("vanished_s", [0.0, 13.0, TTL_S - 1])
def test_a_vanished_holders_issue_is_worked_again_within_ttl_grace_sweep_and_poll(
    kind, seed, grace_s, vanished_s
):
    """The bound that docs/internals/failures.md states, measured from the last sign of life."""
    world = World(kind, patience_s=PATIENCE_S, grace=timedelta(seconds=grace_s))
    issue = world.add()
    world.process("gone").claimed(issue)
    begun = world.clock.passed_s
    world.clock.advance(vanished_s)
    started = []
    handler = Handler(lambda work: started.append(world.clock.passed_s))
    _, worker = make_worker(world, handler)
    worker._dice.seed(seed)
    assert worker.run().outcomes == {"advanced": 1}
    settings = world.settings
    waits_s = settings.sweep.total_seconds() + settings.poll.total_seconds()
    assert 0 <= started[0] - begun - TTL_S - grace_s <= waits_s
    assert handler.seen == [(str(issue), 2)]


def test_a_process_that_is_started_again_under_its_name_holds_nothing(world):
    issue = world.add()
    dying = world.process("w1", reached=crashing(Step.RENEW_STARTED))
    keeper = dying.hold(issue)
    world.clock.advance(BEAT_S)
    with pytest.raises(Crash):
        keeper.beat()
    again = world.process("w1")
    assert codes(again.claim(issue)) == ["HELD"], "the lease was inherited"
    world.clock.advance(TTL_S)
    claimed = again.claimed(issue)
    assert claimed.lease.fence > keeper.fence
    assert claimed.lease.run != keeper.run


# An operator's word


@pytest.mark.parametrize("force", [False, True])
def test_a_revoke_says_who_and_why_in_the_journal_and_on_the_issue(world, force):
    keeper = world.process().hold(world.add())
    boss = world.process("boss").services.steering
    boss.revoke(keeper.issue, keeper.run, by="ada", reason="wrong branch", force=force)
    (event,) = [event for event in world.journal.events if event.kind.value == "revoked"]
    assert (event.run, event.fence) == (keeper.run, keeper.fence)
    assert (event.detail["by"], event.detail["reason"]) == ("ada", "wrong branch")
    assert event.detail.get("force", "") == ("true" if force else "")
    assert "ada" in world.read(keeper.issue).comments[-1].body


def test_after_a_forced_revoke_the_old_holders_next_ending_is_refused(world):
    process = world.process("old")
    keeper = process.hold(world.add())
    boss = world.process("boss").services.steering
    boss.revoke(keeper.issue, keeper.run, by="ada", reason="dead", force=True)
    new = world.process("new").claimed(keeper.issue)
    assert new.lease.fence > keeper.fence
    assert isinstance(process.services.advancing.advance(keeper), FinishRefused)
    assert world.labels(keeper.issue) == HELD


# A store that is gone


def test_while_the_store_cannot_be_reached_no_work_is_begun(patient):
    """Fail closed: there is no mode in which a worker goes on without a lease."""
    world = patient
    issue = world.add()
    handler = Handler(None)
    process, worker = make_worker(world, handler)
    begun = []
    process.leases.before = outage("acquire", times=5)
    process.leases.after = lambda call: begun.append(call.name) if handler.seen else None
    report = worker.run()
    refusals = [call.name for call in process.leases.calls].count("acquire")
    assert refusals == 6, "five failed, the sixth was granted"
    assert report.outcomes == {"advanced": 1}
    assert handler.seen == [(str(issue), 1)]
    assert begun[0] == "finish", "nothing was run before the grant"


def test_an_issue_that_changed_under_the_claim_is_not_worked_in_its_old_state(world):
    """Claimable when it was listed, closed by a person before the grant: looked at again."""
    issue = world.add()
    late = world.process(reached=at(Step.CLAIM_GRANTED, lambda: world.tracker.close(issue)))
    assert isinstance(late.claim(issue, "ready", look_first=False), Refused)
    assert standing(world, issue).live is None
