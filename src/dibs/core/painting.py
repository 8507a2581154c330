"""Which label changes show an ending, given everything that can be seen of the issue."""

from dibs.core.fold import shows_ending
from dibs.core.issue import Thread
from dibs.core.lease import Record
from dibs.core.pipeline import Pipeline
from dibs.core.plan import Effects, ending_effects


def ending_paint(pipeline: Pipeline, record: Record, thread: Thread) -> Effects:
    """Nothing, once the card shows the ending and `claimed` is off.

    The card is ended after the labels, so then only the acknowledgement is missing, and whatever
    the labels say now is a person's later word.
    """
    labels = thread.issue.labels
    off = pipeline.labels.claimed not in labels
    if off and shows_ending(thread.comments, record.lease.run):
        return ()
    return ending_effects(pipeline, record, labels)
