"""Each step at which a crash must do no harm is reported: only then can a crash be tried there.

tests/acceptance/test_kill_at_every_step.py kills a process at each, in the long tier.
"""

import pytest

from dibs.core.events import Step

from .world import BEAT_S, World


@pytest.mark.parametrize("kind", ["store", "comments"])
def test_an_issue_on_its_way_to_the_end_passes_every_step(kind):
    world = World(kind)
    passed = []
    process = world.process(reached=passed.append)
    keeper = process.hold(world.add())
    world.clock.advance(BEAT_S)
    keeper.beat()
    process.services.advancing.advance(keeper, "review")
    process.advance(world.add("stage:review", "approved"), "done")
    skipped = (
        set() if world.on_comments else {Step.CLAIM_SETTLED}
    )  # a store has nothing to wait for
    assert set(Step) - set(passed) == skipped
