"""The three places, and nothing of this machine's own."""

import os
from contextlib import ExitStack

import pytest
from tests.github.hubs import Hub
from tests.servers import emulate

from dibs.core.granter import (
    CONTROL_BODY,
    CONTROL_LABEL,
    CONTROL_TITLE,
    Appointed,
    render_appointment,
)
from dibs.core.issue import Draft
from dibs.label_state import pauses
from dibs.label_state.backlogs import connections

from .places import OWNER, SLUG, HubPlace, Place, let_all_go

_OURS = ("GITHUB_", "GH_", "DIBS_", "ALFRED_", "LABEL_STATE_", "AGENT_")


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch, tmp_path):
    for name in os.environ:
        ours = name.startswith(_OURS) and name != "DIBS_STATE"
        if ours or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    home = tmp_path / "alfred"
    monkeypatch.setenv("ALFRED_HOME", str(home))
    monkeypatch.setattr(pauses, "PAUSED_REPOS_FILE", home / "state" / "paused-repos.json")
    monkeypatch.setenv("GH_ORG", OWNER)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    let_all_go()
    connections.close()


def configure(tracker, **settings):
    """A dibs.toml where we are. Waiting for a tracker that does not lag is for nobody."""
    told = {"preset": "agent", "tracker": tracker, "ttl": "4h", "settle": "0s", **settings}
    lines = [f'{key} = "{value}"' for key, value in told.items()]
    with open("dibs.toml", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("\n".join(lines) + "\n[github]\npace = false\n")


def set_up(place):
    """What `dibs init` and the first grant make, without their waiting for other readers."""
    tracker, granter = place.tracker, Appointed(place.services.granting.store)
    tracker.prepare([*place.services.pipeline.every_label, CONTROL_LABEL])
    control = tracker.create(Draft(CONTROL_TITLE, CONTROL_BODY, frozenset({CONTROL_LABEL})))
    tracker.comment(control.ref, render_appointment(granter, over=0))


@pytest.fixture
def embedded():
    configure("sqlite:backlog.db")
    return Place()


@pytest.fixture
def hub(monkeypatch):
    with ExitStack() as opened:
        made = Hub(opened)
        monkeypatch.setenv("GITHUB_API_URL", made.hub.url)
        monkeypatch.setenv("GITHUB_TOKEN", "fleet-token")
        configure(f"github:{OWNER}/{SLUG}")
        place = HubPlace(hub=made)
        set_up(place)
        yield place
        let_all_go()
        connections.close()


@pytest.fixture
def emulator(monkeypatch):
    server = emulate.single()
    full = server.repository()
    monkeypatch.setenv("GITHUB_API_URL", server.url)
    monkeypatch.setenv("GITHUB_TOKEN", emulate.TOKEN)
    monkeypatch.setenv("GH_ORG", emulate.OWNER)
    configure(f"github:{full}")
    place = Place(slug=full.partition("/")[2])
    set_up(place)
    return place


@pytest.fixture(params=["hub", "embedded", "emulator"])
def place(request):
    return request.getfixturevalue(request.param)
