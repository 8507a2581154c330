"""Repositories that a person has taken offline: on this machine, and for everybody.

The file is the one that the state machine's runners on this machine read. Beside it the tracker's
own log is written, which runners of ours read on every machine. A file that cannot be read stops
claims: nobody knows what a person has said in it.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dibs.core.eligibility import PauseScope
from dibs.core.errors import Damaged, DibsError, Outage
from dibs.label_state.backlogs import Backlog, NoOrganisation, backlog_of, full_slug
from dibs.label_state.labels import LabelStateConfig
from dibs.settings import load as config

_log = logging.getLogger("dibs.label_state")
PAUSED_REPOS_FILE = LabelStateConfig.from_env().alfred_home / "state" / "paused-repos.json"


# The file


def paused_by_file(slug: str) -> bool:
    """What only this machine knows. True if the file cannot be read: doubt is no permission."""
    try:
        return any(_same(slug, one) for one in _read())
    except Damaged as flaw:
        _log.warning("%s: taken as paused: %s", slug, flaw)
        return True


def list_paused_repos() -> list[str]:
    """As they were named. Raises Damaged if the file says nothing that can be read."""
    return _read()


def _same(one: str, other: str) -> bool:
    """`backend` and `acme/backend` are one repository where GH_ORG says so, in any capitals.

    Where nobody says whose `backend` is, it may be anybody's.
    """
    known, asked = _known(one), _known(other)
    if "/" in known and "/" in asked:
        return known == asked
    return known.rpartition("/")[2] == asked.rpartition("/")[2]


def _known(slug: str) -> str:
    try:
        return full_slug(slug).casefold()
    except NoOrganisation:
        return slug.strip().casefold()


def _read() -> list[str]:
    try:
        text = PAUSED_REPOS_FILE.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as flaw:
        raise Damaged(f"{PAUSED_REPOS_FILE} cannot be read: {flaw}") from flaw
    try:
        told = json.loads(text)["paused"] or []
        if isinstance(told, list) and all(isinstance(one, str) for one in told):
            return told
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Damaged(f'{PAUSED_REPOS_FILE} is not of the form {{"paused": ["OWNER/REPO"]}}')


@contextmanager
def _alone() -> Iterator[None]:
    """One writer at a time, on this machine."""
    PAUSED_REPOS_FILE.parent.mkdir(parents=True, exist_ok=True)
    with PAUSED_REPOS_FILE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(repos: list[str]) -> None:
    """The old list or the new one, whatever crashes in between."""
    part = PAUSED_REPOS_FILE.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump({"paused": repos}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    part.replace(PAUSED_REPOS_FILE)


# For everybody


def is_repo_paused(repo_slug: str) -> bool:
    """Whether a person has taken it offline, here or for everybody. True if nobody can say."""
    if paused_by_file(repo_slug):
        return True
    backlog = _backlog(repo_slug)
    if backlog is None:
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


def set_repo_paused(repo_slug: str, paused: bool) -> list[str]:  # noqa: FBT001 - as it is published
    """Take a repository offline, or back. The list of this machine's, as it is then.

    Where the tracker cannot be reached, only this machine knows, and a warning says so.
    """
    try:
        with _alone():
            others = [one for one in _read() if _known(one) != _known(repo_slug)]
            now = sorted({*others, *([repo_slug.strip()] if paused else [])})
            _write(now)
    except OSError as flaw:
        raise Damaged(f"{PAUSED_REPOS_FILE} cannot be written: {flaw}") from flaw
    _tell_everybody(repo_slug, paused=paused)
    return now


def _tell_everybody(slug: str, *, paused: bool) -> None:
    try:
        backlog = backlog_of(slug)
        pauses, here = backlog.services.adapters.pauses, PauseScope.REPOSITORY
        if not paused:
            pauses.resume(here, repo=backlog.repo, by=config.actor())
        elif not paused_by_log(backlog):
            pauses.pause(here, repo=backlog.repo, reason="label-state", by=config.actor())
    except DibsError as failure:
        _log.warning("%s: only this machine knows of it: %s", slug, failure)


def _backlog(slug: str) -> Backlog | None:
    """None where no tracker is set up: then the file is all there is."""
    try:
        return backlog_of(slug)
    except DibsError as flaw:
        _log.info("%s: no tracker to ask: %s", slug, flaw)
        return None
