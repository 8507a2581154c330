"""`dibs hook`: install and remove the pre-push hook, and the check that git runs."""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict, replace

from dibs.core.errors import BadConfiguration, DibsError
from dibs.core.ids import Fence, RunId
from dibs.core.references import parse_reference, without_secrets
from dibs.frontends.cli.context import Context, command, dry_run
from dibs.frontends.cli.output import Answer, Exit, all_masked
from dibs.hook.rules import (
    NotGits,
    Pusher,
    RefUpdate,
    firing_in,
    numbered_in,
    parse_updates,
    repository_at,
    server_at,
)
from dibs.settings import load as config
from dibs.settings.load import Settings

if TYPE_CHECKING:
    from dibs.hook.guard import Guarded

_SKIP = "LABEL_STATE_SKIP_DEDUP_CHECK"
_LARGEST_BODY = 1_000_000
_SIGNALLED = 128
_MOST_LISTED = 5
_ANY = "REPOSITORY"


@click.group("hook")
def hook_command() -> None:
    """Refuse pushes for issues that another holds or that have a pull request."""


# Putting it in, taking it out


@command("install", hook_command)
@dry_run
def install_command(context: Context, dry_run: bool) -> Answer:
    """Install the pre-push hook in this repository. An existing hook is kept, and runs first."""
    from dibs.hook.git import GitHooks
    from dibs.wiring.services import connect

    done = GitHooks.of(context.directory).install(dry_run=dry_run)
    verb = "would be installed" if dry_run else "is installed"
    lines = [f"the pre-push hook {verb if done.changed else 'is installed already'}: {done.path}"]
    if done.chained:
        lines.append("  the hook from before runs first")
    data = {"path": str(done.path), "changed": done.changed, "chained": done.chained}
    try:
        settings = _find_settings(context.settings)
        connect(settings, author=config.actor(), create=False).close()  # is there a token?
    except DibsError as flaw:
        nothing = f"dibs: the hook checks nothing yet: {flaw}"
        return Answer({**data, "backlog": None}, lines, warnings=(*done.remarks, nothing))
    lines.append(f"  it checks the issues of {_described(settings)}")
    return Answer({**data, "backlog": _described(settings)}, lines, warnings=done.remarks)


@command("uninstall", hook_command)
@dry_run
def uninstall_command(context: Context, dry_run: bool) -> Answer:
    """Remove the pre-push hook, and restore the hook from before. Exit 3 if not installed."""
    from dibs.hook.git import GitHooks

    done = GitHooks.of(context.directory).uninstall(dry_run=dry_run)
    data = {"path": str(done.path), "changed": done.changed, "restored": done.chained}
    if not done.changed:
        return Answer(data, [f"there is no hook of dibs at {done.path}"], Exit.NOTHING)
    verb = "would be removed" if dry_run else "is removed"
    lines = [f"the pre-push hook {verb}: {done.path}"]
    if done.chained:
        lines.append("  the hook from before is restored")
    return Answer(data, lines)


# What git runs


@command("run", hook_command)
@click.option(
    "--before",
    default="",
    metavar="FILE",
    help="A hook to run first, with the same input; empty for none.",
)
@click.option(
    "--body",
    "bodies",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file with the text of a new pull request; may be repeated.",
)
@click.argument("remote", required=False, default="")
@click.argument("address", required=False, default="")
def run_command(
    context: Context, before: str, bodies: Sequence[Path], remote: str, address: str
) -> Answer:
    """Check the issues that a push would close. Exit 1 if the push is refused.

    Git runs the check with the remote's name and address, and a line for each ref on standard
    input.
    """
    pushed = b""
    if not sys.stdin.isatty():
        pushed = sys.stdin.buffer.read()
    elif not bodies:
        raise click.UsageError("git runs this command, with the pushed refs on standard input")
    if (refused := _run_earlier_hook(before, [remote, address], pushed)) is not None:
        return refused
    if os.environ.get(_SKIP, "") not in ("", "0"):
        return Answer({"skipped": _SKIP}, warnings=[f"dibs: {_SKIP} is set: nothing was checked"])
    from dibs.hook.guard import Guarded

    settings: Settings | None = None
    try:
        settings = context.settings
        settings = _find_settings(settings, address)
    except DibsError as flaw:
        if settings is not None and settings.hook.strict:
            return _answer(Guarded(unchecked=(str(flaw),)), settings)
        unchecked = all_masked([str(flaw)])
        return Answer({"unchecked": unchecked}, warnings=[f"dibs: nothing was checked: {flaw}"])
    texts = [path.read_bytes()[:_LARGEST_BODY].decode("utf-8", "replace") for path in bodies]
    try:
        guarded = _check_push(settings, context.directory, pushed, texts, (remote, address))
    except (DibsError, NotGits) as failure:
        guarded = Guarded(unchecked=(str(failure),))
    return _answer(guarded, settings)


