"""A worker that hears a hint looks at once; one that hears too many looks now and then."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.services.working import Until

from .costly import CostlyWorld
from .test_working import Handler, make_worker
from .world import World

POLL_S = 300.0


class Scripted:
    """Does something and hints at a change, whenever it is asked at or after a time."""

    every_s = 1.0

    def __init__(self, clock, *acts):
        self._clock = clock
        self._acts = list(acts)
        self.asked = 0

    def heard(self):
        self.asked += 1
        if self._acts and self._clock.passed_s >= self._acts[0][0]:
            _, act = self._acts.pop(0)
            act()
            return True
        return False


class Insisting:
    every_s = 1.0

    def heard(self):
        return True


@pytest.fixture(params=[World, CostlyWorld], ids=["cheap", "costly"])
def world(request):
    made = request.param("comments", patience_s=0.01)
    made.settings = replace(
        made.settings, poll=timedelta(seconds=POLL_S), sweep=timedelta(seconds=10 * POLL_S)
    )
    return made


def start(world, handler, hints, **options):
    process, worker = make_worker(world, handler, until=Until.STOPPED, **options)
    worker._dozing._hints = hints
    return process, worker


def test_a_hint_is_followed_long_before_the_next_poll(world):
    done_at = []

    def note(work):
        done_at.append(world.clock.passed_s)
        worker.leave()

    hints = Scripted(world.clock, (20.0, world.add))
    _, worker = start(world, Handler(note), hints)
    assert worker.run().outcomes == {"advanced": 1}
    assert 20 <= done_at[0] < 30
    assert hints.asked <= 40, "it is asked now and then"


def test_without_a_hint_polling_goes_on(world):
    world.settings = replace(world.settings, poll=timedelta(seconds=40))
    issue = world.add("stage:ready", "paused")

    def resume(call):
        if call.name == "find" and world.clock.passed_s > 10:
            world.tracker.edit_labels(issue, remove=("paused",))

    def note(work):
        worker.leave()

    process, worker = start(world, Handler(note), Scripted(world.clock))
    process.tracker.before = resume
    assert worker.run().outcomes == {"advanced": 1}
    assert world.clock.passed_s > 10


def test_a_flood_of_hints_is_a_look_now_and_then(world):
    process, worker = start(world, Handler(None), Insisting())

    def leave(call):
        if world.clock.passed_s > POLL_S:
            worker.leave()

    process.tracker.before = leave
    worker.run()
    scans = [call for call in process.tracker.calls if call.name == "find"]
    assert len(scans) <= 2 * 12, "ten between two polls, and a poll or two"


def test_a_hint_that_came_too_soon_after_another_is_followed_later(world):
    done_at = []

    def note(work):
        done_at.append(world.clock.passed_s)
        if len(done_at) == 2:
            worker.leave()

    hints = Scripted(world.clock, (20.0, world.add), (30.0, world.add))
    _, worker = start(world, Handler(note), hints)
    assert worker.run().outcomes == {"advanced": 2}
    assert 50 <= done_at[1] < 70, "a tenth of a poll after the first"


def test_a_worker_that_is_told_to_leave_does_not_listen_any_longer(world):
    class Leaving(Insisting):
        def heard(self):
            worker.leave()
            return False

    _, worker = start(world, Handler(None), Leaving())
    worker.run()
    assert world.clock.passed_s < 10
