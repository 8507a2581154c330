"""A tracker in this process's memory, for tests, the simulator and first experiments.

It has no batching, so the services run their plain path on it. The caller hands in the clock. The
cost of a query depends on the issues it finds and not on the size of the backlog, so a backlog of
any size can be simulated.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dibs.core.bounded import Bounded
from dibs.core.errors import NoSuchComment, NoSuchIssue
from dibs.core.following import LinkedPull
from dibs.core.ids import ZERO, IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Labelling, Person, Pull, Snapshot, TextChange
from dibs.core.labels import LabelLook
from dibs.ports.tracker import Found, IssueQuery, OneAtATime, TrackerTraits

_MOST_LISTINGS = 32
_LONG_THREAD = 16
_MOST_LABELLED = 50


class _Listing:
    """The numbers of the issues that match a query, in order, updated as issues change."""

    def __init__(self, kind: IssueQuery, issues: Iterable[Issue]) -> None:
        self._kind = kind
        self._numbers = [int(issue.ref.key) for issue in issues if matches(issue, kind)]

    def page(self, query: IssueQuery, resting: Collection[int]) -> tuple[list[int], bool]:
        """The numbers on the query's page, and whether more numbers follow."""
        after = int(query.after.key) if query.after is not None else 0
        start, numbers = bisect_right(self._numbers, after) + query.skip, self._numbers
        if resting:
            start, numbers = query.skip, [n for n in numbers if n > after and n not in resting]
        end = start + query.limit
        return numbers[start:end], len(numbers) > end

    def take(self, issue: Issue) -> None:
        """Add or remove the issue's number, after the issue was created or changed."""
        number, wanted = int(issue.ref.key), matches(issue, self._kind)
        place = bisect_left(self._numbers, number)
        listed = place < len(self._numbers) and self._numbers[place] == number
        if wanted and not listed:
            self._numbers.insert(place, number)
        elif listed and not wanted:
            del self._numbers[place]


