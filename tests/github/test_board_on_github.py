"""What an hour of the board costs on GitHub, counted at the server while the fleet works."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import MemoryJournal
from dibs.core.ids import HolderId
from dibs.core.issue import Draft
from dibs.core.labels import label_looks
from dibs.core.pipeline import ApprovalGate, Command
from dibs.core.presets import AGENT, STAGES
from dibs.frontends.cli.operating import dear_s
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services

from .hubs import REPOSITORY, Hub, transport_to

HOUR_S = 3600.0


def services_on(hub, preset):
    pipeline = STAGES if preset == "stages" else AGENT
    first = replace(pipeline.stages[0], handler=Command("true"))
    pipeline = replace(pipeline, stages=(first, *pipeline.stages[1:]))
    transport = transport_to(hub.hub.url, "fleet-token", hub.clock)
    hub._opened.callback(transport.close)
    tracker = GithubTracker(transport, REPOSITORY, looks=label_looks(pipeline))
    control = GithubControl([tracker], hub.clock)
    settings = config.from_mapping(
        {"tracker": f"github:{REPOSITORY}", "preset": preset, "journal": ""},
        source="test",
        root=Path("/nowhere"),
    )
    return Services(
        replace(settings, pipeline=pipeline),
        Adapters(
            tracker=tracker,
            store=None,
            pauses=control,
            observers=(MemoryJournal(),),
            clock=hub.clock,
            granters=control,
        ),
    )


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.mark.parametrize("preset", ["stages", "agent"])
def test_an_hour_of_the_board_costs_a_few_hundred_requests(hub, preset):
    fleet, onlooker = services_on(hub, preset), services_on(hub, preset)
    pipeline = fleet.pipeline
    first = pipeline.stages[0]
    gated = next(one for one in pipeline.stages if isinstance(one.gate, ApprovalGate))

    def add(count, *labels):
        drafts = [Draft(f"issue {at}", labels=frozenset(labels)) for at in range(count)]
        return [fleet.tracker.create(draft).ref for draft in drafts]

    def claim(ref):
        claimed = fleet.claiming.claim(ref, None, ClaimOptions(HolderId("w1")))
        assert isinstance(claimed, Claimed), claimed
        return fleet.keep(claimed)

    add(60, first.label, pipeline.labels.parked)
    add(15, gated.label)
    waiting = add(40, first.label)
    held = [claim(waiting.pop()) for _ in range(5)]
    sent = points = 0
    began = hub.clock.passed_s
    while hub.clock.passed_s - began < HOUR_S:
        # Some work is done each minute, so that no answer is the one of the minute before.
        fleet.advancing.give_back(held.pop(0))
        held.append(claim(waiting.pop()))
        with hub.counted() as counted:
            found = onlooker.board.survey()
        sent += sum(counted.values())
        points += hub.points
        assert len(found.people) == 75
        hub.clock.advance(dear_s(found))
        waiting += add(1, first.label)
    assert sent <= 320
    assert points <= 320
