"""The settings in force, written as the configuration file that would give them.

Every field of the file's structs is there, also those that no file names: what can be set is shown
from one source. Secrets in addresses are left out.
"""

import json
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, assert_never

import msgspec

from dibs.core.durations import format_duration
from dibs.core.pipeline import (
    ApprovalGate,
    BundleWorktree,
    Command,
    FollowsPull,
    InProcess,
    NoHandler,
    NoWorktree,
    OneWorktree,
    PythonCallable,
    SignedGate,
    Stage,
)
from dibs.core.references import without_secrets
from dibs.settings.load import (
    ApprovalFile,
    ConfigFile,
    GithubFile,
    HoldFile,
    HookFile,
    LabelsFile,
    LoopFile,
    Origin,
    PeopleFile,
    Settings,
    StageFile,
    WorkerFile,
    user_file,
)


def as_file(settings: Settings) -> ConfigFile:
    """The settings as a configuration file: loading the file gives equal settings."""
    pipeline, github = settings.pipeline, settings.github
    return _table(
        ConfigFile,
        settings,
        tracker=without_secrets(settings.tracker),
        leases=without_secrets(settings.leases),
        journal=str(settings.journal or ""),
        labels=_table(
            LabelsFile,
            pipeline.labels,
            blockers=sorted(pipeline.blockers),
            priorities=list(pipeline.priorities),
        ),
        worker=_table(WorkerFile, settings),
        people=_table(PeopleFile, pipeline.people),
        approval=_table(ApprovalFile, pipeline.approval),
        github=_table(GithubFile, github, api=without_secrets(github.api) or None),
        hook=_table(HookFile, settings.hook),
        repos={name: str(path) for name, path in settings.repos.items()},
        stage=[_stage_file(stage) for stage in pipeline.stages],
        hold=[_table(HoldFile, hold) for hold in settings.holds],
        loop=[_table(LoopFile, loop, run=loop.command.line) for loop in settings.loops],
    )


def _stage_file(stage: Stage) -> StageFile:
    follows, gate, terms = stage.follows, stage.gate, stage.terms
    file = _table(
        StageFile,
        stage,
        working_label=stage.working_label or "",
        gate="signed"
        if isinstance(gate, SignedGate)
        else ("approval" if isinstance(gate, ApprovalGate) else "none"),
        follows="pull-request" if isinstance(follows, FollowsPull) else "none",
        authored=follows.authored if isinstance(follows, FollowsPull) else None,
        ttl=format_duration(terms.ttl),
        renew=format_duration(terms.renew_every),
        margin=format_duration(terms.margin),
        max_hold=format_duration(terms.max_hold),
        backoff=format_duration(stage.backoff.first),
        backoff_max=format_duration(stage.backoff.most),
        worktree="none",
    )
    if isinstance(follows, FollowsPull):
        file.back = follows.back
    if isinstance(gate, ApprovalGate):
        file.gate_label, file.back, file.replans = gate.label, gate.back or "", gate.replans
        if gate.timeout is not None:
            file.gate_timeout = format_duration(gate.timeout)
            file.gate_expires = gate.after_timeout.value
    match stage.handler:
        case Command(line):
            file.run = line
        case PythonCallable(target):
            file.python = target
        case InProcess() | NoHandler():
            pass
        case _:
            assert_never(stage.handler)
    match stage.worktree:
        case NoWorktree():
            pass
        case OneWorktree(repository, base):
            file.worktree, file.worktree_base = repository, base
        case BundleWorktree(base):
            file.worktree, file.worktree_base = "bundle", base
        case _:
            assert_never(stage.worktree)
    return file


_File = TypeVar("_File", bound=msgspec.Struct)


def _table(file: type[_File], value: msgspec.Struct, **others: object) -> _File:
    """The table of the file with these keys, and all others as the value has them."""
    names = [name for name in file.__struct_fields__ if hasattr(value, name)]
    return file(**{name: _spelt(getattr(value, name)) for name in names} | others)


def _spelt(value: object) -> object:
    match value:
        case timedelta():
            return format_duration(value)
        case Path():
            return str(value)
        case frozenset():
            return sorted(value)
        case tuple():
            return list(value)
        case _:
            return value


def shown(settings: Settings) -> dict[str, Any]:
    """Every key of the file with the value in force; None for a key without a value.

    Before the keys: the file, how the file came into force, and which `[trust]` the user granted.
    """
    allowed = {"file": str(user_file(os.environ)), **msgspec.structs.asdict(settings.trust)}
    found = {"source": settings.source, "origin": settings.origin.value, "trust": allowed}
    return {**found, **_everything(as_file(settings))}


def _everything(file: msgspec.Struct) -> dict[str, Any]:
    """The struct with its defaults, which the file's own encoding leaves out."""

    def plain(value: object) -> object:
        match value:
            case msgspec.Struct():
                return _everything(value)
            case list():
                return [plain(entry) for entry in value]
            case _:
                return value

    return {name: plain(getattr(file, name)) for name in file.__struct_fields__}


def as_lines(settings: Settings) -> Iterator[str]:
    """The same as text, in the form of the file."""
    data = shown(settings)
    yield f"# from {data.pop('source')}"
    trust, origin = data.pop("trust"), data.pop("origin")
    users = trust.pop("file")
    match settings.origin:
        case Origin.NAMED:
            yield f"# {origin} by the operator: it may set everything"
        case Origin.TRUSTED:
            yield f"# found in a folder that {users} trusts: it may set everything"
        case Origin.FOUND:
            allowed = [f"{key} {', '.join(values)}" for key, values in trust.items() if values]
            yield f"# found by searching; {users} trusts {'; '.join(allowed) or 'nothing besides'}"
        case _:
            assert_never(settings.origin)
    tables = {}
    for key, value in data.items():
        if isinstance(value, dict) or key in ("stage", "hold", "loop"):
            tables[key] = value
        else:
            yield _line(key, value)
    for key, value in tables.items():
        for entry in [value] if isinstance(value, dict) else value:
            yield ""
            yield f"[{key}]" if isinstance(value, dict) else f"[[{key}]]"
            for name, setting in entry.items():
                yield _line(name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name), setting)


def _line(key: str, value: object) -> str:
    # JSON spells strings, numbers, booleans and lists of strings as TOML does
    return f"# {key} is not set" if value is None else f"{key} = {_text(value)}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
