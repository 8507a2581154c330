"""The local mutex before the distributed lease: threads of one process queue among themselves.

Only as many of them as there are slots ask the store at all, so a process with fifty threads costs
the store no more than one with one. The map holds names in use and nothing else.
"""

import threading
from collections.abc import Callable


class Turns:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[str, int] = {}

    def enter(self, name: str, slots: int, left_s: Callable[[], float]) -> bool:
        """Wait for a turn; False if the time is over. Every turn is left again."""
        with self._changed:
            while self._inside.get(name, 0) >= slots:
                if (seconds := left_s()) <= 0 or not self._changed.wait(seconds):
                    return False
            self._inside[name] = self._inside.get(name, 0) + 1
            return True

    def leave(self, name: str) -> None:
        with self._changed:
            self._inside[name] -= 1
            if not self._inside[name]:
                del self._inside[name]
            self._changed.notify_all()

    def __len__(self) -> int:
        """How many names are in use."""
        return len(self._inside)
