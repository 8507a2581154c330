"""What happened in a run, in order: the only input of the checkers."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from dibs.core.events import Event, Step
from dibs.core.ids import Fence, IssueRef, RunId


class Called(Struct, frozen=True):
    """A port call took effect at the server, or the server answered it."""

    op: str
    issue: IssueRef | None
    arguments: tuple[object, ...]
    answer: object
    writes: bool


class Fault(Struct, frozen=True):
    """A fault struck, or somebody interfered."""

    kind: str
    text: str = ""


class Holds(Struct, frozen=True):
    """A control began to act as the holder; it reports that itself, because it has no journal."""

    issue: IssueRef
    run: RunId
    fence: Fence


class Acts(Struct, frozen=True):
    """A handler asked whether it still holds the lease, was told yes, and went on."""

    run: RunId


class LetsGo(Struct, frozen=True):
    run: RunId


class Effect(Struct, frozen=True):
    """A handler's side effect arrived, with its fence."""

    issue: IssueRef
    run: RunId
    fence: Fence
    accepted: bool


class Advances(Struct, frozen=True):
    """A control moved the issue on."""

    issue: IssueRef
    run: RunId


class Meddled(Struct, frozen=True):
    """Somebody other than a worker changed the labels: the stage labels are now that decision."""

    issue: IssueRef
    added: frozenset[str]
    removed: frozenset[str]


What = Step | Event | Called | Fault | Holds | Acts | LetsGo | Effect | Advances | Meddled


class Note(NamedTuple):
    at_us: int
    process: str
    fibre: int
    what: What


class History:
    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.notes: list[Note] = []

    def note(self, process: str, fibre: int, what: What) -> None:
        self.notes.append(Note(self._now_us(), process, fibre, what))
