"""What went wrong in programs like this one, replayed. docs/internals/failures.md has the list."""

from collections import Counter
from contextlib import suppress

import pytest
from msgspec.structs import replace

from dibs.core.card import Card, CardState, render_card, render_revoke
from dibs.core.events import Step
from dibs.core.ids import HolderId, RunId, StageName
from dibs.core.issue import Snapshot
from dibs.core.lease import Lost, Revocation
from dibs.services.claiming import Beaten, Claimed, Doubtful, Refused
from dibs.services.ending import Finished, FinishRefused
from dibs.services.sweeping import Sweep

from .test_late_wakers import three_worked_stages
from .test_working import PATIENCE_S, Handler, make_worker
from .world import (
    BEAT_S,
    STEPWISE,
    TTL,
    TTL_S,
    Crash,
    World,
    at,
    codes,
    crashing,
    stage_labels,
)

HELD = {"stage:ready", "stage:processing", "claimed"}


def standing(world, issue):
    return world.process("onlooker").services.leases.standing(world.read(issue))


# One login for the whole fleet


def test_two_workers_with_one_login_and_one_name_have_one_winner(world):
    """Is the assignee me? It always is: only the run tells them apart."""
    issue = world.add()
    twin, results = world.process("fleet"), []
    first = world.process(
        "fleet", reached=at(Step.CLAIM_BID, lambda: results.append(twin.claim(issue, "ready")))
    )
    results.append(first.claim(issue))
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert len({comment.author for comment in world.read(issue).comments}) == 1
    assert world.labels(issue) == HELD


def test_an_older_run_of_the_same_name_can_neither_renew_nor_finish(world):
    issue = world.add()
    process = world.process("fleet")
    old = process.hold(issue)
    boss = world.process("boss").services.steering
    boss.revoke(issue, old.run, by="ada", reason="x", force=True)
    new = world.process("fleet").hold(issue)
    before = world.labels(issue)
    assert isinstance(process.services.advancing.advance(old), FinishRefused)
    old.renew_now()
    assert isinstance(old.condition, Lost)
    world.clock.advance(BEAT_S)
    assert new.beat() is not None, "the older run ended the newer one's lease"
    assert world.labels(issue) == before


# Long threads


def test_a_card_behind_five_thousand_comments_still_counts(world):
    issue = world.add()
    for number in range(2500):
        world.tracker.comment(issue, f"chatter {number}")
    keeper = world.process("holder").hold(issue)
    for number in range(2500):
        world.tracker.comment(issue, f"more chatter {number}")
    rival = world.process("rival")
    assert codes(rival.claim(issue)) == ["HELD"]
    assert not isinstance(rival.claim(issue, "ready", look_first=False), Claimed)
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None
    assert world.process("sweeper").sweep().changed == ()
    world.clock.advance(TTL_S)
    assert world.process("next").claimed(issue).failed_attempts == 1


# Strangers


def stranger_says(world, issue, body):
    world.tracker.comment(issue, body, author="mallory", by_writer=False)


def forged(state, run="forged", **changes):
    card = Card(
        run=RunId(run), ttl=TTL, holder=HolderId("mallory"), stage=StageName("ready"), state=state
    )
    return render_card(replace(card, **changes))


def test_a_strangers_card_does_not_block_an_issue(world):
    issue = world.add()
    stranger_says(world, issue, forged(CardState.BID))
    stranger_says(world, issue, forged(CardState.HELD, prev=world.clock.server_now() + TTL))
    assert isinstance(world.process().claim(issue), Claimed)


def test_a_strangers_card_or_revoke_takes_nothing_from_a_holder(world):
    issue, process = world.add(), world.process()
    keeper = process.hold(issue)
    later = world.clock.server_now() + TTL
    stranger_says(world, issue, forged(CardState.HELD, prev=later))
    stranger_says(world, issue, forged(CardState.RELEASED, run=keeper.run, prev=later))
    revoke = Revocation(keeper.run, "mallory", "mine now", force=True)
    stranger_says(world, issue, render_revoke(revoke))
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None, "a stranger ended the lease"
    keeper.check()
    assert codes(world.process("rival").claim(issue)) == ["HELD"], "a stranger freed the issue"
    assert world.process("sweeper").sweep().changed == ()
    assert isinstance(process.services.advancing.advance(keeper), Finished)


# A sweep and the one who comes after


