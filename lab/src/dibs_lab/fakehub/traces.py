"""The fields of an event in an issue's history besides actor and time."""

from typing import TypedDict


class Details(TypedDict, total=False):
    label: tuple[str, str] | None
    assignee: str | None
    lock_reason: str | None
    rename: tuple[str, str] | None
    source: int | None
    state_reason: str | None
