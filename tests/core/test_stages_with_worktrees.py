"""Stages whose runs have worktrees: how a file says so, and what is refused."""

from pathlib import Path

import pytest

from dibs.core.errors import BadConfiguration
from dibs.core.pipeline import BundleWorktree, NoWorktree, OneWorktree
from dibs.settings import load as config

ROOT = Path("/project")
REPOS = {"acme/backend": "../backend", "acme/frontend": "/src/frontend"}


def settings(repos=None, **stage):
    document = {"stage": [{"name": "ready", **stage}], "repos": repos or {}}
    return config.from_mapping(document, source="dibs.toml", root=ROOT)


def worktree(repos=None, **stage):
    return settings(repos, **stage).pipeline.stage("ready").worktree


def test_a_stage_has_none_unless_it_says_so():
    assert worktree() == worktree(worktree="none") == worktree(worktree="") == NoWorktree()


def test_a_path_is_a_repository():
    assert worktree(worktree=".") == OneWorktree(".")
    assert worktree(worktree="./bundle") == OneWorktree("./bundle")
    assert worktree(worktree="../shop", worktree_base="v2") == OneWorktree("../shop", "v2")


def test_a_bundle_has_its_repositories_named():
    told = settings(REPOS, worktree="bundle", worktree_base="origin/v2")
    assert told.pipeline.stage("ready").worktree == BundleWorktree("origin/v2")
    assert told.repos == {
        "acme/backend": Path("/project/../backend"),
        "acme/frontend": Path("/src/frontend"),
    }


@pytest.mark.parametrize(
    ("repos", "stage", "words"),
    [
        ({}, {"worktree": "bundle"}, "needs [repos]"),
        ({}, {"worktree_base": "v2"}, "worktree_base goes with worktree"),
        ({}, {"worktree": "none", "worktree_base": "v2"}, "worktree_base goes with worktree"),
        ({}, {"worktree": ".", "worktree_base": " "}, "nothing that a branch could start from"),
        ({}, {"worktree": ".", "worktree_base": "-f"}, "nothing that a branch could start from"),
        ({"a/b": "x", "A/B": "y"}, {}, "'a/b' stands twice"),
        ({"a/b": " "}, {}, "'a/b' has no path"),
        ({"a/b": 7}, {}, "repos"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(repos, stage, words):
    with pytest.raises(BadConfiguration) as refused:
        settings(repos, **stage)
    assert words in str(refused.value)
