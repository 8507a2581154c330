"""From a repository's slug to the services that work its issues.

With a dibs.toml in the folder or above it (or in DIBS_CONFIG), its tracker, stores and terms count:
an embedded backlog is one repository, whatever it is called. Without one it is GitHub, and a claim
lasts as long as the state machine has always let one last, unless it is renewed.

What a call of the published API answers: a yes or a no as before, and now why.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Self

from msgspec.structs import replace

from dibs.core.durations import format_duration
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import BadConfiguration, DibsError
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.core.pipeline import Dialect
from dibs.core.presets import EVERY
from dibs.label_state.labels import STANDARD_LABELS
from dibs.settings import load as config
from dibs.settings.load import Settings
from dibs.wiring.services import Services, connect

if TYPE_CHECKING:
    from dibs.label_state.firings import Firing


_Said = ParamSpec("_Said")


class NoOrganisation(BadConfiguration, RuntimeError):
    """A repository was named without its owner, and GH_ORG does not say whose it is."""

    code = "NO_ORGANISATION"
    hint = "name it as OWNER/REPO, or set GH_ORG"


class Answer(int):
    """True or False, with a reason.

    Equal to the bool, true and false like it, and hashed like it. Not `is True`: nothing but True
    itself is, and Python lets nobody derive from bool.
    """

    reason: str
    """A code for programs; empty where the answer is plainly yes."""
    text: str
    """The same for people."""
    codes: tuple[str, ...]
    """Every reason, where there are several."""
    lease: "Firing | None"
    """With a claim that was granted: what holds it, renewed while this process lives."""

    def __new__(
        cls,
        yes: bool,  # noqa: FBT001 - it is what the answer is
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
    """The most telling first: a label without a card says less than anything else."""
    told = sorted(reasons, key=lambda reason: reason.code is ReasonCode.CLAIM_LABEL_ONLY)
    codes = tuple(reason.code.value for reason in told)
    return Answer(False, codes[0], "; ".join(reason.text for reason in told), codes=codes)


def answering(call: Callable[_Said, Answer]) -> Callable[_Said, Answer]:
    """What goes wrong at the tracker is a no that says so: these calls have never raised for it.

    A slug that names nothing still raises: that is a mistake of the caller's.
    """

    @wraps(call)
    def answer(*args: _Said.args, **kwargs: _Said.kwargs) -> Answer:
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
_TOKENS = ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "GITHUB_API_URL", "DIBS_LEASES")


@dataclass(frozen=True, slots=True)
class Backlog:
    """One repository, opened."""

    slug: str
    """As the caller called it."""
    repo: str
    """As the tracker calls it; empty for an embedded one."""
    services: Services

    def ref(self, number: int) -> IssueRef:
        return IssueRef(self.repo, str(int(number)))

    def read(self, number: int) -> Thread:
        return self.services.tracker.read(self.ref(number))


def full_slug(slug: str, environment: Mapping[str, str] | None = None) -> str:
    """With its owner. NoOrganisation, which is a RuntimeError, if nobody says whose it is."""
    told = os.environ if environment is None else environment
    name, owner = slug.strip(), told.get("GH_ORG", "").strip()
    if "/" in name:
        return name
    if not owner:
        raise NoOrganisation(f"{name!r} has no owner, and GH_ORG is not set")
    return f"{owner}/{name}"


def claim_window(environment: Mapping[str, str] | None = None) -> timedelta:
    """How long a claim counts of which nobody hears: ALFRED_CLAIM_MAX_AGE_HOURS, 4 unless set."""
    told = os.environ if environment is None else environment
    try:
        hours = int(told.get("ALFRED_CLAIM_MAX_AGE_HOURS", "4"))
    except ValueError:
        return _WINDOW
    return timedelta(hours=min(max(hours, 1), _MOST_HOURS))


def settings_for(slug: str) -> tuple[Settings, str]:
    """The settings in force, and what the tracker calls the repository."""
    named = os.environ.get("DIBS_CONFIG")
    settings = config.load(Path(named) if named else None)
    if settings.source == _BUILT_IN:
        return _on_github(settings, full_slug(slug)), full_slug(slug)
    if settings.pipeline.dialect is not Dialect.AGENT:
        # Another pipeline has other labels: those of the state machine are what is asked for.
        agent = config.from_mapping({"preset": "agent"}, source=settings.source, root=settings.root)
        settings = replace(settings, preset="agent", pipeline=agent.pipeline)
    scheme, _, places = settings.tracker.partition(":")
    if scheme != "github":
        return settings, ""
    wanted = full_slug(slug)
    known = {place.strip().casefold(): place.strip() for place in places.split(",")}
    if wanted.casefold() in known:
        return settings, known[wanted.casefold()]
    return config.override(settings, tracker=f"github:{wanted}"), wanted


def _on_github(found: Settings, slug: str) -> Settings:
    window = claim_window()
    document = {
        "tracker": f"github:{slug}",
        "preset": "agent",
        "ttl": format_duration(min(window, _LONGEST_LEASE)),
        "journal": "",
        "people": {"marker_ttl": format_duration(window)},
    }
    made = config.from_mapping(document, source="label_state", root=found.root)
    return config.override(made, leases=os.environ.get("DIBS_LEASES"))


class _Opened:
    """Connected once a process, however often it is called.

    A process that was forked off connects anew: two that talk over one connection hear each other's
    answers.
    """

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], Services] = {}

    def services(self, settings: Settings) -> Services:
        told = tuple(os.environ.get(name) for name in _TOKENS)
        key = (settings.source, settings.root, settings.tracker, settings.pipeline, *told)
        with self._lock:
            if key not in self._known:
                self._known[key] = connect(settings, author=config.actor())
            return self._known[key]

    def close(self) -> None:
        with self._lock:
            known, self._known = self._known, {}
        for services in known.values():
            services.close()


_opened = _Opened()
atexit.register(_opened.close)


def backlog_of(slug: str) -> Backlog:
    settings, repo = settings_for(slug)
    return Backlog(slug, repo, _opened.services(settings))


def close_all() -> None:
    """Let go of every connection. Claims stay, and are renewed no more."""
    _opened.close()


def ensure_labels(repo_slug: str, labels: Iterable[tuple[str, str, str]] | None = None) -> None:
    """Make those that are not there. A label of the catalogue looks as the catalogue says, any
    other one is grey. Raises what the tracker raises: a label that was not made is not remembered
    as made.
    """
    wanted = STANDARD_LABELS if labels is None else labels
    backlog_of(repo_slug).services.tracker.prepare([name for name, *_ in wanted])


def bootstrap_labels(repo_slug: str) -> list[str]:
    """Every label of the catalogue; those that were missing."""
    backlog = backlog_of(repo_slug)
    missing = missing_labels(backlog)
    backlog.services.tracker.prepare([label.name for label in EVERY])
    return missing


def missing_labels(backlog: Backlog) -> list[str]:
    """None where a tracker wants no labels made."""
    tracker = backlog.services.tracker
    names = [label.name for label in EVERY]
    return list(tracker.missing_labels(names))
