"""A tracker around a tracker hands everything of the port on, and the traits with it."""

import inspect

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.wrappers.trackers import (
    PlainTracker,
    SignedTracker,
    SpokenTracker,
    WrappedTracker,
)
from dibs.core.signing import parse_keyring
from dibs.ports.tracker import Applies, OneAtATime, Tracker
from dibs.testing.clock import EPOCH, FakeClock

RING = parse_keyring("k:a key that is long enough")
WRAPPERS = {
    "signed": lambda inner: SignedTracker(inner, RING),
    "spoken": lambda inner: SpokenTracker(inner, lambda: EPOCH),
    "both": lambda inner: SignedTracker(SpokenTracker(inner, lambda: EPOCH), RING),
}
PORT = {name for name, _ in inspect.getmembers(Tracker) if not name.startswith("_")}


def able():
    tracker = MemoryTracker(FakeClock().server_now)
    tracker.traits = replace(
        tracker.traits,
        applies=Applies.IN_ONE_REQUEST,
        reads_together=50,
        shortlists=True,
        accounts=True,
        checks_itself=True,
    )
    return tracker


def test_every_member_of_the_port_is_handed_on():
    assert vars(WrappedTracker).keys() >= PORT


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_tracker_has_the_traits_of_the_one_within(wrap):
    tracker = able()
    assert wrap(tracker).traits == tracker.traits


def test_the_plain_one_does_one_thing_at_a_time():
    traits = PlainTracker(able()).traits
    assert traits.applies is Applies.ONE_BY_ONE
    assert traits.reads_together == 1
    assert not any((traits.shortlists, traits.accounts, traits.checks_itself, traits.pulls))
    assert PlainTracker.apply is OneAtATime.apply
    assert PlainTracker.read_many is OneAtATime.read_many
