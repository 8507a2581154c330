"""A bundle over two repositories of a fake GitHub: real workers, real worktrees, real pushes."""

import json
from pathlib import Path

import pytest
from tests.servers.git_repository import ALONE, bare_repository, git

from dibs_lab.fakehub import Permission
from dibs_lab.fakehub.seeding import seed

from .projects import FLEET, HubProject, project_on_a_hub

pytestmark = pytest.mark.long

BACKEND, FRONTEND = "acme/backend", "acme/frontend"
HANDLER = """
set -e
cat > "$DIBS_ROOT/told.$DIBS_RUN"
echo "$DIBS_RUN $DIBS_BRANCH $DIBS_WORKTREES" >> "$DIBS_ROOT/ledger"
python3 -c 'import json, os
print(*json.loads(os.environ["DIBS_WORKTREES"]).values(), sep="\\n")' | while read -r tree; do
  cd "$tree"; echo work > work; git add .; git commit --quiet -m work
  git push --quiet origin "$DIBS_BRANCH"
done
"""
SETTINGS = f"""
tracker = "github:{BACKEND},{FRONTEND}"
preset = "none"
ttl = "15s"
settle = "50ms"
[github]
pace = false
[worker]
poll = "500ms"
[repos]
"Acme/Backend" = "backend"
"{FRONTEND}" = "frontend"
[[stage]]
name = "ready"
next = "review"
worktree = "bundle"
run = '''{HANDLER}'''
[[stage]]
name = "review"
"""


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        for name in (BACKEND, FRONTEND):
            made.hub.repository(name)
            made.hub.state.grant(name, FLEET, Permission.WRITE)
        made.also = dict(ALONE)
        made.configure(SETTINGS)
        assert made.dibs("init").code == 0
        yield made


def clone(project: HubProject, name: str) -> Path:
    remote = bare_repository(project.root.parent / f"{name}.git")
    git(project.root, "clone", "--quiet", str(remote), name)
    return remote


def add(project: HubProject, repository: str, slug: str) -> None:
    issue = {"title": slug, "labels": ["stage:ready", f"agent:bundle:{slug}"]}
    given = {"repositories": [{"full_name": repository, "issues": [issue]}]}
    seed(project.hub.state, given)


def pushed(remote: Path) -> set[str]:
    found = git(remote, "for-each-ref", "--format=%(refname:short)", "refs/heads")
    return set(found.splitlines()) - {"main"}


def labels(project: HubProject, repository: str) -> list[set[str]]:
    view = project.hub.state.primary()
    issues = view.issues(project.hub.state.named(repository).id)
    found = [{label.name for label in view.labels_on(one)} for one in issues]
    return [one for one in found if "dibs:control" not in one]


def test_workers_race_for_bundles_over_two_repositories(project):
    remotes = [clone(project, name) for name in ("backend", "frontend")]
    for slug in ("euro", "tax", "search"):
        add(project, FRONTEND, slug)
        add(project, BACKEND, slug)
    workers = [project.start(f"w{n}", "work", "--drain", "--name", f"w{n}") for n in range(2)]
    for worker in workers:
        assert worker.wait(90).code == 0, worker.err
    rows = [line.split(" ", 2) for line in project.lines()]
    assert len(rows) == 3
    for run, branch, trees in rows:
        assert list(json.loads(trees)) == [BACKEND, FRONTEND]
        told = json.loads((project.root / f"told.{run}").read_text())
        assert len({one["title"] for one in told["bundle"]}) == 1
        assert [one["issue"].split("#")[0] for one in told["bundle"]] == [BACKEND, FRONTEND]
        assert all(branch in pushed(remote) for remote in remotes)
    for repository in (BACKEND, FRONTEND):
        found = labels(project, repository)
        assert len(found) == 3
        assert all("stage:review" in one and "claimed" not in one for one in found), found
    for name in ("backend", "frontend"):
        listed = git(project.root / name, "worktree", "list", "--porcelain")
        assert listed.count("worktree ") == 1


def test_a_large_bundle_that_waits_costs_few_requests(project):
    """Each request is a part of the fleet's budget, and each of its workers looks."""
    for name in ("backend", "frontend"):
        clone(project, name)
    for _ in range(20):
        add(project, BACKEND, "euro")
    paused = {"title": "not yet", "labels": ["stage:ready", "agent:bundle:euro", "paused"]}
    given = {"repositories": [{"full_name": BACKEND, "issues": [paused]}]}
    seed(project.hub.state, given)
    with project.counted() as asked:
        assert project.start("w1", "work", "--drain", "--name", "w1").wait(60).code == 3
    assert sum(asked.values()) < 20, asked
