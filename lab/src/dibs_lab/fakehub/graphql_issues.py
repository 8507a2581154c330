"""Resolvers of issues, pull requests, comments and reactions."""

from datetime import datetime
from typing import Unpack

from . import access
from .graphql_asked import Asked, answers, plain
from .graphql_pages import Bounds, Order, Page
from .graphql_resolvers import small
from .records import Comment, Edit, Issue, Label, Reaction, Repository, User

ISSUES = ("Issue", "PullRequest")
SAID = (*ISSUES, "IssueComment")
CONTENTS = {
    "+1": "THUMBS_UP",
    "-1": "THUMBS_DOWN",
    "laugh": "LAUGH",
    "hooray": "HOORAY",
    "confused": "CONFUSED",
    "heart": "HEART",
    "rocket": "ROCKET",
    "eyes": "EYES",
}
"""GraphQL's names of reactions by REST's names."""


# shared by issues, pull requests and comments

plain({"id": "node_id", "createdAt": "created_at", "updatedAt": "updated_at"}, *SAID)
plain({"fullDatabaseId": "id"}, *SAID)


@answers(*SAID, name="databaseId")
def database_id(said: Issue | Comment, _asked: Asked) -> int | None:
    return small(said.id)


@answers(*SAID)
def body(said: Issue | Comment, _asked: Asked) -> str:
    return said.body or ""


@answers(*SAID)
def author(said: Issue | Comment, asked: Asked) -> User | None:
    return asked.view.user(said.author)


@answers(*SAID, name="authorAssociation")
def author_association(said: Issue | Comment, asked: Asked) -> str:
    repository = asked.repository(said.repository_id)
    return access.association(asked.state, repository, said.author, asked.viewer)


@answers(*SAID, "Label")
def repository(said: Issue | Comment | Label, asked: Asked) -> Repository:
    return asked.repository(said.repository_id)


@answers(*SAID, name="viewerDidAuthor")
def viewer_did_author(said: Issue | Comment, asked: Asked) -> bool:
    return said.author.lower() == asked.viewer.login.lower()


@answers(*SAID, name="includesCreatedEdit")
def includes_created_edit(said: Issue | Comment, _asked: Asked) -> bool:
    if isinstance(said, Issue):
        return bool(said.edits)
    return said.updated_at > said.created_at


@answers(*SAID, name="viewerCanReact")
def viewer_can_react(_said: Issue | Comment, _asked: Asked) -> bool:
    return True


@answers(*SAID, name="reactionGroups")
def reaction_groups(said: Issue | Comment, asked: Asked) -> list[tuple[str, list[Reaction]]]:
    there = asked.view.reactions(said.id)
    return [
        (content, [reaction for reaction in there if reaction.content == rest])
        for rest, content in CONTENTS.items()
    ]


@answers(*SAID)
def reactions(
    said: Issue | Comment, asked: Asked, *, content: str | None = None, **bounds: Unpack[Bounds]
) -> Page:
    there = asked.view.reactions(said.id)
    wanted = [one for one in there if content in (None, CONTENTS[one.content])]
    return Page(lambda: wanted, bounds, "reactions")


@answers("ReactionGroup", name="content")
def group_content(group: tuple[str, list[Reaction]], _asked: Asked) -> str:
    return group[0]


@answers("ReactionGroup", name="users")
def group_users(group: tuple[str, list[Reaction]], _asked: Asked) -> Page:
    return Page(lambda: group[1], {}, "users")


@answers("ReactionGroup", name="viewerHasReacted")
def viewer_has_reacted(group: tuple[str, list[Reaction]], asked: Asked) -> bool:
    return any(one.author.lower() == asked.viewer.login.lower() for one in group[1])


plain({"id": "node_id", "createdAt": "created_at"}, "Reaction")


@answers("Reaction", name="content")
def reaction_content(reaction: Reaction, _asked: Asked) -> str:
    return CONTENTS[reaction.content]


@answers("Reaction", name="user")
def reaction_user(reaction: Reaction, asked: Asked) -> User | None:
    return asked.view.user(reaction.author)


# comments


@answers("IssueComment")
def issue(comment: Comment, asked: Asked) -> Issue | None:
    return asked.view.issue_by_id(comment.issue_id)


@answers("IssueComment", name="url")
def comment_url(comment: Comment, asked: Asked) -> str:
    there = asked.view.issue_by_id(comment.issue_id)
    assert there is not None, "a comment that is seen is on an issue that is"
    return f"{issue_url(there, asked)}#issuecomment-{comment.id}"


@answers("IssueComment", name="isMinimized")
def is_minimized(_comment: Comment, _asked: Asked) -> bool:
    return False


@answers("IssueComment", name="minimizedReason")
def minimized_reason(_comment: Comment, _asked: Asked) -> None:
    return None


@answers("IssueComment", name="lastEditedAt")
def last_edited_at(comment: Comment, _asked: Asked) -> datetime | None:
    return comment.updated_at if comment.updated_at > comment.created_at else None


# issues and pull requests

plain({"number": "number", "title": "title", "locked": "locked"}, *ISSUES)
plain({"closedAt": "closed_at"}, *ISSUES)


@answers(*ISSUES, name="url")
def issue_url(issue: Issue, asked: Asked) -> str:
    kind = "pull" if issue.pull else "issues"
    return f"{asked.web}/{asked.repository(issue.repository_id).full_name}/{kind}/{issue.number}"


@answers(*ISSUES)
def state(issue: Issue, _asked: Asked) -> str:
    return "MERGED" if issue.pull and issue.pull.merged_at else issue.state.upper()


@answers(*ISSUES)
def closed(issue: Issue, _asked: Asked) -> bool:
    return issue.state == "closed"


