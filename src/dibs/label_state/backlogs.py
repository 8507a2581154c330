"""From a repository's slug to the services that work its issues.

With a dibs.toml in the folder or above it (or in DIBS_CONFIG), its tracker, stores and terms count:
an embedded backlog is one repository, whatever it is called. Without one it is GitHub, and a claim
lasts as long as the state machine has always let one last, unless it is renewed.
"""

import atexit
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from dibs import config
from dibs.config import Settings
from dibs.core.dialects import Dialect
from dibs.core.durations import format_duration
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.label_state.answers import NoOrganisation
from dibs.wiring import Services, connect

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
