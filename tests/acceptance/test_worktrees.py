"""Workers whose runs have worktrees: real processes, real git, real remotes, kill -9."""

import json
import signal
from pathlib import Path

import pytest
from tests.servers.git_repository import ALONE, bare_repository, git

from .harness import EITHER_LEASES, Project, alive, pipeline, until
from .terms import AMPLE, time_passes

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


@pytest.mark.parametrize("leases", EITHER_LEASES)
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
        "    opened = [n for n in range(3, 99) if os.path.exists(f'/proc/self/fd/{n}')]\n"
        "    told = [os.getcwd(), *folders, work.branch, opened]\n"
        "    open(os.environ['DIBS_ROOT'] + '/told', 'w').write(json.dumps(told))\n",
    )
    text = pipeline(extra=WORKTREE, ttl="20s").replace("run = '''", "python = '''", 1)
    head, _, tail = text.partition("python = '''")
    project.begin(f"{head}python = '''shop_handlers:implement'''{tail[tail.index(chr(10)) :]}", 1)
    project.drain(env=env)
    here, folder, listed, branch, opened = json.loads((project.root / "told").read_text())
    assert opened == []  # the lock is the warden's alone
    assert here == folder == listed
    assert branch.startswith("dibs/1-")


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_kill_9_of_a_worker_loses_no_work_and_the_next_one_heals(
    project: Project, shop: Path, env: dict[str, str], leases: str
) -> None:
    """In the middle of its handler: something committed, something not, nothing pushed."""
    hold = """
    if [ -e "$DIBS_ROOT/go" ]; then exit 0; fi
    echo one > committed; git add .; git commit --quiet -m one; echo two > uncommitted
    echo $$ > "$DIBS_ROOT/begun"; exec sleep 600
    """
    project.begin(pipeline(leases, one=hold, extra=WORKTREE, ttl=AMPLE), titles=1)
    worker = project.worker("doomed", env=env)
    handler = project.pid("begun")
    worker.signal(signal.SIGKILL)
    assert worker.wait().code == -signal.SIGKILL
    until(lambda: not alive(handler), "the warden ends the handler")
    project.nobody_left()
    assert worktrees(shop) == 1
    (project.root / "go").touch()
    time_passes(project)
    reply = project.drain(env=env)
    assert worktrees(shop) == 0
    [kept] = [commit for commit in recovered(shop) if "uncommitted" in files(shop, commit)]
    assert {"committed", "uncommitted"} <= files(shop, kept)
    assert reply.err.count("is kept as refs/dibs/recovered/") == 1
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
    project.begin(pipeline(one=slow, extra=WORKTREE, ttl=AMPLE), titles=1)
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


# Bundles

BUNDLE = "worktree = 'bundle'"
REPOS = "[repos]\n'' = 'shop'\n"
TOGETHER = """
set -e
python3 -c 'import json, sys
told = json.load(sys.stdin)
print(*(one["issue"] for one in told.get("bundle", [told])))' > told
echo "$(cat told)" >> "$DIBS_ROOT/bundles"
git add told; git commit --quiet -m work; git push --quiet origin "$DIBS_BRANCH"
"""


def bundled(project: Project, leases: str, one: str, bundles: int, *, ttl: str = "20s") -> None:
    project.begin(pipeline(leases, one=one, two="exit 0", extra=BUNDLE, ttl=ttl) + REPOS)
    for number in range(bundles):
        project.add(3, "--label", f"agent:bundle:b{number}")


def whole(bundles: int) -> list[str]:
    return sorted(f"#{3 * n + 1} #{3 * n + 2} #{3 * n + 3}" for n in range(bundles))


@pytest.mark.long
@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_workers_that_race_for_bundles_work_each_once_and_whole(
    project: Project, shop: Path, env: dict[str, str], leases: str
) -> None:
    bundled(project, leases, TOGETHER, 4)
    workers = [project.worker(f"w{n}", "--drain", env=env) for n in range(3)]
    for worker in workers:
        reply = worker.wait(90)
        assert reply.code == 0, reply.err
    assert sorted(project.lines("bundles")) == whole(4)
    assert len(pushed(shop)) == 4
    assert (worktrees(shop), recovered(shop)) == (0, [])
    advanced = project.advances()
    assert all(advanced[(f"#{n}", "one")] == 1 for n in range(1, 13))
    assert project.gained("parked") == {}
    fsck = project.dibs("fsck", "--json")
    assert (fsck.code, fsck.data) == (0, {"storage": [], "flaws": []})


