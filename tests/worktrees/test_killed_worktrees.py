"""kill -9 at every step, and instead of every command of git: nothing lost, nothing left behind.

Real processes, real git. The first repository has work that is nowhere else, the others' is pushed.
"""

import os
import signal
from collections import Counter

import pytest
from tests.acceptance.harness import until

from dibs.worktrees import MultiWorktree, WorktreeStep, recover

from .places import child, write

PASSED = Counter(
    {
        WorktreeStep.RECORDED: 1,
        WorktreeStep.ADDED: 2,
        WorktreeStep.KEPT: 2,
        WorktreeStep.REMOVED: 2,
        WorktreeStep.BRANCH_DROPPED: 2,
        WorktreeStep.FORGOTTEN: 1,
    }
)
SHARDS = 4
CASES = [f"step:{step.value}:{nth}" for step in WorktreeStep for nth in range(1, PASSED[step] + 1)]


@pytest.fixture(params=["", "yes"], ids=["shared", "apart"])
def apart(request, monkeypatch):
    """Whether the working trees of the processes have repositories of their own."""
    monkeypatch.setenv("APART", request.param)
    return request.param


def died(where, root, *clones):
    process = child("doomed_worktrees", str(root), where, *(str(one.path) for one in clones))
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, (process.returncode, out, err)
    return "worked" in out


def nothing_is_left(root, *clones):
    for one in clones:
        assert one.worktrees == []
    assert {one.name for one in root.glob("*")} <= {".dibs-sessions"}
    assert {one.name for one in (root / ".dibs-sessions").glob("*")} <= {"turn.lock"}


def kept_once(worked, backend):
    if not worked:
        assert backend.recovered == {}
        return
    [found] = [
        commit
        for commit in backend.recovered.values()
        if "not committed" in backend("ls-tree", "--name-only", commit).split("\n")
    ]
    assert backend.show(found, "committed") == "work"
    assert backend.branches == {"main", "batman/42-17"}


def nothing_is_lost(worked, backend, frontend):
    kept_once(worked, backend)
    assert frontend.recovered == {}
    assert frontend.branches == {"main"}


def test_every_step_is_in_the_table():
    assert set(PASSED) == set(WorktreeStep)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    "where", [*(pytest.param(w, marks=pytest.mark.long) for w in CASES), "body"]
)
def test_killed_there_the_next_one_clears_and_keeps(where, root, backend, frontend):
    worked = died(where, root, backend, frontend)
    with MultiWorktree([backend.request, frontend.request], "robin", "43", root):
        assert len(backend.worktrees) == 1
    nothing_is_left(root, backend, frontend)
    nothing_is_lost(worked, backend, frontend)


@pytest.mark.long
@pytest.mark.parametrize("what", ["call", "file"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_killed_instead_of_every_command_of_git_and_every_change(shard, root, backend, what, apart):
    """One after the other in the same repository, each with a process and work of its own."""
    for nth in range(shard + 1, 400, SHARDS):
        process = child("doomed_worktrees", str(root), f"{what}:{nth}", str(backend.path))
        out, err = process.communicate(timeout=60)
        if process.returncode == 0:
            least = {"call": 20, "file": 40 if apart else 1}
            assert nth > least[what]
            return
        assert process.returncode == -signal.SIGKILL, err
        recover(root)
        nothing_is_left(root, backend)
        kept_once("worked" in out, backend)
        for ref in backend.recovered:
            backend("update-ref", "-d", ref)
        if "worked" in out:
            backend("branch", "--quiet", "-D", "batman/42-17")
    pytest.fail("it never got through")


@pytest.mark.long
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("calls", [(1, 2, 3), (8, 4), (12, 12), (15, 10, 5), (20, 18)])
def test_crash_upon_crash_while_clearing_keeps_the_work_once(root, backend, frontend, calls):
    assert died("body", root, backend, frontend)
    for nth in calls:
        died(f"call:{nth}", root)
    recover(root)
    nothing_is_left(root, backend, frontend)
    nothing_is_lost(True, backend, frontend)


def test_a_git_that_outlives_its_process_is_waited_for(root, backend, place):
    """Killed while git makes a working tree: until that git ends, the session is not over."""
    hook = f'#!/bin/sh\ntouch "{place}/begun"\nread go < "{place}/go"\ntouch "{place}/ended"\n'
    write(backend.path / ".git/hooks", "post-checkout", hook).chmod(0o755)
    os.mkfifo(place / "go")
    process = child("doomed_worktrees_alone", str(root), str(backend.path))
    until((place / "begun").exists, "git runs the hook")
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.communicate()
    assert recover(root).removed == ()
    assert len(backend.worktrees) == 1
    with (place / "go").open("w") as go:
        go.write("go\n")
    until(lambda: recover(root).removed, "git has ended")
    assert (place / "ended").exists()
    nothing_is_left(root, backend)


def test_a_working_tree_that_a_killed_git_left_half_made_is_cleared(root, backend):
    """Git locks one with a word of its own while it makes it."""
    assert not died("step:worktrees.added:1", root, backend)
    [admin] = (backend.path / ".git/worktrees").iterdir()
    (admin / "locked").write_text("initializing")
    (admin / "index").unlink()
    assert len(recover(root).removed) == 1
    nothing_is_left(root, backend)
    assert backend.recovered == {}


def test_a_session_that_cannot_be_read_is_said_to_be_and_is_in_nobodys_way(root, backend):
    write(root / ".dibs-sessions", "x.json", "{")
    write(root / ".dibs-sessions", "y.part", "")
    with MultiWorktree([backend.request], "batman", "42", root):
        assert len(backend.worktrees) == 1
    [left] = recover(root).left
    assert left.worktree_path == root / ".dibs-sessions" / "x.json"
    assert not (root / ".dibs-sessions" / "y.part").exists()


def test_a_repository_that_is_gone_leaves_what_it_cannot_keep(root, backend, place):
    died("body", root, backend)
    backend.path.rename(place / "moved away")
    [left] = recover(root).left
    assert "gone" in left.why
    assert (left.worktree_path / "not committed").exists()
    (place / "moved away").rename(backend.path)
    assert len(recover(root).kept) == 1
    nothing_is_left(root, backend)
