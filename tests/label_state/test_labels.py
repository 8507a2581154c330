"""The labels: their names, what keeps agents off, and the one table of moves."""

import httpx
import pytest

from dibs.core.labels import LabelLook, label_looks
from dibs.core.presets import AGENT, EVERY
from dibs.label_state import LIFECYCLE_LABELS, ensure_labels, labels
from dibs.label_state.backlogs import backlog_of

STATES = {
    *(labels.NO_STATE, labels.IMPLEMENT, labels.IN_FLIGHT, labels.PLAN_PENDING_APPROVAL),
    *(labels.PR_OPEN, labels.DONE, labels.NEEDS_HUMAN_SCOPE),
}


def test_the_names_and_colours_are_the_published_ones():
    assert [(name, colour) for name, colour, _ in LIFECYCLE_LABELS] == [
        ("agent:implement", "0e8a16"),
        ("agent:in-flight", "e11d21"),
        ("agent:pr-open", "fbca04"),
        ("agent:done", "0e8a16"),
        ("do-not-pickup", "5319e7"),
        ("needs:human-scope", "e99695"),
    ]
    assert [(name, colour) for name, colour, _ in labels.STANDARD_LABELS] == [
        ("batman-pr-open", "5319e7"),
        ("agent:large-feature", "ff6b00"),
        ("batman:fanout-complete", "5319e7"),
        ("done-already", "0e8a16"),
    ]
    assert all(len(label.description) <= 100 for label in EVERY)


def test_what_an_agent_preset_makes_looks_as_the_catalogue_says():
    looks = label_looks(AGENT)
    for label in EVERY:
        assert looks[label.name] == LabelLook(label.color, label.description)
    known = {label.name for label in EVERY}
    assert set(AGENT.every_label) - {"paused"} <= known, "nothing is painted in another colour"


def labels_on(hub):
    """Colour and description of each label of the repository."""
    listed = httpx.get(
        f"{hub.hub.hub.url}/repos/{hub.repository}/labels",
        params={"per_page": 100},
        headers={"Authorization": "Bearer fleet-token"},
    )
    return {one["name"]: (one["color"], one["description"] or "") for one in listed.json()}


def test_missing_labels_are_made_in_their_colours_and_no_label_is_made_twice(hub):
    tracker, every = backlog_of("shop").services.tracker, {label.name for label in EVERY}
    assert set(tracker.missing_labels(sorted(every))) < every
    for _ in range(2):
        tracker.prepare(sorted(every))
        assert tracker.missing_labels(sorted(every)) == ()
    made = labels_on(hub)
    for label in EVERY:
        assert made[label.name] == (label.color, label.description)
    ensure_labels("shop", [("area:billing", "123456", "")])
    ensure_labels("shop")


# Bundles


def test_a_bundle_is_named_after_its_slug():
    assert labels.bundle_label("billing-v2") == "agent:bundle:billing-v2"
    assert labels.is_bundle_label("agent:bundle:x")
    assert not labels.is_bundle_label("agent:bundle:")
    assert labels.bundle_slug("agent:bundle:x") == "x"
    assert labels.bundle_slug("bug") is None
    found = labels.bundle_labels(["agent:bundle:b", "bug", "agent:bundle:a"])
    assert found == ["agent:bundle:a", "agent:bundle:b"]


@pytest.mark.parametrize("slug", ["", " ", "a b", "a\tb", "a,b", "x" * 38])
def test_a_slug_that_cannot_be_a_label_is_refused(slug):
    with pytest.raises(ValueError, match="slug"):
        labels.bundle_label(slug)


def test_the_longest_slug_that_fits_a_label_is_taken():
    assert len(labels.bundle_label("x" * 37)) == 50


# Blockers


@pytest.mark.parametrize(
    ("label", "claim", "pickup", "feature_dev"),
    [
        ("agent:in-flight", True, True, False),
        ("agent:pr-open", True, True, False),
        ("lucius-pr-open", True, True, True),
        ("do-not-pickup", True, True, False),
        ("needs:human-scope", True, True, False),
        ("agent:needs-human-review", True, True, False),
        ("needs:info", True, True, False),
        ("agent:done", True, True, False),
        ("done-already", True, True, False),
        ("batman:fanout-complete", True, True, False),
        ("agent:large-feature", False, True, True),
        ("agent:plan-pending-approval", False, True, True),
        ("agent:bundle:x", False, True, False),
        ("feature", False, False, True),
        ("enhancement", False, False, True),
        ("bug", False, False, False),
    ],
)
def test_each_label_blocks_what_it_is_published_to_block(label, claim, pickup, feature_dev):
    assert labels.claim_blocking_labels([label]) == [label] * claim
    assert labels.pickup_blocking_labels([label]) == [label] * pickup
    assert labels.robin_triage_blocking_labels([label]) == [label] * pickup
    assert labels.has_pickup_blocker([label]) is labels.has_blocker([label]) is pickup
    assert labels.feature_dev_claim_blocking_labels([label]) == [label] * feature_dev


