"""A program between a worker and its handler: the handler never outlives the lease.

It runs on its own with nothing but the standard library. It starts the handler in a new session and
ends all its processes when the worker orders it, when the worker dies (the control pipe closes), or
when the trusted time is over. The warden watches that time itself, because a worker that was frozen
or killed cannot.

    warden.py CONTROL_FD STATUS_FD STOP_WITHIN_S TRUSTED_UNTIL FOLDER_FD LOG_FD LOG_MAX USER
              [SHARED_FD...] -- ARGV...

Control lines: `until SECONDS`, `stop WHY`, `kill WHY`. Status lines: `started PID`, then
`exited CODE` or `stopped WHY`. The warden keeps the shared files open until the handler's processes
have ended, and the handler does not inherit them: a lock on a shared file means that a run may
still be at work.

FOLDER_FD is the folder of the run, for the file `exit` with the exit code of a handler that ended
by itself, written before the status line and even if the worker is gone; -1 for none. What the
handler prints goes through the warden to LOG_FD, which keeps the beginning and the end of it, at
most LOG_MAX bytes; -1: the handler has our own output. USER is `UID,GID,GROUP...` of the user as
whom the handler runs; empty for our own.

On Linux the warden adopts every process that the handler's processes leave behind, also out of the
handler's session: so it can end them. No other process of the same user can look into the warden or
its open files, and the handler has none of the warden's capabilities.
"""

import os
import select
import signal
import sys
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SUBREAPER = 1, 4, 36
_SET_NO_NEW_PRIVILEGES, _AMBIENT, _RAISE, _CLEAR_ALL = 38, 47, 2, 4
_GIVE_UP_S = 5.0
"""How long the warden tries to kill what the handler left; processes of other users may stay."""
_CHUNK = 65_536
_LAST_CHUNKS = 32


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _prctl(option: int, value: int, more: int = 0) -> bool:
    """Set an attribute of the process. False if the system does not have the attribute."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, more, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def shut_process() -> None:
    """Shut the process to processes of the same user, and keep capabilities from its programs.

    Linux only, and no wall against root. Memory, environment and open files are shut; a crash
    leaves no core file, and a debugger needs root. The process itself keeps its capabilities: a
    program gets the ambient capabilities only, and a new thread those of the starting thread.
    """
    _prctl(_SET_DUMPABLE, 0)
    _prctl(_AMBIENT, _CLEAR_ALL)


def pass_on_capabilities(wanted: int) -> None:
    """Pass the named capabilities on to programs which the calling thread starts."""
    _prctl(_AMBIENT, _CLEAR_ALL)
    for number in range(wanted.bit_length()):
        if wanted >> number & 1:
            _prctl(_AMBIENT, _RAISE, number)


class Log:
    """The file for the output of the handler. The middle of a long output is left out."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._file = descriptor
        self._most = most
        self._size = os.fstat(descriptor).st_size
        self._left_out = 0
        self._resumes_at = 0

    def add(self, data: bytes) -> None:
        """Append to the file. A file over the limit keeps a quarter of the limit at each end."""
        quarter = self._most // 4
        try:
            while data:
                written = os.write(self._file, data)
                self._size, data = self._size + written, data[written:]
            if self._size > self._most:
                end = os.pread(self._file, quarter, self._size - quarter)
                end = end.partition(b"\n")[2] or end
                self._left_out += self._size - len(end) - max(quarter, self._resumes_at)
                line = f"\n[dibs: {self._left_out} bytes of output are left out here]\n".encode()
                os.ftruncate(self._file, quarter)
                self._resumes_at = quarter + len(line)
                self._size = self._resumes_at + len(end)
                os.write(self._file, line + end)
        except OSError:
            pass  # a full disk must not stop the handler


