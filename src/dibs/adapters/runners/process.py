"""Handlers as processes. Each run has a warden, and a folder that keeps its files.

.dibs/runs/RUN/issue.json    the handler's standard input
.dibs/runs/RUN/output.log    the handler's standard output and error
.dibs/runs/RUN/result.json   the file that DIBS_RESULT names, if the handler wrote one
.dibs/runs/RUN/exit          the exit code of a handler that ended by itself, by the warden
.dibs/runs/.open/RUN         the lease of a run that its worker has not ended; the worker locks it
"""

import fnmatch
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import assert_never

import msgspec

from dibs.adapters.system import SystemClock, locked, mask, without_git_variables
from dibs.core.errors import HandlerUnusable
from dibs.core.ids import LocalTime, RunId
from dibs.core.lease import Lease
from dibs.core.pipeline import Command, PythonCallable
from dibs.ports.system import Assignment, Exited, FinishedRun, RunEnd, Stopped

# A handler is the least trusted process here: credentials for trackers and stores stay with the
# worker.
SECRET_NAMES = (
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "GH_ENTERPRISE_TOKEN",
    "GITHUB_ENTERPRISE_TOKEN",
    "GITLAB_TOKEN",
    "GITEA_TOKEN",
    "FORGEJO_TOKEN",
    "JIRA_API_TOKEN",
    "LINEAR_API_KEY",
    "SLACK_BOT_TOKEN",
    "GITHUB_APP_PRIVATE_KEY*",
    "GITHUB_WEBHOOK_SECRET",
    "DIBS_LEASES",
    "DIBS_*_TOKEN",
    "DIBS_*_KEY",
    "DIBS_FAILPOINT",
)
_WARDEN_SLACK_S = 2.0
_OPEN = ".open"
_LARGEST_RESULT = 65_536
_LAST_LINES = 3
_MOST_WORDS = 150
"""The last words of a handler: from so many lines, so many characters at most."""
_TAIL = 4096
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)"
_PLACE_VARIABLES = {"DIBS_ROOT", "DIBS_RUNS", "DIBS_WORKTREE", "DIBS_WORKTREES", "DIBS_BRANCH"}
_SHELL_CHARACTERS = set("|&;<>()$`\\\"'*?[]#~=%{}!\n")
_SHELL_WORDS = {"if", "for", "while", "case", "exec", "cd", "."}


