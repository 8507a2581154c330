"""A world out of plain data: what the admin door is given, and the file of the command line.

{"users": [{"login": "ci[bot]", "kind": "Bot"}],
 "tokens": [{"token": "T", "login": "alice", "read_only": true}],
 "repositories": [{"full_name": "acme/shop", "permissions": {"alice": "write"},
                   "labels": [{"name": "ready", "color": "0e8a16"}],
                   "issues": [{"title": "First", "labels": ["ready"], "author": "alice"}]}]}
"""

from collections.abc import Mapping
from typing import Any

from .records import Permission, Repository, Standing, Token, User, Viewer
from .state import DEFAULT_SCOPES, State

Given = Mapping[str, Any]


def seed(state: State, given: Given) -> None:
    for one in given.get("users", ()):
        user(state, one)
    for one in given.get("repositories", ()):
        repository(state, one)
    for one in given.get("tokens", ()):
        token(state, one)


def user(state: State, given: Given) -> User:
    return state.add_user(given["login"], kind=given.get("kind", "User"))


def token(state: State, given: Given) -> Token:
    """`token` and `login`; `scopes`, `standing`, `read_only` and `lacks` restrict it.

    A token without scopes (null) is fine-grained.
    """
    scopes = given.get("scopes", DEFAULT_SCOPES)
    return state.add_token(
        given["token"],
        given["login"],
        scopes=None if scopes is None else frozenset(scopes),
        standing=Standing(given.get("standing", "ok")),
        read_only=bool(given.get("read_only", False)),
        lacks=frozenset(given.get("lacks", ())),
    )


def repository(state: State, given: Given) -> Repository:
    """Make or change a repository: `private`, `archived`, `renamed_to`, `permissions` by login."""
    name = given["full_name"]
    if name.lower() not in state.names:
        state.add_repository(name, private=bool(given.get("private", False)))
    for login, word in given.get("permissions", {}).items():
        state.grant(name, login, Permission[word.upper()])
    _fill(state, state.named(name), given)
    changes = {key: given[key] for key in ("private", "archived", "description") if key in given}
    if changes:
        state.change_repository(name, **changes)
    if "renamed_to" in given:
        state.rename(name, given["renamed_to"])
    return state.named(name)


def _fill(state: State, repository: Repository, given: Given) -> None:
    acts = state.acting(owner(state, repository))
    for label in given.get("labels", ()):
        acts.create_label(
            repository,
            label["name"],
            color=label.get("color", "ededed"),
            description=label.get("description"),
        )
    for issue in given.get("issues", ()):
        author = issue.get("author", repository.owner)
        opened = state.acting(_somebody(state, author)).create_issue(
            repository, issue["title"], body=issue.get("body")
        )
        acts.edit_issue(
            opened, labels=issue.get("labels", ()), assignees=issue.get("assignees", ())
        )


def owner(state: State, repository: Repository) -> Viewer:
    return _somebody(state, repository.owner)


def _somebody(state: State, login: str) -> Viewer:
    """That account, with a token that nobody else has."""
    text = f"seeding as {login}"
    if text not in state.tokens:
        state.add_token(text, login)
    return state.viewer(text)
