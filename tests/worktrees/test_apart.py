"""Working trees with repositories of their own: what is copied, what stays out, what is refused."""

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.servers.git_repository import ALONE, git

from dibs.core.errors import DibsError, HandlerUnusable
from dibs.core.ids import RunId
from dibs.core.pipeline import OneWorktree
from dibs.ports.system import PlaceWish
from dibs.worktrees import Apart, MultiWorktree, WorktreeRequest, recover
from dibs.worktrees.trees import WorktreePlaces

from .places import clone, commit, write


@pytest.fixture
def trees(backend, root):
    return MultiWorktree([backend.request], "batman", "42", root, now=17, apart=Apart())


def config(path: Path) -> dict[str, str]:
    listed = git(path, "config", "--local", "--list").splitlines()
    return dict(line.split("=", 1) for line in listed)


def test_its_git_folder_is_its_own_and_the_clones_refs_are_in_it(backend, trees):
    backend("tag", "v1")
    backend("branch", "other")
    with trees as made:
        path = made.specs[0].worktree_path
        assert (path / ".git").is_dir()
        assert git(path, "rev-parse", "--git-common-dir") == ".git"
        assert git(path, "status", "--porcelain") == ""
        listed = git(path, "for-each-ref", "--format=%(refname)").split()
        names = ("heads/batman/42-17", "heads/main", "heads/other", "remotes/origin/main")
        assert {f"refs/{name}" for name in (*names, "tags/v1")} <= set(listed)
        git(path, "branch", "--quiet", "-D", "main", "other")
        git(path, "tag", "-d", "v1")
        git(path, "config", "core.editor", "evil")
        git(path, "update-ref", "refs/remotes/origin/main", commit(path, "evil"))
    assert backend.branches == {"main", "other"}
    assert backend("rev-parse", "origin/main") == backend("rev-parse", "v1")
    assert "core.editor" not in config(backend.path)


def test_settings_that_name_programs_and_credentials_are_not_copied(backend, trees):
    for setting in (
        "credential.helper=store",
        "core.sshCommand=ssh -i /key",
        "filter.lfs.clean=lfs",
        "include.path=/nowhere",
        "alias.x=!x",
        "http.extraHeader=Authorization: basic hunter2",
    ):
        backend("config", *setting.split("=", 1))
    backend("remote", "add", "hub", "https://bob:hunter2@127.0.0.1/shop.git")
    backend("remote", "add", "ssh", "ssh://git@127.0.0.1/shop.git")
    backend("config", "url.https://hunter2@127.0.0.1/.insteadOf", "hub:")
    backend("config", "remote.rel.url", "../backend remote.git")
    with trees as made:
        copied = config(made.specs[0].worktree_path)
        text = (made.specs[0].worktree_path / ".git/config").read_text()
    assert copied["remote.hub.url"] == "https://127.0.0.1/shop.git"
    assert copied["remote.ssh.url"] == "ssh://git@127.0.0.1/shop.git"
    assert copied["remote.rel.url"] == str(backend.path / "../backend remote.git")
    assert copied["url.https://127.0.0.1/.insteadof"] == "hub:"
    assert copied["user.name"] == "an agent"
    assert "hunter2" not in text
    sections = {name.split(".")[0] for name in copied}
    assert sections <= {"core", "remote", "branch", "url", "user", "gc"}


def test_odd_values_of_settings_are_copied_as_they_are(backend, trees):
    odd = 'a "b" \\c\td\n; e # f'
    backend("config", "user.name", odd)
    backend("config", 'remote.q"u\\o.url', "/x y")
    with trees as made:
        path = made.specs[0].worktree_path
        assert git(path, "config", "user.name") == odd
        assert git(path, "config", 'remote.q"u\\o.url') == "/x y"


def test_hooks_of_the_clone_are_copied_and_those_of_the_run_go_with_it(backend, trees, place):
    hook = write(backend.path / ".git/hooks", "pre-push", f'#!/bin/sh\ntouch "{place}/ran"\n')
    hook.chmod(0o755)
    with trees as made:
        path = made.specs[0].worktree_path
        commit(path, "done")
        git(path, "push", "--quiet", "origin", "HEAD")
        assert (place / "ran").exists()
        (path / ".git/hooks/pre-push").write_text("#!/bin/sh\nexit 1\n")
    assert "touch" in hook.read_text()


