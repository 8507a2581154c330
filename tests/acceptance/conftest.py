"""One project per test, and no process left when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "project")
    yield made
    made.end()
