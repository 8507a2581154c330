"""Configuration: one file, validated once, where it enters.

Reads `dibs.toml` or `[tool.dibs]`, lays it over a preset, and returns a `Settings` that cannot be
wrong: unknown keys are refused with a suggestion, incoherent pairs are refused and named. Knows the
file's spelling; what the settings mean is the core's.

A file that the operator names may set everything. A file that was found by searching may have come
with a repository: what it may not set is in `dibs.settings.trust`, which is imported only if the
file sets more than an ordinary file does.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, fields, replace

from dibs.adapters.system import Sharing, WorkingTree, environment, small_file, working_tree
from dibs.core.durations import format_duration, parse_duration, terms_for
from dibs.core.errors import BadConfiguration, BadName, NotPermitted
from dibs.core.ids import StageName
from dibs.core.named import SHORTEST_WINDOW, HoldSpec, LoopSpec, checked_name
from dibs.core.pipeline import (
    BREAKER,
    AfterTimeout,
    Approval,
    ApprovalGate,
    Backoff,
    BundleWorktree,
    Command,
    Dialect,
    Env,
    Follows,
    FollowsNothing,
    FollowsPull,
    Gate,
    Handler,
    LabelNames,
    NoGate,
    NoHandler,
    NoWorktree,
    OneWorktree,
    People,
    Pipeline,
    PythonCallable,
    SignedGate,
    Stage,
    WhichText,
    WhoseComments,
    WhosePulls,
    Worktree,
)
from dibs.core.presets import PRESETS

FILE_NAME = "dibs.toml"
EMBEDDED_TRACKER = "sqlite:.dibs/backlog.db"
_LONGEST_FLAW = 1000
_ORDINARY_LEASES = ("auto", "comments", "redis", "rediss", "etcd", "etcds", "git+github")
"""Leases without a path and without credentials other than those in the setting."""
_CHECK_IT = "check the file with: dibs config validate"
_UNITS = {"MB": 1000**2, "GB": 1000**3}

Duration = Annotated[
    str, Meta(pattern=r"^\s*([0-9]+(\.[0-9]+)?(ms|s|m|h|d)\s*)+$", examples=["90s", "10m"])
]
Size = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,5}(MB|GB)(?!\n)$", examples=["50MB"])]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
CountOrNone = Annotated[int, Meta(ge=0, le=1_000_000)]
# In Python `$` alone would let a line end pass; JSON Schema knows no `\Z`.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?!\n)$")]
Label = Annotated[str, Meta(min_length=1, max_length=100)]
Login = Annotated[str, Meta(min_length=1, max_length=100)]


def doc(description: str) -> Meta:
    return Meta(description=description)


Comments = Literal["auto", "writers", "all", "none"]


class StageFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One `[[stage]]`."""

    name: Annotated[Name, doc("The stage's name; a preset's stage is changed.")]
    label: Annotated[Label | None, doc("The label that is this stage.")] = None
    working_label: Annotated[str | None, doc("Shown while a lease is held; empty for none.")] = None
    run: Annotated[str | None, doc("The handler: a shell command.")] = None
    python: Annotated[str | None, doc("The handler: module:function, in its own process.")] = None
    next: Annotated[
        str | list[str] | None,
        doc("Where a finished issue goes; of several, the first by default."),
    ] = None
    gate: Annotated[
        str | None,
        doc(
            "'approval': shut until a person approves; 'signed': until a signed approval;"
            " 'none': open."
        ),
    ] = None
    gate_label: Annotated[Label | None, doc("The label by which a person approves.")] = None
    gate_timeout: Annotated[
        Duration | None, doc("With a gate: how long it waits for an answer; unset: for ever.")
    ] = None
    gate_expires: Annotated[
        Literal["back", "park", "stay"] | None,
        doc("With gate_timeout: where an issue goes that nobody answered: 'back', 'park', 'stay'."),
    ] = None
    replans: Annotated[
        CountOrNone | None,
        doc("With a gate: so many times in a row it sends an issue back; then it is parked."),
    ] = None
    follows: Annotated[
        str | None,
        doc(
            "'pull-request': merged moves the issue on, closed unmerged moves it back;"
            " 'none': neither."
        ),
    ] = None
    back: Annotated[
        str | None,
        doc(
            "Where it goes if a gate rejects it, or with follows if its pull request was closed"
            " unmerged."
        ),
    ] = None
    authored: Annotated[
        str | None,
        doc("With follows: the label of pull requests that a run opened; empty for none."),
    ] = None
    closes: Annotated[bool | None, doc("Whether entering this final stage closes the issue.")] = (
        None
    )
    ttl: Annotated[Duration | None, doc("The lease's length.")] = None
    renew: Annotated[Duration | None, doc("How often it is renewed; a third of ttl.")] = None
    margin: Annotated[
        Duration | None, doc("How long before its end a lease is no longer trusted.")
    ] = None
    max_hold: Annotated[Duration | None, doc("The longest a lease may be renewed for.")] = None
    timeout: Annotated[Duration | None, doc("The handler's time limit; max_hold if unset.")] = None
    attempts: Annotated[Count | None, doc("Failed attempts before the issue is parked.")] = None
    breaker: Annotated[
        CountOrNone | None, doc("Issues that fail in a row before a worker stops this stage.")
    ] = None
    backoff: Annotated[Duration | None, doc("Rest after the first failure; doubles.")] = None
    backoff_max: Annotated[Duration | None, doc("The longest rest.")] = None
    irreversible: Annotated[
        bool | None,
        doc("Its work cannot be undone: refuse it on a store that is not atomic and fenced."),
    ] = None
    wip: Annotated[Count | None, doc("Issues of this stage in flight at once.")] = None
    env: Annotated[
        str | None,
        doc("'listed': the handler gets a short list of variables; 'inherit': all but secrets."),
    ] = None
    pass_env: Annotated[
        list[str] | None, doc("Names of further variables that this stage's handler gets.")
    ] = None
    run_as: Annotated[
        str | None, doc("The user as whom the handler runs; empty for the worker's own.")
    ] = None
    worktree: Annotated[
        str | None,
        doc(
            "A repository: each run works in a new worktree of it; 'bundle': in one of"
            " each repository of its bundle; 'none': in none."
        ),
    ] = None
    worktree_base: Annotated[
        str | None, doc("With worktree: what the run's branch starts from.")
    ] = None
    comments: Annotated[Comments | None, doc("Whose comments this stage's handler gets.")] = None


class LabelsFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[labels]`: the labels that are not stages."""

    claimed: Annotated[Label | None, doc("Shows that a lease is held.")] = None
    paused: Annotated[Label | None, doc("A person's hands-off.")] = None
    parked: Annotated[Label | None, doc("Set aside for a person.")] = None
    blockers: Annotated[list[Label] | None, doc("Other labels that keep workers off.")] = None
    priorities: Annotated[list[Label] | None, doc("Labels that jump the queue, urgent first.")] = (
        None
    )


class WorkerFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[worker]`: how `dibs work` goes about it."""

    jobs: Annotated[Count, doc("Issues worked at once.")] = 1
    poll: Annotated[Duration, doc("How often an idle worker looks.")] = "5s"
    sweep: Annotated[Duration | None, doc("How often it sweeps; a third of the ttl.")] = None
    stop_grace: Annotated[Duration, doc("How long a leaving worker lets handlers finish.")] = "30s"


class PeopleFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[people]`: which people keep workers off an issue."""

    assignees: Annotated[bool, doc("A person is assigned to it.")] = True
    delegates: Annotated[bool, doc("A program outside the fleet is assigned to it.")] = True
    pulls: Annotated[
        bool | Literal["writers", "all", "none"],
        doc(
            "Whose open pull request that will close it counts: 'writers' (also true), those who"
            " may write; 'all', anybody's; 'none' (also false)."
        ),
    ] = "writers"
    markers: Annotated[bool, doc("Another tool's comment says that it is at work.")] = True
    fleet: Annotated[
        list[Login],
        doc("Accounts of the fleet: their assignments and pull requests keep no worker off."),
    ] = []
    marker_ttl: Annotated[Duration, doc("How long another tool's marker counts.")] = "4h"
    text: Annotated[
        Literal["released", "any"],
        doc(
            "'released': a text that somebody who may not write changed after its release waits"
            " for a person; 'any': it does not."
        ),
    ] = "released"


class ApprovalFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[approval]`: whose approvals open gates."""

    approvers: Annotated[
        list[Login],
        doc("The only people whose approvals count; without it, those of all who may write."),
    ] = []
    needed: Annotated[Count, doc("How many people must approve.")] = 1
    four_eyes: Annotated[
        bool, doc("Whoever asked for the work, or had a hand in it, does not count.")
    ] = False
    relays: Annotated[
        list[Login],
        doc("Accounts that hand on the approvals of others, and sign them with the fleet's key."),
    ] = []


class GithubFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[github]`: for a tracker on GitHub."""

    trusted: Annotated[
        list[Login],
        doc("The only accounts whose cards count; without it, those with write access."),
    ] = []
    api: Annotated[
        str | None, doc("The API's address; else GITHUB_API_URL, else github.com's.")
    ] = None
    timeout: Annotated[Duration, doc("How long to wait for an answer.")] = "10s"
    graphql: Annotated[bool, doc("False: REST only, where GraphQL cannot be reached.")] = True
    machines: Annotated[Count, doc("How many machines use the token: each keeps to its part.")] = 1
    pace: Annotated[bool, doc("False: the server has no limits by the minute; for Enterprise.")] = (
        True
    )


class HookFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[hook]`: the pre-push hook."""

    strict: Annotated[bool, doc("Refuse a push that could not be checked.")] = False
    timeout: Annotated[Duration, doc("How long a push waits for the tracker.")] = "3s"


class HoldFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[[hold]]`: a name that only a number of holders may have at once, for `dibs hold`."""

    name: Annotated[str, doc("What is held.")]
    slots: Annotated[Count, doc("How many may hold it at once.")] = 1
    ttl: Annotated[Duration, doc("The lease's length.")] = "30s"
    wait: Annotated[Duration, doc("How long to wait for a slot.")] = "0s"


class LoopFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`[[loop]]`: something done once per window across all replicas, for `dibs loop`."""

    name: Annotated[str, doc("The loop's name.")]
    every: Annotated[Duration, doc("The length of a window.")]
    run: Annotated[str, doc("The command of one tick, run by a shell.")]
    env: Annotated[str, doc("As for a stage.")] = "listed"
    pass_env: Annotated[list[str], doc("Names of further variables that it gets.")] = []


class ConfigFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """dibs.toml. All of it optional: with no file, the embedded default works where you are."""

    tracker: Annotated[
        str, doc("Where the issues are: sqlite:PATH or github:OWNER/REPO[,...].")
    ] = EMBEDDED_TRACKER
    leases: Annotated[
        str,
        doc(
            "Where leases are kept: auto (the tracker's own database where it has one,"
            " else comments), comments, or an atomic store; see dibs stores."
        ),
    ] = "auto"
    backlog: Annotated[
        Name | None,
        doc("A name by which several backlogs share the holds and loops of one lease store."),
    ] = None
    preset: Annotated[str, doc("The pipeline to start from: stages, agent or none.")] = "stages"
    ttl: Annotated[Duration, doc("The lease's length, for all stages.")] = "10m"
    breaker: Annotated[
        CountOrNone,
        doc("Issues that fail in a row before a worker stops their stage; 0: it never does."),
    ] = BREAKER
    comments: Annotated[
        Comments,
        doc(
            "Whose comments handlers get: 'writers', those who may write; 'all'; 'none';"
            " 'auto', writers' on a public repository and all elsewhere."
        ),
    ] = "auto"
    max_ttl: Annotated[Duration, doc("Workers ignore a card with a longer ttl.")] = "1d"
    grace: Annotated[Duration, doc("How long an expired lease is left alone.")] = "0s"
    settle: Annotated[
        Duration | None, doc("How long after a write every reader sees it; the tracker's own.")
    ] = None
    person_ttl: Annotated[Duration, doc("How long a person's `dibs take` runs.")] = "8h"
    runs: Annotated[str, doc("Folder of the handlers' output.")] = ".dibs/runs"
    output_max: Annotated[
        Size, doc("How much of a handler's output is kept: its beginning and its end.")
    ] = "50MB"
    journal: Annotated[str, doc("File of events, one JSON object a line; empty for none.")] = (
        ".dibs/events.jsonl"
    )
    share: Annotated[
        str, doc("Who may use dibs' own files: 'none' other than this user, or their 'group'.")
    ] = "none"
    labels: LabelsFile = field(default_factory=LabelsFile)
    worker: WorkerFile = field(default_factory=WorkerFile)
    people: PeopleFile = field(default_factory=PeopleFile)
    approval: ApprovalFile = field(default_factory=ApprovalFile)
    github: GithubFile = field(default_factory=GithubFile)
    hook: HookFile = field(default_factory=HookFile)
    repos: Annotated[
        dict[str, str], doc("Where the repositories of bundles are: OWNER/REPO = PATH.")
    ] = {}
    stage: list[StageFile] = []
    hold: list[HoldFile] = []
    loop: list[LoopFile] = []


class Trust(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[trust]` of the user's own file: how far a found file may reach."""

    hosts: Annotated[
        tuple[str, ...], doc("Servers that may get credentials: HOST or HOST:PORT.")
    ] = ()
    folders: Annotated[
        tuple[str, ...], doc("A file found in or below them counts as if you had named it.")
    ] = ()
    paths: Annotated[
        tuple[str, ...], doc("Places outside of its folder where a found file may keep files.")
    ] = ()
    pass_env: Annotated[
        tuple[str, ...], doc("Credentials that a found file may hand to handlers.")
    ] = ()


class UserFile(Struct, forbid_unknown_fields=True):
    """The user's own file, which no repository can bring along."""

    trust: Trust = Trust()


class Origin(StrEnum):
    """How the settings came into force."""

    NAMED = "named"
    """The operator named the file, or a program gave the settings."""
    TRUSTED = "trusted"
    """A search found them in a folder that the operator trusts."""
    FOUND = "found"
    """A search found them; they may have come with a repository."""


class GithubSettings(Struct, frozen=True):
    trusted: frozenset[str] = frozenset()
    api: str = ""
    timeout: timedelta = timedelta(seconds=10)
    graphql: bool = True
    machines: int = 1
    pace: bool = True


class HookSettings(Struct, frozen=True):
    strict: bool = False
    timeout: timedelta = timedelta(seconds=3)


