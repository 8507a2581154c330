"""The named crash points and the journal's facts."""

import re

import pytest

from dibs.core.events import Event, EventKind, Reached, Step, unwatched
from dibs.core.ids import Fence, HolderId, RunId, StageName

from .builders import REF, at


@pytest.mark.parametrize("step", list(Step))
def test_a_step_has_a_dotted_name_and_passing_it_unwatched_does_nothing(step):
    assert re.fullmatch(r"(claim|renew|finish)\.[a-z_]+", step.value)
    assert Step(step.value) is step
    observer: Reached = unwatched
    assert observer(step) is None


def test_steps_stand_in_the_order_they_are_passed():
    order = list(Step)
    assert order.index(Step.CLAIM_BID) < order.index(Step.CLAIM_CONFIRMED)
    assert order.index(Step.CLAIM_CONFIRMED) < order.index(Step.CLAIM_PAINTED)
    assert order.index(Step.FINISH_VERIFIED) < order.index(Step.FINISH_DECIDED)
    assert order.index(Step.FINISH_DECIDED) < order.index(Step.FINISH_LABEL_ADDED)
    assert order.index(Step.FINISH_LABEL_ADDED) < order.index(Step.FINISH_LABEL_REMOVED)
    assert order.index(Step.FINISH_LABEL_REMOVED) < order.index(Step.FINISH_PAINTED)


@pytest.mark.parametrize("kind", list(EventKind))
def test_an_event_of_every_kind_can_be_told_about_nothing_but_itself(kind):
    event = Event(kind)
    assert kind.value == kind.name.lower()
    assert (event.issue, event.run, event.holder, event.stage) == (None, None, None, None)
    assert (event.fence, event.at, event.detail) == (None, None, {})


def test_an_event_keeps_what_it_is_told_and_shares_no_detail_with_another():
    told = Event(
        EventKind.CLAIMED,
        REF,
        RunId("a"),
        HolderId("worker-a"),
        StageName("ready"),
        Fence(3),
        at(1),
        {"card": "3"},
    )
    assert (told.issue, told.run, told.fence, told.at) == (REF, "a", 3, at(1))
    assert (told.holder, told.stage, told.detail) == ("worker-a", "ready", {"card": "3"})
    assert Event(EventKind.PAUSED).detail is not Event(EventKind.PAUSED).detail
