"""Whether what is being done is a person's word: a pause, a revoke, and the readings they need.

Where requests are scarce, such a word must not wait behind the workers that it is to stop. What
follows from it is the adapter's; who says it is known only here above.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_said: ContextVar[bool] = ContextVar("a person's word", default=False)


@contextmanager
def persons_word() -> Iterator[None]:
    """Whatever this thread asks of an adapter inside is for a person who steers."""
    before = _said.set(True)
    try:
        yield
    finally:
        _said.reset(before)


def is_persons_word() -> bool:
    return _said.get()
