"""Agents that drive themselves: claim, heartbeat, keep, release, prime; killed at any moment."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .agent import NOTHING
from .harness import EITHER_LEASES, Child, Project, alive, pipeline, until

AGENT = Path(__file__).with_name("agent.py")
DIBS = f"{sys.executable} -m dibs"
TTL = "6s"
COMMANDS = (
    "dibs claim --next --wait 3s --json",
    "dibs heartbeat RUN",
    "dibs keep RUN -- COMMAND",
    "dibs release RUN --outcome advanced",
)
STAGES = f"""
preset = 'none'
leases = 'LEASES'
[worker]
poll = '300ms'
[[stage]]
name = 'one'
working_label = 'stage:one-in-work'
next = 'done'
ttl = '{TTL}'
attempts = 50
backoff = '100ms'
backoff_max = '100ms'
[[stage]]
name = 'done'
closes = true
"""


class Crew:
    """Agents on a project; the one that holds an issue can be killed, and is replaced."""

    def __init__(self, project: Project, commands: Sequence[str], folders: Sequence[Path]) -> None:
        self._project, self._commands = project, commands
        self._stop = project.root / "stop"
        self._started = 0
        self._agents = {folder: self._start(folder) for folder in folders}

    def _start(self, folder: Path) -> Child:
        self._started += 1
        name = f"agent-{self._started}"
        state = self._project.root / name
        argv = [sys.executable, str(AGENT), str(state), str(self._stop), json.dumps(self._commands)]
        child = Child(name, argv, folder, self._project.environment())
        self._project.watch(child)
        return child

    def kill_a_holder(self, before: set[str]) -> str:
        """SIGKILL an agent that holds an issue, with what it runs; returns its run."""

        def holding() -> tuple[Path, str] | None:
            for folder, child in self._agents.items():
                assert child.running, child.err
                state = self._project.root / child.name
                run = state.read_text() if state.exists() else ""
                if run and run not in before:
                    return folder, run
            return None

        found = until(holding, "an agent holds an issue")
        assert found is not None
        folder, run = found
        self._agents[folder].kill_group()
        self._agents[folder].wait()
        self._agents[folder] = self._start(folder)
        return run

    def finish(self) -> None:
        self._stop.touch()
        for child in self._agents.values():
            reply = child.wait(60)
            assert reply.code == 0, reply.err


def _drive(
    project: Project,
    commands: Sequence[str],
    *,
    issues: int,
    kills: int,
    agents: int,
    folders: Sequence[Path] = (),
) -> None:
    crew = Crew(project, commands, folders or _homes(project, agents))
    killed: set[str] = set()
    for _ in range(kills):
        killed.add(crew.kill_a_holder(killed))
    abandoned = killed - {event["run"] for event in project.events("advanced")}
    assert abandoned, "no kill left a lease behind"
    wanted = {(f"#{number}", "one"): 1 for number in range(1, issues + 1)}
    until(lambda: len(project.advances()) >= issues, "every issue advanced", within_s=240)
    crew.finish()
    project.nobody_left()
    assert project.advances() == wanted, "advanced once each"
    assert project.gained("stage:done") == {issue: 1 for issue, _ in wanted}
    for issue, _ in wanted:
        assert project.labels(issue) == {"stage:done"}, issue
    assert {issue for issue, *_ in map(str.split, project.lines())} == {i for i, _ in wanted}
    assert project.dibs("claim", "--next").code == NOTHING
    assert project.dibs("fsck", "--json").data == {"storage": [], "flaws": []}


def _homes(project: Project, agents: int) -> list[Path]:
    """A folder below the backlog's for each agent."""
    homes = [project.root / f"home-{number}" for number in range(agents)]
    for home in homes:
        home.mkdir()
    return homes


def _begun(project: Project, issues: int, leases: str = "auto") -> Project:
    """Not from a template: those are of another pipeline."""
    project.configure(STAGES.replace("LEASES", leases))
    assert project.dibs("init").code == 0
    project.keep_history()
    project.add(issues)
    return project


def _primed(project: Project) -> list[str]:
    """The agent's commands, taken out of the text that `dibs prime` prints."""
    lines = re.findall(r"`(dibs [^`]+)`", project.dibs("prime").out)

    def only(*words: str) -> str:
        [found] = [line for line in lines if line.split()[1 : len(words) + 1] == list(words)]
        return found

    [release] = [line for line in lines if line.endswith("--outcome advanced")]
    claim = re.sub(r"--wait \S+", "--wait 3s", only("claim", "--next"))  # not for ten minutes
    return [claim, only("show", "ISSUE"), only("heartbeat"), only("keep"), release]


