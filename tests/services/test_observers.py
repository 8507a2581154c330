"""Events go to every observer, with how long things took, and a broken one stops nothing."""

from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from dibs.core.events import Event, EventKind, Step
from dibs.core.labels import ending_paint
from dibs.core.lease import Ending, Outcome
from dibs.services.backlog import Observers, OneStep
from dibs.services.shown_leases import Showing

from .world import World


class Heard:
    def __init__(self):
        self.events = []

    def observe(self, event):
        self.events.append(event)


class Broken:
    def observe(self, event):
        raise RuntimeError("no room")


def test_a_claim_to_its_end_tells_how_long_it_took_and_held():
    world = World("store")
    issue = world.add()
    process = world.process("worker")
    heard = Heard()
    process.services.adapters.observers = (heard,)
    claimed = process.claim(issue)
    world.clock.advance(7)
    keeper = process.services.keep(claimed)
    process.services.advancing.advance(keeper)
    claimed_event, ended = heard.events
    assert claimed_event.kind is EventKind.CLAIMED
    assert claimed_event.spans["took"] >= 0
    assert ended.kind is EventKind.ADVANCED
    assert ended.spans["held"] >= 7
    assert ended.spans["took"] >= 0


def test_an_observer_that_fails_keeps_no_other_from_hearing(caplog):
    heard = Heard()
    world = World("store")
    event = replace(next(iter(_events(world))), spans={})
    Observers((Broken(), heard)).observe(event)
    assert heard.events == [event]
    assert "an observer failed" in caplog.text


def _events(world):
    process = world.process("worker")
    heard = Heard()
    process.services.adapters.observers = (heard,)
    issue = world.add()
    process.claim(issue)
    return heard.events


# In one step


def test_what_happens_inside_a_step_is_told_when_it_is_written():
    heard, told, written = Heard(), [], []

    @contextmanager
    def together():
        yield
        written.append(list(heard.events))

    step = OneStep(together, told.append)
    observer = step.observer(heard)
    with step():
        with step():
            step.reached(Step.CLAIM_BID)
            observer.observe(Event(EventKind.CLAIMED))
        assert (told, heard.events) == ([], [])
    assert written == [[]]
    assert (told, [event.kind for event in heard.events]) == (
        [Step.CLAIM_BID],
        [EventKind.CLAIMED],
    )


def test_what_is_undone_is_not_told():
    heard, told = Heard(), []
    step = OneStep(nullcontext, told.append)
    with suppress(RuntimeError), step():
        step.reached(Step.CLAIM_BID)
        step.observer(heard).observe(Event(EventKind.CLAIMED))
        raise RuntimeError("the disk is full")
    assert (told, heard.events) == ([], [])
    step.reached(Step.CLAIM_GRANTED)
    assert told == [Step.CLAIM_GRANTED]


def test_nobody_sleeps_while_the_database_is_locked():
    world = World("store", settle=timedelta(seconds=9))
    process = world.process("worker")
    claimed = process.claim(world.add())
    leases = Showing(
        process.services.adapters.store,
        process.tracker,
        world.clock,
        rules=process.services.rules,
        one_step=OneStep(nullcontext, lambda _: None),
    )
    keeper = process.services.keep(claimed)
    before = world.clock.now()
    leases.finish(keeper.lease, Ending(Outcome.RETURNED), partial(ending_paint, world.pipeline))
    assert world.clock.now() == before
