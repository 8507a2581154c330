"""Every adapter has its line in the tables, and the reports can be printed."""

import ast
import inspect
from pathlib import Path

import pytest

import dibs
from dibs.testing import conformance
from dibs.wiring.stores import STORES as STORE_KINDS

from . import __main__ as printing
from .adapters import STORES, TRACKERS

ONE_TRIP = "tests.one_trip"  # the memory tracker, with GitHub's way of batching
WRAPPED = "dibs.adapters.wrappers.trackers"
ADAPTERS = Path(dibs.__file__).parent / "adapters"


def _modules(name):
    """Every vendor's module of that name."""
    return {f"dibs.adapters.{path.parent.name}.{name}" for path in ADAPTERS.glob(f"*/{name}.py")}


def _tested(table, subject):
    found = set()
    for factory, _ in table.values():
        with factory() as harness:
            found.add(type(getattr(harness, subject)).__module__)
    return found


def test_every_lease_store_has_a_line_in_the_table():
    ours = _modules("leases") - {"dibs.adapters.wrappers.leases"}
    assert _tested(STORES, "store") == ours | {"dibs.services.comment_leases"}


def test_every_tracker_has_a_line_in_the_table():
    assert _tested(TRACKERS, "tracker") == _modules("tracker") | {ONE_TRIP, WRAPPED}


def test_the_public_names_are_these():
    assert sorted(conformance.__all__) == [
        "Check",
        "Factory",
        "Finding",
        "LEASE_CHECKS",
        "LeaseHarness",
        "NotApplicable",
        "Report",
        "Result",
        "TRACKER_CHECKS",
        "TrackerHarness",
        "prove_leases",
        "prove_tracker",
    ]


@pytest.mark.parametrize("suite", [conformance.LEASE_CHECKS, conformance.TRACKER_CHECKS])
def test_every_check_that_was_written_is_in_its_suite(suite):
    module = inspect.getmodule(suite[0].run)
    written = {
        node.name
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and [argument.arg for argument in node.args.args] == ["harness"]
    }
    assert {check.name for check in suite} == written


def test_the_reports_are_printed_and_the_exit_code_says_whether_all_conform(capsys):
    assert printing.main(["memory"]) == 0
    told = capsys.readouterr().out
    assert "lease store memory: conforms" in told
    assert "tracker memory: conforms" in told
    assert "atomic: a_crowd_never_holds_twice" in told
    assert "skipped: a_batch_is_all_or_nothing: the tracker does not apply" in told
    assert told.endswith("every adapter conforms\n")


def test_one_adapter_that_does_not_conform_is_enough_for_a_bad_exit_code(capsys, monkeypatch):
    from .broken_stores import ForgetsTheFence, opening

    table = {"memory": STORES["memory"], "broken": (opening(ForgetsTheFence), None)}
    monkeypatch.setattr(printing, "STORES", table)
    assert printing.main(["broken", "memory"]) == 1
    told = capsys.readouterr().out
    assert "lease store broken: DOES NOT CONFORM" in told
    assert "fenced: NOT PROVED" in told


def test_a_line_that_is_not_there_is_named(capsys):
    assert printing.main(["mongodb"]) == 1
    assert capsys.readouterr().out.startswith("no such line: mongodb; known: comments-on-github,")


@pytest.mark.parametrize("kind", STORE_KINDS, ids=[kind.scheme for kind in STORE_KINDS])
def test_what_dibs_stores_prints_is_what_the_suite_proves(kind):
    lines = {
        "postgresql": "postgres",
        "comments": "comments-on-sqlite",
        "git+github": "git-over-github-api",
    }
    line = lines.get(kind.scheme, kind.scheme)
    assert kind.promises.names == STORES[line][1].names