def _run_earlier_hook(before: str, arguments: Sequence[str], pushed: bytes) -> Answer | None:
    """Run the hook that was installed before ours. Returns an answer only if the hook fails."""
    if not before:
        return None
    words = [before, *arguments]
    try:
        ran = subprocess.run(words, input=pushed, check=False, timeout=None)
    except OSError as flaw:
        if flaw.errno != errno.ENOEXEC:
            return Answer(None, [f"dibs: {before} cannot be run: {flaw.strerror}"], Exit.ERROR)
        words.insert(0, "/bin/sh")  # as git does with a script that names no interpreter
        ran = subprocess.run(words, input=pushed, check=False, timeout=None)
    code = ran.returncode if ran.returncode >= 0 else _SIGNALLED - ran.returncode
    return Answer({"before": before, "exit": code}, [], code) if code else None


def _find_settings(settings: Settings, address: str | None = None) -> Settings:
    """The given settings; without a backlog, settings by the environment.

    GH_ORG names the owner of a fleet's repositories, and the remote at `address` the repository:
    no address names a server that gets the token. Without an address, `_ANY` stands for the
    repository. Raises BadConfiguration if no issue can be checked.
    """
    from dibs.wiring.services import backlog_is_absent, unused_above

    owner = os.environ.get("GH_ORG", "").strip()
    if not backlog_is_absent(settings):
        return settings
    if settings.file is not None or not owner:
        above = unused_above(settings)
        missing = f"there is no backlog in {settings.root}{above and f'; {above}'}"
        unset = "and GH_ORG is not set; dibs hook uninstall removes this hook"
        raise BadConfiguration(missing if settings.file else f"{missing}, {unset}")
    from dibs.label_state.backlogs import published_settings
    from dibs.wiring.trackers import github_server

    server, named = github_server(), _ANY
    if address is not None:
        at, named = server_at(address), (repository_at(address) or "").rpartition("/")[2]
        # A name without a dot is an alias of ssh's settings, which only ssh can resolve. GitHub
        # has a second name for ssh; what is under other names, such as gists, has no issues.
        if not named or ("." in at and at not in (server, f"ssh.{server}")):
            shown = f"{without_secrets(address)} is" if address else "the remote has no address:"
            raise BadConfiguration(f"GH_ORG is set, and {shown} no repository on {server}")
    return published_settings(f"{owner}/{named}", settings)


def _described(settings: Settings) -> str:
    """The backlog in words for people: the place of the issues, and the origin of the settings."""
    tracker = without_secrets(settings.tracker)
    return tracker if settings.file is None else f"{tracker} ({settings.file})"


def _check_push(
    settings: Settings,
    folder: Path,
    refs: bytes,
    bodies: Sequence[str],
    pushed_to: tuple[str, str],
) -> "Guarded":
    """Ask the tracker about the issues closed by the pushed commits, within a time limit.

    The limit is for the tracker's answers. The work of a busy machine comes before: reading the
    commits, importing, building the services.
    """
    from dibs.hook.git import PushedCommits
    from dibs.wiring.services import connect, with_timeout

    remote, address = pushed_to
    updates = parse_updates(refs)
    pushed = PushedCommits(folder).messages(updates, remote)
    services = connect(settings, author=config.actor(), create=False)
    try:
        traits = services.tracker.traits
        tracked = traits.repos or (traits.repo,)
        numbered = numbered_in(address, tracked)
        place = repository_at(address) or numbered or ""
        pusher = _describe_pusher(folder, updates, pushed.messages, place, tracked)
        guarding = services.guarding
    except BaseException:
        services.close()
        raise

    def look() -> "Guarded":
        try:
            return guarding.judge(pushed.messages, bodies, pusher, numbered)
        finally:
            services.close()

    found = with_timeout(look, settings.hook.timeout.total_seconds())
    unread = (pushed.unread,) if pushed.unread else ()
    return replace(found, unchecked=(*found.unchecked, *unread))


