"""The board on a terminal of 80 and of 160 columns: what is seen, the keys, and every way out."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.acceptance.harness import CLOCK, PATIENCE_S, Project, until

_SETTINGS = """
[[stage]]
name = "ready"
run = '''echo "step one of $DIBS_ISSUE"; exec sleep 600'''
next = "review"

[[stage]]
name = "review"
gate = "approval"
next = "done"
"""
_LONG = "with a title that is much too long for any terminal, and goes on and on and on " * 3
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def _on_its_terminal() -> None:
    """Of a job in the background, a shell has switched Ctrl-C off."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A terminal of a size, and the program that believes to be watched there."""

    def __init__(self, project: Project, columns: int, rows: int, *command: str) -> None:
        self.columns = columns
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            project.argv(*command),
            cwd=project.root,
            env=project.environment(
                {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": "70", "LINES": "17"}
            ),
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_on_its_terminal,  # noqa: PLW1509
        )
        self._seen = b""

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _read(self) -> None:
        while select.select([self._master], [], [], 0.05)[0]:
            self._seen += os.read(self._master, 65536)

    def frame(self) -> list[str]:
        """The lines of the last drawing that is whole."""
        self._read()
        drawn = self._seen.decode("utf-8", "ignore").split("\x1b[H")
        return [_ESCAPES.sub("", line).rstrip() for line in drawn[-1].split("\n")]

    def shows(self, *texts: str) -> list[str]:
        """Wait until a drawing has all the texts; its lines."""
        return until(
            lambda: (seen := self.frame()) and all(t in "\n".join(seen) for t in texts) and seen,
            f"{texts} on the board: {self.frame()}",
        )

    def ended(self) -> int:
        """The exit code. Reads on: who does not read keeps the program from writing its end."""
        deadline = CLOCK.now() + PATIENCE_S
        while self.process.poll() is None and CLOCK.now() < deadline:
            self._read()
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        os.close(self._master)
        os.close(self._slave)


@contextmanager
def board(project: Project, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    terminal = Terminal(project, columns, rows, "status", "--watch")
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def busy(project: Project) -> Project:
    """5 in flight, 60 parked, 15 to approve, one paused."""
    project.configure(_SETTINGS)
    assert project.dibs("init").code == 0
    project.dibs("add", *(f"Fix it {number} {_LONG}" for number in range(5)))
    worker = project.start("work", "work", "--jobs", "5", "--name", "agent-1")
    until(lambda: worker.err.count("claimed for") == 5, "five claims")
    project.dibs("add", "--label", "parked", *(f"Hopeless {number}" for number in range(60)))
    project.dibs("add", "--stage", "review", *(f"Approve {number}" for number in range(15)))
    project.dibs("add", "Legal asks")
    project.dibs("pause", "81", "--reason", "legal \x1b[31masks", "--as", "ann")
    return project


@pytest.mark.parametrize("columns", [80, 160])
def test_the_board_shows_what_waits_for_a_person_first_and_what_runs(busy, columns):
    with board(busy, columns, 40) as terminal:
        lines = terminal.shows("step one of #1", "q quit")
    assert len(lines) == 40
    assert all(len(line) <= columns for line in lines), lines
    text = "\n".join(lines)
    assert "for a person  15 to approve, 60 parked, 1 paused" in lines[2]
    assert text.index("for a person") < text.index("running  5") < text.index("next in line")
    for word in ("Approve 0", "Hopeless 0", "Legal asks", r"ann: legal \x1b[31masks", "1/3", "…"):
        assert word in text, word
    row = next(line for line in lines if re.match(r"ready +6", line))
    assert row.split()[:6] == ["ready", "66", "0", "5", "0", "60"]


def test_few_rows_are_enough(busy):
    for rows in (3, 8, 12):
        with board(busy, 40, rows) as terminal:
            lines = terminal.shows("q quit")
            assert len(lines) == rows
            assert all(len(line) <= 40 for line in lines), lines
            terminal.press("q")
            assert terminal.ended() == 0


def test_keys_filter_open_an_issue_and_quit(busy):
    with board(busy) as terminal:
        terminal.shows("for a person")
        terminal.press("/hopeless 7\r")
        lines = terminal.shows("1 parked", "only 'hopeless 7'")
        assert not any("Approve 0" in line for line in lines)
        terminal.press("\x1b")
        terminal.shows("60 parked")
        terminal.press("66\r")
        terminal.shows("#66 Approve 0", "stage   review (gated)", "q back")
        terminal.press("q")
        terminal.shows("60 parked")
        terminal.press("999\r")
        terminal.shows("no issue #999")
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.restored


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_board_and_the_terminal_is_as_it_was(project, end, code):
    project.configure(_SETTINGS)
    assert project.dibs("init").code == 0
    with board(project) as terminal:
        terminal.shows("for a person  nothing")
        assert not terminal.restored
        if end is signal.SIGINT:
            terminal.press("\x03")
        else:
            terminal.process.send_signal(end)
        assert terminal.ended() == code
        assert terminal.restored
        terminal.frame()
        assert b"Traceback" not in terminal._seen
        assert b"\x1b[?1049l" in terminal._seen


def test_a_storage_that_breaks_meanwhile_ends_the_board_and_restores_the_terminal(project):
    project.configure(_SETTINGS)
    assert project.dibs("init").code == 0
    with board(project) as terminal:
        terminal.shows("for a person  nothing")
        for path in (project.root / ".dibs").glob("backlog.db*"):
            path.write_bytes(b"this is no database " * 500)
        assert terminal.ended() == 1
        assert terminal.restored


def test_a_worker_says_when_it_starts_idles_and_is_asked_to_stop(project):
    project.configure(_SETTINGS)
    assert project.dibs("init").code == 0
    worker = project.start("work", "work", "--name", "agent-1")
    until(lambda: "idle: no issue to claim" in worker.err, "it is idle")
    assert worker.err.startswith("agent-1 serves ready and review of sqlite:")
    project.dibs("add", "one")
    until(lambda: "claimed for ready" in worker.err, "a claim")
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "asked to stop: finishing 1 issue, again to stop at once" in worker.err, "a word")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait(60)
    assert "stopping at once" in worker.err
    assert worker.err.count("idle:") == 1


def test_a_quiet_worker_says_nothing_of_it(project):
    project.configure(_SETTINGS)
    assert project.dibs("init").code == 0
    assert project.dibs("work", "--quiet", "--drain").err == "nothing to do\n"
