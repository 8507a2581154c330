"""Every label of the issue-claim state machine, which labels keep agents off, and the legal moves.

Functions here look at label names only. The names come from `core.presets`. The moves are those
that the pipeline of preset `agent` allows; `release_issue` refuses all others.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dibs.core.agent_dialect import CLAIM_PREFIX as CLAIM_COMMENT_PREFIX
from dibs.core.agent_dialect import RELEASE_PREFIX as RELEASE_COMMENT_PREFIX
from dibs.core.presets import (
    AUTHORED,
    DO_NOT_PICKUP,
    DONE,
    DONE_ALREADY,
    EVERY,
    FANOUT_COMPLETE,
    IMPLEMENT,
    IN_FLIGHT,
    LARGE_FEATURE,
    LIFECYCLE,
    NEEDS_HUMAN_REVIEW,
    NEEDS_HUMAN_SCOPE,
    NEEDS_INFO,
    PLAN_APPROVED,
    PLAN_PENDING_APPROVAL,
    PR_OPEN,
    STANDARD,
    LabelDef,
)

__all__ = [
    "AGENT_PR_OPEN_SUFFIX",
    "AUTHORED",
    "BUNDLE_LABEL_PREFIX",
    "CLAIM_BLOCKING_LABEL_SET",
    "CLAIM_COMMENT_PREFIX",
    "DONE",
    "DONE_ALREADY",
    "DO_NOT_PICKUP",
    "ENHANCEMENT",
    "FANOUT_COMPLETE",
    "FEATURE",
    "FEATURE_DEV_ALWAYS_CLAIM_BLOCKING_LABEL_SET",
    "FEATURE_DEV_PRODUCT_CLAIM_BLOCKING_LABEL_SET",
    "IMPLEMENT",
    "IN_FLIGHT",
    "LABEL_AGENT_PLAN_PENDING_APPROVAL",
    "LARGE_FEATURE",
    "LEGACY_PR_OPEN",
    "LIFECYCLE_LABELS",
    "LIFECYCLE_LABELS_TUPLES",
    "LIFECYCLE_LABEL_DEFS",
    "LIFECYCLE_LABEL_SET",
    "NEEDS_HUMAN_REVIEW",
    "NEEDS_HUMAN_SCOPE",
    "NEEDS_INFO",
    "NO_STATE",
    "PICKUP_BLOCKING_LABEL_SET",
    "PLAN_APPROVED",
    "PLAN_PENDING_APPROVAL",
    "PR_OPEN",
    "RELEASE_COMMENT_PREFIX",
    "ROBIN_TRIAGE_BLOCKING_LABEL_SET",
    "STANDARD_LABELS",
    "STICKY_LABEL_SET",
    "TRANSITIONS",
    "LabelDef",
    "LabelStateConfig",
    "Transition",
    "agent_pr_open_labels",
    "all_transitions",
    "bundle_label",
    "bundle_labels",
    "bundle_slug",
    "claim_blocking_labels",
    "feature_dev_claim_blocking_labels",
    "feature_dev_pickup_blocking_labels",
    "has_blocker",
    "has_feature_dev_pickup_blocker",
    "has_pickup_blocker",
    "is_agent_pr_open_label",
    "is_bundle_label",
    "is_legal_transition",
    "legal_transitions",
    "lifecycle_state",
    "pickup_blocking_labels",
    "robin_triage_blocking_labels",
]

FEATURE = "feature"
ENHANCEMENT = "enhancement"
LEGACY_PR_OPEN = "lucius-pr-open"
AGENT_PR_OPEN_SUFFIX = "-pr-open"
BUNDLE_LABEL_PREFIX = "agent:bundle:"
NO_STATE = "(none)"
"""In the table of moves: an issue without any label of the lifecycle."""
_LONGEST_LABEL = 50  # GitHub's
_SEVERITY_PREFIX = "severity:"

LABEL_AGENT_PLAN_PENDING_APPROVAL = PLAN_PENDING_APPROVAL
LIFECYCLE_LABEL_SET = frozenset({IMPLEMENT, IN_FLIGHT, PR_OPEN, DONE})
STICKY_LABEL_SET = frozenset({DO_NOT_PICKUP, NEEDS_HUMAN_SCOPE})
_BESIDE_THE_LIFECYCLE = {LARGE_FEATURE, FANOUT_COMPLETE, AUTHORED}

LIFECYCLE_LABELS = [(label.name, label.color, label.description) for label in LIFECYCLE]
LIFECYCLE_LABEL_DEFS = (
    *LIFECYCLE,
    *(label for label in EVERY if label.name in _BESIDE_THE_LIFECYCLE),
)
LIFECYCLE_LABELS_TUPLES = tuple(
    (label.name, label.color, label.description) for label in LIFECYCLE_LABEL_DEFS
)
STANDARD_LABELS = [(label.name, label.color, label.description) for label in STANDARD]


# Bundles


def bundle_label(slug: str) -> str:
    """The label of a bundle, a group of issues worked together.

    Raises ValueError for a slug that is empty, has white space or a comma, or is too long.
    """
    if not slug or any(char.isspace() or char == "," for char in slug):
        raise ValueError(f"a bundle's slug has neither white space nor commas: {slug!r}")
    label = BUNDLE_LABEL_PREFIX + slug
    if len(label) > _LONGEST_LABEL:
        room = _LONGEST_LABEL - len(BUNDLE_LABEL_PREFIX)
        raise ValueError(f"a bundle's slug has at most {room} characters: {slug!r}")
    return label


def is_bundle_label(label: str) -> bool:
    return label.startswith(BUNDLE_LABEL_PREFIX) and label != BUNDLE_LABEL_PREFIX


def bundle_slug(label: str) -> str | None:
    return label.removeprefix(BUNDLE_LABEL_PREFIX) if is_bundle_label(label) else None


def bundle_labels(labels: Iterable[str]) -> list[str]:
    return sorted({label for label in labels if is_bundle_label(label)})


# What keeps agents off

CLAIM_BLOCKING_LABEL_SET = frozenset(
    {
        *(IN_FLIGHT, PR_OPEN, LEGACY_PR_OPEN, DO_NOT_PICKUP, NEEDS_HUMAN_SCOPE),
        *(NEEDS_HUMAN_REVIEW, NEEDS_INFO, DONE, DONE_ALREADY, FANOUT_COMPLETE),
    }
)
FEATURE_DEV_ALWAYS_CLAIM_BLOCKING_LABEL_SET = frozenset({LARGE_FEATURE, PLAN_PENDING_APPROVAL})
FEATURE_DEV_PRODUCT_CLAIM_BLOCKING_LABEL_SET = frozenset({FEATURE, ENHANCEMENT})
PICKUP_BLOCKING_LABEL_SET = CLAIM_BLOCKING_LABEL_SET | FEATURE_DEV_ALWAYS_CLAIM_BLOCKING_LABEL_SET
ROBIN_TRIAGE_BLOCKING_LABEL_SET = PICKUP_BLOCKING_LABEL_SET


def is_agent_pr_open_label(label: str) -> bool:
    """Whether the label is a single agent's own, for an issue with a pull request."""
    return label.endswith(AGENT_PR_OPEN_SUFFIX) and label != PR_OPEN


