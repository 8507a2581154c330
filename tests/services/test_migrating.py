"""Leases move to another store under a running fleet: never two granters, fences go on rising."""

from copy import copy
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.errors import CannotMove, GrantedElsewhere
from dibs.core.events import Step
from dibs.core.granter import Appointed, Moving
from dibs.core.ids import Fence, HolderId
from dibs.core.issue import Snapshot
from dibs.named.holds import HoldWish
from dibs.services.claiming import Claimed, Refused
from dibs.services.migrating import Draining, GaveUp, Moved

from .world import STEPWISE, TTL_S, Crash, World, at, crashing, decided_and_not_painted

NAMES = {"store": "auto", "comments": "comments"}


@pytest.fixture(params=STEPWISE)
def here(request):
    return World(request.param)


@pytest.fixture
def there(here):
    return here.on_other_leases()


def migrate(here, there, *, patience_s=3600.0):
    origin = here.process("mover").services
    return origin.migrating.migrate(NAMES[here.kind], NAMES[there.kind], patience_s=patience_s)


def codes(refused):
    assert isinstance(refused, Refused)
    return [reason.code for reason in refused.reasons]


def test_the_first_store_that_grants_is_appointed_and_no_other_grants(here, there):
    one, two = here.add(), here.add()
    assert isinstance(here.process().claim(one), Claimed)
    assert here.granters.granter() == Appointed(NAMES[here.kind])
    assert codes(there.process("w2").claim(two)) == ["GRANTED_ELSEWHERE"]
    assert there.process("w2").services.sweeping.sweep().looked_at == 0


def test_a_sweeper_set_up_for_another_store_frees_nothing(here, there):
    issue = here.add()
    here.process().claimed(issue)
    here.clock.advance(TTL_S / 2)
    assert there.process("w2").services.sweeping.sweep().changed == ()
    assert "claimed" in here.labels(issue)


def test_running_work_is_waited_for_and_fences_go_on_rising(here, there):
    held, free = here.add(), here.add()
    worker, later = here.process(), there.process("w2")
    keeper = worker.hold(held)
    moving = migrate(here, there)
    first = next(moving)
    assert first == Draining((str(held),))
    assert isinstance(here.granters.granter(), Moving)
    assert codes(worker.claim(free)) == ["GRANTED_ELSEWHERE"]
    assert codes(later.claim(free)) == ["GRANTED_ELSEWHERE"]
    keeper.renew_now()
    keeper.check()
    worker.services.advancing.give_back(keeper)
    last = list(moving)[-1]
    assert isinstance(last, Moved)
    assert last.granter.store == NAMES[there.kind]
    assert codes(worker.claim(free)) == ["GRANTED_ELSEWHERE"]
    fresh = later.claimed(held)
    assert fresh.lease.fence > keeper.fence
    assert later.claimed(free).lease.fence > keeper.fence


def test_there_and_back_and_there_again(here, there):
    issue, fences = here.add(), []
    for start, goal in ((here, there), (there, here)) * 3:
        worker = start.process("w")
        keeper = worker.hold(issue)
        fences.append(keeper.fence)
        worker.services.advancing.give_back(keeper)
        assert isinstance(list(migrate(start, goal))[-1], Moved)
    assert fences == sorted(set(fences)), fences


def test_a_worker_that_slept_between_its_grant_and_its_look_gives_the_grant_back(here, there):
    """The mover came by while it slept: the grant is either seen there or given back here."""
    issue = here.add()
    told = []

    def move():
        told.extend(migrate(here, there, patience_s=0.0))
        here.granters.appoint(
            Moving(NAMES[here.kind], NAMES[there.kind]), instead_of=here.granters.granter()
        )

    sleeper = here.process("sleeper", reached=at(Step.CLAIM_GRANTED, move))
    assert codes(sleeper.claim(issue)) == ["GRANTED_ELSEWHERE"]
    assert [type(progress) for progress in told] == [GaveUp], "the mover saw the grant"


def test_a_dead_holder_is_waited_for_until_its_lease_is_over(here, there):
    here.process().claimed(here.add())
    started = here.clock.passed_s
    assert isinstance(list(migrate(here, there))[-1], Moved)
    assert TTL_S <= here.clock.passed_s - started <= TTL_S + 5


def test_an_ending_that_nobody_painted_is_painted_before_the_move(here, there):
    issue = here.add()
    worker = here.process(reached=crashing(Step.FINISH_DECIDED))
    keeper = worker.hold(issue)
    with pytest.raises(Crash):
        worker.services.advancing.advance(keeper)
    assert "stage:review" not in here.labels(issue)
    assert isinstance(list(migrate(here, there))[-1], Moved)
    assert "stage:review" in here.labels(issue)


