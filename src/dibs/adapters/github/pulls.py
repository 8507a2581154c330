"""Pull requests on GitHub, over REST: find by branch, open, label, rewrite the text.

GitHub opens one pull request from a branch into a base and refuses a second, so that a create
whose answer was lost can be asked for again: the refusal leads to the one that is there.
"""

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from dibs.adapters.github.client import Purpose, Reply, Transport, Transports
from dibs.adapters.github.replies import refusal_of
from dibs.adapters.github.shapes import RestLabel, decode, folded
from dibs.core.errors import Unavailable
from dibs.ports.pulls import PullRequest, PullState

_PAGE = {"per_page": "100"}
_MOST_PAGES = 20
_REFUSED_CONTENT = 422
_ALREADY_THERE = "pull request already exists"


class _Repository(msgspec.Struct, frozen=True):
    full_name: str
    default_branch: str


class _End(msgspec.Struct, frozen=True):
    """One end of a pull request: the branch it comes from, or the one it goes into."""

    ref: str
    label: str | None = None
    """With the owner before it, which tells a fork's branch from ours; null if that is gone."""


class _Pull(msgspec.Struct, frozen=True):
    number: int
    state: str
    html_url: str
    head: _End
    base: _End
    body: str | None = None
    merged_at: datetime | None = None
    labels: list[RestLabel] = []


class HasTransports(Protocol):
    def for_repository(self, repository: str) -> Transport: ...

    def close(self) -> None: ...


class GithubPulls:
    """The `PullRequests` of all repositories that a token may write to."""

    def __init__(self, transports: HasTransports) -> None:
        self._transports = transports
        self._lock = threading.Lock()
        self._known: dict[str, _Repository] = {}

    @classmethod
    def from_environment(cls) -> "GithubPulls":
        return cls(Transports.from_environment())

    def close(self) -> None:
        self._transports.close()

    def find(self, repo: str, *, head: str) -> tuple[PullRequest, ...]:
        # By the owner as GitHub calls it now: under an old name the filter finds nothing.
        owner = self._told(repo).full_name.partition("/")[0]
        wanted = f"{owner}:{head}"
        listed = self._listed(repo, {**_PAGE, "state": "all", "head": wanted})
        # A filter that GitHub does not understand is no filter.
        ours = [one for one in listed if folded(one.head.label or "") == folded(wanted)]
        exact = [one for one in ours if one.head.ref == head]
        found = {one.number: one for one in exact}
        return tuple(_pull(repo, found[number]) for number in sorted(found, reverse=True))

    def create(self, repo: str, *, title: str, body: str, head: str, base: str) -> PullRequest:
        base = base or self._told(repo).default_branch
        path = f"/repos/{repo}/pulls"
        reply = self._transports.for_repository(repo).rest(
            "POST",
            path,
            purpose=Purpose.FINISH,
            wanted={"title": title, "body": body, "head": head, "base": base},
            ok=(201, _REFUSED_CONTENT),
        )
        if reply.status == _REFUSED_CONTENT:
            return self._already_there(repo, head, base, reply)
        return _pull(repo, decode(reply.body, _Pull))

    def add_labels(self, pull: PullRequest, labels: Sequence[str]) -> None:
        self._transports.for_repository(pull.repo).rest(
            "POST",
            f"/repos/{pull.repo}/issues/{pull.number}/labels",
            purpose=Purpose.FINISH,
            wanted={"labels": list(labels)},
        )

    def edit_body(self, pull: PullRequest, *, body: str) -> None:
        self._transports.for_repository(pull.repo).rest(
            "PATCH",
            f"/repos/{pull.repo}/pulls/{pull.number}",
            purpose=Purpose.FINISH,
            wanted={"body": body},
        )

    def _already_there(self, repo: str, head: str, base: str, reply: Reply) -> PullRequest:
        if _ALREADY_THERE not in reply.message.lower():
            raise refusal_of(reply, f"POST /repos/{repo}/pulls")
        for one in self.find(repo, head=head):
            if one.state is PullState.OPEN and one.base == base:
                return one
        # A replica that lags; the next look finds it.
        raise Unavailable(f"{repo} has a pull request from {head!r} that is not listed yet")

    def _told(self, repo: str) -> _Repository:
        with self._lock:
            known = self._known.get(repo)
        if known is None:
            transport = self._transports.for_repository(repo)
            reply = transport.rest(
                "GET", f"/repos/{repo}", purpose=Purpose.FINISH, conditional=True
            )
            known = decode(reply.body, _Repository)
            with self._lock:
                self._known[repo] = known
        return known

    def _listed(self, repo: str, parameters: dict[str, str]) -> Iterator[_Pull]:
        transport = self._transports.for_repository(repo)
        page = f"/repos/{repo}/pulls"
        for _ in range(_MOST_PAGES):
            reply = transport.rest(
                "GET", page, purpose=Purpose.FINISH, params=parameters, conditional=True
            )
            yield from decode(reply.body, list[_Pull])
            following = transport.follow(reply)
            if following is None:
                return
            page, parameters = following, {}
        raise Unavailable(f"{repo} has more pull requests from one branch than can be read")


def _pull(repo: str, shape: _Pull) -> PullRequest:
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
