"""Workers whose runs have worktrees: real processes, real git, real remotes, kill -9."""

import json
import signal
from pathlib import Path

import pytest
from tests.servers.git_repository import ALONE, bare_repository, git

from .harness import LEASES, Project, alive, pipeline, until

PUSH = """
set -e
pwd > where; echo work > "$DIBS_RUN"; git add .; git commit --quiet -m "$DIBS_ISSUE"
git push --quiet origin "$DIBS_BRANCH"
echo "$DIBS_ISSUE $DIBS_BRANCH $DIBS_WORKTREE $DIBS_ROOT $PWD" >> "$DIBS_ROOT/ledger"
"""
WORKTREE = "worktree = 'shop'"


@pytest.fixture
def env(project: Project) -> dict[str, str]:
    return {**ALONE, "DIBS_STATE": str(project.root.parent / "state")}


@pytest.fixture
def shop(project: Project) -> Path:
    """A clone beside the backlog, and the remote that it pushes to."""
    return clone(project, "shop")


def clone(project: Project, name: str) -> Path:
    remote = bare_repository(project.root.parent / f"{name}.git")
    git(project.root, "clone", "--quiet", str(remote), name)
    return project.root / name


def pushed(repo: Path) -> set[str]:
    remote = repo.parent.parent / f"{repo.name}.git"
    found = git(remote, "for-each-ref", "--format=%(refname:short)", "refs/heads")
    return set(found.splitlines()) - {"main"}


def worktrees(repo: Path) -> int:
    return git(repo, "worktree", "list", "--porcelain").count("worktree ") - 1


def recovered(repo: Path) -> list[str]:
    return git(repo, "for-each-ref", "--format=%(objectname)", "refs/dibs/recovered").splitlines()


def files(repo: Path, commit: str) -> set[str]:
    return set(git(repo, "ls-tree", "--name-only", commit).splitlines())


@pytest.mark.parametrize("leases", LEASES)
def test_every_run_works_in_a_worktree_of_its_own(
    project: Project, shop: Path, env: dict[str, str], leases: str
) -> None:
    project.begin(pipeline(leases, one=PUSH, extra=WORKTREE, ttl="20s", jobs=3), titles=5)
    project.drain(env=env)
    rows = [line.split() for line in project.lines() if "dibs/" in line]
    assert {issue for issue, *_ in rows} == {f"#{n}" for n in range(1, 6)}
    assert {branch for _, branch, *_ in rows} == pushed(shop)
    assert len({place for _, _, place, *_ in rows}) == 5
    assert all(place == here for _, _, place, _, here in rows)
    assert {root for *_, root, _ in rows} == {str(project.root)}
    assert (worktrees(shop), recovered(shop)) == (0, [])
    assert git(shop, "branch", "--format=%(refname:short)") == "main"
    assert project.advances()[("#1", "one")] == 1


def test_a_python_handler_is_found_beside_the_configuration_and_starts_in_the_worktree(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    project.script(
        "shop_handlers.py",
        "import json, os\n"
        "def implement(work):\n"
        "    folders = [str(folder) for folder in (work.folder, *work.folders.values())]\n"
        "    told = [os.getcwd(), *folders, work.branch]\n"
        "    open(os.environ['DIBS_ROOT'] + '/told', 'w').write(json.dumps(told))\n",
    )
    text = pipeline(extra=WORKTREE, ttl="20s").replace("run = '''", "python = '''", 1)
    head, _, tail = text.partition("python = '''")
    project.begin(f"{head}python = '''shop_handlers:implement'''{tail[tail.index(chr(10)) :]}", 1)
    project.drain(env=env)
    here, folder, listed, branch = json.loads((project.root / "told").read_text())
    assert here == folder == listed
    assert branch.startswith("dibs/1-")


@pytest.mark.parametrize("leases", LEASES)
def test_kill_9_of_a_worker_loses_no_work_and_the_next_one_heals(
    project: Project, shop: Path, env: dict[str, str], leases: str
) -> None:
    """In the middle of its handler: something committed, something not, nothing pushed."""
    hold = """
    if [ -e "$DIBS_ROOT/go" ]; then exit 0; fi
    echo one > committed; git add .; git commit --quiet -m one; echo two > uncommitted
    echo $$ > "$DIBS_ROOT/begun"; exec sleep 600
    """
    project.begin(pipeline(leases, one=hold, extra=WORKTREE, ttl="3s"), titles=1)
    worker = project.worker("doomed", env=env)
    handler = project.pid("begun")
    worker.signal(signal.SIGKILL)
    assert worker.wait().code == -signal.SIGKILL
    until(lambda: not alive(handler), "the warden ends the handler")
    assert worktrees(shop) == 1
    (project.root / "go").touch()
    reply = project.drain(env=env)
    assert worktrees(shop) == 0
    [kept] = [commit for commit in recovered(shop) if "uncommitted" in files(shop, commit)]
    assert {"committed", "uncommitted"} <= files(shop, kept)
    assert "is kept as refs/dibs/recovered/" in reply.err
    assert project.advances()[("#1", "one")] == 1
    assert project.labels(1) == {"stage:done"}


def test_a_handler_that_takes_its_time_to_end_still_has_its_worktree(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    """Its worker is dead and the next one is there: what it writes until its end is kept, too."""
    slow = """
    if [ -e "$DIBS_ROOT/go" ]; then exit 0; fi
    trap 'touch "$DIBS_ROOT/asked"; sleep 1; echo late > late; exit 1' TERM
    touch "$DIBS_ROOT/begun"; while :; do sleep 0.05; done
    """
    project.begin(pipeline(one=slow, extra=WORKTREE, ttl="20s"), titles=1)
    worker = project.worker("doomed", env=env)
    project.appears("begun")
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.appears("asked")
    (project.root / "go").touch()
    # It clears up as it starts, and finds the place in use; later, it finds it free.
    project.dibs("work", "--once", "--stage", "one", env=env)
    project.nobody_left()
    project.dibs("work", "--once", "--stage", "one", env=env)
    assert worktrees(shop) == 0
    assert any("late" in files(shop, commit) for commit in recovered(shop))


def test_a_repository_that_is_not_there_costs_no_issue_anything(
    project: Project, env: dict[str, str]
) -> None:
    project.begin(pipeline(one="exit 0", extra="worktree = 'nowhere'"), titles=1)
    project.dibs("work", "--drain", env=env).told(1, "no worktree can be made", "nowhere")
    assert (project.failed_attempts(), project.labels(1)) == (0, {"stage:one"})


def test_a_worker_that_is_told_to_leave_clears_its_worktree(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    hold = 'echo two > uncommitted; touch "$DIBS_ROOT/begun"; exec sleep 600'
    project.begin(pipeline(one=hold, extra=WORKTREE, ttl="20s"), titles=1)
    worker = project.worker("leaving", "--grace", "100ms", env=env)
    project.appears("begun")
    worker.signal(signal.SIGTERM)
    assert worker.wait().code == 0
    assert worktrees(shop) == 0
    [kept] = recovered(shop)
    assert "uncommitted" in files(shop, kept)
    [event] = project.events("work_kept")
    assert kept[:12] in event["what"]
    assert project.labels(1) == {"stage:one"}
