"""How a label looks where a tracker lets labels have a colour and a description.

Decides by what the pipeline uses a label for. Whether it is there is the tracker's business.
"""

from collections.abc import Mapping

from msgspec import Struct

from dibs.core.agent_labels import EVERY
from dibs.core.control import CONTROL_LABEL
from dibs.core.dialects import Dialect
from dibs.core.pipeline import ApprovalGate, FollowsPull, Pipeline, Stage


class LabelLook(Struct, frozen=True):
    colour: str = "ededed"
    """Six hexadecimal digits."""
    description: str = ""
    """Not over 100 characters: longer ones are refused."""


def label_looks(pipeline: Pipeline) -> Mapping[str, LabelLook]:
    """Every label that the pipeline reads or writes."""
    marks = pipeline.labels
    looks = {
        marks.claimed: LabelLook("fbca04", "dibs: a lease is held; its card says whose"),
        marks.paused: LabelLook("d93f0b", "dibs: hands off, a person said so"),
        marks.parked: LabelLook("b60205", "dibs: set aside for a person to look at"),
        CONTROL_LABEL: LabelLook("5319e7", "dibs: the log of who grants and what is paused"),
    }
    for blocker in sorted(pipeline.blockers):
        looks[blocker] = LabelLook("d93f0b", "dibs: workers leave it alone")
    for place, urgent in enumerate(pipeline.priorities, start=1):
        looks[urgent] = LabelLook("e99695", f"dibs: jumps the queue, urgency {place}")
    for stage in pipeline.stages:
        looks |= _stage_looks(stage)
    if pipeline.dialect is Dialect.AGENT:
        looks |= {one.name: LabelLook(one.color, one.description) for one in EVERY}
    return looks


def _stage_looks(stage: Stage) -> dict[str, LabelLook]:
    colour = "0e8a16" if stage.final else "1d76db"
    looks = {stage.label: LabelLook(colour, f"dibs: stage {stage.name}")}
    if stage.working_label:
        looks[stage.working_label] = LabelLook("fef2c0", f"dibs: being worked, stage {stage.name}")
    if isinstance(stage.gate, ApprovalGate):
        looks[stage.gate.label] = LabelLook("0e8a16", "dibs: a person approved it")
    if isinstance(stage.follows, FollowsPull) and stage.follows.authored:
        authored = LabelLook("c5def5", "dibs: a run of the fleet opened this pull request")
        looks[stage.follows.authored] = authored
    return looks
