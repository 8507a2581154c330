"""Counts of the requests to the server, by kind; tests compare costs with these numbers.

A kind is a verb and a route's template, or `graphql query NAME` and `graphql mutation NAME`.
Answers without a body (304) are counted separately, as they cost nothing; so are creations.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from .records import Happening


@dataclass(frozen=True, slots=True)
class Tally:
    """One answered request."""

    kind: str
    status: int
    resource: str
    points: int
    """What it cost of the hour's budget: 0 for a 304 and for a free request."""
    content: int
    mutations: int = 0


@dataclass(slots=True)
class _Sheet:
    by_kind: Counter[str] = field(default_factory=Counter)
    by_status: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    not_modified: int = 0
    content: int = 0
    mutations: int = 0

    def add(self, tally: Tally) -> None:
        self.requests += 1
        self.by_kind[tally.kind] += 1
        self.by_status[str(tally.status)] += 1
        self.points[tally.resource] += tally.points
        self.not_modified += tally.status == 304
        self.content += tally.content
        self.mutations += tally.mutations

    def told(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "not_modified": self.not_modified,
            "content": self.content,
            "mutations": self.mutations,
            "points": {"core": self.points["core"], "graphql": self.points["graphql"]},
            "by_kind": dict(sorted(self.by_kind.items())),
            "by_status": dict(sorted(self.by_status.items())),
        }


def token_name(token: str | None) -> str:
    """A token's name in the counts: recognisable, but not the token itself."""
    return "nobody" if token is None else sha256(token.encode()).hexdigest()[:12]


class Counts:
    """All requests since the last reset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all = _Sheet()
        self._by_token: dict[str, _Sheet] = {}
        self._created: Counter[str] = Counter()

    def reset(self) -> None:
        with self._lock:
            self._all = _Sheet()
            self._by_token = {}
            self._created = Counter()

    def add(self, tally: Tally, token: str | None) -> None:
        with self._lock:
            self._all.add(tally)
            self._by_token.setdefault(token_name(token), _Sheet()).add(tally)

    def hear(self, happening: Happening) -> None:
        """Count issues, comments and pull requests that were created over REST or GraphQL."""
        if happening.action in ("created", "opened"):
            with self._lock:
                self._created[happening.event] += 1

    def told(self) -> dict[str, Any]:
        """The counts as `/_fakehub/counts` returns them."""
        with self._lock:
            return {
                **self._all.told(),
                "created": dict(sorted(self._created.items())),
                "by_token": {name: sheet.told() for name, sheet in self._by_token.items()},
            }

    def of(self, token: str) -> dict[str, Any]:
        """The counts of this token."""
        with self._lock:
            return self._by_token.get(token_name(token), _Sheet()).told()
