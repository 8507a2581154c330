"""Inside a run, a handler acts for its own issue; what decides for others is refused."""

import pytest
from msgspec.structs import replace

from dibs.core.errors import HandlerMayNot
from dibs.core.ids import StageName
from dibs.core.pipeline import ApprovalGate, NoGate, Pipeline, Stage
from dibs.core.presets import STAGES
from dibs.core.roles import (
    GivenBy,
    Surrounding,
    handed_on,
    insist_before_gates,
    insist_may,
    insist_own,
    surrounding,
)

DRIVEN = {"DIBS_RUN": "a"}
KEPT = {**DRIVEN, "DIBS_ISSUE": "#1"}
HANDLER = {**KEPT, "DIBS_DEADLINE": "2026-05-01T09:26:22Z"}


@pytest.mark.parametrize(
    ("environment", "around"),
    [
        ({}, None),
        ({"DIBS_RUN": ""}, None),
        ({"DIBS_ISSUE": "#1"}, None),
        (DRIVEN, Surrounding(("a",), handler=False)),
        (KEPT, Surrounding(("a",), handler=False)),
        (HANDLER, Surrounding(("a",), handler=True)),
        ({**HANDLER, "DIBS_RUNS": "a b"}, Surrounding(("a", "b"), handler=True)),
        ({**HANDLER, "DIBS_OPERATOR": "1"}, None),
        ({**HANDLER, "DIBS_OPERATOR": "0"}, Surrounding(("a",), handler=True)),
        ({**DRIVEN, "DIBS_HOLD": "gpu"}, None),
        ({**DRIVEN, "DIBS_LOOP": "nightly"}, None),
        ({**HANDLER, "DIBS_HOLD": "gpu"}, Surrounding(("a",), handler=True)),
    ],
)
def test_the_environment_names_the_run_around_a_command(environment, around):
    assert surrounding(environment) == around


def test_the_command_of_a_hold_inside_a_handler_is_inside_the_handler():
    inside = {"DIBS_RUN": "of the hold", "DIBS_HOLD": "gpu", **handed_on(HANDLER)}
    assert surrounding(inside) == Surrounding(("of the hold",), handler=True)
    assert handed_on({"PATH": "/bin"}) == {}


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({}, set()),
        (DRIVEN, {GivenBy.OPERATOR}),
        (HANDLER, {GivenBy.OPERATOR, GivenBy.AGENT}),
    ],
)
def test_each_command_is_refused_to_those_who_do_not_give_it(environment, refused):
    for given_by in set(GivenBy) - refused:
        insist_may("dibs x", given_by, surrounding(environment))
    for given_by in refused:
        with pytest.raises(HandlerMayNot, match="dibs x is for"):
            insist_may("dibs x", given_by, surrounding(environment))


def test_a_handler_acts_for_its_own_runs_alone():
    bundle = surrounding({**HANDLER, "DIBS_RUNS": "a b"})
    insist_own("b", bundle)
    insist_own("c", surrounding(KEPT))
    insist_own("c", None)
    with pytest.raises(HandlerMayNot, match="run c is another's"):
        insist_own("c", bundle)


@pytest.mark.parametrize("label", ["approved", "Approved", "stage:done", "claimed", "parked"])
def test_a_run_adds_no_issue_with_a_label_that_decides(label):
    ready = STAGES.stage("ready")
    with pytest.raises(HandlerMayNot, match=label):
        insist_before_gates(STAGES, ready, ["bug", label], surrounding(KEPT))
    insist_before_gates(STAGES, ready, ["bug", "do-not-pickup"], surrounding(KEPT))
    insist_before_gates(STAGES, ready, [label], None)


def test_a_run_adds_no_issue_behind_a_gate():
    around = surrounding(KEPT)
    insist_before_gates(STAGES, STAGES.stage("review"), [], around)
    with pytest.raises(HandlerMayNot, match="behind the gate of stage 'review'"):
        insist_before_gates(STAGES, STAGES.stage("done"), [], around)
    insist_before_gates(STAGES, STAGES.stage("done"), ["approved"], None)
    stages = tuple(replace(stage, gate=NoGate()) for stage in STAGES.stages)
    insist_before_gates(replace(STAGES, stages=stages), stages[-1], [], around)


def piped(**nexts: str) -> Pipeline:
    """A pipeline of these stages in this order; a gate is where a stage's moves begin with `|`."""
    return Pipeline(
        tuple(
            Stage(
                StageName(name),
                f"stage:{name}",
                next=tuple(map(StageName, moves.strip("|").split())),
                gate=ApprovalGate(f"{name}-approved") if moves.startswith("|") else NoGate(),
            )
            for name, moves in nexts.items()
        )
    )


@pytest.mark.parametrize(
    ("pipeline", "behind"),
    [
        # The order in the file decides nothing.
        (piped(ready="review", deploy="done", review="|deploy", done=""), {"deploy", "done"}),
        # A chain beside the gate is not behind it.
        (piped(ready="review", review="|done", chores="tidy", tidy="", done=""), {"done"}),
        # A way back through the gate leads to no place behind it.
        (piped(ready="review", review="|done ready", done=""), {"done"}),
        # Two ways, one without a gate.
        (piped(ready="review small", review="|done", small="done", done=""), set()),
        # Two gates, one after the other; the first stage has one of its own.
        (
            piped(ready="|build", build="review", review="|done", done=""),
            {"build", "review", "done"},
        ),
    ],
    ids=["order", "beside", "back", "two ways", "two gates"],
)
def test_behind_a_gate_is_what_no_way_leads_to_without_passing_one(pipeline, behind):
    refused = set()
    for stage in pipeline.stages:
        try:
            insist_before_gates(pipeline, stage, [], surrounding(KEPT))
        except HandlerMayNot:
            refused.add(stage.name)
    assert refused == behind
