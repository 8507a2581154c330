"""Actor: a handler that runs as the user of its worker.

Attack: it leaves a pipe, a link, a device or a folder where its worker or its warden reads or
writes a file. A pipe holds the worker for ever, and with it the slot and the lease; a link makes it
read or write a file of the handler's choice.
Wall: only regular files count, opened without waiting and without following links.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Victim
from .handlers import printed, run_folder, serve, work

SOON_S = 25
SOCKET = """\
import os, socket
os.chdir(os.path.dirname(os.environ["DIBS_RESULT"]))
socket.socket(socket.AF_UNIX).bind("result.json")
"""


def _ended(victim: Victim) -> str:
    """The output of a worker which must come to an end by itself."""
    try:
        done = work(victim, limit_s=SOON_S)
    except subprocess.TimeoutExpired:
        pytest.fail("the handler holds its worker")
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "planted",
    [
        'mkfifo "$DIBS_RESULT"',
        'ln -s /etc/hostname "$DIBS_RESULT"',
        'ln -s /dev/zero "$DIBS_RESULT"',
        'mkfifo pipe; ln -s "$PWD/pipe" "$DIBS_RESULT"',
        'mkdir "$DIBS_RESULT"',
        f"{sys.executable} -c '{SOCKET}'",
    ],
    ids=["pipe", "link", "device", "link to a pipe", "folder", "socket"],
)
def test_a_result_that_is_no_regular_file_is_a_failed_attempt_at_once(
    victim: Victim, planted: str
) -> None:
    serve(victim, f'rm -f "$DIBS_RESULT"\n{planted}\nexit 0')
    told = _ended(victim)
    assert "DIBS_RESULT cannot be read: it is not a regular file" in told


@pytest.mark.parametrize("name", ["exit", "exit.part", "output.log", "issue.json"])
def test_a_pipe_in_the_place_of_any_other_file_holds_nobody(victim: Victim, name: str) -> None:
    serve(victim, f'cd "$(dirname "$DIBS_RESULT")"\nrm -f {name}\nmkfifo {name}\nexit 1')
    told = _ended(victim)
    assert "the handler exited with 1" in told


def test_a_pipe_as_the_journal_or_as_a_worker_holds_nobody(victim: Victim) -> None:
    serve(
        victim,
        """\
        cd .dibs
        rm -f events.jsonl
        mkfifo events.jsonl
        mkdir -p workers
        mkfifo workers/1-x.json
        """,
    )
    assert "advanced" in _ended(victim)
    try:
        victim.dibs("why", "1", limit_s=SOON_S)
    except subprocess.TimeoutExpired:
        pytest.fail("the handler holds a person who asks why")


def test_a_pipe_as_the_users_own_settings_holds_no_worker_that_starts(victim: Victim) -> None:
    serve(victim, 'mkdir -p "$HOME/.config/dibs"; mkfifo "$HOME/.config/dibs/config.toml"; exit 0')
    assert "advanced" in _ended(victim)
    try:
        done = work(victim, limit_s=SOON_S)
    except subprocess.TimeoutExpired:
        pytest.fail("the handler holds every worker that starts after it")
    assert "config.toml is not a regular file" in done.stderr


def test_a_link_in_the_place_of_the_record_is_not_followed(victim: Victim) -> None:
    precious = victim.folder / "precious"
    precious.write_text("keep me", "utf-8")
    serve(
        victim,
        f"""\
        cd "$(dirname "$DIBS_RESULT")"
        for name in exit exit.part; do rm -f $name; ln -s {precious} $name; done
        """,
    )
    _ended(victim)
    assert precious.read_text("utf-8") == "keep me"


def test_a_run_folder_that_was_swapped_for_a_link_is_not_followed(victim: Victim) -> None:
    theirs = victim.folder / "theirs"
    theirs.mkdir()
    (theirs / "output.log").write_text("STOLEN-WORDS", "utf-8")
    serve(
        victim,
        f"""\
        folder=$(dirname "$DIBS_RESULT")
        mv "$folder" "$folder.moved"
        ln -s {theirs} "$folder"
        echo mine
        exit 1
        """,
    )
    told = _ended(victim)
    assert "STOLEN-WORDS" not in told
    assert "the handler exited with 1: mine" in told


def test_a_pipe_among_the_open_runs_holds_no_worker_that_starts(victim: Victim) -> None:
    serve(victim, "exit 0")
    opened = victim.folder / ".dibs" / "runs" / ".open"
    opened.mkdir(parents=True)
    os.mkfifo(opened / "0123456789ab")
    (opened / "00000000000b").symlink_to(opened / "00000000000b")
    (opened / "ba9876543210").symlink_to("/dev/zero")
    (opened / "00000000000a").mkdir()
    assert "advanced" in _ended(victim)


@pytest.mark.parametrize("verb", [("runs",), ("status",), ("runs", "--output")])
def test_a_pipe_holds_no_person_who_looks(victim: Victim, verb: tuple[str, ...]) -> None:
    serve(victim, "exit 0")
    _ended(victim)
    folder = run_folder(victim)
    for name in ("output.log", "issue.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    words = (*verb, folder.name) if verb[-1] == "--output" else verb
    try:
        victim.dibs(*words, limit_s=SOON_S)
    except subprocess.TimeoutExpired:
        pytest.fail("the handler holds whoever looks at its run")


def test_a_link_shows_a_person_no_other_file(victim: Victim, tmp_path: Path) -> None:
    serve(victim, "exit 0")
    _ended(victim)
    other = tmp_path / "other"
    other.write_text("OTHER-FILE", "utf-8")
    folder = run_folder(victim)
    (folder / "output.log").unlink()
    (folder / "output.log").symlink_to(other)
    assert "OTHER-FILE" not in victim.dibs("runs", "--output", folder.name).stdout


def test_control_a_regular_file_is_read(victim: Victim) -> None:
    serve(victim, 'echo \'{"note": "for the card"}\' > "$DIBS_RESULT"\necho said')
    assert "advanced" in _ended(victim)
    assert printed(victim) == b"said\n"
    assert "for the card" in victim.dibs("show", "1").stdout


def test_a_link_in_place_of_the_open_runs_deletes_nothing_behind_it(victim: Victim) -> None:
    """A repository may bring the link; a worker clears away what dead workers left."""
    assert victim.dibs("init").returncode == 0
    mine = victim.home / "thesis"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work", "utf-8")
    victim.configure('[[stage]]\nname = "ready"\nrun = "true"\n')
    assert victim.dibs("add", "one").returncode == 0
    (victim.folder / ".dibs" / "runs").mkdir(exist_ok=True)
    (victim.folder / ".dibs" / "runs" / ".open").symlink_to(mine)
    victim.dibs("--config", str(victim.folder / "dibs.toml"), "work", "--drain")
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_control_a_file_of_a_dead_worker_is_cleared_away(victim: Victim) -> None:
    """Beside the link: the clearing itself works, and touches its own files only."""
    assert victim.dibs("init").returncode == 0
    opened = victim.folder / ".dibs" / "runs" / ".open"
    opened.mkdir(parents=True, exist_ok=True)
    (opened / "notes.txt").write_text("not a lease", "utf-8")
    victim.configure('[[stage]]\nname = "ready"\nrun = "kill -9 $(ps -o ppid= -p $PPID)"\n')
    assert victim.dibs("add", "one").returncode == 0
    victim.dibs("work", "--drain")
    victim.configure('[[stage]]\nname = "ready"\nrun = "true"\n')
    assert victim.dibs("work", "--once").returncode in {0, 1, 3}
    assert [path.name for path in opened.iterdir()] == ["notes.txt"]
