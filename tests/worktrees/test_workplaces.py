"""Working trees as places of runs: real git, real remotes."""

import pytest
from tests.servers.git_repository import git

from dibs.core.errors import HandlerUnusable, WorktreeUnavailable
from dibs.core.ids import RunId
from dibs.core.pipeline import BundleWorktree, OneWorktree
from dibs.ports.system import PlaceWish
from dibs.worktrees.trees import WorktreePlaces

from .places import commit, write

ONE = OneWorktree("backend")


@pytest.fixture
def places(place, root, backend, frontend):
    repos = {"Acme/Backend": backend.path, "acme/frontend": frontend.path}
    return WorktreePlaces(place, repos, worktree_root=root)


def wish(worktree=ONE, run="4be07a91c35d", name="acme/backend#7", repos=()):
    return PlaceWish(RunId(run), name, worktree, repos)


def test_a_run_has_a_worktree_on_a_branch_of_its_own(places, backend, root):
    with places.open(wish()) as made:
        assert made.folder.parent == root
        assert made.folders == {"backend": made.folder}
        assert made.branch.startswith("dibs/acme-backend-7-4be07a91c35d-")
        assert git(made.folder, "branch", "--show-current") == made.branch
        assert (made.folder / "README").read_text() == "a shop\n"
        assert len(made.shared) == 1
    assert made.kept == []
    assert backend.worktrees == []
    assert backend.branches == {"main"}


def test_two_runs_of_one_issue_have_two_branches(places, backend):
    with places.open(wish(run="a")) as one, places.open(wish(run="b")) as two:
        assert one.branch != two.branch
        assert len(backend.worktrees) == 2


def test_what_a_run_did_not_push_is_kept_and_told(places, backend):
    with places.open(wish()) as made:
        commit(made.folder, "committed")
        write(made.folder, "not committed")
    assert len(made.kept) == 1
    [ref] = [ref for ref in backend.recovered if ref in made.kept[0]]
    assert backend.show(ref, "committed") == backend.show(ref, "not committed") == "work"


def test_a_bundle_has_one_for_each_repository_on_one_branch(places, backend, frontend):
    wanted = wish(BundleWorktree(), name="acme/backend#7", repos=("acme/backend", "acme/frontend"))
    with places.open(wanted) as made:
        assert list(made.folders) == ["acme/backend", "acme/frontend"]
        assert made.folder == made.folders["acme/backend"]
        for folder in made.folders.values():
            assert git(folder, "branch", "--show-current") == made.branch
    assert backend.worktrees == frontend.worktrees == []


def test_a_repository_that_is_nowhere_is_named(places):
    with pytest.raises(HandlerUnusable, match=r"\[repos\] does not say where 'acme/other' is"):
        places.check(BundleWorktree(), ("acme/backend", "acme/other"))
    with (
        pytest.raises(HandlerUnusable, match="acme/other"),
        places.open(wish(BundleWorktree(), repos=("acme/other",))),
    ):
        pass


def test_a_folder_that_is_no_repository_is_found_out_before_anything_is_claimed(places, place):
    (place / "plain").mkdir()
    places.check(ONE, ())
    for path in ("plain", "nowhere"):
        with pytest.raises(HandlerUnusable, match=path):
            places.check(OneWorktree(path), ())


def test_a_base_that_is_not_there_will_not_be_there_later(places):
    with (
        pytest.raises(HandlerUnusable, match="nowhere"),
        places.open(wish(OneWorktree("backend", base="origin/nowhere"))),
    ):
        pass


def test_a_remote_that_does_not_answer_may_answer_later(places, backend):
    away = backend.remote.rename(backend.remote.with_name("away.git"))
    with pytest.raises(WorktreeUnavailable), places.open(wish()):
        pass
    away.rename(backend.remote)
    with places.open(wish()):
        assert len(backend.worktrees) == 1


def test_a_repository_at_the_folder_itself_has_its_name(backend, root):
    places = WorktreePlaces(backend.path, {}, worktree_root=root)
    with places.open(wish(OneWorktree("."))) as made:
        assert list(made.folders) == ["backend"]
    with places.open(wish(OneWorktree("../backend"))) as made:
        assert list(made.folders) == ["backend"]


def test_a_base_that_nothing_has_is_found_out_before_anything_is_claimed(places):
    """Or every start of a worker would cost some issue a lease and a comment."""
    for base in ("mian", "orign/main"):
        with pytest.raises(HandlerUnusable, match=f"no '{base}' to start from"):
            places.check(OneWorktree("backend", base), ())
    places.check(OneWorktree("backend", "main"), ())
    places.check(OneWorktree("backend", "origin/not-fetched-yet"), ())
