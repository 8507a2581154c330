"""`dibs doctor --live`, as a program, on a fake GitHub that keeps or breaks one assumption each."""

import json
import os
import signal
import threading
from contextlib import ExitStack
from datetime import timedelta

import pytest
from tests.in_process import run_in_process

from dibs.adapters.github.probing import Probes, probe_names
from dibs.frontends.cli.main import run
from dibs.ports.tracker import Lag, Probed, ProbeVerdict
from dibs.services.diagnosing import Level, Trial
from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Wrong

from .hubs import Hub, PushedClock

REPOSITORY = "acme/shop"
SETTINGS = 'tracker = "github:acme/shop"\n'


@pytest.fixture
def hub():
    with FakeHub(limits=Limits.off()) as running:
        running.user("worker", {REPOSITORY: Permission.WRITE}, token="worker-token")
        yield running


def doctor(hub, tmp_path, *words, settings=SETTINGS, token="worker-token"):
    (tmp_path / "dibs.toml").write_text(settings)
    environment = {
        **os.environ,
        "GITHUB_API_URL": hub.url,
        "GITHUB_TOKEN": token,
        "DIBS_STATE": str(tmp_path / "state"),
    }
    return run_in_process(run, ("doctor", "--live", *words), cwd=tmp_path, env=environment)


def findings(done):
    told = json.loads(done.stdout)["data"]["findings"]
    return {finding["check"]: (finding["level"], finding["text"]) for finding in told}


def left_open(hub):
    """The scratch issue's state, and the labels that are left."""
    view, repository = hub.state.primary(), hub.state.named(REPOSITORY)
    issues = view.issues(repository.id)
    return [issue.state for issue in issues], [label.name for label in view.labels(repository.id)]


def test_every_probe_has_a_verdict_the_lag_is_measured_and_nothing_is_left(hub, tmp_path):
    done = doctor(hub, tmp_path, "--json")
    found = findings(done)
    assert done.returncode == 0, done.stdout
    also = {"assignees", "times", "count", "pulls", "collaborators", "scratch", "settle"}
    assert set(found) == {*probe_names(), *also}
    levels = {check: level for check, (level, _) in found.items() if level != "ok"}
    assert levels == {"collaborators": "warn"}, "the list is for members of the organisation"
    assert left_open(hub) == (["closed"], [])
    live = json.loads(done.stdout)["data"]["live"]
    assert [lag["over"] for lag in live["lag"]] == ["REST", "GraphQL"]
    assert all((lag["writes"], lag["max_s"]) == (4, 0) for lag in live["lag"])
    assert (live["settle_s"], live["proposed_settle_s"]) == (5, 5)
    assert hub.counts.told()["requests"] <= 35
    assert done.stderr.startswith("acme/shop: makes one issue with the label dibs:scratch")


def test_for_people_it_is_a_report_with_the_lag_and_the_settle(hub, tmp_path):
    done = doctor(hub, tmp_path)
    assert "ok    lag            over REST: p50 0.00 s, max 0.00 s in 4 writes" in done.stdout
    assert "ok    settle         settle is 5s; 5s would follow from the lag" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" 1 warn, 0 fail")


def probed(opened, *faults):
    """The probes by themselves, on virtual time: what each said, and the lags."""
    hub = Hub(opened)
    door = hub.client(clock=PushedClock(hub)).door
    hub.hub.faults.add(*faults)
    said = list(Probes(door).run())
    lags = {one.over: one.seconds for one in said if isinstance(one, Lag)}
    return {one.probe: one for one in said if isinstance(one, Probed)}, lags


def test_the_lag_is_measured_over_each_api():
    late = Fault(Wrong.LAG, seconds=(3.0, 3.0), kind="comments")
    with ExitStack() as opened:
        found, lags = probed(opened, late)
    assert {verdict.verdict for verdict in found.values()} <= {
        ProbeVerdict.HOLDS,
        ProbeVerdict.DIFFERS,
    }
    assert list(lags) == ["REST", "GraphQL"]
    assert all(
        len(seconds) == 4 and 3 <= min(seconds) <= max(seconds) < 6 for seconds in lags.values()
    )


def test_a_write_that_is_never_shown_breaks_the_lag_and_the_order():
    with ExitStack() as opened:
        found, lags = probed(opened, Fault(Wrong.SHORT, kind="GET .*/comments"))
    assert found["lag"].text == "REST does not show a write within 30 s"
    assert {found[name].verdict for name in ("lag", "order")} == {ProbeVerdict.BREAKS}
    assert lags == {}
    assert found["count"].text == "the issue counts 3 comments, and lists 2"


