"""A world whose tracker is not cheap to ask: it reads many issues in one request, and counts."""

from collections import Counter
from datetime import timedelta

from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.issue import Snapshot
from dibs.core.labels import AddLabels, CloseIssue, EditComment, PostComment, RemoveLabels
from dibs.ports.tracker import Applies, FoundSnapshots, TrackerTraits

from .world import Wire, World

MOST_AT_ONCE = 100


class CostlyMemory(MemoryTracker):
    """Effects in one request, many issues in one reading, with `page` comments of each."""

    def __init__(self, *args, page=100, in_flight=None, **options):
        super().__init__(*args, **options)
        self.page = page
        self.traits = TrackerTraits(
            name="costly:",
            settle=self.traits.settle,
            grain=self.traits.grain,
            in_flight=in_flight,
            applies=Applies.IN_ONE_REQUEST,
            reads_together=MOST_AT_ONCE,
            shortlists=True,
            pulls=self.traits.pulls,
        )

    def read_many(self, issues):
        assert len(issues) <= MOST_AT_ONCE, "no tracker reads that many in one request"
        assert len(set(issues)) == len(issues), "asked for twice"
        return {issue: self._cut(self.read(issue)) for issue in issues if issue in self._issues}

    def find_snapshots(self, queries):
        assert all(query.limit <= MOST_AT_ONCE for query in queries)
        return tuple(self._with_comments(self.find(query)) for query in queries)

    def _with_comments(self, found):
        threads = tuple(self._cut(self.read(issue.ref)) for issue in found.issues)
        return FoundSnapshots(threads, found.now, found.more)

    def _cut(self, snapshot):
        if len(snapshot.comments) <= self.page:
            return snapshot
        return Snapshot(
            snapshot.issue, snapshot.comments[: self.page], snapshot.now, all_pages=False
        )

    def apply(self, issue, effects, **_):
        for effect in effects:
            match effect:
                case AddLabels(labels):
                    self.edit_labels(issue, add=labels)
                case RemoveLabels(labels):
                    self.edit_labels(issue, remove=labels)
                case PostComment(body):
                    self.comment(issue, body)
                case EditComment(comment, body):
                    self.edit_comment(issue, comment, body)
                case CloseIssue():
                    self.close(issue)
        return self.read(issue)

    def delete(self, issue):
        """Beyond the port: gone, with its comments."""
        with self._lock:
            known = self._issues.pop(issue)
            self._comments.pop(issue)
            self._update_listings(replace(known, open=False, labels=frozenset()))
            self._listings.clear()


class CostlyWire(Wire):
    """Counts its calls."""

    @property
    def requests(self):
        """Every call of the port is one."""
        return Counter(call.name for call in self.calls)


class CostlyWorld(World):
    def __init__(self, kind="comments", *, page=100, in_flight=None, **options):
        settle = options.get("settle", timedelta())
        super().__init__(kind, **options)
        self.tracker = CostlyMemory(
            self.clock.server_now, author="fleet", settle=settle, page=page, in_flight=in_flight
        )

    def wire_to_tracker(self):
        return CostlyWire(self.tracker)
