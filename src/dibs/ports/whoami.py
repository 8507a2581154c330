"""Which account a tracker is used with, where it can tell."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.issue import Issue
from dibs.core.pipeline import Pipeline
from dibs.ports.tracker import Tracker


@runtime_checkable
class Whoami(Protocol):
    """Optional: whose token it is."""

    def login(self) -> str | None:
        """The account's name; None if nobody can say. One request in a process's life, at most."""
        ...


class Standpoint(Struct, frozen=True):
    """What our account is to the tracker, as far as it says."""

    believed: str
    """Whose cards are believed, in words."""
    permission: str = ""
    """What we may do there, in the tracker's word."""
    may_write: bool | None = None
    """Whether we may write comments and labels; None if it does not say."""
    ours_count: bool | None = None
    """Whether cards by our own account are believed; None if nobody can say."""
    doubt: str = ""
    """Why others may believe somebody else; empty if everybody judges alike."""


@runtime_checkable
class Inspectable(Protocol):
    """Optional: what `dibs doctor` asks a tracker that has accounts and labels of its own."""

    def standpoint(self) -> Standpoint: ...

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Those that the tracker wants made and that nobody has made."""
        ...


def with_ourselves(pipeline: Pipeline, tracker: Tracker, issue: Issue) -> Pipeline:
    """The pipeline as it judges this issue: our own account is of the fleet.

    Asked for only if somebody stands on the issue who might be us: it may cost a request.
    """
    people = pipeline.people
    if not people.assigned(issue) and not people.pulling(issue):
        return pipeline
    login = tracker.login() if isinstance(tracker, Whoami) else None
    return replace(pipeline, people=people.and_of_the_fleet([login])) if login else pipeline
