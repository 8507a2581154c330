"""Which configuration and backlog a folder of a linked git worktree belongs to: real git."""

from pathlib import Path

import pytest
from tests.servers.git_repository import git

from dibs.adapters.system import working_tree
from dibs.settings import load as config
from dibs.settings.ignoring import Ignored, NotIgnored, ignore_in_git


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return repository(tmp_path / "main")


def repository(where: Path, *options: str) -> Path:
    git(where.parent, "init", "--quiet", "--initial-branch=main", *options, str(where))
    git(where, "commit", "--quiet", "--allow-empty", "-m", "first")
    return where


def linked(main: Path, where: Path) -> Path:
    git(main, "worktree", "add", "--quiet", "-b", where.name, str(where))
    return where


@pytest.fixture
def tree(main: Path, tmp_path: Path) -> Path:
    return linked(main, tmp_path / "linked")


def configured(folder: Path, ttl: str = "9m") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "dibs.toml"
    file.write_text(f'ttl = "{ttl}"\n')
    return file


def place(start: Path) -> tuple[Path | None, Path, Path | None]:
    found = config.load(start=start)
    return found.file, found.root, found.here


def test_the_main_working_trees_file_counts_even_if_the_worktree_has_its_own(main, tree):
    file = configured(main)
    configured(tree, "8m")
    assert place(tree) == (file, main, tree)
    assert place(main) == (file, main, None)


def test_the_search_starts_in_the_same_folder_of_the_main_working_tree(main, tree):
    configured(main)
    file = configured(main / "sub")
    (tree / "sub" / "new").mkdir(parents=True)
    assert place(tree / "sub" / "new") == (file, main / "sub", tree / "sub")
    (tree / "other").mkdir()
    assert place(tree / "other") == (main / "dibs.toml", main, tree)


def test_a_branch_that_adds_the_file_uses_it_on_the_main_working_trees_backlog(main, tree):
    file = configured(tree)
    assert place(tree) == (file, main, tree)
    (main / ".dibs").mkdir()  # the first issue makes it, and must not change the settings
    assert place(tree) == (file, main, tree)
    assert place(main) == (None, main, None)


def test_a_backlog_without_a_file_is_found_and_so_is_none(main, tree):
    assert place(tree) == (None, main, tree)
    (main / "sub" / ".dibs").mkdir(parents=True)
    (tree / "sub").mkdir()
    configured(tree)
    assert place(tree / "sub") == (None, main / "sub", tree / "sub")


def test_no_file_above_the_main_working_tree_or_the_worktree_counts(tmp_path):
    configured(tmp_path / "outer")
    configured(tmp_path / "apart")
    main = repository(tmp_path / "outer" / "main")
    tree = linked(main, tmp_path / "apart" / "linked")
    assert place(tree) == (None, main, tree)
    assert place(main) == (None, main, None)


def test_a_worktree_inside_the_main_working_tree(main):
    file = configured(main)
    tree = linked(main, main / ".agents" / "trees" / "one")
    configured(tree, "8m")
    assert place(tree) == (file, main, tree)


def test_a_file_that_is_named_in_a_worktree_belongs_to_the_same_backlog(main, tree, monkeypatch):
    configured(main)
    file = configured(tree, "8m")
    found = config.load(file)
    assert (found.file, found.root, found.here) == (file, main, tree)
    assert found.variables["DIBS_CONFIG"] == str(file)
    monkeypatch.chdir(tree)
    relative = config.load(Path("dibs.toml"))
    assert relative.root == main
    assert relative.variables == found.variables


def test_a_folder_that_is_named_is_where_the_search_starts_and_stays(main, tree):
    file = configured(main)
    own = configured(tree, "8m")
    (tree / "sub").mkdir()
    found = config.load(tree / "sub")
    assert (found.file, found.root, found.here) == (own, tree, None)
    assert config.load(main, start=tree).file == file


def test_a_submodule_is_no_linked_worktree_but_may_be_in_one(main, tree, tmp_path):
    file = configured(main)
    inner = repository(tmp_path / "inner")
    allowed = ("-c", "protocol.file.allow=always")
    git(tree, *allowed, "submodule", "--quiet", "add", str(inner), "vendor")
    assert (tree / "vendor" / ".git").is_file()
    assert place(tree / "vendor") == (file, main, tree)
    own = configured(tree / "vendor")
    assert place(tree / "vendor") == (own, tree / "vendor", None)


@pytest.mark.parametrize("name", ["bare.git", ".git"])
def test_a_bare_repository_has_no_main_working_tree(tmp_path, main, name):
    home = tmp_path / "home"
    home.mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(main), str(home / name))
    tree = home / "linked"
    git(home / name, "worktree", "add", "--quiet", "-b", "linked", str(tree))
    file = configured(tree)
    assert place(tree) == (file, tree, None)


