"""Repositories that a person has taken offline: on this machine, and for everybody.

The file is the one that runners of the state machine on this machine read. A pause is also written
to the tracker's pause log, which workers of dibs read on every machine. A file that cannot be read
stops claims, because it may name any repository.
"""

import fcntl
import json
import logging
from pathlib import Path

from dibs.adapters.system import replace_whole
from dibs.core.eligibility import PauseScope
from dibs.core.errors import Damaged, DibsError, Outage
from dibs.label_state.backlogs import Backlog, NoOrganisation, backlog_of, full_slug
from dibs.label_state.labels import LabelStateConfig
from dibs.settings import load as config

_log = logging.getLogger("dibs.label_state")
_HOME = LabelStateConfig.from_env().alfred_home
PAUSED_REPOS_FILE = Path(_HOME or Path.home() / ".alfred") / "state" / "paused-repos.json"


# The file


def paused_by_file(slug: str) -> bool:
    """Whether this machine's file lists the repository. True if the file cannot be read.

    Two slugs with owners must be equal, in any capitals. Without GH_ORG a slug may lack an owner;
    then the repository's name decides, because `backend` may be anybody's.
    """
    try:
        listed = list_paused_repos()
    except Damaged as flaw:
        _log.warning("%s: taken as paused: %s", slug, flaw)
        return True
    asked = _comparable(slug)
    name = asked.rpartition("/")[2]
    return any(
        asked == paused if "/" in asked and "/" in paused else name == paused.rpartition("/")[2]
        for paused in map(_comparable, listed)
    )


def _comparable(slug: str) -> str:
    """The slug in lower case, with the owner if GH_ORG or the slug gives one."""
    try:
        return full_slug(slug).casefold()
    except NoOrganisation:
        return slug.strip().casefold()


def list_paused_repos() -> list[str]:
    """The repositories in this machine's file, as people named them.

    Raises Damaged if the file cannot be read or does not hold a list of names.
    """
    try:
        text = PAUSED_REPOS_FILE.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as flaw:
        raise Damaged(f"{PAUSED_REPOS_FILE} cannot be read: {flaw}") from flaw
    try:
        repos = json.loads(text)["paused"] or []
        if isinstance(repos, list) and all(isinstance(repo, str) for repo in repos):
            return repos
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Damaged(f'{PAUSED_REPOS_FILE} is not of the form {{"paused": ["OWNER/REPO"]}}')


# The file and the tracker's log


def is_repo_paused(repo_slug: str) -> bool:
    """Whether a person has paused the repository, in the file or in the tracker's log.

    Also True if the file cannot be read, or if a configured tracker does not answer. Where no
    tracker is configured, the file alone decides.
    """
    if paused_by_file(repo_slug):
        return True
    try:
        backlog = backlog_of(repo_slug)
    except DibsError as flaw:
        _log.info("%s: no tracker to ask: %s", repo_slug, flaw)
        return False
    try:
        return paused_by_log(backlog)
    except Outage as failure:
        _log.warning("%s: taken as paused: %s", repo_slug, failure)
        return True


def paused_by_log(backlog: Backlog) -> bool:
    return any(
        pause.scope is PauseScope.FLEET or pause.repo == backlog.repo
        for pause in backlog.services.adapters.pauses.pauses()
    )


def pause_in_log(backlog: Backlog) -> None:
    scope, by = PauseScope.REPOSITORY, config.actor()
    backlog.services.adapters.pauses.pause(scope, repo=backlog.repo, reason="label-state", by=by)


def set_repo_paused(repo_slug: str, paused: bool) -> list[str]:  # noqa: FBT001 - as it is published
    """Pause or resume a repository in the file and in the tracker's log.

    Returns the new list of the file. If the tracker cannot be reached, only the file is changed,
    and a warning is logged.
    """
    try:
        PAUSED_REPOS_FILE.parent.mkdir(parents=True, exist_ok=True)
        with PAUSED_REPOS_FILE.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one writer at a time on this machine
            wanted = _comparable(repo_slug)
            remaining = [repo for repo in list_paused_repos() if _comparable(repo) != wanted]
            repos = sorted({*remaining, *([repo_slug.strip()] if paused else [])})
            replace_whole(PAUSED_REPOS_FILE, json.dumps({"paused": repos}, indent=2).encode())
    except OSError as flaw:
        raise Damaged(f"{PAUSED_REPOS_FILE} cannot be written: {flaw}") from flaw
    try:
        backlog = backlog_of(repo_slug)
        if not paused:
            log = backlog.services.adapters.pauses
            log.resume(PauseScope.REPOSITORY, repo=backlog.repo, by=config.actor())
        elif not paused_by_log(backlog):
            pause_in_log(backlog)
    except DibsError as failure:
        _log.warning("%s: only this machine knows of it: %s", repo_slug, failure)
    return repos
