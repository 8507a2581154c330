"""What strangers write reaches the terminal as text: it steers no terminal and breaks no line."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from dibs.frontends.cli import output

from .harness import Project, bare_root, pipeline

NASTY = "\x1b[2J\a\r \x9b31m\x7f\u202eabc\u2066\nsecond row\0"
CONTROLS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n"}
CONTROLS |= {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def _nasty(project: Project) -> None:
    """An issue, its text, a label, a note, a reason and a handler's output with such characters."""
    project.begin(pipeline(ttl="1h", attempts=1), 3, history=False)
    project.sql("UPDATE issues SET title = ?, body = ?", f"title {NASTY}", f"body {NASTY}")
    project.dibs("label", "1", "--add", "la\x1bbel")
    run = project.dibs("claim", "1", "--json").data["run"]
    project.dibs("release", "1", "--run", run, "--outcome", "failed", "--note", f"note {NASTY}")
    project.dibs("pause", "2", "--reason", f"reason {NASTY}")
    project.dibs("pause", "--repository", "--reason", f"reason {NASTY}")
    log = project.root / ".dibs/runs/some-run/output.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"output {NASTY}", "utf-8")
    log.with_name("issue.json").write_text(json.dumps({"issue": "#1", "title": f"t {NASTY}"}))


LOOKS = [
    ("list", "--all"),
    ("show", "1"),
    ("show", "2"),
    ("why", "1"),
    ("why", "2"),
    ("runs",),
    ("runs", "1"),
    ("runs", "--output", "some-run"),
    ("status",),
    ("claim", "1"),
    ("work", "--once"),
    ("label", "3", "--add", f"x{NASTY}"),
    ("take", "1", "--as", "a\x1bb"),
    ("add", "x", "--stage", f"x{NASTY}"),
    ("\x1b[2Jlist",),
]


def test_no_control_character_reaches_the_reader(project: Project) -> None:
    _nasty(project)
    for look in LOOKS:
        reply = project.dibs(*look).quiet()
        found = {char for char in reply.out + reply.err if char in CONTROLS}
        assert found == set(), (look, found, reply)
    shown = project.dibs("show", "1").out
    assert "title \\x1b[2J\\x07\\r \\x9b31m\\x7f\\u202eabc\\u2066\\nsecond row\\x00" in shown
    rows = project.dibs("list", "--all").out.splitlines()
    assert len(rows) == 4, "a title with a line break is one row"


def test_json_is_exact_and_steers_no_terminal_either(project: Project) -> None:
    _nasty(project)
    reply = project.dibs("show", "1", "--json")
    assert reply.data["title"] == f"title {NASTY}"
    assert reply.data["body"] == f"body {NASTY}"
    assert {char for char in reply.out if char in CONTROLS} == set()


def test_what_the_encoding_lacks_is_spelled_out(project: Project) -> None:
    project.begin(pipeline(), 1, history=False)
    project.sql("UPDATE issues SET title = 'Grüße …', body = 'Straße'")
    bare = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""}
    plain = project.dibs("show", "1", env=bare, alone=True).quiet()
    assert (plain.code, "Gr\\xfc\\xdfe ..." in plain.out, "Stra\\xdfe" in plain.out) == (
        0,
        True,
        True,
    )
    asked = project.dibs("show", "1", "--json", env=bare, alone=True).quiet()
    assert (asked.data["title"], asked.data["body"]) == ("Grüße …", "Straße")


def test_a_title_is_cut_at_the_edge_of_the_terminal_only(project: Project) -> None:
    title = "a title of many words " * 10
    project.begin(pipeline(), 1, history=False)
    project.dibs("add", title, "短い題名" * 30)
    whole = project.dibs("list").out.splitlines()
    assert whole[2].endswith(title.strip()), "no terminal, no edge"
    for width in (50, 120):
        rows = _on_a_terminal_of(width, project, "list")
        assert [row[-1] == "…" for row in rows] == [False, False, True, True]
        assert all(width - 3 <= output.columns(row) <= width for row in rows[2:])


def _on_a_terminal_of(width: int, project: Project, *command: str) -> list[str]:
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    done = subprocess.Popen(
        project.argv(*command), cwd=project.root, env=project.environment(), stdout=other
    )
    os.close(other)
    seen = b""
    try:
        while data := os.read(terminal, 65536):
            seen += data
    except OSError:  # Linux says so when the last writer is gone
        pass
    os.close(terminal)
    assert done.wait(30) == 0
    return seen.decode().splitlines()


