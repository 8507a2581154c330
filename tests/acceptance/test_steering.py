"""A person's word reaches running work: pause, resume, revoke, take."""

import sys
from pathlib import Path

import pytest

from .harness import EITHER_LEASES, LEASES, LEDGER, Project, alive, pipeline, until
from .terms import AMPLE, BRISK

BEATER = f"exec '{sys.executable}' -S '{Path(__file__).with_name('beater.py')}' mine"
SLEEPING = "echo $$ >> mine.pids; exec sleep 600"
WAITING = f'touch "started.$DIBS_ISSUE"; until test -e go; do sleep 0.02; done; {LEDGER}'


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_paused_issues_work_stops_at_the_next_renewal_and_is_nobodys_failure(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, one=BEATER, ttl=AMPLE, extra=BRISK), 1)
    worker = project.worker("worker", "--drain")
    handler = project.pid("mine.pids")
    assert project.dibs("pause", "#1", "--reason", "not now").code == 0
    reply = worker.wait().quiet()
    assert reply.data["outcomes"] == {"returned": 1}
    assert not alive(handler)
    assert project.endings() == [("#1", "one", "returned")]
    assert project.labels() == {"stage:one", "paused"}
    why = project.dibs("why", "1", "--json").data
    assert [reason["code"] for reason in why["reasons"]] == ["PAUSED"]
    assert why["failed_attempts"] == 0
    assert project.dibs("claim", "1").code == 6

    project.configure(pipeline(leases, ttl=AMPLE))
    assert project.dibs("resume", "1").code == 0
    assert project.dibs("resume", "1").code == 3
    project.drain()
    project.assert_drained(1)


@pytest.mark.parametrize("leases", LEASES)
@pytest.mark.parametrize(
    "word",
    [
        ("pause", "1", "--reason", "not now"),
        ("revoke", "1", "--reason", "wrong branch"),
        ("label", "1", "--add", "paused"),
    ],
    ids=lambda word: word[0],
)
def test_a_persons_word_reaches_a_worker_of_this_machine_long_before_its_renewal(
    project: Project, word: tuple[str, ...], leases: str
) -> None:
    project.begin(pipeline(leases, one=f"exec 2>&1; {SLEEPING}", ttl="2h"), 1)
    worker = project.worker("worker", "--once")
    handler = project.pid("mine.pids")
    reply = project.dibs(*word)
    assert reply.code == 0
    if word[0] != "label":
        assert "worker is told within seconds on this machine" in reply.out
        assert "elsewhere at its next renewal, within 40m" in reply.out
    assert worker.wait().data["outcomes"] == {"returned": 1}
    assert not alive(handler)
    assert project.failed_attempts() == 0
    assert not list((project.root / ".dibs").glob("wake-*")), "the holder removes the hint"


@pytest.mark.parametrize(
    "word",
    [("add", "new"), ("resume", "2"), ("label", "2", "--remove", "paused")],
    ids=lambda word: word[0],
)
def test_an_idle_worker_hears_of_work_long_before_its_poll(
    project: Project, word: tuple[str, ...]
) -> None:
    project.begin(pipeline(ttl=AMPLE, poll="1h").replace("'200ms'", "'1h'"), 2)
    assert project.dibs("pause", "2", "--reason", "later").code == 0
    project.worker("worker")
    project.seen("advanced", 2)
    assert project.dibs(*word).code == 0
    project.seen("advanced", 4)


@pytest.mark.parametrize("scope", ["--fleet", "--repository"])
def test_a_paused_fleet_finishes_what_it_has_and_claims_nothing(
    project: Project, scope: str
) -> None:
    project.begin(pipeline(one=WAITING, ttl=AMPLE), 2)
    worker = project.worker("worker", "--drain")
    project.appears("started.#1")
    assert project.dibs("pause", scope, "--reason", "a freeze").code == 0
    (project.root / "go").touch()
    reply = worker.wait().quiet()
    assert (reply.code, reply.data["claimed"]) == (0, 1)
    assert reply.data["outcomes"] == {"advanced": 1}
    assert reply.data["paused"] == ["a freeze"]
    assert not (project.root / "started.#2").exists()

    for command in (("claim", "2"), ("claim", "--next"), ("work", "--drain"), ("work", "--once")):
        assert project.dibs(*command).code == 6, command
    assert len(project.events("claimed")) == 1
    code = "FLEET_PAUSED" if scope == "--fleet" else "REPOSITORY_PAUSED"
    assert code in project.dibs("why", "2").out
    assert project.dibs("resume", scope).code == 0
    assert project.dibs("resume", scope).code == 3
    project.drain()
    project.assert_drained(2)


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_graceful_revoke_stops_the_holder_and_nobody_overlaps(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, one=BEATER, ttl=AMPLE, extra=BRISK), 1)
    workers = [project.worker(name) for name in ("first", "second")]
    [first] = project.seen("handler_started")
    until(lambda: _beats(project, first["run"]), "the first handler beats")
    reply = project.dibs("revoke", "1", "--reason", "wrong machine", "--json")
    assert (reply.code, reply.data["run"]) == (0, first["run"])
    second = project.seen("handler_started", 2)[1]
    until(lambda: _beats(project, second["run"]), "the next handler beats")
    assert _beats(project, first["run"])[-1] < _beats(project, second["run"])[0]
    assert second["fence"] > first["fence"]
    assert project.endings() == [("#1", "one", "returned")]
    assert project.failed_attempts() == 0
    assert all(worker.running for worker in workers)