def test_two_agents_and_two_kills_strand_nothing(project: Project) -> None:
    _begun(project, 4)
    _drive(project, _primed(project), issues=4, kills=2, agents=2)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("leases", ["auto", "comments"])
def test_five_agents_and_eight_kills_strand_nothing(project: Project, leases: str) -> None:
    _drive(_begun(project, 40, leases), COMMANDS, issues=40, kills=8, agents=5)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_five_agents_that_do_what_prime_says_strand_nothing(project: Project) -> None:
    _begun(project, 40)
    _drive(project, _primed(project), issues=40, kills=8, agents=5)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_five_agents_in_five_worktrees_strand_nothing(project: Project) -> None:
    _begun(project, 40)

    def git(*words: str) -> None:
        config = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        argv = ["git", *config, *words]
        subprocess.run(argv, cwd=project.root, check=True, capture_output=True, timeout=60)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "start")
    folders = [project.root.parent / f"tree-{number}" for number in range(5)]
    for folder in folders:
        git("worktree", "add", "-q", "--detach", str(folder))
        shown = project.dibs("list", "--json", cwd=folder)
        assert len(shown.data) == 40, "a worktree has the backlog of the main working tree"
    _drive(project, COMMANDS, issues=40, kills=8, agents=5, folders=folders)


# What a claim answers


def test_a_claim_answers_with_all_that_an_agent_needs(project: Project) -> None:
    project.begin(pipeline(ttl="1h"))
    project.dibs("add", "Fix the login", "--body", "only on phones", "--label", "kind:bug")
    lease = project.dibs("claim", "--next", "--json").data
    assert (lease["issue"], lease["stage"], lease["fence"]) == ("#1", "one", 1)
    assert (lease["title"], lease["body"]) == ("Fix the login", "only on phones")
    assert "kind:bug" in lease["labels"]
    assert (lease["attempt"], lease["next"], lease["url"]) == (1, ["two"], "")
    said = " ".join(lease["do"])
    for words in ("heartbeat", "keep"):
        assert f"dibs {words} {lease['run']}" in said
    assert f"dibs release {lease['run']} --outcome advanced" in said


def test_the_next_issue_can_be_waited_for(project: Project) -> None:
    project.begin(pipeline(ttl="1h"))
    assert project.dibs("claim", "--next", "--wait", "100ms").code == NOTHING
    waiting = project.start("waiting", "claim", "--next", "--wait", "60s", "--json")
    project.add(1)
    assert waiting.wait().data["issue"] == "#1"


# The run is enough


@pytest.mark.parametrize("leases", ["auto", "comments"])
def test_heartbeat_and_release_need_only_the_run(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl="1h"), 2)
    project.dibs("claim", "1")
    run = project.dibs("claim", "2", "--json").data["run"]
    for words, env in (
        ((run,), {}),
        (("--run", run), {}),
        ((), {"DIBS_RUN": run}),
        ((), {"DIBS_RUN": run, "DIBS_ISSUE": "#2"}),
        ((run,), {"DIBS_RUN": "000000000000", "DIBS_ISSUE": "#1"}),
        (("2", "--run", run), {}),
    ):
        beat = project.dibs("heartbeat", *words, "--json", env=env)
        assert (beat.code, beat.data["issue"]) == (0, "#2"), words
    done = project.dibs("release", run, "--outcome", "advanced", "--json")
    assert done.data["issue"] == "#2"
    again = project.dibs("release", run, "--outcome", "advanced", "--json")
    assert (again.code, again.error["code"]) == (5, "NO_SUCH_RUN")


def test_a_run_that_a_working_tree_has_noted_is_found_when_it_is_lost(project: Project) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True, timeout=60)
    project.begin(pipeline(ttl="1h"), 1)
    run = project.dibs("claim", "1", "--json").data["run"]
    assert project.dibs("revoke", "1", "--reason", "r", "--force", "--yes").code == 0
    lost = project.dibs("heartbeat", run, "--json")
    assert (lost.code, lost.error["code"], lost.error["issue"]) == (5, "LEASE_LOST", "#1")


@pytest.mark.parametrize("command", ["heartbeat", "release"])
def test_a_run_must_be_named(project: Project, command: str) -> None:
    project.begin(pipeline(), 1)
    for words in ((), ("1",)):
        reply = project.dibs(command, *words)
        assert (reply.code, "name the run" in reply.err) == (2, True)
    project.dibs(command, "abcdefabcdef").told(5, "abcdefabcdef", "holds no issue")


