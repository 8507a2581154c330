"""Real git: nothing that only a working tree has is lost with it, whatever state it is in."""

import os
import subprocess
import threading
from pathlib import Path

import pytest
from tests.acceptance.harness import until
from tests.servers.git_repository import ALONE, git

from dibs.worktrees import Apart, MultiWorktree, recover, recovered

from .places import Clone, commit, write


@pytest.fixture(params=[None, Apart()], ids=["shared", "apart"])
def apart(request):
    """Working trees that share the clone's git folder, and such with a repository of their own."""
    return request.param


@pytest.fixture
def trees(backend, root, apart):
    return MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart)


def only(backend):
    [(ref, found)] = backend.recovered.items()
    assert ref.startswith("refs/dibs/recovered/batman/42-17/17-")
    return found


def files(backend, commit_id):
    return set(
        backend("-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", commit_id).split("\n")
    )


def fails(folder: Path, *words: str) -> None:
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **ALONE}, capture_output=True, check=False
    )
    assert done.returncode != 0


def test_nothing_is_kept_of_a_working_tree_without_work(backend, trees):
    with trees as made:
        write(made.specs[0].worktree_path, ".git-is-not-this").unlink()
    assert backend.recovered == {}
    assert backend.branches == {"main"}


def test_changed_new_staged_deleted_renamed_and_odd_files(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        commit(path, "old name")
        commit(path, "doomed")
        git(path, "push", "--quiet", "origin", "HEAD:other")
        write(path, "README", "changed\n")
        write(path, "new/ünï cödé\tx\n.txt", "new\n")
        write(path, "staged", "staged\n")
        git(path, "add", "staged")
        git(path, "mv", "old name", "new name")
        (path / "doomed").unlink()
        (path / "link").symlink_to("nowhere")
        write(path, "run.sh").chmod(0o755)
        os.mkfifo(path / "pipe")
    found = only(backend)
    assert backend.show(found, "README") == "changed"
    assert backend.show(found, "staged") == "staged"
    assert backend.show(found, "new/ünï cödé\tx\n.txt") == "new"
    names = backend("ls-tree", "-r", "-z", "--name-only", found).split("\0")
    assert {"new name", "link", "run.sh"} <= set(names)
    assert not {"old name", "doomed", "pipe"} & set(names)
    modes = backend("ls-tree", found, "link", "run.sh")
    assert "120000" in modes
    assert "100755" in modes


def test_what_is_staged_and_then_changed_is_kept_both_ways(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "README", "staged\n")
        git(path, "add", "README")
        write(path, "README", "changed again\n")
    found = only(backend)
    assert backend.show(found, "README") == "changed again"
    assert backend.show(f"{found}^2", "README") == "staged"


def test_what_is_staged_and_undone_in_the_file_is_kept(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "README", "staged\n")
        git(path, "add", "README")
        write(path, "README", "a shop\n")
    found = only(backend)
    assert backend.show(f"{found}^2", "README") == "staged"
    assert backend.show(found, "README") == "a shop"


def test_a_change_in_the_same_tick_of_the_same_length_is_seen(backend, trees):
    """Git tells such a one by the index being no newer than the file; a copy must not be newer."""
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "config", "core.trustctime", "false")
        readme = write(path, "README", "staged\n")
        moment = (1_700_000_000, 1_700_000_000)
        os.utime(readme, moment)
        git(path, "add", "README")
        write(path, "README", "other!\n")
        os.utime(readme, moment)
        os.utime(path / git(path, "rev-parse", "--git-path", "index"), moment)
    found = only(backend)
    assert backend.show(found, "README") == "other!"
    assert backend.show(f"{found}^2", "README") == "staged"


def test_ignored_files_are_not_work(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, ".gitignore", "cache/\n*.pyc\n")
        write(path, "cache/big")
        write(path, "x.pyc")
    assert files(backend, only(backend)) == {".gitignore", "README"}


def test_a_folder_whose_files_are_not_git_s_business_is_clean(backend, trees):
    with trees as made:
        (made.specs[0].worktree_path / "empty").mkdir()
    assert backend.recovered == {}