def agent_pr_open_labels(labels: Iterable[str]) -> list[str]:
    return sorted({label for label in labels if is_agent_pr_open_label(label)})


def claim_blocking_labels(labels: Iterable[str]) -> list[str]:
    """Labels that refuse every claim. A plan waiting for approval is left to the gate."""
    names = set(labels)
    return sorted({*names & CLAIM_BLOCKING_LABEL_SET, *agent_pr_open_labels(names)})


def pickup_blocking_labels(labels: Iterable[str]) -> list[str]:
    """Labels that keep an agent from choosing the issue on its own."""
    names = set(labels)
    return sorted({*_feature_dev_pickup(names), *bundle_labels(names)})


def has_pickup_blocker(labels: Iterable[str]) -> bool:
    return bool(pickup_blocking_labels(labels))


has_blocker = has_pickup_blocker
robin_triage_blocking_labels = pickup_blocking_labels


def feature_dev_claim_blocking_labels(labels: Iterable[str]) -> list[str]:
    """Labels that also refuse a claim with role `feature-dev`."""
    names = set(labels)
    always = names & FEATURE_DEV_ALWAYS_CLAIM_BLOCKING_LABEL_SET
    return sorted({*always, *agent_pr_open_labels(names), *_unpromoted_products(names)})


def feature_dev_pickup_blocking_labels(labels: Iterable[str]) -> list[str]:
    names = set(labels)
    return sorted({*_feature_dev_pickup(names), *_unpromoted_products(names)})


