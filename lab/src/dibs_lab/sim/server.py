"""The tracker's server: the true state, and what a reader sees of it.

The true state is the memory tracker, unchanged. A reader may lag behind it in order (a replica), or
see each write only after a delay of its own, so that a later write is visible before an earlier
one. The writer's own reply always shows its own changes.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker, matches
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.ports.tracker import Found, IssueQuery
from dibs_lab.sim.fibres import Simulation, microseconds


class _Posted(Struct, frozen=True):
    comment: int


class _Counted(Struct, frozen=True):
    """The issue's own count of comments; it lags separately, as a column of another table does."""

    number: int
    delta: int


class _Edited(Struct, frozen=True):
    before: Comment


class _Deleted(Struct, frozen=True):
    before: Comment


class _Labelled(Struct, frozen=True):
    label: str
    was_there: bool


class _Closed(Struct, frozen=True):
    pass


_What = _Posted | _Counted | _Edited | _Deleted | _Labelled | _Closed


class _Change(Struct, frozen=True):
    what: _What
    seen_from_us: int
    updated_before: ServerTime
    updated_after: ServerTime

    @property
    def identity(self) -> object:
        return self.what, self.seen_from_us

    @property
    def touches(self) -> object:
        """The thing that is changed: a later change hides earlier changes of the same thing."""
        match self.what:
            case _Edited(before) | _Deleted(before):
                return before.id
            case _Labelled(label):
                return label
            case other:
                return other


Own = list[_Change]
"""The changes of one request: its own reply shows them, whatever else lags."""


class Server:
    """The server that all processes share."""

    def __init__(
        self,
        simulation: Simulation,
        dice: random.Random,
        *,
        read_lag_s: float = 0.0,
        write_lag_s: float = 0.0,
    ) -> None:
        self.truth = MemoryTracker(simulation.server_now, author="fleet")
        self._simulation = simulation
        self._dice = dice
        self._read_lag_us = microseconds(read_lag_s)
        self._write_lag_us = microseconds(write_lag_s)
        self._lags = self._read_lag_us > 0 or self._write_lag_us > 0
        self._unseen: dict[IssueRef, deque[_Change]] = {}
        self._own: Own | None = None

    # Reading

    def read(self, issue: IssueRef) -> Snapshot:
        snapshot = self.truth.read(issue)
        if not self._lags:
            return snapshot
        return self._shown(snapshot, self._as_of_us())

    def read_after(self, issue: IssueRef, own: Own) -> Snapshot:
        """What the reply to a request with these changes shows.

        A replica that lags in order shows them with everything before them; if each write has its
        own delay, the reply need not show other writes.
        """
        snapshot = self.truth.read(issue)
        if not self._lags:
            return snapshot
        return self._shown(snapshot, self._simulation.now_us, own)

    def find(self, query: IssueQuery) -> Found:
        if not self._lags or not self._unseen:
            return self.truth.find(query)
        lagging = self._lagging(self._as_of_us())
        enough = query.skip + query.limit + len(lagging) + 1
        found = self.truth.find(replace(query, limit=enough, skip=0))
        shown = [issue for issue in found.issues if issue.ref not in lagging]
        shown += [issue for issue in lagging.values() if matches(issue, query)]
        shown.sort(key=lambda issue: int(issue.ref.key))
        page = shown[query.skip : query.skip + query.limit]
        return Found(tuple(page), found.now, more=len(shown) > query.skip + query.limit)

    def _lagging(self, as_of_us: int) -> dict[IssueRef, Issue]:
        """The issues that this reader may see in an earlier state."""
        shown = {}
        for ref, changes in list(self._unseen.items()):
            if all(isinstance(change.what, _Edited) for change in changes):
                self._forget_what_all_see(ref, changes)  # an edit does not change an issue's labels
                continue
            snapshot = self.truth.read(ref)
            bare = Snapshot(snapshot.issue, (), snapshot.now)
            shown[ref] = self._shown(bare, as_of_us).issue
        return shown

    def _as_of_us(self) -> int:
        behind_us = self._dice.randint(0, self._read_lag_us) if self._read_lag_us else 0
        return self._simulation.now_us - behind_us

    def _shown(self, snapshot: Snapshot, as_of_us: int, own: Sequence[_Change] = ()) -> Snapshot:
        """The true state without the changes that this reader cannot see yet."""
        changes = self._unseen.get(snapshot.issue.ref)
        if not changes:
            return snapshot
        view = _View(snapshot, updated_before=changes[0].updated_before)
        ours = {change.identity for change in own}
        for change in reversed(changes):
            seen = change.seen_from_us <= as_of_us or change.identity in ours
            view.take(change, seen=seen)
        self._forget_what_all_see(snapshot.issue.ref, changes)
        return view.snapshot()

    def _forget_what_all_see(self, issue: IssueRef, changes: deque[_Change]) -> None:
        everybody_us = self._simulation.now_us - self._read_lag_us
        while len(changes) > 1 and changes[0].seen_from_us <= everybody_us:
            seen, after = changes.popleft(), changes.popleft()
            since = max(seen.updated_after, after.updated_before)
            changes.appendleft(replace(after, updated_before=since))
        if changes[0].seen_from_us <= everybody_us:
            del self._unseen[issue]

    # Writing

    @contextmanager
    def noting(self, own: Own | None) -> Iterator[None]:
        """Record the changes that are made inside as those of this request."""
        self._own = own
        try:
            yield
        finally:
            self._own = None

    def create(self, draft: Draft) -> Issue:
        return self.truth.create(draft)

    def comment(
        self, issue: IssueRef, body: str, *, author: str | None = None, by_writer: bool = True
    ) -> Comment:
        before = self.truth.read(issue).issue
        posted = self.truth.comment(issue, body, author=author, by_writer=by_writer)
        self._note(before, _Posted(posted.id), _Counted(posted.id, 1))
        return posted

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        snapshot = self.truth.read(issue)
        edited = self.truth.edit_comment(issue, comment, body)
        known = next(one for one in snapshot.comments if one.id == comment)
        self._note(snapshot.issue, _Edited(known))
        return edited

    def delete_comment(self, issue: IssueRef, comment: int) -> None:
        snapshot = self.truth.read(issue)
        self.truth.delete_comment(issue, comment)
        known = next(one for one in snapshot.comments if one.id == comment)
        self._note(snapshot.issue, _Deleted(known), _Counted(-comment, -1))

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        before = self.truth.read(issue).issue
        self.truth.edit_labels(issue, add=add, remove=remove)
        changed = before.labels ^ self.truth.read(issue).issue.labels
        labels = (_Labelled(label, label in before.labels) for label in sorted(changed))
        self._note(before, *labels)

    def close(self, issue: IssueRef) -> None:
        before = self.truth.read(issue).issue
        self.truth.close(issue)
        if before.open:
            self._note(before, _Closed())

    def _note(self, before: Issue, *changes: _What) -> None:
        if not self._lags or not changes:
            return
        after = self.truth.read(before.ref).issue.updated_at
        noted = self._unseen.setdefault(before.ref, deque())
        for what in changes:
            delay_us = self._dice.randint(0, self._write_lag_us) if self._write_lag_us else 0
            seen_from_us = self._simulation.now_us + delay_us
            noted.append(_Change(what, seen_from_us, before.updated_at, after))
            if self._own is not None:
                self._own.append(noted[-1])


