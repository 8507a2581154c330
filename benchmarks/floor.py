"""The least that leaves the same facts: two transactions of raw SQL for each issue.

The same file, tables, indexes and pragmas, the same label changes, a lease with a fence that no
other process can take, and a card that says so. Nothing is judged and nothing is built from what
was read.
"""

import random
import sqlite3
import threading
import time
from pathlib import Path

from benchmarks.crew import Start
from benchmarks.fleet import MARKS, READY, REVIEW, WORKING

_TTL_MS = 600_000
_TURN_S = (0.0005, 0.004)
_CARD = (
    "<!-- claim run={run} ttl=600s v=1 holder=floor stage=ready state={state}"
    " prev=2026-01-01T00:10:00Z {ending}fence=1 -->\n`floor` and a sentence for people."
)
_FIND = """
SELECT number FROM issue_labels WHERE label = ? AND open = 1 AND shelved = 0
ORDER BY number LIMIT 1
"""
_GRANT = """
INSERT INTO leases (repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at, beats,
    outcome, next, note, painted, revoked_by, revoked_why, revoked_now)
VALUES ('', :key, 1, :run, 'floor', 'ready', :ttl, :now, :now + :ttl, 0,
    NULL, NULL, NULL, 1, NULL, NULL, 0)
ON CONFLICT (repo, key) DO UPDATE SET fence = fence + 1, run = excluded.run,
    granted_at = excluded.granted_at, expires_at = excluded.expires_at, outcome = NULL
WHERE painted = 1 AND (outcome IS NOT NULL OR expires_at <= :now)
RETURNING fence
"""
_POST = "INSERT INTO comments (number, author, body, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
_SHELVE = "UPDATE issue_labels SET shelved = 1 WHERE number = ?"
_ADD = "INSERT INTO issue_labels (label, open, shelved, number) VALUES (?, 1, ?, ?)"
_ADD_TWO = f"{_ADD}, (?, 1, ?, ?)"
_COUNT = "UPDATE issues SET comment_count = comment_count + 1, updated_at = ? WHERE number = ?"
_END = """
UPDATE leases SET expires_at = :now, outcome = 'advanced', next = 'review', note = '', painted = 1
WHERE repo = '' AND key = :key AND run = :run AND outcome IS NULL AND expires_at > :now
"""
_EDIT = "UPDATE comments SET body = ?, updated_at = ? WHERE id = ?"
_REMOVE = "DELETE FROM issue_labels WHERE number = ? AND label IN (?, ?, ?)"
_TOUCH = "UPDATE issues SET updated_at = ? WHERE number = ?"


def claim_and_end(start: Start, place: Path) -> tuple[float, float, tuple[str, ...]]:
    """A job of a crew: when it began, when it had ended the last issue, and which issues."""
    sql = sqlite3.connect(place / ".dibs" / "backlog.db", timeout=0, isolation_level=None)
    sql.execute("PRAGMA journal_mode = WAL")
    sql.execute("PRAGMA synchronous = NORMAL")
    handled: list[str] = []
    began_at = last_at = start()
    while (number := _cycle(sql, f"{len(handled):012x}")) is not None:
        handled.append(f"#{number}")
        last_at = time.perf_counter()
    sql.close()
    return began_at, last_at, tuple(handled)


def _cycle(sql: sqlite3.Connection, run: str) -> int | None:
    _begin(sql)
    now = time.time_ns() // 1_000_000
    row = sql.execute(_FIND, (READY,)).fetchone()
    if row is None:
        sql.execute("ROLLBACK")
        return None
    number: int = row[0]
    grant = {"key": str(number), "run": run, "now": now, "ttl": _TTL_MS}
    assert sql.execute(_GRANT, grant).fetchone()
    body = _CARD.format(run=run, state="held", ending="")
    card = sql.execute(_POST, (number, "floor", body, now, now)).lastrowid
    sql.execute(_SHELVE, (number,))
    sql.execute(_ADD_TWO, (MARKS.claimed, 1, number, WORKING, 1, number))
    sql.execute(_COUNT, (now, number))
    sql.execute("COMMIT")
    _begin(sql)
    now = time.time_ns() // 1_000_000
    assert sql.execute(_END, {"key": str(number), "run": run, "now": now}).rowcount
    body = _CARD.format(run=run, state="released", ending="outcome=advanced next=review shown=1 ")
    sql.execute(_EDIT, (body, now, card))
    sql.execute(_REMOVE, (number, MARKS.claimed, WORKING, READY))
    sql.execute(_ADD, (REVIEW, 0, number))
    sql.execute(_TOUCH, (now, number))
    sql.execute("COMMIT")
    return number


def _begin(sql: sqlite3.Connection) -> None:
    """Wait for the turn as dibs does: SQLite's own waits are up to a tenth of a second."""
    while True:
        try:
            sql.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as failure:
            if failure.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            threading.Event().wait(random.uniform(*_TURN_S))
        else:
            return
