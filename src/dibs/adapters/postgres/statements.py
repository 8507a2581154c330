"""The lease table in PostgreSQL's own words: what is said to grant, renew, end, read and wait.

Four rules shape every statement here, of which three are PostgreSQL's.

A statement may wait for a row, and an UPDATE judges its WHERE *before* it waits: a row that was
only locked meanwhile is then changed on the word of an old clock, and a lease that ran out in the
queue would be renewed. ON CONFLICT DO UPDATE locks first and judges after, in WHERE and in SET. So
whatever depends on the time is said that way, with `clock_timestamp()`: `now()` would be the time
at which the transaction began.

What is read beside the row that is written comes from the statement's snapshot, which may be older
than the row. A refusal may rest on it; a grant never does. If the two disagree, we ask again.

A reading tells the time at which its transaction began, which is before its snapshot. So nobody is
told that a lease is over which was renewed in between.

The server's clock may step back, and then a lease that ran out would be live again. So whoever
grants on the end of a lease that only the clock has ended, or tells the holder of it, writes it
down: with the outcome `expired`, which is no ending, and which only the next grant takes away. A
reading writes nothing.

Names are spliced in, quoted; values never are.
"""

from psycopg import sql

from dibs.adapters.postgres.database import Statement

_TABLE = "dibs_leases"
VERSION = "dibs leases, version 1"

# Byte by byte: another collation may change its mind about equality with the next C library, and
# then its index finds a row no more, and a second one is made for the same issue.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS {leases} (
    repo text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    run text NOT NULL,
    holder text NOT NULL,
    stage text NOT NULL,
    ttl_ms bigint NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    outcome text,
    next text,
    note text,
    painted boolean NOT NULL DEFAULT true,
    revoked_by text,
    revoked_why text,
    revoked_now boolean NOT NULL DEFAULT false,
    awaited text[],
    PRIMARY KEY (repo, key)
);
CREATE INDEX IF NOT EXISTS {running} ON {leases} (expires_at) WHERE outcome IS NULL;
COMMENT ON TABLE {leases} IS {version}
"""
EXPIRED = "expired"
"""Among the outcomes: it ended without one, whatever the clock says from now on."""
_COLUMNS = (
    *("repo", "key", "fence", "run", "holder", "stage", "ttl_ms", "granted_at", "expires_at"),
    *("beats", "outcome", "next", "note", "painted", "revoked_by", "revoked_why", "revoked_now"),
)
OUTCOME_AT = _COLUMNS.index("outcome")
# $1 the table, $2 its schema, both as they are spelt in a statement.
_INSPECT = """
SELECT to_regclass($1::text) IS NOT NULL, obj_description(to_regclass($1::text), 'pg_class'),
       to_regnamespace($2::text) IS NOT NULL
"""
# Two who make the tables at once would trip over each other in the catalogue.
_TURN_TO_MAKE = "SELECT pg_advisory_xact_lock(1684628083, 0)"

# The server's timeline is one higher after each promotion of a standby and each recovery to a point
# in the past, which are the two ways in which a server forgets what it has granted. Fences begin
# anew with it, above whatever may have been forgotten. The first timeline begins at 0. Its number
# is the first eight hexadecimal digits of the name of the log's current file.
_EPOCH_BEGINS = """
((('x' || pg_walfile_name(pg_current_wal_lsn()))::bit(32)::bigint - 1) << 32)
"""

# $1 repo, $2 key, $3 run, $4 holder, $5 stage, $6 ttl, $7 floor; {fits}: what else must be true.
# Who is refused by what the snapshot shows changes nothing and locks nothing: a crowd that asks
# for a held issue neither writes nor gets in the way of its holder. The grant judges again, by the
# row it has locked. It takes its time once, in a subquery, so that the lease is a ttl long; the
# time of a row that is new is taken earlier, before a wait for somebody who inserts it too and
# gives up, and then the lease is over earlier, never later, than its holder believes.
_ACQUIRE = """
WITH standing AS MATERIALIZED (
    SELECT {columns}, statement_timestamp() AS as_of FROM {leases} WHERE repo = $1 AND key = $2
){in_flight}, granted AS (
    INSERT INTO {leases} AS l
        (repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at)
    SELECT $1, $2, GREATEST($7::bigint, {epoch}) + 1, $3, $4, $5, $6::bigint,
           t, t + $6::bigint * interval '1 millisecond'
    FROM clock_timestamp() AS t
    WHERE NOT EXISTS (
        SELECT FROM standing WHERE NOT painted OR outcome IS NULL AND expires_at > as_of
    ){fits}
    ON CONFLICT (repo, key) DO UPDATE SET
        fence = GREATEST(l.fence + 1, excluded.fence),
        run = excluded.run, holder = excluded.holder, stage = excluded.stage,
        ttl_ms = excluded.ttl_ms,
        (granted_at, expires_at) = (
            SELECT t, t + excluded.ttl_ms * interval '1 millisecond' FROM clock_timestamp() AS t
        ),
        beats = 0, outcome = NULL, next = NULL, note = NULL, painted = true,
        revoked_by = NULL, revoked_why = NULL, revoked_now = false, awaited = l.awaited[2:]
    WHERE l.painted AND (l.outcome IS NOT NULL OR l.expires_at <= clock_timestamp())
    RETURNING l.fence, l.granted_at, l.expires_at
)
SELECT {count}, granted.fence, granted.granted_at, granted.expires_at, standing.*
FROM (SELECT) AS answer LEFT JOIN granted ON true
LEFT JOIN standing ON granted.fence IS NULL
"""
_IN_FLIGHT = """, in_flight AS MATERIALIZED (
    SELECT count(*) AS n FROM {leases}
    WHERE outcome IS NULL AND expires_at > now() AND stage = $5
)"""
_FITS = " AND (SELECT n FROM in_flight) < $8::bigint"
# Bids with a limit on one stage take turns: each counts what the one before it was granted.
_TURN_TO_COUNT = "SELECT pg_advisory_xact_lock({literal}::regclass::oid::integer, $1::integer)"
# What is not counted must not come back. A renewal that was made in time and is not committed yet
# still shows as a lease that is over: this waits for it, and judges it again. What runs out after
# this and before the count is counted: see `now()` there. What ran out more than a day ago is not
# looked at: a table may have any number of such rows when its first limit is set.
_SETTLE = """
UPDATE {leases} SET outcome = 'expired'
WHERE outcome IS NULL AND stage = $1 AND expires_at <= statement_timestamp()
    AND expires_at > statement_timestamp() - interval '1 day'
