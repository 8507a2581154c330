"""Events go to every observer, with how long things took, and a broken one stops nothing."""

from msgspec.structs import replace

from dibs.core.events import EventKind
from dibs.services.backlog import Observers

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
