"""The handler's contract: what it is given, what its end means, and that it is kept in bounds."""

import json
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from dibs.core.environment import SECRET_NAMES

from .harness import EITHER_LEASES, LEDGER, Project, alive, pipeline
from .terms import AMPLE, BRISK

REPORTER = """\
import json, os, sys
given = sys.stdin.read()
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1]  # the last one lists them
with open("report." + os.environ["DIBS_STAGE"], "w") as file:
    json.dump({"given": given, "env": dict(os.environ), "fds": fds, "pid": os.getpid(),
               "group": os.getpgrp(), "cwd": os.getcwd()}, file)
print("to standard output")
print("to standard error", file=sys.stderr)
"""
SECRETS = {
    name: f"secret-{name}"
    for name in (
        *(name for name in SECRET_NAMES if "*" not in name and name != "DIBS_FAILPOINT"),
        "DIBS_SLACK_TOKEN",
        "DIBS_SIGNING_KEY",
        "GITHUB_APP_PRIVATE_KEY",
        "GITHUB_APP_PRIVATE_KEY_FILE",
    )
}
SECRETS["DIBS_LEASES"] = "auto"  # the worker itself has to make sense of it


def _report(project: Project, stage: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((project.root / f"report.{stage}").read_text())
    return found


@pytest.fixture
def reported(project: Project) -> Project:
    """A project whose handlers have told all they were given."""
    project.script("report.py", REPORTER)
    run = f"exec '{sys.executable}' report.py"
    project.begin(
        pipeline(
            one=run,
            two=run,
            ttl="30s",
            extra="timeout = '1h'\npass_env = ['GITLAB_TOKEN', 'NAMED']",
        )
    )
    body = 'He said "no",\nthen\t<b>left</b>: ünïcödé 🐦 \\ $HOME `id`'
    project.dibs("add", "Make it -- so", "--body-file", "-", "--label", "kind:bug", given=body)
    project.dibs("pause", "1", "--reason", "wait for it")
    project.dibs("resume", "1")
    (project.root / "expected").write_text(body, "utf-8")
    # A step that this mode never passes: the variable is there, and must not reach the handler.
    env = {
        **SECRETS,
        "LC_PLAIN": "stays",
        "NAMED": "given",
        "OTHER": "private",
        "DIBS_FAILPOINT": "claim.settled",
    }
    env["DIBS_CONFIG"] = str(project.root / "dibs.toml")  # the operator names the file
    project.drain(env=env)
    return project


def test_the_issue_comes_as_json_on_standard_input(reported: Project) -> None:
    given = json.loads(str(_report(reported, "one")["given"]))
    assert datetime.fromisoformat(given.pop("created_at")).tzinfo is not None
    comments = given.pop("comments")
    assert given == {
        "issue": "#1",
        "title": "Make it -- so",
        "body": (reported.root / "expected").read_text("utf-8"),
        "author": "tester",
        "trusted": True,
        "url": "",
        "labels": ["claimed", "kind:bug", "stage:one", "stage:one-in-work"],
        "stage": "one",
        "attempt": 1,
        "plan": None,
        "approval": None,
        "comments_left_out": 0,
    }
    # People's words, not our cards.
    assert [comment["body"] for comment in comments] == [
        "Paused by `tester`: `wait for it`",
        "Resumed by `tester`.",
    ]


def test_every_variable_is_there_and_true(reported: Project) -> None:
    for stage, fence in (("one", "1"), ("two", "2")):
        env = _report(reported, stage)["env"]
        assert isinstance(env, dict)
        [claimed] = reported.events("claimed", stage=stage)
        run = claimed["run"]
        ours = {name: value for name, value in env.items() if name.startswith("DIBS_")}
        deadline = datetime.fromisoformat(ours.pop("DIBS_DEADLINE"))
        assert ours == {
            "DIBS_ISSUE": "#1",
            "DIBS_STAGE": stage,
            "DIBS_RUN": run,
            "DIBS_FENCE": fence,
            "DIBS_ATTEMPT": "1",
            "DIBS_CONFIG": str(reported.root / "dibs.toml"),
            "DIBS_CONFIG_NAMED": "1",
            "DIBS_RESULT": str(reported.root / ".dibs" / "runs" / run / "result.json"),
            "DIBS_PLAN": str(reported.root / ".dibs" / "runs" / run / "plan.md"),
            "DIBS_ACTOR": "tester",
        }
        assert claimed["fence"] == int(fence)
        claimed_at = datetime.fromisoformat(claimed["at"]).astimezone(UTC)
        limit = timedelta(hours=1) if stage == "one" else timedelta(days=1)
        assert abs(deadline - claimed_at - limit) < timedelta(seconds=10)


def test_secrets_are_stripped_unless_the_stage_is_trusted_with_them(reported: Project) -> None:
    for stage, trusted in (("one", {"GITLAB_TOKEN"}), ("two", set())):
        env = _report(reported, stage)["env"]
        assert isinstance(env, dict)
        assert {name for name in env if name in SECRETS} == trusted
        leaked = {name for name, value in env.items() if str(value).startswith("secret-")}
        assert leaked == trusted
        assert "DIBS_FAILPOINT" not in env
        assert env["LC_PLAIN"] == "stays"
        assert "OTHER" not in env
        assert env.get("NAMED") == ("given" if stage == "one" else None)


def test_a_handler_has_a_group_of_its_own_and_nothing_of_the_workers_open(
    reported: Project,
) -> None:
    report = _report(reported, "one")
    assert report["fds"] == [0, 1, 2]
    assert report["group"] == report["pid"]
    assert report["cwd"] == str(reported.root)


def test_what_it_writes_is_kept_and_shown(reported: Project) -> None:
    [run] = [event["run"] for event in reported.events("claimed", stage="one")]
    folder = reported.root / ".dibs" / "runs" / run
    text = (folder / "output.log").read_text()
    assert sorted(text.splitlines()) == ["to standard error", "to standard output"]
    assert reported.dibs("runs", "--output", run).out == text
    listed = reported.dibs("runs", "1", "--json").data
    assert [(entry["stage"], entry["outcome"]) for entry in listed] == [
        ("one", "advanced"),
        ("two", "advanced"),
    ]
    assert listed[0]["output"] == str(folder / "output.log")
    assert reported.dibs("runs", "--output", "no-such-run").code == 3
    assert reported.dibs("runs", "--output", "../../dibs.toml").code == 3


# What its end means

_ENDS = {
    "exit 0": ("advanced", "two", ""),
    "exit 75": ("returned", None, "gave it back"),
    "exit 1": ("failed", None, "exited with 1"),
    "exit 3": ("failed", None, "exited with 3"),
    "echo first; echo no such key >&2; exit 1": ("failed", None, "with 1: first / no such key"),
    "echo Which database?; exit 77": ("parked", None, "asks: Which database?"),
    'echo \'{"ask": "Which?"}\' > "$DIBS_RESULT"': ("parked", None, "asks: Which?"),
    "kill -9 $$": ("failed", None, "the handler was killed by SIGKILL"),
    'echo \'{"next": "done"}\' > "$DIBS_RESULT"': ("advanced", "done", ""),
    'echo \'"done"\' > "$DIBS_RESULT"': ("advanced", "done", ""),
    'echo \'{"next": null, "note": "a word"}\' > "$DIBS_RESULT"': ("advanced", "two", "a word"),
    'echo > "$DIBS_RESULT"': ("advanced", "two", ""),
    'echo \'{"next": "nowhere"}\' > "$DIBS_RESULT"': ("failed", None, "'nowhere'"),
    'echo \'{"next": "one"}\' > "$DIBS_RESULT"': ("failed", None, "'one'"),
    'echo "{garbage" > "$DIBS_RESULT"': ("failed", None, "DIBS_RESULT"),
    'echo \'{"nxet": "done"}\' > "$DIBS_RESULT"': ("failed", None, "not understood"),
    'echo \'["done"]\' > "$DIBS_RESULT"': ("failed", None, "not understood"),
    "printf '\\377\\376' > \"$DIBS_RESULT\"": ("failed", None, "DIBS_RESULT"),
    'echo \'{"next": "done"}\' > "$DIBS_RESULT"; exit 75': ("returned", None, "gave it back"),
    'echo \'{"next": "done"}\' > "$DIBS_RESULT"; exit 1': ("failed", None, "exited with 1"),
    'mkdir "$DIBS_RESULT"': ("failed", None, "DIBS_RESULT"),
}


@pytest.mark.parametrize("command", _ENDS)
def test_exit_code_and_result_decide(project: Project, command: str) -> None:
    outcome, target, note = _ENDS[command]
    text = pipeline(one=command, ttl=AMPLE)
    project.configure(text.replace("next = 'two'", "next = ['two', 'done']"))
    project.dibs("init")
    project.keep_history()
    project.add(1)
    reply = project.worker("worker", "--once").wait().quiet()
    assert reply.data["outcomes"] == {outcome: 1}, reply.err
    assert project.endings() == [("#1", "one", outcome)]
    parked = {"parked"} if outcome == "parked" else set()
    assert project.labels() == {f"stage:{target or 'one'}", *parked}
    assert project.failed_attempts() == (outcome == "failed")
    [entry] = project.dibs("runs", "1", "--json").data
    assert note in entry["note"]
    if not note:
        assert entry["note"] == ""


def test_over_its_time_limit_a_handler_is_ended_and_the_attempt_failed(project: Project) -> None:
    command = "trap '' TERM; echo $$ > pid; sleep 60 & echo $! > child; wait; wait; sleep 60"
    limit = "timeout = '4s'"  # long enough for it to begin
    project.begin(pipeline(one=command, ttl=AMPLE, extra=f"{limit}\n{BRISK}"), 1)
    reply = project.worker("worker", "--once").wait().quiet()
    assert reply.data["outcomes"] == {"failed": 1}
    [entry] = project.dibs("runs", "1", "--json").data
    assert "time limit" in entry["note"]
    for name in ("pid", "child"):
        assert not alive(int((project.root / name).read_text()))


def test_a_python_handler_runs_in_a_process_of_its_own(project: Project) -> None:
    project.script(
        "steps.py",
        "import os\n"
        "from dibs import GiveBack, Work\n"
        "class Kind:\n"
        "    @staticmethod\n"
        "    def step(work: Work) -> object:\n"
        "        work.check()\n"
        "        with open('seen', 'a') as file:\n"
        "            file.write(f'{os.getpid()} {work.issue[\"title\"]} {work.stage} {work.run} '\n"
        "                       f'{work.fence} {work.attempt}\\n')\n"
        "        match work.issue['title']:\n"
        "            case 'issue 1': return None\n"
        "            case 'issue 2': return {'next': 'done', 'note': 'straight on'}\n"
        "            case 'issue 3': return os._exit(0)\n"
        "            case 'issue 4': raise RuntimeError('it broke')\n"
        "            case 'issue 5': return {'other': 1}\n"
        "            case _: raise GiveBack('later')\n",
    )
    text = pipeline(backoff="10m", ttl=AMPLE).replace(
        f"run = '''{LEDGER}'''", "python = 'steps:Kind.step'", 1
    )
    project.begin(text.replace("next = 'two'", "next = ['two', 'done']"), 6)
    workers = []
    for _ in range(6):
        worker = project.worker("worker", "--once", "--stage", "one")
        workers.append(worker.pid)
        reply = worker.wait().quiet()
        assert reply.code == (1 if reply.data["outcomes"].get("failed") else 0)
    assert sorted(project.endings()) == [
        ("#1", "one", "advanced"),
        ("#2", "one", "advanced"),
        ("#3", "one", "advanced"),
        ("#4", "one", "failed"),
        ("#5", "one", "failed"),
        ("#6", "one", "returned"),
    ]
    assert [project.labels(n) for n in (1, 2)] == [{"stage:two"}, {"stage:done"}]
    seen = [line.rsplit(" ", 4) for line in project.lines("seen")]
    runs = {event["issue"]: event["run"] for event in project.events("claimed")}
    for number, (who, stage, run, fence, attempt) in enumerate(seen, start=1):
        pid, _, title = who.partition(" ")
        assert int(pid) not in workers
        assert (title, stage, fence, attempt) == (f"issue {number}", "one", "1", "1")
        assert run == runs[f"#{number}"]
    log = project.dibs("runs", "--output", runs["#4"]).out
    assert "RuntimeError: it broke" in log
    assert "steps.py" in log


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_failures_back_off_then_park_and_resume_starts_afresh(
    project: Project, leases: str
) -> None:
    mended = f"{LEDGER}; test -e mended"
    text = pipeline(leases, one=mended, attempts=3, backoff="250ms", ttl=AMPLE)
    project.begin(text.replace("backoff_max = '250ms'", "backoff_max = '10s'"), 1)
    reply = project.drain(code=1)
    assert reply.data["outcomes"] == {"failed": 2, "parked": 1}
    assert [line.split()[-1] for line in project.lines()] == ["1", "2", "3"]
    cards = "SELECT created_at, updated_at FROM comments WHERE body LIKE '<!-- claim %' ORDER BY id"
    times = project.sql(cards)
    rests = [later[0] - earlier[1] for earlier, later in pairwise(times)]
    assert len(rests) == 2
    assert rests[0] >= 250
    assert rests[1] >= 500
    assert project.labels() == {"stage:one", "parked"}
    assert project.dibs("why", "1", "--json").data["reasons"][0]["code"] == "PARKED"
    assert project.dibs("claim", "1").code == 6
    assert project.worker("idle", "--drain").wait().code == 3

    (project.root / "mended").touch()
    assert project.dibs("resume", "1", "--json").data == {"resumed": ["#1"]}
    assert project.failed_attempts() == 0
    project.drain()
    assert [line.split()[-1] for line in project.lines()] == ["1", "2", "3", "1", "1"]
    assert [outcome for *_, outcome in project.endings()] == [
        "failed",
        "failed",
        "parked",
        "advanced",
        "advanced",
    ]
    assert project.labels() == {"stage:done"}


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_the_wip_limit_holds_for_four_processes(project: Project, leases: str) -> None:
    """Impatient workers with hands to spare: every free place is wanted by several at once."""
    step = f"echo + >> flight; sleep 0.05; echo - >> flight; {LEDGER}"
    text = pipeline(leases, one=step, extra="wip = 2", ttl="20s", jobs=2, poll="10ms")
    project.begin(text, 24)
    workers = [project.worker(f"worker-{n}", "--drain", "--stage", "one") for n in range(4)]
    # One that never had its turn says that there was nothing to do.
    assert {worker.wait(80).quiet().code for worker in workers} <= {0, 3}
    flying, most = 0, 0
    for line in project.lines("flight"):
        flying += 1 if line == "+" else -1
        most = max(most, flying)
    assert (flying, most) == (0, 2)
    assert project.ledger() == {(f"#{number}", "one"): 1 for number in range(1, 25)}
    assert project.advances() == project.ledger()


def test_minus_c_works_as_if_started_there(project: Project) -> None:
    project.script("step.sh", f"#!/bin/sh\n{LEDGER}\n")
    project.begin(pipeline(one="./step.sh", ttl=AMPLE), 1)
    reply = project.dibs(
        "-C", str(project.root), "work", "--drain", "--json", cwd=project.root.parent
    )
    assert reply.code == 0, reply.err
    project.assert_drained(1)
    assert project.ledger() == {("#1", "one"): 1, ("#1", "two"): 1}
