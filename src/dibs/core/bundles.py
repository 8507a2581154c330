"""Issues that are worked together: which label says so, and the order in which they are claimed.

The order is one for everybody, whichever issue they began with: of two who want the same issues,
the one who has the first of these gets all, and the other has nothing to give back.
"""

from collections.abc import Iterable

from dibs.core.ids import IssueRef

PREFIX = "agent:bundle:"


def bundle_of(labels: Iterable[str]) -> str | None:
    """The label of the issue's bundle; of several, the first by its name. None if it is in none."""
    found = (label for label in labels if label.casefold().startswith(PREFIX))
    return min((label for label in found if len(label) > len(PREFIX)), default=None)


def in_order(issues: Iterable[IssueRef]) -> tuple[IssueRef, ...]:
    """By repository and then by number; trackers fold case, so the order does, too."""
    return tuple(sorted(set(issues), key=_rank))


def _rank(issue: IssueRef) -> tuple[str, bool, int, str]:
    number = int(issue.key) if issue.key.isascii() and issue.key.isdigit() else 0
    return issue.repo.casefold(), number == 0, number, issue.key
