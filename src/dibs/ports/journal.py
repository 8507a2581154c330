"""Where events go. A journal that cannot be written must not stop the work."""

from typing import Protocol

from dibs.core.events import Event


class Journal(Protocol):
    def append(self, event: Event) -> None: ...