class _View:
    """One reader's state of an issue, made by going back from the newest change."""

    def __init__(self, snapshot: Snapshot, *, updated_before: ServerTime) -> None:
        self._thread = snapshot
        self._updated_before = updated_before
        self._comments = {comment.id: comment for comment in snapshot.comments}
        self._labels = set(snapshot.issue.labels)
        self._count = snapshot.issue.comment_count
        self._open = snapshot.issue.open
        self._decided: set[object] = set()
        self._updated: ServerTime | None = None

    def take(self, change: _Change, *, seen: bool) -> None:
        if seen:
            self._decided.add(change.touches)
            self._updated = self._updated or change.updated_after
        elif change.touches not in self._decided:
            self._undo(change.what)

    def _undo(self, what: _What) -> None:
        match what:
            case _Posted(comment):
                self._comments.pop(comment, None)
            case _Counted(_, delta):
                self._count -= delta
            case _Edited(before):
                if before.id in self._comments:
                    self._comments[before.id] = before
            case _Deleted(before):
                self._comments[before.id] = before
            case _Labelled(label, was_there):
                (self._labels.add if was_there else self._labels.discard)(label)
            case _Closed():
                self._open = True
            case never:
                assert_never(never)

    def snapshot(self) -> Snapshot:
        issue = replace(
            self._thread.issue,
            labels=frozenset(self._labels),
            comment_count=self._count,
            open=self._open,
            updated_at=self._updated or self._updated_before,
        )
        comments = tuple(self._comments[number] for number in sorted(self._comments))
        return Snapshot(issue, comments, self._thread.now)
