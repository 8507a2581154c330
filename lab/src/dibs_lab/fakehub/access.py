"""Who may see and do what, by GitHub's rules for issues.

This module knows nothing of HTTP: it raises a `Refusal`, and REST and GraphQL each choose the
words.
"""

from typing import TYPE_CHECKING

from .records import Association, Comment, Issue, Permission, Repository, Viewer
from .refusal import (
    ARCHIVED,
    LOCKED,
    NO_BY_APP,
    NO_BY_PERSON,
    NO_RIGHTS,
    Kind,
    Refusal,
    forbidden,
    gone,
    moved,
    not_found,
)

if TYPE_CHECKING:
    from .state import State
    from .view import View

ISSUES, CONTENTS, HOOKS, PULLS = (
    "issues:write",
    "contents:write",
    "repository_hooks:write",
    "pull_requests:write",
)


def permission(state: "State", repository: Repository, login: str) -> Permission:
    """The account's permission, whatever token it uses."""
    if not login:
        return Permission.NONE if repository.private else Permission.READ
    if login.lower() == repository.owner.lower():
        return Permission.ADMIN
    least = Permission.NONE if repository.private else Permission.READ
    invited = state.grants.get(repository.id, {}).get(login.lower(), Permission.NONE)
    by_team = state.teams.get(repository.id, {}).get(login.lower(), Permission.NONE)
    return max(least, invited, by_team)


def association(state: "State", repository: Repository, author: str, viewer: Viewer) -> Association:
    """The author's relation to the repository, as GitHub shows it to this viewer.

    GitHub calls every invited account a collaborator, also one that was invited to read only. It
    shows a private membership to members only.
    """
    login, owner = author.lower(), repository.owner.lower()
    members = state.members.get(owner, {})
    if login == owner:
        return Association.OWNER
    if login in members and (members[login] or viewer.login.lower() in members):
        return Association.MEMBER
    invited = state.grants.get(repository.id, {}).get(login, Permission.NONE)
    app = state.users[login].kind == "Bot"  # an App is installed, not invited
    if invited > Permission.NONE and not app:
        return Association.COLLABORATOR
    if (repository.id, login) in state.contributors:
        return Association.CONTRIBUTOR
    return Association.NONE


def seen_repository(view: "View", viewer: Viewer, owner: str, name: str) -> Repository:
    """The repository, by its current or an earlier name. NOT_FOUND if the viewer may not see it."""
    found = view.repository(owner, name)
    if found is None or not may_see(view.state, viewer, found):
        raise not_found()
    return found


def may_see(state: "State", viewer: Viewer, repository: Repository) -> bool:
    token = viewer.token
    if token and token.repositories is not None and repository.id not in token.repositories:
        return not repository.private
    if repository.private and token and token.scopes is not None and "repo" not in token.scopes:
        return False
    return permission(state, repository, viewer.login) >= Permission.READ


def seen_issue(view: "View", viewer: Viewer, repository: Repository, number: int) -> Issue:
    """The issue or pull request. GONE if deleted, MOVED if transferred or made a discussion."""
    issue = view.issue(repository.id, number)
    if issue is None:
        raise not_found()
    check_present(view.state, viewer, issue)
    return issue


def check_present(state: "State", viewer: Viewer, issue: Issue) -> None:
    if issue.deleted:
        raise gone("This issue was deleted")
    if issue.converted:
        raise gone("This issue was converted to a discussion")
    if issue.moved_to:
        repository_id, number = issue.moved_to
        if not may_see(state, viewer, state.repositories[repository_id]):
            raise not_found()
        raise moved(f"/repositories/{repository_id}/issues/{number}")


def needs(
    state: "State", viewer: Viewer, repository: Repository, least: Permission, what: str
) -> None:
    """Refuse unless account and token have this permission and the repository takes writes."""
    _token_allows(viewer, repository, what)
    if not may_see(state, viewer, repository):
        raise not_found()
    if repository.archived:
        raise forbidden(ARCHIVED)
    if permission(state, repository, viewer.login) < least:
        raise forbidden(_no(viewer) if least < Permission.ADMIN else NO_RIGHTS)


def may(state: "State", viewer: Viewer, repository: Repository, least: Permission) -> bool:
    return permission(state, repository, viewer.login) >= least


def can_comment(state: "State", viewer: Viewer, repository: Repository, issue: Issue) -> None:
    needs(state, viewer, repository, Permission.READ, ISSUES)
    app = viewer.user is not None and viewer.user.kind == "Bot"
    # GitHub documents that every writer may; users report that it refuses Apps in any case.
    if issue.locked and (app or not may(state, viewer, repository, Permission.WRITE)):
        raise forbidden(LOCKED)


def can_change_comment(
    state: "State", viewer: Viewer, repository: Repository, comment: Comment
) -> None:
    own = comment.author.lower() == viewer.login.lower()
    least = Permission.READ if own else Permission.WRITE
    needs(state, viewer, repository, least, ISSUES)


def can_change_issue(state: "State", viewer: Viewer, repository: Repository, issue: Issue) -> None:
    own = issue.author.lower() == viewer.login.lower()
    needs(state, viewer, repository, Permission.READ if own else Permission.TRIAGE, ISSUES)


def needs_reading_of_rights(state: "State", viewer: Viewer, repository: Repository) -> None:
    """Refuse unless the viewer may write: only writers may read an account's permission."""
    if not may(state, viewer, repository, Permission.WRITE):
        raise forbidden("Must have push access to view collaborator permission.")


def needs_listing_of_rights(state: "State", viewer: Viewer, repository: Repository) -> None:
    """Refuse unless the viewer may list permissions: a writer, and in an organisation a member."""
    needs_reading_of_rights(state, viewer, repository)
    owner = repository.owner.lower()
    owned_by = state.users[owner].kind
    if owned_by == "Organization" and viewer.login.lower() not in state.members.get(owner, {}):
        raise forbidden("Must have push access to view repository collaborators.")


def not_for_apps() -> Refusal:
    return forbidden(NO_BY_APP)


def _token_allows(viewer: Viewer, repository: Repository, what: str) -> None:
    token = viewer.token
    if token is None:
        raise Refusal(Kind.UNAUTHENTICATED, "Requires authentication")
    outside = token.repositories is not None and repository.id not in token.repositories
    if token.read_only or what in token.lacks or outside:
        raise forbidden(_no(viewer))
    if token.scopes is not None and not token.scopes & _accepted(repository, what):
        raise Refusal(Kind.INSUFFICIENT_SCOPES, "Not Found")


def _accepted(repository: Repository, what: str) -> frozenset[str]:
    """The scopes of a classic token that are sufficient."""
    hooks = {"admin:repo_hook", "write:repo_hook"} if what == HOOKS else set()
    public = set() if repository.private or what == HOOKS else {"public_repo"}
    return frozenset({"repo"} | public | hooks)


def _no(viewer: Viewer) -> str:
    return NO_BY_APP if viewer.user and viewer.user.kind == "Bot" else NO_BY_PERSON