class Settings(Struct, frozen=True):
    """The configuration in force."""

    source: str
    root: Path
    """The folder that relative paths start from."""
    tracker: str
    leases: str
    preset: str
    pipeline: Pipeline
    max_ttl: timedelta
    grace: timedelta
    settle: timedelta | None
    person_ttl: timedelta
    runs: Path
    output_max: str
    journal: Path | None
    jobs: int
    poll: timedelta
    sweep: timedelta
    stop_grace: timedelta
    share: Sharing = Sharing.NONE
    """Who may use the files of `.dibs`."""
    holds: tuple[HoldSpec, ...] = ()
    loops: tuple[LoopSpec, ...] = ()
    github: GithubSettings = GithubSettings()
    hook: HookSettings = HookSettings()
    repos: Mapping[str, Path] = field(default_factory=dict)
    """Where the repositories of bundles are on this machine."""
    shared_names: str = ""
    """The name under which several backlogs share holds and loops; empty: they share none."""
    ttl: timedelta = timedelta(minutes=10)
    """The lease's length of stages that set none of their own."""
    breaker: int = BREAKER
    """The breaker of stages that set none of their own."""
    comments: WhoseComments = WhoseComments.AUTO
    """The comments for handlers of stages that set none of their own."""
    file: Path | None = None
    """The file that was read; None for the built-in default."""
    owner: int | None = None
    """The user to whom the file belonged when it was read: another may be in its place by now."""
    here: Path | None = None
    """The folder in a linked git worktree that corresponds to `root`; None: no such worktree."""
    origin: Origin = Origin.NAMED
    trust: Trust = Trust()

    @property
    def output_bytes(self) -> int:
        """`output_max` as a number of bytes."""
        return int(self.output_max[:-2]) * _UNITS[self.output_max[-2:]]

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a handler's dibs finds the settings in any folder."""
        return {
            "DIBS_CONFIG": str((self.file or self.root).absolute()),
            "DIBS_CONFIG_NAMED": "" if self.origin is Origin.FOUND else "1",
        }

    @property
    def found_by(self) -> tuple[Path, ...]:
        """The folders and the file by which a search finds the settings."""
        file = (self.file.parent, self.file) if self.file else ()
        return (self.root, self.root / ".dibs", *file)

    def may_pass(self, name: str) -> bool:
        """Whether `pass_env` may hand the variable to handlers.

        A found file hands on a credential only if the operator allows the variable. The key for
        signing marks is never handed on: a handler with the key can forge every mark.
        """
        from dibs.core.environment import looks_secret

        if name.startswith("DIBS_SIGNING_KEY"):
            return False
        allowed = self.origin is not Origin.FOUND or name in self.trust.pass_env
        return allowed or not looks_secret(name)

    def passing(self, names: Iterable[str]) -> "Settings":
        """The settings, with variables from the operator for all handlers and loops."""
        stages = (
            replace(stage, pass_env=(*stage.pass_env, *names)) for stage in self.pipeline.stages
        )
        return replace(
            self,
            pipeline=replace(self.pipeline, stages=tuple(stages)),
            loops=tuple(replace(one, pass_env=(*one.pass_env, *names)) for one in self.loops),
            trust=replace(self.trust, pass_env=(*self.trust.pass_env, *names)),
        )


# Finding and reading


def load(
    path: Path | None = None,
    *,
    start: Path | None = None,
    tracker: str | None = None,
    leases: str | None = None,
    found: bool = False,
) -> Settings:
    """The settings for a folder: the named file, else the nearest one upwards, else the default.

    In a linked git worktree the backlog is that of the main working tree. If `path` is a folder,
    the search starts there, and does not leave a linked worktree for the main one. Without both
    arguments, `DIBS_CONFIG` is the path if it is set.
    `tracker`, `leases` and `DIBS_LEASES` stand above the file, because the place of a store may
    carry its password. `found`: the operator did not name the file at `path`.
    Raises Untrusted if a found file sets what only the operator may set.
    """
    variable = os.environ.get("DIBS_CONFIG")
    if path is None and start is None and variable:
        path = Path(variable)
    leases = leases or environment().get("DIBS_LEASES")
    given = path is not None and not path.is_dir()
    # In a handler, the worker has set DIBS_CONFIG, and has looked at the owner.
    in_a_run = "DIBS_RUN" in os.environ and not os.environ.get("DIBS_CONFIG_NAMED")
    handed_on = in_a_run and variable is not None and path == Path(variable)
    if path is not None and given:
        settings, tree = _of_file(path, *_read(path), main_folder(path.parent)), None
    else:
        settings, tree = _search(start or Path.cwd(), path)
    if not given or found or handed_on:
        # What the operator overrides is not the file's.
        own = override(settings, tracker=tracker and EMBEDDED_TRACKER, leases=leases and "auto")
        git = (tree.top / ".git",) if tree else ()
        judged = as_found(own, () if handed_on else (*settings.found_by, *git))
        settings = replace(settings, origin=judged.origin, trust=judged.trust)
    return override(settings, tracker=tracker, leases=leases)


def as_found(settings: Settings, owned: Iterable[Path] = ()) -> Settings:
    """Judge the settings of a found file by the user's own file.

    Raises Untrusted for a place in `owned` of another user, and for a setting of the operator's.
    """
    mine = {0, os.geteuid()}
    if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdecimal():
        mine.add(int(sudo))
    foreign = None
    for place in owned:
        # Of a link, the link and its target. What was read and is gone belonged to anybody.
        read_here = place == settings.file
        owners = {settings.owner} if read_here else set[int | None]()
        for status in (place.lstat, place.stat):
            try:
                owners.add(status().st_uid)
            except OSError:
                owners |= {None} if read_here else set()
        foreign = foreign or (None if owners <= mine else place)
    settings, users = replace(settings, origin=Origin.FOUND), user_file(os.environ)
    if foreign is None and _is_ordinary(settings) and not os.access(users, os.F_OK):
        return settings
    from dibs.settings import trust

    trusted = trust.read(users, mine)
    if all(
        trust.covers(trusted.folders, one)
        for one in (settings.root, settings.file or settings.root)
    ):
        return replace(settings, origin=Origin.TRUSTED, trust=trusted)
    settings = replace(settings, trust=trusted)
    trust.refuse_foreign(foreign, settings, users)
    trust.refuse_overreach(settings, users)
    return settings


def user_file(environment: Mapping[str, str]) -> Path:
    """The path of the user's own file, which may be missing."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):  # the standard says to ignore relative paths
        folder = f"{_home()}/.config"
    return Path(folder) / "dibs" / "config.toml"


def _home() -> str:
    """The home folder. For a user without a home folder, a path in no project."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises for a user without a name
    return home if home.startswith("/") else "/nonexistent"