def test_an_issue_can_be_left_to_a_person(project: Project) -> None:
    project.begin(pipeline(ttl="1h"), 1)
    run = project.dibs("claim", "--next", "--json").data["run"]
    assert project.dibs("release", run, "--outcome", "parked").code == 2, "without a question"
    assert project.dibs("release", run, "--outcome", "parked", "--note", "which API?").code == 0
    assert "asks: which API?" in project.dibs("show", "1").out
    assert project.dibs("claim", "--next").code == NOTHING
    assert project.dibs("resume", "1").code == 0
    assert project.dibs("claim", "--next", "--json").data["attempt"] == 1


# keep


def _claimed(project: Project, ttl: str = "1h", leases: str = "auto") -> str:
    project.begin(pipeline(leases, ttl=ttl), 1)
    run: str = project.dibs("claim", "--next", "--json").data["run"]
    return run


def test_keep_runs_a_command_and_passes_its_exit_code_on(project: Project) -> None:
    run = _claimed(project)
    names = "ISSUE RUN FENCE STAGE CONFIG"
    script = "; ".join(f'echo "$DIBS_{name}"' for name in names.split()) + "; cat; exit 7"
    done = project.dibs("keep", run, "--", "sh", "-c", script, given="typed", alone=True)
    file = project.root / "dibs.toml"
    assert (done.code, done.out) == (7, f"#1\n{run}\n1\none\n{file}\ntyped")
    lease = project.dibs("show", "1", "--json").data["lease"]
    assert (lease["run"], lease["live"]) == (run, True), "the lease goes on"
    kept = project.dibs("keep", run, "--json", "--", "sh", "-c", "exit 3", alone=True)
    assert kept.data == {"issue": "#1", "run": run, "fence": 1, "exit": 3}


def test_keep_names_the_folder_of_a_backlog_without_a_file(project: Project) -> None:
    assert project.dibs("add", "one").code == 0
    run = project.dibs("claim", "1", "--json").data["run"]
    script = f'cd / && {DIBS} show "$DIBS_ISSUE"'
    done = project.dibs("keep", run, "--", "sh", "-c", script, alone=True)
    assert (done.code, done.out.splitlines()[0]) == (0, "#1 one")


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_keep_renews_while_the_command_runs_and_dies_with_its_renewals(
    project: Project, leases: str
) -> None:
    run = _claimed(project, "6s", leases)
    keeping = project.start("keeping", "keep", run, "--", "sh", "-c", "echo $$ > pid; sleep 300")
    command = project.pid("pid")
    project.seen("renewed", 3, run=run)
    keeping.signal(signal.SIGKILL)
    keeping.wait()
    until(lambda: not alive(command), "the command of a killed keeper ends")
    project.nobody_left()
    taken = project.dibs("claim", "--next", "--wait", "30s", "--json")
    assert (taken.code, taken.data["issue"]) == (0, "#1")


@pytest.mark.parametrize("words", [(), ("--end",)], ids=["keep", "end"])
def test_a_command_is_ended_when_its_lease_is_lost(project: Project, words: tuple[str]) -> None:
    run = _claimed(project, "6s")
    script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done"
    keeping = project.start("keeping", "keep", run, *words, "--", "sh", "-c", script)
    command = project.pid("pid")
    assert project.dibs("revoke", "1", "--reason", "r", "--force", "--yes").code == 0
    reply = keeping.wait()
    assert reply.code == 5
    assert not alive(command)
    assert "lease" in reply.err


def test_a_keeper_that_is_told_to_stop_ends_its_command_first(project: Project) -> None:
    run = _claimed(project)
    keeping = project.start("keeping", "keep", run, "--", "sh", "-c", "echo $$ > pid; sleep 300")
    command = project.pid("pid")
    keeping.signal(signal.SIGTERM)
    assert keeping.wait().code == 130
    assert not alive(command)


def test_a_run_that_holds_nothing_is_not_kept(project: Project) -> None:
    run = _claimed(project)
    assert project.dibs("release", run).code == 0
    done = project.dibs("keep", run, "--", "touch", "ran", alone=True)
    assert done.code == 5
    assert not (project.root / "ran").exists()


# claim --exec


@pytest.mark.parametrize(
    ("script", "code", "outcome", "stage"),
    [
        ("exit 0", 0, "advanced", "two"),
        ("exit 4", 4, "failed", "one"),
        ("exit 75", 75, "returned", "one"),
        ("kill -9 $$", 137, "failed", "one"),
        ("""echo '{"note": "no key"}' > $DIBS_RESULT; exit 1""", 1, "failed", "one"),
        ("""echo '{"next": "nowhere"}' > $DIBS_RESULT""", 1, "failed", "one"),
        (f"{DIBS} release --outcome advanced", 0, "advanced", "two"),
        (f"{DIBS} release --outcome parked --note why --json >&2", 0, "parked", "one"),
    ],
)
def test_exec_ends_the_lease_by_the_exit_code(
    project: Project, script: str, code: int, outcome: str, stage: str
) -> None:
    project.begin(pipeline(ttl="1h"), 1)
    words = ("claim", "--next", "--exec", "--", "sh", "-c", script)
    done = project.dibs(*words, alone=True)
    said = "#1 advanced to two\n" if script.endswith("--outcome advanced") else ""
    assert (done.code, done.out) == (code, said), done.err
    assert f"#1 {outcome}" in done.err
    assert [ended for *_, ended in project.endings()] == [outcome]
    assert f"stage:{stage}" in project.labels()


