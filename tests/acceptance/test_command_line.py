"""The command line's contract: one JSON object, dry runs that write nothing, proven exit codes."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs.frontends.cli.main import COMMANDS
from dibs.frontends.cli.output import Exit

from .harness import LEDGER, Project, pipeline, until

# Every command, in a form that succeeds on the backlog below. Issue 1 is free, 2 is held by a
# script, 3 taken by a person, 4 paused, 5 left claimed by a holder that vanished, 6 in the second
# stage, 7 before a gate.
FORMS: dict[str, list[tuple[str, ...]]] = {
    "init": [("init",), ("init", "--agents-md")],
    "config": [("config", "show"), ("config", "validate"), ("config", "schema")],
    "completion": [("completion", "bash"), ("completion", "zsh"), ("completion", "fish")],
    "help": [("help",), ("help", "work"), ("help", "config", "show")],
    "add": [("add", "another"), ("add", "a", "b", "--stage", "two", "--label", "x")],
    "list": [("list",), ("list", "--stage", "one", "--all", "--limit", "50")],
    "ready": [("ready",)],
    "show": [("show", "2")],
    "claim": [("claim", "1"), ("claim", "--next", "--stage", "one", "--ttl", "20s")],
    "heartbeat": [("heartbeat", "2", "--run", "RUN")],
    "release": [
        ("release", "2", "--run", "RUN", "--outcome", "advanced", "--to", "two"),
        ("release", "RUN", "--outcome", "parked", "--note", "which?"),
    ],
    "keep": [],  # tests of their own, in test_self_driving.py
    "prime": [("prime",)],
    "fence": [("fence", "check", "2", "--run", "RUN", "--for", "1m")],
    "work": [("work", "--once", "--quiet"), ("work", "--drain", "--quiet", "--stage", "two")],
    "take": [("take", "1", "--as", "bob")],
    "give-back": [("give-back", "3", "--as", "ann", "--note", "enough")],
    "approve": [("approve", "7")],
    "reject": [("reject", "7", "--note", "no")],
    "plan": [("plan", "7", "--file", "dibs.toml")],
    "label": [("label", "1", "--add", "x", "--add", "y", "--remove", "z")],
    "pause": [("pause", "1", "--reason", "r"), ("pause", "--fleet", "--reason", "r")],
    "resume": [("resume", "4"), ("resume", "--repository")],
    "revoke": [
        ("revoke", "2", "--reason", "r"),
        ("revoke", "2", "--reason", "r", "--force", "--yes"),
    ],
    "why": [("why", "1")],
    "status": [("status",)],
    "runs": [("runs", "2")],
    "sweep": [("sweep",)],
    "follow": [],  # tests of their own, on a tracker that has pull requests
    "hook": [],  # likewise, in repositories of git
    "fsck": [("fsck", "--repair")],
    "doctor": [("doctor",)],
    "budget": [],  # an embedded tracker has none: tests/github
    "leases": [("leases", "show")],
    "migrate": [],  # tests of their own, in tests/label_state
    "stores": [("stores",)],
    "hold": [],  # tests of their own, in test_named.py
    "loop": [],
    "demo": [],  # a test of its own
    "listen": [],  # test_listen
    "simulate": [("simulate", "--workers", "2", "--issues", "4", "--ttl", "1m")],
}
WRITING = (
    *("init", "add", "claim", "heartbeat", "release", "work", "take", "give-back"),
    *("approve", "reject", "plan", "label", "pause", "resume", "revoke", "sweep", "fsck"),
)


def _forms(*names: str) -> list[tuple[str, ...]]:
    return [form for name in names for form in FORMS[name]]


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A backlog in which every command has something to do, and the run that holds issue 2."""
    project = Project(tmp_path_factory.mktemp("lived-in"))
    gated = "[[stage]]\nname = 'gated'\ngate = 'approval'\nnext = 'done'\n"
    project.begin(pipeline(ttl="1h") + gated, 5, history=False)
    project.add(1, "--stage", "two")
    project.add(1, "--stage", "gated")
    run: str = project.dibs("claim", "2", "--json").data["run"]
    assert project.dibs("take", "3", "--as", "ann").code == 0
    assert project.dibs("pause", "4", "--reason", "r").code == 0
    assert project.dibs("pause", "--repository", "--reason", "r").code == 0
    assert project.dibs("take", "5", "--ttl", "300ms").code == 0
    gone = project.root / "gone"
    gone.write_text(run)
    return project.root, run