def _is_ordinary(settings: Settings) -> bool:
    """Whether all files are in the folder `.dibs`, and no server gets an ambient credential."""
    kept = settings.root / ".dibs"
    if settings.tracker != EMBEDDED_TRACKER and not settings.tracker.startswith("github:"):
        return False
    if settings.github.api or settings.leases.partition(":")[0] not in _ORDINARY_LEASES:
        return False
    if (settings.runs, settings.journal) != (kept / "runs", kept / "events.jsonl"):
        return False
    linked = [kept.is_symlink(), (settings.runs / ".open").is_symlink()]
    with suppress(OSError), os.scandir(kept) as entries:
        linked += [entry.is_symlink() for entry in entries]
    return not any(linked)


def _search(start: Path, named: Path | None) -> tuple[Settings, WorkingTree | None]:
    """The nearest configuration upwards, else the default, and the git working tree around it.

    If the caller names a folder, the search starts there, and ignores the main working tree.
    Otherwise a linked worktree has the configuration of the main working tree. The worktree's own
    file counts only if the main working tree has none in the same place: a branch adds the file.
    Also then, paths start in the main working tree. A submodule without a configuration has that
    of the working tree around it.
    """
    start = named.resolve() if named else start if start.is_absolute() else start.resolve()
    folders, tree = _reach(start)
    main = tree.main if tree and not named else None
    if tree is None or main is None:
        found = _nearest(folders)
        if found is None and tree is not None and tree.is_submodule:
            outer, around = _search(tree.top.parent, None)
            if outer.file or (outer.root / ".dibs").is_dir():
                return outer, around
        return found or _default(start), tree
    found = _nearest(_up_to(main, _across(start, tree.top, main)))
    if found is None or found.file is None:
        for folder in folders:
            root = _across(folder, tree.top, main)
            if (own := _file_in(folder, root)) is not None and (not found or found.root == root):
                return own, tree
    if found is not None:
        return replace(found, here=_across(found.root, main, tree.top)), tree
    return _default(_across(start, tree.top, main), start), tree


def _reach(start: Path) -> tuple[list[Path], WorkingTree | None]:
    """The folders of a search from `start` upwards, and the working tree around `start`.

    The search ends at the top of a git working tree, at the home folder and at a mount point:
    nothing above belongs to the project.
    """
    tree, folders = working_tree(start), list[Path]()
    with suppress(OSError):  # a folder that is not there, or not ours to look at, ends it too
        home = Path(_home())
        at_home = home.stat() if home.exists() else None
        here = start.stat()
        for folder in (start, *start.parents):
            folders.append(folder)
            if tree is not None and folder == tree.top:
                return folders, tree
            above = folder.parent.stat()
            if here.st_dev != above.st_dev or (at_home and os.path.samestat(here, at_home)):
                break
            here = above
    return folders or [start], None


def main_folder(folder: Path) -> Path:
    """The folder's counterpart in the main working tree, or its nearest parent that is there.

    The folder itself, if it is not in a linked git worktree.
    """
    absolute = folder if folder.is_absolute() else folder.resolve()
    tree = _reach(absolute)[1]
    main = tree.main if tree is not None else None
    return _across(absolute, tree.top, main) if tree is not None and main is not None else folder


def _across(folder: Path, top: Path, other: Path) -> Path:
    """The same place in another working tree, or its nearest parent that exists."""
    there = other / folder.relative_to(top)
    return next(place for place in (there, *there.parents) if place.is_dir())


def _up_to(top: Path, folder: Path) -> Iterator[Path]:
    yield folder
    if folder != top:
        yield from _up_to(top, folder.parent)


def _nearest(folders: Iterable[Path]) -> Settings | None:
    for folder in folders:
        if (found := _file_in(folder, folder)) is not None:
            return found
        if (folder / ".dibs").is_dir():
            return _default(folder)
    return None


def _file_in(folder: Path, root: Path) -> Settings | None:
    for candidate in (folder / FILE_NAME, folder / "pyproject.toml"):
        if candidate.is_file():
            document, owner = _read(candidate)
            if document is not None:
                return _of_file(candidate, document, owner, root)
    return None


def _of_file(path: Path, document: Mapping[str, Any] | None, owner: int, root: Path) -> Settings:
    settings = from_mapping(document, source=str(path), root=root)
    here = path.parent if root != path.parent else None
    return replace(settings, file=path, owner=owner, here=here)


def _default(root: Path, here: Path | None = None) -> Settings:
    return replace(from_mapping({}, source="built-in default", root=root), here=here)


def _read(path: Path) -> tuple[dict[str, Any] | None, int]:
    """The file's settings, None for a pyproject without [tool.dibs]; and the file's owner."""
    import tomllib

    try:
        text, status = small_file(path)
    except FileNotFoundError as missing:
        raise BadConfiguration(f"there is no file {path}") from missing
    except PermissionError as refusal:
        raise NotPermitted(f"{path} cannot be read: {refusal}") from refusal
    except (OSError, ValueError) as failure:
        raise BadConfiguration(f"{path} cannot be read: {failure}", hint=_CHECK_IT) from failure
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as flaw:  # also a number or a nesting beyond all measure
        raise BadConfiguration(f"{path} is not valid TOML: {flaw}", hint=_CHECK_IT) from flaw
    if path.name == "pyproject.toml":
        tool = document.get("tool", {})
        return tool.get("dibs") if isinstance(tool, dict) else None, status.st_uid
    return document, status.st_uid


