"""Trackers by their scheme: what each is for, what it needs, and how it is opened.

One row for each tracker. The rows of other distributions are found through entry points of the
group `dibs.trackers`: the name is the scheme, the value a `TrackerKind`. They are looked for only
if a setting names a scheme that dibs does not have, because reading entry points costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dibs.adapters.system import SystemClock, environment
from dibs.core.errors import BadConfiguration
from dibs.core.ids import ServerTime
from dibs.core.references import without_secrets
from dibs.wiring import kind_declared_as

if TYPE_CHECKING:
    from dibs.adapters.github.client import Transports
    from dibs.core.signing import Keyring
    from dibs.ports.leases import Granters, LeaseStore, Pauses
    from dibs.ports.system import Clock, Deliveries, Hints
    from dibs.ports.tracker import Budgeted, Probing, Tracker
    from dibs.settings.load import GithubSettings, Settings


class TrackerRequest(Struct, frozen=True):
    """What a tracker is opened with."""

    place: str
    """The setting behind its scheme: `OWNER/REPO` of `github:OWNER/REPO`."""
    settings: Settings
    author: str
    """Who writes, where the tracker has no accounts."""
    environment: Mapping[str, str]
    keyring: Keyring | None = None


class OpenTracker(Struct):
    """A tracker, and what comes with it."""

    tracker: Tracker
    pauses: Pauses | None = None
    """None: pauses are kept in a file of this folder, for this machine."""
    granters: Granters | None = None
    """None: which store grants is kept in a file of this folder, for this machine."""
    own_leases: Callable[[], LeaseStore] | None = None
    """The store that `leases = "auto"` means; None: the tracker's comments."""
    one_step: Callable[[], AbstractContextManager[object]] | None = None
    """Makes tracker and own leases change together or not at all, where both are one database."""
    clock: Clock = field(default_factory=SystemClock)
    hints: Hints | None = None
    """None: hints are changes of a file of this folder."""
    budgeted: Budgeted | None = None
    probing: Callable[[], Probing] | None = None
    """Tries what the adapter assumes about a server elsewhere; None: there is nothing to try."""
    prepare: Callable[[], tuple[str, ...]] = tuple
    """Makes what the tracker needs besides labels; returns what was made, in words."""
    close: list[Callable[[], None]] = field(default_factory=list)


class TrackerKind(Struct, frozen=True):
    """One row of the registry."""

    scheme: str
    form: str
    """How the setting `tracker` is written."""
    scope: str
    """Who shares such a backlog."""
    opens: Callable[[TrackerRequest], OpenTracker]
    extra: str = ""
    """What to install: `dibs[extra]`."""
    repos: Callable[[str], tuple[str, ...]] = lambda _: ("",)
    """The repositories that a place names; the nameless one where it names none."""
    auto_leases: str = "auto"
    """What the store of `leases = "auto"` is called: by its file, or `comments`."""
    deliveries: Callable[[tuple[bytes, ...]], Deliveries] | None = None
    """Reads deliveries of webhooks, verified with these keys; None: the tracker sends none."""


def wake_file(settings: Settings) -> Path:
    """The file that hints change, beside the embedded backlog: all who use the backlog hear them.

    For other trackers, in this folder.
    """
    scheme, _, place = settings.tracker.partition(":")
    folder = sqlite_path(settings, place).parent if scheme == "sqlite" else settings.root
    return (folder if folder.name == ".dibs" else folder / ".dibs") / "wake"


def sqlite_path(settings: Settings, place: str) -> Path:
    if not place:
        raise BadConfiguration(f"{settings.tracker!r} names no file; write it as sqlite:PATH")
    return settings.root / place


def _open_sqlite(request: TrackerRequest) -> OpenTracker:
    from dibs.adapters.sqlite.control import SqliteGranters, SqlitePauses
    from dibs.adapters.sqlite.database import Database
    from dibs.adapters.sqlite.tracker import SqliteTracker

    settings = request.settings
    database = Database(sqlite_path(settings, request.place), share=settings.share)
    pipeline = settings.pipeline
    shelf = pipeline.vetoes | {pipeline.labels.claimed}
    tracker: Tracker = SqliteTracker(database, author=request.author, shelf=shelf)
    plain = request.environment.get("DIBS_BATCH") == "0"
    if plain:
        from dibs.adapters.wrappers.trackers import PlainTracker

        tracker = PlainTracker(tracker)

    def own_leases() -> LeaseStore:
        from dibs.adapters.sqlite.leases import SqliteLeases

        return SqliteLeases(database)

    return OpenTracker(
        tracker,
        SqlitePauses(database),
        SqliteGranters(database),
        own_leases=own_leases,
        one_step=None if plain else database.one_step,
        close=[database.close],
    )


