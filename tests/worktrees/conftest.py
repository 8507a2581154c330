"""Every git of these tests is alone: no settings of whoever runs them."""

import pytest
from tests.servers.git_repository import ALONE

from .places import WITH_SPACES, clone


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALFRED_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / WITH_SPACES
    folder.mkdir()
    return folder


@pytest.fixture
def root(place):
    return place / "trees of agents"


@pytest.fixture
def backend(place):
    return clone(place, "backend")


@pytest.fixture
def frontend(place):
    return clone(place, "frontend")
