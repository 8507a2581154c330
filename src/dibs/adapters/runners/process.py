"""Handlers as processes. Each run has a warden, and a folder that keeps its files.

A handler may run as the same user as its worker, and can then put anything into the folder of its
run: a link, a pipe, a device. So every file there is opened without following links and without
waiting, and counts only if it is a regular file.

.dibs/runs/RUN/issue.json    the handler's standard input
.dibs/runs/RUN/output.log    the handler's standard output and error
.dibs/runs/RUN/result.json   the file that DIBS_RESULT names, if the handler wrote one
.dibs/runs/RUN/plan.md       the file that DIBS_PLAN names, if the handler wrote one
.dibs/runs/RUN/exit          the exit code of a handler that ended by itself, by the warden
.dibs/runs/.open/RUN         the lease of a run that its worker has not ended; the worker locks it

A handler that runs as another user cannot reach this folder: its DIBS_RESULT is in a temporary
folder of its own, from which the worker takes the file when the handler has ended.
"""

import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.runners.warden import pass_on_capabilities, shut_process
from dibs.adapters.system import (
    Sharing,
    SystemClock,
    locked,
    make_folder,
    mask,
    open_regular,
    read_regular,
    without_git_variables,
)
from dibs.core.environment import passed_on
from dibs.core.errors import HandlerUnusable
from dibs.core.ids import LocalTime, RunId
from dibs.core.lease import Lease
from dibs.core.pipeline import Command, Env, PythonCallable
from dibs.ports.system import Assignment, Exited, FinishedRun, RunEnd, Stopped

_WARDEN_SLACK_S = 2.0
_OPEN = ".open"
_ANSWERS = {"DIBS_RESULT": "result.json", "DIBS_PLAN": "plan.md"}
"""The files in which a handler may answer, by the variables that name them."""
_LARGEST_RESULT, _LARGEST_PLAN = 65_536, 262_144
_LAST_LINES = 3
_MOST_WORDS = 150
"""The last words of a handler: from so many lines, so many characters at most."""
_TAIL = 4096
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)"
_PLACE_VARIABLES = {"DIBS_ROOT", "DIBS_RUNS", "DIBS_WORKTREE", "DIBS_WORKTREES", "DIBS_BRANCH"}
_SHELL_CHARACTERS = set("|&;<>()$`\\\"'*?[]#~=%{}!\n")
_SHELL_WORDS = {"if", "for", "while", "case", "exec", "cd", "."}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_MINE = {"TMPDIR", "MAIL"}
"""Variables that name places of the worker's own user."""
_CHOWN_KILL_SETGID_SETUID = 0b1110_0001


