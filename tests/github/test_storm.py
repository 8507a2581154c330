"""The short form of `make storm-github`: a few real processes, a death and a long sleep."""

import pytest

from .storm import Weather, ride_out

pytestmark = pytest.mark.long


@pytest.mark.timeout(300)
def test_a_fleet_in_bad_weather_does_everything_once() -> None:
    weather = Weather(
        workers=4,
        issues=8,
        settle_s=1.0,
        ttl_s=24,
        work_s=0.2,
        lost_replies=0.1,
        errors=0.05,
        every_s=15.0,
        patience_s=240.0,
    )
    outcome = ride_out(weather)
    assert outcome.flaws == []
    assert outcome.killed, "nobody was killed"
    assert outcome.frozen, "nobody was frozen"
