"""The hook in real repositories: put in, chained, taken out, and nothing ever lost."""

import os
import shutil
import stat
import sys

import pytest

LOG = """#!/bin/sh
# somebody's own hook
{ echo "args: $*"; cat; } >> "$LOG"
exit ${VERDICT:-0}
"""


def hook_of(clone):
    return clone.folder / ".git" / "hooks" / "pre-push"


def install(clone, *words):
    done = clone.dibs("hook", "install", *words)
    assert done.code == 0, done.err
    return done


def test_it_is_put_in_once_and_taken_out_again(clone):
    hook = hook_of(clone)
    assert str(hook) in install(clone).out
    text = hook.read_text()
    assert sys.executable in text
    assert stat.S_IMODE(hook.stat().st_mode) & 0o111
    assert "is installed already" in install(clone).out
    assert hook.read_text() == text
    assert clone.dibs("hook", "uninstall").code == 0
    assert not hook.exists()
    assert clone.dibs("hook", "uninstall").code == 3, "there is nothing to take out"


def test_a_dry_run_writes_nothing(clone):
    assert "would be installed" in install(clone, "--dry-run").out
    assert not hook_of(clone).exists()
    install(clone)
    assert "would be removed" in clone.dibs("hook", "uninstall", "--dry-run").out
    assert hook_of(clone).exists()


def test_a_hook_that_is_there_is_run_first_with_the_same_input_and_put_back(clone, tmp_path):
    hook, log = hook_of(clone), tmp_path / "log"
    hook.write_text(LOG)
    hook.chmod(0o755)
    assert "the hook from before runs first" in install(clone).out
    assert "is installed already" in install(clone).out
    sha = clone.commit("Nothing to close")
    before = clone.git("rev-parse", "origin/main")
    assert clone.push("main", LOG=str(log)).went_out
    assert log.read_text() == (
        f"args: origin {clone.remote}\nrefs/heads/main {sha} refs/heads/main {before}\n"
    )
    assert "is restored" in clone.dibs("hook", "uninstall").out
    assert hook.read_text() == LOG
    assert stat.S_IMODE(hook.stat().st_mode) == 0o755
    assert sorted(path.name for path in hook.parent.glob("pre-push*")) == [
        "pre-push",
        "pre-push.sample",
    ]


def test_what_the_hook_before_refuses_stays_refused(clone, tmp_path):
    hook = hook_of(clone)
    hook.write_text(LOG)
    hook.chmod(0o755)
    install(clone)
    clone.commit("Nothing to close")
    refused = clone.push("main", LOG=str(tmp_path / "log"), VERDICT="7")
    assert refused.code != 0
    assert "dibs" not in refused.err


@pytest.mark.parametrize("how", ["no interpreter", "does not read", "not executable", "a link"])
def test_hooks_of_all_sorts_are_chained(clone, tmp_path, how):
    hook, log = hook_of(clone), tmp_path / "log"
    text = LOG.partition("\n")[2] if how == "no interpreter" else LOG
    if how == "does not read":
        text = '#!/bin/sh\necho "args: $*" >> "$LOG"\n'
    place = hook if how != "a link" else hook.with_name("shared.sh")
    place.write_text(text)
    place.chmod(0o644 if how == "not executable" else 0o755)
    if how == "a link":
        hook.symlink_to("shared.sh")
    install(clone)
    clone.commit("Nothing to close")
    assert clone.push("main", LOG=str(log)).went_out
    assert log.exists() is (how != "not executable"), "git runs no hook that is not executable"
    clone.dibs("hook", "uninstall")
    assert hook.is_symlink() is (how == "a link")
    assert hook.read_text() == text


def test_it_goes_where_core_hookspath_says(clone):
    clone.git("config", "core.hooksPath", ".githooks")
    done = install(clone)
    assert (clone.folder / ".githooks" / "pre-push").exists()
    assert "may be committed" in done.err
    assert not hook_of(clone).exists()
    (clone.folder / "deep").mkdir()
    deeper = clone.beside(clone.folder / "deep")
    assert "is installed already" in install(deeper).out
    assert deeper.dibs("hook", "uninstall").code == 0


def test_hooks_of_all_repositories_are_told_of(clone, tmp_path):
    clone.git("config", "--global", "core.hooksPath", str(tmp_path / "everywhere"))
    assert "for all repositories" in install(clone).err
    assert (tmp_path / "everywhere" / "pre-push").exists()