def test_a_lease_that_was_renewed_after_the_sweep_listed_it_is_kept(world):
    issue = world.add()
    keeper = world.process().hold(issue)
    sweeper = world.process("sweeper")
    world.clock.advance(BEAT_S)

    def renew_late(call):
        if call.name == "find":
            keeper.beat()
            world.clock.advance(TTL_S - 1)

    sweeper.tracker.after = renew_late
    assert [entry.action for entry in sweeper.sweep().swept] == [Sweep.LIVE]
    assert sweeper.tracker.written == []


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_sweep_that_is_overtaken_by_a_new_holder_does_not_end_its_lease(world):
    """It read an expired lease, slept, and frees by what it read: the picture, never the lease."""
    issue = world.add()
    world.process("gone").claimed(issue)
    world.clock.advance(TTL_S)
    keepers = []
    sweeper = world.process("sweeper")

    def overtake(call):
        if call.name == "edit_labels" and not keepers:
            keepers.append(world.process("next").hold(issue))

    sweeper.tracker.before = overtake
    sweeper.sweep()
    (keeper,) = keepers
    assert codes(world.process("rival").claim(issue)) == ["HELD"]
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None
    assert world.labels(issue) == HELD, "the next beat shows the lease again"


def test_two_sweeps_that_free_the_same_issue_free_it_once_for_everybody(world):
    issue = world.add()
    world.process("gone").claimed(issue)
    world.clock.advance(TTL_S)
    second = world.process("second")
    first = world.process("first")
    swept = []

    def meanwhile(call):
        if call.name == "edit_labels" and not swept:
            swept.append(second.sweep())

    first.tracker.before = meanwhile
    first.sweep()
    assert world.labels(issue) == {"stage:ready"}
    assert world.process("third").sweep().looked_at == 0
    assert world.process("next").claimed(issue).failed_attempts == 1, "one vanished, one failure"


@pytest.mark.parametrize("kind", STEPWISE)
@pytest.mark.parametrize("way", ["sweep", "fsck"])
def test_a_sweep_that_slept_does_not_hide_an_ending_that_was_decided_meanwhile(world, way):
    """It takes `claimed` off by what it read. What was decided in between is still finished."""
    issue = world.add()
    world.process("gone").claimed(issue)
    world.clock.advance(TTL_S)
    sleeper, died = world.process("sleeper"), []

    def meanwhile(call):
        if call.name == "edit_labels" and not died:
            died.append(decide_and_die(world, issue))

    sleeper.tracker.before = meanwhile
    if way == "sweep":
        sleeper.sweep()
    else:
        found(sleeper, repair=True)
    assert died
    world.process("other").sweep()
    assert not isinstance(world.process("next").claim(issue), Claimed), (
        "a finished stage runs again"
    )
    assert world.labels(issue) == {"stage:review"}


@pytest.mark.parametrize("kind", STEPWISE)
@pytest.mark.parametrize("sleeps_after", [1, 2])
def test_a_painter_that_slept_does_not_hide_an_ending_that_was_decided_meanwhile(
    kind, sleeps_after
):
    """Its own ending was finished by a sweep; the last label that it takes off is another's."""
    world = World(kind, pipeline=three_worked_stages())
    issue, passed, slept = world.add(), [], []

    def reached(step):
        passed.extend([step] if step is Step.FINISH_LABEL_REMOVED else [])
        if len(passed) == sleeps_after and not slept:
            slept.append(step)
            world.process("sweeper").sweep()
            decide_and_die(world, issue, "done")

    world.process("sleeper", reached=reached).advance(issue)
    assert slept
    world.process("other").sweep()
    assert not isinstance(world.process("next").claim(issue), Claimed), (
        "a finished stage runs again"
    )
    assert "stage:done" in world.labels(issue)


def decide_and_die(world, issue, target=None):
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper, target)
    return keeper.run


# Crashes between two writes


WRECKS = [step for step in Step if not step.value.startswith("renew.")]


def wreck(world, step):
    """An issue that a process died on at the step, and a ttl that went by since."""
    issue = world.add()
    dying = world.process("dying", reached=crashing(step))
    with suppress(Crash):
        dying.advance(issue)
    world.clock.advance(TTL_S)
    return issue


def found(process, *, repair):
    return [finding.flaw.code.value for finding in process.services.checking.check(repair=repair)]


@pytest.mark.parametrize("step", WRECKS)
def test_what_a_crash_at_any_step_left_is_mended_by_fsck_and_stays_mended(world, step):
    issue = wreck(world, step)
    mender = world.process("mender")
    found(mender, repair=True)
    assert found(mender, repair=True) == []
    assert len(stage_labels(world.labels(issue), world.pipeline)) == 1
    assert "claimed" not in world.labels(issue)
    assert standing(world, issue).live is None