@pytest.fixture
def used(project: Project, lived_in: tuple[Path, str]) -> Project:
    shutil.copytree(lived_in[0], project.root, dirs_exist_ok=True)
    return project


def _filled(form: tuple[str, ...], project: Project) -> tuple[str, ...]:
    run = (project.root / "gone").read_text()
    return tuple(run if word == "RUN" else word for word in form)


def _prepare(project: Project, form: tuple[str, ...]) -> None:
    """The repository's pause is there to be lifted, and in the way of workers and claims."""
    if form[0] in ("work", "claim", "ready"):
        assert project.dibs("resume", "--repository").code == 0
    if form[0] in ("sweep", "fsck"):
        _wait_for_expiry(project)


def _wait_for_expiry(project: Project) -> None:
    def expired() -> bool:
        data = project.dibs("show", "5", "--json").data
        return data["lease"] is None

    until(expired, "the short lease on issue 5 runs out")


def test_every_command_is_in_the_table() -> None:
    assert set(FORMS) == set(COMMANDS)
    assert set(WRITING) < set(COMMANDS)


@pytest.mark.parametrize("form", _forms(*FORMS), ids=" ".join)
def test_json_is_one_object(used: Project, form: tuple[str, ...]) -> None:
    _prepare(used, form)
    form = _filled(form, used)
    dry = used.dibs(*form, "--json", *_dry(form))
    assert dry.document["ok"] is True or form[0] == "fsck"
    answer = used.dibs(*form, "--json").quiet()
    assert (answer.document["ok"], answer.err) == (True, "")


@pytest.mark.parametrize("form", _forms(*FORMS), ids=" ".join)
def test_text_is_for_people_and_only_on_standard_output(
    used: Project, form: tuple[str, ...]
) -> None:
    _prepare(used, form)
    reply = used.dibs(*_filled(form, used)).quiet()
    assert (reply.code, reply.err) == (0, "")
    assert reply.out.endswith("\n")
    assert not reply.out.startswith("{") or form == ("config", "schema")


@pytest.mark.parametrize("form", [("list",), ("config", "show"), ("show", "9"), ("show", "?")])
def test_json_may_be_asked_for_before_the_command_or_in_the_environment(
    project: Project, form: tuple[str, ...]
) -> None:
    project.begin(pipeline(), 1, history=False)
    after = project.dibs(*form, "--json")
    for other in (project.dibs("--json", *form), project.dibs(*form, env={"DIBS_JSON": "1"})):
        assert other.quiet().document == after.document
        assert other.code == after.code
    assert project.dibs(*form, env={"DIBS_JSON": "0"}).out[:1] != "{"


def _dry(form: tuple[str, ...]) -> tuple[str, ...]:
    """So that asking several times is asking the same."""
    return ("--dry-run",) if form[0] in WRITING else ()


@pytest.mark.parametrize("form", _forms(*WRITING), ids=" ".join)
def test_a_dry_run_writes_nothing_and_the_real_one_does(
    used: Project, form: tuple[str, ...]
) -> None:
    _prepare(used, form)
    form = _filled(form, used)
    if form[0] == "init":
        (used.root / "dibs.toml").unlink()
    tables, files = used.dump(), _files(used)
    # The flaw that fsck only says it would mend remains, and so says its exit code.
    expected = 1 if form[0] == "fsck" else 0
    reply = used.dibs(*form, "--dry-run").quiet()
    assert (reply.code, bool(reply.out + reply.err)) == (expected, True)
    assert used.dibs(*form, "--dry-run", "--json").document["exit"] == expected
    assert used.dump() == tables
    assert _files(used) == files
    assert used.dibs(*form).quiet().code == 0
    assert (used.dump(), _files(used)) != (tables, files)


def _files(project: Project) -> dict[str, bytes | None]:
    """Every file but the database's own."""
    return {
        str(path.relative_to(project.root)): path.read_bytes() if path.is_file() else None
        for path in sorted(project.root.rglob("*"))
        if not path.name.startswith("backlog.db")
    }


