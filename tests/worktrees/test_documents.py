"""The guide's examples, run as they stand: real clones, a GitHub of our own."""

import json
import os
import subprocess
import sys

import pytest
from tests.architecture.pages import DOCS, blocks
from tests.servers.git_repository import ALONE

import dibs.worktrees
from dibs_lab.fakehub import FakeHub, Limits, Permission

from .places import clone, commit

GUIDE = DOCS / "guides" / "worktrees-and-chains.md"
SHOWN = {block.words[0]: block.text for block in blocks(GUIDE) if block.words}


@pytest.fixture
def run(place):
    def run(name, **env):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", SHOWN[name]],
            cwd=place,
            env={**os.environ, **ALONE, "ALFRED_HOME": str(place / "alfred"), **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_the_working_trees(run, backend, frontend, place):
    first, second = run("trees")
    assert first.startswith("backend batman/42-")
    assert str(place / "alfred" / "worktrees" / "batman-frontend-42-") in second
    assert backend.worktrees == frontend.worktrees == []
    assert run("recover") == []


def test_the_chain(run, place):
    for name in ("backend", "frontend"):
        one = clone(place, name)
        one("checkout", "--quiet", "-b", "batman/42")
        commit(one.path, "done")
    with FakeHub(limits=Limits.off()) as hub:
        for name in ("acme/backend", "acme/frontend"):
            hub.repository(name)
        may = {"acme/backend": Permission.WRITE, "acme/frontend": Permission.WRITE}
        env = {"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": hub.user("worker", may)}
        said = run("chain", **env)
        assert [line.split("(")[0] for line in said[:7]] == [
            *("Push", "Open", "Refresh", "Push", "Open", "Refresh", "Refresh"),
        ]
        assert said[7].endswith("/acme/backend/pull/1")
        assert said[8].endswith("/acme/frontend/pull/1")
        assert len(said) == 9
        assert run("chain", **env) == said
    state = json.loads((place / "alfred/state/pr-chains/42.json").read_text())
    assert set(state["prs"]) == {"backend", "frontend"}


def test_every_block_of_the_guide_that_has_a_name_is_run():
    assert set(SHOWN) == {"trees", "recover", "chain"}


def test_the_public_names_are_there():
    for name in dibs.worktrees.__all__:
        assert getattr(dibs.worktrees, name) is not None
