"""Parking on the fake GitHub: the summing up travels with the ending, in the same request."""

from contextlib import ExitStack

import pytest

from dibs.core.ids import HolderId
from dibs.core.labels import label_looks
from dibs.core.presets import AGENT
from dibs.services.claiming import Claimed, ClaimOptions
from dibs_lab.fakehub import Fault, Wrong

from .hubs import Hub
from .test_following import Fleet

ATTEMPTS = 3


@pytest.fixture
def hub():
    with ExitStack() as opened:
        made = Hub(opened)
        made.client(looks=label_looks(AGENT)).prepare(AGENT.every_label)
        yield made


def hold(fleet, ref, name="w1"):
    claimed = fleet.services.claiming.claim(ref, None, ClaimOptions(HolderId(name)))
    assert isinstance(claimed, Claimed), claimed
    return fleet.services.keep(claimed)


def fail(hub, fleet, ref, name="w1"):
    fleet.services.advancing.fail(hold(fleet, ref, name), "the tests are red")
    hub.clock.advance(1000)


def summed_up(fleet, ref):
    comments = fleet.tracker.read(ref).comments
    return [one.body for one in comments if one.body.startswith("<!-- parked ")]


def test_the_last_failure_costs_no_request_more_than_the_others(hub):
    fleet = Fleet(hub)
    ref = fleet.add()
    spent = []
    for number in range(ATTEMPTS):
        keeper = hold(fleet, ref, f"w{number}")
        with hub.counted() as counted:
            fleet.services.advancing.fail(keeper, "the tests are red")
        spent.append(sum(counted.values()))
        hub.clock.advance(1000)
    assert spent[-1] == spent[0], spent
    assert fleet.labels(ref) == {"agent:implement", "needs:human-scope"}
    (text,) = summed_up(fleet, ref)
    assert text.count("the tests are red") == ATTEMPTS
    assert len(fleet.tracker.read(ref).comments) == ATTEMPTS + 1


@pytest.mark.parametrize("wrong", [Wrong.ERROR_AFTER, Wrong.DROP_AFTER, Wrong.ERROR_BEFORE])
def test_a_reply_that_was_lost_does_not_say_it_twice(hub, wrong):
    fleet = Fleet(hub)
    ref = fleet.add()
    fail(hub, fleet, ref)
    fail(hub, fleet, ref)
    keeper = hold(fleet, ref, "w3")
    hub.hub.faults.add(Fault(wrong, kind="mutation Trip", containing="parked run=", times=1))
    fleet.services.advancing.fail(keeper, "the third")
    hub.clock.advance(100)
    Fleet(hub).services.sweeping.sweep()
    assert "needs:human-scope" in fleet.labels(ref)
    assert len(summed_up(fleet, ref)) == 1


def test_flaw_18_a_label_that_a_person_takes_off_in_the_browser_starts_it_afresh(hub):
    fleet = Fleet(hub)
    ref = fleet.add()
    for _ in range(ATTEMPTS):
        fail(hub, fleet, ref)
    hub.acting().remove_label(hub.issue(int(ref.key)), "needs:human-scope")
    assert hold(Fleet(hub), ref).failed_attempts == 0
