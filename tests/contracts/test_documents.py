"""Every GraphQL document that we send, against GitHub's schema and against the fake's."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from graphql import GraphQLError, parse

import dibs
from dibs.adapters.github import documents
from dibs.adapters.github.documents import MOST_AT_ONCE, snapshots
from dibs.core.labels import AddLabels, CloseIssue, EditComment, PostComment, RemoveLabels
from dibs_lab.fakehub.graphql_door import priced
from dibs_lab.fakehub.graphql_price import MOST_NODES
from dibs_lab.fakehub.graphql_schema import published as ours
from dibs_lab.fakehub.graphql_schema import served

from .graphql import flaws

PROBES = {
    "account": documents.PROBE_ACCOUNT,
    "comments": documents.PROBE_COMMENTS,
    "labels": documents.PROBE_LABELS,
    "trip": documents.PROBE_TRIP,
    "price": documents.priced(snapshots(50)),
}
SOURCE = Path(dibs.__file__).parent


def every_document():
    """A sample of each document. Each kind of effect is the last effect of a trip."""
    kinds = (
        AddLabels(("a",)),
        RemoveLabels(("a", "b")),
        PostComment("said"),
        EditComment(1, "said"),
        CloseIssue(),
    )
    return {
        "read": documents.READ,
        "control": documents.CONTROL,
        **{f"threads of {count}": snapshots(count) for count in (1, 2, MOST_AT_ONCE)},
        **{f"pulls of {count}": documents.pulls(count) for count in (1, 2, MOST_AT_ONCE)},
        **{f"{count} pulls named": documents.pulls_named(count) for count in (1, MOST_AT_ONCE)},
        **{f"finding {count}": documents.finding(count) for count in (1, 2, 8)},
        **{f"tally of {count}": documents.tally(count) for count in (1, 12)},
        **{f"trip of {type(kind).__name__}": documents.trip((kind,)) for kind in kinds},
        **{f"trip to {type(kind).__name__}": documents.trip((*kinds, kind)) for kind in kinds},
        **{f"probe of the {name}": document for name, document in PROBES.items()},
    }


each_document = pytest.mark.parametrize("name", sorted(every_document()))


@each_document
def test_a_document_is_valid_by_github_s_schema(name):
    """Except for the programs among the assignees: gh asks for them, and no schema shows them."""
    assert flaws(documents.without_actors(every_document()[name])) == []


@each_document
def test_a_document_asks_for_nothing_that_the_fake_has_not(name):
    assert flaws(every_document()[name], served()) == []
    assert flaws(documents.without_actors(every_document()[name]), ours()) == []


@each_document
def test_a_document_is_within_the_limit_of_nodes(name):
    everything = {"away": True, "labels": True}
    pages = {f"f{place}": 100 for place in range(8)}
    assert priced(every_document()[name], {**everything, **pages}).nodes <= MOST_NODES


def test_looking_at_many_costs_a_few_points():
    alone = {"away": False, "labels": False}
    assert priced(snapshots(MOST_AT_ONCE), alone).points <= 6
    assert priced(snapshots(1), alone).points == 1
    assert priced(snapshots(1), {"away": True, "labels": True}).points == 1


def test_looking_at_many_asks_for_half_of_the_entries_of_whole_issues():
    """GitHub gives up documents whose lists are long, far below its limit of nodes."""
    alone = {"away": False, "labels": False}
    few, all_of_them = (priced(snapshots(MOST_AT_ONCE, full=full), alone) for full in (False, True))
    assert few.points == all_of_them.points
    assert few.nodes <= 25_000 <= all_of_them.nodes / 1.8


def test_the_checker_finds_a_field_that_does_not_exist():
    assert "Cannot query field 'stars'" in flaws("{ viewer { stars } }")[0]


def test_documents_are_written_in_one_module_only():
    """So that none is sent which nobody checks."""
    home = find_spec("dibs.adapters.github.documents")
    assert home is not None
    found = [
        f"{module.name}: {text[:40]!r}"
        for module in sorted((SOURCE / "adapters").rglob("*.py"))
        if str(module) != home.origin
        for text in _texts(module)
        if _is_document(text)
    ]
    assert found == []


def _texts(module):
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_document(text):
    if not re.match(r"\s*(query|mutation|fragment|\{)", text):
        return False
    try:
        return bool(parse(text))
    except GraphQLError:
        return False
