"""A client whose time of day is an hour off, either way, is treated like anybody else.

Its process is given a wrong clock by libfaketime; the server and everybody else have the right one.
"""

from datetime import datetime

import pytest
from tests.servers.wall_clock import faked_clock

from acceptance.harness import CLOCK, Project, pipeline, until
from dibs.core.ids import IssueRef
from dibs.core.lease import Busy, Ending, Granted, Outcome
from dibs.core.named import hold_ref
from dibs.ports.leases import LeaseStore

from .contending import bid_for, get_it, try_once
from .places import CLOCKED, Place
from .processes import Company, kill

pytestmark = pytest.mark.long

HOUR_S = 3600
CLOSE_S = 60
"""How far apart two readings of one clock may be on a machine that is busy."""
ISSUE, OTHER = IssueRef("~faults", "clock"), IssueRef("~faults", "other")
HELD = hold_ref("resource", 1)
GIVEN_BACK = Ending(Outcome.CONCEDED)


def _server_s(store: LeaseStore, ref: IssueRef) -> float:
    """The store's own time, by the word of a client whose clock is right."""
    record = store.read(ref)
    assert record is not None
    return record.as_of.timestamp()


def _own(company: Company, place: Place) -> None:
    """The first user, by the right clock: a file's time begins with its first user's."""
    first = company.actor("first", place.url()).ask("acquire", issue="first", run="w0", ttl_s=1)
    assert first["told"] == "Granted"


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("place", CLOCKED, indirect=True)
def test_it_is_granted_refused_and_renewed_by_the_stores_time(
    place: Place, company: Company, hours: int
) -> None:
    _own(company, place)
    store = place.open()
    assert try_once(store, ISSUE)
    wrong = company.actor("wrong", place.url(), env=faked_clock(hours))
    refused = wrong.ask("acquire", issue="clock", run="w1", ttl_s=20)
    assert refused["told"] == "Busy"
    assert abs(refused["wall"] - _server_s(store, ISSUE) - hours * HOUR_S) < CLOSE_S, "it is wrong"

    granted = wrong.ask("acquire", issue="other", run="w2", ttl_s=20)
    assert granted["told"] == "Granted"
    assert abs(granted["granted"] - _server_s(store, OTHER)) < CLOSE_S
    assert granted["expires"] - granted["granted"] == pytest.approx(20, abs=1.5)
    told = store.acquire(bid_for(OTHER))
    assert isinstance(told, Busy), "others are refused, whatever the holder's clock says"
    assert 0 < told.record.remaining.total_seconds() < 22

    renewed = wrong.ask("renew", run="w2")
    assert renewed["told"] == "Renewed"
    assert renewed["expires"] >= granted["expires"]
    assert abs(renewed["expires"] - 20 - _server_s(store, OTHER)) < CLOSE_S
    assert wrong.ask("give_back", run="w2")["told"] == "Released"
    after = store.acquire(bid_for(OTHER))
    assert isinstance(after, Granted)
    assert after.lease.fence > granted["fence"]


@pytest.mark.parametrize(
    ("place", "hours"),
    [("redis", 1), ("redis", -1), ("etcd", 1), ("postgres", -1), ("sqlite", -1)],
    indirect=["place"],
)
def test_its_lease_is_kept_and_runs_out_and_it_waits_like_any_other(
    place: Place, company: Company, hours: int
) -> None:
    _own(company, place)
    store = place.open()
    get_it(store, ISSUE)
    wrong = company.actor("wrong", place.url(), env=faked_clock(hours))
    held = wrong.ask("hold", name="resource", ttl="4s")
    until(lambda: wrong.ask("condition")["beats"] >= 4, "it is renewed past its first end")
    assert not wrong.ask("condition")["lost"]
    assert try_once(store, HELD) is None

    kill(wrong)
    before = store.read(HELD)
    assert before is not None
    assert before.lease.fence == held["fence"]
    won = get_it(store, HELD)
    assert won.lease.granted_at >= before.lease.expires_at, "not a moment earlier"
    assert won.fence > held["fence"]

    # The other way about: it waits for the lease of one who is gone.
    ttl_s = 1.0
    late = company.actor("late", place.url(), env=faked_clock(hours))
    gone = bid_for(HELD, ttl_s=ttl_s)
    store.release(won.lease, GIVEN_BACK)
    asked_at = CLOCK.now()
    assert isinstance(store.acquire(gone), Granted)
    got = late.ask("hold", name="resource", ttl="10s", wait="20s")
    assert got["got_at"] >= asked_at + ttl_s
    assert got["fence"] > won.fence


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_the_command_line_shows_the_stores_times(place: Place, project: Project) -> None:
    project.begin(pipeline(ttl="10m"), 2)
    env = {"DIBS_LEASES": place.url()}
    ahead, behind = ({**env, **faked_clock(hours)} for hours in (1, -1))
    right = project.dibs("claim", "1", "--json", env=env).data
    wrong = project.dibs("claim", "2", "--json", env=ahead).data
    assert abs(_shown(wrong) - _shown(right)) < CLOSE_S
    first = project.dibs("show", "1", "--json", env=behind).data["lease"]
    assert _shown(first) == _shown(right)
    released = project.dibs("release", "2", "--run", wrong["run"], "--json", env=behind)
    assert released.code == 0, released


def _shown(lease: dict[str, str]) -> float:
    return datetime.fromisoformat(lease["granted_at"]).timestamp()
