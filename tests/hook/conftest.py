"""A clone with a bare remote, and the hook in it."""

import pytest

from .repositories import Clone


@pytest.fixture
def clone(tmp_path):
    return Clone.made(tmp_path)
