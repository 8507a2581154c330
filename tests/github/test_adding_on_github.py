"""`dibs add`, as a program, on a fake GitHub that limits new issues as others measured it."""

import json
import os
import signal

import pytest
from tests.in_process import run_in_process

from dibs.frontends.cli.main import run
from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Wrong

TITLES = [f"issue {number}" for number in range(25)]


@pytest.fixture
def hub():
    with FakeHub(limits=Limits(issues_per_minute=20, issues_per_hour=150)) as running:
        running.user("worker", {"acme/shop": Permission.WRITE}, token="worker-token")
        yield running


def add(hub, tmp_path, *words, state="state"):
    (tmp_path / "dibs.toml").write_text('tracker = "github:acme/shop"\nsettle = "50ms"\n')
    environment = {
        **os.environ,
        "GITHUB_API_URL": hub.url,
        "GITHUB_TOKEN": "worker-token",
        "DIBS_STATE": str(tmp_path / state),
    }
    return run_in_process(run, ("add", *words), cwd=tmp_path, env=environment)


def made(hub):
    return hub.counts.told()["created"].get("issues", 0)


def test_a_batch_keeps_to_the_limit_of_new_issues_and_tells_what_it_made(hub, tmp_path):
    done = add(hub, tmp_path, *TITLES, "--wait", "1s", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit"]) == (7, 7)
    error = answer["error"]
    assert error["code"] == "RATE_LIMITED"
    assert [issue["title"] for issue in error["added"]] == TITLES[:19]
    assert error["left"] == TITLES[19:]
    assert made(hub) == 19
    assert "403" not in hub.counts.told()["by_status"], "the server did not have to say so"
    assert done.stderr == "19 of 25 are there; the same with --once makes the rest\n"


def test_the_same_with_once_makes_the_rest_and_nothing_twice(hub, tmp_path):
    done = add(hub, tmp_path, *TITLES, "--wait", "1s")
    assert done.returncode == 7
    assert done.stdout.splitlines() == [f"acme/shop#{n + 1} issue {n} (ready)" for n in range(19)]
    hub.world.meter.forget()
    done = add(hub, tmp_path, *TITLES, "--once", state="of another machine")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[18] == "was there: acme/shop#19 issue 18 (ready)"
    assert lines[19] == "acme/shop#20 issue 19 (ready)"
    assert len(lines) == made(hub) == 25


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_an_addition_that_is_interrupted_says_what_it_made(hub, tmp_path, words):
    def interrupt(request, _):
        if request.verb == "POST" and b"issue 2" in request.body:
            os.kill(os.getpid(), signal.SIGINT)

    hub.observers.append(interrupt)
    try:
        done = add(hub, tmp_path, *TITLES, *words)
    finally:
        hub.observers.remove(interrupt)
    assert done.returncode == 130
    told = [line for line in (done.stderr if words else done.stdout).splitlines() if line]
    rest = "interrupted: 2 of 25 are there; the same with --once makes the rest"
    there = ["acme/shop#1 issue 0 (ready)", "acme/shop#2 issue 1 (ready)"]
    assert told == ([*there, rest] if words else there)
    assert done.stderr.splitlines()[-1:] == [rest]
    assert "" not in done.stderr.splitlines()


@pytest.mark.parametrize("wrong", [Wrong.DROP_AFTER, Wrong.ERROR_AFTER, Wrong.DROP_BEFORE])
def test_an_issue_whose_reply_is_lost_is_made_once(hub, tmp_path, wrong):
    hub.faults.add(Fault(wrong, kind="POST /repos/{owner}/{repo}/issues$", times=1))
    done = add(hub, tmp_path, "one", "two", "--json")
    assert done.returncode == 0, done.stderr
    assert [issue["issue"] for issue in json.loads(done.stdout)["data"]] == [
        "acme/shop#1",
        "acme/shop#2",
    ]
    assert made(hub) == 2
