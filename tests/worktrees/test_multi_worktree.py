"""Real git, real remotes: all or nothing, one branch everywhere, gone when left."""

import dataclasses
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.servers.git_repository import git

from dibs.core.errors import Misuse, Unavailable
from dibs.worktrees import (
    Apart,
    BadWorktree,
    BranchTaken,
    GitProgram,
    GitResult,
    MultiWorktree,
    WorktreeRequest,
    iter_worktree_paths,
    recover,
    verify_worktree_clean,
)

from .places import Clone, clone, commit, write


def left_in(root: Path) -> list[str]:
    return sorted(one.name for one in root.glob("*") if one.name != ".dibs-sessions") + sorted(
        one.name for one in (root / ".dibs-sessions").glob("*.json")
    )


def untouched(*clones: Clone) -> None:
    for one in clones:
        assert one.worktrees == []
        assert one.branches == {"main"}
        assert one.recovered == {}


def test_as_the_documents_show_it(backend, frontend, root):
    requests = [
        WorktreeRequest("backend", backend.path, "acme/backend"),
        WorktreeRequest("frontend", frontend.path),
    ]
    with MultiWorktree(requests, agent="batman", feature_id="42", worktree_root=root) as trees:
        first, second = trees.specs
        assert (first.repo_name, second.repo_name) == ("backend", "frontend")
        assert first.gh_repo == "acme/backend"
        assert first.branch_name == second.branch_name
        assert first.branch_name.startswith("batman/42-")
        for spec in trees.specs:
            assert git(spec.worktree_path, "branch", "--show-current") == spec.branch_name
            assert (spec.worktree_path / "README").read_text() == "a shop\n"
            assert verify_worktree_clean(spec.worktree_path)
        assert list(iter_worktree_paths(trees.specs)) == [
            first.worktree_path,
            second.worktree_path,
        ]
    assert trees.specs == []
    assert len(trees.cleanup.removed) == 2
    assert trees.cleanup.told == ()
    untouched(backend, frontend)
    assert left_in(root) == []


