"""`dibs budget`, as a program, against a GitHub of our own."""

import json
import os
from datetime import UTC, datetime

import pytest
from tests.in_process import run_in_process

from dibs.frontends.cli.main import run
from dibs_lab.fakehub import FakeHub, Limits, Permission, Standing


@pytest.fixture
def hub():
    with FakeHub(limits=Limits(content_per_minute=2)) as running:
        running.user("worker", {"acme/shop": Permission.WRITE}, token="worker-token")
        yield running


def dibs(hub, tmp_path, *words):
    (tmp_path / "dibs.toml").write_text('tracker = "github:acme/shop"\n')
    environment = {
        **os.environ,
        "GITHUB_API_URL": hub.url,
        "GITHUB_TOKEN": "worker-token",
        "DIBS_STATE": str(tmp_path / "state"),
    }
    done = run_in_process(run, words, cwd=tmp_path, env=environment)
    assert "worker-token" not in done.stdout + done.stderr
    return done


def told(hub, tmp_path):
    done = dibs(hub, tmp_path, "budget", "--json")
    answer = json.loads(done.stdout)
    assert answer["exit"] == done.returncode
    (budget,) = answer["data"]["budgets"]
    return done.returncode, budget


def test_what_is_left_and_what_was_spent(hub, tmp_path):
    assert dibs(hub, tmp_path, "add", "one", "--json").returncode == 0
    hub.world.meter.spend(hub.state.viewer("worker-token"), 1000)
    code, budget = told(hub, tmp_path)
    assert code == 0
    limits = {one["name"]: one for one in budget["limits"]}
    rest = limits["REST"]
    assert rest["used"] >= 1001, "other machines use the same token"
    assert rest["used"] + rest["remaining"] == rest["limit"] == 5000
    resets = datetime.fromisoformat(rest["resets_at"])
    assert 0 < (resets - datetime.fromisoformat(budget["now"])).total_seconds() <= 3600
    assert resets.tzinfo == UTC
    assert {one["name"]: one["used"] for one in budget["pace"]}["creations a minute"] == 1
    assert budget["counted"]["rest issue"] == 1
    assert (budget["shared"], budget["shut"], budget["trouble"]) == (True, None, None)


def test_the_limits_are_those_that_github_reports_such_as_a_job_of_actions_has(hub, tmp_path):
    hub.world.meter.limits = Limits(rest_per_hour=1000, graphql_per_hour=1000)
    code, budget = told(hub, tmp_path)
    assert code == 0
    assert {one["name"]: one["limit"] for one in budget["limits"]} == {
        "REST": 1000,
        "GraphQL": 1000,
    }


def test_asking_costs_nothing(hub, tmp_path):
    told(hub, tmp_path)
    before = hub.counts.told()["points"]
    told(hub, tmp_path)
    assert hub.counts.told()["points"] == before


def test_for_people(hub, tmp_path):
    done = dibs(hub, tmp_path, "budget")
    assert done.returncode == 0
    for word in ("REST", "GraphQL", "resets in", "creations a minute", "80", "requests pass"):
        assert word in done.stdout


def test_a_rest_is_told_with_its_end(hub, tmp_path):
    codes = [dibs(hub, tmp_path, "add", "one").returncode for _ in range(3)]
    assert codes == [0, 0, 7]
    asked = hub.counts.told()["requests"]
    code, budget = told(hub, tmp_path)
    assert code == 0
    assert 0 < budget["shut"]["wait_s"] <= 61
    assert budget["now"] is None
    assert hub.counts.told()["requests"] == asked, "the server is left alone"
    assert "nothing is sent for" in dibs(hub, tmp_path, "budget").stdout


def test_a_token_that_is_no_good_says_so(hub, tmp_path):
    hub.state.set_standing("worker-token", Standing.REVOKED)
    code, budget = told(hub, tmp_path)
    assert code == 9
    assert budget["trouble"]["code"] == "NOT_PERMITTED"


def test_a_tracker_that_counts_nothing_has_none(tmp_path):
    (tmp_path / "dibs.toml").write_text('tracker = "memory:"\n')
    done = run_in_process(run, ["budget"], cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 3
    assert "no budget" in done.stderr
