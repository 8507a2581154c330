"""A cheap reading that fails is never replaced by a dear one: counted at the server."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from dibs.core.errors import RateLimited, Unavailable
from dibs.core.issue import Draft
from dibs.ports.tracker import IssueQuery
from dibs_lab.fakehub import Fault, Limits, Wrong

from .hubs import Hub
from .projects import FLEET, QUICK, project_on_a_hub

READY = IssueQuery(("stage:ready",))
LIST = "GET /repos/{owner}/{repo}/issues"


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def tracker(hub):
    made = hub.client()
    for number in range(30):
        made.create(Draft(f"issue {number}", labels=frozenset({"stage:ready"})))
    return made


def limited(hub):
    hub.hub.world.meter.limits = replace(Limits.off(), concurrent=0)
    return RateLimited


def broken(hub):
    hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE))
    return Unavailable


WRONG = pytest.mark.parametrize("wrong", [limited, broken])


@WRONG
def test_a_list_that_is_refused_is_asked_for_once_and_nothing_else_is(hub, tracker, wrong):
    tracker.find(READY)
    error = wrong(hub)
    with hub.counted() as counted, pytest.raises(error):
        tracker.find(READY)
    assert counted == {LIST: 1}


@WRONG
def test_a_look_at_many_that_is_refused_is_not_replaced_by_a_look_at_each(hub, tracker, wrong):
    refs = [issue.ref for issue in tracker.find(READY).issues]
    error = wrong(hub)
    with hub.counted() as counted, pytest.raises(error):
        tracker.read_many(refs)
    assert counted == {"graphql query Threads": 1}


@WRONG
def test_lists_with_comments_that_are_refused_are_not_replaced_either(hub, tracker, wrong):
    error = wrong(hub)
    with hub.counted() as counted, pytest.raises(error):
        tracker.find_snapshots((READY,))
    assert counted == {"graphql query Find": 1}


@WRONG
def test_a_reading_that_is_refused_is_not_pieced_together(hub, tracker, wrong):
    ref = tracker.find(READY).issues[0].ref
    tracker.read(ref)
    error = wrong(hub)
    with hub.counted() as counted, pytest.raises(error):
        tracker.read(ref)
    assert counted == {"graphql query Read": 1}


def test_a_worker_without_graphql_looks_at_what_it_tries_and_not_at_all_that_it_could(tmp_path):
    """Where many are one request it looks ahead; over REST each is two."""
    with project_on_a_hub(tmp_path, graphql=False) as project:
        project.begin_with(QUICK)
        project.backlog(1)
        project.work()
        project.backlog(60)
        with project.counted() as counted:
            assert project.dibs("work", "--once").code == 0
        assert len(project.lines()) == 2
        assert sum(counted.values()) <= 30


def test_where_graphql_s_budget_is_spent_nothing_is_begun_and_nothing_else_is_asked(tmp_path):
    with project_on_a_hub(tmp_path) as project:
        project.begin_with(QUICK)
        project.backlog(60)
        meter, state = project.hub.world.meter, project.hub.state
        meter.limits = replace(Limits.off(), rest_per_hour=5_000, graphql_per_hour=5_000)
        meter.spend(state.viewer(f"{FLEET}-token"), 5_000, "graphql")
        with project.counted() as counted:
            assert project.dibs("work", "--once").code == 7
        assert sum(counted.values()) <= 10
