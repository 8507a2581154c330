"""The table of REST routes, and the choice of a request's route. Handlers are in other files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from . import rest_apps as apps
from . import rest_comments as comments
from . import rest_git as git
from . import rest_issues as issues
from . import rest_labels as labels
from . import rest_repositories as repos
from .exchange import Answer, Call

_REPO = "/repos/{owner}/{repo}"
_BY_ID = r"(?:/repos/(?P<owner>[^/]+)/(?P<repo>[^/]+)|/repositories/(?P<repository_id>\d+))"


@dataclass(frozen=True)
class Route:
    verb: str
    template: str
    handler: Callable[[Call], Answer]
    content: int = 0
    """How many pieces of content it creates, for the secondary limits."""
    kept: bool = False
    """Whether an answer stays valid until the next write: for large, often repeated reads."""
    free: bool = False
    """Whether it costs nothing."""
    by_app: bool = False
    """Whether the caller is an App with its JWT instead of an account."""

    @property
    def kind(self) -> str:
        return f"{self.verb} {self.template}"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """`{name}` is one part of the path, `{name+}` the rest of it."""
        text = self.template
        text = text.replace(_REPO, _BY_ID) if text.startswith(_REPO) else text
        text = re.sub(r"\{(\w+)\+\}", r"(?P<\1>.+)", text)
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", text))


_ISSUES = _REPO + "/issues"
_ISSUE = _REPO + "/issues/{number}"
_COMMENT = _REPO + "/issues/comments/{comment_id}"


def _of_comments() -> tuple[Route, ...]:
    """These come before the routes of issues, which would take `comments` for a number."""
    return (
        Route("GET", _ISSUES + "/comments", comments.list_repository_comments, kept=True),
        Route("GET", _COMMENT, comments.get_comment, kept=True),
        Route("PATCH", _COMMENT, comments.edit_comment),
        Route("DELETE", _COMMENT, comments.delete_comment),
        Route("GET", _COMMENT + "/reactions", comments.list_comment_reactions, kept=True),
        Route("POST", _COMMENT + "/reactions", comments.add_comment_reaction),
        Route("DELETE", _COMMENT + "/reactions/{reaction_id}", comments.remove_comment_reaction),
        Route("GET", _ISSUES + "/events", issues.list_repository_events, kept=True),
        Route("GET", _ISSUES + "/events/{event_id}", issues.get_event),
    )


def _of_issues() -> tuple[Route, ...]:
    return (
        Route("GET", _ISSUES, issues.list_issues, kept=True),
        Route("POST", _ISSUES, issues.create_issue, content=1),
        Route("GET", _ISSUE, issues.get_issue, kept=True),
        Route("PATCH", _ISSUE, issues.edit_issue),
        Route("PUT", _ISSUE + "/lock", issues.lock),
        Route("DELETE", _ISSUE + "/lock", issues.unlock),
        Route("GET", _ISSUE + "/comments", comments.list_comments, kept=True),
        Route("POST", _ISSUE + "/comments", comments.create_comment, content=1),
        Route("GET", _ISSUE + "/labels", labels.list_issue_labels, kept=True),
        Route("POST", _ISSUE + "/labels", labels.add_issue_labels),
        Route("PUT", _ISSUE + "/labels", labels.replace_issue_labels),
        Route("DELETE", _ISSUE + "/labels", labels.remove_all_issue_labels),
        Route("DELETE", _ISSUE + "/labels/{name}", labels.remove_issue_label),
        Route("GET", _ISSUE + "/reactions", comments.list_issue_reactions, kept=True),
        Route("POST", _ISSUE + "/reactions", comments.add_issue_reaction),
        Route("DELETE", _ISSUE + "/reactions/{reaction_id}", comments.remove_issue_reaction),
        Route("POST", _ISSUE + "/assignees", issues.add_assignees),
        Route("DELETE", _ISSUE + "/assignees", issues.remove_assignees),
        Route("GET", _ISSUE + "/events", issues.list_events, kept=True),
        Route("GET", _ISSUE + "/timeline", issues.timeline, kept=True),
        Route("GET", _REPO + "/assignees", issues.list_assignees),
    )


def _of_repositories() -> tuple[Route, ...]:
    return (
        Route("GET", _REPO, repos.get_repository, kept=True),
        Route("GET", _REPO + "/labels", labels.list_labels, kept=True),
        Route("POST", _REPO + "/labels", labels.create_label),
        Route("GET", _REPO + "/labels/{name}", labels.get_label, kept=True),
        Route("PATCH", _REPO + "/labels/{name}", labels.edit_label),
        Route("DELETE", _REPO + "/labels/{name}", labels.delete_label),
        Route("GET", _REPO + "/pulls", repos.list_pulls, kept=True),
        Route("POST", _REPO + "/pulls", repos.create_pull, content=1),
        Route("GET", _REPO + "/pulls/{number}", repos.get_pull, kept=True),
        Route("PATCH", _REPO + "/pulls/{number}", repos.edit_pull),
        Route("PUT", _REPO + "/pulls/{number}/merge", repos.merge_pull),
        Route("GET", _REPO + "/hooks", repos.list_hooks),
        Route("POST", _REPO + "/hooks", repos.create_hook),
        Route("GET", _REPO + "/hooks/{hook_id}", repos.get_hook),
        Route("PATCH", _REPO + "/hooks/{hook_id}", repos.edit_hook),
        Route("DELETE", _REPO + "/hooks/{hook_id}", repos.delete_hook),
        Route("POST", _REPO + "/hooks/{hook_id}/pings", repos.ping_hook),
        Route("GET", _REPO + "/collaborators", repos.list_collaborators),
        Route("GET", _REPO + "/collaborators/{login}", repos.is_collaborator),
        Route("GET", _REPO + "/collaborators/{login}/permission", repos.collaborator_permission),
    )


def _of_git() -> tuple[Route, ...]:
    return (
        Route("GET", _REPO + "/commits", git.list_commits),
        Route("GET", _REPO + "/git/commits/{sha}", git.get_commit),
        Route("POST", _REPO + "/git/commits", git.create_commit),
        Route("GET", _REPO + "/git/trees/{sha}", git.get_tree),
        Route("POST", _REPO + "/git/trees", git.create_tree),
        Route("GET", _REPO + "/git/blobs/{sha}", git.get_blob),
        Route("POST", _REPO + "/git/blobs", git.create_blob),
        Route("GET", _REPO + "/git/matching-refs/{ref+}", git.matching_refs),
        Route("GET", _REPO + "/git/ref/{ref+}", git.get_ref),
        Route("POST", _REPO + "/git/refs", git.create_ref),
        Route("PATCH", _REPO + "/git/refs/{ref+}", git.move_ref),
        Route("DELETE", _REPO + "/git/refs/{ref+}", git.drop_ref),
    )


def _of_accounts() -> tuple[Route, ...]:
    installation = "/app/installations/{installation_id}"
    return (
        Route("GET", "/user", repos.get_self),
        Route("POST", "/user/repos", repos.create_repository),
        Route("GET", "/users/{login}", repos.get_user),
        Route("GET", "/rate_limit", repos.rate_limit, free=True),
        Route("GET", "/meta", repos.meta),
        Route("GET", "/app", apps.get_app, by_app=True),
        Route("GET", "/app/installations", apps.list_installations, by_app=True),
        Route("GET", installation, apps.get_installation, by_app=True),
        Route("POST", installation + "/access_tokens", apps.create_token, by_app=True),
        Route("GET", _REPO + "/installation", apps.repository_installation, by_app=True),
    )


ROUTES = (*_of_comments(), *_of_issues(), *_of_repositories(), *_of_git(), *_of_accounts())


def routed(verb: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
    """The route of a percent-encoded path, and the values of its braces."""
    wanted = "GET" if verb == "HEAD" else verb
    for route in ROUTES:
        found = route.pattern.fullmatch(path) if route.verb == wanted else None
        if found:
            named = found.groupdict()
            return route, {name: unquote(text) for name, text in named.items() if text is not None}
    return None
