"""Trackers that are wrong in one thing each, so that it is seen that a check can fail."""

import itertools
import re
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta

from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.wrappers.trackers import PlainTracker
from dibs.core.errors import NoSuchComment, NoSuchIssue, NotPermitted, Unavailable
from dibs.core.issue import Snapshot
from dibs.ports.tracker import Applies
from dibs.services.effects import apply
from dibs.testing.clock import FakeClock
from dibs.testing.conformance import NotApplicable

from .harnesses import MemoryTrackerHarness


class ReplacesAllLabels(MemoryTracker):
    """Writes back the label set it read last, like a client that sets the whole list."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._seen = {}

    def read(self, issue):
        snapshot = super().read(issue)
        self._seen[issue] = snapshot.issue.labels
        return snapshot

    def edit_labels(self, issue, *, add=(), remove=()):
        labels = (self._seen.get(issue, frozenset()) | set(add)) - set(remove)
        now = super().read(issue).issue.labels
        super().edit_labels(issue, add=labels, remove=now - labels)


class ShowsTheLastPageOnly(MemoryTracker):
    def read(self, issue):
        snapshot = super().read(issue)
        return Snapshot(snapshot.issue, snapshot.comments[-3:], snapshot.now)


class RestampsEditedComments(MemoryTracker):
    def edit_comment(self, issue, comment, body):
        super().edit_comment(issue, comment, body)
        snapshot = self._comments[issue]
        place = next(place for place, known in enumerate(snapshot) if known.id == comment)
        old = snapshot[place]
        snapshot[place] = type(old)(old.id, old.body, self._now(), self._now(), old.author)
        return snapshot[place]


class FindsClosedIssues(MemoryTracker):
    def close(self, issue):
        super().read(issue)


class ForgetsWhereThePageEnded(MemoryTracker):
    def find(self, query):
        found = super().find(query)
        skipped = found.issues[1:] if query.after else found.issues
        return type(found)(skipped, found.now, found.more)


class ReadsTheFirstPage(MemoryTracker):
    """A hundred comments, and no word of the rest: even the count is the page's."""

    def read(self, issue):
        return _first_page(super().read(issue))


class FindsTheFirstPage(MemoryTracker):
    """At most a hundred, whatever is asked for, and that is said to be all."""

    def find(self, query):
        found = super().find(replace(query, limit=min(query.limit, 100)))
        return replace(found, more=found.more and query.limit <= 100)


class LocksClosedIssues(MemoryTracker):
    def edit_labels(self, issue, *, add=(), remove=()):
        if not self.read(issue).issue.open:
            raise NotPermitted("the issue is closed")
        super().edit_labels(issue, add=add, remove=remove)


class KeepsOneLineOfTheBody(MemoryTracker):
    def create(self, draft):
        return super().create(replace(draft, body=draft.body.partition("\n")[0]))


class ForgivesMissingIssues(MemoryTracker):
    def edit_labels(self, issue, *, add=(), remove=()):
        with suppress(NoSuchIssue):
            super().edit_labels(issue, add=add, remove=remove)


class TidiesLabels(MemoryTracker):
    """Takes quotes out of labels, so that they fit its query language."""

    def edit_labels(self, issue, *, add=(), remove=()):
        tidy = tuple(label.replace("'", "") for label in add)
        super().edit_labels(issue, add=tidy, remove=remove)


class CountsClosedIssues(MemoryTracker):
    def tally(self, labels, *, closed_too=False):
        return super().tally(labels, closed_too=True)


class FindsWithoutCounting(MemoryTracker):
    """A list that saves itself the comment counts."""

    def find(self, query):
        found = super().find(query)
        return replace(found, issues=tuple(replace(i, comment_count=0) for i in found.issues))


class SkipsBeforeItFilters(MemoryTracker):
    def find(self, query):
        found = super().find(replace(query, skip=0, limit=query.limit + query.skip))
        oldest = [issue for issue in found.issues if int(issue.ref.key) > query.skip]
        return replace(found, issues=tuple(oldest[: query.limit]))


class NeverShowsClosedIssues(MemoryTracker):
    def find(self, query):
        return super().find(replace(query, closed_too=False))


class NumbersWithinTheIssue(MemoryTracker):
    """Comment ids begin again with each issue."""

    def comment(self, issue, body, **told):
        posted = super().comment(issue, body, **told)
        with self._lock:
            snapshot = self._comments[issue]
            snapshot[-1] = replace(posted, id=len(snapshot))
            return snapshot[-1]


class ListsTheNewestFirst(MemoryTracker):
    def read(self, issue):
        snapshot = super().read(issue)
        return replace(snapshot, comments=snapshot.comments[::-1])


class RestsThroughChanges(MemoryTracker):
    def comment(self, issue, body, **told):
        rests = dict(self._rests)
        posted = super().comment(issue, body, **told)
        self._rests = rests
        return posted


class ForgetsWhatItArchives(MemoryTracker):
    def read_whole(self, issue):
        return self.read(issue)


class ForgivesMissingComments(MemoryTracker):
    def edit_comment(self, issue, comment, body):
        try:
            return super().edit_comment(issue, comment, body)
        except NoSuchComment:
            return super().comment(issue, body)


class StripsHtmlComments(MemoryTracker):
    """Shows bodies as people see them."""

    def read(self, issue):
        snapshot = super().read(issue)
        shown = (
            replace(comment, body=re.sub(r"<!--.*?-->", "", comment.body))
            for comment in snapshot.comments
        )
        return replace(snapshot, comments=tuple(shown))


