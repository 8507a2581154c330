"""Leases as the cards show them, for onlookers while the store cannot be reached."""

import pytest

from dibs.core.ids import Fence

from .world import World, outage


@pytest.fixture
def world():
    return World("store")


def onlooker(world):
    """Its store answers nothing."""
    process = world.process("onlooker")
    process.store.before = outage("read", "live", "highest")
    return process.services.shown_by_cards().leases


def test_the_card_names_the_holder_and_the_fence_of_the_store(world):
    issue = world.add()
    for _ in range(2):
        world.tracker.comment(issue, "chatter")
    lease = world.process().claimed(issue).lease
    leases = onlooker(world)
    standing = leases.standing(world.read(issue))
    assert (standing.live.lease.run, standing.live.lease.fence) == (lease.run, lease.fence)
    assert [record.lease.fence for record in leases.live("ready")] == [lease.fence]


def test_an_issue_that_was_never_worked_has_no_holder(world):
    assert onlooker(world).standing(world.read(world.add())).record is None


def test_a_lease_of_the_time_when_comments_granted_keeps_its_fence(world):
    issue = world.add()
    before = world.on_other_leases()
    lease = before.process("earlier").claimed(issue).lease
    record = onlooker(world).standing(world.read(issue)).record
    assert (record.lease.run, record.lease.fence) == (lease.run, lease.fence)
    assert lease.fence > Fence(0)


def test_comments_have_no_store_that_could_be_away():
    assert World("comments").process().services.shown_by_cards() is None