@pytest.mark.parametrize("step", WRECKS)
def test_a_sweep_and_fsck_leave_the_same_labels_after_any_crash(kind, step):
    """Two ways to recover, one truth: neither undoes what the other did."""
    labels = []
    for order in (("sweep", "fsck"), ("fsck", "sweep")):
        world = World(kind)
        issue = wreck(world, step)
        for way in order:
            if way == "sweep":
                world.process("sweeper").sweep()
            else:
                found(world.process("mender"), repair=True)
            labels.append(world.labels(issue))
    assert len(set(labels)) == 1, labels


# Bots that write the whole list of labels


def test_a_bot_that_sets_the_whole_label_list_costs_the_picture_and_not_the_lease(world):
    issue = world.add()
    process = world.process()
    keeper = process.hold(issue)
    world.tracker.edit_labels(issue, add=("size:S",), remove=tuple(HELD))
    rival = world.process("rival")
    assert not isinstance(rival.claim(issue), Claimed)
    assert not isinstance(rival.claim(issue, "ready", look_first=False), Claimed)
    world.clock.advance(BEAT_S)
    assert keeper.beat() is not None
    assert world.labels(issue) >= {"claimed", "stage:processing", "size:S"}
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert world.labels(issue) == {"stage:review", "size:S"}


# Writes that show up late


def showing_after(readings):
    """A tracker on which a comment takes so many readings to appear to its writer."""
    seen = Counter()

    def change(call, answer):
        if call.name != "read":
            return answer
        for comment in answer.comments:
            seen[comment.id] += 1
        shown = tuple(comment for comment in answer.comments if seen[comment.id] > readings)
        return Snapshot(answer.issue, shown, answer.now)

    return change


def test_a_bid_that_shows_up_late_is_looked_for_again():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.change = showing_after(2)
    assert isinstance(process.claim(issue, "ready", look_first=False), Claimed)


def test_a_bid_that_never_shows_up_is_given_up_after_a_bounded_number_of_readings():
    world = World("comments")
    issue, process = world.add(), world.process()
    process.tracker.change = showing_after(1_000)
    result = process.claim(issue, "ready", look_first=False)
    assert isinstance(result, Doubtful)
    assert "not in the list" in result.why or "comments were readable" in result.why
    assert sum(call.name == "read" for call in process.tracker.calls) <= 5
    assert world.states(issue) == [("w1-1", "conceded")]
    assert world.labels(issue) == {"stage:ready"}


# Events that nobody saw


@pytest.fixture
def patient(kind):
    return World(kind, patience_s=PATIENCE_S)


def test_changes_that_nobody_saw_happen_are_found_from_the_state(patient):
    """A hundred label changes in one second, and no worker up: none is lost, none counts twice."""
    world = patient
    issues = [world.add("backlog") for _ in range(37)]
    for issue in issues:
        for label in ("bug", "stage:ready", "size:S"):
            world.tracker.edit_labels(issue, add=(label,))
        world.tracker.edit_labels(issue, remove=("backlog",))
    handler = Handler(None)
    process, worker = make_worker(world, handler)
    report = worker.run()
    assert report.outcomes == {"advanced": 37}
    assert sorted(handler.seen) == sorted((str(issue), 1) for issue in issues)
    writes = Counter(call.args[0] for call in process.tracker.written)
    assert len(set(writes.values())) == 1, "what an issue costs does not grow with the storm"
    assert all(world.labels(issue) == {"stage:review", "bug", "size:S"} for issue in issues)


# Recovery that needs nobody special


@pytest.mark.parametrize("kind", STEPWISE)
def test_an_issue_whose_every_sweeper_dies_is_still_free_for_whoever_names_it(world):
    issue = world.add()
    world.process("gone").claimed(issue)
    world.clock.advance(TTL_S)
    dying = world.process("sweeper")

    def die(call):
        if call.name == "edit_labels":
            raise Crash

    dying.tracker.before = die
    for _ in range(3):
        with pytest.raises(Crash):
            dying.sweep()
    assert isinstance(world.process("person").claim(issue), Claimed)


def test_a_loser_and_a_refused_one_never_write_on_anothers_card(world):
    """Every write of whoever does not hold the issue is on a comment of its own."""
    issue = world.add()
    holder = world.process("holder")
    late = world.process("late", reached=at(Step.CLAIM_STARTED, lambda: holder.claimed(issue)))
    assert isinstance(late.claim(issue), Beaten)
    assert isinstance(late.claim(issue), Refused)
    own = {
        comment.id
        for comment, card in zip(world.read(issue).comments, world.cards(issue), strict=True)
        if card.run.startswith("late")
    }
    edited = {call.args[1] for call in late.tracker.written if call.name == "edit_comment"}
    assert edited <= own
    assert not [call for call in late.tracker.written if call.name in ("edit_labels", "close")]
