"""The worlds that are simulated: the protocol's section 10, and everything it leaves out."""

from msgspec.structs import replace

from dibs_lab.sim.faults import Faults
from dibs_lab.sim.world import MEMORY, Scenario

_STALLED = Faults(freeze=0.1, freeze_s=40.0, crash=0.15)


def _model(name: str, *, settle_s: float = 0.0, **faults: float) -> Scenario:
    """One issue, 3 workers, ttl 20 s; a tenth of all steps stalled for up to two ttls."""
    return Scenario(name=name, settle_s=settle_s, faults=replace(_STALLED, **faults))


MODEL: tuple[Scenario, ...] = (
    _model("no lag"),
    _model("reads lag 5 s in order, settle 0", read_lag_s=5),
    _model("reads lag 5 s in order, settle 5.5 s", read_lag_s=5, settle_s=5.5),
    _model("writes seen within 2 s, settle 0", write_lag_s=2),
    _model("writes seen within 2 s, settle 2.5 s", write_lag_s=2, settle_s=2.5),
    _model("writes seen within 5 s, settle 2.5 s", write_lag_s=5, settle_s=2.5),
    _model("writes seen within 5 s, settle 5.5 s", write_lag_s=5, settle_s=5.5),
    _model("reads lag 3 s, writes 3 s, settle 6.5 s", read_lag_s=3, write_lag_s=3, settle_s=6.5),
    _model("operator revokes", operator=2),
    _model(
        "writes seen within 2 s, settle 2.5 s, operator", write_lag_s=2, settle_s=2.5, operator=2
    ),
    _model("operator forces", force=2),
    Scenario(
        name="5 workers, ttl 8 s, 30 % stalls",
        workers=5,
        ttl_s=8.0,
        faults=replace(_STALLED, freeze=0.3, freeze_s=16.0),
    ),
    Scenario(
        name="6 workers, ttl 12 s, 25 % stalls, writes 2 s, operator",
        workers=6,
        ttl_s=12.0,
        settle_s=2.5,
        faults=replace(_STALLED, freeze=0.25, freeze_s=24.0, write_lag_s=2, operator=2),
    ),
)
"""The rows of the protocol's section 10, on the shipped code."""

_TROUBLE = Faults(
    freeze=0.03,
    crash=0.2,
    slow=0.02,
    lost_reply=0.05,
    unavailable=0.05,
    rate_limited=0.02,
    truncated=0.05,
    fail=0.1,
)

STORMS: tuple[Scenario, ...] = (
    Scenario(name="three stages", stages=3, work_s=(1.0, 10.0), faults=_STALLED),
    Scenario(
        name="four stages, 4 workers, slow replies and lag",
        stages=4,
        workers=4,
        settle_s=2.5,
        work_s=(0.5, 5.0),
        faults=replace(_STALLED, freeze=0.05, slow=0.05, write_lag_s=1.0, read_lag_s=1.0),
    ),
    Scenario(name="pages are missing", faults=replace(_STALLED, freeze=0.02, truncated=0.3)),
    Scenario(name="slow replies", faults=replace(_STALLED, freeze=0.02, slow=0.1, slow_s=30.0)),
    Scenario(name="network trouble", faults=_TROUBLE),
    Scenario(
        name="network trouble and lag",
        settle_s=2.5,
        faults=replace(_TROUBLE, write_lag_s=1.0, read_lag_s=1.0),
    ),
    Scenario(name="people at the labels", faults=replace(_STALLED, person=3, operator=1)),
    Scenario(name="strangers forge cards", faults=replace(_STALLED, stranger=5)),
    Scenario(name="a bot writes labels back", faults=replace(_STALLED, bot=3)),
    Scenario(name="cards edited and deleted", faults=replace(_STALLED, vandal=2)),
    Scenario(
        name="4 issues, 5 workers, everything",
        workers=5,
        issues=4,
        settle_s=2.5,
        faults=replace(
            _TROUBLE, write_lag_s=2.0, operator=1, person=2, stranger=3, bot=1, grain_s=0.001
        ),
    ),
)
"""Faults that the model did not have."""


def on_a_store(scenario: Scenario) -> Scenario:
    """The same world with an atomic lease store, which has no lag."""
    return replace(scenario, name=f"{scenario.name} (atomic store)", leases=MEMORY)


ATOMIC: tuple[Scenario, ...] = tuple(on_a_store(scenario) for scenario in (MODEL[0], *STORMS))


def in_one_trip(scenario: Scenario, **faults: float) -> Scenario:
    """The same world with a tracker that takes several effects in one request, one by one."""
    changed = replace(scenario.faults, in_flight_s=4.0, **faults)
    return replace(scenario, name=f"{scenario.name} (one trip)", one_trip=True, faults=changed)