"""

# Whoever holds the row is found, locked and then judged: see the top.
_LOCKED = """
INSERT INTO {leases} AS l ({columns})
SELECT {columns} FROM {leases} WHERE repo = $1 AND key = $2 AND run = $3
ON CONFLICT (repo, key) DO UPDATE SET """
# One look at the clock for the whole row.
_JUDGED = """(
            SELECT t, l.outcome IS NULL AND l.expires_at > t AS live FROM clock_timestamp() AS t
        ) AS judged"""
# $4 is 1 and $5 is 0; or, sent again after a lost reply, 0 and the beat that was meant.
_RENEW = """
    (expires_at, beats, outcome) = (
        SELECT
            CASE WHEN live AND l.revoked_by IS NULL
                THEN t + l.ttl_ms * interval '1 millisecond' ELSE l.expires_at END,
            CASE WHEN live AND l.revoked_by IS NULL
                THEN GREATEST(l.beats + $4::bigint, $5::bigint) ELSE l.beats END,
            CASE WHEN NOT live THEN 'expired' END
        FROM {judged}
    )
WHERE l.run = $3 AND l.outcome IS NULL
RETURNING {of_l}, clock_timestamp()
"""
# A row that has its ending already is written as it is, so that it comes back: a retry.
_RELEASE = """
    (expires_at, outcome, next, note, painted) = (
        SELECT
            CASE WHEN live THEN t ELSE l.expires_at END,
            CASE WHEN live THEN $4 ELSE COALESCE(l.outcome, 'expired') END,
            CASE WHEN live THEN $5 ELSE l.next END,
            CASE WHEN live THEN $6 ELSE l.note END,
            CASE WHEN live THEN $7::boolean ELSE l.painted END
        FROM {judged}
    )
WHERE l.run = $3 AND l.outcome IS DISTINCT FROM 'expired'
RETURNING {of_l}, clock_timestamp(), {wake}
"""
# $7: it was sent before, and a lease that this very revoke has ended is the one that is meant.
_REVOKE = """
    (revoked_by, revoked_why, revoked_now, expires_at, outcome) = (
        SELECT
            CASE WHEN live THEN $4 ELSE l.revoked_by END,
            CASE WHEN live THEN $5 ELSE l.revoked_why END,
            CASE WHEN live THEN $6::boolean ELSE l.revoked_now END,
            CASE WHEN live AND $6::boolean THEN t ELSE l.expires_at END,
            CASE WHEN NOT live OR $6::boolean THEN 'expired' END
        FROM {judged}
    )
WHERE l.run = $3 AND (l.outcome IS NULL
    OR $7::boolean AND l.outcome = 'expired' AND l.revoked_now
        AND (l.revoked_by, l.revoked_why) = ($4, $5))