def test_its_attributes_and_line_ends_are_those_of_the_repository(backend, root):
    write(backend.path, ".gitattributes", "*.bat text eol=crlf\n")
    commit(backend.path, "run.bat", "one\ntwo\n")
    backend("push", "--quiet")
    trees = MultiWorktree([backend.request], "batman", "42", root, now=17, apart=Apart())
    with trees as made:
        path = made.specs[0].worktree_path
        assert (path / "run.bat").read_bytes() == b"one\r\ntwo\r\n"
        assert not (path / ".git/info/attributes").exists()
    assert backend.recovered == {}


@pytest.mark.parametrize("how", ["shallow", "partial", "bare", "sha256"])
def test_clones_of_every_kind(place, root, how):
    made = clone(place, "shop")
    commit(made.path, "second")
    made("push", "--quiet")
    other = place / "other"
    url = made.remote.as_uri()
    git(made.remote, "config", "uploadpack.allowFilter", "true")
    match how:
        case "shallow":
            git(place, "clone", "--quiet", "--depth=1", url, str(other))
        case "partial":
            git(place, "clone", "--quiet", "--filter=blob:none", "--no-checkout", url, str(other))
        case "bare":
            git(place, "clone", "--quiet", "--bare", url, str(other))
        case "sha256":
            git(place, "init", "--quiet", "--object-format=sha256", "-b", "main", str(other))
            commit(other, "second")
    base = "main" if how == "sha256" else "origin/main"
    request = WorktreeRequest("other", other, base=base)
    with MultiWorktree([request], "batman", "42", root, now=17, apart=Apart()) as trees:
        path = trees.specs[0].worktree_path
        assert (path / "second").read_text() == "work\n"
        done = commit(path, "done")
        write(path, "half")
    assert trees.cleanup.left == ()
    [kept] = trees.cleanup.kept
    assert git(other, "show", f"{kept.ref}:half") == "work"
    assert git(other, "rev-parse", f"{kept.ref}^", "batman/42-17").split() == [done, done]


# Refused


def pipe(place: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


def link(place: Path, target: str) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def swap(path: Path, place: Path) -> None:
    (path / ".git").rename(place / "moved")
    (path / ".git").symlink_to(place / "moved")


def deep(path: Path, _: Path) -> None:
    top = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=top)
        below = os.open("d", os.O_RDONLY, dir_fd=top)
        os.close(top)
        top = below
    os.close(top)


def away(path: Path, place: Path) -> None:
    path.rename(place / "moved")
    path.symlink_to(place / "moved")


def in_two_steps(path: Path, place: Path) -> None:
    write(path / ".git/objects/info", "alternates", f"{path}/middle\n{path}/.git/objects\n")
    write(path / "middle/info", "alternates", f"{place}/backend remote.git/objects\n")


