"""Holds and loops from the command line, with real processes that are killed and frozen."""

import itertools
import signal

import pytest

from .harness import CLOCK, Project, until
from .stores.processes import freeze_between_writes

CONFIG = """
[[hold]]
name = "gpu"
slots = 2

[[hold]]
name = "deploy"

[[hold]]
name = "brief"
ttl = "6s"

[[loop]]
name = "beat"
every = "2s"
run = "echo $DIBS_WINDOW $DIBS_FENCE >> ticks"
"""


@pytest.fixture
def named(project: Project) -> Project:
    return _begun(project, CONFIG)


def _begun(project: Project, text: str, issues: int = 0) -> Project:
    """Not from a template: those are of another pipeline."""
    project.configure(text)
    assert project.dibs("init").code == 0
    if issues:
        project.add(issues)
    return project


def _hold(project: Project, name: str, *words: str):
    return project.start(f"hold-{name}", "hold", name, *words)


def test_a_command_runs_under_its_hold_and_its_exit_code_comes_back(named: Project) -> None:
    script = "echo $DIBS_HOLD $DIBS_FENCE; cat; exit 7"
    done = named.dibs("hold", "deploy", "--", "sh", "-c", script, given="from our input")
    assert (done.code, done.out) == (7, "deploy 1\nfrom our input")
    kept = named.dibs("hold", "--json", "deploy", "--", "sh", "-c", "echo out of sight")
    assert kept.data["fence"] == 2
    shown = named.dibs("runs", "--output", kept.data["run"])
    assert shown.out == "out of sight\n"


def test_a_command_runs_where_it_was_typed_with_what_its_caller_has(named: Project) -> None:
    below = named.root / "below"
    below.mkdir()
    script = 'pwd; echo "$DEPLOY_KEY $GITHUB_TOKEN $DIBS_LEASES"'
    env = {"GITHUB_TOKEN": "mine", "DIBS_LEASES": "auto", "DEPLOY_KEY": "yes"}
    words = ("hold", "deploy", "--pass-env", "GITHUB_TOKEN", "--", "sh", "-c", script)
    done = named.dibs(*words, cwd=below, env=env)
    assert done.out == f"{below}\nyes mine \n"


def test_a_loop_that_cannot_go_on_says_so_and_fails(named: Project) -> None:
    named.configure('[[loop]]\nname = "beat"\nevery = "1s"\nrun = "./not-there"\n')
    named.dibs("loop").told(1, "not-there")


def test_one_holds_and_the_next_is_told_who_and_waits_if_told_to(named: Project) -> None:
    first = _hold(named, "deploy", "--as", "ann", "--", "sh", "-c", "echo > in; sleep 60")
    named.appears("in")
    refused = named.dibs("hold", "deploy", "--", "true")
    assert refused.code == 4
    assert "ann" in refused.out + refused.err
    listed = named.dibs("hold", "--json").data
    assert [entry["holder"] for entry in listed] == ["ann"]
    late = _hold(named, "deploy", "--wait", "30s", "--", "sh", "-c", "echo > after")
    first.signal(signal.SIGTERM)
    assert first.wait().code == 130
    assert late.wait().code == 0
    named.appears("after")
    assert named.dibs("hold").code == 3


def test_as_many_as_there_are_slots(named: Project) -> None:
    for number in (1, 2):
        _hold(named, "gpu", "--", "sh", "-c", f"echo > in{number}; sleep 60")
        named.appears(f"in{number}")
    assert named.dibs("hold", "gpu", "--", "true").code == 4
    assert named.dibs("hold", "gpu", "--slots", "3", "--", "true").code == 0


@pytest.mark.long
def test_a_killed_holders_command_is_gone_before_another_gets_in(named: Project) -> None:
    script = "echo $$ > pid; while :; do cut -d' ' -f1 /proc/uptime > seen; done"
    holder = _hold(named, "brief", "--", "sh", "-c", script)
    named.appears("seen")
    holder.signal(signal.SIGKILL)
    done = named.dibs("hold", "brief", "--wait", "30s", "--", "cut", "-d ", "-f1", "/proc/uptime")
    assert done.code == 0
    last = float((named.root / "seen").read_text() or 0)
    assert last <= float(done.out), "the old command was still at work"


