"""Label plans: add first, remove after, `claimed` last, and finished by whoever comes next."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    PostComment,
    RemoveLabels,
    claim_effects,
    ending_effects,
    freeing_effects,
)
from dibs.core.lease import Ending, Outcome
from dibs.core.pipeline import ApprovalGate
from dibs.core.presets import AGENT, PRESETS, STAGES

from .builders import labels_after, make_issue, make_record

OTHERS = ["bug", "area:shop", "good first issue", "dependencies", "Claimed?"]
MOVES = [
    (preset, stage, target)
    for preset, pipeline in PRESETS.items()
    for stage in pipeline.stages
    for target in stage.next
]


def label_sets(pipeline):
    return st.frozensets(st.sampled_from([*pipeline.every_label, *OTHERS]))


def moments(effects, labels):
    """Every label set an onlooker may see: trackers change one label at a time."""
    yield labels
    for effect in effects:
        for one in getattr(effect, "labels", ()):
            labels = labels | {one} if isinstance(effect, AddLabels) else labels - {one}
            yield labels


def single_steps(effects):
    for effect in effects:
        match effect:
            case AddLabels(labels):
                yield from (AddLabels((one,)) for one in labels)
            case RemoveLabels(labels):
                yield from (RemoveLabels((one,)) for one in labels)
            case _:
                yield effect


def stage_labels(pipeline):
    return {stage.label for stage in pipeline.stages}


@st.composite
def endings(draw, outcomes=tuple(Outcome), *, at_home=False):
    """A pipeline, an ended lease in it, and the labels its issue may carry by then."""
    pipeline = PRESETS[draw(st.sampled_from(list(PRESETS)))]
    stage = draw(st.sampled_from([stage for stage in pipeline.stages if stage.next]))
    outcome = draw(st.sampled_from(outcomes))
    target = draw(st.sampled_from([None, *stage.next])) if outcome is Outcome.ADVANCED else None
    labels = draw(label_sets(pipeline))
    if at_home:
        onward = pipeline.target(stage.name, target)
        strays = stage_labels(pipeline) - {stage.label, onward.label}
        labels = (labels - strays) | {stage.label}
    return pipeline, make_record(outcome.value, target, stage=stage.name), labels


# Claiming


@pytest.mark.parametrize(
    ("stage", "labels", "effects"),
    [
        ("ready", ["stage:ready"], (AddLabels(("claimed", "stage:processing")),)),
        ("ready", ["stage:ready", "claimed"], (AddLabels(("stage:processing",)),)),
        ("ready", ["stage:ready", "claimed", "stage:processing"], ()),
        ("review", ["stage:review"], (AddLabels(("claimed",)),)),
    ],
)
def test_a_claim_adds_what_is_missing_and_removes_nothing(stage, labels, effects):
    assert claim_effects(STAGES, STAGES.stage(stage), frozenset(labels)) == effects


def test_a_claim_takes_off_a_label_that_gives_way_only_when_claimed_is_there():
    """Between the two changes, and if the second never comes, a query still finds the issue."""
    effects = claim_effects(AGENT, AGENT.stage("implement"), frozenset({"agent:implement"}))
    assert effects == (AddLabels(("agent:in-flight",)), RemoveLabels(("agent:implement",)))


@given(st.sampled_from(MOVES), st.data())
def test_painting_a_claim_twice_changes_nothing_more(move, data):
    pipeline, stage = PRESETS[move[0]], move[1]
    before = data.draw(label_sets(pipeline))
    after = labels_after(claim_effects(pipeline, stage, before), before)
    assert before - after == ({stage.label} & before if stage.gives_way else set())
    assert pipeline.labels.claimed in after
    assert claim_effects(pipeline, stage, after) == ()


# Ending


@pytest.mark.parametrize(("preset", "stage", "target"), MOVES)
def test_every_legal_move_is_painted_add_first_claimed_last(preset, stage, target):
    pipeline = PRESETS[preset]
    onward = pipeline.stage(target)
    gate = {stage.gate.label} if isinstance(stage.gate, ApprovalGate) else set()
    working = {stage.working_label} if stage.working_label else set()
    claimed, home = pipeline.labels.claimed, set() if stage.gives_way else {stage.label}
    before = frozenset({claimed, "bug", *home, *gate, *working})
    effects = ending_effects(pipeline, make_record("advanced", target, stage=stage.name), before)
    assert effects[0] == AddLabels((onward.label,))
    assert effects[-1] == RemoveLabels((claimed,))
    assert (CloseIssue() in effects) is onward.closes
    assert labels_after(effects, before) == {onward.label, "bug"}


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        ("returned", {"stage:ready", "bug"}),
        ("failed", {"stage:ready", "bug"}),
        ("conceded", {"stage:ready", "bug"}),
        ("parked", {"stage:ready", "bug", "parked"}),
    ],
)
def test_an_issue_that_goes_back_goes_to_the_stage_it_came_from(outcome, after):
    before = frozenset({"stage:ready", "stage:processing", "claimed", "bug"})
    effects = ending_effects(STAGES, make_record(outcome), before)
    assert labels_after(effects, before) == after
    assert effects[-1] == RemoveLabels(("claimed",))


def test_parking_uses_the_pipelines_own_word_for_it_and_says_so_first():
    before = frozenset({"agent:in-flight"})
    effects = ending_effects(AGENT, make_record("parked", stage="implement"), before)
    assert effects[0] == AddLabels(("needs:human-scope",))
    assert labels_after(effects, before) == {"agent:implement", "needs:human-scope"}


@pytest.mark.parametrize("preset", list(PRESETS))
def test_an_approval_is_used_up_by_the_move_it_allowed_and_by_nothing_else(preset):
    pipeline = PRESETS[preset]
    stage = next(stage for stage in pipeline.stages if isinstance(stage.gate, ApprovalGate))
    before = frozenset({stage.label, stage.gate.label, "claimed"})
    moved = ending_effects(pipeline, make_record("advanced", stage=stage.name), before)
    assert stage.gate.label not in labels_after(moved, before)
    back = ending_effects(pipeline, make_record("returned", stage=stage.name), before)
    assert stage.gate.label in labels_after(back, before)


@given(endings((Outcome.ADVANCED,), at_home=True))
def test_an_advancing_issue_is_never_seen_without_a_stage(case):
    pipeline, record, before = case
    effects = ending_effects(pipeline, record, before)
    for seen in moments(effects, before):
        assert seen & stage_labels(pipeline)
    onward = pipeline.target(record.lease.stage, record.ending.next)
    assert labels_after(effects, before) & stage_labels(pipeline) == {onward.label}


@given(endings())
def test_no_ending_takes_the_last_stage_label_off_an_issue(case):
    pipeline, record, before = case
    if before & stage_labels(pipeline):
        for seen in moments(ending_effects(pipeline, record, before), before):
            assert seen & stage_labels(pipeline)


@given(endings())
def test_claimed_comes_off_last_and_always(case):
    pipeline, record, before = case
    claimed = pipeline.labels.claimed
    *earlier, last = [None, *moments(ending_effects(pipeline, record, before), before)]
    assert claimed not in last
    if claimed in before:
        assert all(claimed in seen for seen in earlier if seen is not None)


@given(endings())
@example((STAGES, make_record("advanced"), frozenset({"stage:ready", "stage:review", "claimed"})))
@example((STAGES, make_record("advanced"), frozenset({"stage:ready", "stage:done", "claimed"})))
def test_whoever_finishes_after_a_crash_at_any_step_reaches_the_same_labels(case):
    pipeline, record, before = case
    steps = list(single_steps(ending_effects(pipeline, record, before)))
    final = labels_after(tuple(steps), before)
    for crashed_after in range(len(steps) + 1):
        done = tuple(steps[:crashed_after])
        left = labels_after(done, before)
        rest = ending_effects(pipeline, record, left)
        assert labels_after(rest, left) == final
        if CloseIssue() in steps:
            assert CloseIssue() in (*done, *rest)


@given(endings())
def test_painting_an_ending_twice_changes_no_label(case):
    pipeline, record, before = case
    after = labels_after(ending_effects(pipeline, record, before), before)
    again = ending_effects(pipeline, record, after)
    assert not any(isinstance(effect, AddLabels | RemoveLabels) for effect in again)


@given(endings())
def test_other_bots_and_peoples_labels_are_never_touched(case):
    pipeline, record, before = case
    kept = {*OTHERS, "paused", *pipeline.blockers}
    for seen in moments(ending_effects(pipeline, record, before), before):
        assert seen & kept == before & kept


@given(endings([outcome for outcome in Outcome if outcome is not Outcome.ADVANCED]))
def test_going_back_adds_no_stage_but_the_one_that_gave_way_and_removes_none(case):
    pipeline, record, before = case
    after = labels_after(ending_effects(pipeline, record, before), before)
    stage = pipeline.stage(record.lease.stage)
    home = before & stage_labels(pipeline) or ({stage.label} if stage.gives_way else set())
    assert after & stage_labels(pipeline) == home


@pytest.mark.parametrize("outcome", ["returned", "failed", "conceded"])
def test_a_stage_that_gave_way_comes_back_before_claimed_goes(outcome):
    before = frozenset({"agent:in-flight", "bug"})
    effects = ending_effects(AGENT, make_record(outcome, stage="implement"), before)
    assert effects == (AddLabels(("agent:implement",)), RemoveLabels(("agent:in-flight",)))


@pytest.mark.parametrize("outcome", ["returned", "failed", "conceded", "parked"])
def test_what_had_no_stage_goes_back_to_none(outcome):
    before = frozenset({"agent:in-flight", "agent:summarise"})
    after = labels_after(ending_effects(AGENT, make_record(outcome, stage=""), before), before)
    assert after - {"needs:human-scope"} == {"agent:summarise"}


@pytest.mark.parametrize("stage", [stage.name for stage in AGENT.stages])
def test_what_had_no_stage_may_be_led_to_any(stage):
    before = frozenset({"agent:in-flight", "agent:summarise"})
    effects = ending_effects(AGENT, make_record("advanced", stage, stage=""), before)
    assert labels_after(effects, before) == {AGENT.stage(stage).label, "agent:summarise"}


@given(st.sampled_from(MOVES), st.data())
def test_an_issue_that_a_person_moved_meanwhile_stays_where_they_put_it(move, data):
    pipeline, stage, target = PRESETS[move[0]], move[1], move[2]
    elsewhere = [other.label for other in pipeline.stages if other.name not in (stage.name, target)]
    if not elsewhere:
        return
    chosen = data.draw(st.sampled_from(elsewhere))
    old_too = data.draw(st.booleans())
    working = {stage.working_label} if stage.working_label else set()
    claimed = pipeline.labels.claimed
    before = frozenset({chosen, claimed, "bug", *working, *({stage.label} if old_too else ())})
    effects = ending_effects(pipeline, make_record("advanced", target, stage=stage.name), before)
    assert labels_after(effects, before) == {chosen, "bug"}
    assert CloseIssue() not in effects


def test_an_ending_in_a_stage_the_configuration_has_dropped_only_frees_the_issue():
    before = frozenset({"stage:old", "claimed", "bug"})
    effects = ending_effects(STAGES, make_record("advanced", "review", stage="old"), before)
    assert effects == (RemoveLabels(("claimed",)),)


@pytest.mark.parametrize(
    ("stage", "target"), [("ready", "qa"), ("ready", "done"), ("done", None), ("done", "ready")]
)
def test_an_ending_whose_move_the_configuration_has_dropped_leaves_the_issue_free_in_its_stage(
    stage, target
):
    """The next reader must be able to finish any card it can read, or the issue is stranded."""
    label = STAGES.stage(stage).label
    before = frozenset({label, "stage:processing", "claimed", "bug"})
    effects = ending_effects(STAGES, make_record("advanced", target, stage=stage), before)
    after = labels_after(effects, before)
    assert "claimed" not in after
    assert after & stage_labels(STAGES) == {label}


def test_only_an_ended_lease_is_painted():
    with pytest.raises(AssertionError):
        ending_effects(STAGES, make_record(None), frozenset())


# Freeing


@given(st.sampled_from(list(PRESETS)), st.data())
def test_freeing_takes_off_working_labels_and_then_claimed_and_nothing_else(preset, data):
    pipeline = PRESETS[preset]
    before = data.draw(label_sets(pipeline))
    claimed = pipeline.labels.claimed
    working = {stage.working_label for stage in pipeline.stages if stage.working_label}
    effects = freeing_effects(pipeline, make_issue(before))
    hidden = claimed in before and not before & stage_labels(pipeline)
    home = {stage.label for stage in pipeline.stages if stage.gives_way and hidden}
    after = labels_after(effects, before)
    assert after - home == before - working - {claimed}
    assert len(after & home) == bool(home), "one that may have given way is put back"
    assert freeing_effects(pipeline, make_issue(after)) == ()
    if claimed in before:
        assert effects[-1] == RemoveLabels((claimed,))


@pytest.mark.parametrize(
    ("worked", "home"),
    [
        ("implement", {"agent:implement"}),
        ("plan-pending-approval", {"agent:plan-pending-approval"}),
        ("pr-open", {"agent:implement"}),
        (None, {"agent:implement"}),
        ("", set()),
    ],
)
def test_what_a_vanished_holder_worked_in_is_put_back(worked, home):
    before = frozenset({"agent:in-flight", "bug"})
    effects = freeing_effects(AGENT, make_issue(before), worked)
    assert labels_after(effects, before) == {"bug", *home}
    assert all(seen & (home | {"agent:in-flight"}) for seen in [*moments(effects, before)][:-1])


# Applying


@pytest.mark.parametrize(
    ("effects", "after"),
    [
        ((), {"a"}),
        ((AddLabels(("b", "a")),), {"a", "b"}),
        ((RemoveLabels(("a", "z")),), set()),
        ((AddLabels(("b",)), RemoveLabels(("a", "b"))), set()),
        ((PostComment("hi"), EditComment(3, "ho"), CloseIssue()), {"a"}),
    ],
)
def test_only_label_effects_change_labels(effects, after):
    before = frozenset({"a"})
    assert labels_after(effects, before) == after
    assert before == {"a"}


def test_effects_are_plain_values():
    assert PostComment("hi").body == "hi"
    assert (EditComment(3, "ho").comment, EditComment(3, "ho").body) == (3, "ho")
    record = replace(make_record("returned"), ending=Ending(Outcome.RETURNED, None, "later"))
    assert ending_effects(STAGES, record, frozenset()) == ()