@pytest.mark.parametrize("form", [("init",), ("add", "an issue")], ids=" ".join)
def test_a_dry_run_in_an_empty_folder_leaves_it_empty(
    project: Project, form: tuple[str, ...]
) -> None:
    assert project.dibs(*form, "--dry-run").code == 0
    assert list(project.root.iterdir()) == []


# Exit codes


def _held(project: Project) -> tuple[str, ...]:
    project.dibs("claim", "1")
    return ("claim", "1")


def _lost(project: Project) -> tuple[str, ...]:
    run = project.dibs("claim", "1", "--json").data["run"]
    project.dibs("release", "1", "--run", run)
    return ("heartbeat", "1", "--run", run)


def _shut(project: Project) -> tuple[str, ...]:
    project.dibs("pause", "1", "--reason", "r")
    return ("claim", "1")


def _empty(project: Project) -> tuple[str, ...]:
    project.sql("DELETE FROM issue_labels")
    return ("ready",)


def _unproven(project: Project) -> tuple[str, ...]:
    # As if a page of the comments could not be read.
    project.sql("UPDATE issues SET comment_count = 7")
    return ("claim", "1")


def _forbidden(project: Project) -> tuple[str, ...]:
    project.file.unlink()
    project.file.mkdir()
    return ("list",)


def _always(*words: str) -> Callable[[Project], tuple[str, ...]]:
    return lambda _: words


CODES: list[tuple[Exit, Callable[[Project], tuple[str, ...]]]] = [
    (Exit.DONE, _always("claim", "1")),
    (Exit.ERROR, _always("--config", "nowhere.toml", "list")),
    (Exit.ERROR, _always("show", "99")),
    (Exit.USAGE, _always("lsit")),
    (Exit.USAGE, _always("list", "--no-such-option")),
    (Exit.USAGE, _always("show")),
    (Exit.USAGE, _always("claim")),
    (Exit.USAGE, _always("claim", "1", "--ttl", "soon")),
    (Exit.USAGE, _always("show", "no issue at all")),
    (Exit.USAGE, _always("add", "x", "--stage", "nowhere")),
    (Exit.USAGE, _always("list", "--stage", "nowhere")),
    (Exit.USAGE, _always("work", "--stage", "nowhere")),
    (Exit.USAGE, _always("work", "--once", "--drain")),
    (Exit.USAGE, _always("pause", "1")),
    (Exit.USAGE, _always("pause", "1", "--fleet", "--reason", "r")),
    (Exit.USAGE, _always("-C", "nowhere", "list")),
    (Exit.USAGE, _always("add", "  ")),
    (Exit.NOTHING, _empty),
    (Exit.NOTHING, _always("sweep")),
    (Exit.NOTHING, _always("runs", "1")),
    (Exit.NOTHING, _always("approve", "1")),
    (Exit.USAGE, _always("label", "1")),
    (Exit.HELD, _held),
    (Exit.LOST, _lost),
    (Exit.LOST, _always("heartbeat", "1", "--run", "abc")),
    (Exit.SHUT, _shut),
    (Exit.UNPROVEN, _unproven),
    (Exit.FORBIDDEN, _forbidden),
]


@pytest.mark.parametrize(("code", "make"), CODES)
def test_exit_codes(
    project: Project, code: Exit, make: Callable[[Project], tuple[str, ...]]
) -> None:
    project.begin(pipeline(ttl="1h"), 1, history=False)
    command = make(project)
    reply = project.dibs(*command, "--json").quiet()
    assert reply.code == code
    assert reply.document["exit"] == code
    assert reply.err == ""
    if code is Exit.DONE:
        return
    plain = project.dibs(*command).quiet()
    assert (plain.code, plain.out) == (code, "")
    assert plain.err


def test_the_table_misses_only_what_this_tracker_cannot_do() -> None:
    shown = {code for code, _ in CODES}
    # 7 needs a tracker with a rate limit; 130 is in test_leaving.
    assert set(Exit) - shown == {Exit.LIMITED, Exit.INTERRUPTED}


def test_an_illegal_move_is_refused_and_changes_nothing(project: Project) -> None:
    project.begin(pipeline(ttl="1h"), 1, history=False)
    run = project.dibs("claim", "1", "--json").data["run"]
    before = project.dump()
    release = ("release", "1", "--run", run, "--outcome", "advanced", "--to", "done")
    reply = project.dibs(*release, "--json")
    assert (reply.code, reply.error["code"]) == (2, "ILLEGAL_MOVE")
    assert project.dump() == before