def test_commits_that_were_not_pushed_are_kept_with_their_branch(backend, trees):
    with trees as made:
        done = commit(made.specs[0].worktree_path, "done")
    assert only(backend) == done
    assert backend("rev-parse", "batman/42-17") == done
    assert made.cleanup.kept[0].uncommitted is False


def test_commits_that_were_pushed_need_no_ref_and_their_branch_goes(backend, trees):
    with trees as made:
        commit(made.specs[0].worktree_path, "done")
        git(made.specs[0].worktree_path, "push", "--quiet", "-u", "origin", "HEAD")
    assert backend.recovered == {}
    assert backend.branches == {"main"}
    assert "batman" not in backend("config", "--list", "--local")


def test_a_ref_goes_once_a_remote_has_its_commits(backend, trees, root):
    with trees as made:
        done = commit(made.specs[0].worktree_path, "done")
    assert only(backend) == done
    backend("push", "--quiet", "origin", "batman/42-17")
    with MultiWorktree([backend.request], "batman", "42", root):
        pass
    assert backend.recovered == {}


def test_a_ref_of_what_nobody_committed_stays(backend, trees, root):
    with trees as made:
        write(made.specs[0].worktree_path, "half")
    kept = only(backend)
    with MultiWorktree([backend.request], "batman", "42", root):
        pass
    assert only(backend) == kept


def test_commits_on_no_branch_are_kept(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "checkout", "--quiet", "--detach")
        done = commit(path, "loose")
    assert only(backend) == done


def test_commits_on_the_branch_and_on_none_are_both_kept(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        one = commit(path, "one")
        git(path, "checkout", "--quiet", "--detach", "HEAD~1")
        other = commit(path, "other")
    assert set(backend.recovered.values()) == {one, other}


def test_a_branch_that_the_agent_made_besides_stays(backend, trees):
    """As a branch, or, out of a repository of its own, by its commit: the name may be a trap."""
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "checkout", "--quiet", "-b", "besides")
        done = commit(path, "done")
    assert only(backend) == done
    assert backend.branches == ({"main"} if made.apart else {"main", "besides"})


def test_branches_and_tags_that_are_not_checked_out_are_kept(backend, root):
    trees = MultiWorktree([backend.request], "batman", "42", root, now=17, apart=Apart())
    with trees as made:
        path = made.specs[0].worktree_path
        before = git(path, "rev-parse", "HEAD")
        done = commit(path, "done")
        git(path, "branch", "--quiet", "besides")
        git(path, "reset", "--quiet", "--hard", before)
        tagged = commit(path, "tagged")
        git(path, "tag", "mine")
        git(path, "reset", "--quiet", "--hard", before)
        git(path, "update-ref", "refs/heads/main", done)
    assert set(backend.recovered.values()) == {done, tagged}
    assert backend("rev-parse", "main") == before
    assert backend.branches == {"main"}


def test_every_stash_is_kept(backend, trees):
    with trees as made:
        for text in ("one", "two"):
            write(made.specs[0].worktree_path, "README", f"{text}\n")
            git(made.specs[0].worktree_path, "stash", "--quiet")
    where = list(backend.recovered) if made.apart else ["stash@{0}", "stash@{1}"]
    assert {backend.show(one, "README") for one in where} == {"one", "two"}


def test_files_before_the_first_commit_are_kept(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "checkout", "--quiet", "--orphan", "fresh")
        write(path, "first")
    found = only(backend)
    assert "first" in files(backend, found)


