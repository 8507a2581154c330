"""What a tracker must do, as checks that any tracker can be put through.

Trackers declare no guarantees: what they are like is in their traits, and what they offer beyond
the port is asked of them only if it is there. Each check starts from an empty tracker.
"""

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from dibs.core.card import UnknownMark, parse_mark
from dibs.core.errors import NoSuchComment, NoSuchIssue, Outage
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Draft, Issue, Snapshot
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels
from dibs.ports.leases import Guarantee
from dibs.ports.tracker import Applies, IssueQuery, Tracker
from dibs.services.reading import walk
from dibs.testing.conformance.report import (
    Check,
    Factory,
    NotApplicable,
    Report,
    assert_outage,
    examine,
)

_ASKED_MOST = 4
"""How often a check asks a tracker that doubts its server's answer."""
_THREADS = 4
_WRITES = 10
# The longest a check lets time pass, so that two timestamps can be told apart.
_TICK_S = 0.01
ODD_LABELS = ("area: shop/cart", 'it\'s 100% "odd"', "größe", "x' OR 1=1 --")


class TrackerHarness(ABC):
    """A tracker under test, and what the checks need of its surroundings."""

    many = 120
    """More issues, and more comments on one, than the tracker hands out at a time."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    @abstractmethod
    def another(self) -> Tracker:
        """A second, independent client of the same tracker."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Return when the tracker's own clock has gone on by so much, and little more."""

    def outlast_doubt(self) -> None:
        """Return when an error of the server that is reported again is believed."""
        return

    def stranger(self) -> Tracker:
        """A client of somebody who may comment and may not write."""
        raise NotApplicable("whoever can reach it may write")

    def cut_off(self) -> Tracker:
        """A client that can no longer reach the tracker, for the rest of the check."""
        raise NotApplicable("there is nothing that its clients could be cut off from")

    def as_given(self, body: str) -> str:
        """A comment's text without what the client adds to marks by itself, such as a signature."""
        return body

    def tick(self) -> None:
        """Let enough time pass for two timestamps to differ."""
        grain = self.tracker.traits.grain.total_seconds()
        self.advance(max(_TICK_S, 2 * grain))

    def settle(self) -> None:
        """Let enough time pass for every reader to see what was written."""
        self.advance(self.tracker.traits.settle.total_seconds())


def add(harness: TrackerHarness, title: str = "Prices are wrong", *labels: str) -> Issue:
    return harness.tracker.create(Draft(title, "as the customer said", frozenset(labels)))


def seen(harness: TrackerHarness, issue: IssueRef) -> Snapshot:
    """What a client that did not write reads, once it is sure to see."""
    harness.settle()
    return harness.another().read(issue)


def found(harness: TrackerHarness, query: IssueQuery) -> list[IssueRef]:
    """What both clients find, once they are sure to see."""
    harness.settle()
    mine, theirs = (
        [issue.ref for issue in client.find(query).issues]
        for client in (harness.tracker, harness.another())
    )
    assert mine == theirs, f"two clients found different issues: {mine} and {theirs}"
    return mine


# Issues


def an_issue_is_as_it_was_drafted(harness: TrackerHarness) -> None:
    """Title, body and labels come back as they were given, open and without comments."""
    made = harness.tracker.create(Draft("Größe <b>", "line one\n\nline *two*", frozenset({"a"})))
    for issue in (made, seen(harness, made.ref).issue):
        assert (issue.ref, issue.title, issue.body) == (
            made.ref,
            "Größe <b>",
            "line one\n\nline *two*",
        )
        assert issue.labels == {"a"}
        assert issue.open, "a new issue is not open"
        assert issue.comment_count == 0
        assert issue.created_at <= issue.updated_at


def a_missing_issue_is_said_to_be_missing(harness: TrackerHarness) -> None:
    """Every operation on an issue that is not there raises NoSuchIssue, and makes none."""
    add(harness)
    tracker, ghost = harness.tracker, IssueRef(harness.tracker.traits.repo, "999999")
    operations: tuple[Callable[[], object], ...] = (
        lambda: tracker.read(ghost),
        lambda: tracker.comment(ghost, "hello"),
        lambda: tracker.edit_comment(ghost, 1, "hello"),
        lambda: tracker.edit_labels(ghost, add=("a",)),
        lambda: tracker.close(ghost),
    )
    for operation in operations:
        _assert_raises(harness, NoSuchIssue, operation)
    assert len(found(harness, IssueQuery())) == 1


def closing_twice_is_closing_once(harness: TrackerHarness) -> None:
    """A closed issue stays closed and readable, and closing it again is a success."""
    issue = add(harness, "done", "a").ref
    harness.tracker.comment(issue, "bye")
    harness.tracker.close(issue)
    harness.tracker.close(issue)
    snapshot = seen(harness, issue)
    assert not snapshot.issue.open
    assert snapshot.issue.labels == {"a"}
    assert len(snapshot.comments) == 1


