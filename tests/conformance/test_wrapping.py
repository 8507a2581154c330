"""A tracker around a tracker can what the one within can, and nothing else."""

import inspect

import pytest

from dibs.adapters.wrappers.trackers import PlainTracker, signed, spoken
from dibs.core.signing import parse_keyring
from dibs.ports import tracker
from dibs.ports import tracker as following
from dibs.ports import tracker as whoami
from dibs.testing.clock import EPOCH

RING = parse_keyring("k:a key that is long enough")
CAPABILITIES = [
    found
    for module in (tracker, whoami, following)
    for _, found in inspect.getmembers(module, inspect.isclass)
    if found.__module__ == module.__name__ and getattr(found, "_is_runtime_protocol", False)
]
WRAPPERS = {
    "signed": lambda inner: signed(inner, RING),
    "spoken": lambda inner: spoken(inner, lambda: EPOCH),
    "both": lambda inner: signed(spoken(inner, lambda: EPOCH), RING),
}


def able(*capabilities):
    """An object that has these and does nothing."""
    names = {name for one in capabilities for name in vars(one) if not name.startswith("_")}
    return type("Able", (), dict.fromkeys(names, lambda *_, **__: None))()


def test_there_are_capabilities_to_check():
    assert tracker.OneTrip in CAPABILITIES
    assert whoami.Whoami in CAPABILITIES


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda one: one.__name__)
def test_each_capability_goes_through_by_itself(wrap, capability):
    wrapped = wrap(able(capability))
    assert [one for one in CAPABILITIES if isinstance(wrapped, one)] == [
        one for one in CAPABILITIES if isinstance(able(capability), one)
    ]


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_all_of_them_go_through_together_and_none_comes_of_itself(wrap):
    assert all(isinstance(wrap(able(*CAPABILITIES)), one) for one in CAPABILITIES)
    assert not any(isinstance(wrap(able()), one) for one in CAPABILITIES)


def test_the_plain_one_hides_them_all():
    assert not any(isinstance(PlainTracker(able(*CAPABILITIES)), one) for one in CAPABILITIES)
