"""Issues and comments in one form for all trackers; each adapter translates its tracker's form."""

from msgspec import Struct, field

from dibs.core.ids import IssueRef, ServerTime


class Person(Struct, frozen=True):
    """An account on the tracker."""

    login: str
    human: bool = True
    """False if the tracker marks the account as a program's."""


class Pull(Struct, frozen=True):
    """An open pull request which will close the issue when merged."""

    ref: IssueRef
    author: Person
    by_writer: bool = True
    """Whether the author may write to the repository."""


class TextChange(Struct, frozen=True):
    """A change of an issue's title or body by an account that may not write."""

    by: str
    at: ServerTime


class Labelling(Struct, frozen=True):
    """An account put a label on the issue."""

    label: str
    by: str
    at: ServerTime


class Issue(Struct, frozen=True):
    ref: IssueRef
    title: str
    open: bool
    labels: frozenset[str]
    comment_count: int
    """The tracker's own count: a shorter list of comments is not complete."""
    created_at: ServerTime
    updated_at: ServerTime
    body: str = ""
    author: str = ""
    by_writer: bool = True
    """Whether the author may write to the repository; sure only after `Tracker.with_authors`."""
    url: str = ""
    assignees: tuple[Person, ...] = ()
    pulls: tuple[Pull, ...] = ()
    """May be empty in a listing; a read of the issue has them all, if the tracker has any."""
    changed: TextChange | None = None
    """The last change of title or body which no writer's change followed; none in a listing."""
    labelled: tuple[Labelling, ...] = ()
    """The oldest first, and complete for the last ones only; may be empty in a listing."""
    edited_at: ServerTime | None = None
    """When title or body was last changed, or the issue was made; None if the tracker does not
    tell, and in a listing.
    """


class Comment(Struct, frozen=True):
    id: int
    """Given by the server; a later comment has a higher id."""
    body: str
    created_at: ServerTime
    updated_at: ServerTime
    author: str = ""
    by_writer: bool = True
    """Whether the author may write to the repository. A stranger's card is not a card."""
    signed: bool = False
    """Whether it is an approval which one of our keys signed; False for all other comments."""


class Snapshot(Struct, frozen=True):
    """A snapshot of an issue: fields, comments, and the server's time of the read."""

    issue: Issue
    comments: tuple[Comment, ...]
    now: ServerTime
    all_pages: bool = field(default=True)
    public: bool = False
    """Whether anybody may open issues and comment; known only after `Tracker.with_authors`."""

    @property
    def complete(self) -> bool:
        """Whether the list of comments is whole: all pages, no shorter than the issue's count."""
        return self.all_pages and len(self.comments) >= self.issue.comment_count


LONGEST_TITLE = 256
"""The longest title that dibs gives a new issue, in characters: GitHub takes no longer one."""


class Draft(Struct, frozen=True):
    """An issue that does not exist yet."""

    title: str
    body: str = ""
    labels: frozenset[str] = frozenset()