@pytest.mark.long
def test_a_frozen_holders_command_is_ended_and_it_is_told_so(named: Project) -> None:
    script = "echo > in; while :; do cut -d' ' -f1 /proc/uptime > seen; done"
    holder = _hold(named, "brief", "--", "sh", "-c", script)
    named.appears("in")
    freeze_between_writes(named, holder)
    done = named.dibs("hold", "brief", "--wait", "30s", "--", "cut", "-d ", "-f1", "/proc/uptime")
    assert done.code == 0
    last = float((named.root / "seen").read_text() or 0)
    assert last <= float(done.out), "the frozen holder's command was still at work"
    holder.signal(signal.SIGCONT)
    assert holder.wait().code == 5


@pytest.mark.long
def test_replicas_of_a_loop_tick_once_in_every_window_and_miss_none(named: Project) -> None:
    replicas = [named.start(f"loop-{number}", "loop", "--json") for number in range(3)]
    until(lambda: len(named.lines("ticks")) >= 4, "some ticks")
    replicas[0].signal(signal.SIGKILL)
    seen = len(named.lines("ticks"))
    until(lambda: len(named.lines("ticks")) >= seen + 4, "ticks go on")
    for replica in replicas[1:]:
        replica.signal(signal.SIGTERM)
    counted = sum(replica.wait().data["ticks"].get("beat", 0) for replica in replicas[1:])
    ticks = [tuple(map(int, line.split())) for line in named.lines("ticks")]
    windows = [window for window, _ in ticks]
    assert windows == sorted(set(windows)), "twice in one window"
    # One window is lost if the replica died in its tick; a machine that stalls may lose another.
    gaps = [later - earlier for earlier, later in itertools.pairwise(windows)]
    assert gaps.count(1) >= len(gaps) / 2, f"the rate is not halved: {gaps}"
    fences = [fence for _, fence in ticks]
    assert fences == sorted(set(fences))
    assert counted <= len(ticks)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("hold", "7up", "--", "true"), 2, "7up"),
        (("loop", "nope"), 1, "nope"),
        (("hold", "x", "--ttl", "1ms", "--", "true"), 2, "ttl"),
        (("hold", "x", "--", "no-such-program-anywhere"), 127, "not found"),
    ],
)
def test_what_cannot_be_is_told(named: Project, words, code, said) -> None:
    reply = named.dibs(*words).quiet()
    assert reply.code == code, (reply.out, reply.err)
    assert said in reply.err


def test_comments_hold_nothing_but_issues(project: Project) -> None:
    _begun(project, "leases = 'comments'\n" + CONFIG)
    for words in (("hold", "deploy", "--", "true"), ("loop",)):
        project.dibs(*words).told(1, "comments")


def test_an_irreversible_stage_does_not_start_on_comments(project: Project) -> None:
    stage = "[[stage]]\nname = 'ready'\nrun = 'true'\nirreversible = true\n"
    _begun(project, "leases = 'comments'\n" + stage, 1)
    project.dibs("work", "--once").told(1, "irreversible", "comments")
    refused = project.dibs("claim", "1", "--json")
    assert refused.code == 6
    assert [reason["code"] for reason in refused.data["reasons"]] == ["UNPROTECTED"]
    project.configure(stage)
    assert project.dibs("work", "--drain", "--quiet").code in (0, 3)


def test_waiting_for_an_issue_that_another_holds(project: Project) -> None:
    _begun(project, "ttl = '1s'\n[[stage]]\nname = 'ready'\nrun = 'true'\n", 1)
    assert project.dibs("claim", "1").code == 0
    began = CLOCK.now()
    waited = project.dibs("claim", "1", "--wait", "30s", "--ttl", "1h", "--json")
    assert waited.code == 0, (waited.out, waited.err)
    assert waited.data["fence"] == 2
    assert CLOCK.now() - began < 25
    assert project.dibs("claim", "1", "--wait", "100ms").code == 4
