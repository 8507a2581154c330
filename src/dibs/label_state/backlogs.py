"""Find the services for a repository's slug, and the `Answer` that published calls return.

A dibs.toml in the folder or above it (or in DIBS_CONFIG) names the tracker, the stores and the
terms; an embedded backlog is one repository, under any slug. Without a dibs.toml the tracker is
GitHub, and a claim that is not renewed lasts as long as in the published state machine.

The published API returned True or False. An `Answer` is still one of the two, and gives a reason.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, Self

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import format_duration
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import BadConfiguration, DibsError
from dibs.core.ids import IssueRef
from dibs.core.issue import Snapshot
from dibs.core.labels import LabelLook
from dibs.core.pipeline import Dialect
from dibs.label_state.labels import STANDARD_LABELS
from dibs.settings import load as config
from dibs.settings.load import Settings
from dibs.wiring.services import Services, connect

if TYPE_CHECKING:
    from dibs.label_state.firings import Firing


_Params = ParamSpec("_Params")


class NoOrganisation(BadConfiguration, RuntimeError):
    """A repository was named without an owner, and GH_ORG names no owner either."""

    code = "NO_ORGANISATION"
    hint = "name it as OWNER/REPO, or set GH_ORG"


class Answer(int):
    """True or False, with a reason.

    Equals the bool and has the same truth value and hash. `answer is True` is always false: Python
    does not allow subclasses of bool.
    """

    reason: str
    """A code for programs; empty for a yes without reservations."""
    text: str
    """The reason for people."""
    codes: tuple[str, ...]
    """The codes of all reasons."""
    lease: "Firing | None"
    """For a granted claim: its lease, renewed while this process lives."""

    def __new__(
        cls,
        yes: bool,  # noqa: FBT001 - the answer itself
        reason: str = "",
        text: str = "",
        *,
        codes: tuple[str, ...] = (),
        lease: "Firing | None" = None,
    ) -> Self:
        made = super().__new__(cls, yes)
        made.reason, made.text = reason, text
        made.codes = codes or ((reason,) if reason else ())
        made.lease = lease
        return made

    def __repr__(self) -> str:
        return str(bool(self)) if not self.reason else f"<{bool(self)}: {self.reason}: {self.text}>"

    def __str__(self) -> str:
        return str(bool(self))

    def __reduce__(self) -> tuple[Callable[..., "Answer"], tuple[bool, str, str]]:
        return Answer, (bool(self), self.reason, self.text)


def refused(reasons: tuple[Reason, ...]) -> Answer:
    """A no with all reasons; a claimed label without a card explains least, and comes last."""
    ordered = sorted(reasons, key=lambda reason: reason.code is ReasonCode.CLAIM_LABEL_ONLY)
    codes = tuple(reason.code.value for reason in ordered)
    return Answer(False, codes[0], "; ".join(reason.text for reason in ordered), codes=codes)


def answering(call: Callable[_Params, Answer]) -> Callable[_Params, Answer]:
    """Turn errors of the tracker into a no with the error's code and text.

    The published calls have never raised for such errors. NoOrganisation is raised all the same,
    because a slug without an owner is a mistake of the caller.
    """

    @wraps(call)
    def answer(*args: _Params.args, **kwargs: _Params.kwargs) -> Answer:
        try:
            return call(*args, **kwargs)
        except NoOrganisation:
            raise
        except DibsError as error:
            return Answer(False, error.code, str(error))

    return answer


_WINDOW = timedelta(hours=4)
_LONGEST_LEASE = timedelta(days=1)
_MOST_HOURS = 24 * 365
_BUILT_IN = "built-in default"
_VARIABLES = ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "GITHUB_API_URL", "DIBS_LEASES")


class Backlog(Struct, frozen=True):
    """A repository, with the services for its issues."""

    repo: str
    """The name that the tracker uses; empty for an embedded backlog."""
    services: Services

    def ref(self, number: int) -> IssueRef:
        return IssueRef(self.repo, str(int(number)))

    def read(self, number: int) -> Snapshot:
        return self.services.tracker.read(self.ref(number))


def full_slug(slug: str) -> str:
    """OWNER/REPO for a slug; GH_ORG is the owner of a slug without one.

    Raises NoOrganisation, which is a RuntimeError, if neither names an owner.
    """
    name, owner = slug.strip(), os.environ.get("GH_ORG", "").strip()
    if "/" in name:
        return name
    if not owner:
        raise NoOrganisation(f"{name!r} has no owner, and GH_ORG is not set")
    return f"{owner}/{name}"


def claim_window() -> timedelta:
    """How long a claim counts without a renewal: ALFRED_CLAIM_MAX_AGE_HOURS, by default 4 hours."""
    try:
        hours = int(os.environ.get("ALFRED_CLAIM_MAX_AGE_HOURS", "4"))
    except ValueError:
        return _WINDOW
    return timedelta(hours=min(max(hours, 1), _MOST_HOURS))


def settings_for(slug: str) -> tuple[Settings, str]:
    """The settings in force, and the tracker's name for the repository: empty if embedded.

    The pipeline is always that of preset `agent`. If the configured GitHub tracker does not list
    the repository, the tracker becomes the repository alone.
    """
    settings = config.load()
    if settings.source == _BUILT_IN:
        wanted = full_slug(slug)
        return published_settings(wanted, settings), wanted
    if settings.pipeline.dialect is not Dialect.AGENT:
        # Callers of this package expect the labels of the state machine.
        agent = config.from_mapping({"preset": "agent"}, source=settings.source, root=settings.root)
        settings = replace(settings, preset="agent", pipeline=agent.pipeline)
    scheme, _, places = settings.tracker.partition(":")
    if scheme != "github":
        return settings, ""
    wanted = full_slug(slug)
    configured = {place.strip().casefold(): place.strip() for place in places.split(",")}
    if wanted.casefold() in configured:
        return settings, configured[wanted.casefold()]
    return config.override(settings, tracker=f"github:{wanted}"), wanted


def published_settings(repo: str, default: Settings) -> Settings:
    """The settings of `OWNER/REPO` on GitHub without a dibs.toml; `default` has the stores.

    The environment names the server and the token, as in the published state machine.
    """
    window = claim_window()
    document = {
        "tracker": f"github:{repo}",
        "preset": "agent",
        "ttl": format_duration(min(window, _LONGEST_LEASE)),
        "journal": "",
        "people": {"marker_ttl": format_duration(window)},
    }
    made = config.from_mapping(document, source="label_state", root=default.root)
    return config.override(made, leases=default.leases)


class _Connections:
    """The services of this process, connected once for each configuration.

    A forked process connects anew: two processes on one connection would read each other's answers.
    """

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._services: dict[tuple[object, ...], Services] = {}

    def services(self, settings: Settings) -> Services:
        variables = tuple(os.environ.get(name) for name in _VARIABLES)
        key = (settings.source, settings.root, settings.tracker, settings.pipeline, *variables)
        with self._lock:
            if key not in self._services:
                self._services[key] = connect(settings, author=config.actor())
            return self._services[key]

    def close(self) -> None:
        with self._lock:
            closing, self._services = self._services, {}
        for services in closing.values():
            services.close()


connections = _Connections()
atexit.register(connections.close)


def backlog_of(slug: str) -> Backlog:
    settings, repo = settings_for(slug)
    return Backlog(repo, connections.services(settings))


def dry_run() -> bool:
    return os.environ.get("ALFRED_DRY_RUN", "") not in {"", "0"}


def ensure_labels(repo_slug: str, labels: Iterable[tuple[str, str, str]] | None = None) -> None:
    """Create the missing labels, as they are given; by default the STANDARD_LABELS.

    In a dry run it creates none. Raises the errors of the tracker: a label that could not be
    created is not remembered as created.
    """
    if dry_run():
        return
    wanted = STANDARD_LABELS if labels is None else labels
    looks = {name: LabelLook(colour.lstrip("#"), text) for name, colour, text in wanted}
    backlog_of(repo_slug).services.tracker.prepare(list(looks), looks)