class MemoryTracker(OneAtATime):
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
        self._refs: list[IssueRef] = []
        self._listings: Bounded[IssueQuery, _Listing] = Bounded(_MOST_LISTINGS)
        self._comments: dict[IssueRef, list[Comment]] = {}
        self._archive: dict[IssueRef, list[Comment]] = {}
        self._pulls: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        self._rests: dict[IssueRef, tuple[ServerTime, str]] = {}
        """Until when an issue rests, and by which rules."""
        self._last_comment = 0
        self.traits = TrackerTraits(
            name="memory:",
            settle=settle,
            grain=grain,
            cheap_reads=True,
            pulls=True,
            long_thread=_LONG_THREAD,
            keeps_rests=True,
            label_history=True,
        )

    def find(self, query: IssueQuery) -> Found:
        with self._lock:
            resting: set[int] = set()
            if query.awake_by:
                now, rules = self._now(), query.awake_by
                self._rests = {
                    ref: rest
                    for ref, rest in self._rests.items()
                    if rest[0] > now and rest[1] == rules
                }
                resting = {int(ref.key) for ref in self._rests}
            numbers, more = self._listing(query).page(query, resting)
            page = tuple(self._issues[self._refs[number - 1]] for number in numbers)
            return Found(page, self._now(), more=more)

    def _listing(self, query: IssueQuery) -> _Listing:
        """The query's listing, kept from the first use: workers repeat the same few queries."""
        kind = IssueQuery(query.labels, query.without, closed_too=query.closed_too)
        listing = self._listings.get(kind)
        if listing is None:
            listing = self._listings[kind] = _Listing(kind, self._issues.values())
        return listing

    def read(self, issue: IssueRef) -> Snapshot:
        with self._lock:
            return Snapshot(self._issue(issue), tuple(self._comments[issue]), self._now())

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
                labelled=tuple(Labelling(label, self._author, now) for label in draft.labels),
                edited_at=now,
            )
            self._issues[ref], self._comments[ref] = issue, []
            self._refs.append(ref)
            self._update_listings(issue)
            return issue

    def comment(
        self, issue: IssueRef, body: str, *, author: str | None = None, by_writer: bool = True
    ) -> Comment:
        """Post a comment. Beyond the port: by any author, with or without write access."""
        with self._lock:
            known, now = self._issue(issue), self._now()
            self._last_comment += 1
            name = self._author if author is None else author
            posted = Comment(self._last_comment, body, now, now, author=name, by_writer=by_writer)
            self._comments[issue].append(posted)
            self._change(known, comment_count=known.comment_count + 1)
            return posted

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        with self._lock:
            self._issue(issue)
            snapshot = self._comments[issue]
            for place, known in enumerate(snapshot):
                if known.id == comment:
                    snapshot[place] = replace(known, body=body, updated_at=self._now())
                    self._rests.pop(issue, None)
                    return snapshot[place]
            raise NoSuchComment(issue, comment)

    def delete_comment(self, issue: IssueRef, comment: int) -> None:
        """Beyond the port: people can delete comments on a tracker; no service does."""
        with self._lock:
            known = self._issue(issue)
            left = [one for one in self._comments[issue] if one.id != comment]
            if len(left) == len(self._comments[issue]):
                raise NoSuchComment(issue, comment)
            self._comments[issue] = left
            self._change(known, comment_count=len(left))

    def concern(
        self, issue: IssueRef, *, assignees: Sequence[Person] = (), pulls: Sequence[Pull] = ()
    ) -> None:
        """Beyond the port: set the assignees, and the open pull requests for the issue."""
        with self._lock:
            known = self._issue(issue)
            self._change(known, assignees=tuple(assignees), pulls=tuple(pulls))

    def rewrite(
        self, issue: IssueRef, body: str, *, by: str = "", at: ServerTime | None = None
    ) -> None:
        """Beyond the port: change the text; `by` names an account that may not write."""
        with self._lock:
            change = TextChange(by, at or self._now()) if by else None
            edited_at = self._now()
            self._change(self._issue(issue), body=body, changed=change, edited_at=edited_at)

    def link(self, issue: IssueRef, *pulls: LinkedPull) -> None:
        """Beyond the port: set the pull requests that claim to close the issue, in any state."""
        with self._lock:
            self._issue(issue)
            self._pulls[issue] = pulls

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        with self._lock:
            return {issue: self._pulls.get(issue, ()) for issue in issues if issue in self._issues}

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: pull requests have no texts here."""
        return ()

    def edit_labels(
        self,
        issue: IssueRef,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        by: str | None = None,
    ) -> None:
        """Change labels. Beyond the port: in the name of any account."""
        with self._lock:
            known = self._issue(issue)
            labels = (known.labels | set(add)) - set(remove)
            if labels != known.labels:
                who, now = self._author if by is None else by, self._now()
                new = [Labelling(one, who, now) for one in sorted(labels - known.labels)]
                labelled = (*known.labelled, *new)[-_MOST_LABELLED:]
                self._change(known, labels=labels, labelled=labelled)

    def close(self, issue: IssueRef) -> None:
        with self._lock:
            self._change(self._issue(issue), open=False)

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        with self._lock:
            known, thread = self._issue(issue), self._comments[issue]
            old = [comment for comment in thread if comment.id in comments]
            self._archive.setdefault(issue, []).extend(old)
            self._comments[issue] = [comment for comment in thread if comment not in old]
            self._issues[issue] = replace(known, comment_count=len(self._comments[issue]))

    def read_whole(self, issue: IssueRef) -> Snapshot:
        with self._lock:
            comments = [*self._archive.get(issue, ()), *self._comments[issue]]
            comments.sort(key=lambda comment: comment.id)
            return replace(self.read(issue), comments=tuple(comments))

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        with self._lock:
            if self._issue(issue.ref) == issue:
                self._rests[issue.ref] = (until, rules)

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        """Do nothing: labels need no preparation here."""

    def _issue(self, ref: IssueRef) -> Issue:
        known = self._issues.get(ref)
        if known is None:
            raise NoSuchIssue(ref)
        return known

    def _change(self, known: Issue, **changes: Any) -> None:
        changed = replace(known, updated_at=self._now(), **changes)
        self._issues[known.ref] = changed
        self._rests.pop(known.ref, None)
        if changed.labels != known.labels or changed.open != known.open:
            self._update_listings(changed)

    def _update_listings(self, issue: Issue) -> None:
        for listing in self._listings.values():
            listing.take(issue)


def matches(issue: Issue, query: IssueQuery) -> bool:
    return (
        (issue.open or query.closed_too)
        and issue.labels.issuperset(query.labels)
        and issue.labels.isdisjoint(query.without)
        and (query.after is None or int(issue.ref.key) > int(query.after.key))
    )
