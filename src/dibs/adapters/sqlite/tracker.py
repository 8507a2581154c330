"""The embedded default: a tracker in one SQLite file, shared by any number of processes.

Timestamps come from the database, and ids only grow. A scan walks an index of open issues by label,
so its cost depends on the issues it returns and not on the size of the backlog. The labels that
keep workers off are the *shelf*: issues that carry such a label stand apart in that index and cost
a scan nothing. So do issues that rest, until their rest is over or the issue changes.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, assert_never

from msgspec.structs import replace

from dibs.adapters.sqlite.database import Database, Transaction
from dibs.core.errors import NoSuchComment, NoSuchIssue
from dibs.core.events import Reached, unwatched
from dibs.core.ids import ZERO, IssueRef, ServerTime, milliseconds, moment
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    Effect,
    LabelLook,
    PostComment,
    RemoveLabels,
)
from dibs.ports.tracker import Applies, Found, IssueQuery, OneAtATime, TrackerTraits

_SCHEMA = """
CREATE TABLE issues (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    author TEXT NOT NULL,
    open INTEGER NOT NULL DEFAULT 1,
    comment_count INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX issues_by_state ON issues (open, number);
CREATE TABLE issue_labels (
    label TEXT NOT NULL,
    open INTEGER NOT NULL,
    shelved INTEGER NOT NULL,
    number INTEGER NOT NULL REFERENCES issues (number),
    PRIMARY KEY (label, open, shelved, number)
) WITHOUT ROWID;
CREATE TABLE shelf (label TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE rests (
    number INTEGER PRIMARY KEY REFERENCES issues (number),
    until INTEGER NOT NULL,
    rules TEXT NOT NULL,
    noted_at INTEGER NOT NULL
);
CREATE INDEX rests_by_time ON rests (until);
CREATE INDEX rests_by_rules ON rests (rules);
CREATE INDEX rests_by_age ON rests (noted_at);
CREATE INDEX labels_by_issue ON issue_labels (number, label);
CREATE TABLE comments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES issues (number),
    author TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX comments_by_issue ON comments (number, id);
CREATE TABLE archive (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL REFERENCES issues (number),
    author TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX archive_by_issue ON archive (number, id);
"""

_ISSUE = "number, title, body, author, open, comment_count, created_at, updated_at"
_COMMENT = "id, author, body, created_at, updated_at"
# 1 for an issue with a label of the shelf, and 2 for one that rests.
_SHELVED = (
    "(EXISTS (SELECT 1 FROM issue_labels x JOIN shelf s ON s.label = x.label WHERE x.number = {0})"
    " + 2 * EXISTS (SELECT 1 FROM rests r WHERE r.number = {0}))"
)
_OVER = """
SELECT number FROM rests WHERE until <= :now
UNION ALL SELECT number FROM rests WHERE rules < :rules
UNION ALL SELECT number FROM rests WHERE rules > :rules
UNION ALL SELECT * FROM (
    SELECT number FROM rests WHERE noted_at <= :now - :aged ORDER BY noted_at LIMIT :checks
)
LIMIT :most
"""
_LONG_THREAD = 16
_POST = "INSERT INTO comments (number, author, body, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
_EDIT = "UPDATE comments SET body = ?, updated_at = ? WHERE id = ? AND number = ?"
_AGED_MS = 600_000
"""A rest that was noted so long ago may be ended before its time, by a search that checks it."""
_ENDED_AT_ONCE = 500
_DRIVER_SAMPLES = (10, 200)


class SqliteTracker(OneAtATime):
    def __init__(
        self, database: Database, *, author: str = "", shelf: frozenset[str] = frozenset()
    ) -> None:
        self._database = database
        self._author = author
        self.traits = TrackerTraits(
            name=f"sqlite:{database.path}",
            settle=ZERO,
            grain=timedelta(milliseconds=1),
            cheap_reads=True,
            applies=Applies.IN_ONE_STEP,
            checks_itself=True,
            keeps_rests=True,
            long_thread=_LONG_THREAD,
        )
        database.ensure("issues", _SCHEMA)
        self._extend_shelf(shelf)

    def _extend_shelf(self, wanted: frozenset[str]) -> None:
        """Add labels to the shelf. The shelf only grows: no process undoes another's settings."""
        with self._database.reading() as tx:
            if wanted <= _shelf(tx):
                return
        with self._database.writing() as tx:
            tx.sql.executemany(
                "INSERT OR IGNORE INTO shelf VALUES (?)", [(label,) for label in sorted(wanted)]
            )
            tx.sql.execute(
                f"UPDATE issue_labels SET shelved = {_SHELVED.format('issue_labels.number')}"
            )

    # Reading

    def find(self, query: IssueQuery) -> Found:
        """Find issues. If resting issues are left out, the rests that are over are ended first.

        With each search the oldest rest may end as well, and the core judges the issue again when a
        search finds the issue: hence a wrong rest ends, and the search takes no longer for it.
        """
        checks = 1
        while True:
            with self._database.reading() as tx:
                if not query.awake_by or not _rests_over(tx, query.awake_by, 1, checks):
                    statement, values = _find_statement(tx, query, _shelf(tx))
                    rows = tx.sql.execute(statement, values).fetchall()
                    page = rows[: query.limit]
                    issues = tuple(_issue_of(row, _labels(tx, row[0])) for row in page)
                    return Found(issues, moment(tx.now_ms), more=len(rows) > query.limit)
            with self._database.writing() as tx:  # a part of them: other writers want their turn
                ended = [(one,) for one in _rests_over(tx, query.awake_by, _ENDED_AT_ONCE, checks)]
                tx.sql.executemany("DELETE FROM rests WHERE number = ?", ended)
                awake = "UPDATE issue_labels SET shelved = shelved & 1 WHERE number = ?"
                tx.sql.executemany(awake, ended)
            checks = 0

    def read(self, issue: IssueRef) -> Snapshot:
        with self._database.reading() as tx:
            return _snapshot(tx, issue)

    def read_whole(self, issue: IssueRef) -> Snapshot:
        statement = f"SELECT {_COMMENT} FROM archive WHERE number = ? ORDER BY id"
        with self._database.reading() as tx:
            snapshot = _snapshot(tx, issue)
            old = [_comment_of(row) for row in tx.sql.execute(statement, (int(issue.key),))]
        comments = sorted((*old, *snapshot.comments), key=lambda comment: comment.id)
        return replace(snapshot, comments=tuple(comments))

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        states = "open IN (0, 1)" if closed_too else "open = 1"
        count = f"SELECT COUNT(*) FROM issue_labels WHERE label = ? AND {states}"
        with self._database.reading() as tx:
            return {label: tx.sql.execute(count, (label,)).fetchone()[0] for label in labels}

    # Writing

    def create(self, draft: Draft) -> Issue:
        with self._database.writing() as tx:
            number = tx.sql.execute(
                "INSERT INTO issues (title, body, author, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (draft.title, draft.body, self._author, tx.now_ms, tx.now_ms),
            ).lastrowid
            assert number is not None, "an insert hands out a number"
            _relabel(tx, number, frozenset(), draft.labels)
            return _issue(tx, IssueRef("", str(number)))

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._apply(issue, PostComment(body)).comments[-1]

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        edited = self._apply(issue, EditComment(comment, body)).comments
        return next(one for one in edited if one.id == comment)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._apply(issue, AddLabels(tuple(add)), RemoveLabels(tuple(remove)))

    def close(self, issue: IssueRef) -> None:
        self._apply(issue, CloseIssue())

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        with self._database.writing() as tx:
            number, columns = int(_issue(tx, issue).ref.key), f"number, {_COMMENT}"
            tx.seen.pop(issue, None)
            for comment in comments:
                copy = f"INSERT INTO archive ({columns}) SELECT {columns} FROM comments"
                tx.sql.execute(f"{copy} WHERE id = ? AND number = ?", (comment, number))
                gone = "DELETE FROM comments WHERE id = ? AND number = ?"
                tx.sql.execute(gone, (comment, number))
            counted = "(SELECT COUNT(*) FROM comments c WHERE c.number = issues.number)"
            tx.sql.execute(
                f"UPDATE issues SET comment_count = {counted} WHERE number = ?", (number,)
            )

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        with self._database.writing() as tx:
            seen: Snapshot | None = tx.seen.get(issue.ref)
            known, now = seen.issue if seen else _issue(tx, issue.ref), moment(tx.now_ms)
            if until <= now or _state(known) != _state(issue):
                return
            number, over_ms = int(issue.ref.key), tx.now_ms + milliseconds(until - now)
            noted = "INSERT OR REPLACE INTO rests (number, until, rules, noted_at) VALUES (?,?,?,?)"
            tx.sql.execute(noted, (number, over_ms, rules, tx.now_ms))
            marked = "UPDATE issue_labels SET shelved = shelved | 2 WHERE number = ?"
            tx.sql.execute(marked, (number,))

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        """Do nothing: labels need no preparation here."""

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,  # noqa: ARG002 - they are one step
    ) -> Snapshot | None:
        """Apply all effects in a single transaction, so that no reader sees a half-painted picture.

        Returns None, and changes nothing, if the issue differs from `if_unchanged`.
        """
        with self._database.writing() as tx:
            before = _snapshot(tx, issue)
            if if_unchanged is not None and before.issue != if_unchanged:
                return None
            return _apply(tx, before, effects, self._author)

    def _apply(self, issue: IssueRef, *effects: Effect) -> Snapshot:
        with self._database.writing() as tx:
            return _apply(tx, _snapshot(tx, issue), effects, self._author)

    def flaws(self) -> tuple[str, ...]:
        with self._database.reading() as tx:
            said = [row[0] for row in tx.sql.execute("PRAGMA quick_check(20)")]
        return tuple(line for line in said if line != "ok")


def _find_statement(
    tx: Transaction, query: IssueQuery, shelf: frozenset[str]
) -> tuple[str, list[object]]:
    """A SELECT that walks the index of the rarest label, and checks each issue for the rest."""
    after = int(query.after.key) if query.after else 0
    others: Sequence[str] = ()
    without = query.without
    if query.labels:
        states = "l.open IN (0, 1)" if query.closed_too else "l.open = 1"
        off_shelf = bool(shelf) and shelf <= set(without)
        if off_shelf:
            without = tuple(label for label in without if label not in shelf)
        wanted = [0] if off_shelf else [0, 1]
        wanted += [] if query.awake_by else [2 + one for one in wanted]
        states += f" AND l.shelved IN ({', '.join(map(str, wanted))})"
        first = _rarest(tx, query.labels, states)
        others = [label for label in query.labels if label != first]
        source = (
            "issue_labels l CROSS JOIN issues i ON i.number = l.number"
            f" WHERE l.label = ? AND {states} AND l.number > ?"
        )
        parameters: list[object] = [first, after]
    else:
        states = "i.open IN (0, 1)" if query.closed_too else "i.open = 1"
        source = f"issues i WHERE {states} AND i.number > ?"
        parameters = [after]
    columns = ", ".join(f"i.{column.strip()}" for column in _ISSUE.split(","))
    statement = f"SELECT {columns} FROM {source}"
    probe = "EXISTS (SELECT 1 FROM issue_labels x WHERE x.number = i.number AND x.label = ?)"
    statement += f" AND {probe}" * len(others) + f" AND NOT {probe}" * len(without)
    # Ordered by the index that is walked: SQLite then stops at the limit instead of sorting.
    order = "l.number" if query.labels else "i.number"
    return (
        f"{statement} ORDER BY {order} LIMIT ? OFFSET ?",
        [*parameters, *others, *without, query.limit + 1, query.skip],
    )


def _rarest(tx: Transaction, labels: Sequence[str], states: str) -> str:
    """The label with the fewest issues in these states, counted up to the largest sample."""
    some = f"SELECT 1 FROM issue_labels l WHERE l.label = ? AND {states} LIMIT ?"
    counting, rarest = f"SELECT COUNT(*) FROM ({some})", labels[0]
    for sample in _DRIVER_SAMPLES if len(labels) > 1 else ():
        counts = {one: tx.sql.execute(counting, (one, sample)).fetchone()[0] for one in labels}
        rarest, count = min(counts.items(), key=lambda counted: counted[1])
        if count < sample:
            break
    return rarest


def _labels(tx: Transaction, number: int) -> frozenset[str]:
    rows = tx.sql.execute("SELECT label FROM issue_labels WHERE number = ?", (number,))
    return frozenset(row[0] for row in rows)


def _issue_of(row: tuple[Any, ...], labels: frozenset[str]) -> Issue:
    number, title, body, author, is_open, comment_count, created_at, updated_at = row
    return Issue(
        ref=IssueRef("", str(number)),
        title=title,
        open=bool(is_open),
        labels=labels,
        comment_count=comment_count,
        created_at=moment(created_at),
        updated_at=moment(updated_at),
        body=body,
        author=author,
    )


def _state(issue: Issue) -> tuple[object, ...]:
    """What every change of an issue changes."""
    return issue.labels, issue.open, issue.updated_at, issue.comment_count


def _issue(tx: Transaction, ref: IssueRef) -> Issue:
    """Raise NoSuchIssue if the file has no such issue."""
    number = int(ref.key) if ref.key.isdigit() and len(ref.key) < 19 and not ref.repo else 0
    row = tx.sql.execute(f"SELECT {_ISSUE} FROM issues WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise NoSuchIssue(ref)
    return _issue_of(row, _labels(tx, number))


def _snapshot(tx: Transaction, ref: IssueRef) -> Snapshot:
    known: Snapshot | None = tx.seen.get(ref)
    if known is not None:
        return known
    issue = _issue(tx, ref)
    statement = f"SELECT {_COMMENT} FROM comments WHERE number = ? ORDER BY id"
    rows = tx.sql.execute(statement, (int(ref.key),))
    read = Snapshot(issue, tuple(_comment_of(row) for row in rows), moment(tx.now_ms))
    tx.seen[ref] = read
    return read


def _comment_of(row: tuple[int, str, str, int, int]) -> Comment:
    identity, author, body, created_at, updated_at = row
    return Comment(identity, body, moment(created_at), moment(updated_at), author=author)


def _apply(tx: Transaction, before: Snapshot, effects: Sequence[Effect], author: str) -> Snapshot:
    """Write each table once for all effects. Returns the issue afterwards."""
    issue, comments, now = before.issue, list(before.comments), moment(tx.now_ms)
    number, labels, is_open = int(issue.ref.key), issue.labels, issue.open
    for effect in effects:
        match effect:
            case AddLabels(added):
                labels = labels.union(added)
            case RemoveLabels(removed):
                labels = labels.difference(removed)
            case PostComment(body):
                posted = tx.sql.execute(_POST, (number, author, body, tx.now_ms, tx.now_ms))
                assert posted.lastrowid is not None, "an insert hands out an id"
                comments.append(Comment(posted.lastrowid, body, now, now, author=author))
            case EditComment(identity, body):
                edited = tx.sql.execute(_EDIT, (body, tx.now_ms, identity, number))
                if edited.rowcount == 0:
                    raise NoSuchComment(issue.ref, identity)
                comments = [
                    replace(one, body=body, updated_at=now) if one.id == identity else one
                    for one in comments
                ]
            case CloseIssue():
                is_open = False
            case _:
                assert_never(effect)
    count = issue.comment_count + len(comments) - len(before.comments)
    # An edited card, too, may end what the rest was noted for.
    rested = tx.sql.execute("DELETE FROM rests WHERE number = ?", (number,)).rowcount > 0
    states = {"was_open": issue.open, "is_open": is_open, "rested": rested}
    _relabel(tx, number, issue.labels, labels, **states)
    if (labels, is_open, count) != (issue.labels, issue.open, issue.comment_count):
        closing = "" if is_open == issue.open else ", open = 0"  # `open` is in an index
        tx.sql.execute(
            f"UPDATE issues SET comment_count = ?, updated_at = ?{closing} WHERE number = ?",
            (count, tx.now_ms, number),
        )
        issue = replace(issue, labels=labels, open=is_open, comment_count=count, updated_at=now)
    after = tx.seen[issue.ref] = Snapshot(issue, tuple(comments), now)
    return after


def _relabel(
    tx: Transaction,
    number: int,
    before: frozenset[str],
    after: frozenset[str],
    *,
    was_open: bool = True,
    is_open: bool = True,
    rested: bool = False,
) -> None:
    """Write the labels and the state into the index: shelved if a label is of the shelf, awake."""
    if (before, was_open) == (after, is_open) and not rested:
        return
    shelf = _shelf(tx)
    was_shelved, shelved = (int(not shelf.isdisjoint(labels)) for labels in (before, after))
    if gone := before - after:
        some = ", ".join("?" * len(gone))
        statement = f"DELETE FROM issue_labels WHERE number = ? AND label IN ({some})"
        tx.sql.execute(statement, (number, *gone))
    if (was_open, was_shelved, rested) != (is_open, shelved, False) and before & after:
        statement = "UPDATE issue_labels SET open = ?, shelved = ? WHERE number = ?"
        tx.sql.execute(statement, (is_open, shelved, number))
    if new := sorted(after - before):
        rows = ", ".join(["(?, ?, ?, ?)"] * len(new))
        statement = f"INSERT INTO issue_labels (label, open, shelved, number) VALUES {rows}"
        values = [value for label in new for value in (label, is_open, shelved, number)]
        tx.sql.execute(statement, values)


def _shelf(tx: Transaction) -> frozenset[str]:
    return frozenset(row[0] for row in tx.sql.execute("SELECT label FROM shelf"))


def _rests_over(tx: Transaction, rules: str, most: int, checks: int) -> list[int]:
    """Issues whose rest is over or by different rules, and `checks` issues with the oldest rests.

    Each part of the question has an index of its own.
    """
    values = {"now": tx.now_ms, "rules": rules, "most": most, "checks": checks, "aged": _AGED_MS}
    return [row[0] for row in tx.sql.execute(_OVER, values)]