def test_it_is_called_off_when_it_takes_too_long_and_the_origin_grants_again(here, there):
    held, free = here.add(), here.add()
    worker = here.process()
    worker.claimed(held)
    last = list(migrate(here, there, patience_s=5.0))[-1]
    assert last == GaveUp((str(held),))
    assert isinstance(worker.claim(free), Claimed)


def test_an_interrupted_mover_lets_the_origin_go_on(here, there):
    held, free = here.add(), here.add()
    worker = here.process()
    worker.claimed(held)
    moving = migrate(here, there)
    next(moving)
    moving.close()
    assert isinstance(worker.claim(free), Claimed)


def test_a_killed_mover_is_taken_up_where_it_was(here, there):
    here.process().claimed(here.add())
    here.granters.appoint(
        Moving(NAMES[here.kind], NAMES[there.kind]), instead_of=here.granters.granter()
    )
    assert isinstance(list(migrate(here, there))[-1], Moved)


def test_what_is_settled_is_read_while_the_fleet_works_and_not_again(here, there):
    done, held = [here.add() for _ in range(5)], here.add()
    worker = here.process()
    for issue in done:
        worker.services.advancing.give_back(worker.hold(issue))
    here.clock.advance(TTL_S)
    keeper = worker.hold(held)
    mover = here.process("mover")
    moving = mover.services.migrating.migrate(
        NAMES[here.kind], NAMES[there.kind], patience_s=3600.0
    )
    read_before = {}

    def note(call):
        if call.name == "read" and call.args[0] in done:
            moving_now = isinstance(here.granters.granter(), Moving)
            read_before.setdefault(moving_now, []).append(call.args[0])

    mover.tracker.before = note
    assert next(moving) == Draining((str(held),))
    assert read_before == {False: done}
    worker.services.advancing.give_back(keeper)
    assert isinstance(list(moving)[-1], Moved)
    assert there.process("w2").claimed(done[0]).lease.fence > keeper.fence


def test_an_issue_that_changes_before_the_stop_is_looked_at_again(here, there):
    """A worker claims it, decides and dies between the mover's two looks."""
    issue, second = here.add(), here.add()
    here.clock.advance(TTL_S)
    mover = here.process("mover")
    worker = here.process(reached=crashing(Step.FINISH_DECIDED))

    def work(call):
        if call.name == "read" and call.args[0] == second:
            mover.tracker.before = lambda _: None
            with pytest.raises(Crash):
                worker.services.advancing.advance(worker.hold(issue))

    mover.tracker.before = work
    moving = mover.services.migrating.migrate(
        NAMES[here.kind], NAMES[there.kind], patience_s=3600.0
    )
    assert isinstance(list(moving)[-1], Moved)
    assert "stage:review" in here.labels(issue)


def test_leases_that_are_elsewhere_are_not_moved_from_here(here, there):
    here.process().claimed(here.add())
    with pytest.raises(CannotMove, match=NAMES[here.kind]):
        next(migrate(there, here))


def test_of_two_movers_the_second_takes_over_and_the_first_gives_up(here, there):
    here.process().claimed(here.add())
    first, second = migrate(here, there), migrate(here, there)
    next(first)
    next(second)
    here.clock.advance(TTL_S)
    with pytest.raises(CannotMove):
        list(first)
    assert isinstance(list(second)[-1], Moved)
    assert here.granters.granter().store == NAMES[there.kind]


def test_a_mover_does_not_end_a_move_that_was_called_off_and_begun_again(here, there):
    """While it slept the origin granted again, and another began an equal move."""
    issue, worker = here.add(), here.process()
    sleeper = here.process("mover").services
    asked = sleeper.leases.highest
    others = []

    def slept():
        called_off = Appointed(NAMES[here.kind])
        here.granters.appoint(called_off, instead_of=here.granters.granter())
        worker.claimed(issue)
        third = migrate(here, there)
        others.append(third)
        next(third)
        return asked()

    sleeper.migrating._origin.adapter.highest = slept
    moving = sleeper.migrating.migrate(NAMES[here.kind], NAMES[there.kind], patience_s=60.0)
    with pytest.raises(CannotMove):
        list(moving)
    assert not isinstance(here.granters.granter(), Appointed), "the third one's move goes on"


def test_fsck_of_a_process_set_up_for_another_store_touches_nothing(here, there):
    issue = here.add()
    here.process().claimed(issue)
    with pytest.raises(GrantedElsewhere):
        list(there.process("w2").services.checking.check(repair=True))
    assert "claimed" in here.labels(issue)


def test_a_name_that_is_held_is_waited_for(here, there):
    world = here if here.kind == "store" else there
    other = there if world is here else here
    held = world.process("w1").services.holds.take(HoldWish("deploy", HolderId("w1")))
    moving = migrate(world, other)
    assert next(moving) == Draining(("deploy/1",))
    held.release()
    assert isinstance(list(moving)[-1], Moved)


