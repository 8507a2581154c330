"""What linters cannot see: words, labels, lengths, clocks and colours of the source."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.core.pipeline import ApprovalGate, LabelNames
from dibs.core.presets import PRESETS

from .pages import ROOT, SRC, text
from .sources import MODULES, RUNTIME, name_in_source, nodes

LONGEST_FUNCTION = 60


def test_a_module_says_what_it_is_for():
    silent = [name_in_source(module) for module in MODULES if not _docstring(module)]
    assert not silent, "\n".join(silent)


def _docstring(module: Path) -> str | None:
    root = nodes(module)[0]
    assert isinstance(root, ast.Module)
    return ast.get_docstring(root)


def test_no_function_is_long():
    long = [
        f"{name_in_source(module)}:{node.lineno}: {node.name} has {length} lines"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_nothing_is_left_to_do():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    left = [
        f"{name_in_source(module)}:{number}: {line.strip()}"
        for module in MODULES
        for number, line in enumerate(text(module).splitlines(), 1)
        if marks.search(line)
    ]
    assert not left, "\n".join(left)


# Words

BANNED = {"util", "utils", "common", "manager", "managers", "helper", "helpers"}
# Python's own word for what `with` takes.
PYTHONS_WORDS = {("aio.py", "manager")}


def test_no_name_says_nothing():
    empty = [
        f"{place}:{line}: {name}"
        for module in MODULES
        for place in (name_in_source(module),)
        for line, name in _identifiers(module)
        if _words(name) & BANNED and (place, name) not in PYTHONS_WORDS
    ]
    assert not empty, "\n".join(empty)


def _identifiers(module: Path) -> Iterator[tuple[int, str]]:
    """Each name that the module gives to something, with its line; and the module's own."""
    yield from ((1, part) for part in module.relative_to(SRC).with_suffix("").parts)
    for node in nodes(module):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield node.lineno, name


def _words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


# Labels

_PLAIN = {LabelNames().claimed, LabelNames().paused, LabelNames().parked}
_TELLING = {
    label
    for pipeline in PRESETS.values()
    for label in (
        *(stage.label for stage in pipeline.stages),
        *(stage.working_label for stage in pipeline.stages),
        *(stage.gate.label for stage in pipeline.stages if isinstance(stage.gate, ApprovalGate)),
        *pipeline.blockers,
        pipeline.labels.parked,
        pipeline.labels.claimed,
    )
    if label
} - _PLAIN
HOMES = {"core/presets.py", "core/pipeline.py"}


def test_the_telling_labels_are_the_ones_people_know():
    assert {"stage:ready", "stage:processing", "agent:in-flight", "do-not-pickup"} <= _TELLING


# What a gate's label is if the file names none; and the same word as a mark, an event, an answer.
ALLOWED_LABELS = {
    "settings/load.py": {"approved"},
    "core/eligibility.py": {"approved"},
    "core/events.py": {"approved"},
    "frontends/cli/people.py": {"approved"},
}


def test_labels_are_named_in_the_core_and_nowhere_else():
    wrong = []
    for module in RUNTIME:
        place = name_in_source(module)
        if place not in HOMES:
            allowed, named = ALLOWED_LABELS.get(place, set()), _labels_named(module)
            wrong += [f"{place}:{line}: {name!r}" for line, name in named if name not in allowed]
            unused = allowed - {name for _, name in named}
            wrong += [f"{place}: {name!r} is allowed, and not named" for name in sorted(unused)]
    assert not wrong, "\n".join(wrong)


def _labels_named(module: Path) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.value)
        for node in nodes(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _TELLING
    ]


_WRITERS = {"edit_labels", "AddLabels", "RemoveLabels", "IssueQuery", "Draft", "tally", "prepare"}


def test_claimed_paused_and_parked_are_labels_only_in_the_core():
    """The same words name events, outcomes and states; what is tested is where labels go."""
    suspicious = [
        f"{name_in_source(module)}:{line}: {use}"
        for module in RUNTIME
        for line, use in _plain_labels_used(module)
    ]
    assert not suspicious, "\n".join(suspicious)