def from_mapping(document: Mapping[str, Any] | None, *, source: str, root: Path) -> Settings:
    """Validate a document. Raises BadConfiguration that names the key and what is wrong with it."""
    raw = {} if document is None else document
    try:
        refuse_unknown(raw, ConfigFile, "")
        file = msgspec.convert(raw, ConfigFile)
        _refuse_null(msgspec.to_builtins(file), "")
        return _settings(file, source, root)
    except (msgspec.ValidationError, ValueError) as flaw:
        from dibs.settings.flaws import in_plain_words

        text = in_plain_words(str(flaw), raw)
        text = text.replace("`$.", "`").replace("Object contains", "the file contains")
        if len(text) > _LONGEST_FLAW:  # a value may be a megabyte
            text = f"{text[:_LONGEST_FLAW]}..."
        raise BadConfiguration(f"{source}: {text}", hint=_CHECK_IT) from flaw


def refuse_unknown(document: object, shape: type[Struct], place: str) -> None:
    """Unknown keys first: a typo deserves a suggestion, not a type error elsewhere."""
    if not isinstance(document, Mapping):
        return
    known = {field.encode_name: field.type for field in fields(shape)}
    for key, value in document.items():
        where = f"{place}{key}"
        if key not in known:
            import difflib

            close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            others = f"known keys: {', '.join(sorted(known))}"
            hint = f"did you mean {close[0]!r}?" if close else others
            if where == "trust":
                hint = f"it belongs in your own file, {user_file(os.environ)}"
            raise ValueError(f"unknown key {where!r}; {hint}")
        for inner in _structs(known[key]):
            for number, entry in enumerate(value if isinstance(value, list) else [value]):
                inside = f"{where}[{number}]." if isinstance(value, list) else f"{where}."
                refuse_unknown(entry, inner, inside)


def _refuse_null(value: object, place: str) -> None:
    """No path, command or variable can hold one: using the setting would fail in another way."""
    match value:
        case str() if "\0" in value:
            raise ValueError(f"{place}: a null character is not allowed")
        case dict():
            for key, inner in value.items():
                _refuse_null(inner, f"{place}.{key}" if place else key)
        case list():
            for number, inner in enumerate(value):
                _refuse_null(inner, f"{place}[{number}]")


def _structs(kind: Any) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs(part)


# From the file's words to the core's values


def _settings(file: ConfigFile, source: str, root: Path) -> Settings:
    pipeline = _pipeline(file)
    max_ttl = _duration("max_ttl", file.max_ttl)
    for stage in pipeline.stages:
        if stage.terms.ttl > max_ttl:
            raise ValueError(
                f"stage {stage.name!r}: ttl {format_duration(stage.terms.ttl)} is over "
                f"max_ttl {format_duration(max_ttl)}, so its cards would not count"
            )
    person_ttl = _duration("person_ttl", file.person_ttl)
    if person_ttl > max_ttl:
        raise ValueError(
            f"person_ttl {format_duration(person_ttl)} is over max_ttl {format_duration(max_ttl)}"
        )
    if file.share not in tuple(Sharing):
        raise ValueError(f"share {file.share!r} is not one of {', '.join(Sharing)}")
    shortest = min(stage.terms.ttl for stage in pipeline.stages)
    worker, github = file.worker, file.github
    return Settings(
        source=source,
        root=root,
        tracker=file.tracker,
        leases=file.leases,
        preset=file.preset,
        pipeline=pipeline,
        max_ttl=max_ttl,
        grace=_duration("grace", file.grace),
        settle=_duration("settle", file.settle) if file.settle is not None else None,
        person_ttl=person_ttl,
        runs=root / file.runs,
        output_max=file.output_max,
        journal=root / file.journal if file.journal else None,
        share=Sharing(file.share),
        jobs=worker.jobs,
        poll=_positive("worker.poll", worker.poll),
        sweep=_positive("worker.sweep", worker.sweep) if worker.sweep else shortest / 3,
        stop_grace=_duration("worker.stop_grace", worker.stop_grace),
        holds=_named("hold", [_hold(entry) for entry in file.hold]),
        loops=_named("loop", [_loop(entry) for entry in file.loop]),
        github=GithubSettings(
            trusted=frozenset(github.trusted),
            api=github.api or "",
            timeout=_positive("github.timeout", github.timeout),
            graphql=github.graphql,
            machines=github.machines,
            pace=github.pace,
        ),
        hook=HookSettings(file.hook.strict, _positive("hook.timeout", file.hook.timeout)),
        repos=_repos(file.repos, root, pipeline),
        ttl=_duration("ttl", file.ttl),
        shared_names=file.backlog or "",
        breaker=file.breaker,
        comments=WhoseComments(file.comments),
    )


def _repos(file: Mapping[str, str], root: Path, pipeline: Pipeline) -> dict[str, Path]:
    for stage in pipeline.stages:
        if isinstance(stage.worktree, BundleWorktree) and not file:
            raise ValueError(
                f"stage {stage.name!r}: worktree = 'bundle' needs [repos], which says where the "
                "repositories are"
            )
    names = [name.casefold() for name in file]
    if double := next((name for name in file if names.count(name.casefold()) > 1), None):
        raise ValueError(f"repos: {double!r} stands twice, in another case")
    if empty := next((name for name, path in file.items() if not path.strip()), None):
        raise ValueError(f"repos: {empty!r} has no path")
    return {name: (root / path).absolute() for name, path in file.items()}


