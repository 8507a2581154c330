"""GitHub's search language for issues, as far as gh and a backlog need it.

Words are searched in title and body. A qualifier that the fake does not know finds nothing, so that
a search which relies on it is noticed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from . import access
from .graphql_asked import Asked
from .records import Issue

_TERM = re.compile(r'(-?)(?:([a-z-]+):)?("[^"]*"|[^\s"()]+)', re.IGNORECASE)
_ORDERS: dict[str, Callable[[Issue], tuple[datetime, int]]] = {
    "created": lambda issue: (issue.created_at, issue.number),
    "updated": lambda issue: (issue.updated_at, issue.number),
}


@dataclass(frozen=True, slots=True)
class Term:
    without: bool
    key: str
    """Empty for a word."""
    value: str


def found(asked: Asked, query: str) -> list[Issue]:
    """The issues found, newest first unless the query names another order."""
    terms = list(_terms(query))
    order = _values(terms, "sort") or ["created-desc"]
    places = _values(terms, "in") or ["title", "body"]
    sought = [term for term in terms if term.key not in {"sort", "in"}]
    fitting = [
        issue
        for issue in _visible(asked)
        if all(_has(asked, issue, term, places) is not term.without for term in sought)
    ]
    key, _, direction = order[0].partition("-")
    return sorted(fitting, key=_ORDERS.get(key, _ORDERS["created"]), reverse=direction != "asc")


def _terms(query: str) -> Iterator[Term]:
    for minus, key, value in _TERM.findall(query):
        if value not in {"AND", "OR"}:
            yield Term(minus == "-", key.lower(), value.strip('"').lower())


def _values(terms: Sequence[Term], key: str) -> list[str]:
    return [term.value for term in terms if term.key == key]


def _visible(asked: Asked) -> list[Issue]:
    repositories = [
        repository
        for repository in tuple(asked.state.repositories.values())
        if access.may_see(asked.state, asked.viewer, repository)
    ]
    return [issue for one in repositories for issue in asked.view.issues(one.id)]


def _has(asked: Asked, issue: Issue, term: Term, places: Sequence[str]) -> bool:
    value = term.value
    match term.key:
        case "":
            return any(value in (getattr(issue, place, "") or "").lower() for place in places)
        case "repo":
            return asked.repository(issue.repository_id).full_name.lower() == value
        case "is" | "type" | "state":
            return _is(issue, value)
        case "label":
            names = {label.name.lower() for label in asked.view.labels_on(issue)}
            return any(one.strip('"') in names for one in value.split(","))
        case "author":
            return issue.author.lower() == _login(asked, value)
        case "assignee":
            return _login(asked, value) in {login.lower() for login in issue.assignees}
        case "no":
            return value in {"assignee", "label"} and not getattr(issue, f"{value}s")
        case _:
            return False


def _is(issue: Issue, value: str) -> bool:
    match value:
        case "issue":
            return issue.pull is None
        case "pr":
            return issue.pull is not None
        case _:
            return issue.state == value


def _login(asked: Asked, value: str) -> str:
    return asked.viewer.login.lower() if value == "@me" else value
