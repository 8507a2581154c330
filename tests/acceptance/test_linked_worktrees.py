"""One repository, several worktrees, one backlog: real git, real processes."""

import json
import signal
import sys
from pathlib import Path

import pytest
from tests.servers.git_repository import ALONE, bare_repository, git

from .harness import Child, Project, pipeline
from .terms import AMPLE, time_passes

# What an agent in a worktree does by hand; `$dibs` is the program.
AGENT = """
set -e
dibs="$XDG_PYTHON -m dibs"
$dibs show "$DIBS_ISSUE" --json > "$XDG_OUT/shown.$DIBS_RUN"
$dibs add "follow-up of $DIBS_ISSUE" --stage two
printf '%s\\n' "$DIBS_CONFIG" >> "$XDG_OUT/configurations"
"""


@pytest.fixture
def env(project: Project) -> dict[str, str]:
    place = project.root.parent
    return {
        **ALONE,
        "DIBS_STATE": str(place / "state"),
        "XDG_OUT": str(place),
        "XDG_PYTHON": sys.executable,
    }


def repository(where: Path) -> None:
    git(where, "init", "--quiet", "--initial-branch=main")
    git(where, "commit", "--quiet", "--allow-empty", "-m", "first")


def linked(project: Project, name: str) -> Path:
    where = project.root.parent / name
    git(project.root, "worktree", "add", "--quiet", "-b", name, str(where))
    return where


def titles(project: Project, folder: Path | None = None) -> list[str]:
    listed = project.dibs("list", "--json", cwd=folder).data
    return [row["title"] for row in listed]


def test_worktrees_share_the_backlog_and_leave_none_of_their_own(project: Project) -> None:
    repository(project.root)
    project.begin(pipeline(ttl="60s"))
    assert project.dibs("init").code == 0
    git(project.root, "add", "--all")
    assert git(project.root, "diff", "--cached", "--name-only") == ".gitignore\ndibs.toml"
    git(project.root, "commit", "--quiet", "-m", "dibs")
    first, second = linked(project, "first"), linked(project, "second")
    (second / "deep").mkdir()
    assert project.dibs("add", "from the first", cwd=first).code == 0
    claimed = project.dibs("claim", "--next", "--json", cwd=second / "deep").data
    assert claimed["issue"] == "#1"
    assert project.dibs("claim", "1", cwd=first).code == 4
    assert (
        titles(project) == titles(project, first) == titles(project, second) == ["from the first"]
    )
    assert not list(first.glob(".dibs")) + list(second.glob("**/.dibs"))
    assert git(first, "status", "--porcelain") == ""


def test_init_in_a_worktree_makes_the_main_working_trees_backlog(project: Project) -> None:
    repository(project.root)
    tree = linked(project, "tree")
    said = project.dibs("init", "--dry-run", cwd=tree)
    assert f"would write {project.root / 'dibs.toml'}" in said.out
    assert not (project.root / "dibs.toml").exists()
    said = project.dibs("init", cwd=tree)
    assert f"wrote {project.root / 'dibs.toml'}" in said.out
    assert f"prepared sqlite:.dibs/backlog.db in {project.root}" in said.out
    assert f"added .dibs/ to {project.root / '.gitignore'}" in said.out
    assert git(tree, "status", "--porcelain") == ""
    before = (project.root / "dibs.toml").read_bytes()
    assert project.dibs("init", "--json", cwd=tree).data["wrote"] is False
    assert (project.root / "dibs.toml").read_bytes() == before
    assert (titles(project), titles(project, tree)) == ([], [])


def test_a_branch_that_adds_the_file_uses_it_on_the_one_backlog(project: Project) -> None:
    repository(project.root)
    tree = linked(project, "tree")
    (tree / "dibs.toml").write_text(pipeline())
    assert project.dibs("init", "--json", cwd=tree).data["file"] == str(tree / "dibs.toml")
    assert project.dibs("add", "tried out", cwd=tree).code == 0
    assert not (tree / ".dibs").exists()
    assert [row["stage"] for row in project.dibs("list", "--json", cwd=tree).data] == ["one"]
    git(tree, "add", "dibs.toml")
    git(tree, "commit", "--quiet", "-m", "dibs")
    git(project.root, "merge", "--quiet", "tree")
    assert titles(project) == ["tried out"]


