"""S2. Actor: a handler in a worktree, as the worker's own user.

Attack: it writes settings, hooks and filters where the worker's git finds them: in its worktree,
and in the operator's clone beside the backlog. The worker's next git command runs them with the
token and the signing key in the environment.

Wall: the worktree has a repository of its own, the worker runs git on copies of its making, without
hooks and filters; and no git command of the worker has a secret in its environment.
"""

from pathlib import Path

import pytest
from tests.security.conftest import SECRETS, Victim
from tests.security.git_victims import begin, git, remote_repository, worked

from dibs.adapters.git import program
from dibs.worktrees import Apart, GitProgram, MultiWorktree, WorktreeRequest

LOOT = """#!/bin/sh
env >> '{loot}/loot'
{then}
"""


@pytest.fixture
def loot(tmp_path: Path) -> Path:
    """A folder with programs that write down the environment they are given."""
    folder = tmp_path / "loot"
    folder.mkdir()
    for name, then in {"hook": "exit 0", "filter": "exec cat", "transport": "exit 1"}.items():
        (folder / name).write_text(LOOT.format(loot=folder, then=then))
        (folder / name).chmod(0o755)
    return folder


def filters(loot: Path, where: str = ".") -> str:
    return f"""
    git -C {where} config filter.x.clean {loot}/filter
    git -C {where} config filter.x.smudge {loot}/filter
    git -C {where} config core.fsmonitor {loot}/hook
    echo '* filter=x' > .gitattributes; echo work > work
    """


def test_a_filter_in_its_own_worktree_is_not_run_when_the_work_is_saved(
    victim: Victim, loot: Path
) -> None:
    clone = begin(victim, f"{filters(loot)} exit 1", "first")
    victim.dibs("work", "--drain")
    assert not (loot / "loot").exists()
    [ref] = git(clone, "for-each-ref", "--format=%(refname)", "refs/dibs/recovered").splitlines()
    assert git(clone, "show", f"{ref}:work") == "work"
    assert "filter.x" not in git(clone, "config", "--local", "--list")


def test_a_filter_of_a_repository_inside_the_worktree_is_not_run(
    victim: Victim, loot: Path
) -> None:
    """Git asks a submodule for its state by the submodule's own settings."""
    inner = f"""
    git init --quiet inner; cd inner; {filters(loot)}
    git -c filter.x.clean=cat -c core.fsmonitor=false add .
    git -c filter.x.clean=cat -c core.fsmonitor=false commit --quiet -m inner
    cd ..; git add inner; touch -d 2001-01-01 inner/work
    """
    begin(victim, f"{inner} rm -f {loot}/loot; exit 1", "first")
    victim.dibs("work", "--drain")
    assert not (loot / "loot").exists()


def test_hooks_in_its_own_worktree_do_not_become_the_operators(victim: Victim, loot: Path) -> None:
    plant = 'hooks="$(git rev-parse --git-path hooks)"; mkdir -p "$hooks"'
    plant += "".join(
        f'; cp {loot}/hook "$hooks"/{name}' for name in ("post-checkout", "reference-transaction")
    )
    clone = begin(victim, plant, "first", "second")
    before = sorted((clone / ".git/hooks").iterdir())
    victim.dibs("work", "--drain")
    assert worked(victim) == {"first", "second"}
    assert sorted((clone / ".git/hooks").iterdir()) == before
    assert not (loot / "loot").exists()


def everywhere(loot: Path, clone: str) -> str:
    """Whatever git runs, named in the operator's clone, which the same user can write."""
    return f"""
    {filters(loot, clone)}
    for hook in post-checkout reference-transaction post-index-change; do
        cp {loot}/hook {clone}/.git/hooks/$hook
    done
    git -C {clone} config core.sshCommand {loot}/transport
    git -C {clone} config core.alternateRefsCommand {loot}/hook
    git -C {clone} config remote.origin.uploadpack '{loot}/hook; git-upload-pack'
    """


def test_what_it_writes_into_the_operators_clone_gets_no_secret(victim: Victim, loot: Path) -> None:
    begin(victim, everywhere(loot, "$DIBS_ROOT/shop"), "first", "second")
    victim.dibs("work", "--drain")
    assert worked(victim) == {"first", "second"}
    assert victim.leaked(loot) == {}


def test_control_what_the_operator_names_for_git_reaches_the_clones_programs(
    victim: Victim, loot: Path
) -> None:
    begin(victim, everywhere(loot, "$DIBS_ROOT/shop"), "first", "second")
    victim.dibs("work", "--drain", DIBS_GIT_ENV="PGPASSWORD,GITHUB_*")
    assert set(victim.leaked(loot)) == {"PGPASSWORD", "GITHUB_TOKEN"}


def test_a_hook_that_fails_does_not_stop_the_stage(victim: Victim) -> None:
    plant = r"""
    for hook in post-checkout reference-transaction pre-auto-gc; do
        printf '#!/bin/sh\nexit 1\n' > "$DIBS_ROOT/shop/.git/hooks/$hook"
        chmod +x "$DIBS_ROOT/shop/.git/hooks/$hook"
    done
    """
    begin(victim, plant, "first", "second", "third")
    victim.dibs("work", "--drain")
    assert worked(victim) == {"first", "second", "third"}


# Controls in this process: the wall is taken out, and the attack succeeds.


def whole_environment(*, named: bool) -> dict[str, str]:
    del named
    return program.without_git_variables()


@pytest.mark.parametrize("apart", [None, Apart()], ids=["wall out", "wall in"])
def test_control_a_shared_git_folder_and_the_whole_environment_give_the_secrets_away(
    tmp_path: Path, loot: Path, monkeypatch: pytest.MonkeyPatch, apart: Apart | None
) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("HOME", str(tmp_path))
    remote = remote_repository(tmp_path / "shop.git", {"README": "a shop\n"})
    git(tmp_path, "clone", "--quiet", str(remote), str(tmp_path / "shop"))
    monkeypatch.setattr(program, "git_environment", whole_environment)
    request = WorktreeRequest("shop", tmp_path / "shop")
    with MultiWorktree([request], "a", "1", tmp_path / "trees", GitProgram(), apart=apart) as made:
        path = made.specs[0].worktree_path
        git(path, "config", "filter.x.clean", str(loot / "filter"))
        (path / ".gitattributes").write_text("* filter=x\n")
    victim = Victim(tmp_path / "nobody")
    assert set(victim.leaked(loot)) == (set() if apart else set(SECRETS))
