"""A place of its own for a run: made before its handler starts, cleared when the run is over."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from dibs.core.ids import RunId
from dibs.core.worktrees import BundleWorktree, OneWorktree


class PlaceWish(Struct, frozen=True):
    """What a run wants."""

    run: RunId
    name: str
    """What it is about, for names that people read: an issue, or a bundle."""
    worktree: OneWorktree | BundleWorktree
    repos: tuple[str, ...] = ()
    """For a bundle: the repositories of its issues, the one to start in first."""


class Workplace(Struct):
    folder: Path
    """Where the handler starts."""
    folders: Mapping[str, Path]
    """Every working tree, by its repository."""
    branch: str
    """The same in all of them."""
    shared: tuple[int, ...] = ()
    """Open files that whatever ends the handler keeps open: the place is in use until then."""
    kept: list[str] = field(default_factory=list)
    """Once it is left: where work is that would have gone with it, and what was not cleared."""


class Workplaces(Protocol):
    def check(self, worktree: OneWorktree | BundleWorktree, repos: tuple[str, ...]) -> None:
        """Raises HandlerUnusable if no place of this kind can possibly be made here."""
        ...

    def recover(self) -> None:
        """Clear what dead processes left, keeping its work. The log says where work is kept."""
        ...

    def open(self, wish: PlaceWish) -> AbstractContextManager[Workplace]:
        """A place, until the context is left; whatever it then has that nobody else has is kept.

        Entering raises WorktreeUnavailable if it may work later, HandlerUnusable if it will not.
        """
        ...
