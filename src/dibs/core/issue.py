"""The tracker's issue and comments, normalised. What a tracker calls them is its adapter's."""

from msgspec import Struct, field

from dibs.core.ids import IssueRef, ServerTime


class Person(Struct, frozen=True):
    """Somebody as the tracker knows them."""

    login: str
    human: bool = True
    """The tracker does not say that it is a program's account."""


class Pull(Struct, frozen=True):
    """An open pull request that says it will close the issue."""

    ref: IssueRef
    author: Person


class Issue(Struct, frozen=True):
    ref: IssueRef
    title: str
    open: bool
    labels: frozenset[str]
    comment_count: int
    """The tracker's own count, against which a list of comments proves itself complete."""
    created_at: ServerTime
    updated_at: ServerTime
    body: str = ""
    author: str = ""
    url: str = ""
    assignees: tuple[Person, ...] = ()
    pulls: tuple[Pull, ...] = ()
    """Empty too where a listing does not tell; a reading always does, if the tracker has them."""


class Comment(Struct, frozen=True):
    id: int
    """Handed out by the server; it only grows."""
    body: str
    created_at: ServerTime
    updated_at: ServerTime
    author: str = ""
    by_writer: bool = True
    """Whether the author may write to the repository. A stranger's card is not a card."""


class Thread(Struct, frozen=True):
    """One reading of an issue: its fields, its comments, and the server's time of the reading."""

    issue: Issue
    comments: tuple[Comment, ...]
    now: ServerTime
    all_pages: bool = field(default=True)

    @property
    def complete(self) -> bool:
        """Whether the list is provably whole: every page, not shorter than the issue's count."""
        return self.all_pages and len(self.comments) >= self.issue.comment_count


class Draft(Struct, frozen=True):
    """An issue that does not exist yet."""

    title: str
    body: str = ""
    labels: frozenset[str] = frozenset()