class ProcessRunner:
    def __init__(
        self,
        runs: Path,
        environment: Mapping[str, str],
        folder: Path,
        *,
        root: Path,
        configuration: Path,
    ) -> None:
        self._runs = runs
        self._environment = environment
        self._folder = folder
        """In which handlers run by default: the folder of the configuration, or its counterpart in
        the linked git worktree in which the worker was started."""
        self._root = root
        """The folder of the configuration."""
        self._configuration = configuration
        self._open: dict[RunId, int] = {}
        """The locked files in `.open`, by their run."""

    def check(self, handler: Command | PythonCallable, *, elsewhere: bool = False) -> None:
        """Raise HandlerUnusable if the handler is missing or cannot be loaded.

        `elsewhere`: the command will run in another folder, so relative paths are not checked.
        """
        match handler:
            case Command(line):
                _check_command(line, None if elsewhere else self._folder)
            case PythonCallable(target):
                # Import it in a separate process, as a run does: an import can have any effect.
                probe = subprocess.run(
                    [sys.executable, "-m", "dibs.frontends.handler_host", "--check", target],
                    capture_output=True,
                    text=True,
                    timeout=None,
                    check=False,
                    cwd=self._folder,
                    env=_without_secrets(self._environment, ()),
                )
                if probe.returncode:
                    said = (probe.stderr.strip().splitlines() or ["it ended without a word"])[-1]
                    raise HandlerUnusable(f"the handler {target!r} cannot be loaded: {mask(said)}")

    def start(self, assignment: Assignment, trusted_until: LocalTime) -> "ProcessRun":
        folder = self._runs / assignment.run
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if assignment.stdin or not (folder / "issue.json").exists():
                # Not emptied: it is the input of the handler that started this command.
                (folder / "issue.json").write_bytes(assignment.stdin)
                (folder / "result.json").unlink(missing_ok=True)  # of an earlier command
        except OSError as failure:
            raise HandlerUnusable(f"cannot write the run's folder {folder}: {failure}") from failure
        if assignment.lease is not None:
            with suppress(OSError):  # without it, the work is done again if we die
                self._note_open(assignment.lease)
        environment = dict(self._environment)
        if not assignment.as_typed:
            environment = _without_secrets(environment, assignment.pass_env)
            for name in _PLACE_VARIABLES:  # another run's, if a handler started this worker
                environment.pop(name, None)
            if assignment.folder is not None:
                # If a git hook or alias started the worker, git's variables name the repository of
                # that hook. Every git in the worktree would obey them and commit there.
                environment = without_git_variables(environment)
                environment |= {"DIBS_ROOT": str(self._root.absolute())}
            # The handler may start in another repository, or change the folder: its dibs would
            # find another configuration there, or none.
            environment |= {"DIBS_CONFIG": str(self._configuration)}
        environment |= assignment.environment
        environment |= {"DIBS_RESULT": str((folder / "result.json").absolute())}
        try:
            place = Path.cwd() if assignment.as_typed else assignment.folder or self._folder
            match assignment.handler:
                case Command(line):
                    argv = ["/bin/sh", "-c", line]
                case PythonCallable(target):
                    host = [sys.executable, "-m", "dibs.frontends.handler_host"]
                    argv = [*host, "--path", str(self._folder.absolute()), target]
                case _:
                    assert_never(assignment.handler)
            return ProcessRun(assignment, argv, folder, environment, trusted_until, place)
        except OSError as failure:  # no process, no memory, too many files
            raise HandlerUnusable(f"cannot start a handler: {failure}") from failure

    def _note_open(self, lease: Lease) -> None:
        """Write down the lease, and lock the file for as long as this process lives."""
        path = self._runs / _OPEN / lease.run
        path.parent.mkdir(exist_ok=True)
        if (descriptor := locked(path, create=True)) is not None:
            self._open[lease.run] = descriptor
            os.write(descriptor, msgspec.json.encode(lease))

    def settle(self, run: RunId) -> None:
        descriptor = self._open.pop(run, None)
        if descriptor is not None:
            with suppress(OSError):
                (self._runs / _OPEN / run).unlink()
            os.close(descriptor)

    def finished_by_the_dead(self) -> Iterator[FinishedRun]:
        try:
            paths = sorted((self._runs / _OPEN).iterdir())
        except OSError:
            return
        for path in paths:
            descriptor = locked(path)
            if descriptor is None:  # its worker lives, or another looks at it
                continue
            try:
                finished = self._finished(path)
                if finished is not None:
                    yield finished
                with suppress(OSError):
                    path.unlink()
            finally:
                os.close(descriptor)

    def _finished(self, path: Path) -> FinishedRun | None:
        """The run of a file in `.open`, if its handler exited with 0; None if in any doubt."""
        folder = self._runs / path.name
        try:
            lease = msgspec.json.decode(path.read_bytes(), type=Lease)
            if lease.run != path.name or (folder / "exit").read_text("ascii") != "0":
                return None
            return FinishedRun(lease, _result_in(folder))
        except (OSError, ValueError):
            return None


def _check_command(line: str, folder: Path | None) -> None:
    """Raise HandlerUnusable if the program does not exist or is not executable.

    A line that begins with a shell construct is left to the shell. Without a folder, a program
    named by a relative path cannot be checked yet.
    """
    program = _program(line)
    if _SHELL_CHARACTERS & set(program) or program in _SHELL_WORDS:
        return
    if folder is None and "/" in program and not program.startswith("/"):
        return
    place = (folder or Path()) / program
    found = shutil.which(str(place) if "/" in program else program)
    if found is not None and ("/" not in program or os.access(found, os.R_OK)):
        return
    if "/" in program and place.is_dir():
        raise HandlerUnusable(f"the handler {program!r} is a folder")
    if "/" in program and place.exists():
        raise HandlerUnusable(f"the handler {program!r} is not readable and executable")
    if "/" not in program:
        probe = subprocess.run(
            ["/bin/sh", "-c", 'type "$1" >/dev/null 2>&1', "sh", program], timeout=60, check=False
        )
        if probe.returncode == 0:  # a builtin of the shell
            return
    raise HandlerUnusable(f"the handler {program!r} was not found")