def without_a_bound(scenario: Scenario) -> Scenario:
    """The same world with a tracker that declares no bound for a request under way."""
    changed = replace(scenario.faults, in_flight_s=None)
    return replace(scenario, name=f"{scenario.name} (no bound)", faults=changed)


_STORMS_OF_TRIPS = {
    "network trouble": {"straggle": 0.02, "cut_short": 0.03},
    "network trouble and lag": {"straggle": 0.02, "cut_short": 0.03},
    "4 issues, 5 workers, everything": {"straggle": 0.02, "cut_short": 0.03},
}
_STORMS_OF_TRIPS_ON_A_STORE = {**_STORMS_OF_TRIPS, "network trouble": {"cut_short": 0.05}}
_LAGGING_OR_LACKING = tuple(
    scenario for scenario in STORMS if scenario.faults.lag_s or scenario.faults.truncated
)
_IN_TIME = tuple(
    scenario for scenario in MODEL if 0 < scenario.faults.read_lag_s < scenario.settle_s
)
_BROKEN_TRIPS = (
    in_one_trip(
        Scenario(name="trips are cut short", faults=replace(_STALLED, freeze=0.03)), cut_short=0.2
    ),
    in_one_trip(
        Scenario(name="trips fail in part", faults=replace(_STALLED, freeze=0.03)),
        failed_in_part=0.1,
    ),
)
ONE_TRIP: tuple[Scenario, ...] = (
    *(in_one_trip(scenario) for scenario in MODEL),
    *(in_one_trip(scenario, **_STORMS_OF_TRIPS.get(scenario.name, {})) for scenario in STORMS),
    *_BROKEN_TRIPS,
    *(on_a_store(scenario) for scenario in _BROKEN_TRIPS),
    *(
        on_a_store(in_one_trip(scenario, **_STORMS_OF_TRIPS_ON_A_STORE.get(scenario.name, {})))
        for scenario in (MODEL[0], *_IN_TIME, *STORMS)
    ),
    *(on_a_store(without_a_bound(in_one_trip(scenario))) for scenario in _LAGGING_OR_LACKING),
)
"""Trackers that need fewer requests: others may write between any two effects."""

LATE: tuple[Scenario, ...] = (
    Scenario(
        name="writes that were given up on come later",
        work_s=(1.0, 12.0),
        faults=replace(_STALLED, freeze=0.03, straggle=0.1, in_flight_s=3.0),
    ),
    in_one_trip(
        Scenario(
            name="writes that were given up on come later",
            work_s=(1.0, 12.0),
            faults=replace(_STALLED, freeze=0.03),
        ),
        straggle=0.1,
    ),
)
"""A client gets no answer and stops waiting; its write still takes effect."""


def _crowd(name: str, *, settle_s: float = 0.0, **faults: float) -> Scenario:
    """As many issues as workers and short work: bids arrive while others end the same lease."""
    return Scenario(
        name=name,
        workers=6,
        issues=6,
        settle_s=settle_s,
        work_s=(0.0, 5.0),
        faults=replace(Faults(torn_s=1.0), **faults),
    )


def torn(scenario: Scenario) -> Scenario:
    """The same world, where labels and comments of a read are from two moments."""
    changed = replace(scenario.faults, torn_s=1.0)
    return replace(scenario, name=f"{scenario.name} (torn readings)", faults=changed)


_CROWDS = (
    _crowd("torn readings"),
    _crowd("torn readings, reads lag 2 s, settle 2.5 s", read_lag_s=2, settle_s=2.5),
)
_TORN_STAGES, _TORN_TROUBLE, _TORN_PEOPLE, _TORN_PAGES = (
    torn(next(scenario for scenario in STORMS if scenario.name == name))
    for name in (
        "three stages",
        "network trouble and lag",
        "people at the labels",
        "pages are missing",
    )
)
_TORN_ANYWHERE = (*_CROWDS, _TORN_STAGES, _TORN_TROUBLE)
TORN: tuple[Scenario, ...] = (
    *_TORN_ANYWHERE,
    *(in_one_trip(scenario) for scenario in (*_TORN_ANYWHERE, _TORN_PEOPLE, _TORN_PAGES)),
    in_one_trip(
        _crowd(
            "torn readings, reads lag 2 s, settle 2.5 s, replies are read again",
            read_lag_s=2,
            settle_s=2.5,
            read_again=0.2,
        )
    ),
    *(on_a_store(scenario) for scenario in (*_CROWDS, _TORN_STAGES)),
    *(on_a_store(in_one_trip(scenario)) for scenario in _TORN_ANYWHERE),
)
"""A read is not of one moment: its labels may be older than the cards beside them, or newer."""

ALL: tuple[Scenario, ...] = (*MODEL, *STORMS, *ATOMIC, *ONE_TRIP, *LATE, *TORN)
BY_NAME = {scenario.name: scenario for scenario in ALL}
