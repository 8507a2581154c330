"""The short form of `make intervals`: two stores, and the control that must be caught."""

import pytest

from .__main__ import Sky, examine
from .grounds import CONTROL

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]
SHORT = Sky(seconds=15)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_no_lease_is_trusted_twice_whatever_goes_wrong(store: str) -> None:
    outcome = examine(store, SHORT)
    assert outcome.findings == [], outcome.logs
    assert {"kill", "freeze", "step"} < set(outcome.faults), "too little went wrong"


def test_a_lock_of_setnx_a_ttl_and_incr_is_caught() -> None:
    outcome = examine(CONTROL, SHORT)
    assert outcome.findings == []
    assert outcome.verdict.overlaps
