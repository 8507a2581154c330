"""Another user of the machine, or a folder above the project, brings the configuration along.

Actor: another user of the machine who can write to a folder above the victim's; whoever has a hand
in a folder above a repository or the home folder.
Attack: a dibs.toml, a `.dibs`, a `.git` or a link of another user where the victim's dibs finds it.
Wall: what is found must belong to the user, to root, or to the user who called sudo; the search
stops at the top of a git working tree, at the home folder and at a mount point. The user's own file
trusts folders of others.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import SECRETS, Ear, Victim
from .handlers import work
from .test_s01_token_to_another_host import HOSTILE, users_file

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def shared(tmp_path: Path, victim: Victim) -> Path:
    """A folder for everybody, like /tmp, with a project of the victim's in it."""
    folder = tmp_path / "shared"
    (folder / "mine").mkdir(parents=True)
    folder.chmod(0o1777)
    victim.folder = folder / "mine"
    return folder


def of_nobody(place: Path) -> Path:
    os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
    return place


def refused(victim: Victim, *words: str) -> str:
    done = victim.dibs(*words, "--json")
    error = json.loads(done.stdout).get("error") or {}
    assert error.get("code") == "UNTRUSTED", done.stdout + done.stderr
    assert "[trust]" in error["hint"]
    return f"{error['message']}\n{error['hint']}"


@as_root
@pytest.mark.parametrize("name", ["dibs.toml", "pyproject.toml"])
def test_a_file_of_another_user_is_not_obeyed(
    victim: Victim, ear: Ear, shared: Path, name: str
) -> None:
    text = 'tracker = "github:victim/repo"\n'
    (shared / name).write_text(text if name == "dibs.toml" else f"[tool.dibs]\n{text}")
    of_nobody(shared / name)
    said = refused(victim, "list")
    assert str(shared / name) in said
    assert repr(str(shared)) in said


@as_root
def test_no_token_goes_where_a_file_of_another_user_says(
    victim: Victim, ear: Ear, shared: Path
) -> None:
    victim.configure(HOSTILE.format(ear.url), shared)
    of_nobody(shared / "dibs.toml")
    victim.dibs("list")
    assert ear.heard == b""


@as_root
def test_no_handler_of_another_user_is_run(victim: Victim, shared: Path) -> None:
    ran = shared / "ran"
    victim.configure(f"[[stage]]\nname = 'ready'\nrun = 'touch {ran}'\n", shared)
    assert victim.dibs("--config", str(shared / "dibs.toml"), "add", "one").returncode == 0
    of_nobody(shared / "dibs.toml")
    victim.dibs("work", "--once")
    assert not ran.exists()


@as_root
def test_a_link_of_another_user_to_a_file_of_ours_is_not_obeyed(
    victim: Victim, shared: Path
) -> None:
    victim.configure("preset = 'agent'\n", victim.home)
    (shared / "dibs.toml").symlink_to(victim.home / "dibs.toml")
    of_nobody(shared / "dibs.toml")
    assert str(shared / "dibs.toml") in refused(victim, "list")


# In the place of a file of another user that dibs has just read, before dibs looks at the owner.
SWAPS = {
    "gone": "path.unlink()",
    "ours by a hard link": "path.unlink(); path.hardlink_to(path.parent / 'mine' / 'kept')",
    "a link that is gone": "path.unlink()",
}
SWAPPED = """\
import dibs.settings.load as load
read = load._read
def swap(path):
    found = read(path)
    if path.name == "dibs.toml":
        {swap}
    return found
load._read = swap
"""


@as_root
@pytest.mark.parametrize("swap", ["", *SWAPS])
def test_a_file_that_is_swapped_after_it_was_read_is_not_obeyed(
    victim: Victim, shared: Path, swap: str
) -> None:
    """The owner of the very file counts, not of what is in its place a moment later."""
    ran = shared / "ran"
    victim.configure(f"[[stage]]\nname = 'ready'\nrun = 'touch {ran}'\n", shared)
    assert victim.dibs("--config", str(shared / "dibs.toml"), "add", "one").returncode == 0
    (victim.folder / "kept").write_text("")
    if "link that" in swap:
        (shared / "dibs.toml").rename(victim.home / "settings")
        (shared / "dibs.toml").symlink_to(victim.home / "settings")
    of_nobody(shared / "dibs.toml")
    attack = SWAPPED.format(swap=SWAPS[swap]) if swap else ""
    done = work(victim, without=attack)
    assert not ran.exists()
    assert "belongs to another user" in done.stderr


@as_root
def test_control_the_same_file_of_ours_is_obeyed(victim: Victim, shared: Path) -> None:
    ran = shared / "ran"
    victim.configure(f"[[stage]]\nname = 'ready'\nrun = 'touch {ran}'\n", shared)
    victim.dibs("add", "one")
    work(victim)
    assert ran.exists()


@as_root
@pytest.mark.parametrize("name", [".dibs", ".git"])
def test_a_folder_of_another_user_is_not_obeyed(victim: Victim, shared: Path, name: str) -> None:
    (shared / name).mkdir()
    (shared / name / "HEAD").write_text("ref: refs/heads/main\n")
    of_nobody(shared / name)
    said = refused(victim, "add", "one")
    assert str(shared / name) in said
    assert "--config" not in said, "there is no file to name"


@as_root
def test_a_project_in_a_folder_of_another_user_is_not_obeyed(victim: Victim, shared: Path) -> None:
    victim.configure("", victim.folder)
    of_nobody(victim.folder)
    assert repr(str(victim.folder)) in refused(victim, "list")


