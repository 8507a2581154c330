"""JSON bodies of GitHub's REST API: users, labels, issues, comments, reactions, events.

Every field that GitHub's published description requires is there; the suite checks each body
against it. Fields that the fake does not model are empty, zero or null, as on a new repository.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from .access import association
from .records import Comment, Event, Issue, Label, Reaction, Repository, User, Viewer
from .view import View

Body = dict[str, Any]

REACTIONS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")
_OF_USERS = ("followers", "subscriptions", "organizations", "repos", "received_events")


def time_text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Bodies:
    """The bodies of one view for one viewer, with URLs below `api`."""

    def __init__(self, view: View, viewer: Viewer, api: str) -> None:
        self.view = view
        self.viewer = viewer
        self.api = api
        self.web = api.replace("//api.", "//").removesuffix("/api/v3")
        self._users: dict[str, Body] = {}

    def repository_url(self, repository: Repository) -> str:
        return f"{self.api}/repos/{repository.full_name}"

    def user(self, login: str) -> Body:
        known = self._users.get(login)
        if known is None:
            known = self._users[login] = self._user(self.view.state.users[login.lower()])
        return known

    def maybe_user(self, login: str | None) -> Body | None:
        return None if login is None else self.user(login)

    def _user(self, user: User) -> Body:
        url = f"{self.api}/users/{user.login}"
        page = f"{self.web}/{user.login}"
        if user.kind == "Bot":
            page = f"{self.web}/apps/{user.login.removesuffix('[bot]')}"
        return {
            "login": user.login,
            "id": user.id,
            "node_id": user.node_id,
            "avatar_url": f"{self.web}/avatars/u/{user.id}?v=4",
            "gravatar_id": "",
            "url": url,
            "html_url": page,
            **{f"{what}_url": f"{url}/{what}" for what in _OF_USERS},
            "following_url": f"{url}/following{{/other_user}}",
            "gists_url": f"{url}/gists{{/gist_id}}",
            "starred_url": f"{url}/starred{{/owner}}{{/repo}}",
            "events_url": f"{url}/events{{/privacy}}",
            "type": user.kind,
            "site_admin": False,
        }

    def full_user(self, login: str, *, private: bool) -> Body:
        """The account's own page; `private` adds what GitHub shows to the account itself only."""
        user = self.view.state.users[login.lower()]
        public = {
            "name": user.name,
            "company": None,
            "blog": "",
            "location": None,
            "email": None,
            "hireable": None,
            "bio": None,
            "twitter_username": None,
            "public_repos": 0,
            "public_gists": 0,
            "followers": 0,
            "following": 0,
            "created_at": time_text(user.created_at),
            "updated_at": time_text(user.created_at),
        }
        own = {
            "private_gists": 0,
            "total_private_repos": 0,
            "owned_private_repos": 0,
            "disk_usage": 0,
            "collaborators": 0,
            "two_factor_authentication": True,
        }
        return {**self.user(login), **public, **(own if private else {})}

    def label(self, label: Label) -> Body:
        repository = self.view.state.repositories[label.repository_id]
        return {
            "id": label.id,
            "node_id": label.node_id,
            "url": f"{self.repository_url(repository)}/labels/{quote(label.name)}",
            "name": label.name,
            "color": label.color,
            "default": label.default,
            "description": label.description,
            "archived_at": None,
            "archived_by": None,
        }

    def issue(self, issue: Issue) -> Body:
        repository = self.view.state.repositories[issue.repository_id]
        base = f"{self.repository_url(repository)}/issues/{issue.number}"
        page = f"{self.web}/{repository.full_name}"
        assignees = [self.user(login) for login in issue.assignees]
        body: Body = {
            "url": base,
            "repository_url": self.repository_url(repository),
            "labels_url": f"{base}/labels{{/name}}",
            "comments_url": f"{base}/comments",
            "events_url": f"{base}/events",
            "html_url": f"{page}/{'pull' if issue.pull else 'issues'}/{issue.number}",
            "id": issue.id,
            "node_id": issue.node_id,
            "number": issue.number,
            "title": issue.title,
            "user": self.user(issue.author),
            "labels": [self.label(label) for label in self.view.labels_on(issue)],
            "state": issue.state,
            "locked": issue.locked,
            "assignee": assignees[0] if assignees else None,
            "assignees": assignees,
            "milestone": None,
            "comments": self.view.comment_count(issue.id),
            "created_at": time_text(issue.created_at),
            "updated_at": time_text(issue.updated_at),
            "closed_at": time_text(issue.closed_at),
            "author_association": self._association(repository, issue.author),
            "active_lock_reason": issue.lock_reason,
            "body": issue.body,
            "closed_by": self.maybe_user(issue.closed_by),
            "reactions": self.rollup(issue.id, base),
            "timeline_url": f"{base}/timeline",
            "performed_via_github_app": None,
            "state_reason": issue.state_reason,
        }
        if issue.pull:
            body["draft"] = issue.pull.draft
            body["pull_request"] = {
                "url": f"{self.repository_url(repository)}/pulls/{issue.number}",
                "html_url": f"{page}/pull/{issue.number}",
                "diff_url": f"{page}/pull/{issue.number}.diff",
                "patch_url": f"{page}/pull/{issue.number}.patch",
                "merged_at": time_text(issue.pull.merged_at),
            }
        return body

    def comment(self, comment: Comment) -> Body:
        repository = self.view.state.repositories[comment.repository_id]
        base = self.repository_url(repository)
        issue = self.view.primary.issue_by_id(comment.issue_id)
        assert issue is not None  # a comment is on an issue, and issues stay on record
        page = f"{self.web}/{repository.full_name}/{'pull' if issue.pull else 'issues'}"
        url = f"{base}/issues/comments/{comment.id}"
        return {
            "url": url,
            "html_url": f"{page}/{issue.number}#issuecomment-{comment.id}",
            "issue_url": f"{base}/issues/{issue.number}",
            "id": comment.id,
            "node_id": comment.node_id,
            "user": self.user(comment.author),
            "created_at": time_text(comment.created_at),
            "updated_at": time_text(comment.updated_at),
            "author_association": self._association(repository, comment.author),
            "body": comment.body,
            "reactions": self.rollup(comment.id, url),
            "performed_via_github_app": None,
        }

    def rollup(self, subject_id: int, url: str) -> Body:
        counts = dict.fromkeys(REACTIONS, 0)
        for reaction in self.view.reactions(subject_id):
            counts[reaction.content] += 1
        return {"url": f"{url}/reactions", "total_count": sum(counts.values()), **counts}

    def reaction(self, reaction: Reaction) -> Body:
        return {
            "id": reaction.id,
            "node_id": reaction.node_id,
            "user": self.user(reaction.author),
            "content": reaction.content,
            "created_at": time_text(reaction.created_at),
        }

    def event(self, event: Event) -> Body:
        """An event in an issue's list of events."""
        repository = self.view.state.repositories[event.repository_id]
        return {
            "id": event.id,
            "node_id": event.node_id,
            "url": f"{self.repository_url(repository)}/issues/events/{event.id}",
            "actor": self.user(event.actor),
            "event": event.kind,
            "commit_id": None,
            "commit_url": None,
            "created_at": time_text(event.created_at),
            "performed_via_github_app": None,
            **self._details(event),
        }

    def timeline(self, entry: Event | Comment) -> Body:
        if isinstance(entry, Comment):
            told = self.comment(entry)
            return {**told, "event": "commented", "actor": told["user"]}
        if entry.kind == "cross-referenced":
            return self._cross_reference(entry)
        return self.event(entry)

    def _cross_reference(self, event: Event) -> Body:
        source = None if event.source is None else self.view.primary.issue_by_id(event.source)
        told = {} if source is None else {"type": "issue", "issue": self.issue(source)}
        at = time_text(event.created_at)
        return {
            "event": event.kind,
            "actor": self.user(event.actor),
            "created_at": at,
            "updated_at": at,
            "source": told,
        }

    def _details(self, event: Event) -> Body:
        ways: dict[str, Callable[[], Body]] = {
            "labeled": lambda: _labelled(event),
            "unlabeled": lambda: _labelled(event),
            "assigned": lambda: self._assigned(event),
            "unassigned": lambda: self._assigned(event),
            "locked": lambda: {"lock_reason": event.lock_reason},
            "unlocked": lambda: {"lock_reason": None},
            "renamed": lambda: _renamed(event),
            "closed": lambda: {"state_reason": event.state_reason},
        }
        return ways.get(event.kind, dict)()

    def _assigned(self, event: Event) -> Body:
        assert event.assignee is not None
        return {"assignee": self.user(event.assignee), "assigner": self.user(event.actor)}

    def _association(self, repository: Repository, login: str) -> str:
        return association(self.view.state, repository, login, self.viewer).value


def _labelled(event: Event) -> Body:
    assert event.label is not None
    return {"label": {"name": event.label[0], "color": event.label[1]}}


def _renamed(event: Event) -> Body:
    assert event.rename is not None
    return {"rename": {"from": event.rename[0], "to": event.rename[1]}}
