"""A mapping of bounded size, for everything that a long process remembers."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dict with at most `most` entries: a new entry drops the entry written longest ago.

    Writing a key again makes its entry the newest. The caller holds the lock, if threads share it.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        while len(self) > self._most:
            del self[next(iter(self))]