def a_closed_issue_can_still_be_written_on(harness: TrackerHarness) -> None:
    """An issue is closed before `claimed` comes off: labels and cards of closed ones change."""
    issue = add(harness, "done", "stage:done", "claimed").ref
    card = harness.tracker.comment(issue, "held")
    harness.tracker.close(issue)
    harness.tracker.edit_comment(issue, card.id, "released")
    harness.tracker.comment(issue, "bye")
    harness.tracker.edit_labels(issue, add=("shipped",), remove=("claimed",))
    snapshot = seen(harness, issue)
    assert not snapshot.issue.open, "writing on a closed issue opened it again"
    assert snapshot.issue.labels == {"stage:done", "shipped"}
    assert [comment.body for comment in snapshot.comments] == ["released", "bye"]


# Labels


def labels_are_added_and_removed_idempotently(harness: TrackerHarness) -> None:
    """Adding what is there and removing what is not are successes that change nothing."""
    issue = add(harness, "labels", "keep").ref
    for _ in range(2):
        harness.tracker.edit_labels(issue, add=("a", "b"))
    assert seen(harness, issue).issue.labels == {"keep", "a", "b"}
    for _ in range(2):
        harness.tracker.edit_labels(issue, remove=("a", "never-there"))
    assert seen(harness, issue).issue.labels == {"keep", "b"}
    harness.tracker.edit_labels(issue)
    assert seen(harness, issue).issue.labels == {"keep", "b"}


def labels_of_others_are_kept(harness: TrackerHarness) -> None:
    """A client that changes its own labels does not undo what another did meanwhile."""
    issue = add(harness, "labels", "stage:ready").ref
    mine, theirs = harness.tracker, harness.another()
    mine.read(issue)
    theirs.edit_labels(issue, add=("bot:triaged",))
    mine.edit_labels(issue, add=("claimed",), remove=("stage:ready",))
    assert seen(harness, issue).issue.labels == {"bot:triaged", "claimed"}


def labels_may_be_spelt_oddly(harness: TrackerHarness) -> None:
    """Spaces, quotes and accents in a label are just letters, in writing and in filters."""
    issue = add(harness, "odd").ref
    add(harness, "plain")
    harness.tracker.prepare(ODD_LABELS)
    harness.tracker.edit_labels(issue, add=ODD_LABELS)
    assert seen(harness, issue).issue.labels == set(ODD_LABELS)
    for label in ODD_LABELS:
        assert found(harness, IssueQuery(labels=(label,))) == [issue]
        assert issue not in found(harness, IssueQuery(without=(label,)))
        assert harness.tracker.tally((label,))[label] == 1


def a_tally_counts_open_issues(harness: TrackerHarness) -> None:
    """Closed issues do not count unless asked for; a label nobody carries counts zero."""
    for _ in range(3):
        add(harness, "one", "a", "b")
    gone = add(harness, "two", "a").ref
    harness.tracker.close(gone)
    harness.settle()
    assert dict(harness.another().tally(("a", "b", "nobody"))) == {"a": 3, "b": 3, "nobody": 0}
    counted = harness.another().tally(("a", "b", "nobody"), closed_too=True)
    assert dict(counted) == {"a": 4, "b": 3, "nobody": 0}
    assert dict(harness.another().tally(())) == {}


# Finding


def a_filter_never_returns_a_closed_or_excluded_issue(harness: TrackerHarness) -> None:
    """All of the wanted labels, none of the unwanted ones, open; the oldest first."""
    free = add(harness, "free", "ready", "bug").ref
    add(harness, "claimed", "ready", "bug", "claimed")
    add(harness, "another stage", "review", "bug")
    add(harness, "no bug", "ready")
    shut = add(harness, "closed", "ready", "bug").ref
    later = add(harness, "free too", "bug", "ready").ref
    harness.tracker.close(shut)
    query = IssueQuery(labels=("ready", "bug"), without=("claimed", "paused"))
    assert found(harness, query) == [free, later]
    harness.tracker.edit_labels(free, add=("paused",))
    assert found(harness, query) == [later]
    assert found(harness, IssueQuery(labels=("ready", "bug"), without=("claimed",))) == [
        free,
        later,
    ]
    harness.tracker.edit_labels(free, remove=("paused",))
    assert found(harness, query) == [free, later]


def every_combination_of_labels_is_filtered_rightly(harness: TrackerHarness) -> None:
    """Whatever is wanted, unwanted and asked of closed issues, the answer is what it says."""
    marks = ("ready", "claimed", "paused")
    carried: dict[IssueRef, frozenset[str]] = {}
    shut: set[IssueRef] = set()
    for number in range(2 ** len(marks)):
        labels = frozenset(mark for place, mark in enumerate(marks) if number >> place & 1)
        for closed in (False, True):
            made = add(harness, f"{number}", *labels).ref
            carried[made] = labels
            if closed:
                harness.tracker.close(made)
                shut.add(made)
    for choice in itertools.product(("wanted", "unwanted", "either"), repeat=len(marks)):
        wanted = tuple(mark for mark, kind in zip(marks, choice, strict=True) if kind == "wanted")
        without = tuple(
            mark for mark, kind in zip(marks, choice, strict=True) if kind == "unwanted"
        )
        for closed_too in (False, True):
            expected = [
                ref
                for ref, labels in carried.items()
                if labels.issuperset(wanted)
                and labels.isdisjoint(without)
                and (closed_too or ref not in shut)
            ]
            query = IssueQuery(wanted, without, limit=100, closed_too=closed_too)
            listed = found(harness, query)
            assert listed == expected, f"{query} found {[ref.key for ref in listed]}"