def test_the_default_place_is_the_published_one_if_there_is_one(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("ALFRED_HOME", str(tmp_path / "alfred"))
    with MultiWorktree([backend.request], "batman", "42") as trees:
        assert trees.specs[0].worktree_path.is_relative_to(tmp_path / "alfred" / "worktrees")
    monkeypatch.delenv("ALFRED_HOME")
    monkeypatch.setenv("DIBS_STATE", str(tmp_path / "ours"))
    (tmp_path / "home" / ".alfred").mkdir(parents=True)
    assert MultiWorktree([], "a", "b").worktree_root == tmp_path / "ours" / "worktrees"
    monkeypatch.delenv("DIBS_STATE")
    assert MultiWorktree([], "a", "b").worktree_root == tmp_path / "home/.alfred/worktrees"
    (tmp_path / "home" / ".alfred").rmdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert MultiWorktree([], "a", "b").worktree_root == tmp_path / "xdg/dibs/worktrees"
    monkeypatch.delenv("XDG_STATE_HOME")
    state = tmp_path / "home/.local/state/dibs"
    assert MultiWorktree([], "a", "b").worktree_root == state / "worktrees"


def test_the_moment_can_be_given_as_the_published_one_takes_it(backend, root):
    with MultiWorktree(
        [backend.request], "batman", "42", root, GitProgram(), 1700000000.5
    ) as trees:
        assert trees.specs[0].branch_name == "batman/42-1700000000"
        assert trees.specs[0].worktree_path.name == "batman-backend-42-1700000000"


def test_two_at_the_same_moment_have_two_names(backend, root):
    one = MultiWorktree([backend.request], "batman", "42", root, now=17)
    other = MultiWorktree([backend.request], "batman", "42", root, now=17)
    with one, other:
        assert one.specs[0].branch_name == "batman/42-17"
        assert other.specs[0].branch_name == "batman/42-18"
    untouched(backend)


def test_the_branch_starts_from_what_the_remote_has_now(backend, root, place):
    other = place / "other"
    git(place, "clone", "--quiet", str(backend.remote), str(other))
    newest = commit(other, "new")
    git(other, "push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root) as trees:
        assert git(trees.specs[0].worktree_path, "rev-parse", "HEAD") == newest
    assert backend.recovered == {}


def test_without_fetching_it_starts_from_what_is_known(backend, root, place):
    known = backend("rev-parse", "origin/main")
    backend("remote", "set-url", "origin", str(place / "gone"))
    with MultiWorktree([backend.request], "batman", "42", root, fetch=False) as trees:
        assert git(trees.specs[0].worktree_path, "rev-parse", "HEAD") == known
    with (
        pytest.raises(Unavailable, match="cannot be fetched"),
        MultiWorktree([backend.request], "batman", "42", root),
    ):
        pass


def test_an_address_is_meant_from_where_the_clone_is(backend, root):
    backend("remote", "set-url", "origin", "../backend remote.git")
    with MultiWorktree([backend.request], "batman", "42", root) as trees:
        assert (trees.specs[0].worktree_path / "README").exists()


def test_a_crowd_at_the_same_moment_gets_what_it_wants(backend, frontend, root, place):
    """In the same clones: who fetches gets into the way of who fetches."""
    other = place / "other"
    git(place, "clone", "--quiet", str(backend.remote), str(other))
    commit(other, "new")
    git(other, "push", "--quiet")
    found, inside = [], threading.Barrier(6, timeout=60)

    def work(number):
        requests = [backend.request, frontend.request]
        with MultiWorktree(requests, "batman", str(number % 2), root, now=17) as trees:
            inside.wait()
            found.extend(one.worktree_path for one in trees.specs)
            write(trees.specs[0].worktree_path, f"of {number}")

    with ThreadPoolExecutor(6) as crowd:
        list(crowd.map(work, range(6)))
    assert len(set(found)) == 12
    kept = {backend("show", "--name-only", "--format=", one) for one in backend.recovered.values()}
    assert kept == {f"of {number}" for number in range(6)}
    assert backend.worktrees == frontend.worktrees == []
    assert left_in(root) == []


def test_a_base_may_be_a_tag_a_branch_or_a_commit(backend, root):
    here = commit(backend.path, "local")
    backend("tag", "v1")
    for base in ("v1", "main", here, "HEAD"):
        request = dataclasses.replace(backend.request, base=base)
        with MultiWorktree([request], "batman", "42", root) as trees:
            assert (trees.specs[0].worktree_path / "local").exists()
        assert trees.cleanup.told == ()  # what its base has is nobody's unpushed work
        assert backend.branches == {"main"}


@pytest.mark.parametrize("fetch", [True, False])
def test_a_bare_clone_will_do(place, root, fetch):
    bare = clone(place, "bare", bare=True)
    with MultiWorktree([bare.request], "batman", "42", root, fetch=fetch) as trees:
        assert (trees.specs[0].worktree_path / "README").exists()
        write(trees.specs[0].worktree_path, "new")
    [(ref, _)] = bare.recovered.items()
    assert bare.show(ref, "new") == "work"
    assert bare.worktrees == []


def test_a_bare_repository_without_a_remote_will_do(backend, root):
    """The remote of the others itself: its branches are the remote's."""
    request = WorktreeRequest("server", backend.remote)
    with MultiWorktree([request], "batman", "42", root) as trees:
        assert (trees.specs[0].worktree_path / "README").exists()


def test_a_working_tree_of_the_same_repository_will_do_as_the_clone(backend, root, place):
    backend("worktree", "add", "--quiet", "-b", "mine", str(place / "mine"))
    request = dataclasses.replace(backend.request, checkout_path=place / "mine")
    with MultiWorktree([request], "batman", "42", root):
        backend("worktree", "remove", str(place / "mine"))
    assert backend.worktrees == []


# All or nothing


def test_if_the_third_cannot_be_made_the_first_two_are_gone_again(backend, frontend, place, root):
    third = clone(place, "third")
    write(third.path / ".git" / "hooks", "post-checkout", "#!/bin/sh\nexit 7\n").chmod(0o755)
    trees = MultiWorktree([one.request for one in (backend, frontend, third)], "batman", "42", root)
    with pytest.raises(Unavailable, match="third"), trees:
        pytest.fail("it must not get in here")
    untouched(backend, frontend, third)
    assert left_in(root) == []
    assert trees.specs == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"checkout_path": Path("/nowhere")}, "no folder"),
        ({"base": "origin/none"}, "couldn't find remote ref"),
        ({"base": "none"}, "has no 'none' to start from"),
        ({"base": "--output=x"}, "to start from"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(backend, frontend, root, broken, said):
    made = []
    bad = dataclasses.replace(frontend.request, **broken)
    trees = MultiWorktree([backend.request, bad], "batman", "42", root, reached=made.append)
    with pytest.raises(BadWorktree, match=said), trees:
        pass
    assert made == []
    untouched(backend, frontend)


def test_a_folder_that_is_no_repository_is_said_to_be_none(backend, place, root):
    (place / "plain").mkdir()
    with (
        pytest.raises(BadWorktree, match="plain is no git repository"),
        MultiWorktree([WorktreeRequest("plain", place / "plain")], "a", "b", root),
    ):
        pass


def test_a_branch_that_is_in_the_way_is_said_to_be(backend, root):
    backend("branch", "batman")
    with (
        pytest.raises(BadWorktree, match="refs/heads/batman"),
        MultiWorktree([backend.request], "batman", "42", root),
    ):
        pass
    assert backend.branches == {"main", "batman"}


def test_the_same_repository_twice_is_refused(backend, place, root):
    (place / "link").symlink_to(backend.path)
    again = WorktreeRequest("again", place / "link")
    with (
        pytest.raises(BadWorktree, match="same repository"),
        MultiWorktree([backend.request, again], "batman", "42", root),
    ):
        pass
    with MultiWorktree(
        [backend.request, again], "batman", "42", root, branch="{agent}/{repo}-{epoch}"
    ) as trees:
        assert len({one.branch_name for one in trees.specs}) == 2


def test_one_that_is_entered_cannot_be_entered_again(backend, root):
    trees = MultiWorktree([backend.request], "batman", "42", root)
    with trees:
        with pytest.raises(Misuse, match="already"):
            trees.__enter__()
        assert len(trees.specs) == 1
    with trees:
        assert len(trees.specs) == 1
    untouched(backend)


# A branch that is gone on with

STABLE = "{agent}/{feature}"


def test_a_branch_without_a_moment_is_gone_on_with(backend, root):
    with MultiWorktree([backend.request], "batman", "42", root, branch=STABLE) as trees:
        first = commit(trees.specs[0].worktree_path, "one")
    assert backend.branches == {"main", "batman/42"}
    with MultiWorktree([backend.request], "batman", "42", root, branch=STABLE) as trees:
        assert git(trees.specs[0].worktree_path, "rev-parse", "HEAD") == first
        second = commit(trees.specs[0].worktree_path, "two")
        git(trees.specs[0].worktree_path, "push", "--quiet", "origin", "HEAD")
    assert trees.cleanup.kept == ()
    # The branch was there before, so it stays.
    assert backend("rev-parse", "batman/42") == second


def test_a_branch_that_was_pushed_and_cleared_is_gone_on_with(backend, root, place):
    for number in range(2):
        with MultiWorktree([backend.request], "batman", "42", root, branch=STABLE) as trees:
            assert (trees.specs[0].worktree_path / "0").exists() is (number == 1)
            commit(trees.specs[0].worktree_path, str(number))
            git(trees.specs[0].worktree_path, "push", "--quiet", "origin", "HEAD")
        assert backend.branches == {"main"}
    # From a clone that has never seen the branch
    fresh = clone(place, "fresh")
    fresh("remote", "set-url", "origin", str(backend.remote))
    with MultiWorktree([fresh.request], "batman", "42", root, branch=STABLE) as trees:
        assert (trees.specs[0].worktree_path / "1").exists()


def test_a_branch_that_is_checked_out_elsewhere_is_said_to_be_and_where(backend, frontend, root):
    frontend("checkout", "--quiet", "-b", "batman/42")
    trees = MultiWorktree([backend.request, frontend.request], "batman", "42", root, branch=STABLE)
    with pytest.raises(BranchTaken) as refused, trees:
        pass
    assert refused.value.branch == "batman/42"
    assert refused.value.where == frontend.path
    assert refused.value.repo_name == "frontend"
    assert str(frontend.path) in str(refused.value)
    untouched(backend)


def test_a_registration_that_outlived_its_folder_is_in_nobodys_way(backend, root, place):
    backend("worktree", "add", "--quiet", "-b", "batman/42", str(place / "old"))
    done = commit(place / "old", "done")
    (place / "old").rename(place / "elsewhere")
    with MultiWorktree([backend.request], "batman", "42", root, branch=STABLE) as trees:
        assert git(trees.specs[0].worktree_path, "rev-parse", "HEAD") == done
    assert backend.worktrees == []


def test_a_locked_registration_is_respected_even_if_its_folder_is_away(backend, root, place):
    backend("worktree", "add", "--quiet", "-b", "batman/42", str(place / "usb"))
    backend("worktree", "lock", "--reason", "on a stick", str(place / "usb"))
    (place / "usb").rename(place / "unplugged")
    with (
        pytest.raises(BranchTaken),
        MultiWorktree([backend.request], "batman", "42", root, branch=STABLE),
    ):
        pass
    (place / "unplugged").rename(place / "usb")
    assert git(place / "usb", "status", "--short") == ""


def test_registrations_of_others_stay_whatever_became_of_them(backend, root, place):
    backend("worktree", "add", "--quiet", "-b", "mine", str(place / "mine"))
    (place / "mine").rename(place / "away")
    with MultiWorktree([backend.request], "batman", "42", root):
        pass
    assert backend.worktrees == [str(place / "mine")]


# Ways out


class Boom(Exception):
    pass


@pytest.mark.parametrize("failure", [Boom, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_ends_the_block_clears_them_and_goes_on(backend, root, failure):
    trees = MultiWorktree([backend.request], "batman", "42", root)

    def work():
        with trees:
            write(trees.specs[0].worktree_path, "half")
            raise failure

    with pytest.raises(failure) as raised:
        work()
    assert backend.worktrees == []
    [(ref, commit_id)] = backend.recovered.items()
    assert backend.show(ref, "half") == "work"
    assert trees.cleanup.kept[0].commit == commit_id
    assert any(ref in note for note in raised.value.__notes__)


def test_a_polite_request_to_end_is_an_exit_that_clears_them(backend, root):
    def work():
        with MultiWorktree([backend.request], "batman", "42", root) as trees:
            write(trees.specs[0].worktree_path, "half")
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it goes on")

    with pytest.raises(SystemExit) as raised:
        work()
    assert raised.value.code == 128 + signal.SIGTERM
    assert len(backend.recovered) == 1
    assert backend.worktrees == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_request_to_end_waits_for_the_clearing(backend, root):
    def asked(step):
        if step.value == "worktrees.kept":
            os.kill(os.getpid(), signal.SIGTERM)

    with (
        pytest.raises(SystemExit) as raised,
        MultiWorktree([backend.request], "batman", "42", root, reached=asked),
    ):
        pass
    assert raised.value.code == 128 + signal.SIGTERM
    untouched(backend)
    assert left_in(root) == []


def test_who_decides_about_signals_goes_on_deciding(backend, root):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with MultiWorktree([backend.request], "batman", "42", root):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    untouched(backend)


def test_it_works_in_any_thread(backend, root):
    found = []

    def work():
        with MultiWorktree([backend.request], "batman", "42", root) as trees:
            found.extend(trees.specs)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert len(found) == 1
    untouched(backend)


def test_a_fork_that_leaves_clears_nothing_of_its_parents(backend, root):
    with MultiWorktree([backend.request], "batman", "42", root) as trees:
        path = trees.specs[0].worktree_path
        child = os.fork()
        if child == 0:
            code = 1
            try:
                trees.__exit__(None, None, None)
                code = 0
            finally:
                os._exit(code)  # whatever happens: it must not go on as a second pytest
        assert os.waitpid(child, 0)[1] == 0
        assert (path / "README").exists()
    untouched(backend)


def test_sessions_that_live_are_nobody_elses_to_clear(backend, root):
    with MultiWorktree([backend.request], "batman", "42", root) as trees:
        assert recover(root).removed == ()
        with MultiWorktree([backend.request], "robin", "43", root):
            assert len(backend.worktrees) == 2
        assert (trees.specs[0].worktree_path / "README").exists()
    untouched(backend)


def test_somebody_else_may_have_removed_them(backend, root):
    with MultiWorktree([backend.request], "batman", "42", root) as trees:
        backend("worktree", "remove", "--force", str(trees.specs[0].worktree_path))
    assert trees.cleanup.left == ()
    untouched(backend)
    assert left_in(root) == []


# Git by another name


def published(args, *, cwd, timeout=60):
    """The published `SubprocessGitRunner`: words, folder and time limit, and no variables."""
    return subprocess.run(
        ["git", *args], cwd=str(cwd), capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.mark.parametrize("apart", [None, Apart()], ids=["shared", "apart"])
def test_a_published_runner_of_git_can_be_handed_in(backend, root, apart):
    trees = MultiWorktree([backend.request], "batman", "42", root, published, 17, apart=apart)
    with trees:
        path = trees.specs[0].worktree_path
        commit(path, "done")
        write(path, "half")
        git(path, "add", "half")
        write(path, "half", "more\n")
    assert trees.cleanup.left == ()
    [found] = backend.recovered.values()
    assert backend.show(found, "half") == "more"
    assert backend.show(f"{found}^2", "half") == "work"
    assert backend("log", "-1", "--format=%an %ae", found) == "dibs dibs@localhost"
    assert backend.worktrees == []


@pytest.mark.parametrize("flaw", [TypeError("no such argument"), subprocess.TimeoutExpired("x", 1)])
def test_whatever_git_raises_does_not_hide_what_the_block_raised(backend, root, flaw):
    broken = []

    def breaking(args, *, cwd, timeout=60):
        if broken:
            raise flaw
        return published(args, cwd=cwd, timeout=timeout)

    trees = MultiWorktree([backend.request], "batman", "42", root, breaking, 17)

    def work():
        with trees:
            write(trees.specs[0].worktree_path, "half")
            broken.append(True)
            raise Boom

    with pytest.raises(Boom) as raised:
        work()
    assert type(flaw).__name__ in trees.cleanup.left[0].why
    assert any(type(flaw).__name__ in note for note in raised.value.__notes__)
    assert len(recover(root, git=breaking).left) == 1
    broken.clear()
    with MultiWorktree([backend.request], "robin", "43", root, breaking):
        assert len(backend.worktrees) == 1
    assert len(backend.recovered) == 1


def test_its_errors_are_those_of_the_published_one(backend, root, place):
    """Who replaced the published class by this one catches RuntimeError."""
    backend("remote", "set-url", "origin", str(place / "gone"))
    nowhere = dataclasses.replace(backend.request, checkout_path=place / "nowhere")
    for request in (backend.request, nowhere):
        with (
            pytest.raises(RuntimeError),
            MultiWorktree([request], "batman", "42", root),
        ):
            pass


def test_git_is_whatever_is_handed_in(root, tmp_path):
    """The seam that the published system has: nothing of git's is run here."""
    asked = []

    def imagined(args, *, cwd, timeout=60):
        words = [word for word in args if not word.startswith("--git-dir")]
        asked.append(words)
        answers = {"rev-parse": ".git", "remote": "origin"}
        if words[0] == "rev-parse" and "refs/heads/" in words[-1]:
            return GitResult(1)
        return GitResult(0, answers.get(words[0], ""))

    request = WorktreeRequest("backend", tmp_path)
    with MultiWorktree([request], "batman", "42", root, imagined, 17) as trees:
        assert trees.specs[0].branch_name == "batman/42-17"
    verbs = {word for words in asked for word in words}
    assert {"fetch", "worktree", "add", "list"} <= verbs
