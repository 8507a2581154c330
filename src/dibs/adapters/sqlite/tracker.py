"""The embedded default: a tracker in one SQLite file, shared by any number of processes.

Timestamps come from the database, and ids only grow. A scan walks an index of open issues by label,
so its cost depends on the issues it returns and not on the size of the backlog. The labels that
keep workers off are the *shelf*: issues that carry such a label stand apart in that index and cost
a scan nothing. So do issues that rest, until their rest is over or the issue changes.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, assert_never

from msgspec.structs import replace

from dibs.adapters.sqlite.database import Database, Transaction
from dibs.core.errors import NoSuchComment, NoSuchIssue
from dibs.core.events import Reached, unwatched
from dibs.core.ids import ZERO, IssueRef, ServerTime, milliseconds, moment
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels
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
_AGED_MS = 600_000
"""A rest that was noted so long ago may be ended before its time, by a search that checks it."""
_ENDED_AT_ONCE = 500
_REST = """
INSERT OR REPLACE INTO rests (number, until, rules, noted_at)
SELECT number, ?, ?, ? FROM issues WHERE number = ? AND updated_at = ? AND comment_count = ?
"""
_DRIVER_SAMPLE = 200


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
                for number in _rests_over(tx, query.awake_by, _ENDED_AT_ONCE, checks):
                    _wake(tx, number)
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
            _add_labels(tx, number, sorted(draft.labels))
            return _issue(tx, IssueRef("", str(number)))

    def comment(self, issue: IssueRef, body: str) -> Comment:
        with self._database.writing() as tx:
            return _comment(tx, _post(tx, _number(tx, issue), self._author, body))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        with self._database.writing() as tx:
            _edit(tx, _number(tx, issue), comment, body, issue)
            return _comment(tx, comment)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        with self._database.writing() as tx:
            number = _number(tx, issue)
            _add_labels(tx, number, add)
            _remove_labels(tx, number, remove)

    def close(self, issue: IssueRef) -> None:
        with self._database.writing() as tx:
            _close(tx, _number(tx, issue))

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        with self._database.writing() as tx:
            number, columns = _number(tx, issue), f"number, {_COMMENT}"
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
            now, number = moment(tx.now_ms), int(issue.ref.key)
            if until <= now or _labels(tx, number) != issue.labels:
                return
            noted = (tx.now_ms + milliseconds(until - now), rules, tx.now_ms)
            seen = (number, tx.now_ms - milliseconds(now - issue.updated_at), issue.comment_count)
            if tx.sql.execute(_REST, (*noted, *seen)).rowcount:
                marked = "UPDATE issue_labels SET shelved = shelved | 2 WHERE number = ?"
                tx.sql.execute(marked, (number,))

    def prepare(self, labels: Sequence[str]) -> None:
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
            number = _number(tx, issue)
            if if_unchanged is not None and _issue(tx, issue) != if_unchanged:
                return None
            for effect in effects:
                match effect:
                    case AddLabels(labels):
                        _add_labels(tx, number, labels)
                    case RemoveLabels(labels):
                        _remove_labels(tx, number, labels)
                    case PostComment(body):
                        _post(tx, number, self._author, body)
                    case EditComment(comment, body):
                        _edit(tx, number, comment, body, issue)
                    case CloseIssue():
                        _close(tx, number)
                    case _:
                        assert_never(effect)
            return _snapshot(tx, issue)

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
        first, *others = query.labels
        if others:
            first, *others = sorted(query.labels, key=lambda label: _rarity(tx, label))
        states = "l.open IN (0, 1)" if query.closed_too else "l.open = 1"
        off_shelf = bool(shelf) and shelf <= set(without)
        if off_shelf:
            without = tuple(label for label in without if label not in shelf)
        wanted = [0] if off_shelf else [0, 1]
        wanted += [] if query.awake_by else [2 + one for one in wanted]
        states += f" AND l.shelved IN ({', '.join(map(str, wanted))})"
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


def _rarity(tx: Transaction, label: str) -> int:
    """The number of open issues with the label, counted up to `_DRIVER_SAMPLE`."""
    some = "SELECT 1 FROM issue_labels WHERE label = ? AND open = 1 LIMIT ?"
    counted = tx.sql.execute(f"SELECT COUNT(*) FROM ({some})", (label, _DRIVER_SAMPLE))
    return int(counted.fetchone()[0])


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


def _issue(tx: Transaction, ref: IssueRef) -> Issue:
    row = tx.sql.execute(
        f"SELECT {_ISSUE} FROM issues WHERE number = ?", (_number(tx, ref),)
    ).fetchone()
    return _issue_of(row, _labels(tx, row[0]))


def _number(tx: Transaction, ref: IssueRef) -> int:
    """The issue's number. Raise NoSuchIssue if the file has no such issue."""
    number = int(ref.key) if ref.key.isdigit() and len(ref.key) < 19 and not ref.repo else 0
    if not tx.sql.execute("SELECT 1 FROM issues WHERE number = ?", (number,)).fetchone():
        raise NoSuchIssue(ref)
    return number