class ProcessRunner:
    def __init__(
        self,
        runs: Path,
        environment: Mapping[str, str],
        folder: Path,
        *,
        root: Path,
        configuration: Mapping[str, str],
        output_max: int,
        may_pass: Callable[[str], bool],
        share: Sharing = Sharing.NONE,
    ) -> None:
        shut_process()
        self._output_max = output_max
        self._may_pass = may_pass
        """Whether the operator lets a credential go to handlers."""
        self._runs, self._share = runs, share
        self._environment = environment
        self._folder = folder
        """In which handlers run by default: the folder of the configuration, or its counterpart in
        the linked git worktree in which the worker was started."""
        self._root = root
        """The folder of the configuration."""
        self._configuration = configuration
        """The variables by which dibs finds the configuration."""
        self._open: dict[RunId, int] = {}
        """The locked files in `.open`, by their run."""

    def check(
        self,
        handler: Command | PythonCallable,
        *,
        elsewhere: bool = False,
        run_as: str = "",
        env: Env = Env.LISTED,
        pass_env: tuple[str, ...] = (),
    ) -> None:
        """Raise HandlerUnusable if the handler is missing, or cannot be loaded or run as the user.

        `elsewhere`: the command will run in another folder, so relative paths are not checked.
        """
        if run_as:
            user_named(run_as)
        match handler:
            case Command(line):
                _check_command(line, None if elsewhere else self._folder)
            case PythonCallable() if run_as:
                pass  # an import can have any effect, and this process is the more powerful user
            case PythonCallable(target):
                # Import it in a separate process, as a run does: an import can have any effect.
                probe = subprocess.run(
                    [sys.executable, "-m", "dibs.frontends.handler_host", "--check", target],
                    capture_output=True,
                    text=True,
                    timeout=None,
                    check=False,
                    cwd=self._folder,
                    env=passed_on(self._environment, env, pass_env, self._may_pass),
                )
                if probe.returncode:
                    said = (probe.stderr.strip().splitlines() or ["it ended without a word"])[-1]
                    raise HandlerUnusable(f"the handler {target!r} cannot be loaded: {mask(said)}")

    def start(self, assignment: Assignment, trusted_until: LocalTime) -> "ProcessRun":
        folder, user = self._runs / assignment.run, None
        if assignment.run_as:
            user = user_named(assignment.run_as)
            # The result is out of reach of another worker.
            assignment = replace(assignment, lease=None)
        try:
            make_folder(self._runs, self._share, sticky=True)
            make_folder(folder, Sharing.NONE)  # also if a group shares the others
            files = _RunFiles(folder, user)
        except OSError as failure:
            raise HandlerUnusable(f"cannot write the run's folder {folder}: {failure}") from failure
        try:
            if self._share is Sharing.GROUP:
                _refuse_another_users(files.folder, folder)
            files.begin(assignment.stdin)
            if assignment.lease is not None:
                with suppress(OSError, ValueError):  # without it, the work is done again if we die
                    self._note_open(assignment.lease)
            environment = self._handlers_environment(assignment, user)
            environment |= files.answers
            match assignment.handler:
                case Command(line):
                    argv = ["/bin/sh", "-c", line]
                case PythonCallable(target):
                    host = [sys.executable, "-m", "dibs.frontends.handler_host"]
                    argv = [*host, "--path", str(self._folder.absolute()), target]
                case _:
                    assert_never(assignment.handler)
            place = Path.cwd() if assignment.as_typed else assignment.folder or self._folder
            wanted = _Launch(argv, environment, place, self._output_max, user)
            return ProcessRun(assignment, wanted, files, trusted_until)
        except (OSError, ValueError) as failure:  # no process, no memory, too many files
            files.close()
            raise HandlerUnusable(f"cannot start a handler: {failure}") from failure

    def _handlers_environment(self, assignment: Assignment, user: "User | None") -> dict[str, str]:
        may_pass = (lambda _: True) if assignment.as_typed else self._may_pass
        environment = passed_on(self._environment, assignment.env, assignment.pass_env, may_pass)
        if not assignment.as_typed:
            for name in _PLACE_VARIABLES:  # another run's, if a handler started this worker
                environment.pop(name, None)
            if assignment.folder is not None:
                # If a git hook or alias started the worker, git's variables name the repository of
                # that hook. Every git in the worktree would obey them and commit there.
                environment = without_git_variables(environment)
                environment |= {"DIBS_ROOT": str(self._root.absolute())}
            # The handler may start in another repository, or change the folder: its dibs would
            # find another configuration there, or none.
            environment |= self._configuration
        if user is not None:
            for name in [name for name in environment if name in _NOT_MINE or name[:4] == "XDG_"]:
                del environment[name]
            environment |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        return {**environment, **assignment.environment}

    def _note_open(self, lease: Lease) -> None:
        """Write down the lease, and lock the file for as long as this process lives."""
        path = self._runs / _OPEN / lease.run
        make_folder(path.parent, self._share, sticky=True)
        if path.parent.is_symlink():  # came with a repository: what is behind it is not ours
            return
        if (descriptor := locked(path, create=True, share=Sharing.NONE)) is not None:
            self._open[lease.run] = descriptor
            os.write(descriptor, msgspec.json.encode(lease))

    def settle(self, run: RunId) -> None:
        descriptor = self._open.pop(run, None)
        if descriptor is not None:
            with suppress(OSError):
                (self._runs / _OPEN / run).unlink()
            os.close(descriptor)

    def finished_by_the_dead(self) -> Iterator[FinishedRun]:
        folder = self._runs / _OPEN
        try:
            paths = [] if folder.is_symlink() else sorted(folder.iterdir())
        except OSError:
            return
        for path in paths:
            descriptor = None
            with suppress(OSError):  # a folder or a link, by a handler
                descriptor = locked(path)
            if descriptor is None:  # its worker lives, or another looks at it
                continue
            try:
                lease = msgspec.json.decode(read_regular(path, _LARGEST_RESULT), type=Lease)
                if lease.run != path.name:
                    continue
                finished = self._finished(lease)
                if finished is not None:
                    yield finished
                with suppress(OSError):
                    path.unlink()
            except (OSError, ValueError):  # not a file of ours, another user's, cut off: it stays
                continue
            finally:
                os.close(descriptor)

    def _finished(self, lease: Lease) -> FinishedRun | None:
        """The run of the lease, if its handler exited with 0; None if in any doubt.

        Raises PermissionError for the run of another user, who can judge it.
        """
        try:
            opened = os.open(self._runs / lease.run, _FOLDER)
            try:
                _refuse_another_users(opened, self._runs / lease.run)
                finished = read_regular("exit", 2, opened) == b"0"
                return FinishedRun(lease, *_answers_in(opened)) if finished else None
            finally:
                os.close(opened)
        except PermissionError:
            raise
        except (OSError, ValueError):
            return None