def _open_memory(request: TrackerRequest) -> OpenTracker:
    from dibs.adapters.memory.control import MemoryGranters, MemoryPauses
    from dibs.adapters.memory.leases import MemoryLeases
    from dibs.adapters.memory.tracker import MemoryTracker
    from dibs.adapters.system import wall_clock

    def now() -> ServerTime:
        moment = wall_clock()  # in whole milliseconds, as cards write them
        return ServerTime(moment.replace(microsecond=moment.microsecond // 1000 * 1000))

    tracker = MemoryTracker(now, author=request.author)
    return OpenTracker(
        tracker, MemoryPauses(now), MemoryGranters(), own_leases=lambda: MemoryLeases(now)
    )


def github_transports(github: GithubSettings, environment: Mapping[str, str]) -> Transports:
    """The clients of GitHub, one for each token, with what `[github]` sets."""
    from dibs.adapters.github.client import Limits, Transports

    return Transports(
        environment if not github.api else {**environment, "GITHUB_API_URL": github.api},
        limits=Limits().shared_by(github.machines) if github.pace else Limits.none(),
        reply_s=github.timeout.total_seconds(),
    )


def github_server() -> str:
    """The host of the repositories whose API the environment names, without a port."""
    from dibs.adapters.github.auth import api_of

    return api_of(environment()).host.partition(":")[0].casefold()


def _open_github(request: TrackerRequest) -> OpenTracker:
    """Open a tracker, or a tracker for each repository. Sends no request to GitHub."""
    from dibs.adapters.github.control import GithubControl
    from dibs.adapters.github.multi_repository import SeveralRepositories
    from dibs.adapters.github.tracker import GithubTracker
    from dibs.adapters.github.trust import repositories
    from dibs.core.labels import label_looks
    from dibs.core.pipeline import WhichText, WhosePulls

    settings, clock = request.settings, SystemClock()
    people = settings.pipeline.people
    github = settings.github
    transports = github_transports(github, request.environment)
    looks = label_looks(settings.pipeline)
    trackers: list[GithubTracker] = []
    for name in repositories(request.place):
        trackers.append(
            GithubTracker(
                transports.for_repository(name),
                name,
                looks=looks,
                trusted=github.trusted,
                graphql=github.graphql,
                reply_s=github.timeout.total_seconds(),
                home=trackers[0].control_readings if trackers else None,
                keyring=request.keyring,
                minds_people=people.pulls is not WhosePulls.NONE
                or people.text is WhichText.RELEASED,
            )
        )

    def probing() -> Probing:
        from dibs.adapters.github.probing import Probes

        return Probes(trackers[0].door)

    control = GithubControl(trackers, clock, settle=settings.settle)
    return OpenTracker(
        trackers[0] if len(trackers) == 1 else SeveralRepositories(trackers),
        control,
        control,
        clock=clock,
        budgeted=transports,
        probing=probing,
        prepare=control.prepare,
        close=[transports.close],
    )


def _github_deliveries(keys: tuple[bytes, ...]) -> Deliveries:
    from dibs.adapters.github.webhooks import GithubDeliveries

    return GithubDeliveries(keys)


TRACKERS = (
    TrackerKind("sqlite", "sqlite:PATH", "one machine", _open_sqlite),
    TrackerKind(
        "github",
        "github:OWNER/REPO[,OWNER/REPO...]",
        "every account that may write to the repository",
        _open_github,
        extra="github",
        repos=lambda place: tuple(r.strip() for r in place.split(",") if r.strip()) or ("",),
        auto_leases="comments",
        deliveries=_github_deliveries,
    ),
    TrackerKind("memory", "memory:", "one process", _open_memory),
)


def tracker_kind(setting: str) -> TrackerKind | None:
    """The row of the setting's scheme, ours or another distribution's; None if there is none."""
    scheme = setting.partition(":")[0]
    ours = next((kind for kind in TRACKERS if kind.scheme == scheme), None)
    return ours or kind_declared_as(scheme, "dibs.trackers", TrackerKind)


def open_tracker(settings: Settings, author: str, keyring: Keyring | None = None) -> OpenTracker:
    """Open the tracker that the settings name. Raises BadConfiguration if its extra is missing."""
    kind = tracker_kind(settings.tracker)
    assert kind is not None, "unknown trackers were refused before"
    place = settings.tracker.partition(":")[2]
    with extra_installed("tracker", settings.tracker, kind.extra):
        return kind.opens(TrackerRequest(place, settings, author, environment(), keyring))


@contextmanager
def extra_installed(key: str, value: str, extra: str) -> Iterator[None]:
    """Raise BadConfiguration if the setting needs a library which comes with the extra."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if not extra:
            raise
        raise BadConfiguration(
            f"{key} {without_secrets(value)!r} needs {missing.name}, which is not installed; "
            f"install dibs with its extra: dibs[{extra}]"
        ) from missing