def _snapshot(tx: Transaction, ref: IssueRef) -> Snapshot:
    issue = _issue(tx, ref)
    statement = f"SELECT {_COMMENT} FROM comments WHERE number = ? ORDER BY id"
    rows = tx.sql.execute(statement, (int(ref.key),))
    return Snapshot(issue, tuple(_comment_of(row) for row in rows), moment(tx.now_ms))


def _comment_of(row: tuple[int, str, str, int, int]) -> Comment:
    identity, author, body, created_at, updated_at = row
    return Comment(identity, body, moment(created_at), moment(updated_at), author=author)


def _comment(tx: Transaction, identity: int) -> Comment:
    statement = f"SELECT {_COMMENT} FROM comments WHERE id = ?"
    return _comment_of(tx.sql.execute(statement, (identity,)).fetchone())


def _post(tx: Transaction, number: int, author: str, body: str) -> int:
    identity = tx.sql.execute(
        "INSERT INTO comments (number, author, body, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?)",
        (number, author, body, tx.now_ms, tx.now_ms),
    ).lastrowid
    tx.sql.execute(
        "UPDATE issues SET comment_count = comment_count + 1, updated_at = ? WHERE number = ?",
        (tx.now_ms, number),
    )
    _wake(tx, number)
    assert identity is not None, "an insert hands out an id"
    return identity


def _edit(tx: Transaction, number: int, comment: int, body: str, ref: IssueRef) -> None:
    changed = tx.sql.execute(
        "UPDATE comments SET body = ?, updated_at = ? WHERE id = ? AND number = ?",
        (body, tx.now_ms, comment, number),
    )
    if changed.rowcount == 0:
        raise NoSuchComment(ref, comment)


def _add_labels(tx: Transaction, number: int, labels: Sequence[str]) -> None:
    probe = "SELECT 1 FROM issue_labels WHERE number = ? AND label = ?"
    for label in labels:
        if tx.sql.execute(probe, (number, label)).fetchone() is not None:
            continue
        added = tx.sql.execute(
            "INSERT INTO issue_labels (label, open, shelved, number)"
            " SELECT ?, open, 0, number FROM issues WHERE number = ?",
            (label, number),
        )
        _touch(tx, number, added)
    _shelve(tx, number)


def _remove_labels(tx: Transaction, number: int, labels: Sequence[str]) -> None:
    for label in labels:
        removed = tx.sql.execute(
            "DELETE FROM issue_labels WHERE number = ? AND label = ?", (number, label)
        )
        _touch(tx, number, removed)
    _shelve(tx, number)


def _shelve(tx: Transaction, number: int) -> None:
    """Mark the issue's index entries: whether it carries a label of the shelf, and rests."""
    shelved = tx.sql.execute(f"SELECT {_SHELVED.format('?1')}", (number,)).fetchone()[0]
    tx.sql.execute(
        "UPDATE issue_labels SET shelved = ? WHERE number = ? AND shelved <> ?",
        (shelved, number, shelved),
    )


def _shelf(tx: Transaction) -> frozenset[str]:
    return frozenset(row[0] for row in tx.sql.execute("SELECT label FROM shelf"))


def _close(tx: Transaction, number: int) -> None:
    closed = tx.sql.execute("UPDATE issues SET open = 0 WHERE number = ? AND open = 1", (number,))
    tx.sql.execute("UPDATE issue_labels SET open = 0 WHERE number = ? AND open = 1", (number,))
    _touch(tx, number, closed)


def _touch(tx: Transaction, number: int, change: sqlite3.Cursor) -> None:
    """Set `updated_at`, and end a rest, if the change had any effect."""
    if change.rowcount:
        tx.sql.execute("UPDATE issues SET updated_at = ? WHERE number = ?", (tx.now_ms, number))
        _wake(tx, number)


def _wake(tx: Transaction, number: int) -> None:
    """End the issue's rest, if it has one."""
    if tx.sql.execute("DELETE FROM rests WHERE number = ?", (number,)).rowcount:
        _shelve(tx, number)


def _rests_over(tx: Transaction, rules: str, most: int, checks: int) -> list[int]:
    """Issues whose rest is over or by different rules, and `checks` issues with the oldest rests.

    Each part of the question has an index of its own.
    """
    values = {"now": tx.now_ms, "rules": rules, "most": most, "checks": checks, "aged": _AGED_MS}
    return [row[0] for row in tx.sql.execute(_OVER, values)]
