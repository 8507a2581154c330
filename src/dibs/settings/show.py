"""The settings in force, written as the configuration file that would give them.

Every field of the file's structs is there, also those that no file names: what can be set is shown
from one source. Secrets in addresses are left out.
"""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_never

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
    Stage,
)
from dibs.core.references import without_secrets
from dibs.settings.load import (
    ConfigFile,
    GithubFile,
    HoldFile,
    HookFile,
    LabelsFile,
    LoopFile,
    PeopleFile,
    Settings,
    StageFile,
    WorkerFile,
)


def as_file(settings: Settings) -> ConfigFile:
    """The configuration file that gives exactly these settings."""
    pipeline, people, github = settings.pipeline, settings.pipeline.people, settings.github
    return ConfigFile(
        tracker=without_secrets(settings.tracker),
        leases=without_secrets(settings.leases),
        preset=settings.preset,
        ttl=format_duration(settings.ttl),
        max_ttl=format_duration(settings.max_ttl),
        grace=format_duration(settings.grace),
        settle=_length(settings.settle),
        person_ttl=format_duration(settings.person_ttl),
        runs=str(settings.runs),
        journal=str(settings.journal or ""),
        labels=LabelsFile(
            claimed=pipeline.labels.claimed,
            paused=pipeline.labels.paused,
            parked=pipeline.labels.parked,
            blockers=sorted(pipeline.blockers),
            priorities=list(pipeline.priorities),
        ),
        worker=WorkerFile(
            jobs=settings.jobs,
            poll=format_duration(settings.poll),
            sweep=format_duration(settings.sweep),
            stop_grace=format_duration(settings.stop_grace),
        ),
        people=PeopleFile(
            assignees=people.assignees,
            pulls=people.pulls,
            markers=people.markers,
            fleet=sorted(people.fleet),
            marker_ttl=format_duration(people.marker_ttl),
        ),
        github=GithubFile(
            trusted=sorted(github.trusted),
            api=without_secrets(github.api) or None,
            timeout=format_duration(github.timeout),
            graphql=github.graphql,
            machines=github.machines,
            pace=github.pace,
        ),
        hook=HookFile(strict=settings.hook.strict, timeout=format_duration(settings.hook.timeout)),
        repos={name: str(path) for name, path in settings.repos.items()},
        stage=[_stage_file(stage) for stage in pipeline.stages],
        hold=[
            HoldFile(
                name=hold.name,
                slots=hold.slots,
                ttl=format_duration(hold.ttl),
                wait=format_duration(hold.wait),
            )
            for hold in settings.holds
        ],
        loop=[
            LoopFile(name=loop.name, every=format_duration(loop.every), run=loop.command.line)
            for loop in settings.loops
        ],
    )


def _stage_file(stage: Stage) -> StageFile:
    follows, gate = stage.follows, stage.gate
    file = StageFile(
        name=stage.name,
        label=stage.label,
        working_label=stage.working_label or "",
        next=list(stage.next),
        gate="approval" if isinstance(gate, ApprovalGate) else "none",
        gate_label=gate.label if isinstance(gate, ApprovalGate) else None,
        follows="pull-request" if isinstance(follows, FollowsPull) else "none",
        back=follows.back if isinstance(follows, FollowsPull) else None,
        authored=follows.authored if isinstance(follows, FollowsPull) else None,
        closes=stage.closes,
        ttl=format_duration(stage.terms.ttl),
        renew=format_duration(stage.terms.renew_every),
        margin=format_duration(stage.terms.margin),
        max_hold=format_duration(stage.terms.max_hold),
        timeout=_length(stage.timeout),
        attempts=stage.attempts,
        backoff=format_duration(stage.backoff.first),
        backoff_max=format_duration(stage.backoff.most),
        irreversible=stage.irreversible,
        wip=stage.wip,
        pass_env=list(stage.pass_env),
    )
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
            file.worktree = "none"
        case OneWorktree(repository, base):
            file.worktree, file.worktree_base = repository, base
        case BundleWorktree(base):
            file.worktree, file.worktree_base = "bundle", base
        case _:
            assert_never(stage.worktree)
    return file


def _length(span: timedelta | None) -> str | None:
    return format_duration(span) if span is not None else None


def shown(settings: Settings) -> dict[str, Any]:
    """Every key of the file with its value in force; None for a key that is not set."""
    return {"source": settings.source, **_everything(as_file(settings))}


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
