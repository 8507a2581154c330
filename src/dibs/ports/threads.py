"""What runs beside its caller: renewals, watches, jobs. In a simulation they are no threads."""

from collections.abc import Callable
from typing import Protocol


class Thread(Protocol):
    def join(self) -> None:
        """Wait for its end. One that joins itself returns at once."""
        ...


class Threads(Protocol):
    def start(self, work: Callable[[], None], name: str) -> Thread: ...
