"""What happened in a run, in the order in which it happened: the only thing checkers look at."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from dibs.core.events import Event, Step
from dibs.core.ids import Fence, IssueRef, RunId


class Called(Struct, frozen=True):
    """A port call took effect at the server, or was answered by it."""

    op: str
    issue: IssueRef | None
    arguments: tuple[object, ...]
    answer: object
    writes: bool


class Fault(Struct, frozen=True):
    """The world went wrong, or somebody interfered."""

    kind: str
    text: str = ""


class Holds(Struct, frozen=True):
    """Somebody began to act as the holder: said by a control, which keeps no journal."""

    issue: IssueRef
    run: RunId
    fence: Fence


class Acts(Struct, frozen=True):
    """A handler asked whether the lease is still its own, was told yes, and went on."""

    run: RunId


class LetsGo(Struct, frozen=True):
    run: RunId


class Effect(Struct, frozen=True):
    """A handler's side effect arrived, with the fence it was done under."""

    issue: IssueRef
    run: RunId
    fence: Fence
    accepted: bool


class Advances(Struct, frozen=True):
    """A control moved the issue on."""

    issue: IssueRef
    run: RunId


class Meddled(Struct, frozen=True):
    """A hand other than a worker's changed the labels: what the stages say now is its word."""

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
