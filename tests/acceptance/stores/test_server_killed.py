"""The server is killed and started again on its data while a lease is held: nobody is fooled."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from acceptance.harness import LEDGER, Project, pipeline, until
from dibs.core.named import hold_ref

from .contending import get_it, try_once
from .places import KILLED, Place
from .processes import Company

pytestmark = pytest.mark.long

REF = hold_ref("resource", 1)
LONG = "24s"
"""Longer than any of the servers takes to come back, on however busy a machine."""
SHORT = "4s"
# Says that it is there, waits to be let go on, and then completes its step.
WAITING = f'touch "started.$DIBS_STAGE"; until test -e go; do sleep 0.02; done; {LEDGER}'


@pytest.mark.parametrize("place", KILLED, indirect=True)
def test_a_holder_keeps_its_lease_over_a_restart(place: Place, company: Company) -> None:
    store = place.open()
    holder = company.actor("holder", place.url())
    held = holder.ask("hold", name="resource", ttl=LONG)
    with ThreadPoolExecutor(1) as aside:
        contending = aside.submit(get_it, place.open(), REF)  # before, during and after
        place.kill()
        down = holder.ask("condition")
        place.start()
        until(lambda: holder.ask("condition")["beats"] > down["beats"], "it is renewed again")
        assert not holder.ask("condition")["lost"]
        record = store.read(REF)
        assert record is not None
        assert (record.lease.run, record.lease.fence) == (held["run"], held["fence"])
        assert record.live
        assert try_once(store, REF) is None
        released = holder.ask("release")
        won = contending.result()
    assert "outage" not in released
    assert won.told_at > released["asked_at"], "nobody else got in before it was given back"
    assert won.fence > held["fence"]


@pytest.mark.parametrize("place", KILLED, indirect=True)
def test_a_holder_stops_in_time_while_the_server_is_down(place: Place, company: Company) -> None:
    store = place.open()
    holder = company.actor("holder", place.url())
    held = holder.ask("hold", name="resource", ttl=SHORT)
    place.kill()
    stopped = holder.ask("stopped")
    assert stopped["lost"]
    place.start()
    won = get_it(store, REF)
    assert stopped["passed_at"] < won.asked_at
    assert won.fence > held["fence"]
    holder.ask("release")  # too late: it changes nothing
    record = store.read(REF)
    assert record is not None
    assert record.lease.run == won.lease.run
    assert record.live


@pytest.mark.parametrize("place", KILLED, indirect=True)
def test_a_worker_survives_a_restart_and_finishes_its_issue(place: Place, project: Project) -> None:
    project.begin(pipeline(one=WAITING, ttl=LONG), 1)
    env = {"DIBS_LEASES": place.url()}
    worker = project.worker("worker", "--drain", env=env)
    project.appears("started.one")
    place.kill()
    place.start()
    project.seen("renewed")
    (project.root / "go").touch()
    assert worker.wait().quiet().data["outcomes"] == {"advanced": 2}
    _done_once(project)
    assert project.ledger() == {("#1", "one"): 1, ("#1", "two"): 1}


@pytest.mark.parametrize("place", KILLED, indirect=True)
def test_a_worker_whose_handler_ends_while_the_server_is_down_finishes_its_issue(
    place: Place, project: Project
) -> None:
    """What cannot be told to the store is not believed: the step may have to be done again."""
    project.begin(pipeline(one=WAITING, ttl=SHORT), 1)
    worker = project.worker("worker", "--drain", env={"DIBS_LEASES": place.url()})
    project.appears("started.one")
    place.kill()
    (project.root / "go").touch()
    until(project.lines, "the handler is done while the server is down")
    place.start()
    assert worker.wait().quiet().code == 0
    _done_once(project)
    assert project.ledger()["#1", "one"] >= 1
    assert project.ledger()["#1", "two"] == 1


def _done_once(project: Project) -> None:
    assert [event["stage"] for event in project.events("advanced")] == ["one", "two"]
    assert project.labels() == {"stage:done"}
    for stage in ("two", "done"):
        assert project.gained(f"stage:{stage}") == {"#1": 1}
    fences = [int(event["fence"]) for event in project.events("claimed")]
    assert fences == sorted(set(fences)), "every grant has a higher fence"
