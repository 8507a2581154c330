"""The two pipelines that need no configuration, move by move."""

import itertools

import pytest

from dibs.core.errors import IllegalMove
from dibs.core.pipeline import ApprovalGate
from dibs.core.presets import AGENT, PRESETS, STAGES

LEGAL = {
    "stages": {"ready": ["review"], "review": ["done", "ready"], "done": []},
    "agent": {
        "implement": ["pr-open", "plan-pending-approval", "done"],
        "plan-pending-approval": ["implement", "pr-open", "done"],
        "pr-open": ["done", "implement"],
        "done": [],
    },
}
MOVES = [
    (preset, origin, target)
    for preset, table in LEGAL.items()
    for origin, target in itertools.product(table, table)
]


def test_there_are_two_presets_and_the_table_knows_every_stage_of_both():
    assert PRESETS == {"stages": STAGES, "agent": AGENT}
    assert {name: [stage.name for stage in PRESETS[name].stages] for name in PRESETS} == {
        name: list(table) for name, table in LEGAL.items()
    }


@pytest.mark.parametrize(("preset", "origin", "target"), MOVES)
def test_every_move_of_a_preset_is_legal_or_refused_as_the_table_says(preset, origin, target):
    pipeline = PRESETS[preset]
    if target in LEGAL[preset][origin]:
        assert pipeline.target(origin, target).name == target
    else:
        with pytest.raises(IllegalMove) as refusal:
            pipeline.target(origin, target)
        assert list(refusal.value.legal) == LEGAL[preset][origin]


@pytest.mark.parametrize(
    ("preset", "origin"), [(preset, origin) for preset in LEGAL for origin in LEGAL[preset]]
)
def test_a_handler_that_names_no_target_takes_the_first_or_is_at_the_end(preset, origin):
    pipeline, legal = PRESETS[preset], LEGAL[preset][origin]
    if legal:
        assert pipeline.target(origin, None).name == legal[0]
    else:
        with pytest.raises(IllegalMove, match="nowhere"):
            pipeline.target(origin, None)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_stage_of_a_preset_leads_to_the_end_and_the_end_closes(preset):
    pipeline = PRESETS[preset]
    for stage in pipeline.stages:
        seen, edge = set(), {stage.name}
        while edge:
            seen |= edge
            edge = {onward for name in edge for onward in pipeline.stage(name).next} - seen
        assert "done" in seen
        assert stage.closes is stage.final is (stage.name == "done")


def test_the_stages_preset_paints_the_documented_labels():
    assert STAGES.every_label == (
        *("stage:ready", "stage:processing", "stage:review", "approved", "stage:done"),
        *("claimed", "paused", "parked", "do-not-pickup"),
    )
    assert STAGES.stage("review").gate == ApprovalGate("approved", back="ready")


def test_the_agent_preset_paints_the_documented_labels():
    assert set(AGENT.every_label) == {
        *("agent:implement", "agent:in-flight", "agent:plan-pending-approval"),
        *("agent:plan-approved", "agent:pr-open", "agent:done"),
        *("paused", "needs:human-scope", "agent:authored"),
        *("do-not-pickup", "needs:info", "agent:needs-human-review", "done-already"),
    }
    assert AGENT.vetoes == {
        *("paused", "needs:human-scope"),
        *("do-not-pickup", "needs:info", "agent:needs-human-review", "done-already"),
    }
    assert AGENT.stage("plan-pending-approval").gate == ApprovalGate(
        "agent:plan-approved", back="implement"
    )


def test_each_preset_starts_where_work_is_done_and_shows_it():
    assert STAGES.stages[0].working_label == "stage:processing"
    assert AGENT.labels.claimed == "agent:in-flight"
    assert AGENT.stages[0].gives_way, "the labels of its lifecycle exclude each other"
