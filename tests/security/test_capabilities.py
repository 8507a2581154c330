"""Actor: a program that a worker with capabilities starts: a handler, a probe, a hook of git.

Attack: the worker is an ordinary user with ambient capabilities, as the systemd unit of
docs/guides/sandbox-a-handler.md gives them for the stages with `run_as`. Every other program that
it started inherited CAP_SETUID, and became root.
Wall: the worker clears its ambient capabilities at its start, and raises them only to start the
warden of a run with `run_as`, whose handler has none.
"""

import os
import pwd
from pathlib import Path

import pytest

from .conftest import Victim
from .git_victims import begin
from .handlers import as_user, dibs_as, everybodys_python, needs_root

WORKER = "daemon"
POWERS = "+setuid,+setgid,+kill,+chown"
WITH_POWERS = ("--inh-caps", POWERS, "--ambient-caps", POWERS, "--no-new-privs")
# Appends its name, its user and "root" if it can become root, else its capabilities.
ATTACK = """\
#!{python}
import os
import sys
from pathlib import Path

me = Path(sys.argv[0]).name
status = Path("/proc/self/status").read_text().splitlines()
sets = [line.split()[1] for line in status if line[:6] in ("CapPrm", "CapEff", "CapAmb")]
had, user = sum(int(one, 16) for one in sets), os.getuid()
try:
    os.setresuid(0, 0, 0)
    had = "root"
except PermissionError:
    pass
log = os.open("{log}", os.O_WRONLY | os.O_APPEND)
os.write(log, f"{{me}} {{user}} {{had}}\\n".encode())
if me == "git":
    os.execv("{git}", ["git", *sys.argv[1:]])
"""
STAGES = """
[[stage]]
name = "ready"
next = "second"
attempts = 1
worktree = "shop"
run = "../attacks/handler"

[[stage]]
name = "second"
next = "third"
attempts = 1
python = "theirs:work"

[[stage]]
name = "third"
next = "done"
attempts = 1
run_as = "nobody"
run = '''umask 077; {attacks}/behind; echo '{{"note": "written by nobody"}}' > "$DIBS_RESULT" '''

[[stage]]
name = "done"
closes = true
"""
HANDLER = """\
import subprocess

subprocess.run(["{attacks}/probe"], check=True)

def work(_):
    return None
"""
UNWALLED = """\
import dibs.adapters.runners.warden as warden
warden.shut_process = lambda: None
warden.pass_on_capabilities = lambda _: None
"""


@pytest.fixture
def unit(reachable: Victim) -> Victim:
    """A project of the worker's user: stages with and without `run_as`, a worktree, a probe."""
    begin(reachable, "true")
    attacks, base = reachable.home.parent / "attacks", reachable.home.parent
    attacks.mkdir()
    log = base / "log"
    log.touch()
    log.chmod(0o666)
    real = next(
        place / "git"
        for place in map(Path, reachable.env["PATH"].split(":"))
        if (place / "git").exists()
    )
    text = ATTACK.format(python=everybodys_python(), log=log, git=real)
    for name in ("handler", "probe", "behind", "typed", "git"):
        (attacks / name).write_text(text)
        (attacks / name).chmod(0o755)
    (reachable.folder / "theirs.py").write_text(HANDLER.format(attacks=attacks))
    stages = STAGES.format(attacks=attacks).replace("../attacks", str(attacks))
    loop = f'[[loop]]\nname = "often"\nevery = "1m"\nrun = "{attacks}/typed"\n'
    reachable.configure(f'preset = "none"\n{stages}{loop}')
    account = pwd.getpwnam(WORKER)
    os.chown(base, account.pw_uid, account.pw_gid)
    for place in base.rglob("*"):
        os.chown(place, account.pw_uid, account.pw_gid, follow_symlinks=False)
    reachable.env["PATH"] = f"{attacks}:{reachable.env['PATH']}"
    added = dibs_as(reachable, as_user(WORKER), "add", "work for three stages")
    assert added.returncode == 0, added.stderr
    log.write_text("")
    return reachable


def _had(victim: Victim) -> set[tuple[str, str, str]]:
    """The name, the user and the powers of each program that attacked."""
    lines = (victim.home.parent / "log").read_text().splitlines()
    return {(name, user, had) for name, user, had in map(str.split, lines)}


OURS, NOBODY = (str(pwd.getpwnam(name).pw_uid) for name in (WORKER, "nobody"))


@needs_root
def test_no_program_of_a_worker_has_its_powers(unit: Victim) -> None:
    done = dibs_as(unit, as_user(WORKER, *WITH_POWERS), "work", "--drain")
    told = done.stdout + done.stderr
    assert _had(unit) == {
        ("handler", OURS, "0"),
        ("probe", OURS, "0"),
        ("git", OURS, "0"),
        ("behind", NOBODY, "0"),
    }, told
    shown = dibs_as(unit, as_user(WORKER), "show", "1").stdout
    assert "written by nobody" in shown, f"the worker itself keeps its powers: {told}"


@needs_root
def test_control_powers_that_are_not_taken_back_make_root(unit: Victim) -> None:
    """A warden takes them from its handler in any case; git and the probe have no warden."""
    dibs_as(unit, as_user(WORKER, *WITH_POWERS), "work", "--drain", without=UNWALLED)
    assert {("git", OURS, "root"), ("probe", OURS, "root")} <= _had(unit)


@needs_root
@pytest.mark.parametrize(
    "words",
    [
        ("hold", "door", "--", "typed"),
        ("claim", "1", "--exec", "--", "typed"),
        ("loop", "often", "--once"),
    ],
    ids=lambda words: words[0],
)
def test_typed_commands_and_loops_have_none_either(unit: Victim, words: tuple[str, ...]) -> None:
    done = dibs_as(unit, as_user(WORKER, *WITH_POWERS), *words)
    assert _had(unit) == {("typed", OURS, "0")}, done.stdout + done.stderr


@needs_root
def test_without_powers_run_as_is_refused(unit: Victim) -> None:
    done = dibs_as(unit, as_user(WORKER), "work", "--drain")
    assert "neither root nor has" in done.stderr
    assert {name for name, *_ in _had(unit)} <= {"git"}
