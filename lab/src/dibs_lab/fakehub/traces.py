"""What an event in an issue's history may say beyond who and when."""

from typing import TypedDict


class Details(TypedDict, total=False):
    label: tuple[str, str] | None
    assignee: str | None
    lock_reason: str | None
    rename: tuple[str, str] | None
    source: int | None
    state_reason: str | None