# What the mover cannot see


def first_comment_only(call, answer):
    """As a reader sees an issue while the tracker keeps a page of its comments back."""
    if call.name != "read":
        return answer
    return Snapshot(answer.issue, answer.comments[:1], answer.now)


def test_a_holder_whose_card_cannot_be_read_is_waited_for(here, there):
    issue = here.add()
    here.tracker.comment(issue, "chatter")
    here.process().claimed(issue)
    mover = here.process("mover")
    mover.tracker.change = first_comment_only
    moving = mover.services.migrating.migrate(NAMES[here.kind], NAMES[there.kind], patience_s=5.0)
    assert list(moving)[-1] == GaveUp((str(issue),))


def test_an_ending_among_comments_that_cannot_all_be_read_is_left_for_later(here, there):
    """Which later lease the missing page shows is not known: nothing is painted by such a list."""
    issue = decided_and_not_painted(here)
    here.tracker.comment(issue, "chatter")
    mover = here.process("mover")
    mover.tracker.change = first_comment_only
    moving = mover.services.migrating.migrate(NAMES[here.kind], NAMES[there.kind], patience_s=5.0)
    assert next(moving) == Draining((str(issue),))
    assert mover.tracker.written == []
    mover.tracker.change = lambda _, answer: answer
    assert isinstance(list(moving)[-1], Moved)
    assert "stage:review" in here.labels(issue)


def test_a_holder_of_a_closed_issue_is_waited_for(here, there):
    issue = here.add()
    keeper = here.process().hold(issue)
    here.tracker.close(issue)
    moving = migrate(here, there)
    assert next(moving) == Draining((str(issue),))
    keeper.check()


def test_a_claim_that_readers_do_not_see_yet_is_waited_for():
    """The winner has looked at the granter a moment before the move stops all grants."""
    here = World("comments", settle=timedelta(seconds=2))
    issue = here.add()
    here.clock.advance(TTL_S)
    mover = here.process("mover")
    stale = copy(here.tracker)
    stale._issues, stale._comments = dict(stale._issues), {issue: []}
    keeper = here.process("worker").hold(issue)
    seen_at = here.clock.passed_s + 1.5

    def lagging(_):
        mover.tracker.adapter = stale if here.clock.passed_s < seen_at else here.tracker

    mover.tracker.before = lagging
    lagging(None)
    moving = mover.services.migrating.migrate("comments", "auto", patience_s=60.0)
    assert next(moving) == Draining((str(issue),))
    keeper.check()


def test_there_and_back_onto_a_store_that_was_made_anew():
    """A name has no card: that its fences were once higher, only the granter record knows."""
    here = World("store")
    there = here.on_other_leases()
    for _ in range(3):
        held = here.process().services.holds.take(HoldWish("deploy", HolderId("w1")))
        held.release()
    assert isinstance(list(migrate(here, there))[-1], Moved)
    anew = there.on_other_leases()
    assert isinstance(list(migrate(there, anew))[-1], Moved)
    after = anew.process().services.holds.take(HoldWish("deploy", HolderId("w2")))
    assert after.fence > held.fence


def test_a_card_that_was_deleted_is_outranked_too(here, there):
    if here.kind != "comments":
        here, there = there, here
    issue, worker = here.add(), here.process()
    keeper = worker.hold(issue)
    worker.services.advancing.give_back(keeper)
    here.tracker.comment(issue, "somebody says something")
    for comment in here.read(issue).comments[:-1]:
        here.tracker.delete_comment(issue, comment.id)
    assert isinstance(list(migrate(here, there))[-1], Moved)
    assert there.process("w2").claimed(issue).lease.fence > keeper.fence


@pytest.mark.parametrize("kept", [1, 2], ids=["long before", "just before its last grant"])
def test_a_fence_that_does_not_outrank_what_is_shown_is_refused(here, there, kept):
    """A store that was restored from an older state: the cards remember what it has forgotten."""
    if here.kind == "comments":
        here, there = there, here
    issue, worker = here.add(), here.process()
    for _ in range(3):
        keeper = worker.hold(issue)
        worker.services.advancing.give_back(keeper)
    ref, record = next(iter(here.store._records.items()))
    here.store._records[ref] = replace(record, lease=replace(record.lease, fence=Fence(kept)))
    assert codes(worker.claim(issue)) == ["FENCE_REGRESSED"]
    assert "fence_regressed" in here.events()
    assert here.store.live() == ()
    assert isinstance(list(migrate(here, here))[-1], Moved)
    healed = worker.claimed(issue)
    assert healed.lease.fence > record.lease.fence, "a move onto itself lifts the floor"
