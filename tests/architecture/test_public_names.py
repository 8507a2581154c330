"""The public names, pinned: whoever changes this list changes what users may rely on."""

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator

from msgspec.structs import fields

import dibs
from dibs import aio, api, fencing, worktrees
from dibs.core.errors import DibsError
from dibs.services.claiming import Beaten, Doubtful, Refused
from dibs.services.running import Work
from dibs.services.working import Until, WorkReport

from .pages import REFERENCE, SRC, codes, name_of, section, table, text
from .sources import nodes

PAGE = REFERENCE / "python.md"
PUBLIC = [
    "__version__",
    "AskPerson",
    "BadConfiguration",
    "BadReference",
    "BadTtl",
    "Beaten",
    "Damaged",
    "Dibs",
    "DibsError",
    "Doubtful",
    "Fence",
    "GiveBack",
    "HandlerUnusable",
    "HeldLease",
    "IllegalMove",
    "IssueHidden",
    "IssueLocked",
    "IssueMoved",
    "IssueRef",
    "LeaseLost",
    "Misuse",
    "NoBacklog",
    "NoSuchComment",
    "NoSuchIssue",
    "NoSuchStage",
    "NotGranted",
    "NotPermitted",
    "Outage",
    "RateLimited",
    "Refused",
    "Unavailable",
    "Until",
    "Untrusted",
    "Unwritable",
    "Work",
    "open",
]


def test_the_public_names_are_these():
    assert dibs.__all__ == PUBLIC


def test_every_public_name_resolves_and_is_listed():
    for name in dibs.__all__:
        assert getattr(dibs, name) is not None
    assert set(dibs.__all__) <= set(dir(dibs))


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(dibs, "no_such_name")


def test_the_names_for_type_checkers_are_the_public_ones():
    checked = {
        alias.asname or alias.name
        for node in nodes(SRC / "__init__.py")
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert checked == set(PUBLIC)


def test_every_public_name_is_documented():
    page = text(PAGE)
    missing = [name for name in dibs.__all__ if not re.search(rf"`(dibs\.)?{name}\b", page)]
    assert missing == []


def _public(kind: type) -> set[str]:
    """What a user can call, whichever class of ours it was written in."""
    return {name for name in dir(kind) if not name.startswith("_")}


def _documented(heading: str, column: str | None = None) -> set[str]:
    return {name.split("(")[0] for name in table(PAGE, heading, column).names()}


def test_every_member_is_documented():
    assert _documented("Dibs") == _public(api.Dibs)
    assert _documented("HeldLease") == _public(api.HeldLease)
    assert _documented("dibs.aio", "member of `AsyncDibs`") == _public(aio.AsyncDibs)
    assert _documented("dibs.aio", "member of `AsyncLease`") == _public(aio.AsyncLease)


def test_the_fields_of_values_are_documented():
    rows = table(PAGE, "Not getting a lease").by_name()
    for kind in (Refused, Beaten, Doubtful):
        names = [field.name for field in fields(kind)]
        assert codes(rows[kind.__name__][1]) == names
    handlers = table(PAGE, "Handlers").by_name()
    given = {name.split("(")[0] for name in codes(handlers["Work"][1])}
    assert given == {field.name for field in fields(Work)} | {"check"}
    assert set(codes(handlers["Until"][1])) == {member.name for member in Until}
    report = set(codes(section(PAGE, "Dibs")))
    assert {field.name for field in fields(WorkReport)} <= report


def test_the_parameters_of_open_are_documented():
    for opened in (dibs.open, aio.open):
        names = set(inspect.signature(opened).parameters)
        assert table(PAGE, "Opening").names() == names


# Worktrees


def test_the_public_names_of_worktrees_are_documented_with_their_parameters():
    spelled = table(PAGE, "dibs.worktrees").names()
    assert {name.split("(")[0] for name in spelled} == set(worktrees.__all__)
    for call in (name for name in spelled if "(" in name):
        name, _, given = call.rstrip(")").partition("(")
        parameters = inspect.signature(getattr(worktrees, name)).parameters
        shown = re.findall(r"(\w+)(?:=[^,]+)?(?:, |$)", given.replace("*, ", ""))
        assert shown == [one for one in parameters if one != "reached"]  # for our own tests


# Fencing

FENCING_PAGE = REFERENCE / "fencing.md"
FENCING = {
    "dibs.fencing": [
        "AlreadyApplied",
        "Applied",
        "Conflict",
        "Duplicate",
        "Missing",
        "NotApplied",
        "Outcome",
        "Reading",
        "Stale",
        "StaleFence",
        "Version",
        "insist",
        "key_for",
    ],
    "dibs.fencing.sql": [
        "FENCES",
        "Connection",
        "Table",
        "create_table",
        "guarded",
        "guarded_update",
        "stamp",
        "stamp_resource",
    ],
    "dibs.fencing.redis": [
        "Client",
        "Value",
        "fence_key",
        "guarded_hset",
        "guarded_set",
        "read",
        "read_hash",
        "stamp",
    ],
    "dibs.fencing.objects": ["Client", "guarded_put", "read", "stamp"],
    "dibs.fencing.files": ["guarded_write", "read", "stamp"],
}


def test_the_public_names_of_fencing_are_these_and_documented():
    wrong = [flaw for module in FENCING for flaw in _flaws_of_fencing(module)]
    assert not wrong, "\n".join(wrong)


def _flaws_of_fencing(module: str) -> Iterator[str]:
    public, place = importlib.import_module(module), f"{name_of(FENCING_PAGE)}: {module}"
    spelled = table(FENCING_PAGE, module, "name").names()
    documented = {name.split("(")[0] for name in spelled}
    if public.__all__ != FENCING[module]:
        yield f"{module}: its public names are {public.__all__}"
    for name in sorted(documented ^ set(FENCING[module])):
        yield f"{place}: {name} is public or documented, and not both"
    for call in sorted(name for name in spelled if "(" in name):
        name, _, given = call.rstrip(")").partition("(")
        parameters = inspect.signature(getattr(public, name, lambda: None)).parameters
        if re.findall(r"(\w+)(?:=[^,]+)?(?:, |$)", given.replace("*, ", "")) != [*parameters]:
            yield f"{place}: {call} takes {[*parameters]}"


def test_the_outcomes_and_errors_of_fencing_are_documented():
    outcomes = table(FENCING_PAGE, "Outcomes").by_name()
    kinds = fencing.Outcome.__args__
    assert set(outcomes) == {kind.__name__ for kind in kinds}
    for kind in kinds:
        names = [field.name for field in dataclasses.fields(kind)]
        assert codes(outcomes[kind.__name__][1]) == names
    errors = {row[0].strip("`"): row[1].strip("`") for row in table(FENCING_PAGE, "Errors").rows}
    public = [getattr(fencing, name) for name in fencing.__all__]
    assert errors == {
        kind.__name__: kind.code
        for kind in public
        if isinstance(kind, type) and issubclass(kind, DibsError)
    }
