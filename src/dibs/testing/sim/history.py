"""What happened in a run, in the order in which it happened: the only thing checkers look at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dibs.core.events import Event
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.steps import Step


@dataclass(frozen=True, slots=True)
class Called:
    """A port call took effect at the server, or was answered by it."""

    op: str
    issue: IssueRef | None
    arguments: tuple[object, ...]
    answer: object
    writes: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """The world went wrong, or somebody interfered."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Holds:
    """Somebody began to act as the holder: said by a control, which keeps no journal."""

    issue: IssueRef
    run: RunId
    fence: Fence


@dataclass(frozen=True, slots=True)
class Acts:
    """A handler asked whether the lease is still its own, was told yes, and went on."""

    run: RunId


@dataclass(frozen=True, slots=True)
class LetsGo:
    run: RunId


@dataclass(frozen=True, slots=True)
class Effect:
    """A handler's side effect arrived, with the fence it was done under."""

    issue: IssueRef
    run: RunId
    fence: Fence
    accepted: bool


@dataclass(frozen=True, slots=True)
class Advances:
    """A control moved the issue on."""

    issue: IssueRef
    run: RunId


@dataclass(frozen=True, slots=True)
class Meddled:
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