def test_a_worker_in_a_worktree_runs_its_handlers_there(
    project: Project, env: dict[str, str]
) -> None:
    repository(project.root)
    project.begin(
        pipeline(one='pwd > "$XDG_OUT/where"; echo "$DIBS_CONFIG" >> "$XDG_OUT/where"'), titles=1
    )
    tree = linked(project, "tree")
    done = project.dibs("work", "--once", "--stage", "one", cwd=tree, env=env, alone=True)
    assert done.code == 0, done.err
    where = (project.root.parent / "where").read_text().splitlines()
    assert where == [str(tree), str(project.root / "dibs.toml")]
    assert (project.root / ".dibs" / "runs").is_dir()


@pytest.mark.parametrize("config", ["found", "--config", "DIBS_CONFIG"])
def test_an_agent_in_a_worktree_of_its_own_acts_on_the_real_backlog(
    project: Project, env: dict[str, str], config: str
) -> None:
    """Its worktree is of the backlog's own repository, and has the file under version control."""
    repository(project.root)
    text = pipeline(one=AGENT, extra="worktree = '.'\nworktree_base = 'main'", ttl="20s")
    project.begin(text, titles=2)
    git(project.root, "add", "dibs.toml")
    git(project.root, "commit", "--quiet", "-m", "dibs")
    arguments = ("--config", "dibs.toml") if config == "--config" else ()
    named = {"DIBS_CONFIG": "dibs.toml"} if config == "DIBS_CONFIG" else {}
    words = (*arguments, "work", "--drain", "--stage", "one")
    done = project.dibs(*words, env={**env, **named}, alone=True)
    assert done.code == 0, done.err
    assert sorted(titles(project))[:2] == ["follow-up of #1", "follow-up of #2"]
    shown = [json.loads(path.read_text()) for path in project.root.parent.glob("shown.*")]
    assert sorted(answer["data"]["issue"] for answer in shown) == ["#1", "#2"]
    told = (project.root.parent / "configurations").read_text().split()
    assert set(told) == {str(project.root / "dibs.toml")}


def test_an_agent_in_a_worktree_of_another_repository_acts_on_the_real_backlog(
    project: Project, env: dict[str, str]
) -> None:
    """The other repository even has a backlog of its own."""
    remote = bare_repository(project.root.parent / "shop.git")
    git(project.root, "clone", "--quiet", str(remote), "shop")
    shop = project.root / "shop"
    assert project.dibs("add", "the shop's own", cwd=shop).code == 0
    assert project.dibs("init", cwd=shop).code == 0
    project.begin(pipeline(one=AGENT, extra="worktree = 'shop'", ttl="20s"), titles=1)
    done = project.dibs("work", "--drain", "--stage", "one", env=env, alone=True)
    assert done.code == 0, done.err
    assert "follow-up of #1" in titles(project)
    assert titles(project, shop) == ["the shop's own"]


def test_a_handler_without_a_file_is_given_the_folder(
    project: Project, env: dict[str, str]
) -> None:
    assert project.dibs("add", "one").code == 0
    run = 'cd /; $XDG_PYTHON -m dibs add "from the root"; '
    run += 'echo "$DIBS_CONFIG" > "$XDG_OUT/configurations"'
    done = project.dibs("work", "--once", "--stage", "ready", "--run", run, env=env, alone=True)
    assert done.code == 0, done.err
    assert "from the root" in titles(project)
    told = (project.root.parent / "configurations").read_text()
    assert told == f"{project.root}\n"


