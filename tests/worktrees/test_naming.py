"""Pure: names of branches, folders, refs and files."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.errors import Misuse
from dibs.worktrees import WorktreeRequest
from dibs.worktrees.values import (
    Naming,
    file_name,
    fit_for_a_branch,
    part,
    recovery_ref,
    remote_branch,
    without_doubles,
)


def test_the_default_is_one_name_in_every_repository():
    naming = Naming("batman", "42")
    assert naming.branch("backend", 1700000000) == "batman/42-1700000000"
    assert naming.branch("frontend", 1700000000) == "batman/42-1700000000"
    assert naming.always_new


def test_folders_are_called_as_in_the_published_system():
    assert Naming("batman", "42").folder("backend", 17) == "batman-backend-42-17"


def test_the_published_branch_names_can_be_asked_for():
    naming = Naming("batman", "42", "{agent}/{feature}-{repo}-{epoch}")
    assert naming.branch("backend", 17) == "batman/42-backend-17"


def test_a_name_without_a_moment_is_gone_on_with():
    assert not Naming("batman", "42", "{agent}/{feature}").always_new


@pytest.mark.parametrize(
    ("agent", "feature", "template"),
    [
        ("", "42", "{agent}"),
        ("a", " ", "{agent}"),
        ("a", "b", "{agent}/{when}"),
        ("a", "b", "{agent"),
        ("a", "b", "{}"),
        ("a", "b", "{agent.x}"),
        ("a", "b", "-{agent}"),
        ("a", "b", "a..b"),
        ("a", "b", ""),
        ("a", "b", "x/"),
        ("a", "b", "x.lock/{agent}"),
    ],
)
def test_what_is_no_name_is_refused(agent, feature, template):
    with pytest.raises(Misuse):
        Naming(agent, feature, template)


@given(st.text(), st.text(min_size=1))
def test_whatever_an_agent_and_a_feature_are_called_git_has_the_branch(agent, feature):
    agent, feature = f"a{agent}", f"{feature}f"
    assert fit_for_a_branch(Naming(agent, feature).branch("r", 5))
    folder = Naming(agent, feature).folder("r", 5)
    assert "/" not in folder
    assert len(folder.encode()) < 1000


@pytest.mark.parametrize(
    "name",
    [
        *("a", "a/b", "ünï/cödé", "a..b", "a b", "a~", "/a", "a/", "a.lock", ".a", "a/.b"),
        *("a@{b", "HEAD", "-a", "a\\b", "a[b", "a:b", "a?", "a*", "a^", "a.", "a//b", "@"),
        *("a\x7f", "a.lock/b"),
    ],
)
def test_git_agrees_on_what_is_a_name(name):
    # `--branch` alone also expands @{-1} and the like; the format is what counts
    said = subprocess.run(
        ["git", "check-ref-format", f"refs/heads/{name}"], check=False, timeout=30
    ).returncode
    if name not in {"HEAD", "-a"}:  # git has them as refs, and refuses them as branches
        assert fit_for_a_branch(name) is (said == 0)
    else:
        assert not fit_for_a_branch(name)


def test_parts_are_made_fit():
    assert part("acme/backend#42") == "acme-backend-42"
    assert part("...") == "unnamed"
    assert part("a..b.lock") == "a-b"
    assert part("größe") == "größe"


@given(st.text(), st.text())
def test_files_of_two_identifiers_are_two_files(one, other):
    assert (file_name(one) == file_name(other)) is (one == other)
    assert "/" not in file_name(one)
    assert file_name(one) not in {".", ".."}


def test_a_plain_identifier_is_its_file():
    assert file_name("feature-42_b") == "feature-42_b"
    assert file_name("../x").startswith("%2E.%2Fx")


def test_the_same_work_has_the_same_ref():
    assert recovery_ref("a/b", 17, "f" * 40) == "refs/dibs/recovered/a/b/17-ffffffffffff"


@pytest.mark.parametrize(
    ("base", "found"),
    [
        ("origin/main", ("origin", "main")),
        ("origin/release/2", ("origin", "release/2")),
        ("my/fork/main", ("my/fork", "main")),
        ("main", None),
        ("origin/", None),
        ("v1.0", None),
    ],
)
def test_which_remote_a_base_is_of(base, found):
    assert remote_branch(base, ["origin", "my", "my/fork"]) == found


def test_two_requests_of_one_name_are_refused():
    one = WorktreeRequest("a/b", Path("x"))
    with pytest.raises(Misuse, match="a-b"):
        without_doubles([one, WorktreeRequest("a-b", Path("y"))])
    with pytest.raises(Misuse, match="no repository"):
        without_doubles([])