def test_exec_on_a_certain_issue_with_an_answer_for_programs(project: Project) -> None:
    project.begin(pipeline(ttl="1h"), 2)
    script = "cat; exit 0"
    reply = project.dibs("claim", "2", "--json", "--exec", "--", "sh", "-c", script, alone=True)
    assert (reply.data["issue"], reply.data["exit"], reply.data["outcome"]) == ("#2", 0, "advanced")
    shown = project.dibs("runs", "--output", reply.data["run"])
    assert json.loads(shown.out)["title"] == "issue 2", "standard input was the issue"
    assert project.dibs("claim", "--next", "--exec").code == 2
    assert project.dibs("claim", "1", "sh").code == 2


def test_exec_that_is_killed_leaves_its_issue_to_the_next(project: Project) -> None:
    project.begin(pipeline(ttl="6s"), 1)
    words = ("claim", "--next", "--exec", "--", "sh", "-c", "echo $$ > pid; sleep 300")
    first = project.start("first", *words)
    command = project.pid("pid")
    first.signal(signal.SIGKILL)
    first.wait()
    until(lambda: not alive(command), "the command of a killed claim ends")
    again = project.start("again", "claim", "--next", "--wait", "30s", "--exec", "--", "true")
    assert again.wait().code == 0
    assert project.advances() == {("#1", "one"): 1}


# prime


def test_prime_is_short_and_names_the_stages_and_commands_of_this_backlog(
    project: Project,
) -> None:
    project.begin(pipeline(ttl="1h"))
    reply = project.dibs("prime")
    lines = reply.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert "- one: worked by agents and by dibs work; next: two" in lines
    assert "- done: the end" in lines
    assert "every 20m" in reply.out
    assert project.dibs("prime", "--json").data["text"] == reply.out


def test_the_text_for_agents_lies_between_markers_and_only_there(project: Project) -> None:
    project.begin(pipeline())
    file, init = project.root / "AGENTS.md", ("init", "--agents-md")
    assert "would write" in project.dibs(*init, "--dry-run").out
    assert not file.exists()
    assert "wrote the section for agents in AGENTS.md" in project.dibs(*init).out
    first = file.read_text()
    assert project.dibs("prime").out in first
    assert "kept" in project.dibs(*init).out
    file.write_text("# Ours\n\n" + first.replace("Several", "Few") + "\nmore of ours\n")
    assert "would update" in project.dibs(*init, "--dry-run").out
    assert project.dibs(*init, "--json").data["agents_md"]["change"] == "update"
    assert file.read_text() == "# Ours\n\n" + first + "\nmore of ours\n"
    broken = first.replace("<!-- dibs: end -->", "")
    file.write_text(broken)
    project.dibs(*init).told(1, "AGENTS.md", "once each")
    assert file.read_text() == broken


def test_an_existing_file_for_agents_is_added_to(project: Project) -> None:
    project.begin(pipeline())
    claude = project.root / "CLAUDE.md"
    claude.write_bytes(b"# Ours\r\n\r\nno newline")
    assert "added the section for agents in CLAUDE.md" in project.dibs("init", "--agents-md").out
    assert claude.read_bytes().startswith(b"# Ours\r\n\r\nno newline\r\n\r\n<!-- dibs: begin")
    assert not (project.root / "AGENTS.md").exists()
    claude.write_bytes(b"\xff")
    project.dibs("init", "--agents-md").told(1, "not UTF-8")
    assert claude.read_bytes() == b"\xff"


def test_a_handler_that_keeps_its_own_run_has_its_input_still(project: Project) -> None:
    """The worker renews the lease; a card has one writer."""
    keep = f"{DIBS} keep $DIBS_RUN"
    handler = f"{keep} -- no-such-program; echo $? > code; {keep} --end -- true; cat > got"
    project.begin(pipeline(one=handler), 1)
    project.drain()
    assert (project.root / "code").read_text() == "127\n"
    assert json.loads((project.root / "got").read_text())["title"]
    project.assert_drained(1)
