"""For the tests of this folder: what they read is kept as long as they run."""

import pytest

from .sources import nodes


@pytest.fixture(scope="package", autouse=True)
def _syntax_trees_are_forgotten_afterwards():
    """All of them are 90 MB, which the tests of other folders need not carry along."""
    yield
    nodes.cache_clear()