def _plain_labels_used(module: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(module):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _WRITERS:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Constant) and inner.value in _PLAIN:
                        yield node.lineno, f"{name}({inner.value!r})"
            case ast.Compare(left=ast.Constant(value=str(left)), ops=[ast.In() | ast.NotIn()]):
                if left in _PLAIN:
                    yield node.lineno, f"{left!r} in ..."


# Colours and clocks


def test_only_aio_is_asynchronous():
    waiting = {
        name_in_source(module)
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncWith | ast.AsyncFor | ast.Await)
        or (isinstance(node, ast.Import) and any(name.name == "asyncio" for name in node.names))
    }
    assert waiting == {"aio.py"}


def test_only_two_modules_read_a_clock():
    readers = set()
    for module in MODULES:
        for node in nodes(module):
            match node:
                case ast.Import(names=names) if any(one.name == "time" for one in names):
                    readers.add(name_in_source(module))
                case ast.ImportFrom(module="time"):
                    readers.add(name_in_source(module))
                case ast.Attribute(attr="now" | "utcnow" | "today", value=ast.Name(id="datetime")):
                    readers.add(name_in_source(module))
    assert readers == {"adapters/system.py", "adapters/runners/warden.py"}


# Values

# Their values are published, or are no part of a command.
DATACLASS_FOLDERS = ("fencing/", "label_state/", "testing/fakehub/", "worktrees/")
# They have a field that is not shown, or that is not an argument.
DATACLASS_MODULES = {
    "adapters/etcd/gateway.py",
    "adapters/github/auth.py",
    "adapters/postgres/database.py",
    "adapters/redis/scripts.py",
    "adapters/redis/links.py",
}


def test_dataclasses_are_defined_only_where_structs_do_not_serve():
    """A dataclass writes and compiles its methods at every start, a Struct does not."""
    importers = {
        name_in_source(module)
        for module in MODULES
        for node in nodes(module)
        if (isinstance(node, ast.ImportFrom) and node.module == "dataclasses")
        or (isinstance(node, ast.Import) and any(one.name == "dataclasses" for one in node.names))
    }
    elsewhere = {name for name in importers if not name.startswith(DATACLASS_FOLDERS)}
    assert elsewhere == DATACLASS_MODULES


# Places


def test_no_file_names_a_place_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a clone")
    places = re.compile(r"/(?:work/main|work/shared|root/|home/[a-z]|Users/[a-z])")
    found = [
        f"{name}: {match[0]}"
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file()
        and name != "tests/architecture/test_tidy.py"
        and (match := places.search((ROOT / name).read_text("utf-8", errors="replace")))
    ]
    assert not found, "\n".join(found)


def test_commands_that_messages_tell_people_to_run_exist():
    from dibs.frontends.cli.main import COMMANDS

    told = re.compile(r"\bdibs ([a-z][a-z-]+)\b")
    named = [
        f"{name}: {word}"
        for name in ("core/errors.py", "core/eligibility.py", "services/board.py")
        for _, written in _texts(name)
        for word in told.findall(written)
    ]
    assert named
    assert [entry for entry in named if entry.split(": ")[1] not in COMMANDS] == [
        # a sentence about dibs itself, not a command
        "core/errors.py: promised",
    ]


def test_no_message_offers_something_destructive():
    """Error texts and remedies are pasted by agents."""
    risky = re.compile(r"--force|--yes|\brm -|\bdrop table\b|\bdelete from\b", re.IGNORECASE)
    offers = [
        f"{name}:{line}: {written}"
        for name in ("core/errors.py", "core/eligibility.py", "core/labels.py")
        for line, written in _texts(name)
        if risky.search(written)
    ]
    assert not offers, "\n".join(offers)


def _texts(name: str) -> Iterator[tuple[int, str]]:
    """Every string of a module, with its line."""
    for node in nodes(SRC / name):
        match node:
            case ast.Constant(value=str(written)):
                yield node.lineno, written
