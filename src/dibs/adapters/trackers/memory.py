"""A tracker in this process's memory, for tests, the simulator and trying things out.

It does what a tracker does and nothing more: no batching, so the services' plain path is what runs
on it. Time is handed in.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from dibs.core.errors import NoSuchComment, NoSuchIssue
from dibs.core.ids import ZERO, IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.ports.tracker import Found, IssueQuery, TrackerTraits


class MemoryTracker:
    def __init__(
        self,
        now: Callable[[], ServerTime],
        *,
        author: str = "",
        settle: timedelta = ZERO,
        grain: timedelta = timedelta(milliseconds=1),
    ) -> None:
        self._now = now
        self._author = author
        self._lock = threading.RLock()
        self._issues: dict[IssueRef, Issue] = {}
        self._comments: dict[IssueRef, list[Comment]] = {}
        self._last_comment = 0
        self.traits = TrackerTraits(name="memory:", settle=settle, grain=grain, cheap_reads=True)

    def find(self, query: IssueQuery) -> Found:
        with self._lock:
            wanted = [issue for issue in self._issues.values() if _matches(issue, query)]
            wanted = wanted[query.skip :]
            page = tuple(wanted[: query.limit])
            return Found(page, self._now(), more=len(wanted) > query.limit)

    def read(self, issue: IssueRef) -> Thread:
        with self._lock:
            return Thread(self._issue(issue), tuple(self._comments[issue]), self._now())

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        with self._lock:
            counted = [issue for issue in self._issues.values() if issue.open or closed_too]
            return {label: sum(label in issue.labels for issue in counted) for label in labels}

    def create(self, draft: Draft) -> Issue:
        with self._lock:
            ref, now = IssueRef("", str(len(self._issues) + 1)), self._now()
            issue = Issue(
                ref=ref,
                title=draft.title,
                open=True,
                labels=draft.labels,
                comment_count=0,
                created_at=now,
                updated_at=now,
                body=draft.body,
                author=self._author,
            )
            self._issues[ref], self._comments[ref] = issue, []
            return issue

    def comment(self, issue: IssueRef, body: str) -> Comment:
        with self._lock:
            known, now = self._issue(issue), self._now()
            self._last_comment += 1
            posted = Comment(self._last_comment, body, now, now, author=self._author)
            self._comments[issue].append(posted)
            self._change(replace(known, comment_count=known.comment_count + 1))
            return posted

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        with self._lock:
            self._issue(issue)
            thread = self._comments[issue]
            for place, known in enumerate(thread):
                if known.id == comment:
                    thread[place] = replace(known, body=body, updated_at=self._now())
                    return thread[place]
            raise NoSuchComment(issue, comment)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        with self._lock:
            known = self._issue(issue)
            labels = (known.labels | set(add)) - set(remove)
            if labels != known.labels:
                self._change(replace(known, labels=labels))

    def close(self, issue: IssueRef) -> None:
        with self._lock:
            self._change(replace(self._issue(issue), open=False))

    def prepare(self, labels: Sequence[str]) -> None:
        """Labels need no making here."""

    def _issue(self, ref: IssueRef) -> Issue:
        if ref not in self._issues:
            raise NoSuchIssue(ref)
        return self._issues[ref]

    def _change(self, issue: Issue) -> None:
        self._issues[issue.ref] = replace(issue, updated_at=self._now())


def _matches(issue: Issue, query: IssueQuery) -> bool:
    return (
        (issue.open or query.closed_too)
        and issue.labels.issuperset(query.labels)
        and issue.labels.isdisjoint(query.without)
        and (query.after is None or int(issue.ref.key) > int(query.after.key))
    )
