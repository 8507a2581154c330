"""Pull requests on GitHub, over REST: find by branch, open, label, rewrite the text.

GitHub opens one pull request from a branch into a base and refuses a second. So a create whose
answer was lost can be repeated: after the refusal we look up the existing pull request.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from dibs.adapters.github.client import Purpose, Transports
from dibs.adapters.github.replies import Reply, refusal_of
from dibs.adapters.github.shapes import RestLabel, decode, folded
from dibs.adapters.system import environment
from dibs.core.errors import Unavailable
from dibs.ports.pulls import PullRequest, PullState

_PAGE = {"per_page": "100"}
_MOST_PAGES = 20
_REFUSED_CONTENT = 422
_ALREADY_THERE = "pull request already exists"


class _RepositoryShape(msgspec.Struct, frozen=True):
    full_name: str
    default_branch: str


class _End(msgspec.Struct, frozen=True):
    """A branch of a pull request: the head or the base."""

    ref: str
    label: str | None = None
    """`OWNER:BRANCH`, which tells a fork's branch from ours; null if the fork was deleted."""


class _PullShape(msgspec.Struct, frozen=True):
    number: int
    state: str
    html_url: str
    head: _End
    base: _End
    body: str | None = None
    merged_at: datetime | None = None
    labels: list[RestLabel] = []


class GithubPulls:
    """The `PullRequests` of all repositories that a token may write to."""

    def __init__(self, transports: Transports) -> None:
        self._transports = transports
        self._repositories: dict[str, _RepositoryShape] = {}

    @classmethod
    def from_environment(cls) -> "GithubPulls":
        return cls(Transports(environment()))

    def close(self) -> None:
        self._transports.close()

    def find(self, repo: str, *, head: str) -> tuple[PullRequest, ...]:
        # By the owner's present name: under an old name the filter finds nothing.
        owner = self._repository(repo).full_name.partition("/")[0]
        label = f"{owner}:{head}"
        transport = self._transports.for_repository(repo)
        page = f"/repos/{repo}/pulls"
        parameters = {**_PAGE, "state": "all", "head": label}
        found: dict[int, _PullShape] = {}
        for _ in range(_MOST_PAGES):
            reply = transport.rest(
                "GET", page, purpose=Purpose.FINISH, params=parameters, conditional=True
            )
            for pull in decode(reply.body, list[_PullShape]):
                # GitHub ignores a filter that it does not understand.
                if pull.head.ref == head and folded(pull.head.label or "") == folded(label):
                    found[pull.number] = pull
            following = transport.follow(reply)
            if following is None:
                newest_first = sorted(found, reverse=True)
                return tuple(_pull_request(repo, found[number]) for number in newest_first)
            page, parameters = following, {}
        raise Unavailable(f"{repo} has more pull requests from one branch than can be read")

    def create(self, repo: str, *, title: str, body: str, head: str, base: str) -> PullRequest:
        base = base or self._repository(repo).default_branch
        wanted = {"title": title, "body": body, "head": head, "base": base}
        reply = self._ask("POST", repo, "/pulls", wanted, ok=(201, _REFUSED_CONTENT))
        if reply.status != _REFUSED_CONTENT:
            return _pull_request(repo, decode(reply.body, _PullShape))
        if _ALREADY_THERE not in reply.message.lower():
            raise refusal_of(reply, f"POST /repos/{repo}/pulls")
        for pull in self.find(repo, head=head):
            if pull.state is PullState.OPEN and pull.base == base:
                return pull
        # A replica of GitHub lags; the next call of `find` finds it.
        raise Unavailable(f"{repo} has a pull request from {head!r} that is not listed yet")

    def add_labels(self, pull: PullRequest, labels: Sequence[str]) -> None:
        path = f"/issues/{pull.number}/labels"
        self._ask("POST", pull.repo, path, {"labels": list(labels)})

    def edit_body(self, pull: PullRequest, *, body: str) -> None:
        self._ask("PATCH", pull.repo, f"/pulls/{pull.number}", {"body": body})

    def _repository(self, repo: str) -> _RepositoryShape:
        """GitHub's description of the repository, asked for once."""
        found = self._repositories.get(repo)
        if found is None:
            found = decode(self._ask("GET", repo).body, _RepositoryShape)
            self._repositories[repo] = found
        return found

    def _ask(
        self,
        verb: str,
        repo: str,
        path: str = "",
        wanted: object = None,
        ok: Collection[int] = (200, 201, 204),
    ) -> Reply:
        return self._transports.for_repository(repo).rest(
            verb,
            f"/repos/{repo}{path}",
            purpose=Purpose.FINISH,
            wanted=wanted,
            conditional=True,
            ok=ok,
        )


def _pull_request(repo: str, shape: _PullShape) -> PullRequest:
    closed = PullState.MERGED if shape.merged_at else PullState.CLOSED
    return PullRequest(
        repo=repo,
        number=shape.number,
        url=shape.html_url,
        head=shape.head.ref,
        base=shape.base.ref,
        body=shape.body or "",
        state=PullState.OPEN if shape.state == "open" else closed,
        labels=frozenset(label.name for label in shape.labels),
    )
