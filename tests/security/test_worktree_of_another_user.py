"""Actor: a handler in a worktree, as another user (`run_as`), and other processes of that user.

Attack: it swaps folders of the worktree for links while the worker gives the worktree away or takes
it back, so that the worker gives away a file elsewhere; it shuts folders, so that its work cannot
be saved; it leaves refs that fill the memory of the worker, or lead out of the worktree.

Wall: a folder changes hands after everything in it, and is taken back, and shut, before anything in
it; refs are read up to a limit, without following a link.
"""

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from tests.security.conftest import Victim
from tests.security.git_victims import begin, git, remote_repository

from dibs.core.ids import RunId
from dibs.core.pipeline import OneWorktree
from dibs.ports.system import PlaceWish
from dibs.worktrees.trees import WorktreePlaces

from .handlers import needs_root, work

_AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
# The capabilities of docs/guides/sandbox-a-handler.md: root's name does not open files then.
_CAPABILITIES = "-all,+setuid,+setgid,+kill,+chown"
_FEW_POWERS = ("setpriv", f"--inh-caps={_CAPABILITIES}", f"--bounding-set={_CAPABILITIES}")


@needs_root
@pytest.mark.parametrize("phase", ["given", "taken"])
def test_a_link_in_place_of_a_folder_gives_nothing_else_away(
    reachable: Victim, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Between any two steps of the worker, a process of the user tries to swap a folder."""
    base = reachable.home.parent
    files = {f"pkg/sub/{name}": "text\n" for name in ("a", "b", "c")}
    git(base, "clone", "-q", str(remote_repository(base / "shop.git", files)), str(base / "shop"))
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    for name in ("a", "b", "c"):
        (elsewhere / name).touch(0o600)
    # Once it owns a file in the folder; its own folder is open from the beginning.
    swap = (
        f"find sub/ -user nobody -name '[abc]' | grep -q . && mv sub gone && ln -s {elsewhere} sub"
    )
    tried: list[int] = []
    with monkeypatch.context() as patched:

        def attacked(name: str) -> None:
            real = getattr(os, name)

            def step(*words: object, **options: object) -> None:
                real(*words, **options)
                for pkg in base.glob("trees/*/pkg"):
                    shell = (*_AS_NOBODY, "sh", "-c", swap)
                    done = subprocess.run(shell, cwd=pkg, capture_output=True, check=False)
                    tried.append(done.returncode)

            patched.setattr(os, name, step)

        places = WorktreePlaces(base, {}, worktree_root=base / "trees")
        wish = PlaceWish(RunId("4be07a91c35d"), "#7", OneWorktree("shop"), run_as="nobody")
        if phase == "given":
            attacked("chown")
            attacked("lchown")
        with places.open(wish) as made:
            assert (made.folder / "pkg").stat().st_uid == pwd.getpwnam("nobody").pw_uid
            if phase == "taken":
                attacked("chown")
                attacked("lchown")
    assert len(tried) > len(files)
    assert {one.stat().st_uid for one in elsewhere.iterdir()} == {0}
    assert list(base.glob("trees/*/pkg")) == []


_SHUT = """
mkdir shut; echo half > shut/half; echo closed > shut/closed
chmod 0 shut/closed; chmod 0500 shut; mkdir -m 0700 own; echo work > own/work; exit 1
"""


@needs_root
def test_a_worker_with_capabilities_saves_and_removes(reachable: Victim) -> None:
    clone = begin(reachable, _SHUT, "first")
    config = reachable.folder / "dibs.toml"
    reachable.configure(config.read_text().replace("worktree =", 'run_as = "nobody"\nworktree ='))
    done = work(reachable, before=_FEW_POWERS)
    told = done.stdout + done.stderr
    assert "was not removed" not in told, told
    listed = git(clone, "for-each-ref", "--format=%(refname)", "refs/dibs/recovered")
    assert listed, told
    [ref] = listed.splitlines()
    for name, text in {"shut/half": "half", "shut/closed": "closed", "own/work": "work"}.items():
        assert git(clone, "show", f"{ref}:{name}") == text
    assert len(git(clone, "worktree", "list").splitlines()) == 1


_LARGE = "mkdir -p .git/refs/heads; for n in 1 2 3 4; do truncate -s 250M {0}$n; done; exit 1"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (_LARGE.format(".git/refs/heads/x"), "is larger than"),
        ("truncate -s 250M .git/packed-refs; exit 1", "is larger than"),
        ("mkdir -p .git/logs/refs; truncate -s 250M .git/logs/refs/stash; exit 1", "larger than"),
        ("truncate -s 250M .git/HEAD; exit 1", "is larger than"),
        ("rm -r .git/refs; ln -s / .git/refs; exit 1", "is a link"),
        ("ln -s / .git/refs/far; exit 1", "is a link"),
    ],
)
def test_refs_do_not_fill_the_memory_and_lead_nowhere(
    victim: Victim, script: str, why: str
) -> None:
    begin(victim, script, "first")
    # A worker that takes more fails, and says nothing of this.
    most = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))"
    done = work(victim, without=most)
    assert why in done.stdout + done.stderr
    assert list(Path(victim.env["DIBS_STATE"]).glob("**/.git/HEAD")) != [], "the tree stays"
