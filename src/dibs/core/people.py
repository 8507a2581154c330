"""Who is on an issue already: people and programs that are not of the fleet.

Decides whose assignment and whose pull request keeps workers off. Refuses to know how a tracker
tells who they are, and which comments other tools leave: that is `foreign`.
"""

from collections.abc import Iterable
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from dibs.core.issue import Issue, Person, Pull


class People(Struct, frozen=True):
    """What makes an issue somebody's, so that workers leave it alone."""

    assignees: bool = True
    """A person is assigned to it."""
    pulls: bool = True
    """Somebody has an open pull request that will close it."""
    markers: bool = True
    """Another tool's comment says that it is at work."""
    fleet: frozenset[str] = frozenset()
    """Accounts that are the fleet's own: what they do on an issue keeps nobody off."""
    marker_ttl: timedelta = timedelta(hours=4)
    """How long another tool's marker counts that nobody takes back."""

    def __post_init__(self) -> None:
        if self.marker_ttl <= timedelta():
            raise ValueError("people.marker_ttl: must be longer than nothing")
        folded = frozenset(login.casefold() for login in self.fleet)  # as trackers compare logins
        force_setattr(self, "fleet", folded)

    def and_of_the_fleet(self, logins: Iterable[str]) -> "People":
        return replace(self, fleet=self.fleet.union(logins))

    def assigned(self, issue: Issue) -> tuple[Person, ...]:
        """The people it is assigned to. A program's account is not a person."""
        if not self.assignees:
            return ()
        return tuple(one for one in issue.assignees if one.human and self._strange(one))

    def pulling(self, issue: Issue) -> tuple[Pull, ...]:
        """Open pull requests of others, be they people or programs."""
        if not self.pulls:
            return ()
        return tuple(pull for pull in issue.pulls if self._strange(pull.author))

    def _strange(self, person: Person) -> bool:
        return person.login.casefold() not in self.fleet