# References


@pytest.mark.parametrize("text", ["1", "#1", " 1 "])
def test_an_issue_has_several_spellings(project: Project, text: str) -> None:
    project.begin(pipeline(), 1, history=False)
    assert project.dibs("show", text, "--json").data["issue"] == "#1"


@pytest.mark.parametrize(
    "text",
    ["owner/repo#1", "https://github.com/owner/repo/issues/1", "ABC-1", "2", "999999999999999999"],
)
def test_a_reference_to_somewhere_else_is_no_issue_here(project: Project, text: str) -> None:
    project.begin(pipeline(), 1, history=False)
    for command in ("show", "claim", "why"):
        reply = project.dibs(command, text, "--json").quiet()
        assert (reply.code, reply.error["code"]) == (1, "NO_SUCH_ISSUE"), command


@pytest.mark.parametrize("text", ["", "0", "-1", "#", "one", "1.5", "1 2", "../1", "x" * 5000])
def test_what_is_no_reference_is_said(project: Project, text: str) -> None:
    project.begin(pipeline(), 1, history=False)
    reply = project.dibs("show", "--json", "--", text).quiet()
    assert (reply.code, reply.error["code"]) == (2, "BAD_REFERENCE")


# Streams


BUFFERING = [{}, {"PYTHONUNBUFFERED": "1"}]