def test_files_that_git_was_told_not_to_look_at_are_looked_at(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        commit(path, "skipped")
        git(path, "push", "--quiet", "origin", "HEAD:other")
        git(path, "update-index", "--assume-unchanged", "README")
        git(path, "update-index", "--skip-worktree", "skipped")
        write(path, "README", "quietly changed\n")
        write(path, "skipped", "quietly too\n")
        assert git(path, "status", "--short") == ""
    found = only(backend)
    assert backend.show(found, "README") == "quietly changed"
    assert backend.show(found, "skipped") == "quietly too"


def test_a_sparse_working_tree_is_not_taken_for_one_with_deletions(backend, root, apart):
    commit(backend.path, "in/a")
    commit(backend.path, "out/b")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        git(path, "sparse-checkout", "set", "in")
        assert not (path / "out").exists()
    assert backend.recovered == {}
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        git(path, "sparse-checkout", "set", "in")
        write(path, "in/new")
        write(path, "out/new")
    assert {"in/a", "in/new", "out/b", "out/new"} <= files(backend, only(backend))


def test_each_is_kept_with_its_own_index_and_commit_where_there_are_several(
    backend, root, place, apart
):
    backend("worktree", "add", "--quiet", "-b", "aaa", str(place / "aaa"))
    commit(place / "aaa", "aaa")
    write(place / "aaa", "zzz")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        done = commit(made.specs[0].worktree_path, "done")
        write(made.specs[0].worktree_path, "half")
    found = only(backend)
    assert files(backend, found) == {"README", "done", "half"}
    assert backend("rev-parse", f"{found}^") == done
    assert git(place / "aaa", "status", "--short") == "?? zzz"


# In the middle of something


def conflict(backend, path):
    """Two changes of one line, one of them here and one on `theirs`."""
    git(path, "checkout", "--quiet", "-b", "theirs")
    commit(path, "README", "theirs\n")
    git(path, "checkout", "--quiet", "batman/42-17")
    return commit(path, "README", "ours\n")


def test_a_merge_with_conflicts(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        ours = conflict(backend, path)
        write(path, "mine")
        theirs = git(path, "rev-parse", "theirs")
        git(path, "branch", "--quiet", "-m", "theirs", "t")
        git(path, "checkout", "--quiet", "--detach", "t")
        git(path, "branch", "--quiet", "-D", "t")
        git(path, "checkout", "--quiet", "batman/42-17")
        fails(path, "merge", theirs)
    found = only(backend)
    assert "<<<<<<<" in backend.show(found, "README")
    assert "mine" in files(backend, found)
    assert backend("log", "-1", "--format=%P", found).split() == [ours, theirs]


def test_a_rebase_with_conflicts_and_changes_set_aside(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        commit(path, "other", "as it was\n")
        ours = conflict(backend, path)
        write(path, "other", "not committed\n")
        fails(path, "rebase", "--autostash", "theirs")
    held = [found for found in backend.recovered.values() if found != ours]
    assert ours in backend.recovered.values() or backend("rev-parse", "batman/42-17") == ours
    assert any(
        "not committed" in backend("show", f"{parent}:other", check=False)
        for one in held
        for parent in backend("log", "-1", "--format=%P", one).split()
    )


def test_a_cherry_pick_with_conflicts(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        conflict(backend, path)
        fails(path, "cherry-pick", "theirs")
    assert "<<<<<<<" in backend.show(only(backend), "README")


def test_an_index_that_a_killed_git_left_locked(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        (path / git(path, "rev-parse", "--git-path", "index.lock")).write_text("")
    assert backend.show(only(backend), "half") == "work"


def test_an_index_of_ours_that_a_killed_git_left_locked(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        for name in ("dibs-index", "dibs-index.lock"):
            (path / git(path, "rev-parse", "--git-path", name)).write_text("torn")
    assert backend.show(only(backend), "half") == "work"


def test_a_rebase_whose_notes_are_torn_is_left(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        notes = path / git(path, "rev-parse", "--git-path", "rebase-merge")
        notes.mkdir()
        (notes / "orig-head").write_bytes(b"\xff\xfe")
    assert len(made.cleanup.left) == 1
    assert path.exists()


def test_an_index_that_is_torn(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        index = path / git(path, "rev-parse", "--git-path", "index")
        index.write_bytes(index.read_bytes()[:20])
    found = only(backend)
    assert backend.show(found, "half") == "work"
    assert backend.show(found, "README") == "a shop"


def test_an_index_that_is_gone(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        (path / git(path, "rev-parse", "--git-path", "index")).unlink()
    assert backend.show(only(backend), "README") == "a shop"


def test_a_working_tree_that_lost_its_own_pointer(backend, trees, place):
    """As a removal that was cut off leaves it; and no repository above it is taken for its own."""
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        (path / ".git").rename(place / "away")
        git(path.parent, "init", "--quiet")
    assert files(backend, only(backend)) == {"README", "half"}
    assert backend("rev-parse", f"{only(backend)}^") == backend("rev-parse", "origin/main")
    assert not path.exists()
    assert backend.worktrees == []


def test_a_folder_that_somebody_deleted_had_commits_on_no_branch(backend, root, place):
    with MultiWorktree([backend.request], "batman", "42", root, now=17) as made:
        path = made.specs[0].worktree_path
        git(path, "checkout", "--quiet", "--detach")
        done = commit(path, "loose")
        path.rename(place / "away")
    assert only(backend) == done
    assert backend.worktrees == []


# Line ends, filters, hooks, settings


def test_settings_of_the_user_are_not_in_the_way(backend, trees):
    for setting in (
        "core.safecrlf=true",
        "core.autocrlf=input",
        "commit.gpgSign=true",
        "gpg.program=false",
        "core.fsmonitor=true",
        "status.showUntrackedFiles=no",
        "core.quotePath=true",
        "worktree.guessRemote=true",
    ):
        backend("config", *setting.split("="))
    for hook in ("pre-commit", "reference-transaction", "commit-msg", "post-index-change"):
        write(backend.path / ".git/hooks", hook, "#!/bin/sh\nexit 1\n")
    with trees as made:
        for hook in (backend.path / ".git/hooks").iterdir():
            hook.chmod(0o755)
        (made.specs[0].worktree_path / "windows").write_bytes(b"a\r\nb\n")
    assert "windows" in files(backend, only(backend))


def raw(backend, commit_id, name):
    """The bytes of a file in a commit, as no filter changes them."""
    words = ["git", "cat-file", "blob", f"{commit_id}:{name}"]
    done = subprocess.run(words, cwd=backend.path, capture_output=True, check=True, timeout=60)
    return done.stdout


def edit(path: Path, data: bytes) -> None:
    """Write a file as an editor does: not in the tick of the clock in which it was checked out."""
    before = path.lstat().st_ctime_ns if path.exists() else 0
    while True:
        path.write_bytes(data)
        if path.lstat().st_ctime_ns > before:
            return


@pytest.mark.parametrize("setting", ["core.autocrlf=input", "core.autocrlf=true", "core.eol=crlf"])
def test_line_ends_are_kept_as_they_are(backend, trees, setting, monkeypatch, tmp_path):
    """Set for the clone, and for the user, which counts in any repository."""
    name, value = setting.split("=")
    (tmp_path / "gitconfig").write_text(f"[core]\n\t{name.removeprefix('core.')} = {value}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    backend("config", name, value)
    with trees as made:
        path = made.specs[0].worktree_path
        edit(path / "windows", b"a\r\nb\r\n")
        edit(path / "unix", b"a\nb\n")
        edit(path / "README", b"mixed\r\nlines\n")
    found = only(backend)
    stored = b"a\nb\n" if setting == "core.autocrlf=true" else b"a\r\nb\r\n"
    assert raw(backend, found, "windows") == stored
    assert raw(backend, found, "README") == b"mixed\r\nlines\n"
    backend("checkout", "--quiet", found)
    assert (backend.path / "windows").read_bytes() == b"a\r\nb\r\n"
    assert raw(backend, found, "unix") == b"a\nb\n"


def test_line_ends_that_git_itself_has_written_are_no_work(backend, root, apart):
    write(backend.path, ".gitattributes", "*.bat text eol=crlf\n")
    commit(backend.path, "run.bat", "one\ntwo\n")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        bat = made.specs[0].worktree_path / "run.bat"
        assert bat.read_bytes() == b"one\r\ntwo\r\n"
        edit(bat, bat.read_bytes())
    assert backend.recovered == {}
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        edit(made.specs[0].worktree_path / "run.bat", b"one\r\nthree\r\n")
    assert raw(backend, only(backend), "run.bat") == b"one\nthree\n", "checked out as it was"


@pytest.mark.parametrize("same_size", [False, True], ids=["shorter", "as long"])
def test_what_a_filter_drops_is_kept_and_is_a_change(backend, root, apart, same_size):
    """As nbstripout does: of two files that are alike but for their outputs, git sees no change."""
    backend("config", "filter.strip.clean", "sed s/[0-9]/0/g" if same_size else "grep -v output")
    backend("config", "filter.strip.smudge", "cat")
    write(backend.path, ".gitattributes", "*.nb filter=strip\n")
    commit(backend.path, "a.nb", "cell 0\noutput 0\n")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        write(path, "unrelated").unlink()
    assert backend.recovered == {}, "nothing was changed"
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        edit(path / "a.nb", b"cell 0\noutput 7\n")
        edit(path / "new.nb", b"cell 1\noutput 8\n")
        git(path, "status", "--short")
    found = only(backend)
    assert raw(backend, found, "a.nb") == b"cell 0\noutput 7\n"
    assert raw(backend, found, "new.nb") == b"cell 1\noutput 8\n"


def test_only_what_a_filter_drops_was_changed(backend, root, apart):
    backend("config", "filter.strip.clean", "grep -v output")
    write(backend.path, ".gitattributes", "*.nb filter=strip\n")
    commit(backend.path, "a.nb", "cell\n")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        edit(path / "a.nb", b"cell\noutput\n")
        if apart is None:
            assert git(path, "diff") == ""
    assert raw(backend, only(backend), "a.nb") == b"cell\noutput\n"


def test_a_filter_that_cannot_check_out_keeps_the_file(backend, root, apart):
    backend("config", "filter.gone.clean", "sed s/secret/x/")
    backend("config", "filter.gone.smudge", "false")
    backend("config", "filter.gone.required", "true")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        write(path, ".gitattributes", "*.key filter=gone\n")
        edit(path / "a.key", b"secret\n")
    assert raw(backend, only(backend), "a.key") == b"secret\n"


def test_what_the_clone_excludes_goes_and_is_told(backend, trees):
    """A `.gitignore` is the project's word; the clone's own list is nobody's who reads the tree."""
    write(backend.path / ".git/info", "exclude", "# mine\nnotes/\n*.tmp\n")
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "notes/today")
        write(path, "x.tmp")
        write(path, ".gitignore", "cache/\n")
        write(path, "cache/big")
    assert files(backend, only(backend)) == {".gitignore", "README"}
    [excluded] = made.cleanup.excluded
    assert excluded.names == ("notes/", "x.tmp")
    assert "notes/, x.tmp" in made.cleanup.told[-1]


# Left where it is, in doubt


def test_a_locked_one_is_left_and_said_to_be(backend, trees, root):
    with trees as made:
        path = made.specs[0].worktree_path
        write(path, "half")
        backend("worktree", "lock", "--reason", "I am looking", str(path))
    assert (path / "half").exists()
    assert made.cleanup.removed == ()
    [left] = made.cleanup.left
    assert left.worktree_path == path
    assert "I am looking" in left.why
    assert backend.branches == {"main", "batman/42-17"}
    # It is not forgotten: it is said again until somebody has looked.
    assert recover(root).left == (left,)
    backend("worktree", "unlock", str(path))
    assert recover(root).removed == (path,)
    assert backend.show(only(backend), "half") == "work"
    assert recover(root).left == ()


@pytest.mark.parametrize("where", ["seen", "ignored", "excluded", "in an ignored clone"])
@pytest.mark.parametrize("how", ["changed", "committed", "stashed", "elsewhere", "unborn"])
def test_a_clone_in_it_that_has_work_of_its_own(backend, frontend, trees, root, how, where):
    with trees as made:
        path = made.specs[0].worktree_path
        inner = path / "vendor" / "inner"
        if where == "excluded":
            write(backend.path / ".git/info", "exclude", "vendor/\nfresh/\n")
            write(path / ".git/info", "exclude", "vendor/\nfresh/\n") if made.apart else None
        elif where != "seen":
            write(path, ".gitignore", "vendor/\nbuild/\nfresh/\n")
        if where == "in an ignored clone":
            git(path, "clone", "--quiet", str(frontend.remote), str(path / "build"))
            inner = path / "build" / "vendor" / "inner"
            write(path / "build/.git/info", "exclude", "vendor/\n")
        git(path, "clone", "--quiet", str(frontend.remote), str(inner))
        match how:
            case "changed":
                write(inner, "README", "new\n")
            case "committed":
                commit(inner, "new")
            case "stashed":
                write(inner, "README", "new")
                git(inner, "stash", "--quiet")
            case "elsewhere":
                git(inner, "checkout", "--quiet", "-b", "other")
                commit(inner, "new")
                git(inner, "checkout", "--quiet", "main")
            case "unborn":
                git(path, "init", "--quiet", "fresh")
                write(path / "fresh", "new")
                git(path / "fresh", "add", "new")
    [left] = made.cleanup.left
    assert inner.exists()
    assert "inner" in left.why or "fresh" in left.why
    assert recover(root).left == (left,)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_clone_in_it_without_work_goes_with_it(backend, frontend, trees, ignored):
    with trees as made:
        path = made.specs[0].worktree_path
        write(backend.path / ".git/info", "exclude", "inner/\n" if ignored else "")
        git(path, "clone", "--quiet", str(frontend.remote), str(path / "inner"))
    assert made.cleanup.left == ()
    assert not path.exists()


def test_a_worktree_in_it_without_work_goes_with_it(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "worktree", "add", "--quiet", "--detach", "inner")
    assert made.cleanup.left == ()
    assert not path.exists()


def test_a_worktree_in_it_that_has_work_is_left(backend, trees):
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "worktree", "add", "--quiet", "--detach", "inner")
        write(path / "inner", "new")
    assert "inner" in made.cleanup.left[0].why
    assert (path / "inner" / "new").exists()


def test_commits_of_a_worktree_beside_it_are_kept(backend, root, place):
    trees = MultiWorktree([backend.request], "batman", "42", root, now=17, apart=Apart())
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, "worktree", "add", "--quiet", "--detach", str(place / "beside"))
        done = commit(place / "beside", "done")
    assert only(backend) == done


def with_submodule(backend, frontend):
    allowed = ("-c", "protocol.file.allow=always")
    backend(*allowed, "submodule", "--quiet", "add", str(frontend.remote), "sub")
    backend("commit", "--quiet", "-m", "with a submodule")
    backend("push", "--quiet")
    return allowed


def test_a_submodule_without_work_goes_with_its_working_tree(backend, frontend, trees):
    allowed = with_submodule(backend, frontend)
    with trees as made:
        path = made.specs[0].worktree_path
        assert (path / "sub").is_dir()
        git(path, *allowed, "submodule", "--quiet", "update", "--init")
        assert (path / "sub" / "README").exists()
    assert made.cleanup.left == ()
    assert made.cleanup.kept == ()
    assert not path.exists()
    assert backend("submodule", "status").startswith(backend("rev-parse", "HEAD:sub")[:7])


def test_a_submodule_with_commits_that_only_it_has_is_left(backend, frontend, trees):
    allowed = with_submodule(backend, frontend)
    with trees as made:
        path = made.specs[0].worktree_path
        git(path, *allowed, "submodule", "--quiet", "update", "--init")
        done = commit(path / "sub", "new")
        git(path, "commit", "--quiet", "-am", "raise the submodule")
    assert "sub" in made.cleanup.left[0].why
    assert git(path / "sub", "rev-parse", "HEAD") == done
    git(path / "sub", "push", "--quiet", "origin", "HEAD:refs/heads/done")
    git(path / "sub", "fetch", "--quiet")
    assert recover(path.parent).removed == (path,)


def test_a_file_that_cannot_be_read_is_left(backend, root):
    with MultiWorktree([backend.request], "batman", "42", root, now=17) as made:
        path = made.specs[0].worktree_path
        write(path, "secret").chmod(0)
        if os.access(path / "secret", os.R_OK):
            # root reads everything; a filter that fails is the same to git
            (path / "secret").chmod(0o644)
            git(path, "config", "filter.no.clean", "false")
            git(path, "config", "filter.no.required", "true")
            write(path, ".gitattributes", "secret filter=no\n")
    assert (path / "secret").exists()
    assert "cannot be kept" in made.cleanup.left[0].why


def test_one_that_is_still_written_to_is_left(backend, root, apart):
    """Each look finds another file than the one before."""
    looks = []

    def busy(step):
        if step.value == "worktrees.kept":
            looks.append(write(made.specs[0].worktree_path, f"file{len(looks)}"))

    with MultiWorktree(
        [backend.request], "batman", "42", root, now=17, reached=busy, apart=apart
    ) as made:
        path = made.specs[0].worktree_path
    assert "still writing" in made.cleanup.left[0].why
    assert all(one.exists() for one in looks)
    assert recover(root).removed == (path,)
    assert files(backend, list(backend.recovered.values())[-1]) >= {"file0", "README"}


def test_a_last_word_is_kept_too(backend, root, apart):
    """Something is written between the first keeping and the removal: it is kept as well."""
    said = threading.Event()

    def once(step):
        if step.value == "worktrees.kept" and not said.is_set():
            said.set()
            write(made.specs[0].worktree_path, "last")

    with MultiWorktree(
        [backend.request], "batman", "42", root, now=17, reached=once, apart=apart
    ) as made:
        write(made.specs[0].worktree_path, "first")
    assert made.cleanup.left == ()
    assert any({"first", "last"} <= files(backend, one) for one in backend.recovered.values())


def test_what_is_kept_can_be_listed(backend, trees):
    with trees as made:
        write(made.specs[0].worktree_path, "half")
    kept = made.cleanup.kept[0]
    assert recovered(backend.path) == ((kept.ref, kept.commit),)
    assert kept.uncommitted
    assert kept.repository == backend.path / ".git"


def test_what_is_kept_survives_the_housekeeping_of_git(backend, trees):
    with trees as made:
        write(made.specs[0].worktree_path, "half")
    backend("reflog", "expire", "--expire=now", "--all")
    backend("gc", "--quiet", "--prune=now")
    assert backend.show(only(backend), "half") == "work"


@pytest.fixture
def partial(backend, place):
    """A sparse partial clone, which lacks the content of every file outside of its folder."""
    for number in range(20):
        write(backend.path, f"out/{number}", f"{number}\n")
    commit(backend.path, "in/a")
    backend("push", "--quiet")
    git(backend.remote, "config", "uploadpack.allowFilter", "true")
    words = ("--filter=blob:none", "--sparse", f"file://{backend.remote}")
    git(place, "clone", "--quiet", *words, str(place / "partial"))
    git(place / "partial", "sparse-checkout", "set", "in")
    return Clone("partial", place / "partial", backend.remote)


@pytest.mark.parametrize("torn", [False, True], ids=["index", "torn index"])
def test_a_sparse_partial_clone_fetches_nothing_and_loses_nothing(
    partial, root, apart, torn, place
):
    def contents():
        words = ("cat-file", "--batch-check", "--batch-all-objects", "--unordered")
        return partial(*words).count(" blob ")

    with MultiWorktree([partial.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        git(path, "sparse-checkout", "set", "in")
        edit(path / "in/a", b"changed\n")
        write(path, "in/new", "new\n")
        if torn:
            (path / git(path, "rev-parse", "--git-path", "index")).write_bytes(b"torn")
        before = contents()
        partial.remote.rename(place / "away")
    assert made.cleanup.left == ()
    found = only(partial)
    assert contents() - before == 2, "the two files that were written"
    changes = partial("diff-tree", "-r", "--name-status", f"{found}^", found).split("\n")
    assert changes == ["M\tin/a", "A\tin/new"]


@pytest.mark.parametrize("shift", ["marker", "all"])
def test_what_a_filter_drops_is_kept_if_the_clock_goes_back(backend, root, monkeypatch, shift):
    """The time of an edit is then before the time at which the files were checked out."""
    backend("config", "filter.strip.clean", "grep -v output")
    write(backend.path, ".gitattributes", "*.nb filter=strip\n")
    commit(backend.path, "a.nb", "cell\n")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17) as made:
        path = made.specs[0].worktree_path
        edit(path / "a.nb", b"cell\noutput\n")
        admin = (path / git(path, "rev-parse", "--git-dir")).resolve()
        edited = (path / "a.nb").stat().st_ctime
        if shift == "marker":
            os.utime(admin / "dibs-made", (edited + 3600, edited + 3600))
        else:
            os.utime(admin / "commondir", (edited + 1e-3, edited + 1e-3))
            os.utime(admin / "dibs-made", (edited + 2e-3, edited + 2e-3))
            until(lambda: write(path, "late").stat().st_mtime > edited + 2e-3, "the clock goes on")
    assert raw(backend, only(backend), "a.nb") == b"cell\noutput\n"


ORDINARY = (
    "a tag of a shallow clone",
    "a product",
    "a stray file",
    "an empty git folder",
    "no commit",
)


@pytest.mark.parametrize("what", ORDINARY)
def test_an_ordinary_dependency_in_an_ignored_folder_goes_with_it(
    backend, frontend, root, apart, what
):
    commit(frontend.path, "one")
    frontend("tag", "v1")
    commit(frontend.path, "two")
    frontend("push", "--quiet", "--tags", "origin", "main")
    commit(backend.path, ".gitignore", "build/\n")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        inner = path / "build/inner"
        match what:
            case "a tag of a shallow clone":
                words = ("--depth=1", "--branch=v1", f"file://{frontend.remote}")
                git(path, "-c", "advice.detachedHead=false", "clone", "-q", *words, str(inner))
            case "a product":
                git(path, "clone", "-q", str(frontend.remote), str(inner))
                write(inner, "product.o")
            case "a stray file":
                write(inner, ".git", "gitdir: ../../../.git/modules/inner\n")
            case "an empty git folder":
                (inner / ".git").mkdir(parents=True)
            case "no commit":
                git(path, "init", "-q", str(inner))
                write(inner, "ignored as all the folder is")
    assert made.cleanup.left == ()
    assert not path.exists()


@pytest.mark.parametrize("how", ["committed", "tagged", "staged", "stashed", "pushed to it"])
def test_a_dependency_in_an_ignored_folder_with_work_of_its_own(
    backend, frontend, root, apart, how
):
    commit(frontend.path, "one")
    frontend("tag", "v1")
    frontend("push", "--quiet", "--tags", "origin", "main")
    commit(backend.path, ".gitignore", "build/\n")
    backend("push", "--quiet")
    with MultiWorktree([backend.request], "batman", "42", root, now=17, apart=apart) as made:
        path = made.specs[0].worktree_path
        inner = path / "build/inner"
        words = ("--depth=1", "--branch=v1", f"file://{frontend.remote}")
        git(path, "-c", "advice.detachedHead=false", "clone", "-q", *words, str(inner))
        match how:
            case "committed":
                commit(inner, "new")
            case "tagged":
                commit(inner, "new")
                git(inner, "tag", "mine")
                git(inner, "checkout", "-q", "--detach", "v1")
            case "staged":
                write(inner, "new")
                git(inner, "add", "new")
            case "stashed":
                write(inner, "README", "new")
                git(inner, "stash", "--quiet")
            case "pushed to it":
                commit(frontend.path, "only there")
                frontend("push", "--quiet", str(inner), "main")
    [left] = made.cleanup.left
    assert "inner" in left.why
    assert inner.exists()