def _hold(entry: HoldFile) -> HoldSpec:
    ttl = _duration(f"hold {entry.name!r}: ttl", entry.ttl)
    try:
        terms_for(ttl)
    except ValueError as flaw:
        raise ValueError(f"hold {entry.name!r}: {flaw}") from flaw
    wait = _duration(f"hold {entry.name!r}: wait", entry.wait)
    return HoldSpec(entry.name, entry.slots, ttl, wait)


def _loop(entry: LoopFile) -> LoopSpec:
    if not entry.run.strip():
        raise ValueError(f"loop {entry.name!r}: run is empty")
    every = _duration(f"loop {entry.name!r}: every", entry.every)
    if every < SHORTEST_WINDOW:
        shortest = format_duration(SHORTEST_WINDOW)
        raise ValueError(f"loop {entry.name!r}: every must be at least {shortest}")
    try:
        passed, env = _passed(entry.pass_env), _env(entry.env)
    except ValueError as flaw:
        raise ValueError(f"loop {entry.name!r}: {flaw}") from flaw
    return LoopSpec(entry.name, every, Command(entry.run), env, passed)


_Spec = TypeVar("_Spec", HoldSpec, LoopSpec)


def _named(kind: str, specs: list[_Spec]) -> tuple[_Spec, ...]:
    names = set()
    for spec in specs:
        try:
            checked_name(spec.name)
        except BadName as flaw:
            raise ValueError(f"{kind}: {flaw}; {flaw.hint}") from flaw
        if spec.name in names:
            raise ValueError(f"{kind} {spec.name!r} stands twice")
        names.add(spec.name)
    return tuple(specs)


