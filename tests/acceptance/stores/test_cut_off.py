"""A holder that is cut off for longer than its ttl stops before anybody else can start.

Everybody else reaches the server directly. Both times are on one clock: when the holder last went
on, and when the request was sent that was granted to another.
"""

import sys
from pathlib import Path

import pytest
from tests.servers.proxy import Proxy

from acceptance.harness import CLOCK, Project, alive, pipeline, until
from dibs.core.lease import Ending, Lost, Outcome
from dibs.core.named import hold_ref

from .contending import get_it, try_once
from .places import CUT_OFF, Place
from .processes import Company

pytestmark = pytest.mark.long

TTL = "4s"
REF = hold_ref("resource", 1)
FAULTS = {"reset": Proxy.cut, "black-hole": Proxy.swallow, "held-up": Proxy.hold_up}
# Beats until somebody ends it, deaf to SIGTERM.
BEATER = Path(__file__).with_name("beater.py")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", CUT_OFF, indirect=True)
def test_a_holder_that_is_cut_off_stops_before_another_is_granted(
    place: Place, company: Company, fault: str
) -> None:
    store, proxy = place.open(), place.proxy()
    holder = company.actor("holder", place.url(proxy.port))
    held = holder.ask("hold", name="resource", ttl=TTL)
    until(lambda: holder.ask("condition")["beats"], "a renewal came through")
    assert try_once(store, REF) is None

    cut_at = CLOCK.now()
    FAULTS[fault](proxy)
    won = get_it(store, REF)
    stopped = holder.ask("stopped")
    assert cut_at < stopped["passed_at"] < won.asked_at
    assert stopped["lost"]
    assert won.fence > held["fence"]

    # What was on the way arrives now, and whatever else it tries: it changes nothing for the other.
    proxy.pass_on()
    holder.ask("release")
    record = store.read(REF)
    assert record is not None
    assert (record.lease.run, record.lease.fence) == (won.lease.run, won.fence)
    assert record.live
    assert record.lease.beats == 0
    assert holder.ask("condition")["lost"], "a lease that was lost does not come back"


@pytest.mark.parametrize("fault", ["reset", "black-hole"])
@pytest.mark.parametrize("place", CUT_OFF, indirect=True)
def test_the_handler_of_a_worker_that_is_cut_off_ends_before_another_is_granted(
    place: Place, project: Project, fault: str
) -> None:
    store, proxy = place.open(), place.proxy()
    beats = f"exec '{sys.executable}' -S '{BEATER}'"
    terms = "margin = '1900ms'"  # time to end a process that will not, on a machine that is busy
    project.begin(pipeline(one=beats, ttl="6s", extra=terms), 1)
    worker = project.worker("worker", env={"DIBS_LEASES": place.url(proxy.port)})
    handler = project.pid("pid")
    [claimed] = project.seen("claimed")
    project.seen("renewed")
    [record] = store.live()
    assert (record.lease.run, record.lease.fence) == (claimed["run"], int(claimed["fence"]))

    FAULTS[fault](proxy)
    won = get_it(store, record.lease.issue)
    assert not alive(handler)
    last_beat = float(project.lines("beats")[-1])
    assert last_beat < won.asked_at
    assert won.fence > record.lease.fence
    project.seen("lease_lost", run=claimed["run"])
    assert isinstance(store.renew(record.lease), Lost)
    store.release(won.lease, Ending(Outcome.CONCEDED))

    # The connection heals: the worker is still there, and starts again under a higher fence.
    proxy.pass_on()
    _, again = project.seen("claimed", 2)
    assert int(again["fence"]) > won.fence
    assert worker.running
    assert project.events("advanced") == []
