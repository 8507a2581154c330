"""Handlers as processes, each under a warden, with its output kept in a folder of its own.

.dibs/runs/RUN/issue.json    what the handler reads on standard input
.dibs/runs/RUN/output.log    what it wrote to standard output and error
.dibs/runs/RUN/result.json   what it left in DIBS_RESULT, if anything
"""

import fnmatch
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from dibs.adapters.system import SystemClock, without_git_variables
from dibs.core.errors import HandlerUnusable
from dibs.core.ids import LocalTime
from dibs.core.pipeline import Command, PythonCallable
from dibs.ports.system import Assignment, Exited, RunEnd, Stopped

# A handler is the least trusted process here: what opens the tracker stays with the worker.
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
_LARGEST_RESULT = 65_536
_PLACES = {"DIBS_ROOT", "DIBS_RUNS", "DIBS_WORKTREE", "DIBS_WORKTREES", "DIBS_BRANCH"}
_SHELL_WORDS = set("|&;<>()$`\\\"'*?[]#~=%{}!\n")


class ProcessRunner:
    def __init__(self, runs: Path, environment: Mapping[str, str], folder: Path) -> None:
        self._runs = runs
        self._environment = environment
        self._folder = folder
        """Where handlers run: the folder of the configuration that names them."""

    def check(self, handler: Command | PythonCallable, *, elsewhere: bool = False) -> None:
        match handler:
            case Command(line):
                _check_command(line, None if elsewhere else self._folder)
            case PythonCallable(target):
                self._check_callable(target)

    def start(self, assignment: Assignment, trusted_until: LocalTime) -> "ProcessRun":
        folder = self._runs / assignment.run
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "issue.json").write_bytes(assignment.stdin)
        except OSError as failure:
            raise HandlerUnusable(f"cannot write the run's folder {folder}: {failure}") from failure
        environment = {
            **self._without_git_variables(assignment),
            **assignment.environment,
            "DIBS_RESULT": str((folder / "result.json").absolute()),
        }
        try:
            place = Path.cwd() if assignment.as_typed else assignment.folder or self._folder
            argv = _argv(assignment.handler, self._folder.absolute())
            return ProcessRun(assignment, argv, folder, environment, trusted_until, place)
        except OSError as failure:  # no process, no memory, too many files
            raise HandlerUnusable(f"cannot start a handler: {failure}") from failure

    def _without_git_variables(self, assignment: Assignment) -> dict[str, str]:
        if assignment.as_typed:
            return dict(self._environment)
        kept = _without_secrets(self._environment, assignment.pass_env)
        for name in _PLACES:  # a worker may be a handler's child: these are of another run
            kept.pop(name, None)
        if assignment.folder is None:
            return kept
        # A worker that a git hook or alias started is told where that is, and so would be every
        # git in the worktree: it would commit elsewhere.
        return {**without_git_variables(kept), "DIBS_ROOT": str(self._folder.absolute())}

    def _check_callable(self, target: str) -> None:
        """In a process of its own, as it will run: importing it here could do anything."""
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
            raise HandlerUnusable(f"the handler {target!r} cannot be loaded: {said}")


def _check_command(line: str, folder: Path | None) -> None:
    """A plain program name must exist and be executable. Shell constructs are the shell's.

    Without a folder, what is named by a path from there cannot be looked for yet.
    """
    try:
        words = shlex.split(line)
    except ValueError as flaw:
        raise HandlerUnusable(f"the command {line!r} cannot be read: {flaw}") from flaw
    if not words:
        raise HandlerUnusable("the command is empty")
    program = words[0]
    if _SHELL_WORDS & set(program) or program in {"if", "for", "while", "case", "exec", "cd", "."}:
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
    if "/" in program or not _builtin(program):
        raise HandlerUnusable(f"the handler {program!r} was not found")


def _builtin(program: str) -> bool:
    probe = subprocess.run(
        ["/bin/sh", "-c", 'type "$1" >/dev/null 2>&1', "sh", program], timeout=60, check=False
    )
    return probe.returncode == 0


def _without_secrets(environment: Mapping[str, str], trusted: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in trusted or not any(fnmatch.fnmatch(name, secret) for secret in SECRET_NAMES)
    }


class ProcessRun:
    """One handler under its warden."""

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
        self._said = b""
        self._clock = SystemClock()
        self._patience_s = assignment.stop_within.total_seconds() + _WARDEN_SLACK_S
        self._ordered: tuple[float, str] | None = None
        """When the warden was told to end the group, and why."""
        control_read, self._control = os.pipe()
        os.set_blocking(self._control, False)  # a stopped warden must not stop us too
        self._status, status_write = os.pipe()
        arguments = [str(control_read), str(status_write)]
        arguments += [str(assignment.stop_within.total_seconds()), repr(float(trusted_until))]
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
        self._order(f"until {float(moment)!r}")

    def stop(self, why: str) -> None:
        if self._ordered is None:
            self._ordered = (self._clock.now() + self._patience_s, why)
            self._order(f"stop {why}")

    def kill(self) -> None:
        why = "the worker was told to stop at once"
        self._ordered = (self._clock.now() + _WARDEN_SLACK_S, why)
        self._order(f"kill {why}")

    def _order(self, line: str) -> None:
        with self._lock:
            if self._control < 0:
                return
            try:
                os.write(self._control, (line.replace("\n", " ") + "\n").encode())
            except (BrokenPipeError, BlockingIOError):
                pass  # the warden is done, or does not listen: poll sees to either

    def poll(self, seconds: float) -> RunEnd | None:
        poller = select.poll()  # select() cannot watch descriptors past 1024
        poller.register(self._status, select.POLLIN)
        if not poller.poll(seconds * 1000):
            return self._overrule()
        data = os.read(self._status, 65536)
        self._said += data
        if data:
            return None
        return self._end()

    def _overrule(self) -> RunEnd | None:
        """A warden that was told and does nothing is itself frozen: end group and warden for it."""
        if self._ordered is None or self._clock.now() < self._ordered[0]:
            return None
        why = self._ordered[1]
        for line in self._said.decode(errors="replace").splitlines():
            if line.startswith("started "):
                _kill_group(int(line.removeprefix("started ")))
        self._process.kill()
        self._end()
        return Stopped(why)

    def _end(self) -> RunEnd:
        """The warden has closed its status pipe: read its last word."""
        self._process.wait()
        with self._lock:
            os.close(self._control)
            os.close(self._status)
            self._control = -1
        lines = self._said.decode(errors="replace").splitlines()
        last = lines[-1] if lines else ""
        verb, _, rest = last.partition(" ")
        if verb == "exited":
            return Exited(int(rest))
        if verb == "stopped":
            return Stopped(rest)
        if verb == "started":
            _kill_group(int(rest))  # the warden itself was killed: nobody else will end the group
        return Stopped("its warden died")

    def result(self) -> bytes:
        try:
            with (self._folder / "result.json").open("rb") as file:
                result = file.read(_LARGEST_RESULT + 1)
        except FileNotFoundError:
            return b""
        if len(result) > _LARGEST_RESULT:
            raise ValueError(f"it is larger than {_LARGEST_RESULT} bytes")
        return result


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _argv(handler: Command | PythonCallable, folder: Path) -> list[str]:
    match handler:
        case Command(line):
            return ["/bin/sh", "-c", line]
        case PythonCallable(target):
            host = [sys.executable, "-m", "dibs.frontends.handler_host"]
            return [*host, "--path", str(folder), target]