def has_feature_dev_pickup_blocker(labels: Iterable[str]) -> bool:
    return bool(feature_dev_pickup_blocking_labels(labels))


def _feature_dev_pickup(names: set[str]) -> set[str]:
    return {*names & PICKUP_BLOCKING_LABEL_SET, *agent_pr_open_labels(names)}


def _unpromoted_products(labels: set[str]) -> set[str]:
    """Feature labels, unless triage has queued the issue and given a severity.

    Until then a feature is for people to scope.
    """
    promoted = IMPLEMENT in labels and any(name.startswith(_SEVERITY_PREFIX) for name in labels)
    return set() if promoted else labels & FEATURE_DEV_PRODUCT_CLAIM_BLOCKING_LABEL_SET


# Moves


@dataclass(frozen=True, slots=True)
class Transition:
    src: str
    dst: str
    trigger: str


TRANSITIONS = (
    Transition(NO_STATE, IMPLEMENT, "somebody queues it"),
    Transition(NO_STATE, IN_FLIGHT, "claim_issue, of an issue that is in no queue"),
    Transition(IMPLEMENT, IN_FLIGHT, "claim_issue"),
    Transition(IMPLEMENT, PLAN_PENDING_APPROVAL, "a plan is posted before it is worked"),
    Transition(IMPLEMENT, NEEDS_HUMAN_SCOPE, "a person, or an agent that cannot make sense of it"),
    Transition(IN_FLIGHT, NO_STATE, "release_issue, of an issue that was in no queue"),
    Transition(IN_FLIGHT, IMPLEMENT, "release_issue without a transition, or an expired claim"),
    Transition(IN_FLIGHT, PLAN_PENDING_APPROVAL, "release_issue: a plan is posted"),
    Transition(IN_FLIGHT, PR_OPEN, "release_issue: a pull request is open"),
    Transition(IN_FLIGHT, DONE, "release_issue: there was nothing left to do"),
    Transition(IN_FLIGHT, NEEDS_HUMAN_SCOPE, "release_issue, or the third failed attempt"),
    Transition(PLAN_PENDING_APPROVAL, IN_FLIGHT, "approved, and claimed"),
    Transition(PLAN_PENDING_APPROVAL, IMPLEMENT, "rejected, timed out, or approved for anybody"),
    Transition(PR_OPEN, DONE, "its pull request is merged, whoever merged it"),
    Transition(PR_OPEN, IMPLEMENT, "its pull request is closed unmerged"),
    Transition(NEEDS_HUMAN_SCOPE, IMPLEMENT, "a person queues it again"),
)


def all_transitions() -> tuple[Transition, ...]:
    return TRANSITIONS


def legal_transitions(src: str) -> tuple[Transition, ...]:
    """Every move out of `src`."""
    return tuple(move for move in TRANSITIONS if move.src == src)


def is_legal_transition(src: str, dst: str) -> bool:
    return any(move.dst == dst for move in legal_transitions(src))


def lifecycle_state(labels: Iterable[str]) -> str | None:
    """The most advanced label of the lifecycle; None without any."""
    names = set(labels)
    order = (DONE, PR_OPEN, IN_FLIGHT, PLAN_PENDING_APPROVAL, IMPLEMENT)
    return next((label for label in order if label in names), None)


# The environment


@dataclass(frozen=True, slots=True)
class LabelStateConfig:
    gh_org: str = ""
    sweep_repos: tuple[str, ...] = ()
    alfred_home: str = ""
    """Empty if it is not set: then it is `~/.alfred`."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "LabelStateConfig":
        variables = os.environ if env is None else env
        repos = (part.strip() for part in variables.get("LABEL_STATE_SWEEP_REPOS", "").split(","))
        return cls(
            gh_org=variables.get("GH_ORG", "").strip(),
            sweep_repos=tuple(part for part in repos if part),
            alfred_home=variables.get("ALFRED_HOME", "").strip(),
        )
