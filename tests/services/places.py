"""Places of runs that are made of nothing: who opened which, when, and how it was left."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dibs.ports.system import Workplace


@dataclass
class NotedPlaces:
    """Does as it is told: raises `fails` instead of opening, says `keeps` when one is left."""

    fails: list[Exception] = field(default_factory=list)
    keeps: tuple[str, ...] = ()
    unusable: Exception | None = None
    on_open: object = lambda wish: None
    on_leave: object = lambda wish: None
    wishes: list = field(default_factory=list)
    open_now: set = field(default_factory=set)
    checked: list = field(default_factory=list)
    recovered: int = 0

    def check(self, worktree, repos):
        self.checked.append((worktree, repos))
        if self.unusable is not None:
            raise self.unusable

    def recover(self):
        self.recovered += 1

    @contextmanager
    def open(self, wish):
        self.wishes.append(wish)
        self.on_open(wish)
        if self.fails:
            raise self.fails.pop(0)
        self.open_now.add(wish.run)
        folders = {repo: Path(f"/trees/{repo or 'here'}") for repo in wish.repos}
        place = Workplace(next(iter(folders.values())), folders, f"dibs/{wish.run}", (7,))
        try:
            yield place
        finally:
            self.on_leave(wish)
            self.open_now.discard(wish.run)
            place.kept += self.keeps