def test_one_hook_does_for_all_working_trees(clone):
    tree = clone.worktree("second", "-b", "second")
    install(tree)
    assert hook_of(clone).exists()
    assert "is installed already" in install(clone).out


def test_huskys_own_folder_is_left_to_husky(clone):
    (clone.folder / ".husky" / "_").mkdir(parents=True)
    clone.git("config", "core.hooksPath", ".husky/_")
    done = clone.dibs("hook", "install")
    assert done.code == 1
    assert ".husky/pre-push" in done.err


def test_a_hook_that_somebody_changed_is_not_touched(clone):
    install(clone)
    hook = hook_of(clone)
    hook.write_text(hook.read_text() + "echo mine\n")
    for word in ("install", "uninstall"):
        done = clone.dibs("hook", word)
        assert done.code == 1
        assert "somebody changed" in done.err
    assert hook.read_text().endswith("echo mine\n")


def test_two_hooks_for_one_place_are_left_to_a_person(clone):
    """Another tool wrote over ours, while the one from before is still kept."""
    hook = hook_of(clone)
    hook.write_text(LOG)
    hook.chmod(0o755)
    install(clone)
    hook.write_text("#!/bin/sh\n# overwritten by another tool\n")
    done = clone.dibs("hook", "install")
    assert done.code == 1
    assert "look which of them is wanted" in done.err
    assert clone.dibs("hook", "uninstall").code == 3
    assert hook.with_name("pre-push.before-dibs").read_text() == LOG


def test_a_tool_that_moved_ours_aside_and_runs_it_is_left_to_do_so(clone):
    """As pre-commit does; chaining the two would run each other for ever."""
    install(clone)
    hook = hook_of(clone)
    hook.rename(hook.with_name("pre-push.legacy"))
    hook.write_text('#!/bin/sh\nexec $(dirname $0)/pre-push.legacy "$@"\n')
    hook.chmod(0o755)
    done = clone.dibs("hook", "install")
    assert done.code == 1
    assert "pre-push.legacy" in done.err


def test_a_crash_between_two_steps_is_gone_on_from(clone, tmp_path):
    hook = hook_of(clone)
    kept = hook.with_name("pre-push.before-dibs")
    kept.write_text(LOG)
    kept.chmod(0o755)
    assert "the hook from before runs first" in install(clone).out
    hook.unlink()
    assert clone.dibs("hook", "uninstall").code == 0
    assert hook.read_text() == LOG
    assert not kept.exists()


def test_an_interpreter_that_moved_is_replaced_by_another_install(clone):
    install(clone)
    hook = hook_of(clone)
    hook.write_text(hook.read_text().replace(sys.executable, "/gone/python"))
    assert "is installed: " in install(clone).out
    assert sys.executable in hook.read_text()


def test_without_the_program_the_hook_says_so_and_runs_the_one_before(clone, tmp_path):
    hook, log = hook_of(clone), tmp_path / "log"
    hook.write_text(LOG)
    hook.chmod(0o755)
    install(clone)
    hook.write_text(hook.read_text().replace(sys.executable, "/gone/python"))
    clone.commit("Nothing to close")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("git", "dirname", "cat", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    done = clone.push("main", LOG=str(log), PATH=str(tools))
    assert done.went_out
    assert "nothing was checked" in done.err
    assert "refs/heads/main" in log.read_text()


def test_a_folder_of_the_repository_that_is_called_like_us_is_not_run(clone):
    """Python looks for modules where it is started, unless it is told not to."""
    clone.write("dibs/__init__.py", "raise SystemExit('hijacked')")
    clone.write("dibs/__main__.py", "raise SystemExit('hijacked')")
    clone.write("json.py", "raise SystemExit('hijacked')")
    install(clone)
    clone.commit("Nothing to close")
    done = clone.push("main")
    assert done.went_out
    assert "hijacked" not in done.err


def test_outside_of_a_repository_there_is_nowhere_to_put_it(tmp_path, clone):
    done = clone.beside(tmp_path).dibs("hook", "install")
    assert done.code == 1
    assert "is in no git repository: run it again inside one" in done.err


def test_a_folder_that_cannot_be_written_is_named(clone):
    if os.geteuid() == 0:
        hooks = hook_of(clone).parent
        shutil.rmtree(hooks)
        hooks.write_text("a file")
        done = clone.dibs("hook", "install")
    else:
        hook_of(clone).parent.chmod(0o555)
        done = clone.dibs("hook", "install")
    assert done.code in (1, 2)
    assert "hooks" in done.err
    assert "Traceback" not in done.err
