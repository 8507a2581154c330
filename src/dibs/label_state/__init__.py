"""The published issue-claim state machine, on leases with fences.

Calls, labels and comments are the published ones. A fleet that runs on the state machine changes
only its imports; see docs/guides/switch-from-label-state.md.
"""

from dibs.core.agent_dialect import CLAIM_PREFIX as CLAIM_COMMENT_PREFIX
from dibs.core.agent_dialect import RELEASE_PREFIX as RELEASE_COMMENT_PREFIX
from dibs.label_state.adopting import issue_dedup_check
from dibs.label_state.backlogs import Answer, NoOrganisation, ensure_labels
from dibs.label_state.claims import claim_issue, release_issue
from dibs.label_state.firings import Firing
from dibs.label_state.labels import LIFECYCLE_LABELS, STANDARD_LABELS
from dibs.label_state.pauses import (
    PAUSED_REPOS_FILE,
    is_repo_paused,
    list_paused_repos,
    set_repo_paused,
)
from dibs.label_state.stale import find_stale_claims, force_release_stale_claim

__all__ = [
    "CLAIM_COMMENT_PREFIX",
    "LIFECYCLE_LABELS",
    "PAUSED_REPOS_FILE",
    "RELEASE_COMMENT_PREFIX",
    "STANDARD_LABELS",
    "Answer",
    "Firing",
    "NoOrganisation",
    "claim_issue",
    "ensure_labels",
    "find_stale_claims",
    "force_release_stale_claim",
    "is_repo_paused",
    "issue_dedup_check",
    "list_paused_repos",
    "release_issue",
    "set_repo_paused",
]