def skipping_passes_over_the_foremost(harness: TrackerHarness) -> None:
    """How a crowd spreads: the list without its first so many, and nothing past its end."""
    issues = [add(harness, f"issue {number}", "ready").ref for number in range(5)]
    harness.tracker.edit_labels(issues[1], add=("claimed",))
    free = [issue for issue in issues if issue != issues[1]]
    for skip in range(7):
        query = IssueQuery(labels=("ready",), without=("claimed",), limit=2, skip=skip)
        assert found(harness, query) == free[skip : skip + 2]
    rest = IssueQuery(labels=("ready",), limit=10, skip=1, after=issues[1])
    assert found(harness, rest) == issues[3:]
    harness.settle()
    assert harness.tracker.find(IssueQuery(labels=("ready",), limit=2, skip=2)).more
    assert not harness.tracker.find(IssueQuery(labels=("ready",), limit=2, skip=3)).more


def closed_issues_are_found_when_asked_for(harness: TrackerHarness) -> None:
    """A sweep looks at closed issues too: they can be stuck."""
    opened = add(harness, "open", "claimed").ref
    shut = add(harness, "closed", "claimed").ref
    harness.tracker.close(shut)
    assert found(harness, IssueQuery(labels=("claimed",), closed_too=True)) == [opened, shut]
    assert found(harness, IssueQuery(closed_too=True)) == [opened, shut]
    assert found(harness, IssueQuery()) == [opened]


def paging_loses_nothing_and_repeats_nothing(harness: TrackerHarness) -> None:
    """Page after page gives every issue once, even if pages change while they are read."""
    issues = [add(harness, f"issue {number}", "ready").ref for number in range(7)]
    for limit in (1, 2, 3, 7, 100):
        assert list(_pages(harness, limit)) == issues
    walked = []
    for ref in _pages(harness, 2):
        walked.append(ref)
        harness.tracker.edit_labels(ref, remove=("ready",))
    assert walked == issues, "issues that left the list while it was read took others with them"
    assert found(harness, IssueQuery(labels=("ready",))) == []


def _pages(harness: TrackerHarness, limit: int) -> Iterable[IssueRef]:
    after: IssueRef | None = None
    for _ in range(100):
        harness.settle()
        page = harness.tracker.find(IssueQuery(labels=("ready",), limit=limit, after=after))
        assert len(page.issues) <= limit, "a page is longer than its limit"
        yield from (issue.ref for issue in page.issues)
        if not page.more:
            return
        assert page.issues, "there is said to be more, and the page is empty"
        after = page.issues[-1].ref
    raise AssertionError("paging never ends")


def a_long_list_is_walked_to_its_end(harness: TrackerHarness) -> None:
    """However much is asked for at a time, what is left out is said to be more."""
    issues = [add(harness, f"issue {number}", "ready").ref for number in range(harness.many)]
    harness.settle()
    for limit in (10 * harness.many, harness.many, harness.many - 1):
        query = IssueQuery(labels=("ready",), limit=limit)
        page = harness.another().find(query)
        assert page.more or len(page.issues) == harness.many, "issues were left out in silence"
        walked = [issue.ref for issue in walk(harness.another(), query)]
        assert walked == issues[:limit], f"a walk of {limit} found {len(walked)}"
    assert harness.another().tally(("ready",))["ready"] == harness.many


def a_finding_shows_the_issue_as_a_reading_does(harness: TrackerHarness) -> None:
    """A scan decides from what it found, so that must not be another picture."""
    issue = add(harness, "same", "a", "b").ref
    harness.tracker.comment(issue, "one")
    harness.settle()
    (in_list,) = harness.tracker.find(IssueQuery()).issues
    alone = harness.tracker.read(issue).issue
    assert (in_list.ref, in_list.title, in_list.labels, in_list.open, in_list.comment_count) == (
        alone.ref,
        alone.title,
        alone.labels,
        alone.open,
        alone.comment_count,
    )


# Comments


def comments_come_in_the_servers_order(harness: TrackerHarness) -> None:
    """Oldest first, by ids and times that the server handed out."""
    issue = add(harness).ref
    clients, posted = (harness.tracker, harness.another()), []
    for number in range(5):
        posted.append(clients[number % 2].comment(issue, f"comment {number}"))
        harness.tick()
    snapshot = seen(harness, issue)
    assert snapshot.comments == tuple(posted), "the list differs from what the writers were told"
    times = [comment.created_at for comment in snapshot.comments]
    assert times == sorted(times)
    assert snapshot.comments[-1].created_at <= snapshot.now, "a comment comes from the future"
    assert snapshot.issue.created_at <= times[0]