def _program(line: str) -> str:
    """The first word of a command that a shell can read. Raises HandlerUnusable."""
    try:
        words = shlex.split(line)
    except ValueError as flaw:
        raise HandlerUnusable(f"the command {line!r} cannot be read: {flaw}") from flaw
    if not words:
        raise HandlerUnusable("the command is empty")
    syntax = subprocess.run(
        ["/bin/sh", "-n", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    if syntax.returncode:
        said = (syntax.stderr.strip().splitlines() or ["the shell refuses it"])[-1]
        raise HandlerUnusable(f"the command {line!r} is not a valid shell command: {said}")
    return words[0]


def _without_secrets(environment: Mapping[str, str], trusted: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in trusted or not any(fnmatch.fnmatch(name, secret) for secret in SECRET_NAMES)
    }


class ProcessRun:
    """A handler that runs under its warden."""

    def __init__(
        self,
        assignment: Assignment,
        argv: list[str],
        folder: Path,
        environment: Mapping[str, str],
        trusted_until: LocalTime,
        directory: Path,
    ) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._status_lines = b""
        self._clock = SystemClock()
        self._patience_s = assignment.stop_within.total_seconds() + _WARDEN_SLACK_S
        self._stop_ordered: tuple[float, str] | None = None
        """Until when the warden must have ended the group, and why; None: no order was sent."""
        control_read, self._control = os.pipe()
        os.set_blocking(self._control, False)  # a stopped warden must not stop us too
        self._status, status_write = os.pipe()
        arguments = [str(control_read), str(status_write)]
        arguments += [str(assignment.stop_within.total_seconds()), repr(float(trusted_until))]
        arguments.append(str((folder / "exit").absolute()) if assignment.lease else "")
        arguments += [*map(str, assignment.shared), "--"]
        warden = [sys.executable, "-I", "-S", str(Path(__file__).with_name("warden.py"))]
        with (
            (folder / "issue.json").open("rb") as stdin,
            (folder / "output.log").open("ab") as output,
        ):
            self._process = subprocess.Popen(
                [*warden, *arguments, *argv],
                stdin=None if assignment.in_sight else stdin,
                stdout=None if assignment.in_sight else output,
                stderr=None if assignment.in_sight else output,
                cwd=directory,
                env=dict(environment),
                pass_fds=(control_read, status_write, *assignment.shared),
                start_new_session=True,
            )
        os.close(control_read)
        os.close(status_write)

    def trust_until(self, moment: LocalTime) -> None:
        self._send_order(f"until {float(moment)!r}")

    def stop(self, why: str) -> None:
        if self._stop_ordered is None:
            self._stop_ordered = (self._clock.now() + self._patience_s, why)
            self._send_order(f"stop {why}")

    def kill(self) -> None:
        why = "the worker was told to stop at once"
        self._stop_ordered = (self._clock.now() + _WARDEN_SLACK_S, why)
        self._send_order(f"kill {why}")

    def _send_order(self, line: str) -> None:
        with self._lock:
            if self._control < 0:
                return
            # If the warden has ended or is frozen, `poll` handles both.
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._control, (line.replace("\n", " ") + "\n").encode())

    def poll(self, seconds: float) -> RunEnd | None:
        poller = select.poll()  # select() cannot watch descriptors past 1024
        poller.register(self._status, select.POLLIN)
        if poller.poll(seconds * 1000):
            data = os.read(self._status, 65536)
            self._status_lines += data
            return None if data else self._end()
        if self._stop_ordered is None or self._clock.now() < self._stop_ordered[0]:
            return None
        # A warden that does not obey in time is itself frozen: end the group and the warden.
        why = self._stop_ordered[1]
        for line in self._status_lines.decode(errors="replace").splitlines():
            if line.startswith("started "):
                _kill_group(int(line.removeprefix("started ")))
        self._process.kill()
        self._end()
        return Stopped(why)

    def _end(self) -> RunEnd:
        """Read the last status line, once the warden has closed the status pipe or was killed."""
        self._process.wait()
        with self._lock:
            os.close(self._control)
            os.close(self._status)
            self._control = -1
        lines = self._status_lines.decode(errors="replace").splitlines()
        last = lines[-1] if lines else ""
        verb, _, rest = last.partition(" ")
        if verb == "exited":
            return Exited(int(rest))
        if verb == "stopped":
            return Stopped(rest)
        if verb == "started":
            _kill_group(int(rest))  # the warden was killed and cannot end the group
        return Stopped("its warden died")

    def result(self) -> bytes:
        return _result_in(self._folder)

    def last_words(self) -> str:
        try:
            with (self._folder / "output.log").open("rb") as file:
                length = file.seek(0, os.SEEK_END)
                file.seek(max(0, length - _TAIL))
                output = file.read(_TAIL).decode(errors="replace")
        except OSError:
            return ""
        if length > _TAIL:
            output = output.partition("\n")[2] or output
        return last_words_of(output, mask)


def _result_in(folder: Path) -> bytes:
    try:
        with (folder / "result.json").open("rb") as file:
            result = file.read(_LARGEST_RESULT + 1)
    except FileNotFoundError:
        return b""
    if len(result) > _LARGEST_RESULT:
        raise ValueError(f"it is larger than {_LARGEST_RESULT} bytes")
    return result


def last_words_of(output: str, mask: Callable[[str], str]) -> str:
    """The last lines of a handler's output, as one line that may be shown in public.

    Control characters are left out, and so are secrets, before a cut could halve one. Long lines
    are cut at their start: the end says most.
    """
    text = mask(re.sub(_ESCAPES, "", output))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    words = ""
    for line in [line for line in lines if line][: -_LAST_LINES - 1 : -1]:
        longer = f"{line} / {words}" if words else line
        if words and len(longer) > _MOST_WORDS:
            break
        words = longer
    shown = "".join(char for char in words if char.isprintable())
    return shown if len(shown) <= _MOST_WORDS else f"...{shown[3 - _MOST_WORDS :]}"


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
