"""Bringing the picture back to the truth: what is found, what is mended, what is left alone."""

import pytest

from dibs.core.events import Step

from .world import TTL_S, Crash, crashing

HELD = {"stage:ready", "stage:processing", "claimed"}


def found(process, *, repair=False):
    return [
        (finding.flaw.issue.key, finding.flaw.code.value, finding.repaired)
        for finding in process.services.checking.check(repair=repair)
    ]


def test_a_healthy_backlog_has_no_flaw(world):
    world.add()
    world.process().claimed(world.add())
    world.process().advance(world.add())
    assert found(world.process("onlooker")) == []


def decide_and_die(world, issue):
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)


def vanish(world, issue):
    world.process("vanishing").claimed(issue)
    world.clock.advance(TTL_S)


def lose_the_label(world, issue):
    world.process("holder").claimed(issue)
    world.tracker.edit_labels(issue, remove=("claimed",))


@pytest.mark.parametrize(
    ("spoil", "code", "mended"),
    [
        (decide_and_die, "UNPAINTED_ENDING", {"stage:review"}),
        (vanish, "CLAIMED_WITHOUT_LEASE", {"stage:ready"}),
        (lose_the_label, "LEASE_WITHOUT_LABEL", HELD),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_picture_that_contradicts_the_truth_is_named_and_mended(world, spoil, code, mended):
    issue = world.add()
    spoil(world, issue)
    onlooker = world.process("onlooker")
    before = world.labels(issue)
    assert found(onlooker) == [("1", code, False)]
    assert onlooker.tracker.written == []
    assert world.labels(issue) == before
    assert found(world.process("mender"), repair=True) == [("1", code, True)]
    assert world.labels(issue) == mended
    assert found(onlooker) == []


def test_what_only_a_person_can_decide_is_not_called_repaired(world):
    """Which of two stages is right, no repair can know."""
    issue = world.add("stage:ready", "stage:review")
    assert found(world.process("mender"), repair=True) == [("1", "SEVERAL_STAGES", False)]
    assert world.labels(issue) == {"stage:ready", "stage:review"}
