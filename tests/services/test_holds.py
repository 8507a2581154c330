"""Holds: a mutex, N slots, a wait, and the local turn before the store is asked."""

import threading
from datetime import timedelta

import pytest

from dibs.adapters.memory.leases import MemoryLeases
from dibs.adapters.system import SystemClock, wall_clock
from dibs.core.errors import BadName, BadTtl, LeaseLost, Misuse, Unavailable
from dibs.core.granter import Appointed
from dibs.core.ids import Fence, HolderId
from dibs.core.lease import Unproven
from dibs.core.named import hold_ref
from dibs.named.holds import Hold, HoldRefused, HoldWish, Turns

from .world import World, outage


def wish(name="deploy", holder="w1", **more):
    return HoldWish(name, HolderId(holder), **more)


@pytest.fixture
def world():
    """What is still held at the end is given back, or its threads would look at the clock on."""
    made = World("store")
    made.held = []
    yield made
    for held in made.held:
        held.release()


def take(process, **more):
    taken = process.services.holds.take(wish(holder=process.name, **more))
    if isinstance(taken, Hold):
        process.world.held.append(taken)
    return taken


class Dead:
    """The threads of a process that is gone: none of them ever runs."""

    def start(self, work, name):
        return self

    def start_within(self, seconds, work, name, otherwise):
        return self

    def join(self):
        pass


def test_one_holds_and_the_other_is_told_who(world):
    one, two = world.process("w1"), world.process("w2")
    held = take(one)
    assert isinstance(held, Hold)
    refused = take(two)
    assert isinstance(refused, HoldRefused)
    assert [record.lease.holder for record in refused.by] == ["w1"]
    first = held.fence
    held.release()
    held.release()
    again = take(two)
    assert isinstance(again, Hold)
    assert again.fence > first
    again.release()
    assert world.store.live() == ()


def test_as_many_as_there_are_slots(world):
    processes = [world.process(f"w{number}") for number in range(4)]
    held = [take(process, slots=3) for process in processes]
    assert [isinstance(one, Hold) for one in held] == [True, True, True, False]
    assert len(held[3].by) == 3
    held[1].release()
    assert isinstance(take(processes[3], slots=3), Hold)


def test_a_dead_holders_slot_frees_itself(world):
    one, two = world.process("w1"), world.process("w2")
    one.services.adapters.threads = Dead()
    take(one, ttl=timedelta(seconds=20))
    started = world.clock.passed_s
    held = take(two, wait_s=60)
    assert isinstance(held, Hold)
    assert 20 <= world.clock.passed_s - started < 25


def test_a_wait_ends_in_time(world):
    take(world.process("w1"), ttl=timedelta(minutes=5))
    started = world.clock.passed_s
    assert isinstance(take(world.process("w2"), wait_s=7), HoldRefused)
    assert 7 <= world.clock.passed_s - started < 8


def test_a_lost_reply_is_no_orphan(world):
    one = world.process("w1")
    one.store.after = outage("acquire", times=1)
    held = take(one)
    assert isinstance(held, Hold)
    assert len(world.store.live()) == 1
    held.release()


def test_a_store_that_is_gone_is_an_outage_and_leaves_no_turn(world):
    one = world.process("w1")
    one.store.before = outage("acquire")
    with pytest.raises(Unavailable):
        take(one)
    assert not one.services.holds.turns._inside


def test_a_store_in_doubt_is_asked_again(world):
    one = world.process("w1")
    doubts = iter([Unproven("it changed hands"), Unproven("it changed hands")])
    one.store.change = lambda call, answer: (
        next(doubts, answer) if call.name == "acquire" else answer
    )
    assert isinstance(take(one, wait_s=5), Hold)
    doubts = iter([Unproven("it changed hands")])
    two = world.process("w2")
    two.store.change = lambda call, answer: Unproven("it changed hands")
    refused = take(two)
    assert refused == HoldRefused("deploy", (), "it changed hands")


def test_a_hold_is_not_used_if_the_leases_were_moved_while_it_was_asked_for(world):
    one = world.process("w1")
    take(one).release()

    def move(call):
        if call.name == "acquire":
            world.granters.appoint(Appointed("redis://x"), instead_of=world.granters.granter())

    one.store.before = move
    refused = take(one)
    assert isinstance(refused, HoldRefused)
    assert "redis://x" in refused.why
    assert world.store.live() == ()
    assert not one.services.holds.turns._inside


