"""Lease stores by their scheme: what each promises, what it needs, and how it is opened.

One row for each store. The rows of other distributions are entry points of the group `dibs.stores`:
the name is the scheme, the value a `StoreKind`.

The only place that names a store's client library. An adapter is imported when it is configured
and not before; a library that is not there is a setting to change, not a traceback.
"""

import importlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct, field

from dibs.adapters.system import Sharing, make_folder, written
from dibs.core.errors import BadConfiguration
from dibs.ports.leases import Guarantee, LeaseStore
from dibs.settings.load import GithubSettings
from dibs.wiring import kind_declared_as, kinds_declared
from dibs.wiring.trackers import extra_installed, github_transports

if TYPE_CHECKING:
    from dibs.adapters.sqlite.observations import FileObservations
    from dibs.ports.tracker import Budgeted


class Expiry(StrEnum):
    """How a store finds out that a lease is over."""

    SERVER = "the store's clock"
    WATCHED = "watched for a ttl"


class Waiting(StrEnum):
    """How a waiter learns that a lease has ended."""

    TOLD = "told"
    POLLS = "polls"


class ClosableStore(LeaseStore, Protocol):
    def close(self) -> None: ...


class Surroundings(Struct):
    """What a store may need besides its own place."""

    root: Path
    """The folder of the settings: relative paths start there, and sightings are kept there."""
    github: GithubSettings = GithubSettings()
    share: Sharing = Sharing.NONE
    """Who may use the files that a store keeps there."""
    budgeted: "Budgeted | None" = None
    """Who counts the requests of the tracker, or of the store where the tracker does not count."""
    closing: list[Callable[[], None]] = field(default_factory=list)
    """What was opened besides the store, to be closed with it."""

    def sightings(self) -> "FileObservations":
        """In a file, so that the next process need not watch a dead holder all over again."""
        from dibs.adapters.sqlite.database import Database
        from dibs.adapters.sqlite.observations import FileObservations

        # A renewal waits for it: better to have seen something late than to be late with that.
        file = self.root / ".dibs" / "sightings.db"
        database = Database(file, busy_s=1.0, share=self.share)
        self.closing.append(database.close)
        return FileObservations(database)


class StoreKind(Struct, frozen=True):
    scheme: str
    form: str
    """How it is written in `leases`."""
    scope: str
    promises: Guarantee
    expiry: Expiry = Expiry.SERVER
    waiting: Waiting = Waiting.POLLS
    opens: Callable[[str, Surroundings], ClosableStore] | None = None
    """None: opened together with the tracker."""
    extra: str = ""
    """What to install: `dibs[extra]`."""
    also: tuple[str, ...] = ()
    """Other schemes that are the same kind of store."""
    page: str = ""
    """The page of the documentation that describes it."""


_FENCED = Guarantee.FENCED | Guarantee.DURABLE
_ATOMIC = _FENCED | Guarantee.ATOMIC | Guarantee.IDEMPOTENT
_COUNTED = _ATOMIC | Guarantee.COUNTED
_CLOCKED = _COUNTED | Guarantee.SERVER_CLOCK


def _git(place: str, around: Surroundings) -> ClosableStore:
    folder = around.root / ".dibs" / "git"
    with written(folder.parent):
        make_folder(folder.parent, around.share)
    store = _adapter("git").GitLeases.connect(place, folder, around.sightings(), root=around.root)
    return cast("ClosableStore", store)


def _git_over_github(place: str, around: Surroundings) -> ClosableStore:
    from dibs.adapters.git.leases import GitLeases
    from dibs.adapters.github.client import Transports
    from dibs.adapters.github.refs import GithubRefs
    from dibs.adapters.system import SystemClock, environment

    repository = place.partition(":")[2]
    if isinstance(around.budgeted, Transports):  # the tracker's own
        refs = GithubRefs(repository, around.budgeted.for_repository(repository))
    else:
        around.budgeted = transports = github_transports(around.github, environment())
        transport = transports.for_repository(repository)
        refs = GithubRefs(repository, transport, transports.close)
    return GitLeases(refs, around.sightings(), SystemClock())