plain({"lastEditedAt": "edited_at"}, "Issue")


@answers("Issue")
def editor(issue: Issue, asked: Asked) -> User | None:
    return asked.view.user(issue.edits[-1].editor) if issue.edits else None


@answers("Issue", name="userContentEdits")
def user_content_edits(issue: Issue, _asked: Asked, **bounds: Unpack[Bounds]) -> Page:
    """The body's revisions, newest first: so GitHub orders them, and documents no order."""
    return Page(lambda: issue.edits[::-1], bounds, "userContentEdits")


plain({"id": "node_id", "createdAt": "at", "editedAt": "at", "updatedAt": "at"}, "UserContentEdit")


@answers("UserContentEdit", name="editor")
def editor_of(edit: Edit, asked: Asked) -> User | None:
    return asked.view.user(edit.editor)


@answers("Issue", name="stateReason")
def state_reason(issue: Issue, _asked: Asked, *, enable_duplicate: bool = False) -> str | None:
    if issue.state_reason == "duplicate" and not enable_duplicate:
        return "NOT_PLANNED"
    return issue.state_reason and issue.state_reason.upper()


@answers(*ISSUES, name="activeLockReason")
def active_lock_reason(issue: Issue, _asked: Asked) -> str | None:
    return lock_reason(issue.lock_reason)


def lock_reason(given: str | None) -> str | None:
    return given and given.upper().replace("-", "_").replace(" ", "_")


@answers(*ISSUES)
def assignees(issue: Issue, asked: Asked, **bounds: Unpack[Bounds]) -> Page:
    people = [user for user in _assigned(issue, asked) if user.kind == "User"]
    return Page(lambda: people, bounds, "assignees")  # GitHub leaves out the programs


@answers(*ISSUES, name="assignedActors")
def assigned_actors(issue: Issue, asked: Asked, **bounds: Unpack[Bounds]) -> Page:
    return Page(lambda: _assigned(issue, asked), bounds, "assignedActors")


def _assigned(issue: Issue, asked: Asked) -> list[User]:
    there = (asked.view.user(login) for login in issue.assignees)
    return [user for user in there if user]


@answers(*ISSUES)
def comments(
    issue: Issue,
    asked: Asked,
    *,
    order_by: Order | None = None,
    **bounds: Unpack[Bounds],
) -> Page:
    def listed() -> list[Comment]:
        there = asked.view.comments(issue.id)
        if order_by is None:
            return there
        newest_first = order_by["direction"] == "DESC"
        return sorted(there, key=lambda one: (one.updated_at, one.id), reverse=newest_first)

    return Page(listed, bounds, "comments", lambda: asked.view.comment_count(issue.id))


@answers("Issue", name="closedByPullRequestsReferences")
def closed_by_pulls(
    issue: Issue,
    asked: Asked,
    *,
    include_closed_prs: bool = False,
    order_by_state: bool = False,
    **bounds: Unpack[Bounds],
) -> Page:
    there = [
        pull
        for pull in asked.view.pulls_closing(issue, closed_too=include_closed_prs)
        if access.may_see(asked.state, asked.viewer, asked.repository(pull.repository_id))
    ]
    if order_by_state:
        there = sorted(there, key=lambda pull: pull.state != "open")
    return Page(lambda: there, bounds, "closedByPullRequestsReferences")


@answers("PullRequest", name="closingIssuesReferences")
def closes(pull: Issue, asked: Asked, **bounds: Unpack[Bounds]) -> Page:
    return Page(lambda: asked.view.issues_closed_by(pull), bounds, "closingIssuesReferences")


@answers("PullRequest", name="isDraft")
def is_draft(pull: Issue, _asked: Asked) -> bool:
    return pull.pull is not None and pull.pull.draft


@answers("PullRequest")
def merged(pull: Issue, _asked: Asked) -> bool:
    return pull.pull is not None and pull.pull.merged_at is not None


@answers("PullRequest", name="mergedAt")
def merged_at(pull: Issue, _asked: Asked) -> datetime | None:
    return pull.pull.merged_at if pull.pull else None


@answers("PullRequest", name="headRefName")
def head_name(pull: Issue, _asked: Asked) -> str | None:
    return pull.pull.head.rpartition(":")[2] if pull.pull else None


@answers("PullRequest", name="isCrossRepository")
def is_foreign(pull: Issue, _asked: Asked) -> bool:
    """Whether its branch is in a fork. Branches are names; a fork's begins with its owner."""
    return pull.pull is not None and ":" in pull.pull.head


@answers("PullRequest", name="baseRefName")
def base_name(pull: Issue, _asked: Asked) -> str | None:
    return pull.pull.base if pull.pull else None


# fields that gh asks for and the fake does not model


@answers("Issue", name="milestone")
@answers("PullRequest", name="milestone")
@answers("Issue", name="parent")
@answers("Issue", name="issueType")
def nothing(_source: object, _asked: Asked) -> None:
    return None


@answers("Issue", name="projectItems")
@answers("Issue", name="subIssues")
@answers("Issue", name="blockedBy")
@answers("Issue", name="blocking")
def none_of_them(_issue: Issue, _asked: Asked, **bounds: Unpack[Bounds]) -> Page:
    return Page(tuple, bounds, "list")


@answers("Issue", name="subIssuesSummary")
def sub_issues_summary(_issue: Issue, _asked: Asked) -> dict[str, int]:
    return {}


@answers("SubIssuesSummary", name="total")
@answers("SubIssuesSummary", name="completed")
@answers("SubIssuesSummary", name="percentCompleted")
def zero(_summary: object, _asked: Asked) -> int:
    return 0