def _duration(key: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as flaw:
        raise ValueError(f"{key}: {flaw}") from flaw


def _positive(key: str, text: str) -> timedelta:
    span = _duration(key, text)
    if span <= timedelta():
        raise ValueError(f"{key}: must be longer than nothing")
    return span


def _pipeline(file: ConfigFile) -> Pipeline:
    base = _preset(file.preset)
    stages = {stage.name: stage for stage in base.stages} if base else {}
    ttl, comments = _duration("ttl", file.ttl), WhoseComments(file.comments)
    for stage in stages.values():
        stages[stage.name] = replace(
            stage, terms=terms_for(ttl), breaker=file.breaker, comments=comments
        )
    for entry in file.stage:
        name = StageName(entry.name)
        known = stages.get(name) or Stage(
            name,
            label=f"stage:{name}",
            terms=terms_for(ttl),
            breaker=file.breaker,
            comments=comments,
        )
        stages[name] = _stage(entry, known)
    marks = base.labels if base else LabelNames()
    labels, people = file.labels, file.people
    match people.pulls:
        case bool(counted):
            pulls = WhosePulls.WRITERS if counted else WhosePulls.NONE
        case word:
            pulls = WhosePulls(word)
    return Pipeline(
        stages=tuple(stages.values()),
        labels=LabelNames(
            claimed=labels.claimed or marks.claimed,
            paused=labels.paused or marks.paused,
            parked=labels.parked or marks.parked,
        ),
        blockers=frozenset(labels.blockers)
        if labels.blockers is not None
        else (base.blockers if base else frozenset()),
        priorities=tuple(labels.priorities or ()),
        people=People(
            assignees=people.assignees,
            delegates=people.delegates,
            pulls=pulls,
            markers=people.markers,
            fleet=frozenset(people.fleet),
            marker_ttl=_positive("people.marker_ttl", people.marker_ttl),
            text=WhichText(people.text),
        ),
        approval=Approval(
            approvers=frozenset(file.approval.approvers),
            needed=file.approval.needed,
            four_eyes=file.approval.four_eyes,
            relays=frozenset(file.approval.relays),
        ),
        dialect=base.dialect if base else Dialect.NATIVE,
    )


def _preset(name: str) -> Pipeline | None:
    if name == "none":
        return None
    if name not in PRESETS:
        import difflib

        close = difflib.get_close_matches(name, [*PRESETS, "none"], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"preset {name!r} is not one of {', '.join(PRESETS)}, none{hint}")
    return PRESETS[name]


def _stage(entry: StageFile, known: Stage) -> Stage:
    try:
        return replace(
            known,
            label=entry.label or known.label,
            working_label=known.working_label
            if entry.working_label is None
            else entry.working_label or None,
            next=known.next if entry.next is None else _next(entry.next),
            closes=known.closes if entry.closes is None else entry.closes,
            handler=_handler(entry, known.handler),
            gate=_gate(entry, known),
            follows=_follows(entry, known),
            attempts=entry.attempts or known.attempts,
            breaker=known.breaker if entry.breaker is None else entry.breaker,
            wip=entry.wip or known.wip,
            irreversible=known.irreversible if entry.irreversible is None else entry.irreversible,
            timeout=_span(entry.timeout, known.timeout),
            env=known.env if entry.env is None else _env(entry.env),
            pass_env=known.pass_env if entry.pass_env is None else _passed(entry.pass_env),
            run_as=known.run_as if entry.run_as is None else entry.run_as.strip(),
            worktree=_worktree(entry, known.worktree),
            comments=WhoseComments(entry.comments) if entry.comments else known.comments,
            backoff=Backoff(
                _span(entry.backoff, known.backoff.first),
                _span(entry.backoff_max, known.backoff.most),
            ),
            terms=terms_for(
                _span(entry.ttl, known.terms.ttl),
                renew_every=_span(entry.renew, None),
                margin=_span(entry.margin, None),
                max_hold=_span(entry.max_hold, known.terms.max_hold),
            )
            if entry.ttl or entry.renew or entry.margin or entry.max_hold
            else known.terms,
        )
    except ValueError as flaw:
        raise ValueError(f"stage {entry.name!r}: {flaw}") from flaw


def _env(word: str) -> Env:
    if word not in (*Env,):
        raise ValueError(f"env {word!r} is not one of {', '.join(Env)}")
    return Env(word)


def _passed(names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    from dibs.core.environment import NEVER_PASSED

    if never := next((name for name in names if name in NEVER_PASSED), None):
        raise ValueError(f"pass_env: {never} is never passed on: it would sign in the fleet's name")
    return tuple(names)


_Default = TypeVar("_Default")


def _span(text: str | None, default: _Default) -> timedelta | _Default:
    return parse_duration(text) if text else default


def _next(wanted: str | list[str]) -> tuple[StageName, ...]:
    names = [wanted] if isinstance(wanted, str) else wanted
    return tuple(StageName(name) for name in names if name)


def _handler(entry: StageFile, known: Handler) -> Handler:
    if entry.run is not None and entry.python is not None:
        raise ValueError("run and python are both set; a stage has one handler")
    if entry.run is not None:
        return Command(entry.run) if entry.run.strip() else NoHandler()
    if entry.python is not None:
        module, _, function = entry.python.partition(":")
        if not module or not function:
            raise ValueError(f"python {entry.python!r} is not of the form module:function")
        return PythonCallable(entry.python)
    return known


def _gate(entry: StageFile, known: Stage) -> Gate:
    before = known.gate if isinstance(known.gate, ApprovalGate) else ApprovalGate("approved")
    onward = known.next if entry.next is None else _next(entry.next)
    kept = before.back if before.back in onward else None
    gate = replace(
        before,
        label=entry.gate_label or before.label,
        back=kept if entry.back is None else StageName(entry.back) or None,
        timeout=_span(entry.gate_timeout, before.timeout),
        after_timeout=AfterTimeout(entry.gate_expires or before.after_timeout),
        replans=before.replans if entry.replans is None else entry.replans,
    )
    match entry.gate:
        case None if isinstance(known.gate, ApprovalGate):
            return gate
        case "approval":
            return ApprovalGate(**asdict(gate))
        case "signed":
            return SignedGate(**asdict(gate))
        case None | "none" | "":
            if any((entry.gate_timeout, entry.gate_expires, entry.replans)):
                raise ValueError("gate_timeout, gate_expires and replans go with a gate")
            return NoGate()
        case other:
            raise ValueError(f"gate {other!r} is not one of approval, signed, none")


def _follows(entry: StageFile, known: Stage) -> Follows:
    before = known.follows
    match entry.follows:
        case None if isinstance(before, FollowsPull):
            pass
        case "pull-request":
            if not isinstance(before, FollowsPull):
                onward = known.next if entry.next is None else _next(entry.next)
                before = FollowsPull(back=StageName("".join(onward[1:2])))
        case None | "none" | "":
            if entry.authored is not None:
                raise ValueError("authored goes with follows = 'pull-request'")
            if entry.back is not None and isinstance(_gate(entry, known), NoGate):
                raise ValueError("back goes with a gate, or with follows = 'pull-request'")
            return FollowsNothing()
        case other:
            raise ValueError(f"follows {other!r} is not one of pull-request, none")
    return FollowsPull(
        back=before.back if entry.back is None else StageName(entry.back),
        authored=before.authored if entry.authored is None else entry.authored,
    )


def _worktree(entry: StageFile, known: Worktree) -> Worktree:
    wanted = known
    match entry.worktree:
        case None:
            pass
        case "bundle":
            wanted = BundleWorktree()
        case "none" | "":
            wanted = NoWorktree()
        case path:
            wanted = OneWorktree(path)
    base = entry.worktree_base
    if base is None:
        return wanted
    if wanted == NoWorktree():
        raise ValueError("worktree_base goes with worktree")
    if not base.strip() or base.startswith("-"):
        raise ValueError(f"worktree_base {base!r} is nothing that a branch could start from")
    return wanted if isinstance(wanted, NoWorktree) else replace(wanted, base=base)


# For people and tools


def schema() -> dict[str, Any]:
    """The JSON Schema of dibs.toml."""
    made = msgspec.json.schema(ConfigFile)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": FILE_NAME, **made}


def actor(environment: Mapping[str, str] = os.environ) -> str:
    """Who is at the keyboard, for cards and comments."""
    for name in ("DIBS_ACTOR", "GITHUB_ACTOR", "LOGNAME", "USER", "LNAME", "USERNAME"):
        if environment.get(name):
            return environment[name]
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError, OSError):  # a container's user need not have a name
        return "somebody"


def override(
    settings: Settings, *, tracker: str | None = None, leases: str | None = None
) -> Settings:
    """The same settings with another tracker or store."""
    return replace(settings, tracker=tracker or settings.tracker, leases=leases or settings.leases)
