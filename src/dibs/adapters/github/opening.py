"""Opens the trackers for the setting `github:OWNER/REPO`, or several repositories with commas."""

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from dibs.adapters.github.client import Limits, Transports
from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.multi_repository import SeveralRepositories
from dibs.adapters.github.shapes import folded
from dibs.adapters.github.tracker import GithubTracker
from dibs.core.errors import BadConfiguration
from dibs.core.labels import LabelLook
from dibs.core.signing import Keyring
from dibs.ports.system import Clock

_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9_.-]{1,100}", re.ASCII
)


class Opened(Struct, frozen=True):
    tracker: GithubTracker | SeveralRepositories
    control: GithubControl
    transports: Transports


def open_repositories(
    place: str,
    environment: Mapping[str, str],
    clock: Clock,
    *,
    looks: Mapping[str, LabelLook],
    trusted: Collection[str],
    reply_s: float,
    graphql: bool,
    minds_pulls: bool = False,
    keyring: Keyring | None = None,
    machines: int = 1,
    pace: bool = True,
) -> Opened:
    """Build the trackers and their control. Sends no request yet."""
    names = repositories(place)
    limits = Limits().shared_by(machines) if pace else Limits.none()
    transports = Transports(environment, clock, limits=limits, reply_s=reply_s)
    trackers: list[GithubTracker] = []
    for name in names:
        home = trackers[0].control_readings if trackers else None
        trackers.append(
            GithubTracker(
                transports.for_repository(name),
                name,
                looks=looks,
                trusted=trusted,
                graphql=graphql,
                reply_s=reply_s,
                home=home,
                keyring=keyring,
                minds_pulls=minds_pulls,
            )
        )
    tracker = trackers[0] if len(trackers) == 1 else SeveralRepositories(trackers)
    return Opened(tracker, GithubControl(trackers, clock), transports)


def repositories(place: str) -> tuple[str, ...]:
    """The repositories in a setting. Raises BadConfiguration if invalid or named twice."""
    names = tuple(name.strip() for name in place.split(","))
    for name in names:
        if not _REPOSITORY.fullmatch(name):
            raise BadConfiguration(
                f"tracker 'github:{place}' names no repository; write it as github:OWNER/REPO, "
                "several with commas between them"
            )
    if len({folded(name) for name in names}) < len(names):
        raise BadConfiguration(f"tracker 'github:{place}' names a repository twice")
    return names