@as_root
def test_who_called_sudo_is_no_other_user(victim: Victim, shared: Path) -> None:
    victim.configure("", shared)
    of_nobody(shared / "dibs.toml")
    assert victim.dibs("add", "one", SUDO_UID=str(NOBODY)).returncode == 0
    assert victim.dibs("list", SUDO_UID=str(NOBODY + 1)).returncode == 1


@as_root
@pytest.mark.parametrize("how", ["folders", "--config"])
def test_control_the_operator_trusts_the_folder(
    victim: Victim, ear: Ear, shared: Path, how: str
) -> None:
    victim.configure(HOSTILE.format(ear.url), shared)
    of_nobody(shared / "dibs.toml")
    if how == "folders":
        users_file(victim, f"folders = ['{shared}']")
    words = ("--config", str(shared / "dibs.toml")) if how == "--config" else ()
    victim.dibs(*words, "list")
    assert SECRETS["GITHUB_TOKEN"].encode() in ear.heard


@as_root
def test_a_users_file_of_another_user_trusts_nothing(
    victim: Victim, ear: Ear, shared: Path
) -> None:
    victim.configure(HOSTILE.format(ear.url), shared)
    of_nobody(users_file(victim, f"folders = ['{shared}']"))
    assert "must belong to you" in victim.dibs("list").stderr
    assert ear.heard == b""


# Where the search stops


def stages(victim: Victim, folder: Path) -> str:
    """Which configuration is in force in the folder: the preset says it."""
    done = victim.dibs("config", "show", "--json", folder=folder)
    return str(json.loads(done.stdout)["data"]["preset"])


def test_the_search_does_not_leave_a_repository(victim: Victim) -> None:
    victim.configure("preset = 'agent'\n")
    inside = victim.folder / "clone" / "deep"
    inside.mkdir(parents=True)
    assert stages(victim, inside) == "agent", "control: without a repository"
    subprocess.run(["git", "init", "--quiet", str(inside.parent)], check=True, timeout=60)
    assert stages(victim, inside) == "stages"
    victim.configure("preset = 'agent'\n", inside.parent)
    assert stages(victim, inside) == "agent", "its top is still in the repository"


@pytest.mark.parametrize("above", ["dibs.toml", ".dibs"])
def test_who_expects_the_settings_above_is_told_that_they_are_not_used(
    victim: Victim, above: str
) -> None:
    """Earlier versions used them; a new backlog beside the old one looks like lost issues."""
    inside = victim.folder / "clone" / "deep"
    inside.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(inside.parent)], check=True, timeout=60)
    if above == ".dibs":
        assert victim.dibs("add", "old").returncode == 0
    else:
        victim.configure("preset = 'agent'\n")
    named = f"{victim.folder / 'dibs.toml' if above == 'dibs.toml' else victim.folder} is not used"
    error = json.loads(victim.dibs("list", "--json", folder=inside).stdout)["error"]
    assert error["code"] == "NO_BACKLOG"
    assert named in error["message"]
    assert "--config" in error["hint"]
    made = victim.dibs("add", "one", folder=inside)
    assert made.returncode == 0
    assert named in made.stderr
    assert not victim.dibs("add", "two", folder=inside).stderr, "only when the backlog is new"


@as_root
def test_what_another_user_put_above_is_not_pointed_at(victim: Victim, shared: Path) -> None:
    """The advice to name it with `--config` would be the attack."""
    subprocess.run(["git", "init", "--quiet", str(victim.folder)], check=True, timeout=60)
    victim.configure("", shared)
    assert "is not used" in victim.dibs("list").stderr, "control: of the victim"
    of_nobody(shared / "dibs.toml")
    assert "is not used" not in victim.dibs("list").stderr
    assert "is not used" not in victim.dibs("add", "one").stderr


def test_the_search_does_not_leave_a_linked_worktree(victim: Victim) -> None:
    """Neither above the main working tree nor above the worktree."""
    main, tree = victim.folder / "a" / "main", victim.folder / "b" / "tree"
    main.mkdir(parents=True)
    tree.parent.mkdir()
    victim.configure("preset = 'agent'\n", main.parent)
    victim.configure("preset = 'agent'\n", tree.parent)
    who = ("-c", "user.name=x", "-c", "user.email=x")
    for words in (
        ("init", "--quiet"),
        (*who, "commit", "--quiet", "--allow-empty", "-m", "first"),
        ("worktree", "add", "--quiet", str(tree)),
    ):
        subprocess.run(["git", *words], cwd=main, check=True, timeout=60)
    assert stages(victim, tree) == "stages"
    victim.configure("preset = 'agent'\n", main)
    assert stages(victim, tree) == "agent", "control: the main working tree's own file"


def test_the_search_does_not_leave_the_home_folder(victim: Victim) -> None:
    victim.configure("preset = 'agent'\n", victim.home.parent)
    assert stages(victim, victim.folder) == "stages"
    victim.configure("preset = 'agent'\n", victim.home)
    assert stages(victim, victim.folder) == "agent", "the home folder itself is searched"
    (victim.home / "dibs.toml").unlink()
    victim.env["HOME"] = str(victim.home / "elsewhere")
    assert stages(victim, victim.folder) == "agent", "control: no home folder in between"


@as_root
def test_the_search_does_not_leave_a_mounted_folder(victim: Victim) -> None:
    if (unshare := shutil.which("unshare")) is None:
        pytest.skip("unshare is not installed")
    victim.configure("preset = 'agent'\n")
    mounted = victim.folder / "mounted"
    mounted.mkdir()
    assert stages(victim, mounted) == "agent", "control: a folder like any other"
    script = 'mount -t tmpfs none "$0" && cd "$0" && mkdir deep && cd deep && exec dibs config show'
    done = subprocess.run(
        [unshare, "--mount", "sh", "-c", script, str(mounted)],
        env=victim.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no mount here: {done.stderr}")
    assert 'preset = "stages"' in done.stdout
