"""Resolvers of lists of labels or of issues, with filters and order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from .graphql_asked import Asked, answers, plain
from .graphql_issues import ISSUES, state
from .graphql_pages import Bounds, Order, Page
from .records import Issue, Label, Repository

Filters = Mapping[str, Any]
"""An input object, with GitHub's names."""


# labels

plain({"id": "node_id", "name": "name", "color": "color", "description": "description"}, "Label")
plain({"createdAt": "created_at", "updatedAt": "updated_at", "isDefault": "default"}, "Label")


@answers("Label", name="url")
def label_url(label: Label, asked: Asked) -> str:
    return f"{asked.web}/{asked.repository(label.repository_id).full_name}/labels/{label.name}"


@answers(*ISSUES, name="labels")
def labels_on(
    issue: Issue,
    asked: Asked,
    *,
    order_by: Order | None = None,
    **bounds: Unpack[Bounds],
) -> Page:
    return Page(lambda: _ordered_labels(asked.view.labels_on(issue), order_by), bounds, "labels")


@answers("Repository")
def label(repository: Repository, asked: Asked, *, name: str) -> Label | None:
    return _label(repository, asked, name)


def _label(repository: Repository, asked: Asked, name: str) -> Label | None:
    """The label by its name: in any case, unless GraphQL heeds the case."""
    found = asked.view.label_named(repository.id, name)
    return None if found and asked.view.exact_labels and found.name != name else found


@answers("Repository")
def labels(
    repository: Repository,
    asked: Asked,
    *,
    order_by: Order | None = None,
    query: str | None = None,
    **bounds: Unpack[Bounds],
) -> Page:
    there = asked.view.labels(repository.id)
    wanted = [one for one in there if not query or query.lower() in one.name.lower()]
    return Page(lambda: _ordered_labels(wanted, order_by), bounds, "labels")


def _ordered_labels(there: list[Label], order: Order | None) -> list[Label]:
    if order is None:
        return there
    by_name = order["field"] == "NAME"
    return sorted(
        there,
        key=lambda one: (one.name.lower() if by_name else "", one.id),
        reverse=order["direction"] == "DESC",
    )


# lists of issues


class Listing(Bounds, total=False):
    labels: Sequence[str] | None
    states: Sequence[str] | None
    filter_by: Filters | None
    order_by: Order | None


@answers("Repository")
def issues(repository: Repository, asked: Asked, **wanted: Unpack[Listing]) -> Page:
    return Page(lambda: _listed(repository, asked, wanted), _bounds(wanted), "issues")


@answers("Label", name="issues")
def issues_with(label: Label, asked: Asked, **wanted: Unpack[Listing]) -> Page:
    repository = asked.repository(label.repository_id)

    def listed() -> list[Issue]:
        return [one for one in _listed(repository, asked, wanted) if label.id in one.labels]

    return Page(listed, _bounds(wanted), "issues")


@answers("Repository", name="pullRequests")
def pulls(
    repository: Repository,
    asked: Asked,
    *,
    states: Sequence[str] | None = None,
    **bounds: Unpack[Bounds],
) -> Page:
    def listed() -> list[Issue]:
        there = asked.view.issues(repository.id)
        return [one for one in there if one.pull and (not states or state(one, asked) in states)]

    return Page(listed, bounds, "pullRequests")


def _bounds(wanted: Listing) -> Bounds:
    return {
        "first": wanted.get("first"),
        "last": wanted.get("last"),
        "after": wanted.get("after"),
        "before": wanted.get("before"),
    }


def _listed(repository: Repository, asked: Asked, wanted: Listing) -> list[Issue]:
    filters: Filters = wanted.get("filter_by") or {}
    there = [one for one in _labelled(repository, asked, wanted.get("labels")) if not one.pull]
    states = [*(wanted.get("states") or ()), *(filters.get("states") or ())]
    fitting = [
        one
        for one in there
        if (not states or one.state.upper() in states) and _passes(asked, one, filters)
    ]
    return _ordered(asked, fitting, wanted.get("order_by"))


def _labelled(repository: Repository, asked: Asked, names: Sequence[str] | None) -> list[Issue]:
    """Issues with any of the labels: GitHub does not promise that the filter means all of them."""
    if not names:
        return asked.view.issues(repository.id)
    any_of = {
        one.id: one
        for name in names
        if _label(repository, asked, name) is not None
        for one in asked.view.issues(repository.id, (name,))
    }
    return [any_of[number] for number in sorted(any_of)]


def _passes(asked: Asked, issue: Issue, filters: Filters) -> bool:
    since, mentioned = filters.get("since"), filters.get("mentioned")
    names = (
        {one.name.lower() for one in asked.view.labels_on(issue)} if filters.get("labels") else ()
    )
    return (
        (since is None or issue.updated_at >= since)
        and all(name.lower() in names for name in filters.get("labels") or ())
        and _by(filters.get("createdBy"), (issue.author,))
        and _by(filters.get("assignee"), issue.assignees)
        and (mentioned is None or f"@{mentioned}".lower() in (issue.body or "").lower())
    )


def _by(wanted: str | None, there: Sequence[str]) -> bool:
    """`*` means anybody."""
    if wanted is None:
        return True
    return bool(there) if wanted == "*" else wanted.lower() in {login.lower() for login in there}


def _ordered(asked: Asked, there: list[Issue], order: Order | None) -> list[Issue]:
    if order is None:
        return there
    keys: dict[str, Callable[[Issue], float]] = {
        "CREATED_AT": lambda one: one.created_at.timestamp(),
        "UPDATED_AT": lambda one: one.updated_at.timestamp(),
        "COMMENTS": lambda one: asked.view.comment_count(one.id),
    }
    key = keys[order["field"]]
    return sorted(there, key=lambda one: (key(one), one.id), reverse=order["direction"] == "DESC")
