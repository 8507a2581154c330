"""JSON bodies of GitHub's REST API for repositories, their pull requests and their webhooks."""

from .access import permission
from .bodies import Bodies, Body, time_text
from .records import Hook, Issue, Permission, Repository
from .refusal import not_found

_ADDRESSES = {
    "archive": "/{archive_format}{/ref}",
    "assignees": "/assignees{/user}",
    "blobs": "/git/blobs{/sha}",
    "branches": "/branches{/branch}",
    "collaborators": "/collaborators{/collaborator}",
    "comments": "/comments{/number}",
    "commits": "/commits{/sha}",
    "compare": "/compare/{base}...{head}",
    "contents": "/contents/{+path}",
    "contributors": "/contributors",
    "deployments": "/deployments",
    "downloads": "/downloads",
    "events": "/events",
    "forks": "/forks",
    "git_commits": "/git/commits{/sha}",
    "git_refs": "/git/refs{/sha}",
    "git_tags": "/git/tags{/sha}",
    "hooks": "/hooks",
    "issue_comment": "/issues/comments{/number}",
    "issue_events": "/issues/events{/number}",
    "issues": "/issues{/number}",
    "keys": "/keys{/key_id}",
    "labels": "/labels{/name}",
    "languages": "/languages",
    "merges": "/merges",
    "milestones": "/milestones{/number}",
    "notifications": "/notifications{?since,all,participating}",
    "pulls": "/pulls{/number}",
    "releases": "/releases{/id}",
    "stargazers": "/stargazers",
    "statuses": "/statuses/{sha}",
    "subscribers": "/subscribers",
    "subscription": "/subscription",
    "tags": "/tags",
    "teams": "/teams",
    "trees": "/git/trees{/sha}",
}


