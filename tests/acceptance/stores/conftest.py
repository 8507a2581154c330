"""A fresh namespace, and no process, client or proxy left when the test is over."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .places import KINDS, Place
from .processes import Company


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def place(request: pytest.FixtureRequest, opened: ExitStack, tmp_path: Path) -> Place:
    """The store that the test is parametrised with."""
    return KINDS[request.param](opened, tmp_path)


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    made = Company(tmp_path / "company")
    yield made
    made.close()