def test_a_feature_that_triage_has_promoted_is_anybodys():
    promoted = ["feature", "agent:implement", "severity:p1"]
    assert labels.feature_dev_claim_blocking_labels(promoted) == []
    assert labels.feature_dev_pickup_blocking_labels(promoted) == []
    assert labels.feature_dev_pickup_blocking_labels(promoted[:2]) == ["feature"]
    assert labels.feature_dev_pickup_blocking_labels(["agent:bundle:x"]) == []


# Moves


def test_the_table_of_moves_knows_every_state_and_nothing_else():
    assert {one.src for one in labels.TRANSITIONS} == STATES - {labels.DONE}
    assert {one.dst for one in labels.TRANSITIONS} == STATES
    assert all(one.trigger for one in labels.TRANSITIONS)
    assert labels.legal_transitions(labels.DONE) == ()


def test_the_table_and_the_pipeline_allow_the_same_moves():
    """What the table calls in-flight is a lease in the stage that gave way."""
    queued = AGENT.stage("implement")
    led_on = {AGENT.stage(name).label for name in queued.next}
    legal = {move.dst for move in labels.legal_transitions(labels.IN_FLIGHT)}
    assert legal - {labels.NO_STATE} == led_on | {queued.label, AGENT.labels.parked}
    for stage in AGENT.stages[2:]:
        onward = {AGENT.stage(name).label for name in stage.next}
        assert {move.dst for move in labels.legal_transitions(stage.label)} == onward


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("(none)", "agent:implement"),
        ("agent:implement", "agent:in-flight"),
        ("agent:implement", "needs:human-scope"),
        ("agent:in-flight", "agent:implement"),
        ("agent:in-flight", "agent:pr-open"),
        ("agent:in-flight", "agent:done"),
        ("agent:in-flight", "agent:plan-pending-approval"),
        ("agent:plan-pending-approval", "agent:in-flight"),
        ("agent:plan-pending-approval", "agent:implement"),
        ("agent:pr-open", "agent:done"),
        ("agent:pr-open", "agent:implement"),
    ],
)
def test_a_move_of_the_documents_is_legal(src, dst):
    assert labels.is_legal_transition(src, dst)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("agent:done", "agent:in-flight"),
        ("agent:implement", "agent:done"),
        ("agent:implement", "agent:pr-open"),
        ("agent:pr-open", "agent:in-flight"),
        ("agent:in-flight", "shipped"),
        ("agent:in-flight", "do-not-pickup"),
    ],
)
def test_any_other_is_not(src, dst):
    assert not labels.is_legal_transition(src, dst)


def test_the_most_advanced_label_is_the_state():
    assert labels.lifecycle_state(["agent:implement", "agent:pr-open"]) == "agent:pr-open"
    assert labels.lifecycle_state(["agent:in-flight", "bug"]) == "agent:in-flight"
    assert labels.lifecycle_state(["bug"]) is None


def test_the_environment_is_read_as_it_always_was(monkeypatch):
    told = {"GH_ORG": "acme", "LABEL_STATE_SWEEP_REPOS": "a, b/c,,", "ALFRED_HOME": "/srv/a"}
    found = labels.LabelStateConfig.from_env(told)
    assert (found.gh_org, found.sweep_repos) == ("acme", ("a", "b/c"))
    assert found.alfred_home == "/srv/a"


def test_a_label_of_a_fleets_own_looks_as_the_fleet_says(hub):
    ensure_labels("shop", [("area:billing", "123456", "What the till does"), ("bug", "d73a4a", "")])
    made = labels_on(hub)
    assert made["area:billing"] == ("123456", "What the till does")
    assert made["bug"] == ("d73a4a", "")
    ensure_labels("shop", [("area:billing", "654321", "Another")])
    assert labels_on(hub)["area:billing"] == ("123456", "What the till does"), "it is there"


def test_a_dry_run_makes_no_label(hub, monkeypatch):
    before = labels_on(hub)
    monkeypatch.setenv("ALFRED_DRY_RUN", "1")
    ensure_labels("shop", [("area:billing", "123456", "")])
    assert labels_on(hub) == before