def _refuse_another_users(opened: int, folder: Path) -> None:
    """Raise PermissionError if the folder of a run is another user's: the result may be forged."""
    if os.fstat(opened).st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")


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
            ["/bin/sh", "-c", 'type "$1" >/dev/null 2>&1', "sh", program],
            env={"PATH": os.environ.get("PATH", os.defpath)},  # others can read it in /proc
            timeout=60,
            check=False,
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
        ["/bin/sh", "-n", "-c", line],
        env={"PATH": os.environ.get("PATH", os.defpath)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if syntax.returncode:
        said = (syntax.stderr.strip().splitlines() or ["the shell refuses it"])[-1]
        raise HandlerUnusable(f"the command {line!r} is not a valid shell command: {said}")
    return words[0]


class User(Struct, frozen=True):
    """The user for a handler: name, home folder and ids."""

    name: str
    home: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def user_named(name: str) -> User:
    """Look the user up. Raises HandlerUnusable if the worker cannot run a handler as the user."""
    import pwd

    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise HandlerUnusable(f"run_as: there is no user {name!r} on this machine") from None
    own = os.geteuid()
    if entry.pw_uid in (0, own):
        which = "root" if entry.pw_uid == 0 else "the worker's own user"
        raise HandlerUnusable(f"run_as: {name!r} is {which}, which keeps nothing from a handler")
    held = 0 if own else _CHOWN_KILL_SETGID_SETUID
    with suppress(OSError):  # not Linux
        status = Path("/proc/thread-self/status").read_text("ascii", errors="replace")
        # A warden of a worker that is not root gets only what is inheritable as well.
        held = int(status.partition("CapEff:")[2].split()[0], 16)
        if own != 0:
            held &= int(status.partition("CapInh:")[2].split()[0], 16)
    if held & _CHOWN_KILL_SETGID_SETUID != _CHOWN_KILL_SETGID_SETUID:
        raise HandlerUnusable(
            f"run_as: this worker may not run a handler as {name!r}: it is neither root nor has the"
            " ambient capabilities CAP_SETUID, CAP_SETGID, CAP_KILL and CAP_CHOWN"
        )
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return User(name, entry.pw_dir, entry.pw_uid, entry.pw_gid, groups)


class _Launch(Struct, frozen=True):
    """How to start a handler."""

    argv: list[str]
    environment: Mapping[str, str]
    place: Path
    output_max: int
    user: User | None


class _RunFiles:
    """The files of a run. The folder stays open, and stays ours if the handler moves the folder."""

    def __init__(self, folder: Path, user: User | None) -> None:
        self._user = user
        self.folder = os.open(folder, _FOLDER)
        self._own: Path | None = None
        """The temporary folder of a handler that runs as another user."""
        self._results = self.folder
        if user is not None:
            import tempfile

            try:
                self._own = Path(tempfile.mkdtemp(prefix="dibs-run-"))
                self._results = os.open(self._own, _FOLDER)
                os.fchown(self._results, user.uid, -1)
            except OSError:
                self.close()
                raise
        own = (self._own or folder).absolute()
        self.answers = {name: str(own / file) for name, file in _ANSWERS.items()}

    def begin(self, stdin: bytes) -> None:
        """Write the input of the handler, and remove the answers of an earlier command."""
        try:
            os.stat("issue.json", dir_fd=self.folder, follow_symlinks=False)
            if not stdin:
                return  # it is the input of the handler that started this command
            os.unlink("issue.json", dir_fd=self.folder)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # A handler that is another user may open /dev/stdin again: the folder is shut to it.
        mode = 0o600 if self._user is None else 0o644
        with os.fdopen(os.open("issue.json", flags, mode, dir_fd=self.folder), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(stdin)
        for name in _ANSWERS.values():
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.folder)

    def input(self) -> int:
        return open_regular("issue.json", os.O_RDONLY, self.folder)

    def output(self) -> int:
        return open_regular("output.log", os.O_RDWR | os.O_APPEND | os.O_CREAT, self.folder)

    def read_answers(self) -> tuple[bytes, bytes]:
        """Result and plan. Of another user's handler, our folder gets copies."""
        found = _answers_in(self._results, self._user)
        for name, content in zip(_ANSWERS.values(), found, strict=True):
            if content and self._own is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with (
                    suppress(OSError),
                    os.fdopen(os.open(name, flags, 0o600, dir_fd=self.folder), "wb") as file,
                ):
                    file.write(content)
        return found

    def tail(self) -> bytes:
        return read_regular("output.log", -_TAIL, self.folder)

    def close(self) -> None:
        if self._own is not None:
            if self._results != self.folder:
                with suppress(OSError):  # only its owner may remove a folder from /tmp
                    os.fchown(self._results, os.geteuid(), -1)
                os.close(self._results)
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1


class ProcessRun:
    """A handler that runs under its warden."""

    def __init__(
        self, assignment: Assignment, launch: _Launch, files: _RunFiles, trusted_until: LocalTime
    ) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._status_lines = b""
        self._answers: tuple[bytes, bytes] | OSError | ValueError = (b"", b"")
        self._tail = b""
        self._clock = SystemClock()
        self._patience_s = assignment.stop_within.total_seconds() + _WARDEN_SLACK_S
        self._stop_ordered: tuple[float, str] | None = None
        """Until when the warden must have ended the group, and why; None: no order was sent."""
        user = launch.user
        with ExitStack() as ours:  # what only the warden needs
            stdin, output = files.input(), files.output()
            ours.callback(os.close, stdin)
            ours.callback(os.close, output)
            control_read, self._control = os.pipe()
            ours.callback(os.close, control_read)
            os.set_blocking(self._control, False)  # a stopped warden must not stop us too
            self._status, status_write = os.pipe()
            ours.callback(os.close, status_write)
            folder = files.folder if assignment.lease else -1
            log = -1 if assignment.in_sight else output
            arguments = [str(control_read), str(status_write)]
            arguments += [str(assignment.stop_within.total_seconds()), repr(float(trusted_until))]
            arguments += [str(folder), str(log), str(launch.output_max)]
            arguments.append(",".join(map(str, (user.uid, user.gid, *user.groups))) if user else "")
            arguments += [*map(str, assignment.shared), "--"]
            # Imported, not run as a file: Python keeps compiled code only of what it imports.
            place = str(Path(__file__).parent)
            begin = f"import sys; sys.path.insert(0, {place!r}); import warden; warden.main()"
            warden = [sys.executable, "-I", "-S", "-c", begin]
            passed = (control_read, status_write, folder, log, *assignment.shared)
            if user is not None:
                pass_on_capabilities(_CHOWN_KILL_SETGID_SETUID)
                ours.callback(pass_on_capabilities, 0)
            self._process = subprocess.Popen(
                [*warden, *arguments, *launch.argv],
                stdin=None if assignment.in_sight else stdin,
                stdout=None if assignment.in_sight else output,
                stderr=None if assignment.in_sight else output,
                cwd=launch.place,
                env=dict(launch.environment),
                pass_fds=[number for number in passed if number >= 0],
                start_new_session=True,
            )

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
        try:
            self._answers = self._files.read_answers()
        except (OSError, ValueError) as flaw:
            self._answers = flaw
        with suppress(OSError, ValueError):
            self._tail = self._files.tail()
        self._files.close()
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

    def answers(self) -> tuple[bytes, bytes]:
        if isinstance(self._answers, tuple):
            return self._answers
        raise self._answers

    def last_words(self) -> str:
        output = self._tail.decode(errors="replace")
        if len(self._tail) == _TAIL:
            output = output.partition("\n")[2] or output
        return last_words_of(output, mask)


def _answers_in(folder: int, user: User | None = None) -> tuple[bytes, bytes]:
    """The contents of the files of `_ANSWERS`. Raises OSError, ValueError."""
    owner, ours = user.uid if user else None, os.geteuid()
    if user is not None:
        # In a folder that is ours, the user can put nothing else in place of what we look at.
        os.fchown(folder, ours, -1)
        os.fchmod(folder, 0o700)
    found: list[bytes] = []
    for name, most in zip(_ANSWERS.values(), (_LARGEST_RESULT, _LARGEST_PLAN), strict=True):
        try:
            content = read_regular(name, most + 1, folder, owner)
        except FileNotFoundError:
            content = b""
        except PermissionError:
            # A handler of another user with a strict umask, and a worker that is not root.
            seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(seen.st_mode) or (seen.st_uid, seen.st_nlink) != (owner, 1):
                raise
            os.chown(name, ours, -1, dir_fd=folder, follow_symlinks=False)
            content = read_regular(name, most + 1, folder, ours)
        if len(content) > most:
            raise ValueError(f"{name} is larger than {most} bytes")
        found.append(content)
    result, plan = found
    return result, plan


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