class TwoServers(MemoryTracker):
    """Answers come from two machines in turn, whose clocks differ by a second."""

    def __init__(self, now, **options):
        late = itertools.cycle((timedelta(), timedelta(seconds=1)))
        super().__init__(lambda: now() - next(late), **options)


class ForgetsToStamp(MemoryTracker):
    def _change(self, issue):
        self._issues[issue.ref] = issue


class LosesWrites(MemoryTracker):
    """Reads the labels, thinks for a moment, writes them back: without holding anybody up."""

    def edit_labels(self, issue, *, add=(), remove=()):
        known = self.read(issue).issue
        threading.Event().wait(0.001)
        labels = (known.labels | set(add)) - set(remove)
        with self._lock:
            self._change(replace(self._issue(issue), labels=labels))


class BelievesEverybody(MemoryTracker):
    def comment(self, issue, body, **told):
        return super().comment(issue, body)


# Several changes in one trip


class BatchingMemory(MemoryTracker):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traits = replace(self.traits, applies=Applies.IN_ONE_STEP)

    def apply(self, issue, effects, *, if_unchanged=None, **_):
        with self._lock:
            if if_unchanged is not None and self.read(issue).issue != if_unchanged:
                return None
            kept = dict(self._issues), {ref: list(told) for ref, told in self._comments.items()}
            try:
                return apply(PlainTracker(self), issue, effects)
            except Exception:
                self._issues, self._comments = kept
                raise


class BatchTellsWhatWas(BatchingMemory):
    def apply(self, issue, effects, *, if_unchanged=None, **_):
        before = self.read(issue)
        return super().apply(issue, effects, if_unchanged=if_unchanged) and before


class BatchStopsHalfWay(BatchingMemory):
    def apply(self, issue, effects, *, if_unchanged=None, **_):
        with self._lock:
            if if_unchanged is not None and self.read(issue).issue != if_unchanged:
                return None
            return apply(PlainTracker(self), issue, effects)


class BatchNeverLooks(BatchingMemory):
    def apply(self, issue, effects, *, if_unchanged=None, **_):
        return super().apply(issue, effects)


# Several changes in one trip, though not in one step


class TrippingMemory(MemoryTracker):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traits = replace(self.traits, applies=Applies.IN_ONE_REQUEST)

    def apply(self, issue, effects, **_):
        return apply(PlainTracker(self), issue, effects)


class TripTellsWhatWas(TrippingMemory):
    def apply(self, issue, effects, **_):
        before = self.read(issue)
        super().apply(issue, effects)
        return before


class TripSwallowsFailures(TrippingMemory):
    def apply(self, issue, effects, **_):
        for effect in effects:
            with suppress(NoSuchComment):
                super().apply(issue, (effect,))
        return self.read(issue)


# Many at once


class ReadingMemory(MemoryTracker):
    """As the port has it: one after the other."""


class ReadsManyButNotAll(ReadingMemory):
    """A page of comments each, and that is said to be all."""

    def read_many(self, issues):
        return {
            issue: _first_page(snapshot) for issue, snapshot in super().read_many(issues).items()
        }


def _first_page(snapshot):
    page = snapshot.comments[:100]
    return Snapshot(replace(snapshot.issue, comment_count=len(page)), page, snapshot.now)


class ReadsManyTwice(ReadingMemory):
    """What it is asked for and does not find, it makes up."""

    def read_many(self, issues):
        found = dict(super().read_many(issues))
        last = next(iter(found.values()), None)
        return found if last is None else {**dict.fromkeys(issues, last), **found}


class TakesAnyOfTheLabels(ReadingMemory):
    """Several labels are one or the other, as in a search box."""

    def find_snapshots(self, queries):
        return super().find_snapshots(
            [replace(query, labels=query.labels[:1]) for query in queries]
        )


# With surroundings of their own


class Cuttable(MemoryTracker):
    """One that can be cut off, and says so as it should."""

    cut = False

    def find(self, query):
        self._reach()
        return super().find(query)

    def tally(self, labels, *, closed_too=False):
        self._reach()
        return super().tally(labels, closed_too=closed_too)

    def create(self, draft):
        self._reach()
        return super().create(draft)

    def read(self, issue):
        self._reach()
        return super().read(issue)

    def _issue(self, ref):
        self._reach()
        return super()._issue(ref)

    def _reach(self):
        if self.cut:
            raise Unavailable("no answer")


class LeaksItsLibrarysError(Cuttable):
    def _reach(self):
        if self.cut:
            raise TimeoutError("no answer")


class CuttableHarness(MemoryTrackerHarness):
    def cut_off(self):
        self.tracker.cut = True
        return self.tracker


class SelfChecking(MemoryTracker):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traits = replace(self.traits, checks_itself=True)

    def flaws(self):
        return ()


class CriesWolf(SelfChecking):
    def flaws(self):
        return tuple(f"{ref} was changed" for ref in self._issues)


class TimelessHarness(MemoryTrackerHarness):
    """An author who never wrote the waiting."""

    def advance(self, seconds):
        raise NotApplicable("it was not written")


def opening(tracker_type, harness_type=MemoryTrackerHarness):
    """A factory of this kind of tracker, on virtual time."""

    @contextmanager
    def factory():
        clock = FakeClock()
        yield harness_type(clock, tracker_type(clock.server_now, author="fleet"))

    return factory