def test_a_folder_may_be_named_instead_of_a_file(project: Project, tmp_path: Path) -> None:
    project.begin(pipeline(), titles=1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    named = project.dibs("--config", str(project.root), "list", "--json", cwd=elsewhere)
    assert [row["title"] for row in named.data] == ["issue 1"]
    env = {"DIBS_CONFIG": str(project.root / ".dibs")}
    assert project.dibs("list", "--json", cwd=elsewhere, env=env).data == named.data
    assert list(elsewhere.iterdir()) == []


def test_a_python_handler_opens_the_backlog_of_its_run(
    project: Project, env: dict[str, str]
) -> None:
    text = (
        "import os, dibs\ndef step(work):\n    os.chdir('/')\n    dibs.open().add('from Python')\n"
    )
    project.script("steps.py", text)
    project.configure("[[stage]]\nname = 'ready'\npython = 'steps:step'\n")
    assert project.dibs("add", "one").code == 0
    assert project.dibs("work", "--once", env=env, alone=True).code == 0
    assert "from Python" in titles(project)


def test_the_doctor_finds_a_backlog_that_a_worktree_no_longer_uses(project: Project) -> None:
    repository(project.root)
    project.begin(pipeline(), titles=1)
    tree = linked(project, "tree")
    said = project.dibs("doctor", cwd=tree)
    assert "is not used" not in said.out
    assert project.dibs("--config", ".", "add", "its own", cwd=tree).code == 0
    assert titles(project, tree) == ["issue 1"]
    said = project.dibs("doctor", cwd=tree)
    assert (said.code, f"{tree / '.dibs'} is not used" in said.out) == (0, True)
    own = project.dibs("--config", ".", "list", "--json", cwd=tree)
    assert [row["title"] for row in own.data] == ["its own"]


# A backlog that is not there


READING = [
    ("list",),
    ("ready",),
    ("show", "1"),
    ("status",),
    ("why", "1"),
    ("claim", "1"),
    ("claim", "--next"),
    ("take", "1"),
    ("approve", "1"),
    ("pause", "1", "--reason", "x"),
    ("sweep",),
    ("fsck",),
    ("leases", "show"),
    ("work", "--drain", "--stage", "ready", "--run", "true"),
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_backlog_that_was_never_made_is_an_error_and_not_an_empty_list(
    project: Project, words: tuple[str, ...]
) -> None:
    reply = project.dibs(*words)
    reply.told(1, str(project.file), "no backlog")
    assert "dibs init or dibs add" in reply.err
    assert project.dibs(*words, "--json").error["code"] == "NO_BACKLOG"
    assert list(project.root.iterdir()) == []


def test_a_path_that_leads_nowhere_is_named(project: Project) -> None:
    project.configure("tracker = 'sqlite:nowhere/at/all.db'\n")
    project.dibs("list").told(1, str(project.root / "nowhere/at/all.db"))
    assert project.dibs("add", "--dry-run", "one").code == 0
    assert not (project.root / "nowhere").exists()
    assert project.dibs("add", "one").code == 0
    assert titles(project) == ["one"]


def test_a_deleted_backlog_is_an_error_until_one_is_made(project: Project) -> None:
    assert project.dibs("init").code == 0
    assert titles(project) == []
    project.file.unlink()
    project.dibs("list").told(1, str(project.file))
    assert not project.file.exists()
    assert project.dibs("init").code == 0
    assert titles(project) == []


# Agents that drive themselves, one in each worktree

DRIVE = """
import json, os, signal, subprocess, sys
def dibs(*words):
    done = subprocess.run([sys.executable, "-m", "dibs", *words, "--json"], capture_output=True)
    return done.returncode, json.loads(done.stdout or b"{}").get("data")
name, dies_at = sys.argv[1], int(sys.argv[2])
claims = 0
while True:
    code, claim = dibs("claim", "--next", "--stage", "one", "--as", name)
    if code == 4:
        continue
    if code:
        sys.exit(0 if code == 3 else code)
    claims += 1
    if claims == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    dibs("add", "found by " + claim["issue"], "--stage", "two")
    code, _ = dibs("release", claim["issue"], "--run", claim["run"], "--outcome", "advanced")
    if code:
        sys.exit(code)
"""


def test_self_driving_agents_in_five_worktrees_work_every_issue_once(project: Project) -> None:
    repository(project.root)
    project.begin(pipeline(ttl=AMPLE), titles=10)
    script = project.script("drive.py", DRIVE)
    trees = [linked(project, name) for name in "abcde"]

    def agent(tree: Path, dies_at: int = 0) -> Child:
        words = (sys.executable, str(script), tree.name, str(dies_at))
        return Child(tree.name, words, tree, project.environment())

    doomed = [agent(tree, dies_at=2) for tree in trees[:4]]
    assert [child.wait(80).code for child in doomed] == [-signal.SIGKILL] * 4
    assert agent(trees[4]).wait(80).code == 0
    assert sum(project.advances().values()) == 6
    time_passes(project)
    assert agent(trees[0]).wait(80).code == 0, "what the dead held is offered again"
    assert project.advances() == {(f"#{number}", "one"): 1 for number in range(1, 11)}
    found = [title for title in titles(project) if title.startswith("found by")]
    assert sorted(found) == sorted(f"found by #{number}" for number in range(1, 11))
    assert [place for tree in trees for place in tree.glob("**/.dibs")] == []
