"""A program between a worker and its handler: the handler never outlives the lease.

It runs on its own with nothing but the standard library. It starts the handler in a new session and
ends the whole process group when the worker orders it, when the worker dies (the control pipe
closes), or when the trusted time is over. The warden watches that time itself, because a worker
that was frozen or killed cannot.

    warden.py CONTROL_FD STATUS_FD STOP_WITHIN_S TRUSTED_UNTIL RECORD [SHARED_FD...] -- ARGV...

Control lines: `until SECONDS`, `stop WHY`, `kill WHY`. Status lines: `started PID`, then
`exited CODE` or `stopped WHY`. The warden keeps the shared files open until the group has ended,
and the handler does not inherit them: a lock on a shared file means that a run may still be at
work.

RECORD is a file for the exit code of a handler that ended by itself, written before the status line
and even if the worker is gone; empty for none.
"""

import os
import select
import signal
import sys
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class Warden:
    def __init__(
        self, control: int, status: int, stop_within_s: float, until: float, record: str
    ) -> None:
        self._record = record
        self._control = control
        self._status = status
        self._stop_within_s = stop_within_s
        self._until = until
        self._pending = b""
        self._child_woke, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        self._child = 0
        self._code: int | None = None

    def run(self, argv: list[str]) -> None:
        if _now() >= self._until:
            self._say("stopped the lease was lost before it could start")
            return
        grouped, ungrouped = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setsid()
                os.close(ungrouped)
                for default in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(default, signal.SIG_DFL)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvp(argv[0], argv)
            except OSError as failure:
                os.write(2, f"dibs: cannot start {argv[0]}: {failure}\n".encode())
            os._exit(127)
        # Go on only when the child has a group of its own, since only a group can be ended: the
        # read returns when the child has closed the pipe after setsid, or is gone.
        os.close(ungrouped)
        os.read(grouped, 1)
        os.close(grouped)
        self._child = child
        self._say(f"started {child}")
        why = self._watch()
        if why is None:
            self._end_group(0.0)  # processes that the handler left behind have no lease any more
            self._keep_record()
            self._say(f"exited {self._code}")
        else:
            kill = why.startswith("kill ")
            self._end_group(0.0 if kill else self._stop_within_s)
            self._say(f"stopped {why.removeprefix('kill ')}")

    def _watch(self) -> str | None:
        """Wait for the handler's end (None) or a reason to end it; `kill REASON`: at once."""
        while not self._reap():
            left = self._until - _now()
            if left <= 0:
                return "the lease was not renewed in time"
            ready, _, _ = select.select([self._control, self._child_woke], [], [], min(left, 60.0))
            if self._child_woke in ready:
                os.read(self._child_woke, 4096)
            if self._control not in ready:
                continue
            data = os.read(self._control, 65536)
            order = None if data else "the worker died"
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                verb, _, rest = line.decode(errors="replace").partition(" ")
                if verb == "until":
                    self._until = float(rest)
                elif verb in {"stop", "kill"}:
                    order = rest if verb == "stop" else f"kill {rest}"
                    break
            if order is not None and not self._reap():
                return order
        return None

    def _reap(self) -> bool:
        """Whether the handler has ended; its exit code is collected then."""
        if self._code is None:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def _end_group(self, within_s: float) -> None:
        """Send SIGTERM to the group, and SIGKILL to the processes left after `within_s`.

        The wait goes on after the handler's exit while the group still has processes.
        """
        deadline = _now() + within_s
        if within_s > 0 and self._signal(signal.SIGTERM):
            while _now() < deadline and (not self._reap() or self._signal(0)):
                select.select([self._child_woke], [], [], min(0.02, within_s))
        self._signal(signal.SIGKILL)
        while not self._reap():
            select.select([self._child_woke], [], [], 0.05)

    def _signal(self, number: int) -> bool:
        """Signal the group. False if the group has no process left to receive the signal."""
        try:
            os.killpg(self._child, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS answers so for a group of zombies
            return False
        return True

    def _keep_record(self) -> None:
        if not self._record:
            return
        try:
            with open(self._record + ".part", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(str(self._code))
            os.replace(self._record + ".part", self._record)  # noqa: PTH105 - no pathlib: fast start
        except OSError:
            pass  # without the record, the work is done again if the worker dies now

    def _say(self, line: str) -> None:
        try:
            os.write(self._status, (line.replace("\n", " ") + "\n").encode())
        except BrokenPipeError:
            pass  # the worker is gone; the warden still ends the group


def main() -> None:
    control, status = int(sys.argv[1]), int(sys.argv[2])
    end = sys.argv.index("--")
    shared, argv = [int(number) for number in sys.argv[6:end]], sys.argv[end + 1 :]
    for inherited in (control, status, *shared):
        os.set_inheritable(inherited, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Warden(control, status, float(sys.argv[3]), float(sys.argv[4]), sys.argv[5]).run(argv)


if __name__ == "__main__":
    main()