RETURNING {of_l}, clock_timestamp(), CASE WHEN $6::boolean THEN {wake} END
"""
_ACKNOWLEDGE = """
UPDATE {leases} AS l SET painted = true
WHERE repo = $1 AND key = $2 AND run = $3 AND outcome IS NOT NULL AND NOT painted
RETURNING {wake}
"""
_READ = "SELECT {columns}, now() FROM {leases} WHERE repo = $1 AND key = $2"
_LIVE = """
SELECT {columns}, now() FROM {leases}
WHERE outcome IS NULL AND expires_at > now() AND ($1::text IS NULL OR stage = $1::text)
ORDER BY granted_at, repo, key LIMIT $2::bigint
"""
_HIGHEST = "SELECT COALESCE(MAX(fence), 0) FROM {leases}"

# Who waits is named in the row, and only the first of them is told: a NOTIFY holds up all commits
# of the server that notify, and a crowd that is woken asks all at once. The next grant takes the
# first name off; who was woken and came too late queues again.
_WAKE = "CASE WHEN l.awaited[1] IS NOT NULL THEN pg_notify(l.awaited[1], '') IS NULL END"
_AWAIT = """
UPDATE {leases} SET awaited = CASE
    WHEN $3 = ANY (awaited) OR cardinality(awaited) >= $4::integer THEN awaited
    ELSE array_append(awaited, $3) END
WHERE repo = $1 AND key = $2
    AND (outcome IS NULL AND expires_at > clock_timestamp() OR NOT painted)
RETURNING true
"""
_LEAVE = """
UPDATE {leases} SET awaited = array_remove(awaited, $3)
WHERE repo = $1 AND key = $2 AND $3 = ANY (awaited)
"""


class LeaseStatements:
    """What is said about one table."""

    def __init__(self, namespace: str | None, *, epochs: bool = True) -> None:
        place = (namespace, _TABLE) if namespace is not None else (_TABLE,)
        leases = sql.Identifier(*place)
        schema = sql.Identifier(namespace) if namespace is not None else None
        self.table = leases.as_string(None)
        self.inspected = (
            self.table.encode(),
            schema.as_string(None).encode() if schema is not None else None,
        )
        self._words = {
            "leases": leases,
            "literal": sql.Literal(self.table),
            "running": sql.Identifier(f"{_TABLE}_running"),
            "version": sql.Literal(VERSION),
            "schema": schema or sql.SQL(""),
            "columns": sql.SQL(", ").join(map(sql.Identifier, _COLUMNS)),
            "of_l": sql.SQL(", ").join(sql.Identifier("l", column) for column in _COLUMNS),
            "wake": sql.SQL(_WAKE),
            "judged": sql.SQL(_JUDGED),
            "epoch": sql.SQL(_EPOCH_BEGINS if epochs else "0"),
        }
        self.epoch = self._statement("SELECT {epoch}")
        self.inspect = self._statement(_INSPECT)
        self.acquire = self._acquire("acquire", in_flight="", fits="", count="NULL")
        self.acquire_counted = self._acquire(
            "", in_flight=_IN_FLIGHT, fits=_FITS, count="(SELECT n FROM in_flight)"
        )
        self.turn_to_count = self._statement(_TURN_TO_COUNT)
        self.settle = self._statement(_SETTLE)
        self.renew = self._statement(_LOCKED + _RENEW, "renew")
        self.release = self._statement(_LOCKED + _RELEASE, "release")
        self.revoke = self._statement(_LOCKED + _REVOKE)
        self.acknowledge = self._statement(_ACKNOWLEDGE, "acknowledge")
        self.read = self._statement(_READ, "read")
        # Not kept: a plan from the time when the table was small would read all of it for ever.
        self.live = self._statement(_LIVE)
        self.highest = self._statement(_HIGHEST)
        self.await_end = self._statement(_AWAIT, "await_end")
        self.leave = self._statement(_LEAVE)

    def making(self, *, with_schema: bool) -> list[Statement]:
        words = [_TURN_TO_MAKE, *_SCHEMA.split(";")]
        if with_schema and self.inspected[1] is not None:
            words.insert(1, "CREATE SCHEMA IF NOT EXISTS {schema}")
        return [self._statement(statement) for statement in words]

    def _acquire(self, name: str, *, in_flight: str, fits: str, count: str) -> Statement:
        parts = {
            "in_flight": sql.SQL(in_flight).format(**self._words),
            "fits": sql.SQL(fits),
            "count": sql.SQL(count),
        }
        return _statement(sql.SQL(_ACQUIRE).format(**self._words, **parts), name)

    def _statement(self, template: str, name: str = "") -> Statement:
        return _statement(sql.SQL(template).format(**self._words), name)


def _statement(composed: sql.Composed, name: str) -> Statement:
    return Statement(composed.as_bytes(None), f"dibs_{name}".encode() if name else b"")
