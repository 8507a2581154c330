"""Another user of the machine reads what the fleet keeps, or has it write somewhere else.

Actors: another user of the machine; for the links, a repository. Attack (S13): `.dibs` was 755 and
its files 644, so that everybody could read the issues, the journal and what agents had printed; a
symbolic link in the place of the journal sent the events into any file of the victim. Wall: folders
are 0700 and files 0600 from their first moment, whatever the umask, and dibs follows no link where
it writes. With `share = "group"` the members of the folder's group may use them, and nobody else.
"""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import PROGRAM, Victim

NOBODY = 65534
CANARY = "CANARY-of-an-agent"
CONFIG = f"""
[[stage]]
name = "ready"
run = "echo {CANARY}; stat -c '%a %n' .dibs .dibs/* > seen"
"""
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def host() -> Iterator[Victim]:
    """A victim whose folders everybody may enter, as those of a shared machine."""
    base = Path(tempfile.mkdtemp(prefix="dibs-s13-"))
    base.chmod(0o755)
    yield Victim(base)
    shutil.rmtree(base)


def _other(victim: Victim, *words: str, gid: int = NOBODY) -> subprocess.CompletedProcess[str]:
    """Run a program in the victim's folder as another user."""
    who = ("setpriv", f"--reuid={NOBODY}", f"--regid={gid}", "--clear-groups", "--")
    return subprocess.run(
        [*who, *words],
        cwd=victim.folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


def _work(victim: Victim, umask: int = 0o022) -> None:
    before = os.umask(umask)
    try:
        victim.dibs("init")
        victim.dibs("add", f"an issue with {CANARY}")
        assert victim.dibs("work", "--once").returncode == 0
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@as_root
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_another_user_reads_nothing(host: Victim, umask: int) -> None:
    host.configure(CONFIG)
    _work(host, umask)
    found = _other(host, "grep", "-rc", CANARY, ".dibs")
    assert ":1" not in found.stdout
    assert "Permission denied" in found.stderr
    assert _other(host, "cat", ".dibs/backlog.db").stdout == ""


@as_root
def test_control_with_a_shared_folder_the_group_reads_and_works(host: Victim) -> None:
    """`share = "group"` is the operator's word: a member of the folder's group is let in."""
    host.configure(f'share = "group"\n{CONFIG}')
    os.chown(host.folder, -1, NOBODY)
    host.folder.chmod(0o2770)
    _work(host, 0o077)
    assert CANARY in _other(host, "cat", ".dibs/events.jsonl", ".dibs/backlog.db").stdout
    if _other(host, PROGRAM, "--version").returncode:
        pytest.skip("another user cannot run the program where it is installed")
    ran = _other(host, PROGRAM, "--config", "dibs.toml", "list", "--all")
    assert CANARY in ran.stdout, ran.stderr
    added = _other(host, PROGRAM, "--config", "dibs.toml", "add", "by a colleague")
    assert added.returncode == 0, added.stderr
    assert "colleague" in host.dibs("list").stdout, "and the victim reads what they wrote"
    outside = _other(host, "cat", ".dibs/events.jsonl", gid=NOBODY - 1)
    assert outside.stdout == ""


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
@pytest.mark.parametrize("share", ["none", "group"])
def test_every_file_has_its_mode_from_the_start(host: Victim, umask: int, share: str) -> None:
    """Looked at by the handler, while the worker has the database open."""
    host.configure(f'share = "{share}"\n{CONFIG}')
    _work(host, umask)
    seen = (host.folder / "seen").read_text().split("\n")
    modes = {name: mode for mode, _, name in (line.partition(" ") for line in seen if line)}
    folder, file = ("700", "600") if share == "none" else ("2770", "660")
    # SQLite makes the -wal and the -shm with the mode of the database.
    for name in ("backlog.db", "backlog.db-wal", "backlog.db-shm", "events.jsonl", "wake"):
        assert modes[f".dibs/{name}"] == file, (name, modes)
    assert modes[".dibs"] == folder
    assert modes[".dibs/workers"] == folder


def test_the_state_of_the_machine_is_closed_too(host: Victim) -> None:
    subprocess.run(["git", "init", "-q", "-b", "main", "code"], cwd=host.folder, check=True)
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m1")
    subprocess.run(["git", *commit], cwd=host.folder / "code", check=True)
    host.configure(
        '[[stage]]\nname = "ready"\nworktree = "code"\nworktree_base = "main"\nrun = "true"'
    )
    _work(host)
    folders = [path for path in host.home.parent.rglob(".dibs-sessions") if path.is_dir()]
    assert folders, "the session of a run with a worktree was noted somewhere"
    assert {_mode(path) for path in folders} == {0o700}
    assert {_mode(path.parent) for path in folders} == {0o711}, "handlers as other users enter"
    files = [path for folder in folders for path in folder.iterdir()]
    assert {_mode(path) for path in files} <= {0o600}


def test_an_older_project_is_told_of_and_left_alone(host: Victim) -> None:
    """What is there may be shared on purpose: doctor warns, and no command changes a mode."""
    host.configure("")
    host.dibs("init")
    folder, file = host.folder / ".dibs", host.folder / ".dibs" / "backlog.db"
    folder.chmod(0o755)
    file.chmod(0o644)
    host.dibs("add", "one")
    told = host.dibs("doctor", "--offline").stdout
    assert f"{file} (644)" in told
    assert f"{folder} (755)" in told
    assert (_mode(folder), _mode(file)) == (0o755, 0o644)
    folder.chmod(0o700)
    assert "look into" not in host.dibs("doctor", "--offline").stdout, "a closed folder is enough"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_place_of_the_journal_is_not_followed(victim: Victim, there: bool) -> None:
    keys = victim.home / "authorized_keys"
    if there:
        keys.write_text("")
    (victim.folder / ".dibs").mkdir()
    (victim.folder / ".dibs" / "events.jsonl").symlink_to(keys)
    victim.dibs("add", "one")
    victim.dibs("claim", "1")  # refused, or done without the journal
    assert not there or keys.read_text() == ""
    assert there or not keys.exists()


def test_a_link_to_a_database_that_is_not_there_yet_makes_none(victim: Victim) -> None:
    (victim.folder / ".dibs").mkdir()
    (victim.folder / ".dibs" / "backlog.db").symlink_to(victim.home / "planted")
    assert victim.dibs("add", "one").returncode != 0
    assert not (victim.home / "planted").exists()


def _repository(folder: Path, *words: str) -> Path:
    subprocess.run(["git", "init", "-q", *words, str(folder)], check=True)
    return folder


def test_a_link_to_another_repository_is_not_worked_in(victim: Victim) -> None:
    """Old objects are pruned in `.dibs/git`: by the link, in another repository."""
    _repository(victim.home / "fleet.git", "--bare")
    other = _repository(victim.home / "other") / ".git"
    (victim.folder / ".dibs").mkdir()
    (victim.folder / ".dibs" / "git").symlink_to(other)
    before = sorted(other.rglob("*"))
    victim.dibs("add", "one")
    ran = victim.dibs("claim", "1", DIBS_LEASES=f"git:{victim.home / 'fleet.git'}")
    assert sorted(other.rglob("*")) == before
    assert "a symbolic link" in ran.stderr or "UNTRUSTED" in ran.stderr or "may not" in ran.stderr


def test_a_link_in_place_of_the_workers_files_removes_nothing(victim: Victim) -> None:
    """A worker removes the files of dead workers there: the link made it remove any `*.json`."""
    settings = victim.home / "settings"
    settings.mkdir()
    (settings / "package.json").write_text("{}")
    (victim.folder / ".dibs").mkdir()
    (victim.folder / ".dibs" / "workers").symlink_to(settings)
    victim.dibs("add", "one")
    victim.dibs("work", "--stage", "ready", "--run", "true", "--once")
    assert (settings / "package.json").exists()


def test_control_an_operator_names_the_journal(victim: Victim) -> None:
    keys = victim.home / "authorized_keys"
    config = victim.home / "operator.toml"
    config.write_text(f'journal = "{keys}"\n')
    victim.dibs("--config", str(config), "add", "one")
    victim.dibs("--config", str(config), "claim", "1")
    assert '"claimed"' in keys.read_text()
