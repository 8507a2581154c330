"""What linters cannot see: words, labels, lengths, clocks and colours of the source."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.core.pipeline import ApprovalGate, LabelNames
from dibs.core.presets import PRESETS

from .pages import ROOT, SRC

MODULES = sorted(SRC.rglob("*.py"))
RUNTIME = [path for path in MODULES if path.relative_to(SRC).parts[0] != "testing"]
LONGEST_FUNCTION = 60


def _name(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


each_module = pytest.mark.parametrize("module", MODULES, ids=_name)
each_runtime_module = pytest.mark.parametrize("module", RUNTIME, ids=_name)


@each_module
def test_a_module_says_what_it_is_for(module):
    assert ast.get_docstring(_tree(module)), "no module docstring"


@each_module
def test_no_function_is_long(module):
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert long == []


@each_module
def test_nothing_is_left_to_do(module):
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    lines = module.read_text("utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if marks.search(line)] == []


# Words

BANNED = {"util", "utils", "common", "manager", "managers", "helper", "helpers"}
# Python's own word for what `with` takes.
PYTHONS_WORDS = {("aio.py", "manager")}


def _identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


@each_module
def test_no_name_says_nothing(module):
    names = {*_identifiers(_tree(module)), *module.relative_to(SRC).with_suffix("").parts}
    empty = {name for name in names if _words(name) & BANNED}
    assert empty - {name for place, name in PYTHONS_WORDS if place == _name(module)} == set()


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
HOMES = {"core/presets.py", "core/pipeline.py", "core/agent_labels.py"}


def test_the_telling_labels_are_the_ones_people_know():
    assert {"stage:ready", "stage:processing", "agent:in-flight", "do-not-pickup"} <= _TELLING


@pytest.mark.parametrize("module", [m for m in RUNTIME if _name(m) not in HOMES], ids=_name)
def test_labels_are_named_in_the_core_and_nowhere_else(module):
    found = {
        node.value
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert found & _TELLING == ALLOWED_LABELS.get(_name(module), set())


# What a gate's label is if the file names none; and the same word as an event and in an answer.
ALLOWED_LABELS = {
    "config.py": {"approved"},
    "core/approval.py": {"approved"},
    "core/events.py": {"approved"},
    "frontends/cli/people.py": {"approved"},
}


@each_runtime_module
def test_claimed_paused_and_parked_are_labels_only_in_the_core(module):
    """The same words name events, outcomes and states; what is tested is where labels go."""
    suspicious = []
    for node in ast.walk(_tree(module)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _WRITERS:
                suspicious += [
                    f"line {node.lineno}: {name}({inner.value!r})"
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Constant) and inner.value in _PLAIN
                ]
            case ast.Compare(left=ast.Constant(value=str(left)), ops=[ast.In() | ast.NotIn()]):
                if left in _PLAIN:
                    suspicious.append(f"line {node.lineno}: {left!r} in ...")
    assert suspicious == []


_WRITERS = {"edit_labels", "AddLabels", "RemoveLabels", "IssueQuery", "Draft", "tally", "prepare"}


# Colours and clocks


def test_only_aio_is_asynchronous():
    waiting = {
        _name(module)
        for module in MODULES
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncWith | ast.AsyncFor | ast.Await)
        or (isinstance(node, ast.Import) and any(name.name == "asyncio" for name in node.names))
    }
    assert waiting == {"aio.py"}


def test_only_two_modules_read_a_clock():
    readers = set()
    for module in MODULES:
        for node in ast.walk(_tree(module)):
            match node:
                case ast.Import(names=names) if any(one.name == "time" for one in names):
                    readers.add(_name(module))
                case ast.ImportFrom(module="time"):
                    readers.add(_name(module))
                case ast.Attribute(attr="now" | "utcnow" | "today", value=ast.Name(id="datetime")):
                    readers.add(_name(module))
    assert readers == {"adapters/clocks.py", "adapters/runners/warden.py"}


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
    assert found == []


def test_commands_that_messages_tell_people_to_run_exist():
    from dibs.frontends.cli.main import COMMANDS

    told = re.compile(r"\bdibs ([a-z][a-z-]+)\b")
    wrong = []
    for name in ("core/errors.py", "core/eligibility.py", "services/explaining.py"):
        for node in ast.walk(_tree(SRC / name)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                wrong += [f"{name}: {word}" for word in told.findall(node.value)]
    assert wrong
    assert [entry for entry in wrong if entry.split(": ")[1] not in COMMANDS] == [
        # a sentence about dibs itself, not a command
        "core/errors.py: promised",
    ]


def test_no_message_offers_something_destructive():
    """Error texts and remedies are pasted by agents."""
    risky = re.compile(r"--force|--yes|\brm -|\bdrop table\b|\bdelete from\b", re.IGNORECASE)
    for name in ("core/errors.py", "core/eligibility.py", "core/diagnosis.py"):
        for node in ast.walk(_tree(SRC / name)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not risky.search(node.value), f"{name}: {node.value}"
