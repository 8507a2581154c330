"""One request and its answer, between the socket and the handlers; without HTTP library types.

Also two things that every handler of a list or of a body needs: pages with their Link header, and
fields of the right type.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from . import access
from .acts import Acts
from .bodies import Bodies
from .bodies_of_repositories import RepositoryBodies
from .records import Issue, Repository, Viewer
from .refusal import Kind, Refusal, invalid, moved, not_found
from .view import View

if TYPE_CHECKING:
    from .world import World

DEFAULT_PAGE, LARGEST_PAGE = 30, 100
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    verb: str
    path: str
    """The path below the API's address, still percent-encoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Headers by their names in lower case."""
    body: bytes
    api: str
    """The API's address as this client calls it, without a slash at its end."""

    @property
    def token(self) -> str | None:
        """The token in Authorization, in any of the forms that GitHub accepts."""
        scheme, _, text = self.headers.get("authorization", "").partition(" ")
        return text.strip() if scheme.lower() in ("bearer", "token") and text.strip() else None

    @cached_property
    def given(self) -> dict[str, Any]:
        """The body as an object; refuse a body that is not JSON."""
        return dict(self.given_value) if isinstance(self.given_value, dict) else {}

    @property
    def given_value(self) -> object:
        if not self.body.strip():
            return {}
        try:
            return json.loads(self.body)
        except ValueError:
            raise BadJson from None


class BadJson(Exception):
    """The request's body is not JSON: 400."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body).encode()


class Call:
    """A request that has found its route, with its viewer and its view."""

    def __init__(
        self, world: "World", request: Request, viewer: Viewer, at: Mapping[str, str]
    ) -> None:
        self.world = world
        self.state = world.state
        self.request = request
        self.viewer = viewer
        self.at = at

    @cached_property
    def view(self) -> View:
        """Reads use replicas; a write first reads the primary."""
        reads = self.request.verb in ("GET", "HEAD")
        return self.state.view() if reads else self.state.primary()

    @property
    def acts(self) -> Acts:
        return self.state.acting(self.viewer)

    @cached_property
    def bodies(self) -> Bodies:
        return Bodies(self.view, self.viewer, self.request.api)

    @cached_property
    def repository_bodies(self) -> RepositoryBodies:
        return RepositoryBodies(self.bodies)

    @cached_property
    def repository(self) -> Repository:
        """The repository in the path; an old name is a redirect to its id."""
        if "repository_id" in self.at:
            return self._by_id(int(self.at["repository_id"]))
        owner, name = self.at["owner"], self.at["repo"]
        found = access.seen_repository(self.view, self.viewer, owner, name)
        if found.full_name.lower() != f"{owner}/{name}".lower():
            rest = self.request.path.split("/", 4)[4:]
            raise moved("/".join((f"/repositories/{found.id}", *rest)))
        return found

    def _by_id(self, repository_id: int) -> Repository:
        found = self.view.repository_by_id(repository_id)
        if found is None or not access.may_see(self.state, self.viewer, found):
            raise not_found()
        return found

    @cached_property
    def issue(self) -> Issue:
        """The issue or pull request of `{number}`."""
        return access.seen_issue(self.view, self.viewer, self.repository, self.number("number"))

    def number(self, name: str) -> int:
        if not self.at[name].isdecimal():
            raise not_found()
        return int(self.at[name])

    @property
    def given(self) -> dict[str, Any]:
        return self.request.given

    def asked(self, name: str, default: str = "") -> str:
        return self.request.query.get(name, default)

    def text(self, resource: str, name: str) -> str:
        """A required field that must be a text."""
        if name not in self.given:
            raise invalid(resource, name, "missing_field")
        return as_text(resource, name, self.given[name])

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.given.get(name, default)
        if not isinstance(value, bool):
            raise invalid("Request", name, "invalid")
        return value

    def page(self, entries: Sequence[T], told: Callable[[T], object]) -> Answer:
        """One page of a list, with links to the other pages."""
        size = min(max(1, self._whole("per_page", DEFAULT_PAGE)), LARGEST_PAGE)
        page = max(1, self._whole("page", 1))
        last = max(1, -(-len(entries) // size))
        shown = entries[(page - 1) * size : page * size]
        link = self._link(page, last)
        return Answer(200, [told(entry) for entry in shown], {"Link": link} if link else {})

    def _whole(self, name: str, default: int) -> int:
        text = self.asked(name)
        return int(text) if text.isdecimal() else default

    def _link(self, page: int, last: int) -> str:
        pages = {"prev": page - 1, "next": page + 1, "last": last, "first": 1}
        wanted = [
            (rel, number)
            for rel, number in pages.items()
            if (rel in ("prev", "first") and page > 1) or (rel in ("next", "last") and page < last)
        ]
        return ", ".join(f'<{self._page_url(number)}>; rel="{rel}"' for rel, number in wanted)

    def _page_url(self, number: int) -> str:
        """With the repository's id, as GitHub writes it, not with the name that the client used."""
        path = self.request.path
        if "owner" in self.at:
            rest = path.split("/", 4)[4:]
            path = "/".join((f"/repositories/{self.repository.id}", *rest))
        query = {**self.request.query, "page": str(number)}
        return f"{self.request.api}{path}?{urlencode(query)}"


def as_text(resource: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise invalid(resource, name, "invalid", f"{name} is not a string.")
    return value


def as_texts(resource: str, name: str, value: object) -> list[str]:
    """A list of texts, or of objects with a `name`."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise invalid(resource, name, "invalid")
    return [
        as_text(resource, name, one.get("name") if isinstance(one, dict) else one) for one in value
    ]


def needs_token(viewer: Viewer) -> None:
    if viewer.user is None:
        raise Refusal(Kind.UNAUTHENTICATED, "Requires authentication")
