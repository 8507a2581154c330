"""Making the state machine's labels where they are missing, in the colours of the one catalogue."""

from collections.abc import Iterable

from dibs.core.agent_labels import EVERY
from dibs.label_state.backlogs import Backlog, backlog_of
from dibs.label_state.labels import STANDARD_LABELS
from dibs.ports.whoami import Inspectable


def ensure_labels(repo_slug: str, labels: Iterable[tuple[str, str, str]] | None = None) -> None:
    """Make those that are not there. A label of the catalogue looks as the catalogue says, any
    other one is grey. Raises what the tracker raises: a label that was not made is not remembered
    as made.
    """
    wanted = STANDARD_LABELS if labels is None else labels
    backlog_of(repo_slug).services.tracker.prepare([name for name, *_ in wanted])


def bootstrap_labels(repo_slug: str) -> list[str]:
    """Every label of the catalogue; those that were missing."""
    backlog = backlog_of(repo_slug)
    missing = missing_labels(backlog)
    backlog.services.tracker.prepare([label.name for label in EVERY])
    return missing


def missing_labels(backlog: Backlog) -> list[str]:
    """None where a tracker wants no labels made."""
    tracker = backlog.services.tracker
    names = [label.name for label in EVERY]
    return list(tracker.missing_labels(names)) if isinstance(tracker, Inspectable) else []
