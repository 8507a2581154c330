"""Two users of a machine work one backlog, with `share = "group"`.

Actors: a member of the group, and a user outside of it. What was wrong: the worker of one member
removed the record of another's finished run, which it could not read, so that the work was done
twice; a member could put a result into the folder of another's run; and with leases in git, only
the first member could store objects. A member could also move the folder of a run away and put
another in its place, or remove the record. Wall: folders that members share are the group's, each
removes only their own from the folder of runs, the folder and the record of a run are its user's
alone, a worker uses no folder of another user, and a record that cannot be judged stays.
"""

import json
import os
import pwd
import stat
import subprocess
from pathlib import Path

import pytest

from .conftest import Victim
from .git_victims import ALONE
from .handlers import as_user, dibs_as, needs_root

FIRST, SECOND, OUTSIDE = "daemon", "bin", "nobody"
GROUP = 54_321
CANARY = "CANARY-of-an-agent"
CONFIG = f"""
preset = "none"
share = "group"
[[stage]]
name = "ready"
next = "done"
attempts = 1
run = '''
echo {CANARY}; umask 002; id -u >> ran; echo '{{"note": "judged"}}' > "$DIBS_RESULT"
'''
[[stage]]
name = "done"
closes = true
"""

pytestmark = needs_root


def _member(victim: Victim, name: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run dibs as a member of the group, with a home of their own."""
    who = as_user(name, groups=f"--groups={GROUP}")
    home = victim.home.parent / name
    state = {"HOME": str(home), "DIBS_STATE": str(home / "state"), **ALONE}
    return dibs_as(victim, who, *words, env={**state, **env})


def _trust(victim: Victim, name: str) -> None:
    file = victim.home.parent / name / ".config" / "dibs" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'[trust]\nfolders = ["{victim.folder}"]\n')


@pytest.fixture
def shared(reachable: Victim) -> Victim:
    """A folder of the first user, prepared as docs/reference/files.md says."""
    reachable.configure(CONFIG)
    os.chown(reachable.folder, pwd.getpwnam(FIRST).pw_uid, GROUP)
    reachable.folder.chmod(0o2770)
    os.chown(reachable.folder / "dibs.toml", pwd.getpwnam(FIRST).pw_uid, GROUP)
    for name in (FIRST, SECOND):
        home = reachable.home.parent / name
        home.mkdir()
        os.chown(home, pwd.getpwnam(name).pw_uid, -1)
    return reachable


def _done(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def _ran_by(victim: Victim) -> list[int]:
    """The users whose workers ran the handler, in order."""
    return [int(line) for line in (victim.folder / "ran").read_text().split()]


def _ids(*names: str) -> list[int]:
    return [pwd.getpwnam(name).pw_uid for name in names]


def _modes(victim: Victim, *names: str) -> list[str]:
    places = [victim.folder / ".dibs" / name for name in names]
    return [f"{stat.S_IMODE(place.stat().st_mode):o}" for place in places]


def test_a_second_user_says_whom_they_trust_and_then_both_work(shared: Victim) -> None:
    _done(_member(shared, FIRST, "add", "one", "two", "three"))
    refused = _member(shared, SECOND, "work", "--once")
    assert refused.returncode != 0
    assert "folders of [trust]" in refused.stderr, "the file of another user could say anything"
    _trust(shared, SECOND)
    for name in (FIRST, SECOND, FIRST):
        _done(_member(shared, name, "work", "--once"))
    _done(_member(shared, SECOND, "add", "four"))
    _done(_member(shared, FIRST, "work", "--once"))
    assert _ran_by(shared) == _ids(FIRST, SECOND, FIRST, FIRST)
    assert _modes(shared, ".", "workers", "runs", "runs/.open") == ["2770"] * 2 + ["3770"] * 2
    assert {_modes(shared, f"runs/{run.name}")[0][-3:] for run in _runs(shared)} == {"700"}


def _runs(victim: Victim) -> list[Path]:
    return sorted((victim.folder / ".dibs" / "runs").glob("[!.]*"))


def _finished_and_killed(victim: Victim) -> Path:
    """The folder of a run of the first user, whose handler exited with 0 before its worker died."""
    _done(_member(victim, FIRST, "add", "one"))
    _trust(victim, SECOND)
    killed = _member(victim, FIRST, "work", "--once", DIBS_FAILPOINT="finish.started")
    assert killed.returncode == -9, killed.stderr
    [run] = _runs(victim)
    return run


def _stage(victim: Victim) -> str:
    shown = json.loads(_done(_member(victim, FIRST, "show", "1", "--json")))
    return str(shown["data"]["stage"])


def test_a_record_that_another_user_cannot_judge_stays(shared: Victim) -> None:
    run = _finished_and_killed(shared)
    _member(shared, SECOND, "work", "--once")
    assert _stage(shared) == "ready"
    assert (run.parent / ".open" / run.name).exists()
    _member(shared, FIRST, "work", "--once")
    assert _stage(shared) == "done"
    assert _ran_by(shared) == _ids(FIRST), "finished work is not done again"
    assert not (run.parent / ".open" / run.name).exists()


def test_control_a_record_of_ones_own_run_is_used(shared: Victim) -> None:
    run = _finished_and_killed(shared)
    for place in (run, *run.iterdir(), run.parent / ".open" / run.name):
        os.chown(place, pwd.getpwnam(SECOND).pw_uid, -1)
    _member(shared, SECOND, "work", "--once")
    assert _stage(shared) == "done"
    assert _ran_by(shared) == _ids(FIRST)


def test_a_member_neither_reads_nor_writes_in_anothers_run(shared: Victim) -> None:
    run = _finished_and_killed(shared)
    tried = f"cat {run}/output.log; echo '{{}}' > {run}/result.json; ls {run}"
    for name, groups in ((SECOND, f"--groups={GROUP}"), (OUTSIDE, "--clear-groups")):
        command = [*as_user(name, groups=groups), "sh", "-c", tried]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == ""
    assert "judged" in (run / "result.json").read_text()


FORGE = """
cd '{run.parent}'; rm -f .open/{run.name}; : > .open/{run.name}
mv {run.name} gone; mkdir -m 777 {run.name} && cd {run.name}
printf 0 > exit; echo '{{"note": "FORGED"}}' > result.json
"""


def _forge(run: Path) -> None:
    attack = FORGE.format(run=run)
    command = [*as_user(SECOND, groups=f"--groups={GROUP}"), "sh", "-c", attack]
    subprocess.run(command, capture_output=True, check=False)


def _notes(victim: Victim) -> list[str]:
    shown = json.loads(_done(_member(victim, FIRST, "runs", "1", "--json")))
    return [str(run["note"]) for run in shown["data"]]


def test_a_member_neither_forges_a_result_nor_removes_a_record(shared: Victim) -> None:
    _forge(_finished_and_killed(shared))
    _member(shared, FIRST, "work", "--once")
    assert _notes(shared) == ["judged"]
    assert _ran_by(shared) == _ids(FIRST), "finished work is not done again"


def test_who_owns_the_folder_of_runs_forges_no_result_either(shared: Victim) -> None:
    run = _finished_and_killed(shared)
    record = run.parent / ".open" / run.name
    lease = record.read_bytes()
    for place in (run.parent, run.parent / ".open"):
        os.chown(place, pwd.getpwnam(SECOND).pw_uid, -1)
    _forge(run)
    assert "FORGED" in (run / "result.json").read_text()
    record.write_bytes(lease)
    record.chmod(0o666)
    _member(shared, FIRST, "work", "--once")
    assert _stage(shared) == "ready"
    assert "FORGED" not in _notes(shared)


def test_no_command_runs_in_a_folder_that_a_member_prepared(shared: Victim) -> None:
    """The run of a claim is known before its folder is made."""
    _done(_member(shared, FIRST, "add", "one", "two"))
    _done(_member(shared, FIRST, "work", "--once"))
    claimed = json.loads(_done(_member(shared, FIRST, "claim", "2", "--json")))["data"]["run"]
    run = shared.folder / ".dibs" / "runs" / claimed
    _forge(run)
    kept = _member(shared, FIRST, "keep", claimed, "--end", "--", "touch", "typed")
    assert kept.returncode != 0
    assert f"{run} belongs to another user" in kept.stdout + kept.stderr
    assert not (shared.folder / "typed").exists()


def test_the_runs_of_others_are_listed_and_their_output_is_not_shown(shared: Victim) -> None:
    run = _finished_and_killed(shared)
    assert run.name in _done(_member(shared, SECOND, "runs", "1"))
    assert run.name in _done(_member(shared, SECOND, "runs"))
    output = _member(shared, SECOND, "runs", "--output", run.name)
    assert output.returncode == 3
    assert f"{run} belongs to another user" in output.stdout + output.stderr


def test_runs_in_another_folder_are_shared_too(shared: Victim) -> None:
    """Its parent passes the group on, but the group may not write there."""
    shared.configure(f'runs = "output/runs"\n{CONFIG}')
    (shared.folder / "output").mkdir()
    os.chown(shared.folder / "output", pwd.getpwnam(FIRST).pw_uid, GROUP)
    (shared.folder / "output").chmod(0o2755)
    _trust(shared, SECOND)
    os.chown(shared.folder / "dibs.toml", pwd.getpwnam(FIRST).pw_uid, GROUP)
    _done(_member(shared, FIRST, "add", "one", "two"))
    for name in (FIRST, SECOND):
        _done(_member(shared, name, "work", "--once"))
    assert _ran_by(shared) == _ids(FIRST, SECOND)
    assert _modes(shared, "../output/runs", "../output/runs/.open") == ["3770"] * 2


def test_leases_in_git_are_stored_by_both(shared: Victim) -> None:
    remote = shared.folder / "leases.git"
    subprocess.run(["git", "init", "-q", "--bare", "--shared=group", str(remote)], check=True)
    for place in (remote, *remote.rglob("*")):
        os.chown(place, pwd.getpwnam(FIRST).pw_uid, GROUP)
    shared.configure(f'leases = "git:leases.git"\n{CONFIG}')
    os.chown(shared.folder / "dibs.toml", pwd.getpwnam(FIRST).pw_uid, GROUP)
    for name in (FIRST, SECOND):  # a push to a path runs its hooks, so the owner says so as well
        _trust(shared, name)
    safe = shared.home.parent / SECOND / ".gitconfig"
    safe.write_text(f"[safe]\n\tdirectory = {remote}\n\tdirectory = leases.git\n")
    # Enough that git stores objects of both in the same folders.
    _done(_member(shared, FIRST, "add", *map(str, range(6))))
    for name in (FIRST, SECOND) * 3:
        _done(_member(shared, name, "work", "--once"))
    objects = (shared.folder / ".dibs" / "git" / "objects").glob("??")
    assert {stat.S_IMODE(place.stat().st_mode) & 0o2070 for place in objects} == {0o2070}


def test_a_user_outside_the_group_gets_nowhere(shared: Victim) -> None:
    _done(_member(shared, FIRST, "add", "one"))
    _done(_member(shared, FIRST, "work", "--once"))
    look = [*as_user(OUTSIDE), "find", str(shared.folder), "-mindepth", "1"]
    done = subprocess.run(look, capture_output=True, text=True, check=False)
    assert done.stdout == ""
