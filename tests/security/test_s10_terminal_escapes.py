"""S10: a stranger's words steer the reader's terminal, or forge a row or a line of the log.

Actor: a stranger who opens an issue. A title with a cursor movement and an erased line forged a row
of `dibs list`; OSC 52 set the clipboard; a line break in a title forged rows of `dibs show`; the
worker's own log lines carried them too. The wall: every character that steers, hides or turns the
direction of writing is spelled out in all text for people, in answers, errors, warnings, progress
and logs. JSON keeps the exact words, escaped by its own rules.

The sweep walks the table of commands, so a new command is looked at without a word here. No setting
switches the wall off; the control takes it out of this process, and the escapes arrive. In the
sweep itself the hostile words are there, spelled out, and the exact words come back from JSON.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import sqlite3
import struct
import subprocess
import termios
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.in_process import Ran, run_in_process

from dibs.frontends.cli.main import COMMANDS, LONG_RUNNING, run
from dibs_lab.fakehub import FakeHub, Limits, Permission

from .conftest import LIMIT_S, PROGRAM, SECRETS, Victim

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
EVIL = (
    f"x{CLIPBOARD}\x1b[1A\x1b[2K\x1b[31m\a\b\r\x7f\x9b31m\u202edlrow\u2066\u200b\ufeff\u00ad"
    "\U000e0041\u2028\n#99  ready  forged row"
)
TEXT = EVIL.replace("\n", "\nof many lines: ")
"""A body and an output are texts of many lines, and are shown as such, last."""
NAME = "e\x1b[31mv\u202eil"
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
SETTINGS = """
preset = "none"
ttl = "30s"
{tracker}
[[stage]]
name = "ready"
next = "done"
attempts = 1
run = 'cat answer > "$DIBS_RESULT"; cat evil; exit 1'
[[stage]]
name = "done"
[[loop]]
name = "tick"
every = "1s"
run = "true"
"""
# What each command is asked beside the hostile arguments. A command that is not listed, and ends by
# itself, is called as it is.
ASKED: Mapping[str, list[tuple[str, ...]]] = {
    "list": [("--all",), ()],
    "show": [("1",), ("2",), ("3",)],
    "why": [("1",), ("2",), ("3",)],
    "runs": [("1",), (), ("--output", "evil-run")],
    "claim": [("1",), ("2",), ("3", "--as", "me")],
    "release": [("no-such-run", "--outcome", "failed", "--note", EVIL)],
    "heartbeat": [("3", "--run", "no-such-run")],
    "keep": [("no-such-run", "--", "true")],
    "fence": [("check", "--issue", "3")],
    "hold": [(NAME, "--", "true"), ("fine", "--", "true")],
    "loop": [("tick", "--once")],
    "work": [("--once",), ("--dry-run",), ("--stage", EVIL)],
    "take": [("2",), ("2", "--as", NAME)],
    "give-back": [("2",)],
    "approve": [("2",)],
    "label": [("2", "--add", EVIL)],
    "pause": [("2", "--reason", EVIL), ("--fleet", "--reason", EVIL)],
    "resume": [("2",), ("--fleet",), ("--parked",)],
    "revoke": [("2", "--reason", EVIL), ("3", "--run", EVIL)],
    "config": [("show",), ("validate",)],
    "leases": [("show",)],
    "migrate": [("label-state",)],
    "hook": [("check",)],
    "completion": [("bash",)],
    "help": [("list",)],
    "sweep": [()],
    "follow": [()],
    "listen": [],
    "demo": [],
    "simulate": [],
}


def steering_in(text: str) -> set[str]:
    """The characters that a terminal would obey; line ends and tabs are ours."""
    return {c for c in text if unicodedata.category(c) in STEERING and c not in "\n\t"}


def _calls() -> Iterator[tuple[str, ...]]:
    for command in COMMANDS:
        yield (command, EVIL)
        yield (command, f"--{EVIL}")
        ours = [] if command in LONG_RUNNING else [()]
        for words in ASKED.get(command, ours):
            yield (command, *words)
    yield (EVIL,)
    yield ("-C", EVIL, "list")
    yield ("--config", EVIL, "list")


def _sweep(folder: Path, env: Mapping[str, str]) -> None:
    seen = ""
    for words in _calls():
        for more in ((), ("--json",)):
            call = (*words[:1], *more, *words[1:]) if "--" not in words else (*more, *words)
            ran = run_in_process(run, ["-v", *call], cwd=folder, env=env)
            said = ran.stdout + ran.stderr
            assert steering_in(said) == set(), (call, said)
            if not more:
                assert "\n#99" not in said, (call, said)
            seen += said
    for control in (r"x\x1b]52;c;ZXZpbA==\x07", r"\u202edlrow\u2066\u200b\ufeff\xad\U000e0041"):
        assert control in seen


@pytest.fixture
def evil(victim: Victim) -> Victim:
    """A folder whose handler says hostile words."""
    (victim.folder / "answer").write_text(json.dumps({"note": EVIL}), "utf-8")
    (victim.folder / "evil").write_text(EVIL, "utf-8")
    run = victim.folder / ".dibs/runs/evil-run"
    run.mkdir(parents=True)
    (run / "output.log").write_text(TEXT, "utf-8")
    (run / "issue.json").write_text(json.dumps({"issue": EVIL, "title": EVIL}), "utf-8")
    (run.parent / NAME).mkdir()
    (run.parent / NAME / "issue.json").write_text(json.dumps({"issue": "#1", "title": EVIL}))
    return victim


def _embedded(victim: Victim) -> None:
    """Three issues of a stranger, one of them paused, one held by a hostile name."""
    victim.configure(SETTINGS.format(tracker=""))
    assert victim.dibs("add", "one", "two", "three").returncode == 0
    victim.dibs("pause", "2", "--reason", EVIL)
    victim.dibs("label", "2", "--add", "hostile")
    victim.dibs("claim", "3")
    with contextlib.closing(sqlite3.connect(victim.folder / ".dibs/backlog.db")) as sql, sql:
        sql.execute("UPDATE issues SET title = ?, body = ?", (EVIL, TEXT))
        sql.execute("UPDATE issue_labels SET label = ? WHERE label = 'hostile'", (NAME,))
        sql.execute("UPDATE leases SET holder = ?", (NAME,))
        sql.execute("UPDATE comments SET author = ?", (NAME,))


def test_no_command_passes_a_strangers_words_to_the_terminal(evil: Victim) -> None:
    _embedded(evil)
    _sweep(evil.folder, evil.env)


def test_the_control_without_the_wall_the_escapes_arrive(
    evil: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.core.words.visible", lambda text: text)
    _embedded(evil)
    ran = run_in_process(run, ["list"], cwd=evil.folder, env=evil.env)
    assert CLIPBOARD in ran.stdout
    assert "\n#99" in ran.stdout


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(limits=Limits.off()) as opened:
        repository = opened.repository("acme/shop")
        opened.user("fleet", {"acme/shop": Permission.WRITE}, token=SECRETS["GITHUB_TOKEN"])
        opened.user(NAME, {"acme/shop": Permission.WRITE})
        fleet = opened.state.acting(opened.state.viewer(SECRETS["GITHUB_TOKEN"]))
        stranger = opened.state.acting(opened.state.viewer(f"{NAME}-token"))
        for label in ("stage:ready", NAME):
            fleet.create_label(repository, label, color="ededed", description=EVIL)
        for _ in range(3):
            issue = stranger.create_issue(repository, EVIL, body=TEXT)
            fleet.edit_issue(issue, labels=("stage:ready", NAME), assignees=())
        yield opened


@pytest.mark.long
def test_nor_on_github(evil: Victim, hub: FakeHub) -> None:
    evil.env["GITHUB_API_URL"] = hub.url
    settings = 'tracker = "github:acme/shop"\nsettle = "50ms"\n[github]\npace = false'
    evil.configure(SETTINGS.format(tracker="").replace("[[stage]]", f"{settings}\n[[stage]]", 1))
    _sweep(evil.folder, evil.env)


def test_json_keeps_the_exact_words(evil: Victim) -> None:
    _embedded(evil)
    ran: Ran = run_in_process(run, ["show", "1", "--json"], cwd=evil.folder, env=evil.env)
    data = json.loads(ran.stdout)["data"]
    assert data["title"] == EVIL
    assert steering_in(ran.stdout) == set()


# The program itself, on a terminal


def _on_a_terminal(victim: Victim, *words: str) -> bytes:
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    started = subprocess.Popen(
        [PROGRAM, *words],
        cwd=victim.folder,
        env={**victim.env, "TERM": "xterm-256color"},
        stdin=other,
        stdout=other,
        stderr=other,
    )
    os.close(other)
    seen = b""
    with contextlib.suppress(OSError):  # Linux says so when the last writer is gone
        while data := os.read(terminal, 65536):
            seen += data
    os.close(terminal)
    started.wait(LIMIT_S)
    return seen


COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    "words",
    [
        *(("list", "--all"), ("show", "1"), ("why", "2"), ("status",), ("runs",), ("runs", "1")),
        *(("-v", "work", "--once"), ("take", "3"), (EVIL,), ("show", EVIL), ("fsck",)),
    ],
    ids=lambda words: words[0][:6],
)
def test_the_bytes_on_a_terminal_steer_nothing(evil: Victim, words: tuple[str, ...]) -> None:
    _embedded(evil)
    if words == ("runs", "1"):
        evil.dibs("work", "--once")
    seen = COLOURS.sub(b"", _on_a_terminal(evil, *words)).replace(b"\r\n", b"\n")
    text = seen.decode("utf-8")
    assert steering_in(text) == set()
    assert "\n#99" not in text
    if words[0] in ("list", "show", "status", "-v"):
        assert r"x\x1b]52;c;ZXZpbA==\x07" in text