class Warden:
    def __init__(
        self, control: int, status: int, stop_within_s: float, until: float, folder: int
    ) -> None:
        self._folder = folder
        self._control = control
        self._status = status
        self._stop_within_s = stop_within_s
        self._until = until
        self._pending = b""
        self._child_woke, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._child_woke, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        shut_process()
        _prctl(_SET_SUBREAPER, 1)
        self._poller = select.poll()  # select() cannot watch descriptors past 1024
        self._poller.register(self._child_woke, select.POLLIN)
        self._child = 0
        self._code: int | None = None
        self._printed = -1
        self._log: Log | None = None

    def run(self, argv: list[str], log: Log | None, user: list[int]) -> None:
        if _now() >= self._until:
            self._say("stopped the lease was lost before it could start")
            return
        grouped, ungrouped = os.pipe()
        prints = -1
        if log is not None:
            self._log = log
            self._printed, prints = os.pipe()
            os.set_blocking(self._printed, False)
            self._poller.register(self._printed, select.POLLIN)
            if user:
                os.fchown(prints, user[0], user[1])  # a handler may open /dev/stdout again
        warden = os.getpid()
        child = os.fork()
        if not child:
            try:
                os.setsid()
                os.close(ungrouped)
                _become_handler(argv, prints, user, warden)
            except OSError as failure:
                os.write(2, f"dibs: cannot start {argv[0]}: {failure}\n".encode())
            os._exit(127)
        if prints >= 0:
            os.close(prints)
        # Go on only when the child has a group of its own, since only a group can be ended: the
        # read returns when the child has closed the pipe after setsid, or is gone.
        os.close(ungrouped)
        os.read(grouped, 1)
        os.close(grouped)
        self._child = child
        self._say(f"started {child}")
        self._poller.register(self._control, select.POLLIN)
        order = self._watch()
        self._poller.unregister(self._control)
        if order is None:
            self._end_all(0.0)  # processes that the handler left behind have no lease any more
            self._keep_record()
            self._say(f"exited {self._code}")
        else:
            at_once, why = order
            self._end_all(0.0 if at_once else self._stop_within_s)
            self._say(f"stopped {why}")

    def _watch(self) -> tuple[bool, str] | None:
        """Wait for the handler's end (None), or an order: whether to end at once, and why."""
        while not self._reap():
            left = self._until - _now()
            if left <= 0:
                return False, "the lease was not renewed in time"
            if self._control not in self._wait(min(left, 60.0)):
                continue
            data = os.read(self._control, 65536)
            order = None if data else (False, "the worker died")
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                verb, _, rest = line.decode(errors="replace").partition(" ")
                if verb == "until":
                    self._until = float(rest)
                elif verb in {"stop", "kill"}:
                    order = (verb == "kill", rest)
                    break
            if order is not None and not self._reap():
                return order
        return None

    def _wait(self, seconds: float) -> list[int]:
        """Wait for the end of a process, for output or an order. Returns the ready descriptors."""
        ready = [number for number, _ in self._poller.poll(max(0.0, seconds) * 1000)]
        if self._child_woke in ready:
            os.read(self._child_woke, 4096)
        if self._printed in ready:
            self._copy()
        return ready

    def _copy(self) -> bool:
        """Copy a chunk of the handler's output to the log. False if no output is waiting."""
        if self._log is None or self._printed < 0:
            return False
        try:
            data = os.read(self._printed, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._log.add(data)
        else:  # every process has closed its end
            self._poller.unregister(self._printed)
            os.close(self._printed)
            self._printed = -1
        return bool(data)

    def _reap(self) -> bool:
        """Collect our ended children. True if the handler has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid == self._child:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def _end_all(self, within_s: float) -> None:
        """Send SIGTERM to the handler's processes, and SIGKILL to those left after `within_s`.

        The wait goes on after the handler's exit while the handler's processes are left. The
        children of a killed process become ours and are killed next, until none is left.
        """
        deadline = _now() + within_s
        if within_s > 0 and self._signal(signal.SIGTERM):
            while _now() < deadline and (not self._reap() or self._signal(0)):
                self._wait(min(0.02, within_s))
        deadline = _now() + _GIVE_UP_S
        while self._signal(signal.SIGKILL) or not self._reap():
            if self._reap() and _now() >= deadline:
                break
            self._wait(0.02)
        for _ in range(_LAST_CHUNKS):
            if not self._copy():
                break

    def _signal(self, number: int) -> bool:
        """Signal the group, and the processes which became our children when their parents ended.

        False if no process is left to signal.
        """
        self._reap()
        children = b""
        try:
            file = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
            with os.fdopen(file, "rb") as listed:
                children = listed.read()
        except OSError:
            pass  # not Linux, or a kernel without this file
        signalled = False
        for pid in map(int, children.split()):
            if pid != self._child:
                try:
                    os.kill(pid, number)
                    signalled = True
                except (ProcessLookupError, PermissionError):
                    pass
        try:
            os.killpg(self._child, number)
        except ProcessLookupError:
            return signalled
        except PermissionError:  # macOS answers so for a group of zombies
            return signalled
        return True

    def _keep_record(self) -> None:
        """Write the file `exit`, and follow no link which the handler left in the folder."""
        if self._folder < 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = self._folder
        try:
            try:
                os.unlink("exit.part", dir_fd=folder)
            except FileNotFoundError:
                pass
            with os.fdopen(os.open("exit.part", flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(str(self._code).encode())
            os.replace("exit.part", "exit", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            pass  # without the record, the work is done again if the worker dies now

    def _say(self, line: str) -> None:
        try:
            os.write(self._status, (line.replace("\n", " ") + "\n").encode())
        except BrokenPipeError:
            pass  # the worker is gone; the warden still ends the group


def _become_handler(argv: list[str], prints: int, user: list[int], warden: int) -> None:
    """Replace the child of the warden by the handler. Raises OSError."""
    if prints >= 0:
        os.dup2(prints, 1)
        os.dup2(prints, 2)
    for default in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(default, signal.SIG_DFL)
    if user:  # for good: no capability stays, and no program gives one back
        uid, gid, *groups = user
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        if not _prctl(_SET_NO_NEW_PRIVILEGES, 1):
            raise OSError("the system cannot keep a program from more privileges")
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == warden:  # else the warden died before, and no signal will come
        os.execvp(argv[0], argv)


def main() -> None:
    control, status = int(sys.argv[1]), int(sys.argv[2])
    folder, log, most = map(int, sys.argv[5:8])
    user = [int(number) for number in sys.argv[8].split(",") if number]
    end = sys.argv.index("--")
    shared, argv = [int(number) for number in sys.argv[9:end]], sys.argv[end + 1 :]
    for inherited in (control, status, *shared, *(one for one in (folder, log) if one >= 0)):
        os.set_inheritable(inherited, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    warden = Warden(control, status, float(sys.argv[3]), float(sys.argv[4]), folder)
    warden.run(argv, Log(log, most) if log >= 0 else None, user)


if __name__ == "__main__":
    main()