@pytest.mark.parametrize(
    ("settle_s", "seconds", "level", "text"),
    [
        (5, (0.0, 0.1), Level.OK, "settle is 5s; 5s would follow from the lag"),
        (1, (0.0, 0.1), Level.WARN, "settle is 1s, and 5s follows from the lag"),
        (1, (0.0, 1.2), Level.FAIL, "settle is 1s, and 5s follows from the lag"),
        (5, (0.2, 4.1), Level.WARN, "settle is 5s, and 9s follows from the lag"),
        (9, (0.2, 4.1), Level.OK, "settle is 9s; 9s would follow from the lag"),
    ],
)
def test_the_settle_that_follows_is_twice_the_longest_lag_and_no_less_than_our_own(
    settle_s, seconds, level, text
):
    class Lagging:
        plan = ""

        def run(self):
            yield Lag("REST", seconds)

    trial = Trial(Lagging(), timedelta(seconds=settle_s), timedelta(seconds=5))
    *_, last = trial.run()
    assert (last.level, last.text) == (level, text)


@pytest.mark.parametrize(
    ("wrong", "check", "level", "words"),
    [
        (Fault(Wrong.ERROR_BEFORE, kind="permission"), "writers", "warn", "could not be tried"),
        (Fault(Wrong.DROP_BEFORE, kind="ProbeTrip"), "trip", "warn", "could not be tried"),
    ],
)
def test_an_assumption_that_does_not_hold_is_named(hub, tmp_path, wrong, check, level, words):
    hub.faults.add(wrong)
    found = findings(doctor(hub, tmp_path, "--json"))
    assert found[check][0] == level
    assert words in found[check][1]
    assert left_open(hub) == (["closed"], [])


def test_an_account_that_is_not_seen_by_others_fails(hub, tmp_path):
    hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind="GET /users/", status=404))
    done = doctor(hub, tmp_path, "--json")
    assert done.returncode == 1
    assert findings(done)["visible"][0] == "fail"


def test_a_token_that_may_not_write_leaves_nothing_and_says_so(hub, tmp_path):
    hub.user("reader", {REPOSITORY: Permission.NONE}, token="reader-token")
    hub.state.change_repository(REPOSITORY, private=True)
    done = doctor(hub, tmp_path, token="reader-token")
    assert done.returncode == 9
    assert left_open(hub) == ([], [])


def test_an_interrupted_run_cleans_up(hub, tmp_path):
    asked = threading.Event()

    def interrupt(request, _):
        if "ProbeTrip" in request.body.decode() and not asked.is_set():
            asked.set()
            os.kill(os.getpid(), signal.SIGINT)

    hub.observers.append(interrupt)
    try:
        done = doctor(hub, tmp_path)
    finally:
        hub.observers.remove(interrupt)
    assert (done.returncode, asked.is_set()) == (130, True)
    assert left_open(hub) == (["closed"], [])


def test_what_cannot_be_cleaned_up_is_named(hub, tmp_path):
    hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind="^PATCH /repos/{owner}/{repo}/issues/{number}$"))
    found = findings(doctor(hub, tmp_path, "--json"))
    assert "acme/shop#1 is still open" in found["scratch"][1]


def test_a_scratch_issue_whose_reply_was_lost_is_told_of(hub, tmp_path):
    hub.faults.add(Fault(Wrong.DROP_AFTER, kind="^POST /repos/{owner}/{repo}/issues$"))
    done = doctor(hub, tmp_path)
    assert done.returncode != 0
    assert "an issue with the label dibs:scratch may be open" in done.stderr + done.stdout


@pytest.mark.parametrize("tracker", ["memory:", "sqlite:backlog.db"])
def test_a_tracker_of_this_machine_has_nothing_to_try(hub, tmp_path, tracker):
    if tracker.startswith("sqlite"):
        (tmp_path / "dibs.toml").write_text(f'tracker = "{tracker}"\n')
        run_in_process(run, ("init",), cwd=tmp_path, env=dict(os.environ))
    done = doctor(hub, tmp_path, settings=f'tracker = "{tracker}"\n')
    assert done.returncode == 2
    assert "has nothing to try" in done.stderr


def test_the_other_checks_are_not_mixed_in(hub, tmp_path):
    assert doctor(hub, tmp_path, "--offline").returncode == 2
    assert hub.counts.told()["requests"] == 0


def test_without_graphql_what_can_be_tried_is_tried_and_nothing_is_left():
    with ExitStack() as opened:
        hub = Hub(opened, graphql=False)
        door = hub.client(clock=PushedClock(hub)).door
        found = {one.probe: one.verdict for one in Probes(door).run() if isinstance(one, Probed)}
        assert hub.issue(1).state == "closed"
    assert found["account"] is found["lag"] is found["trip"] is ProbeVerdict.UNKNOWN
    assert found["unchanged"] is found["scratch"] is ProbeVerdict.HOLDS