def comment_ids_only_grow(harness: TrackerHarness) -> None:
    """Across all issues, and never handed out twice: they order claims and serve as fences."""
    issues = [add(harness, f"issue {number}").ref for number in range(3)]
    ids = [
        harness.tracker.comment(issues[number % 3], f"comment {number}").id for number in range(9)
    ]
    assert ids == sorted(set(ids)), f"comment ids do not grow: {ids}"


def an_edit_changes_the_text_and_updated_at_only(harness: TrackerHarness) -> None:
    """The expiry rule rests on it: created_at and the id stay, updated_at is the server's now."""
    issue = add(harness).ref
    posted = harness.tracker.comment(issue, "first")
    other = harness.tracker.comment(issue, "other")
    assert posted.updated_at == posted.created_at, "a comment that was never edited looks edited"
    harness.tick()
    edited = harness.tracker.edit_comment(issue, posted.id, "second")
    assert (edited.id, edited.body, edited.created_at) == (posted.id, "second", posted.created_at)
    assert edited.updated_at > posted.updated_at, "an edit left updated_at as it was"
    snapshot = seen(harness, issue)
    assert snapshot.comments == (edited, other), "an edit moved or changed something else"
    assert edited.updated_at <= snapshot.now
    harness.tick()
    again = harness.tracker.edit_comment(issue, posted.id, "second")
    assert again.created_at == posted.created_at
    assert again.updated_at > edited.updated_at, (
        "an edit that changes no letter must count as a renewal all the same"
    )


def the_comment_count_is_the_length_of_the_list(harness: TrackerHarness) -> None:
    """A list of comments proves itself complete against it."""
    issue = add(harness).ref
    for count in range(1, 6):
        comment = harness.tracker.comment(issue, f"comment {count}")
        harness.tracker.edit_comment(issue, comment.id, "edited")
        snapshot = seen(harness, issue)
        assert snapshot.issue.comment_count == len(snapshot.comments) == count
        assert snapshot.complete


