"""Which label changes show an ending, given everything that can be seen of the issue."""

from dataclasses import dataclass

from dibs.core.fold import shows_ending
from dibs.core.issue import Thread
from dibs.core.lease import Record
from dibs.core.pipeline import Pipeline
from dibs.core.plan import AddLabels, Effects, RemoveLabels, ending_effects


@dataclass(frozen=True, slots=True)
class Painting:
    """What shows an ending, and what lets the issue go once the card says that it is shown."""

    showing: Effects = ()
    letting_go: Effects = ()

    @property
    def labels_differ(self) -> bool:
        return any(isinstance(effect, AddLabels | RemoveLabels) for effect in self.showing)


def ending_paint(pipeline: Pipeline, record: Record, thread: Thread) -> Painting:
    """Nothing but letting go, once the ending is marked as shown.

    Whatever stage the labels say from then on is a person's later word. No stage at all is nobody's
    word: a painter that slept took off what somebody had put back. Then it stands where it ended.
    """
    claimed, labels = pipeline.labels.claimed, thread.issue.labels
    last = RemoveLabels((claimed,))
    if shows_ending(thread.comments, record.lease.run):
        stood = () if pipeline.stages_of(labels) else _where_it_ended(pipeline, record)
        return Painting(stood, (last,) if claimed in labels else ())
    effects = ending_effects(pipeline, record, labels)
    return Painting(tuple(effect for effect in effects if effect != last), (last,))


def _where_it_ended(pipeline: Pipeline, record: Record) -> Effects:
    assert record.ending is not None, "only an ended lease is painted"
    name = record.ending.next or record.lease.stage
    return tuple(AddLabels((stage.label,)) for stage in pipeline.stages if stage.name == name)