# Names and titles


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\tb", "a\x9bb", "a\u202eb"])
def test_a_name_with_control_characters_is_refused(project: Project, name: str) -> None:
    project.begin(pipeline(), 1, history=False)
    before = project.dump()
    for reply in (
        project.dibs("claim", "1", "--as", name),
        project.dibs("take", "1", "--as", name),
        project.dibs("claim", "1", env={"DIBS_ACTOR": name}),
        project.dibs("work", "--once", "--name", name),
    ):
        assert (reply.quiet().code, reply.out) == (2, "")
        assert "a name may not contain control characters" in reply.err
    assert project.dump() == before


def test_a_title_has_a_longest_length(project: Project) -> None:
    project.begin(pipeline(), 0, history=False)
    assert project.dibs("add", "x" * 256).code == 0
    before = project.dump()
    reply = project.dibs("add", "fine", "x" * 257).quiet()
    assert (reply.code, reply.out) == (2, "")
    assert "256 characters, and this one has 257" in reply.err
    assert len(reply.err) < 500, "it is not echoed"
    assert project.dump() == before


# What ends a command


def test_an_interrupt_while_starting_shows_no_traceback(project: Project) -> None:
    # As if the start took long: an import of the program waits where the interrupt comes.
    program = (
        "import builtins, signal, sys\n"
        "real = builtins.__import__\n"
        "def slow(name, *rest):\n"
        "    if name == 'dibs.frontends.cli.main':\n"
        "        print('importing', flush=True)\n"
        "        signal.sigtimedwait([], 60)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = slow\n"
        "sys.argv = ['dibs', 'list']\n"
        "from dibs.__main__ import main\n"
        "main()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Of a job in the background, a shell has switched Ctrl-C off.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "importing\n"
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out, err) == (130, "", "")


def test_a_final_stage_takes_no_handler(project: Project) -> None:
    project.begin(pipeline(), 1, history=False)
    reply = project.dibs("work", "--stage", "done", "--run", "true", "--once").quiet()
    assert (reply.code, reply.out) == (2, "")
    assert "stage 'done' is final" in reply.err
    assert "one, two" in reply.err


FAILING = "[[stage]]\nname = 'ready'\nrun = '{run}'\nattempts = {attempts}\nbackoff = '10ms'\n"


@pytest.mark.parametrize(
    ("how", "run", "attempts", "code", "outcomes"),
    [
        ("--once", "exit 3", 3, 1, {"failed": 1}),
        ("--once", "exit 3", 1, 1, {"parked": 1}),
        ("--once", "exit 75", 3, 0, {"returned": 1}),
        ("--once", "true", 3, 0, {"advanced": 1}),
        ("--drain", "exit 3", 2, 1, {"failed": 1, "parked": 1}),
        (
            "--drain",
            "test -e again || { touch again; exit 3; }",
            3,
            0,
            {"failed": 1, "advanced": 1},
        ),
    ],
)
def test_the_exit_code_says_whether_what_was_run_came_to_a_good_end(
    project: Project, how: str, run: str, attempts: int, code: int, outcomes: dict[str, int]
) -> None:
    project.begin(FAILING.format(run=run, attempts=attempts), 1, history=False)
    reply = project.dibs("work", how, "--quiet", "--json").quiet()
    assert (reply.code, reply.data["outcomes"]) == (code, outcomes)
    assert reply.data["unsuccessful"] == (["#1"] if code else [])


# Files that may not be touched


def test_a_folder_that_may_not_be_written_is_not_permitted(project: Project) -> None:
    before = bare_root()
    if before is None:
        pytest.skip("not run: as root, and no capability can be dropped (no setpriv)")
    folder: Path = project.root / "closed"
    folder.mkdir(mode=0o500)
    for command in ("init", "add"):
        words = (command, "x") if command == "add" else (command,)
        reply = project.dibs(*words, "--json", before=before, cwd=folder).quiet()
        assert (reply.code, reply.error["code"]) == (9, "NOT_PERMITTED"), command
    assert list(folder.iterdir()) == []
