"""A person's word reaches running work: pause, resume, revoke, take."""

import signal
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
        assert "worker is told within seconds if a dibs process on this machine" in reply.out
        assert "else at its next renewal, within 40m" in reply.out
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

    reply = project.dibs("approve", "1", "--as", "ann", "--json")
    assert reply.data == {"approved": {"#1": "two"}, "moved": {"#1": "done"}, "refused": {}}
    assert [project.labels(n) for n in (1, 2)] == [{"stage:done"}, {"stage:two"}]
    assert project.dibs("approve", "1").code == 3
    assert "moved on to done" in project.dibs("approve", "2").out
    project.assert_drained(2)
    assert project.ledger() == {("#1", "one"): 1, ("#2", "one"): 1}
    assert (project.gained("approved"), project.gained("parked")) == ({"#1": 1, "#2": 1}, {})


def _gated(leases: str = "auto", handler: str = "") -> str:
    """A pipeline whose second stage has a gate, and a handler only if one is given."""
    text = pipeline(leases, two=handler or "none", ttl=AMPLE)
    gate = "gate = 'approval'\nnext = 'done'\n"
    text = text.replace("name = 'two'\nnext = 'done'\n", f"name = 'two'\n{gate}", 1)
    return text if handler else text.replace("run = '''none'''", "")


def test_an_approval_leaves_to_the_handler_what_the_handler_has_to_do(project: Project) -> None:
    project.begin(_gated(handler=LEDGER), 1)
    project.drain()
    reply = project.dibs("approve", "1", "--json")
    assert reply.data == {"approved": {"#1": "two"}, "moved": {}, "refused": {}}
    assert project.labels() == {"stage:two", "approved"}
    project.drain()
    project.assert_drained(1)
    assert project.ledger() == {("#1", "one"): 1, ("#1", "two"): 1}


def test_an_approval_says_what_keeps_the_issue_where_it_is(project: Project) -> None:
    project.begin(_gated(), 1)
    project.drain()
    assert project.dibs("take", "1", "--as", "ann").code == 0
    reply = project.dibs("approve", "1", "--as", "bob")
    assert reply.code == 0
    assert "#1 approved, but it is still in two:" in reply.out
    assert "ann holds it" in reply.out
    assert project.labels() == {"stage:two", "claimed", "approved"}
    assert project.dibs("approve", "1", "--as", "ann", "--json").data["moved"] == {"#1": "done"}


def test_an_approval_that_was_killed_is_repeated(project: Project) -> None:
    project.begin(_gated(), 1)
    project.drain()
    killed = project.dibs("approve", "1", env={"DIBS_FAILPOINT": "claim.granted"}, alone=True)
    assert killed.code == -signal.SIGKILL
    assert project.dibs("approve", "1", "--json").data["moved"] == {"#1": "done"}


def test_workers_that_bring_their_own_handler_are_known(project: Project) -> None:
    """README's form of a worker; it is killed, and then no worker serves the stage."""
    text = _gated().replace(f"run = '''{LEDGER}'''", "")
    project.begin(text, 1)
    codes = lambda: [one["code"] for one in project.dibs("why", "1", "--json").data["reasons"]]  # noqa: E731
    assert codes() == ["NOT_SERVED"]
    run = f"touch started; until test -e go; do sleep 0.02; done; {LEDGER}"
    worker = project.worker("one", "--stage", "one", "--run", run)
    until(lambda: codes() == ["HELD"], "the worker is known")
    second = project.worker("two", "--stage", "two", "--run", LEDGER)
    files = project.root / ".dibs" / "workers"
    until(lambda: len(list(files.iterdir())) == 2, "both workers are known")
    (project.root / "go").touch()
    project.seen("advanced")
    until(lambda: codes() == ["GATE_SHUT"], "it waits for a person")
    reply = project.dibs("approve", "1", "--json")
    assert reply.data["moved"] == {}, "the second worker has a handler for the stage"
    project.seen("advanced", 2)
    project.assert_drained(1)

    worker.signal(signal.SIGKILL)
    second.signal(signal.SIGTERM)
    worker.wait(), second.wait()
    project.add(1)
    assert project.dibs("why", "2").out.count("NOT_SERVED") == 1
    assert len(list(files.iterdir())) == 1, "the killed one could not remove its file"
    assert project.worker("third", "--stage", "one", "--run", LEDGER, "--drain").wait().code == 0
    assert not list(files.iterdir())


def test_a_gate_that_was_opened_by_hand_is_passed_by_a_worker_or_a_person(
    project: Project,
) -> None:
    text = _gated().replace(f"run = '''{LEDGER}'''", "")
    project.begin(text, 0)
    project.add(2, "--stage", "two")
    for number in ("1", "2"):
        assert project.dibs("label", number, "--add", "approved").code == 0
        why = project.dibs("why", number).out
        assert "no worker runs that would move it on" in why
        assert f"dibs approve {number} moves it on" in why
    assert project.dibs("approve", "1").code == 0
    project.drain("--stage", "two")
    assert [project.labels(n) for n in (1, 2)] == [{"stage:done"}, {"stage:done"}]


def test_who_paused_an_issue_and_why_is_shown(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 1)
    assert project.dibs("show", "1", "--json").data["paused"] is None
    assert project.dibs("pause", "1", "--as", "ann", "--reason", "spec -- is\nchanging").code == 0
    paused = project.dibs("show", "1", "--json").data["paused"]
    assert (paused["by"], paused["reason"]) == ("ann", "spec -- is\nchanging")
    assert "paused  by ann" in project.dibs("show", "1").out
    assert project.dibs("resume", "1", "--as", "bob").code == 0
    assert project.dibs("show", "1", "--json").data["paused"] is None
    assert project.dibs("label", "1", "--add", "paused").code == 0
    assert project.dibs("show", "1", "--json").data["paused"] is None, "by hand: nobody knows"


def test_a_person_who_has_an_issue_is_told_so(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 1)
    first = project.dibs("take", "1", "--as", "ann lee")
    assert "give it back with: dibs give-back 1 --as 'ann lee'" in first.out
    again = project.dibs("take", "1", "--as", "ann lee", "--wait", "1h")
    assert again.code == 0
    assert "you have #1 already, until 20" in again.out
    assert "--as 'ann lee'" in again.out
    assert project.dibs("take", "1").code == 4
    data = project.dibs("take", "1", "--as", "ann lee", "--json").data
    assert (data["holder"], data["fence"]) == ("ann lee", 1)


def test_an_agent_of_the_same_name_is_not_the_person(project: Project) -> None:
    project.begin(pipeline(ttl=AMPLE), 1)
    run = project.dibs("claim", "1", "--as", "root", "--json").data["run"]
    assert project.dibs("take", "1", "--as", "root").code == 4
    project.dibs("approve", "1", "--as", "root")
    assert project.dibs("heartbeat", run).code == 0


def test_a_handler_that_names_a_folder_means_that_folder(project: Project, tmp_path: Path) -> None:
    """DIBS_CONFIG is for a handler that names none."""
    project.begin(pipeline(), 1)
    fleet = {"DIBS_CONFIG": str(project.root / "dibs.toml")}
    other = tmp_path / "other"
    other.mkdir()
    assert project.dibs("-C", str(other), "init", env=fleet).code == 0
    assert (other / "dibs.toml").exists()
    assert project.dibs("-C", str(other), "add", "theirs", env=fleet).code == 0
    listed = project.dibs("-C", str(other), "list", "--json", env=fleet).data
    assert [row["title"] for row in listed] == ["theirs"]