class RepositoryBodies:
    """Bodies of the same view as `bodies`, which makes the parts about people and labels."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._view = bodies.view

    def repository(self, repository: Repository) -> Body:
        return {**self._addresses(repository), **self._facts(repository)}

    def _addresses(self, repository: Repository) -> Body:
        url = self._bodies.repository_url(repository)
        page = f"{self._bodies.web}/{repository.full_name}"
        return {
            **{f"{name}_url": url + rest for name, rest in _ADDRESSES.items()},
            "url": url,
            "html_url": page,
            "clone_url": f"{page}.git",
            "git_url": f"git:{page.partition(':')[2]}.git",
            "ssh_url": f"git@{page.partition('//')[2].replace('/', ':', 1)}.git",
            "svn_url": page,
        }

    def _facts(self, repository: Repository) -> Body:
        everything = self._view.issues(repository.id)
        open_issues = sum(issue.state == "open" for issue in everything)
        at = time_text(repository.created_at)
        return {
            "id": repository.id,
            "node_id": repository.node_id,
            "name": repository.name,
            "full_name": repository.full_name,
            "owner": self._bodies.user(repository.owner),
            "private": repository.private,
            "visibility": "private" if repository.private else "public",
            "description": repository.description,
            "fork": False,
            "archived": repository.archived,
            "disabled": False,
            "default_branch": repository.default_branch,
            "created_at": at,
            "updated_at": time_text(repository.updated_at),
            "pushed_at": at,
            "homepage": None,
            "language": None,
            "license": None,
            "mirror_url": None,
            "size": 0,
            "forks": 0,
            "forks_count": 0,
            "network_count": 0,
            "open_issues": open_issues,
            "open_issues_count": open_issues,
            "stargazers_count": 0,
            "subscribers_count": 0,
            "watchers": 0,
            "watchers_count": 0,
            "has_discussions": False,
            "has_downloads": True,
            "has_issues": True,
            "has_pages": False,
            "has_projects": True,
            "has_wiki": True,
            "topics": [],
            "permissions": self._permissions(repository),
        }

    def _permissions(self, repository: Repository) -> Body:
        mine = permission(self._view.state, repository, self._bodies.viewer.login)
        return {
            "admin": mine >= Permission.ADMIN,
            "maintain": mine >= Permission.MAINTAIN,
            "push": mine >= Permission.WRITE,
            "triage": mine >= Permission.TRIAGE,
            "pull": mine >= Permission.READ,
        }

    def permission_of(self, repository: Repository, login: str) -> Body:
        """One account's permission; the older words beside the role's name, as GitHub has both."""
        user = self._view.user(login)
        if user is None or user.kind != "User":
            raise not_found(f"{login} is not a user")
        theirs = permission(self._view.state, repository, login)
        words = {Permission.TRIAGE: "read", Permission.MAINTAIN: "write"}
        flags = {
            "pull": theirs >= Permission.READ,
            "triage": theirs >= Permission.TRIAGE,
            "push": theirs >= Permission.WRITE,
            "maintain": theirs >= Permission.MAINTAIN,
            "admin": theirs >= Permission.ADMIN,
        }
        role = theirs.name.lower()
        return {
            "permission": words.get(theirs, role),
            "role_name": role,
            "user": {**self._bodies.user(user.login), "role_name": role, "permissions": flags},
        }

    def pull(self, issue: Issue, *, whole: bool) -> Body:
        """A pull request in a list, or with all fields (`whole`)."""
        part = issue.pull
        if part is None:
            raise not_found()
        repository = self._view.state.repositories[issue.repository_id]
        told = self._bodies.issue(issue)
        api = self._bodies.repository_url(repository)
        url = f"{api}/pulls/{issue.number}"
        body: Body = {
            **{name: told[name] for name in _SHARED},
            "url": url,
            "diff_url": told["pull_request"]["diff_url"],
            "patch_url": told["pull_request"]["patch_url"],
            "issue_url": told["url"],
            "commits_url": f"{url}/commits",
            "review_comments_url": f"{url}/comments",
            "review_comment_url": f"{api}/pulls/comments{{/number}}",
            "statuses_url": f"{api}/statuses/{part.head_sha}",
            "merged_at": time_text(part.merged_at),
            "merge_commit_sha": part.merge_sha,
            "requested_reviewers": [],
            "requested_teams": [],
            "head": self._branch(repository, part.head, part.head_sha, issue.author),
            "base": self._branch(repository, part.base, part.base_sha, repository.owner),
            "auto_merge": None,
            "draft": part.draft,
            "_links": _links(told, url, f"{api}/statuses/{part.head_sha}"),
        }
        return {**body, **self._whole(issue)} if whole else body

    def _whole(self, issue: Issue) -> Body:
        assert issue.pull is not None
        return {
            "merged": issue.pull.merged_at is not None,
            "mergeable": issue.state == "open" or None,
            "rebaseable": issue.state == "open" or None,
            "mergeable_state": "clean" if issue.state == "open" else "unknown",
            "merged_by": self._bodies.maybe_user(issue.pull.merged_by),
            "comments": self._view.comment_count(issue.id),
            "review_comments": 0,
            "maintainer_can_modify": False,
            "commits": 1,
            "additions": 1,
            "deletions": 0,
            "changed_files": 1,
        }

    def _branch(self, repository: Repository, name: str, sha: str, login: str) -> Body:
        owner, _, branch = name.rpartition(":")
        return {
            "label": name if owner else f"{repository.owner}:{name}",
            "ref": branch,
            "sha": sha,
            "user": self._bodies.user(owner if owner and self._view.user(owner) else login),
            "repo": self.repository(repository),
        }

    def hook(self, hook: Hook) -> Body:
        repository = self._view.state.repositories[hook.repository_id]
        url = f"{self._bodies.repository_url(repository)}/hooks/{hook.id}"
        config = {
            "url": hook.url,
            "content_type": hook.content_type,
            "insecure_ssl": hook.insecure_ssl,
        }
        if hook.secret is not None:
            config["secret"] = "********"  # noqa: S105 - what GitHub shows in its place
        code = hook.last_status
        status = "unused" if code is None else "active" if code < 400 else "failed"
        return {
            "type": "Repository",
            "id": hook.id,
            "name": "web",
            "active": hook.active,
            "events": list(hook.events),
            "config": config,
            "created_at": time_text(hook.created_at),
            "updated_at": time_text(hook.updated_at),
            "url": url,
            "test_url": f"{url}/test",
            "ping_url": f"{url}/pings",
            "deliveries_url": f"{url}/deliveries",
            "last_response": {"code": code, "status": status, "message": None},
        }


_SHARED = (
    "html_url",
    "id",
    "node_id",
    "number",
    "title",
    "user",
    "labels",
    "state",
    "locked",
    "assignee",
    "assignees",
    "milestone",
    "comments_url",
    "created_at",
    "updated_at",
    "closed_at",
    "author_association",
    "active_lock_reason",
    "body",
)


def _links(told: Body, url: str, statuses: str) -> Body:
    return {
        "self": {"href": url},
        "html": {"href": told["html_url"]},
        "issue": {"href": told["url"]},
        "comments": {"href": told["comments_url"]},
        "review_comments": {"href": f"{url}/comments"},
        "review_comment": {"href": f"{url.rpartition('/')[0]}/comments{{/number}}"},
        "commits": {"href": f"{url}/commits"},
        "statuses": {"href": statuses},
    }