@pytest.mark.long
def test_kill_9_in_the_middle_of_a_bundle_loses_no_work_and_the_next_worker_heals(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    hold = f"""
    if [ ! -e "$DIBS_ROOT/go" ]; then
      echo two > uncommitted; echo $$ > "$DIBS_ROOT/begun"; exec sleep 600
    fi
    {TOGETHER}
    """
    bundled(project, "auto", hold, 1, ttl=AMPLE)
    worker = project.worker("doomed", env=env)
    project.pid("begun")
    why = project.dibs("why", "2", "--json")
    assert [reason["code"] for reason in why.data["reasons"]] == ["HELD"]
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.nobody_left()
    (project.root / "go").touch()
    time_passes(project)
    project.drain(env=env)
    assert project.lines("bundles") == whole(1)
    assert worktrees(shop) == 0
    assert any("uncommitted" in files(shop, commit) for commit in recovered(shop))
    done = {"stage:done", "agent:bundle:b0"}
    assert [project.labels(n) for n in (1, 2, 3)] == [done] * 3, project.events()


@pytest.mark.long
@pytest.mark.parametrize("step", ["claim.painted", "finish.decided", "finish.painted"])
def test_kill_9_between_two_issues_of_a_bundle_is_healed(
    project: Project, shop: Path, env: dict[str, str], step: str
) -> None:
    """Each claim and each ending stands by itself: what was not ended is worked again."""
    bundled(project, "auto", TOGETHER, 1, ttl=AMPLE)
    doomed = project.worker("doomed", env={**env, "DIBS_FAILPOINT": step})
    assert doomed.wait().code == -signal.SIGKILL
    project.nobody_left()
    time_passes(project)
    project.drain(env=env)
    again = {"claim.painted": whole(1), "finish.decided": [*whole(1), "#2 #3"]}
    assert project.lines("bundles") == again.get(step, [*whole(1), "#2 #3"])
    assert worktrees(shop) == 0
    advanced = project.advances()
    assert [advanced[(f"#{n}", "one")] for n in (1, 2, 3)] == [1, 1, 1]


def test_a_bundle_waits_for_the_one_that_a_person_paused_and_why_says_so(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    bundled(project, "auto", TOGETHER, 1)
    project.dibs("pause", "2", "--reason", "not yet")
    assert project.dibs("work", "--drain", env=env).code == 3
    why = project.dibs("why", "3", "--json")
    assert [reason["code"] for reason in why.data["reasons"]] == ["BUNDLE_WAITS"]
    assert project.cards(1) == project.cards(3) == []
    project.dibs("resume", "2")
    project.drain(env=env)
    assert project.lines("bundles") == whole(1)
    assert len(pushed(shop)) == 1


def test_repositories_that_nobody_named_are_found_out_before_anything_is_claimed(
    project: Project, env: dict[str, str]
) -> None:
    project.begin(pipeline(one="exit 0", extra=BUNDLE) + "[repos]\n'acme/shop' = 'shop'\n")
    project.add(1, "--label", "agent:bundle:b0")
    project.dibs("work", "--drain", env=env).told(1, "[repos] does not say where")
    assert project.cards(1) == []


def test_a_bundles_handler_may_push_what_closes_any_of_its_issues(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    """The hook is in the clone, and the backlog is not: the run knows where it is."""
    close = """
    git commit --quiet --allow-empty -m "Closes #1, closes #2, closes #3"
    git push --quiet origin "$DIBS_BRANCH" 2> "$DIBS_ROOT/said"
    """
    bundled(project, "auto", close, 1)
    assert project.dibs("hook", "install", cwd=shop).code == 0
    project.drain(env=env)
    said = (project.root / "said").read_text()
    assert said == "dibs: checked #1, #2, #3: nobody else is at work\n"
    assert len(pushed(shop)) == 1


def test_a_run_may_not_push_what_closes_an_issue_of_another(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    close = """
    git commit --quiet --allow-empty -m "Closes #1, closes #2"
    git push --quiet origin "$DIBS_BRANCH" 2> "$DIBS_ROOT/said"
    """
    project.begin(pipeline(one=close, extra=WORKTREE, ttl="20s"), titles=2)
    assert project.dibs("hook", "install", cwd=shop).code == 0
    project.dibs("claim", "2", "--as", "ann")
    project.dibs("work", "--once", "--stage", "one", env=env)
    assert "#2 HELD" in (project.root / "said").read_text()
    assert pushed(shop) == set()


def test_a_worker_that_a_git_hook_started_works_in_its_own_worktrees(
    project: Project, shop: Path, env: dict[str, str]
) -> None:
    """Git tells hooks and aliases where they are, and every git command under them obeys."""
    project.begin(pipeline(one=PUSH, extra=WORKTREE, ttl="20s"), titles=1)
    before = git(shop, "rev-parse", "HEAD")
    project.drain(env={**env, "GIT_DIR": str(shop / ".git"), "GIT_PREFIX": ""})
    assert git(shop, "rev-parse", "HEAD") == before
    assert git(shop, "status", "--porcelain") == ""
    assert len(pushed(shop)) == 1
