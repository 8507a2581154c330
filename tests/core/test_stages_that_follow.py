"""Stages that follow pull requests: which are possible, and how a file says so."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.core.errors import BadConfiguration
from dibs.core.ids import StageName
from dibs.core.labels import label_looks
from dibs.core.pipeline import ApprovalGate, FollowsNothing, FollowsPull
from dibs.core.presets import AGENT, AUTHORED, STAGES
from dibs.settings import load as config

PR_OPEN = AGENT.stage("pr-open")
PLAIN = [
    {"name": "work", "next": "review"},
    {"name": "review", "next": ["done", "work"]},
    {"name": "done", "closes": True},
]


def settings(*stages, preset="none"):
    document = {"preset": preset, "stage": list(stages)}
    return config.from_mapping(document, source="dibs.toml", root=Path("/nowhere"))


def review(**changes):
    stages = [dict(stage) for stage in PLAIN]
    stages[1] |= changes
    return settings(*stages).pipeline.stage("review")


def test_the_preset_follows_and_only_there():
    assert PR_OPEN.follows == FollowsPull(back=StageName("implement"), authored=AUTHORED)
    others = [stage for pipeline in (STAGES, AGENT) for stage in pipeline.stages]
    assert all(stage.follows == FollowsNothing() for stage in others if stage != PR_OPEN)


def test_the_label_of_the_fleets_pull_requests_is_one_of_the_pipelines():
    assert AUTHORED in AGENT.every_label
    assert len(label_looks(AGENT)[AUTHORED].description) <= 100


def test_a_file_says_it_in_a_word():
    assert review(follows="pull-request").follows == FollowsPull(StageName("work"))
    told = review(follows="pull-request", back="work", authored="ours")
    assert told.follows == FollowsPull(StageName("work"), "ours")
    assert review().follows == review(follows="none").follows == FollowsNothing()


def test_a_file_changes_what_a_preset_follows():
    def changed(**changes):
        return settings({"name": "pr-open", **changes}, preset="agent").pipeline.stage("pr-open")

    assert changed().follows == PR_OPEN.follows
    assert changed(follows="none").follows == FollowsNothing()
    assert changed(authored="").follows == FollowsPull(StageName("implement"), "")
    moved = changed(next=["done", "plan-pending-approval"], back="plan-pending-approval")
    assert moved.follows == FollowsPull(StageName("plan-pending-approval"), AUTHORED)
    assert changed(run="./review.sh").follows == PR_OPEN.follows, "it may be worked as well"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"follows": "pulls"}, "follows 'pulls' is not one of pull-request, none"),
        ({"follows": "pull-request", "next": "done"}, "must be another of its next stages"),
        ({"follows": "pull-request", "back": "done"}, "must be another of its next stages"),
        ({"follows": "pull-request", "back": "nowhere"}, "must be another of its next stages"),
        ({"follows": "pull-request", "gate": "approval"}, "the merge is the approval"),
        ({"back": "work"}, "back goes with a gate, or with follows"),
        ({"authored": "ours"}, "goes with follows"),
        ({"follows": "none", "authored": "ours"}, "goes with follows"),
        ({"follows": "pull-request", "authored": "Claimed"}, "a label of its own"),
        ({"follows": "pull-request", "authored": "stage:work"}, "a label of its own"),
        ({"follows": "pull-request", "authored": "a,b"}, "a label of its own"),
        ({"follows": "pull-request", "authored": " padded"}, "a label of its own"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(changes, said):
    with pytest.raises(BadConfiguration, match=said):
        review(**changes)


def test_a_gate_and_a_pull_request_are_not_both_waited_for():
    stages = tuple(
        replace(stage, gate=ApprovalGate("ok")) if stage == PR_OPEN else stage
        for stage in AGENT.stages
    )
    with pytest.raises(ValueError, match="the merge is the approval"):
        replace(AGENT, stages=stages)


def test_the_hook_is_lenient_and_patient_for_three_seconds_unless_it_is_told():
    assert (settings(*PLAIN).hook.strict, settings(*PLAIN).hook.timeout.total_seconds()) == (
        False,
        3,
    )
    told = config.from_mapping(
        {"hook": {"strict": True, "timeout": "500ms"}}, source="x", root=Path("/nowhere")
    )
    assert (told.hook.strict, told.hook.timeout.total_seconds()) == (True, 0.5)
    with pytest.raises(BadConfiguration, match="longer than nothing"):
        config.from_mapping({"hook": {"timeout": "0s"}}, source="x", root=Path("/nowhere"))