def test_a_hold_is_not_used_below_a_floor_that_rose_meanwhile(world):
    one = world.process("w1")
    take(one).release()

    def there_and_back(call):
        if call.name == "acquire":
            known = world.granters.granter()
            world.granters.appoint(Appointed("auto", Fence(100)), instead_of=known)

    one.store.before = there_and_back
    assert isinstance(take(one), HoldRefused)
    one.store.before = lambda call: None
    assert take(one).fence > 100


def test_what_was_done_under_a_hold_is_done_even_if_it_cannot_be_given_back(world):
    one = world.process("w1")
    held = take(one)
    one.store.before = outage("release")
    held.release()
    assert not one.services.holds.turns._inside


def test_a_hold_that_nobody_could_renew_is_given_back(world):
    one = world.process("w1")

    class NoThreads:
        def start(self, work, name):
            raise RuntimeError("can't start new thread")

        def start_within(self, seconds, work, name, otherwise):
            self.start(work, name)

    one.services.adapters.threads = NoThreads()
    with pytest.raises(RuntimeError):
        take(one)
    assert world.store.live() == ()
    assert not one.services.holds.turns._inside


def test_a_wait_outlasts_an_outage_of_the_store(world):
    one = world.process("w1")
    one.store.before = outage("acquire", times=6)
    assert isinstance(take(one, wait_s=60), Hold)


def test_a_hold_that_was_taken_away_says_so(world):
    from dibs.core.lease import Revocation

    held = take(world.process("w1"))
    word = Revocation(held.run, "ada", "mine now", force=True)
    assert world.store.revoke(hold_ref("deploy", 1), word) is not None
    held.keeper.renew_now()
    with pytest.raises(LeaseLost):
        held.check()
    held.release()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"name": "7up"}, BadName),
        ({"name": "a b"}, BadName),
        ({"name": ""}, BadName),
        ({"slots": 0}, Misuse),
        ({"ttl": timedelta(milliseconds=5)}, BadTtl),
    ],
)
def test_a_wish_that_cannot_be_is_refused(world, more, error):
    with pytest.raises(error):
        world.process("w1").services.holds.take(wish(**more))


def test_holds_are_not_on_the_board(world):
    take(world.process("w1"))
    assert world.process("w2").services.board.overview().in_flight == ()


def test_fifty_threads_ask_the_store_one_at_a_time_and_the_map_empties():
    world = World("store")
    world.store = MemoryLeases(wall_clock)
    world.clock = SystemClock()
    process = world.process("w1")
    asking, most_asking, inside, most_inside = [0], [0], [0], [0]
    lock = threading.Lock()

    def entering(call):
        if call.name == "acquire":
            with lock:
                asking[0] += 1
                most_asking[0] = max(most_asking[0], asking[0])

    def leaving(call):
        if call.name == "acquire":
            with lock:
                asking[0] -= 1

    process.store.before, process.store.after = entering, leaving
    flaws = []

    def work(holds):
        try:
            held = holds.take(wish(wait_s=60))
            assert isinstance(held, Hold), held
            with lock:
                inside[0] += 1
                most_inside[0] = max(most_inside[0], inside[0])
            with lock:
                inside[0] -= 1
            held.release()
        except BaseException as flaw:  # noqa: BLE001 - told by the test
            flaws.append(flaw)

    threads = [
        threading.Thread(target=work, args=(process.services.holds,), daemon=True)
        for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not flaws
    assert most_inside == [1]
    assert most_asking == [1], "the local mutex comes first"
    assert not process.services.holds.turns._inside, "the map holds names in use and nothing else"


def test_a_turn_that_is_waited_for_too_long_is_given_up():
    turns = Turns()
    assert turns.enter("deploy", 1, lambda: 1.0)
    assert not turns.enter("deploy", 1, lambda: 0.0)
    assert turns.enter("other", 1, lambda: 0.0)
    turns.leave("deploy")
    assert turns.enter("deploy", 1, lambda: 0.0)
