"""From GitHub's shapes to the core's values: whose word counts, and how labels are spelt.

Everybody who reads a repository has to come to the same verdict, so the rules are few: a comment
counts by a list of logins where one is set, and else, until `believing` has looked, by its author's
association with the repository; a label is the one that the settings name, whatever its capitals.
"""

from collections.abc import Collection, Iterable
from datetime import datetime

from dibs.adapters.github.shapes import (
    Actor,
    Label,
    LinkedPull,
    Node,
    RestComment,
    RestIssue,
    RestLabel,
    RestUser,
    WholeIssue,
)
from dibs.core.ids import IssueRef, ServerTime, server_time
from dibs.core.issue import Comment, Issue, Person, Pull

_WRITERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
GHOST = "ghost"
"""Whom GitHub names where an account is gone."""


class Translator:
    """For one repository, under the name that the settings give it."""

    def __init__(
        self, repository: str, *, labels: Collection[str] = (), trusted: Collection[str] = ()
    ) -> None:
        self.repository = repository
        self._spellings = {folded(label): label for label in labels}
        self._trusted = frozenset(folded(login) for login in trusted)

    def ref(self, number: int) -> IssueRef:
        return IssueRef(self.repository, str(number))

    def believed(self, login: str, association: str) -> bool:
        """Whether what this author says about a lease counts, as far as the comment tells."""
        if self._trusted:
            return folded(login) in self._trusted
        return association in _WRITERS

    @property
    def trusts_by_name(self) -> bool:
        return bool(self._trusted)

    def labels(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(self._spellings.get(folded(name), name) for name in names)

    # Over REST

    def rest_issue(self, shape: RestIssue) -> Issue:
        return Issue(
            ref=self.ref(shape.number),
            title=shape.title,
            open=shape.state == "open",
            labels=self.labels(label_name(label) for label in shape.labels),
            comment_count=shape.comments,
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            body=shape.body or "",
            author=rest_login(shape.user),
            url=shape.html_url,
            assignees=tuple(_person(user) for user in shape.assignees or ()),
        )

    def rest_comment(self, shape: RestComment) -> Comment:
        author = rest_login(shape.user)
        return Comment(
            id=shape.id,
            body=shape.body or "",
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            author=author,
            by_writer=self.believed(author, shape.author_association),
        )

    # Over GraphQL

    def issue(self, shape: WholeIssue) -> Issue:
        labels = shape.labels.nodes if shape.labels else None
        assignees = shape.assignees.nodes if shape.assignees else None
        pulls = shape.closed_by_pull_requests_references
        return Issue(
            ref=self.ref(shape.number),
            title=shape.title,
            open=shape.state == "OPEN",
            labels=self.labels(label.name for label in present(labels)),
            comment_count=shape.comments.total_count,
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            body=shape.body,
            author=login_of(shape.author),
            url=shape.url,
            assignees=tuple(_actor(one) for one in _actors(assignees)),
            pulls=tuple(_pull(one) for one in _open(pulls.nodes if pulls else None)),
        )

    def comment(self, shape: Node) -> Comment:
        author = login_of(shape.author)
        return Comment(
            id=int(shape.full_database_id),
            body=shape.body,
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            author=author,
            by_writer=self.believed(author, shape.author_association),
        )


def whole_second(moment: datetime) -> ServerTime:
    """As GitHub tells times, and as every reply tells its own: a server that is more exact in one
    and not in the other would have comments from the future.
    """
    return server_time(moment.replace(microsecond=0))


def folded(name: str) -> str:
    """GitHub tells neither labels nor logins apart by their capitals."""
    return name.lower()


def label_name(label: RestLabel | str) -> str:
    return label if isinstance(label, str) else label.name


def login_of(actor: Actor | None) -> str:
    """As REST spells it, which marks the login of a program."""
    if actor is None:
        return GHOST
    bare = actor.kind != "Bot" or actor.login.endswith("[bot]")
    return actor.login if bare else f"{actor.login}[bot]"


def present(labels: list[Label | None] | None) -> list[Label]:
    return [label for label in labels or () if label is not None]


def rest_login(user: RestUser | None) -> str:
    return user.login if user is not None else GHOST


def _person(user: RestUser) -> Person:
    return Person(user.login, human=user.type == "User")


def _actor(actor: Actor) -> Person:
    return Person(login_of(actor), human=actor.kind == "User")


def _actors(actors: list[Actor | None] | None) -> list[Actor]:
    return [actor for actor in actors or () if actor is not None]


def _open(pulls: list[LinkedPull | None] | None) -> list[LinkedPull]:
    return [pull for pull in pulls or () if pull is not None and pull.state == "OPEN"]


def _pull(pull: LinkedPull) -> Pull:
    ref = IssueRef(pull.repository.name_with_owner, str(pull.number))
    return Pull(ref, person_of(pull.author))


def person_of(actor: Actor | None) -> Person:
    return _actor(actor) if actor is not None else Person(GHOST)
