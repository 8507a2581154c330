"""Hostile handlers: how the attacks start a worker, also without the powers of root."""

import os
import pwd
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest

import dibs

from .conftest import LIMIT_S, PROGRAM, Victim

# Root reads every process. Without capabilities, root is a user like any other.
POWERLESS: tuple[str, ...] = (
    ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
)
needs_powerless = pytest.mark.skipif(
    sys.platform != "linux" or (bool(POWERLESS) and shutil.which("setpriv") is None),
    reason="needs Linux, and setpriv to give up the powers of root",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
_START = """\
from dibs.__main__ import main
main()
"""


def serve(victim: Victim, script: str, settings: str = "", *, top: str = "") -> None:
    """Make a backlog of one issue, whose handler is the script."""
    path = victim.folder / "handler.sh"
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}", "utf-8")
    path.chmod(0o755)
    stage = f'{top}\n[[stage]]\nname = "ready"\nrun = "exec {path}"\nattempts = 1\n{settings}\n'
    victim.configure(stage)
    added = victim.dibs("add", "work for a handler")
    assert added.returncode == 0, added.stderr


def work(
    victim: Victim,
    *words: str,
    before: Sequence[str] = (),
    without: str = "",
    limit_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a worker for one issue, or the command of these words.

    `without`: Python code that takes a wall out before the program starts.
    """
    program = [sys.executable, "-c", f"{without}\n{_START}"] if without else [PROGRAM]
    return subprocess.run(
        [*before, *program, *(words or ("work", "--once"))],
        cwd=victim.folder,
        env={**victim.env, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )


@cache
def everybodys_python() -> str:
    """An interpreter of our version that every user of the machine can run."""
    version = "import sys; print(*sys.version_info[:2])"
    for found in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if found is not None:
            asked = subprocess.run(
                # setpriv itself starts programs that only root can reach; env does not
                [*as_user("nobody"), "env", found, "-c", version],
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
            if asked.stdout.split() == [str(part) for part in sys.version_info[:2]]:
                return found
    pytest.skip("other users cannot run a Python of this version")


def as_user(name: str, *options: str, groups: str = "--clear-groups") -> tuple[str, ...]:
    """The words before a command that run it as another user."""
    account = pwd.getpwnam(name)
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", groups, *options)


def dibs_as(
    victim: Victim,
    who: Sequence[str],
    *words: str,
    without: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run dibs with the words of `as_user` before, in an interpreter that other users can run."""
    places = {str(Path(str(module.__file__)).parents[1]) for module in (dibs, msgspec)}
    return subprocess.run(
        [*who, everybodys_python(), "-c", f"{without}\n{_START}", *words],
        cwd=victim.folder,
        env={**victim.env, "PYTHONPATH": ":".join(places), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )


def printed(victim: Victim) -> bytes:
    """What the handler printed, in all runs."""
    logs = sorted((victim.folder / ".dibs" / "runs").glob("*/output.log"))
    return b"".join(log.read_bytes() for log in logs)


def run_folder(victim: Victim) -> Path:
    [folder] = (victim.folder / ".dibs" / "runs").glob("[!.]*")
    return folder
