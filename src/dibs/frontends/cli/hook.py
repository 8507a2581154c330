"""The pre-push hook: put it into a repository, take it out, and what git runs."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from dibs.core.errors import DibsError
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.references import parse_reference
from dibs.frontends.cli.context import Context, answering, as_json, dry_run
from dibs.frontends.cli.output import Answer, Exit
from dibs.hook.rules import (
    NotGits,
    Objection,
    Pusher,
    RefUpdate,
    firing_in,
    numbered_in,
    parse_updates,
    repository_at,
)
from dibs.settings import load as config
from dibs.settings.load import Settings

if TYPE_CHECKING:
    from dibs.hook.guard import Guarded

_SKIP = "LABEL_STATE_SKIP_DEDUP_CHECK"
_LARGEST_BODY = 1_000_000
_SIGNALLED = 128


@click.group("hook")
def hook_command() -> None:
    """Refuse pushes that would do work twice: the issue is another's, or has a pull request."""


# Putting it in, taking it out


@hook_command.command("install")
@dry_run
@as_json
@answering
def install_command(context: Context, dry_run: bool) -> Answer:
    """Put the pre-push hook into this repository. A hook that is there is kept, and run first."""
    from dibs.wiring.services import git_hooks

    done = git_hooks(context.directory).install(dry_run=dry_run)
    verb = "would be put in" if dry_run else "is put in"
    lines = [f"the pre-push hook {verb if done.changed else 'is there already'}: {done.path}"]
    if done.chained:
        lines.append("  the hook that was there before is run first")
    data = {"path": str(done.path), "changed": done.changed, "chained": done.chained}
    return Answer(data, lines, warnings=done.remarks)


@hook_command.command("uninstall")
@dry_run
@as_json
@answering
def uninstall_command(context: Context, dry_run: bool) -> Answer:
    """Take the pre-push hook out, and put back what was there before. Exit 3 if it is not there."""
    from dibs.wiring.services import git_hooks

    done = git_hooks(context.directory).uninstall(dry_run=dry_run)
    data = {"path": str(done.path), "changed": done.changed, "restored": done.chained}
    if not done.changed:
        return Answer(data, [f"{done.path} is none of ours"], Exit.NOTHING)
    verb = "would be taken out" if dry_run else "is taken out"
    lines = [f"the pre-push hook {verb}: {done.path}"]
    if done.chained:
        lines.append("  the hook that was there before is back")
    return Answer(data, lines)


# What git runs


@hook_command.command("run")
@click.option(
    "--before",
    default="",
    metavar="FILE",
    help="A hook that is run first, with the same input; empty for none.",
)
@click.option(
    "--body",
    "bodies",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The text of a pull request that is to be opened; may be repeated.",
)
@click.argument("remote", required=False, default="")
@click.argument("address", required=False, default="")
@as_json
@answering
def run_command(
    context: Context, before: str, bodies: Sequence[Path], remote: str, address: str
) -> Answer:
    """Look at the issues that a push would close. Exit 1 if it may not go out.

    Git runs it with the remote's name and address, and one line for each ref on standard input.
    """
    said = b"" if bodies and sys.stdin.isatty() else _said()
    if (refused := _run_before(before, [remote, address], said)) is not None:
        return refused
    if os.environ.get(_SKIP, "") not in ("", "0"):
        return Answer({"skipped": _SKIP}, warnings=[f"dibs: {_SKIP} is set: nothing was checked"])
    try:
        settings = _settings(context)
    except DibsError as flaw:
        return Answer({"unchecked": [str(flaw)]}, warnings=[f"dibs: nothing was checked: {flaw}"])
    if settings is None:
        return Answer({"unchecked": []})  # no backlog, nothing to guard
    texts = [path.read_bytes()[:_LARGEST_BODY].decode("utf-8", "replace") for path in bodies]
    try:
        guarded = _guarded(settings, context.directory, said, texts, (remote, address))
    except (DibsError, NotGits) as failure:
        return _answer(settings, None, [str(failure)])
    return _answer(settings, guarded, [])


def _said() -> bytes:
    if sys.stdin.isatty():
        raise click.UsageError("git runs this and says on standard input what is pushed")
    return sys.stdin.buffer.read()


def _run_before(before: str, arguments: Sequence[str], said: bytes) -> Answer | None:
    """What the hook says that was there before, if that is no."""
    if not before:
        return None
    words = [before, *arguments]
    try:
        ran = _fed(words, said)
    except OSError as flaw:
        if flaw.errno != errno.ENOEXEC:
            return Answer(None, [f"dibs: {before} cannot be run: {flaw.strerror}"], Exit.ERROR)
        ran = _fed(["/bin/sh", *words], said)  # as git does with a script that names no interpreter
    code = ran if ran >= 0 else _SIGNALLED - ran
    return Answer({"before": before, "exit": code}, [], code) if code else None


def _fed(words: Sequence[str], said: bytes) -> int:
    return subprocess.run(words, input=said, check=False, timeout=None).returncode


