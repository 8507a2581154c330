"""Leases, records and standings as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.lease import (
    Bid,
    Busy,
    Ending,
    Granted,
    Lease,
    Lost,
    Outcome,
    Record,
    Released,
    Renewed,
    Revocation,
    Standing,
    StopAsked,
    Try,
    Unproven,
)

from .builders import REF, at, make_lease, make_record, make_try, s


@pytest.mark.parametrize(
    ("outcome", "now", "live"),
    [
        (None, 19, True),
        (None, 20, False),  # the expiry itself is already outside
        (None, 21, False),
        ("advanced", 19, False),
        ("returned", 19, False),
        ("failed", 0, False),
        ("parked", 20, False),
        ("conceded", 19, False),
    ],
)
def test_a_record_is_live_until_its_ending_or_its_expiry(outcome, now, live):
    record = make_record(outcome, as_of=now)
    assert record.live is live
    assert record.remaining == s(20 - now)
    assert Standing(record).live == (record if live else None)


def test_nobody_holds_an_issue_that_has_no_record():
    assert Standing(None).live is None
    assert Standing(None).unpainted is None
    assert Standing(None).tries == ()
    assert Standing(None).bidding_until is None


@pytest.mark.parametrize(
    ("outcome", "painted", "found"),
    [
        ("advanced", False, True),
        ("advanced", True, False),
        (None, False, False),
        (None, True, False),
    ],
)
def test_only_a_decided_ending_can_be_unpainted(outcome, painted, found):
    record = make_record(outcome, painted=painted)
    assert record.unpainted is found
    assert Standing(record).unpainted == (record if found else None)


@given(st.sampled_from(Outcome))
def test_an_outcome_is_spelled_by_its_value(outcome):
    assert Outcome(outcome.value) is outcome
    assert Ending(outcome) == Ending(outcome, None, "")


def test_the_answers_of_a_store_are_values_with_their_reasons():
    lease, record = make_lease(), make_record("advanced")
    assert Granted(lease) == Granted(lease)
    assert Granted(lease).snapshot is None
    assert Busy(record).record is record
    assert Unproven("a page is missing").why == "a page is missing"
    assert Renewed(lease) == Renewed(lease, snapshot=None)
    assert StopAsked("closed").why == "closed"
    assert Lost("expired") != StopAsked("expired")
    assert Released(record).record is record


def test_leases_bids_and_revocations_cannot_be_changed_in_place():
    lease = make_lease()
    with pytest.raises(AttributeError):
        lease.fence = 2
    assert (lease.beats, lease.card) == (0, None)
    assert Bid(REF, lease.run, lease.holder, lease.stage, lease.ttl).ttl == s(20)
    assert Revocation(lease.run, "op", "stuck").force is False
    record = Record(lease, at(1))
    assert (record.ending, record.painted, record.revocation) == (None, True, None)
    assert isinstance(lease, Lease)
    assert make_try() == Try(lease.run, lease.stage, at(10), Outcome.FAILED)