def _beats(project: Project, run: str) -> list[int]:
    return [int(line) for line in project.lines(f"mine.{run}.beats")]


def test_a_revoke_hits_only_the_run_it_names_and_force_must_be_meant(project: Project) -> None:
    project.begin(pipeline(ttl="10m"), 1)
    assert project.dibs("revoke", "1", "--reason", "x").code == 3
    run = project.dibs("claim", "1", "--json").data["run"]
    before = project.dump()
    assert project.dibs("revoke", "1", "--reason", "x", "--run", "0ther").code == 4
    assert project.dibs("revoke", "1", "--reason", "x", "--force").code == 2
    assert project.dump() == before
    assert project.dibs("revoke", "1", "--reason", "x", "--force", "--yes").code == 0
    lost = project.dibs("heartbeat", "1", "--run", run, "--json")
    assert (lost.code, lost.error["code"]) == (5, "LEASE_LOST")
    assert project.dibs("claim", "1").code == 0


def test_a_person_takes_an_issue_and_workers_keep_off(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 2)
    assert project.dibs("take", "1", "--as", "ann").code == 0
    reply = project.worker("worker", "--once").wait()
    assert reply.data["outcomes"] == {"advanced": 1}
    assert project.ledger() == {("#2", "one"): 1}
    assert project.dibs("take", "1", "--as", "bob").code == 4
    assert project.dibs("give-back", "1", "--as", "bob").code == 4
    assert project.dibs("give-back", "1", "--as", "ann", "--to", "two").code == 0
    assert project.dibs("give-back", "1", "--as", "ann").code == 5
    project.drain()
    project.assert_drained(2)


def test_a_person_waits_for_the_present_holder(project: Project) -> None:
    project.begin(pipeline(one=WAITING, ttl=AMPLE), 1)
    worker = project.worker("worker", "--once")
    project.appears("started.#1")
    person = project.start("person", "take", "1", "--as", "ann", "--wait", "60s", "--json")
    until(lambda: "waiting" in person.err, "the person waits")
    (project.root / "go").touch()
    assert worker.wait().data["outcomes"] == {"advanced": 1}
    taken = person.wait()
    assert (taken.code, taken.data["holder"], taken.data["stage"]) == (0, "ann", "two")


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_gate_is_shut_until_a_person_approves_and_opens_once(
    project: Project, leases: str
) -> None:
    text = pipeline(leases, two="exit 1", ttl=AMPLE)
    gate = "gate = 'approval'\nnext = 'done'\n"
    text = text.replace("name = 'two'\nnext = 'done'\n", f"name = 'two'\n{gate}", 1)
    project.begin(text.replace("run = '''exit 1'''", ""), 2)
    reply = project.drain()
    assert reply.data["outcomes"] == {"advanced": 2}
    assert [project.labels(n) for n in (1, 2)] == [{"stage:two"}, {"stage:two"}]
    assert project.dibs("claim", "1").code == 6
    assert project.worker("idle", "--drain").wait().code == 3

    assert project.dibs("approve", "1", "--json").data == {"approved": {"#1": "two"}}
    project.drain()
    assert [project.labels(n) for n in (1, 2)] == [{"stage:done"}, {"stage:two"}]
    assert project.dibs("approve", "1").code == 3
    assert project.dibs("approve", "2").code == 0
    project.drain()
    project.assert_drained(2)
    assert project.ledger() == {("#1", "one"): 1, ("#2", "one"): 1}
    assert (project.gained("approved"), project.gained("parked")) == ({"#1": 1, "#2": 1}, {})
