"""The note of leases that a git working tree keeps of itself."""

import json

from dibs.core.ids import IssueRef, RunId
from dibs.hook.run_files import RUN_FILE, RunFile, run_file

ISSUE = IssueRef("acme/shop", "7")


def test_what_is_noted_is_known_until_it_is_forgotten(tmp_path):
    file = RunFile(tmp_path / RUN_FILE)
    assert file.runs() == {}
    file.note(ISSUE, RunId("a"))
    file.note(ISSUE, RunId("b"))
    file.note(ISSUE, RunId("a"))
    assert file.runs() == {"b": "acme/shop#7", "a": "acme/shop#7"}
    file.forget(RunId("b"))
    file.forget(RunId("never"))
    assert set(file.runs()) == {"a"}


def test_it_does_not_grow_for_ever(tmp_path):
    file = RunFile(tmp_path / RUN_FILE)
    for number in range(200):
        file.note(ISSUE, RunId(f"r{number}"))
    assert len(file.runs()) == 50
    assert "r199" in file.runs()


def test_rubbish_is_no_note(tmp_path):
    file = RunFile(tmp_path / RUN_FILE)
    for text in ("", "rubbish", "[]", '{"runs": 7}', '{"runs": {"a": 7}}', "[" * 60_000):
        file.path.write_text(text)
        assert file.runs() == {}
    file.note(ISSUE, RunId("a"))
    assert json.loads(file.path.read_text()) == {"runs": {"a": "acme/shop#7"}}


def test_a_place_that_cannot_be_written_does_not_matter(tmp_path):
    file = RunFile(tmp_path / "not there" / RUN_FILE)
    file.note(ISSUE, RunId("a"))
    assert file.runs() == {}


def test_every_working_tree_has_its_own(clone):
    tree = clone.worktree("second", "-b", "second")
    (clone.folder / "deep" / "er").mkdir(parents=True)
    places = {
        folder: run_file(folder, {}).path.parent
        for folder in (clone.folder, clone.folder / "deep" / "er", tree.folder)
    }
    assert places[clone.folder] == places[clone.folder / "deep" / "er"] == clone.folder / ".git"
    assert places[tree.folder] == clone.folder / ".git" / "worktrees" / "second"
    told = clone.git("rev-parse", "--git-path", RUN_FILE, cwd=tree.folder)
    assert places[tree.folder] / RUN_FILE == tree.folder / told


def test_git_may_say_where_it_is(clone, tmp_path):
    found = run_file(tmp_path, {"GIT_DIR": str(clone.folder / ".git")})
    assert found.path == clone.folder / ".git" / RUN_FILE


def test_outside_of_a_repository_there_is_none(tmp_path):
    (tmp_path / ".git").write_text("gitdir nowhere")
    (tmp_path / "in" / ".git").mkdir(parents=True)
    assert run_file(tmp_path / "in", {}) is None
