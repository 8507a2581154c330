"""Actor: a repository that somebody else wrote, checked out by a worker for a run.

Attack: attributes that name the operator's own filters (as of Git LFS, which asks the server that
the repository names), submodules at addresses that are programs, options, paths and sockets, links
out of the tree in the place of git's own files, trees with a `.git` in them, refs with the names of
options.

Wall: the worker checks out without filters and submodules, and git refuses a `.git` in a tree. No
canary is touched, and no connection is made.
"""

from pathlib import Path

import pytest
from tests.security.conftest import Ear, Victim
from tests.security.git_victims import begin, git, remote_repository, worked


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def hostile(tmp_path: Path, canary: Path, ear: Ear, *, submodules: bool) -> Path:
    urls = (f"ext::sh -c touch% {canary}", f"-u./touch {canary}", "../../home", ear.url)
    urls = urls if submodules else ()
    modules = "".join(
        f'[submodule "s{n}"]\n\tpath = s{n}\n\turl = {url}\n\tupdate = !touch {canary}\n'
        for n, url in enumerate(urls)
    )
    files = {
        ".gitattributes": "* filter=lfs diff=lfs merge=lfs\ntext working-tree-encoding=UTF-16\n",
        ".lfsconfig": f"[lfs]\n\turl = {ear.url}\n",
        ".gitmodules": modules,
        ".gitconfig": f"[core]\n\thooksPath = hooks\n\tfsmonitor = touch {canary}\n",
        "hooks/post-checkout": f"#!/bin/sh\ntouch {canary}\n",
        "text": "text\n",
    }
    remote = remote_repository(tmp_path / "hostile.git", files)
    tree = git(remote, "ls-tree", "main")
    commit = git(remote, "rev-parse", "main")
    links = "".join(f"\n160000 commit {commit}\ts{n}" for n in range(len(urls)))
    outside = git(remote, "hash-object", "-w", "--stdin", given=b"/etc/passwd")
    links += f"\n120000 blob {outside}\t.gitignore\n120000 blob {outside}\tlink"
    made = git(remote, "mktree", given=f"{tree}{links}\n".encode())
    head = git(remote, "commit-tree", made, "-p", commit, "-m", "hostile")
    git(remote, "update-ref", "refs/heads/main", head)
    for name in (f"--upload-pack=touch {canary}".replace(" ", "_"), "-u", "$(touch_x)", "`x`"):
        git(remote, "update-ref", f"refs/heads/{name}", head)
    return remote


def operator(victim: Victim, canary: Path) -> None:
    """The operator's own settings: filters as Git LFS has them, submodules on."""
    touch = f"sh -c 'touch {canary}; cat'"
    settings = {
        "filter.lfs.smudge": touch,
        "filter.lfs.clean": touch,
        "filter.lfs.required": "true",
        "submodule.recurse": "true",
        "fetch.recurseSubmodules": "true",
    }
    for name, value in settings.items():
        git(victim.folder, "config", "--file", str(victim.home / ".gitconfig"), name, value)


@pytest.mark.parametrize("submodules", [False, True], ids=["attributes", "submodules"])
def test_a_worker_checks_out_a_hostile_repository_and_nothing_runs(
    victim: Victim, tmp_path: Path, canary: Path, ear: Ear, submodules: bool
) -> None:
    """The handler itself does nothing with git, so whatever ran was run by the worker.

    No commit with such submodules is taken into the operator's clone: then the work stays.
    """
    operator(victim, canary)
    remote = hostile(tmp_path, canary, ear, submodules=submodules)
    begin(victim, 'ls -A > "$DIBS_ROOT/seen"; echo new > new', "first", remote=remote)
    done = victim.dibs("work", "--once")
    assert not canary.exists()
    assert ear.heard == b""
    assert worked(victim) == {"first"}, done.stderr
    seen = (victim.folder / "seen").read_text().split()
    assert {".gitattributes", "text", "link", ".git"} <= set(seen)
    left = [one / "new" for one in (tmp_path / "state" / "worktrees").glob("dibs-shop-*")]
    assert [one.exists() for one in left] == ([True] if submodules else [])
    why = "disallowed submodule url: -u./" if submodules else "is kept as refs/dibs/recovered/"
    assert why in done.stderr


def test_a_tree_with_a_git_folder_in_it_is_not_checked_out(
    victim: Victim, tmp_path: Path, canary: Path
) -> None:
    remote = remote_repository(tmp_path / "hostile.git", {"README": "a shop\n"})
    blob = git(remote, "hash-object", "-w", "--stdin", given=f"touch {canary}\n".encode())
    inner = bytes.fromhex(
        git(
            remote,
            *("hash-object", "-w", "-t", "tree", "--literally", "--stdin"),
            given=b"100755 post-checkout\0" + bytes.fromhex(blob),
        )
    )
    middle = bytes.fromhex(
        git(
            remote,
            *("hash-object", "-w", "-t", "tree", "--literally", "--stdin"),
            given=b"40000 hooks\0" + inner,
        )
    )
    tree = git(
        remote,
        *("hash-object", "-w", "-t", "tree", "--literally", "--stdin"),
        given=b"40000 .git\0" + middle,
    )
    head = git(remote, "commit-tree", tree, "-m", "hostile")
    git(remote, "update-ref", "refs/heads/main", head)
    begin(victim, f"touch {canary}", "first", remote=remote)
    done = victim.dibs("work", "--once")
    assert not canary.exists()
    assert "invalid path '.git" in done.stderr


def test_control_git_alone_runs_the_filter(
    victim: Victim, tmp_path: Path, canary: Path, ear: Ear
) -> None:
    operator(victim, canary)
    remote = hostile(tmp_path, canary, ear, submodules=False)
    git(tmp_path, "init", "--quiet", "plain")
    for name in ("filter.lfs.smudge", "filter.lfs.clean"):
        git(tmp_path / "plain", "config", name, f"sh -c 'touch {canary}; cat'")
    git(tmp_path / "plain", "fetch", "--quiet", str(remote), "main")
    git(tmp_path / "plain", "worktree", "add", "--quiet", "../tree", "FETCH_HEAD")
    assert canary.exists()
