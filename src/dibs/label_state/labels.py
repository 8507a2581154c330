"""Every label of the issue-claim state machine, which labels keep agents off, and the legal moves.

Functions here look at label names only. The names come from `core.presets`. The moves are those
that the pipeline of preset `agent` allows; `release_issue` refuses all others.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dibs.core.presets import (
    AUTHORED,
    DO_NOT_PICKUP,
    DONE,
    DONE_ALREADY,
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
    "DONE",
    "DONE_ALREADY",
    "DO_NOT_PICKUP",
    "ENHANCEMENT",
    "FANOUT_COMPLETE",
    "FEATURE",
    "IMPLEMENT",
    "IN_FLIGHT",
    "LARGE_FEATURE",
    "LEGACY_PR_OPEN",
    "LIFECYCLE_LABELS",
    "LIFECYCLE_LABEL_DEFS",
    "NEEDS_HUMAN_REVIEW",
    "NEEDS_HUMAN_SCOPE",
    "NEEDS_INFO",
    "NO_STATE",
    "PLAN_APPROVED",
    "PLAN_PENDING_APPROVAL",
    "PR_OPEN",
    "STANDARD_LABELS",
    "TRANSITIONS",
    "LabelDef",
    "LabelStateConfig",
    "Transition",
    "bundle_label",
    "bundle_labels",
    "bundle_slug",
    "claim_blocking_labels",
    "feature_dev_claim_blocking_labels",
    "feature_dev_pickup_blocking_labels",
    "has_blocker",
    "has_pickup_blocker",
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

LIFECYCLE_LABEL_DEFS = LIFECYCLE
LIFECYCLE_LABELS = [(label.name, label.color, label.description) for label in LIFECYCLE]
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

_HANDS_OFF = {
    *(IN_FLIGHT, PR_OPEN, LEGACY_PR_OPEN, DO_NOT_PICKUP, NEEDS_HUMAN_SCOPE, NEEDS_HUMAN_REVIEW),
    *(NEEDS_INFO, DONE, DONE_ALREADY, FANOUT_COMPLETE),
}
_NOT_FOR_EVERYBODY = {LARGE_FEATURE, PLAN_PENDING_APPROVAL}


def claim_blocking_labels(labels: Iterable[str]) -> list[str]:
    """Labels that refuse every claim. A plan waiting for approval is left to the gate."""
    return sorted({label for label in labels if label in _HANDS_OFF or _says_pr_open(label)})


def pickup_blocking_labels(labels: Iterable[str]) -> list[str]:
    """Labels that keep an agent from choosing the issue on its own."""
    names = set(labels)
    special = names & _NOT_FOR_EVERYBODY | set(bundle_labels(names))
    return sorted({*claim_blocking_labels(names), *special})


def has_pickup_blocker(labels: Iterable[str]) -> bool:
    return bool(pickup_blocking_labels(labels))


has_blocker = has_pickup_blocker
robin_triage_blocking_labels = pickup_blocking_labels


def feature_dev_claim_blocking_labels(labels: Iterable[str]) -> list[str]:
    """Labels that also refuse a claim with role `feature-dev`."""
    names = set(labels)
    blocking = (names & _NOT_FOR_EVERYBODY) | set(filter(_says_pr_open, names))
    return sorted(blocking | _unpromoted_products(names))


def feature_dev_pickup_blocking_labels(labels: Iterable[str]) -> list[str]:
    names = set(labels)
    pickup = set(pickup_blocking_labels(names)) - set(bundle_labels(names))
    return sorted(pickup | _unpromoted_products(names))


def _says_pr_open(label: str) -> bool:
    return label == PR_OPEN or is_agent_pr_open_label(label)


def is_agent_pr_open_label(label: str) -> bool:
    """Whether the label is a single agent's own, for an issue with a pull request."""
    return label.endswith(AGENT_PR_OPEN_SUFFIX) and label != PR_OPEN


def agent_pr_open_labels(labels: Iterable[str]) -> list[str]:
    return sorted({label for label in labels if is_agent_pr_open_label(label)})


def _unpromoted_products(labels: set[str]) -> set[str]:
    """Feature labels, unless triage has queued the issue and given a severity.

    Until then a feature is for people to scope.
    """
    promoted = IMPLEMENT in labels and any(name.startswith(_SEVERITY_PREFIX) for name in labels)
    return set() if promoted else labels & {FEATURE, ENHANCEMENT}


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


def legal_transitions(src: str) -> list[str]:
    """Every label that the table of moves allows after `src`."""
    return [move.dst for move in TRANSITIONS if move.src == src]


def is_legal_transition(src: str, dst: str) -> bool:
    return dst in legal_transitions(src)


def lifecycle_state(labels: Iterable[str]) -> str | None:
    """The most advanced label of the lifecycle; None without any."""
    names = set(labels)
    order = (DONE, PR_OPEN, IN_FLIGHT, PLAN_PENDING_APPROVAL, IMPLEMENT)
    return next((label for label in order if label in names), None)


# The environment


@dataclass(frozen=True, slots=True)
class LabelStateConfig:
    gh_org: str
    sweep_repos: tuple[str, ...]
    alfred_home: Path

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> "LabelStateConfig":
        variables = os.environ if environment is None else environment
        repos = (part.strip() for part in variables.get("LABEL_STATE_SWEEP_REPOS", "").split(","))
        home = variables.get("ALFRED_HOME")
        return cls(
            gh_org=variables.get("GH_ORG", "").strip(),
            sweep_repos=tuple(part for part in repos if part),
            alfred_home=Path(home) if home else Path.home() / ".alfred",
        )