def test_a_repository_with_its_git_folder_elsewhere_has_no_known_main_working_tree(tmp_path):
    main = repository(tmp_path / "main", f"--separate-git-dir={tmp_path / 'store'}")
    tree = linked(main, tmp_path / "linked")
    configured(main)
    file = configured(tree)
    assert place(tree) == (file, tree, None)


def test_a_worktree_with_relative_paths_in_its_files(main, tree):
    """Git writes them with worktree.useRelativePaths."""
    file = configured(main)
    (tree / ".git").write_text("gitdir: ../main/.git/worktrees/linked\n")
    assert place(tree) == (file, main, tree)


@pytest.mark.parametrize("text", ["", "gitdir: \n", "gitdir: /nowhere\n", "x" * 100, "gitdir: \0"])
def test_a_git_file_that_leads_nowhere_changes_nothing(tmp_path, text):
    (tmp_path / ".git").write_text(text)
    file = configured(tmp_path)
    assert place(tmp_path) == (file, tmp_path, None)


def test_every_working_tree_knows_the_repositorys_folder(main, tree):
    for folder in (main, tree):
        found = working_tree(folder)
        assert found is not None
        assert (found.top, found.repository_dir) == (folder, main / ".git")


# Keeping .dibs/ out of version control


def ignores(folder: Path) -> bool:
    (folder / ".dibs").mkdir(exist_ok=True)
    (folder / ".dibs" / "backlog.db").touch()
    return ".dibs" not in git(folder, "status", "--porcelain", "--untracked-files=all")


def test_the_line_is_written_once(main):
    file = main / ".gitignore"
    assert ignore_in_git(main) == Ignored(file, wrote=True)
    assert ignore_in_git(main) == Ignored(file, wrote=False)
    assert file.read_bytes() == b".dibs/\n"
    assert ignores(main)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"*.pyc", b"*.pyc\n.dibs/\n"),
        (b"*.pyc\r\n/build\r\n", b"*.pyc\r\n/build\r\n.dibs/\r\n"),
        (b"# \xff\n\n", b"# \xff\n\n.dibs/\n"),
        (b"*.pyc\n/.dibs\n", b"*.pyc\n/.dibs\n"),
        (b".dibs/  \r\n", b".dibs/  \r\n"),
    ],
)
def test_what_the_file_has_stays_with_its_line_ends(main, before, after):
    (main / ".gitignore").write_bytes(before)
    ignore_in_git(main)
    assert (main / ".gitignore").read_bytes() == after
    assert ignores(main)


def test_a_line_above_or_in_the_repositorys_own_list_is_enough(main):
    (main / "sub").mkdir()
    (main / ".gitignore").write_text("/.dibs/\n")
    assert ignore_in_git(main / "sub") == Ignored(main / "sub" / ".gitignore", wrote=True)
    assert ignores(main / "sub")
    (main / "sub" / ".gitignore").unlink()
    exclude = main / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text(".dibs/\n")
    assert ignore_in_git(main / "sub") == Ignored(exclude, wrote=False)


def test_a_gitignore_that_cannot_be_written_leaves_the_repositorys_own_list(main):
    (main / ".gitignore").mkdir()
    exclude = main / ".git" / "info" / "exclude"
    assert ignore_in_git(main) == Ignored(exclude, wrote=True)
    assert ignores(main)


def test_a_link_in_its_place_is_not_followed(main, tmp_path):
    (tmp_path / "shared").write_text("*.pyc\n")
    (main / ".gitignore").symlink_to(tmp_path / "shared")
    assert ignore_in_git(main) == Ignored(main / ".git" / "info" / "exclude", wrote=True)
    assert (tmp_path / "shared").read_text() == "*.pyc\n"
    assert ignores(main)


def test_the_reason_is_told_if_neither_can_be_written(main):
    (main / ".gitignore").mkdir()
    info = main / ".git" / "info"
    if (info / "exclude").exists():
        (info / "exclude").unlink()
    info.mkdir(exist_ok=True)
    (info / "exclude").mkdir()
    answer = ignore_in_git(main)
    assert isinstance(answer, NotIgnored)
    assert str(main / ".gitignore") in answer.why
    assert str(info / "exclude") in answer.why


def test_a_rehearsal_writes_nothing_and_outside_of_git_there_is_nothing_to_write(main, tmp_path):
    assert ignore_in_git(main, dry_run=True) == Ignored(main / ".gitignore", wrote=True)
    assert not (main / ".gitignore").exists()
    outside = tmp_path / "outside"
    outside.mkdir()
    assert ignore_in_git(outside) is None
    assert list(outside.iterdir()) == []