def test_a_reader_that_has_seen_enough_is_no_error(project: Project) -> None:
    project.begin(pipeline(), history=False)
    project.dibs("add", "-", given="".join(f"{'long title ' * 5} {n}\n" for n in range(3000)))
    script = 'set -o pipefail; "$@" | head -1; exit ${PIPESTATUS[0]}'
    for command in (("list", "--limit", "5000"), ("list", "--limit", "5000", "--json")):
        done = subprocess.run(
            ["bash", "-c", script, "bash", *project.argv(*command)],
            cwd=project.root,
            env=project.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.count("\n") <= 1


@pytest.mark.parametrize("env", BUFFERING, ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("form", [("list",), ("list", "--json"), ("config", "schema")])
def test_nobody_reading_at_all_is_no_error_either(
    project: Project, form: tuple[str, ...], env: dict[str, str]
) -> None:
    project.begin(pipeline(), 3, history=False)
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            project.argv(*form),
            cwd=project.root,
            env=project.environment(env),
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("env", BUFFERING, ids=["buffered", "unbuffered"])
def test_a_full_standard_output_is_said(project: Project, env: dict[str, str]) -> None:
    project.begin(pipeline(), 3, history=False)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            project.argv("list"),
            cwd=project.root,
            env=project.environment(env),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr


def _on_a_terminal(
    project: Project, *command: str, env: dict[str, str], enough: bytes = b""
) -> str:
    """What the program writes when it believes that a person is looking."""
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        project.argv(*command),
        cwd=project.root,
        env=project.environment({"TERM": "xterm-256color", **env}),
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
    )
    os.close(other)
    seen = b""
    try:
        while select.select([terminal], [], [], 30)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # Linux says so when the last writer is gone
                break
            seen += data
            if not data or (enough and enough in seen):
                break
    finally:
        process.kill()
        process.wait(30)
        os.close(terminal)
    return seen.decode()


_COLOUR = re.compile(r"\x1b\[(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])[;m]|\x1b\[[0-9;]*;(?:3|4|9)[0-9]m")


def test_no_color_is_honoured_on_a_terminal(project: Project) -> None:
    project.begin(pipeline(), 2, history=False)
    project.dibs("pause", "--fleet", "--reason", "colourful")
    for command in (("status",), ("list",), ("show", "9"), ("lsit",)):
        said = _on_a_terminal(project, *command, env={"NO_COLOR": "1"})
        assert said.strip()
        assert not _COLOUR.search(said), repr(said)
    watch = ("status", "--watch", "--every", "0.1")
    plain = _on_a_terminal(project, *watch, env={"NO_COLOR": "1"}, enough=b"colourful")
    assert "colourful" in plain
    assert not _COLOUR.search(plain), repr(plain)
    assert _COLOUR.search(_on_a_terminal(project, *watch, env={}, enough=b"colourful"))


def test_no_escape_codes_where_no_terminal_is(project: Project) -> None:
    project.begin(pipeline(), 2, history=False)
    for command in (("status",), ("list",), ("config", "show"), ("lsit",), ("work", "--drain")):
        reply = project.dibs(*command)
        assert "\x1b" not in reply.out + reply.err


def test_standard_output_is_the_answer_and_nothing_else(project: Project) -> None:
    project.begin(pipeline(), 2)
    reply = project.dibs("work", "--drain")
    assert reply.out == "claimed 4 (4 advanced)\n"
    assert reply.err.count("advanced to") == 4
    assert project.dibs("-vv", "list", "--all", "--json").document["ok"] is True
    quiet = project.dibs("work", "--drain", "--quiet", "--json")
    assert (quiet.code, quiet.err) == (3, "")


def test_a_watched_status_is_a_stream_of_lines(project: Project) -> None:
    project.begin(pipeline(), 1, history=False)
    process = subprocess.Popen(
        project.argv("status", "--watch", "--every", "0.1", "--json"),
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job is started with SIGINT ignored, and so would be our child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        project.dibs("add", "another")
        second = json.loads(process.stdout.readline())
    finally:
        process.send_signal(2)
        _, err = process.communicate(timeout=30)
    assert [entry["stages"][0]["issues"] for entry in (first, second)] == [1, 2]
    assert (process.returncode, err.strip()) == (130, "")


def test_completion_is_valid_in_its_shell(project: Project) -> None:
    script = project.dibs("completion", "bash")
    assert script.code == 0
    checked = subprocess.run(
        ["bash", "-n"], input=script.out, text=True, capture_output=True, check=False, timeout=30
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    for shell in ("zsh", "fish"):
        text = project.dibs("completion", shell).out
        assert "_DIBS_COMPLETE" in text
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=30)
    words = project.dibs(
        env={"_DIBS_COMPLETE": "bash_complete", "COMP_WORDS": "dibs cl", "COMP_CWORD": "1"}
    )
    assert "claim" in words.out
    assert list(project.root.iterdir()) == []


def test_help_and_version_touch_nothing(project: Project) -> None:
    assert re.fullmatch(r"dibs \d+\.\d+\.\d+\S*\n", project.dibs("--version").out)
    assert set(project.dibs("--help").out.split()) >= set(COMMANDS)
    script = (
        "import sys\n"
        "from dibs.frontends.cli.main import run\n"
        "sys.exit(sum(run([name, '--help']) for name in sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *COMMANDS],
        cwd=project.root,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^Usage: dibs (\S+)", done.stdout, re.MULTILINE) == list(COMMANDS)
    assert list(project.root.iterdir()) == []


def test_a_slip_of_the_finger_is_met_with_a_suggestion(project: Project) -> None:
    assert "'claim'" in project.dibs("clam", "1").err


def test_a_script_can_hold_a_lease_by_hand(project: Project) -> None:
    project.begin(pipeline(one=LEDGER, ttl="1h"), 1)
    lease = project.dibs("claim", "--next", "--json").data
    assert (lease["issue"], lease["stage"], lease["fence"]) == ("#1", "one", 1)
    env = {"DIBS_RUN": lease["run"]}
    beat = project.dibs("heartbeat", "1", "--json", env=env).data
    assert (beat["beats"], beat["fence"]) == (1, 1)
    done = project.dibs("release", "1", "--outcome", "advanced", "--json", env=env).data
    assert done == {"issue": "#1", "outcome": "advanced", "next": "two", "fence": 1}
    again = project.dibs("release", "1", "--outcome", "advanced", "--json", env=env)
    assert (again.code, again.error["code"]) == (5, "LEASE_LOST")
    assert project.advances() == {("#1", "one"): 1}
    assert project.labels() == {"stage:two"}


def test_an_empty_file_name_is_a_file_that_cannot_be_read(project: Project) -> None:
    """A script whose variable is not set must not work on another backlog."""
    project.begin(pipeline(), 1)
    project.dibs("--config", "", "list").told(1, "cannot be read")
    assert project.dibs("-C", "", "list").code == 0