def _settings(context: Context) -> Settings | None:
    """Those of the folder, of the run's worker, or of the first working tree of a linked one.

    None if there is no backlog. Raises BadConfiguration.
    """
    from dibs.wiring.services import backlog_is_absent, first_working_tree

    settings = context.settings
    if not backlog_is_absent(settings):
        return settings
    if context.config_file is not None:
        return None
    root = os.environ.get("DIBS_ROOT", "")  # a run's worktree may be of any repository
    for place in (Path(root) if root else None, first_working_tree(context.directory)):
        if place is None or place == context.directory:
            continue
        settings = config.load(start=place)
        if not backlog_is_absent(settings):
            return settings
    return None


def _guarded(
    settings: Settings,
    folder: Path,
    said: bytes,
    bodies: Sequence[str],
    pushed_to: tuple[str, str],
) -> "Guarded":
    from dibs.wiring.services import connect, impatiently, pushed_commits

    remote, address = pushed_to
    updates = parse_updates(said)
    pushed = pushed_commits(folder).messages(updates, remote)
    seconds = settings.hook.timeout.total_seconds()
    hurried = replace(settings.github, timeout=min(settings.github.timeout, settings.hook.timeout))

    def look() -> "Guarded":
        services = connect(replace(settings, github=hurried), author=config.actor(), create=False)
        try:
            traits = services.tracker.traits
            tracked = traits.repos or (traits.repo,)
            numbered = numbered_in(address, tracked)
            place = repository_at(address) or numbered or ""
            pusher = _pusher(folder, updates, pushed.messages, place, tracked)
            found = services.guarding.judge(pushed.messages, bodies, pusher, numbered)
        finally:
            services.close()
        unread = (pushed.unread,) if pushed.unread else ()
        return replace(found, unchecked=(*found.unchecked, *unread))

    return impatiently(look, seconds)


def _pusher(
    folder: Path,
    updates: Sequence[RefUpdate],
    messages: Sequence[str],
    place: str,
    tracked: Sequence[str],
) -> Pusher:
    """The environment says who a handler is; a shell goes by what was taken in its working tree."""
    firings = (firing_in(message) for message in messages)
    alike = [one for one in tracked if one.casefold() == place.casefold()]
    branches = (update.branch for update in updates)
    pusher = Pusher(
        firings=frozenset(firing for firing in firings if firing is not None),
        branches=frozenset(branch for branch in branches if branch is not None),
        repo=alike[0] if alike else place,
    )
    run = os.environ.get("DIBS_RUN", "")
    if not run:
        from dibs.wiring.services import run_file

        noted = run_file(folder)
        return replace(pusher, runs=frozenset(noted.runs() if noted is not None else ()))
    if runs := os.environ.get("DIBS_RUNS", "").split():  # of a bundle: the fence is one of many
        return replace(pusher, runs=frozenset(map(RunId, (run, *runs))))
    fence = os.environ.get("DIBS_FENCE", "")
    return replace(
        pusher,
        runs=frozenset({RunId(run)}),
        issue=_reference(os.environ.get("DIBS_ISSUE", ""), tracked),
        fence=Fence(int(fence)) if fence.isascii() and fence.isdigit() else None,
    )


def _reference(text: str, tracked: Sequence[str]) -> IssueRef | None:
    try:
        return parse_reference(text, default_repo=tracked[0], repos=tracked) if text else None
    except DibsError:
        return None


# What is said


def _answer(settings: Settings, guarded: "Guarded | None", failures: list[str]) -> Answer:
    unchecked = [*failures, *(guarded.unchecked if guarded else ())]
    objections = guarded.objections if guarded else ()
    data: dict[str, Any] = {
        "issues": [str(issue) for issue in guarded.issues] if guarded else [],
        "objections": [_objection_data(one) for one in objections],
        "remarks": list(guarded.remarks) if guarded else [],
        "unchecked": unchecked,
        "strict": settings.hook.strict,
    }
    remarks = [f"dibs: {remark}" for remark in data["remarks"]]
    if objections:
        warnings = [*remarks, *(f"dibs: not checked: {one}" for one in unchecked)]
        return Answer(data, _refusal(objections), Exit.ERROR, warnings=warnings)
    if unchecked and settings.hook.strict:
        lines = [f"dibs: the push is refused, because it could not be checked: {unchecked[0]}"]
        lines += [f"  also: {one}" for one in unchecked[1:]]
        lines.append("  [hook] strict is set; try again, or say so to whoever keeps the backlog")
        return Answer(data, lines, Exit.ERROR, warnings=remarks)
    doubts = [f"dibs: the push was not checked: {one}" for one in unchecked]
    return Answer(data, warnings=[*remarks, *doubts])


def _objection_data(objection: Objection) -> dict[str, str]:
    return {
        "issue": str(objection.issue),
        "code": objection.code,
        "text": objection.text,
        "look": objection.look,
    }


def _refusal(objections: Sequence[Objection]) -> list[str]:
    lines = ["dibs: the push is refused: it says that it closes what is not yours to close"]
    for one in objections:
        lines.append(f"  {one.issue} {one.code}: {one.text}")
        lines.append(f"    {one.look}")
    lines.append("  If the lease is yours, push with DIBS_RUN set to its run.")
    return lines
