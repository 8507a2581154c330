"""The real git program: bounded in time, asking nobody, in the right place, telling no secrets."""

from pathlib import Path

import pytest
from tests.acceptance.harness import until

from dibs.core.errors import BadConfiguration, Unavailable
from dibs.worktrees import GitProgram, MultiWorktree


def ran(folder, shell, **given):
    return GitProgram()(["-c", f"alias.x=!{shell}", "x"], cwd=folder, **given)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(backend, tmp_path):
    told = tmp_path / "pid"
    with pytest.raises(Unavailable, match=r"git x in .* did not answer within 2 s"):
        ran(backend.path, f"echo $$ > '{told}'; exec sleep 600", timeout=2)
    if told.exists():  # else it was ended before it could say anything
        started = Path("/proc", told.read_text().strip())
        until(lambda: not started.exists(), "what git had started is gone")


def test_nobody_is_asked_and_what_it_says_can_be_read(backend, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    said = ran(backend.path, "printenv GIT_TERMINAL_PROMPT GCM_INTERACTIVE LC_ALL; cat")
    assert said.stdout.split() == ["0", "never", "C.UTF-8"]


def test_what_a_git_around_us_has_set_does_not_lead_it_astray(backend, frontend, monkeypatch):
    """As in a hook: there git has set where its repository is."""
    monkeypatch.setenv("GIT_DIR", str(frontend.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(frontend.path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(frontend.path / ".git" / "index"))
    found = GitProgram()(["rev-parse", "--show-toplevel"], cwd=backend.path)
    assert found.stdout.strip() == str(backend.path)


def test_a_failure_is_a_result(backend):
    found = GitProgram()(["rev-parse", "--verify", "nothing"], cwd=backend.path)
    assert found.returncode == 128
    assert "fatal" in found.stderr


def test_names_of_files_come_back_as_they_are(backend):
    odd = b"\xff\xfe caf\xc3\xa9".decode("utf-8", "surrogateescape")
    (backend.path / odd).write_text("x")
    found = GitProgram()(["ls-files", "--others", "-z"], cwd=backend.path)
    assert found.stdout == f"{odd}\0"


def test_passwords_in_addresses_are_not_told(backend, root):
    backend("remote", "set-url", "origin", "http://bob:hunter2@127.0.0.1:9/shop")
    with (
        pytest.raises(Unavailable) as refused,
        MultiWorktree([backend.request], "batman", "42", root),
    ):
        pass
    assert "hunter2" not in str(refused.value)
    assert "bob" not in str(refused.value)


def test_without_git_it_says_so(backend, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadConfiguration, match="not installed"):
        GitProgram()(["version"], cwd=backend.path)


def test_odd_names_are_kept_too(backend, root):
    odd = b"\xff\xfe caf\xc3\xa9".decode("utf-8", "surrogateescape")
    with MultiWorktree([backend.request], "batman", "42", root, now=17) as trees:
        (trees.specs[0].worktree_path / odd).write_text("x")
        (trees.specs[0].worktree_path / "-n").write_text("x")
    [found] = backend.recovered.values()
    listed = GitProgram()(["ls-tree", "-z", "--name-only", found], cwd=backend.path).stdout
    assert listed.split("\0") == ["-n", "README", odd, ""]