def a_long_thread_is_read_to_its_end(harness: TrackerHarness) -> None:
    """The card that counts may stand anywhere among the comments, on any page."""
    issue = add(harness).ref
    posted = [harness.tracker.comment(issue, f"comment {number}") for number in range(harness.many)]
    snapshot = seen(harness, issue)
    assert [comment.id for comment in snapshot.comments] == [comment.id for comment in posted]
    assert snapshot.complete, "the whole list is not said to be whole"
    for place in (0, harness.many // 2, harness.many - 1):
        harness.tracker.edit_comment(issue, posted[place].id, "edited")
        assert seen(harness, issue).comments[place].body == "edited"


def strangers_are_told_from_writers(harness: TrackerHarness) -> None:
    """Whose comments count is said by the tracker, of each comment, and the same to everybody."""
    issue = add(harness).ref
    stranger = harness.stranger()
    harness.tracker.comment(issue, "a writer's")
    stranger.comment(issue, "a stranger's")
    harness.another().comment(issue, "another writer's")
    harness.settle()
    for reader in (harness.tracker, harness.another(), stranger):
        believed = [comment.by_writer for comment in reader.read(issue).comments]
        assert believed == [True, False, True], f"a reader believes {believed}"
    judged = harness.tracker.with_authors(harness.tracker.read(issue))
    assert [comment.by_writer for comment in judged.comments] == [True, False, True]
    assert judged.issue.by_writer, "the issue is a writer's"


def a_missing_comment_is_said_to_be_missing(harness: TrackerHarness) -> None:
    """Editing a comment that is not there, or is another issue's, changes nothing."""
    mine, theirs = add(harness, "mine").ref, add(harness, "theirs").ref
    comment = harness.tracker.comment(theirs, "untouched")
    for number in (comment.id, comment.id + 1000):
        edit = partial(harness.tracker.edit_comment, mine, number, "x")
        _assert_raises(harness, NoSuchComment, edit)
    assert seen(harness, theirs).comments == (comment,)
    assert seen(harness, mine).comments == ()


def unknown_marks_are_left_alone(harness: TrackerHarness) -> None:
    """Text comes back letter for letter, above all the marks of versions we do not know."""
    issue = add(harness).ref
    bodies = (
        "<!-- claim run=abc ttl=600s v=99 shape=new -->\nA card of a later version.",
        "<!-- agent-claim:codename=otter firing_id=7 ts=2026-05-01T12:00:00Z -->",
        "<!-- claim run=9f3a ttl=600s v=1 holder=w%20orker -->\n**worker** bids.",
        "quotes \"double\" and 'single', a %, a \\, 100 € and a 🦄\n\n- a list",
    )
    for body in bodies:
        harness.tracker.comment(issue, body)
    snapshot = seen(harness, issue)
    assert tuple(harness.as_given(comment.body) for comment in snapshot.comments) == bodies
    assert isinstance(parse_mark(snapshot.comments[0].body), UnknownMark)
    harness.tracker.edit_comment(issue, snapshot.comments[2].id, bodies[2] + " Held.")
    kept = [harness.as_given(comment.body) for comment in seen(harness, issue).comments]
    assert kept == [*bodies[:2], bodies[2] + " Held.", bodies[3]]


# Time and crowds


def server_time_never_runs_backwards(harness: TrackerHarness) -> None:
    """Whatever is asked of whichever client, a later reply carries no earlier time."""
    times: list[ServerTime] = []
    issue = add(harness)
    times.append(issue.created_at)
    for number in range(5):
        client = (harness.tracker, harness.another())[number % 2]
        comment = client.comment(issue.ref, f"comment {number}")
        times.append(comment.created_at)
        times.append(client.read(issue.ref).now)
        times.append(client.edit_comment(issue.ref, comment.id, "edited").updated_at)
        times.append(client.find(IssueQuery(limit=1)).now)
    assert times == sorted(times), "server time ran backwards"
    assert all(time.tzinfo is not None for time in times), "a server time without its zone"


def a_change_is_stamped_on_the_issue(harness: TrackerHarness) -> None:
    """An abandoned label is told from a fresh one by when the issue last changed."""
    issue = add(harness)
    harness.tick()
    harness.tracker.edit_labels(issue.ref, add=("claimed",))
    labelled = seen(harness, issue.ref).issue
    assert labelled.updated_at > issue.updated_at, "a label came on and updated_at stayed"
    assert labelled.created_at == issue.created_at
    harness.tick()
    harness.tracker.comment(issue.ref, "hello")
    assert seen(harness, issue.ref).issue.updated_at > labelled.updated_at


def concurrent_writers_lose_nothing(harness: TrackerHarness) -> None:
    """Threads on two clients write comments and labels at once, and all of it is there."""
    issue = add(harness).ref
    clients = (harness.tracker, harness.another())
    flaws: list[str] = []
    gate = threading.Barrier(_THREADS)

    def write(number: int) -> None:
        tracker = clients[number % 2]
        try:
            gate.wait(timeout=30)
            for turn in range(_WRITES):
                comment = tracker.comment(issue, f"{number}-{turn}")
                tracker.edit_comment(issue, comment.id, f"{number}-{turn} edited")
                tracker.edit_labels(issue, add=(f"l{number}-{turn}", "shared"))
                tracker.create(Draft(f"{number}-{turn}", labels=frozenset({"made"})))
        except Exception as flaw:  # noqa: BLE001 - told by the thread that checks
            flaws.append(f"{type(flaw).__name__}: {flaw}")

    threads = [
        threading.Thread(target=write, args=(number,), daemon=True) for number in range(_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a writer hangs"
    assert not flaws, "; ".join(flaws[:5])
    marks = {f"{number}-{turn}" for number in range(_THREADS) for turn in range(_WRITES)}
    result = seen(harness, issue)
    assert {comment.body for comment in result.comments} == {f"{mark} edited" for mark in marks}
    assert result.complete
    assert result.issue.comment_count == len(marks)
    ids = [comment.id for comment in result.comments]
    assert ids == sorted(set(ids))
    assert result.issue.labels == {f"l{mark}" for mark in marks} | {"shared"}
    made = found(harness, IssueQuery(labels=("made",), limit=1000))
    assert len(set(made)) == len(made) == len(marks)


def an_outage_is_told_as_one(harness: TrackerHarness) -> None:
    """A tracker that cannot be reached raises an Outage: not another error, never an answer."""
    issue = add(harness, "out of reach", "ready").ref
    card = harness.tracker.comment(issue, "held")
    client = harness.cut_off()
    operations: dict[str, Callable[[], object]] = {
        "find": lambda: client.find(IssueQuery()),
        "read": lambda: client.read(issue),
        "tally": lambda: client.tally(("ready",)),
        "create": lambda: client.create(Draft("one more")),
        "comment": lambda: client.comment(issue, "hello"),
        "edit_comment": lambda: client.edit_comment(issue, card.id, "released"),
        "edit_labels": lambda: client.edit_labels(issue, add=("claimed",)),
        "close": lambda: client.close(issue),
    }
    for name, operation in operations.items():
        assert_outage(name, operation)


# Optional capabilities


def a_healthy_tracker_finds_no_flaw_in_itself(harness: TrackerHarness) -> None:
    """Whoever can inspect its own storage has nothing to say about one that is in order."""
    tracker = harness.tracker
    if not tracker.traits.checks_itself:
        raise NotApplicable("the tracker does not inspect itself")
    issue = add(harness, "fine", "ready").ref
    tracker.comment(issue, "hello")
    tracker.edit_labels(issue, add=("claimed",), remove=("ready",))
    assert tracker.flaws() == ()


def a_batch_returns_the_state_after(harness: TrackerHarness) -> None:
    """All effects, in their order, and the reading that follows them."""
    batching = harness.tracker
    issue = add(harness, "batch", "old").ref
    card = harness.tracker.comment(issue, "bid")
    harness.tick()
    snapshot = batching.apply(
        issue,
        (
            EditComment(card.id, "held"),
            AddLabels(("new", "claimed")),
            RemoveLabels(("old", "never-there")),
            PostComment("hello"),
            RemoveLabels(("claimed",)),
            CloseIssue(),
        ),
    )
    assert snapshot is not None, "without a condition it is always applied"
    assert [comment.body for comment in snapshot.comments] == ["held", "hello"]
    assert snapshot.issue.labels == {"new"}
    assert not snapshot.issue.open
    assert snapshot.complete
    assert snapshot.comments[0].updated_at > card.updated_at
    after = seen(harness, issue)
    assert (after.issue, after.comments) == (snapshot.issue, snapshot.comments)


def a_batch_that_saw_an_older_issue_does_nothing(harness: TrackerHarness) -> None:
    """A sleeper that wakes up must not paint over what came after it."""
    batching = _in_one_step(harness)
    made = harness.tracker.create(Draft("Prices are wrong", labels=frozenset({"old"})))
    harness.tracker.edit_labels(made.ref, add=("newer",))
    assert batching.apply(made.ref, (AddLabels(("stale",)),), if_unchanged=made) is None
    current = harness.tracker.read(made.ref).issue
    assert current.labels == {"old", "newer"}
    applied = batching.apply(made.ref, (AddLabels(("fresh",)),), if_unchanged=current)
    assert applied is not None
    assert applied.issue.labels == {"old", "newer", "fresh"}


def a_batch_is_all_or_nothing(harness: TrackerHarness) -> None:
    """An effect that cannot be done takes the others with it."""
    batching = _in_one_step(harness)
    issue = add(harness, "batch", "old").ref
    before = seen(harness, issue)
    effects = (
        AddLabels(("new",)),
        PostComment("hello"),
        EditComment(999_999, "nobody's"),
        RemoveLabels(("old",)),
    )
    _assert_raises(harness, NoSuchComment, lambda: batching.apply(issue, effects))
    after = seen(harness, issue)
    assert (after.issue, after.comments) == (before.issue, before.comments)
    ghost = IssueRef(harness.tracker.traits.repo, "999999")
    _assert_raises(harness, NoSuchIssue, lambda: batching.apply(ghost, (AddLabels(("new",)),)))


def a_trip_returns_the_state_after(harness: TrackerHarness) -> None:
    """All effects, each by itself and in their order, and the reading that follows them."""
    trips = _in_one_request(harness)
    issue = add(harness, "trip", "old", "claimed").ref
    card = harness.tracker.comment(issue, "bid")
    harness.another().comment(issue, "somebody else's")
    harness.settle()
    harness.tick()
    snapshot = _applied(
        trips,
        issue,
        (
            EditComment(card.id, "held"),
            AddLabels(("new", "made-by-the-trip")),
            RemoveLabels(("old", "never-there")),
            PostComment("hello"),
            RemoveLabels(("claimed",)),
            CloseIssue(),
        ),
    )
    assert [comment.body for comment in snapshot.comments] == ["held", "somebody else's", "hello"]
    assert snapshot.issue.labels == {"new", "made-by-the-trip"}
    assert not snapshot.issue.open
    assert snapshot.complete
    assert snapshot.comments[0].updated_at > card.updated_at
    assert snapshot.comments[-1].created_at <= snapshot.now
    after = seen(harness, issue)
    assert (after.issue, after.comments) == (snapshot.issue, snapshot.comments)
    harness.tick()
    for number, effect in enumerate(_each_alone(card.id)):
        alone = _applied(trips, issue, (effect,))
        told = seen(harness, issue)
        assert (told.issue, told.comments) == (alone.issue, alone.comments), f"effect {number}"
    unchanged = _applied(trips, issue, ())
    assert unchanged.comments == seen(harness, issue).comments


def _each_alone(card: int) -> tuple[Effect, ...]:
    return (
        EditComment(card, "renewed"),
        AddLabels(("old",)),
        RemoveLabels(("old",)),
        RemoveLabels(("nobody-ever-made-this",)),
        PostComment("bye"),
        CloseIssue(),
    )


def a_trip_tells_what_failed(harness: TrackerHarness) -> None:
    """An effect that cannot be done is raised as if it had been done alone."""
    trips = _in_one_request(harness)
    issue, other = add(harness, "trip", "old").ref, add(harness, "other").ref
    theirs = harness.tracker.comment(other, "untouched")
    ghost = IssueRef(harness.tracker.traits.repo, "999999")
    harness.settle()
    for missing in (theirs.id, theirs.id + 1000):
        effects = (AddLabels(("new",)), EditComment(missing, "x"), RemoveLabels(("old",)))
        _assert_raises(harness, NoSuchComment, lambda: trips.apply(issue, effects))  # noqa: B023
    _assert_raises(harness, NoSuchIssue, lambda: trips.apply(ghost, (AddLabels(("new",)),)))
    _assert_raises(harness, NoSuchIssue, lambda: trips.apply(ghost, ()))
    assert seen(harness, other).comments == (theirs,)


def many_snapshots_are_read_as_each_alone(harness: TrackerHarness) -> None:
    """Those that are there, with all their comments; one that was cut short says so."""
    many = harness.tracker
    issues = [add(harness, f"issue {number}", "ready").ref for number in range(5)]
    for number, issue in enumerate(issues):
        for place in range(number):
            harness.tracker.comment(issue, f"comment {place}")
    for place in range(harness.many):
        harness.tracker.comment(issues[0], f"comment {place}")
    harness.tracker.close(issues[1])
    harness.settle()
    ghost = IssueRef(harness.tracker.traits.repo, "999999")
    snapshots = many.read_many([issues[3], ghost, *issues, issues[2]])
    assert set(snapshots) == set(issues), f"asked for {issues}, got {list(snapshots)}"
    for issue, snapshot in snapshots.items():
        alone = harness.another().read(issue)
        assert snapshot.issue == alone.issue
        assert snapshot.comments == alone.comments or not snapshot.complete, (
            f"{issue} was cut short"
        )
    assert all(snapshots[issue].complete for issue in issues[1:])
    assert dict(many.read_many([])) == {}


def snapshots_are_found_as_issues_are(harness: TrackerHarness) -> None:
    """Each query has its answer, in its place: the same issues as `find`, with their comments."""
    many = harness.tracker
    for number in range(7):
        labels = (
            "ready",
            *(("urgent",) if number % 2 else ()),
            *(("held",) if number == 4 else ()),
        )
        issue = add(harness, f"issue {number}", *labels).ref
        harness.tracker.comment(issue, f"about {number}")
        if number == 6:
            harness.tracker.close(issue)
    add(harness, "of no stage")
    harness.settle()
    queries = (
        IssueQuery(("ready",)),
        IssueQuery(("ready", "urgent"), limit=2),
        IssueQuery(("ready",), without=("urgent", "held"), limit=1),
        IssueQuery(("ready",), limit=2, skip=1),
        IssueQuery(("ready",), closed_too=True),
        IssueQuery(("nobody",)),
        IssueQuery(),
    )
    answers = many.find_snapshots(queries)
    assert len(answers) == len(queries)
    for query, answer in zip(queries, answers, strict=True):
        found = harness.tracker.find(query)
        snapshots = {snapshot.issue.ref: snapshot for snapshot in answer.snapshots}
        assert tuple(snapshots) == tuple(issue.ref for issue in found.issues), f"{query}"
        assert answer.more or not found.more, f"{query}: issues were left out in silence"
        assert all(snapshot.complete for snapshot in answer.snapshots)
        for ref, snapshot in snapshots.items():
            assert snapshot.comments == harness.another().read(ref).comments
    assert _walked(many, IssueQuery(("ready",), without=("held",), limit=2)) == [
        issue.ref
        for issue in harness.tracker.find(IssueQuery(("ready",), without=("held",))).issues
    ]


def a_rest_ends_by_time_by_a_change_and_by_other_rules(harness: TrackerHarness) -> None:
    """Resting issues are left out of a query by the same rules, and of no other query."""
    tracker = harness.tracker
    if not tracker.traits.keeps_rests:
        raise NotApplicable("the tracker keeps no rests")
    issues = [add(harness, f"issue {number}", "ready") for number in range(5)]
    free, *resting = [issue.ref for issue in issues]
    all_of_them, awake = IssueQuery(("ready",)), IssueQuery(("ready",), awake_by="r2")

    def let_rest(seconds: float) -> None:
        for ref in resting:
            snapshot = harness.another().read(ref)
            until = ServerTime(snapshot.now + timedelta(seconds=seconds))
            tracker.rest(snapshot.issue, until, "r2")

    let_rest(3600)
    assert found(harness, awake) == [free]
    assert found(harness, replace(awake, limit=1, without=("held",))) == [free]
    assert found(harness, all_of_them) == [free, *resting]
    tracker.comment(resting[0], "excused")
    tracker.edit_labels(resting[1], add=("urgent",))
    tracker.apply(resting[2], (RemoveLabels(("ready",)),))
    assert found(harness, awake) == [free, *resting[:2]], "a change ends a rest"
    outdated = issues[1]  # as it was before the comment
    tracker.rest(outdated, ServerTime(outdated.created_at + timedelta(days=365)), "r2")
    assert found(harness, awake) == [free, *resting[:2]], "what changed since does not rest"
    assert found(harness, replace(awake, awake_by="r1")) == [free, *resting[:2], resting[3]]
    tracker.edit_labels(resting[2], add=("ready",))
    card = tracker.comment(resting[0], "held")
    let_rest(3600)
    tracker.edit_comment(resting[0], card.id, "released")
    assert found(harness, awake) == [free, resting[0]], "an edited comment ends a rest"
    let_rest(0.05)
    harness.advance(0.1)
    assert found(harness, awake) == [free, *resting], "its time ends a rest"


def archived_comments_leave_the_thread_and_are_kept(harness: TrackerHarness) -> None:
    """No reading shows or counts them, `read_whole` does, and no id is used twice."""
    tracker = harness.tracker
    if not tracker.traits.long_thread:
        raise NotApplicable("the tracker has no archive")
    issue, other = add(harness, "long", "ready").ref, add(harness, "other").ref
    posted = [tracker.comment(issue, f"comment {number}") for number in range(6)]
    theirs = tracker.comment(other, "untouched")
    before = seen(harness, issue).issue
    gone = [comment.id for comment in (posted[0], posted[2], posted[5])]
    for _ in range(2):
        tracker.archive(issue, [*gone, theirs.id])
    snapshot, whole = seen(harness, issue), harness.another().read_whole(issue)
    assert snapshot.comments == (posted[1], posted[3], posted[4])
    assert snapshot.complete
    assert snapshot.issue == replace(before, comment_count=3), "the archive is no change of it"
    assert tracker.find(IssueQuery(("ready",))).issues == (snapshot.issue,)
    assert whole.comments == tuple(posted)
    assert whole.complete
    assert seen(harness, other).comments == (theirs,), "a comment of another issue was archived"
    _assert_raises(harness, NoSuchComment, lambda: tracker.edit_comment(issue, gone[0], "late"))
    assert tracker.comment(issue, "new").id > theirs.id
    assert harness.another().read_whole(issue).comments[:6] == tuple(posted)


def _walked(many: Tracker, query: IssueQuery) -> list[IssueRef]:
    walked: list[IssueRef] = []
    for _ in range(100):
        after = walked[-1] if walked else None
        (answer,) = many.find_snapshots((replace(query, after=after),))
        assert len(answer.snapshots) <= query.limit, "a page is longer than its limit"
        walked += [snapshot.issue.ref for snapshot in answer.snapshots]
        if not answer.more or not answer.snapshots:
            return walked
    raise AssertionError("walking never ends")


def _applied(tracker: Tracker, issue: IssueRef, effects: Sequence[Effect]) -> Snapshot:
    snapshot = tracker.apply(issue, effects)
    assert snapshot is not None, "without a condition the effects are always applied"
    return snapshot


def _in_one_request(harness: TrackerHarness) -> Tracker:
    if harness.tracker.traits.applies is not Applies.IN_ONE_REQUEST:
        raise NotApplicable("the tracker does not apply several effects in one request")
    return harness.tracker


def _in_one_step(harness: TrackerHarness) -> Tracker:
    if harness.tracker.traits.applies is not Applies.IN_ONE_STEP:
        raise NotApplicable("the tracker does not apply several effects in one step")
    return harness.tracker


def _assert_raises(
    harness: TrackerHarness, error: type[Exception], operation: Callable[[], object]
) -> None:
    """Expect the error. A tracker may doubt the server's first word, and be asked again."""
    for _ in range(_ASKED_MOST):
        try:
            operation()
        except error:
            return
        except Outage as doubt:
            if not doubt.retryable:
                raise
            harness.outlast_doubt()
        else:
            break
    raise AssertionError(f"{error.__name__} was not raised")


CHECKS: tuple[Check[TrackerHarness], ...] = (
    Check(an_issue_is_as_it_was_drafted),
    Check(a_missing_issue_is_said_to_be_missing),
    Check(closing_twice_is_closing_once),
    Check(a_closed_issue_can_still_be_written_on),
    Check(labels_are_added_and_removed_idempotently),
    Check(labels_of_others_are_kept),
    Check(labels_may_be_spelt_oddly),
    Check(a_tally_counts_open_issues),
    Check(a_filter_never_returns_a_closed_or_excluded_issue),
    Check(every_combination_of_labels_is_filtered_rightly),
    Check(closed_issues_are_found_when_asked_for),
    Check(skipping_passes_over_the_foremost),
    Check(paging_loses_nothing_and_repeats_nothing),
    Check(a_long_list_is_walked_to_its_end),
    Check(a_finding_shows_the_issue_as_a_reading_does),
    Check(comments_come_in_the_servers_order),
    Check(comment_ids_only_grow),
    Check(an_edit_changes_the_text_and_updated_at_only),
    Check(the_comment_count_is_the_length_of_the_list),
    Check(a_long_thread_is_read_to_its_end),
    Check(strangers_are_told_from_writers, optional=True),
    Check(a_missing_comment_is_said_to_be_missing),
    Check(unknown_marks_are_left_alone),
    Check(server_time_never_runs_backwards),
    Check(a_change_is_stamped_on_the_issue),
    Check(concurrent_writers_lose_nothing),
    Check(an_outage_is_told_as_one, optional=True),
    Check(a_healthy_tracker_finds_no_flaw_in_itself, optional=True),
    Check(a_batch_returns_the_state_after),
    Check(a_batch_is_all_or_nothing, optional=True),
    Check(a_batch_that_saw_an_older_issue_does_nothing, optional=True),
    Check(a_trip_returns_the_state_after, optional=True),
    Check(a_trip_tells_what_failed, optional=True),
    Check(many_snapshots_are_read_as_each_alone),
    Check(snapshots_are_found_as_issues_are),
    Check(a_rest_ends_by_time_by_a_change_and_by_other_rules, optional=True),
    Check(archived_comments_leave_the_thread_and_are_kept, optional=True),
)


def prove(factory: Factory[TrackerHarness]) -> Report:
    """Whether a tracker keeps its contract. Trackers declare no guarantees of their own."""
    with factory() as harness:
        subject = harness.tracker.traits.name
    return examine(subject, Guarantee.NONE, CHECKS, factory)