REFUSED = {
    "folders without end": deep,
    "tree elsewhere": away,
    "pipe for the index": lambda path, _: pipe(path / ".git/index"),
    "pipe for a ref": lambda path, _: pipe(path / ".git/refs/heads/x"),
    "pipe among the packs": lambda path, _: pipe(path / ".git/objects/pack/pack-1.idx"),
    "pipe to be read by git": lambda path, _: pipe(path / ".gitignore"),
    "link for HEAD": lambda path, _: link(path / ".git/HEAD", "/etc/hostname"),
    "link for a pack": lambda path, _: link(
        path / ".git/objects/pack/pack-1.pack", "/etc/hostname"
    ),
    "objects of others": lambda path, place: write(
        path / ".git/objects/info", "alternates", f"{place}/backend remote.git/objects\n"
    ),
    "objects of others, in two steps": in_two_steps,
    "refs in a table": lambda path, _: (path / ".git/reftable").mkdir(),
    "git folder elsewhere": swap,
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_git_would_not_have_made_is_left_and_nothing_waits(trees, place, root, how):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        REFUSED[how](path, place)
    [left] = made.cleanup.left
    assert (left.worktree_path, (path / "half").read_text()) == (path, "work\n")
    assert recover(root).left == (left,)
    if how == "folders without end":  # neither can pytest remove them
        subprocess.run(["rm", "-r", str(path / "d")], check=True, timeout=60)


def test_a_pipe_in_the_clone_is_not_waited_for(backend, trees, place):
    (place / "list").write_text("*.log\n")
    link(backend.path / ".git/info/exclude", str(place / "list"))
    with trees as made:
        write(made.specs[0].worktree_path, "x.log")
    assert backend.recovered == {}
    pipe(backend.path / ".git/info/exclude")
    with pytest.raises(DibsError, match="not a regular file"), trees:
        pass
    assert backend.worktrees == []


def test_refs_that_git_would_not_have_made_are_not_looked_at(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        done = commit(path, "done")
        (path / ".git/refs/heads/-u").write_text(f"{done}\n")
        (path / ".git/refs/heads/a..b").write_text(f"{done}\n")
        (path / ".git/refs/heads/torn").write_text("x")
        (path / ".git/packed-refs").write_text(
            f"{done} HEAD\n{done}\n\n{done} refs/replace/{done}\n"
        )
    assert made.cleanup.left == ()
    assert set(backend.recovered.values()) == {done}


def test_objects_that_are_broken_are_not_taken_over(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        tree = git(path, "rev-parse", "HEAD^{tree}")
        text = f"tree {tree}\nauthor x\ncommitter x\n\nbroken\n"
        words = ("hash-object", "-w", "-t", "commit", "--literally", "--stdin")
        git(path, "update-ref", "HEAD", git(path, *words, given=text))
    assert len(made.cleanup.left) == 1
    assert backend.recovered == {}


# Another user


@pytest.fixture
def open_place():
    """A folder that every user may enter; those of pytest are closed."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


AS_NOBODY = """
set -e
git config user.name agent; git config user.email agent@localhost
echo done > done; git add done; git commit --quiet -m done; echo half > half
git log --oneline | wc -l
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
@pytest.mark.parametrize("closed", [False, True], ids=["clone open to all", "clone closed"])
def test_a_working_tree_of_another_user(open_place, closed):
    shop = clone(open_place, "shop")
    if closed:
        shop.path.chmod(0o700)
    places = WorktreePlaces(open_place, {}, worktree_root=open_place / "trees")
    wish = PlaceWish(RunId("4be07a91c35d"), "#7", OneWorktree("shop"), run_as="nobody")
    with places.open(wish) as made:
        for one in (made.folder, made.folder / "README", made.folder / ".git/config"):
            assert one.stat().st_uid == pwd.getpwnam("nobody").pw_uid
        assert (made.folder / ".git/objects/info/alternates").exists() is not closed
        ran = subprocess.run(
            ["setpriv", "--reuid=nobody", "--clear-groups", "sh", "-c", AS_NOBODY],
            cwd=made.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(made.folder)} | ALONE,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ran.returncode, ran.stdout.strip()) == (0, "2"), ran.stderr
    [ref] = shop.recovered
    assert shop.show(ref, "half") == "half"
    assert shop.show(f"{ref}^", "done") == "done"
    assert shop.worktrees == []


AS_NOBODY_TOO = r"""
import sys
from pathlib import Path
from dibs.worktrees import Apart, MultiWorktree, WorktreeRequest
root, clone, apart = sys.argv[1:]
request = WorktreeRequest("shop", Path(clone))
trees = MultiWorktree([request], "batman", "42", Path(root), apart=Apart() if apart else None)
with trees:
    path = trees.specs[0].worktree_path
    (path / "half").write_text("work")
    for name in ("go/pkg", "go"):
        (path / name).mkdir(parents=True, exist_ok=True)
        (path / name / "read only").write_text("x")
    (path / ".gitignore").write_text("theirs/\n")
    print(path, flush=True)
    sys.stdin.readline()
    for name in ("go/pkg", "go", "."):
        (path / name).chmod(0o555)
print(*trees.cleanup.left, sep="\n")
"""
RECOVERING = """
import sys
from pathlib import Path
from dibs.worktrees import recover
found = recover(Path(sys.argv[1]))
print(len(found.removed), *found.left)
"""


AS_NOBODY_RUN = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


@pytest.fixture
def nobodys(open_place):
    """A clone of an ordinary user's, for the superuser is stopped by no permission."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser becomes another user")
    words = [*AS_NOBODY_RUN, sys.executable, "-c", "import dibs"]
    if subprocess.run(words, cwd="/", check=False, timeout=60).returncode:
        pytest.skip("no other user may run this Python")
    shop = clone(open_place, "shop")
    for top, folders, names in os.walk(open_place):
        for name in (".", *folders, *names):
            os.chown(Path(top, name), *pwd.getpwnam("nobody")[2:4])
    return shop


def as_nobody(place, script, *words):
    return subprocess.Popen(
        [*AS_NOBODY_RUN, sys.executable, "-c", script, *map(str, words)],
        cwd=place,
        env={"PATH": os.environ["PATH"], "HOME": str(place)} | ALONE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def recovering(place):
    return as_nobody(place, RECOVERING, place / "trees").communicate(timeout=60)[0]


@pytest.fixture(params=["", "yes"], ids=["shared", "apart"])
def working(request, open_place, nobodys, monkeypatch):
    """A process with a working tree, which waits for a line before it leaves; and the tree."""
    for name, value in (("COUNT", "1"), ("KEY_0", "safe.directory"), ("VALUE_0", "*")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    root = open_place / "trees"
    with as_nobody(open_place, AS_NOBODY_TOO, root, nobodys.path, request.param) as process:
        path = Path(process.stdout.readline().rstrip("\n"))
        assert path.parent == root
        yield process, path


def test_a_folder_that_cannot_be_deleted_is_tried_again(open_place, nobodys, working):
    """A read-only folder of the user's own is no obstacle; one of another user is, for a while."""
    process, path = working
    write(path / "theirs", "file")  # as another user: as the superuser, here
    said, _ = process.communicate("go\n", timeout=60)
    assert "Permission denied" in said
    assert "its work is kept" in said
    assert (path / "theirs/file").exists()
    [ref] = nobodys.recovered
    assert nobodys.show(ref, "half") == "work"
    assert nobodys.show(ref, "go/pkg/read only") == "x"
    assert "Permission denied" in recovering(open_place)
    assert list(nobodys.recovered) == [ref], "what dibs has deleted is no deletion of the user's"
    precious = write(path, "precious")
    for place in (precious, path / "theirs"):
        os.chown(place, *pwd.getpwnam("nobody")[2:4])
    assert recovering(open_place) == "1\n"
    assert not path.exists()
    assert ref in nobodys.recovered
    [late] = nobodys.recovered.keys() - {ref}
    assert nobodys.show(late, "precious") == "work", "written after the first attempt"
    assert nobodys.show(late, "README") == "a shop"
    assert nobodys.worktrees == []


def test_a_folder_that_cannot_be_read_may_have_work_in_it(open_place, nobodys, working):
    """It is ignored, but a clone in it would be work: nothing is removed before it was seen."""
    process, path = working
    write(path / "theirs", "file")
    (path / "theirs").chmod(0o700)
    said, _ = process.communicate("go\n", timeout=60)
    assert "theirs cannot be read" in said
    assert (path / "half").exists()
    (path / "theirs").chmod(0o755)
    os.chown(path / "theirs", *pwd.getpwnam("nobody")[2:4])
    assert recovering(open_place) == "1\n"
    assert [nobodys.show(ref, "half") for ref in nobodys.recovered] == ["work"]


def test_a_user_that_does_not_exist_is_found_out(backend, root, place):
    places = WorktreePlaces(place, {}, worktree_root=root)
    wish = PlaceWish(RunId("a"), "#7", OneWorktree("backend"), run_as="nobody-of-this-name")
    with pytest.raises(HandlerUnusable, match="no user 'nobody-of-this-name'"), places.open(wish):
        pass
    assert backend.worktrees == []
    assert backend.branches == {"main"}