def _adapter(vendor: str) -> Any:
    return importlib.import_module(f"dibs.adapters.{vendor}.leases")


STORES: tuple[StoreKind, ...] = (
    StoreKind(
        "comments",
        "comments",
        "every process that reads and writes the tracker",
        _FENCED | Guarantee.SERVER_CLOCK,
        page="docs/stores/comments.md",
    ),
    StoreKind("sqlite", "sqlite:PATH", "one machine", _CLOCKED, page="docs/stores/sqlite.md"),
    StoreKind("memory", "memory:", "one process", _CLOCKED & ~Guarantee.DURABLE),
    StoreKind(
        "redis",
        "redis://HOST[:PORT][/DB]",
        "every process that reaches the server",
        _CLOCKED,
        waiting=Waiting.TOLD,
        opens=lambda place, _: _adapter("redis").RedisLeases.connect(place),
        extra="redis",
        also=(
            *("rediss", "redis+sentinel", "redis+cluster", "redis+unix", "unix"),
            *("rediss+sentinel", "rediss+cluster"),
        ),
        page="docs/stores/redis.md",
    ),
    StoreKind(
        "postgresql",
        "postgresql://HOST[:PORT]/DATABASE",
        "every process that reaches the server",
        _CLOCKED,
        waiting=Waiting.TOLD,
        opens=lambda place, _: _adapter("postgres").PostgresLeases.connect(place),
        extra="postgres",
        also=("postgres",),
        page="docs/stores/postgres.md",
    ),
    StoreKind(
        "etcd",
        "etcd://HOST[:PORT][,HOST...]",
        "every process that reaches the cluster",
        _CLOCKED,
        waiting=Waiting.TOLD,
        opens=lambda place, _: _adapter("etcd").EtcdLeases(place),
        also=("etcds",),
        page="docs/stores/etcd.md",
    ),
    StoreKind(
        "dynamodb",
        "dynamodb://TABLE",
        "every process that reaches the table",
        _COUNTED,
        Expiry.WATCHED,
        opens=lambda place, it: _adapter("dynamodb").DynamoLeases.connect(place, it.sightings()),
        extra="dynamodb",
        page="docs/stores/dynamodb.md",
    ),
    StoreKind(
        "git",
        "git:REMOTE",
        "every account that may push to the remote",
        _COUNTED,
        Expiry.WATCHED,
        opens=_git,
        page="docs/stores/git.md",
    ),
    StoreKind(
        "git+github",
        "git+github:OWNER/REPO",
        "every account that may push to the repository",
        _ATOMIC,
        Expiry.WATCHED,
        opens=_git_over_github,
        extra="github",
        page="docs/stores/git.md",
    ),
)


def store_kind(setting: str) -> StoreKind | None:
    """The row of the setting's scheme, ours or another distribution's; None if there is none."""
    scheme = setting.partition(":")[0]
    ours = next((kind for kind in STORES if scheme in (kind.scheme, *kind.also)), None)
    return ours or kind_declared_as(scheme, "dibs.stores", StoreKind)


def store_page(setting: str) -> str:
    """Where to read about the store of the setting; empty if it is not known."""
    kind = None if setting == "auto" else store_kind(setting)
    return f"see {kind.page}" if kind is not None and kind.page else ""


def store_kinds() -> dict[str, StoreKind | BadConfiguration]:
    """Rows by scheme: our own, then rows of other distributions. A broken row is an error."""
    ours: dict[str, StoreKind | BadConfiguration] = {kind.scheme: kind for kind in STORES}
    return ours | kinds_declared("dibs.stores", StoreKind) | ours


def open_store(place: str, around: Surroundings) -> ClosableStore:
    """Open the store of the setting. Only for stores with a place of their own."""
    kind = store_kind(place)
    assert kind is not None, "unknown stores were refused before"
    assert kind.opens is not None, "the others are opened together with the tracker"
    with extra_installed("leases", place, kind.extra):
        return kind.opens(place, around)
