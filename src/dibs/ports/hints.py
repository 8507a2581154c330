"""That something may have changed: worth a look, and never a fact to build on.

Nothing depends on a hint. One that is lost, late, repeated or made up costs a look at most, and
polling goes on beside it.
"""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from dibs.core.ids import IssueRef


class Happening(Struct, frozen=True):
    """What a tracker says has happened, in its own words."""

    event: str
    """What it happened to: `issues`, `issue_comment`, `label`, `pull_request`, `repository`; or
    `ping`, which says only that somebody is there.
    """
    action: str = ""
    repo: str = ""
    """Empty where nothing but the event is known, because nobody here has a use for it."""
    repo_id: int = 0
    """Stays the same if the repository gets another name."""
    was_repo: str = ""
    """The repository's name before, if that is what changed."""
    issue: IssueRef | None = None
    on_pull: bool = False
    """It is about a pull request, which trackers number among the issues."""
    label: str = ""
    comment: str = ""


class Rubbish(ValueError):
    """It says that it comes from the tracker, and cannot be read."""


class Deliveries(Protocol):
    """What a tracker sends by itself. Headers are named in lower case."""

    def vouched_for(self, body: bytes, headers: Mapping[str, str]) -> bool:
        """Whether it comes from the tracker. To be asked before anything else is read."""
        ...

    def number(self, headers: Mapping[str, str]) -> str:
        """The tracker's own name of the delivery: the same if it comes again. May be empty."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> Happening:
        """Raises Rubbish."""
        ...


class Hints(Protocol):
    @property
    def every_s(self) -> float:
        """How often it is worth asking."""
        ...

    def heard(self) -> bool:
        """Whether anybody hinted since it was last asked. Cheap, and never fails."""
        ...


class Waker(Protocol):
    def wake(self) -> None:
        """Hint to every worker of this folder that something may have changed."""
        ...