def _describe_pusher(
    folder: Path,
    updates: Sequence[RefUpdate],
    messages: Sequence[str],
    place: str,
    tracked: Sequence[str],
) -> Pusher:
    """Who pushes: the firings, branches, repository and runs that the push can show.

    A handler has its run in the environment. In the shell of a person, the runs are in the note
    that `dibs take` and `dibs claim` leave in the working tree.
    """
    firings = (firing_in(message) for message in messages)
    alike = [repo for repo in tracked if repo.casefold() == place.casefold()]
    branches = (update.branch for update in updates)
    pusher = Pusher(
        firings=frozenset(firing for firing in firings if firing is not None),
        branches=frozenset(branch for branch in branches if branch is not None),
        repo=alike[0] if alike else place,
    )
    run = os.environ.get("DIBS_RUN", "")
    if not run:
        from dibs.hook.run_files import run_file

        noted = run_file(folder)
        return replace(pusher, runs=frozenset(noted.runs() if noted is not None else ()))
    if runs := os.environ.get("DIBS_RUNS", "").split():  # a bundle: DIBS_FENCE is one of several
        return replace(pusher, runs=frozenset(map(RunId, (run, *runs))))
    issue = None
    if named := os.environ.get("DIBS_ISSUE", ""):
        with contextlib.suppress(DibsError):
            issue = parse_reference(named, default_repo=tracked[0], repos=tracked)
    fence = os.environ.get("DIBS_FENCE", "")
    return replace(
        pusher,
        runs=frozenset({RunId(run)}),
        issue=issue,
        fence=Fence(int(fence)) if fence.isascii() and fence.isdigit() else None,
    )


def _answer(guarded: "Guarded", settings: Settings) -> Answer:
    """Refuse the push for any objection, and with `[hook] strict` also if a check failed.

    Every push prints a line with the checks made, or the reason for none.
    """
    objections, unchecked, strict = guarded.objections, guarded.unchecked, settings.hook.strict
    listed = [asdict(objection) for objection in objections]
    data = {**all_masked(asdict(guarded)), "objections": all_masked(listed), "strict": strict}
    remarks = [f"dibs: {remark}" for remark in guarded.remarks]
    if objections:
        lines = ["dibs: the push is refused: it would close issues that are not yours to close"]
        for objection in objections:
            lines.append(f"  {objection.issue} {objection.code}: {objection.text}")
            lines.append(f"    {objection.look}")
        lines.append("  If the lease is yours, push with DIBS_RUN set to its run.")
        warnings = [*remarks, *(f"dibs: not checked: {why}" for why in unchecked)]
        return Answer(data, lines, Exit.ERROR, warnings=warnings)
    if unchecked and strict:
        lines = [f"dibs: the push is refused, because it could not be checked: {unchecked[0]}"]
        lines += [f"  also: {why}" for why in unchecked[1:]]
        lines.append("  [hook] strict is set; try again, or tell the people who run the backlog")
        return Answer(data, lines, Exit.ERROR, warnings=remarks)
    issues = [str(issue) for issue in guarded.issues]
    more = f" and {len(issues) - _MOST_LISTED} more" if len(issues) > _MOST_LISTED else ""
    if issues:
        told = [f"dibs: not checked: {why}" for why in unchecked]
        told.append(
            f"dibs: checked {', '.join(issues[:_MOST_LISTED])}{more}: nobody else is at work"
        )
    elif unchecked:
        told = [f"dibs: the push was not checked: {why}" for why in unchecked]
    else:
        told = [f"dibs: the push closes no issue of {_described(settings)}"]
    return Answer(data, warnings=[*remarks, *told])
