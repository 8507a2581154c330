"""The SQL of the lease table: how leases are granted, renewed, ended, read and waited for.

Five rules shape every statement here. The first three follow from how PostgreSQL works.

1. A statement may have to wait for a row, and an UPDATE evaluates its WHERE *before* it waits. If
   the other transaction only locked the row, the UPDATE then changes it by an old reading of the
   clock, and would renew a lease that ran out during the wait. ON CONFLICT DO UPDATE locks first
   and evaluates afterwards, in WHERE and in SET. So every condition on the time is written in that
   form, with `clock_timestamp()`; `now()` would be the time at which the transaction began.

2. Rows that a statement reads beside the row it writes come from the statement's snapshot, which
   may be older than the written row. A refusal may rest on the snapshot; a grant never does. If the
   snapshot and the written row disagree, the client asks again.

3. A reading reports the time at which its transaction began, which is before its snapshot. So no
   reader sees a lease as over that was renewed in between.

4. The server's clock may step back, and a lease that ran out would then be live again. So a
   statement that grants over such an expiry, or reports it to the holder, stores the outcome
   `expired`. That outcome is no ending, and only the next grant removes it. A reading writes
   nothing.

5. With `synchronous_commit = off` a server that crashes forgets writes which it has answered, and
   would give the next bidder the same fence. So a statement that grants, renews, ends or revokes
   turns the setting on for its own transaction.

Names are spliced into the SQL, quoted; values never are.
"""

from psycopg import sql

from dibs.adapters.postgres.database import Statement

_TABLE = "dibs_leases"
VERSION = "dibs leases, version 1"

# COLLATE "C" compares byte by byte. Another collation may change with the next C library; its index
# would then miss an existing row, and the same issue would get a second row.
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
_COLUMNS = (
    *("repo", "key", "fence", "run", "holder", "stage", "ttl_ms", "granted_at", "expires_at"),
    *("beats", "outcome", "next", "note", "painted", "revoked_by", "revoked_why", "revoked_now"),
)
OUTCOME_AT = _COLUMNS.index("outcome")
# $1 the table, $2 its schema, both quoted as in a statement.
_INSPECT = """
SELECT to_regclass($1::text) IS NOT NULL, obj_description(to_regclass($1::text), 'pg_class'),
       to_regnamespace($2::text) IS NOT NULL
"""
# Two clients that make the table at the same time would collide in the catalogue.
_TURN_TO_MAKE = "SELECT pg_advisory_xact_lock(1684628083, 0)"

# The server's timeline is one higher after each promotion of a standby and each recovery to a point
# in the past. These are the two ways in which a server forgets grants. Each timeline gives fences a
# new floor, above every fence that may have been forgotten; the first timeline's floor is 0. The
# number of the timeline is the first eight hexadecimal digits of the name of the current log file.
_EPOCH_BEGINS = """
((('x' || pg_walfile_name(pg_current_wal_lsn()))::bit(32)::bigint - 1) << 32)
"""

# Rule 5. A subquery of its own is evaluated once, before the rows that the statement would write.
# Stronger settings than `on` stay. Set for the transaction only, so a pooler's server is as before.
_LASTING = """
(SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
    THEN set_config('synchronous_commit', 'on', true) ELSE '' END) IS NOT NULL
"""

# $1 repo, $2 key, $3 run, $4 holder, $5 stage, $6 ttl, $7 floor; {fits}: a further condition.
# If the snapshot already refuses the bid, the statement changes nothing and locks nothing: a crowd
# that asks for a held issue neither writes nor delays the holder. Otherwise the grant evaluates
# again, by the row it has locked. It reads the clock once, in a subquery, so that the lease is
# exactly a ttl long. For a new row the clock is read earlier, before a possible wait for another
# transaction that inserts the same row and then rolls back; the lease then ends earlier, never
# later, than its holder believes.
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
    ) AND {lasting}{fits}
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
# Bids with a limit on one stage take turns: each bid counts the grants of the bids before it.
_TURN_TO_COUNT = "SELECT pg_advisory_xact_lock({literal}::regclass::oid::integer, $1::integer)"
# A lease that the count leaves out must not become live again. A renewal that was made in time but
# is not committed yet still shows the lease as over: this UPDATE waits for the renewal and then
# evaluates the row again. A lease that runs out after this UPDATE and before the count is counted,
# because the count uses `now()`. Leases that ran out more than a day ago are not looked at: a table
# may have any number of such rows when its first limit is set.
_SETTLE = """
UPDATE {leases} SET outcome = 'expired'
WHERE outcome IS NULL AND stage = $1 AND expires_at <= statement_timestamp()
    AND expires_at > statement_timestamp() - interval '1 day'
"""

# Finds the run's row, locks it and then evaluates it: see rule 1.
_LOCKED = """
INSERT INTO {leases} AS l ({columns})
SELECT {columns} FROM {leases} WHERE repo = $1 AND key = $2 AND run = $3 AND {lasting}
ON CONFLICT (repo, key) DO UPDATE SET """
# Reads the clock once for the whole row.
_JUDGED = """(
            SELECT t, l.outcome IS NULL AND l.expires_at > t AS live FROM clock_timestamp() AS t
        ) AS judged"""
# $4 is 1 and $5 is 0. Sent again after a lost reply, $4 is 0 and $5 is the intended beat.
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
# A row that already has an ending is written unchanged, so that a retry gets the row back.
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
# $7: the statement was sent before, so a lease that this same revoke has ended matches as well.
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

# The row lists the waiters' channels, and only the first waiter is notified: a NOTIFY delays all
# other commits on the server that notify, and a woken crowd would ask all at once. The next grant
# removes the first channel; a waiter that was woken and came too late queues again.
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
    """The statements for the lease table of a namespace."""

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
            "lasting": sql.SQL(_LASTING),
            "epoch": sql.SQL(_EPOCH_BEGINS if epochs else "0"),
        }
        self.epoch = self._statement("SELECT {epoch}")
        self.fsync = self._statement("SELECT current_setting('fsync')")
        self.inspect = self._statement(_INSPECT)
        plain = {"in_flight": "", "fits": "", "count": "NULL"}
        self.acquire = self._statement(_ACQUIRE, "acquire", **plain)
        counted = {"in_flight": _IN_FLIGHT, "fits": _FITS, "count": "(SELECT n FROM in_flight)"}
        self.acquire_counted = self._statement(_ACQUIRE, **counted)
        self.turn_to_count = self._statement(_TURN_TO_COUNT)
        self.settle = self._statement(_SETTLE)
        self.renew = self._statement(_LOCKED + _RENEW, "renew")
        self.release = self._statement(_LOCKED + _RELEASE, "release")
        self.revoke = self._statement(_LOCKED + _REVOKE)
        self.acknowledge = self._statement(_ACKNOWLEDGE, "acknowledge")
        self.read = self._statement(_READ, "read")
        # No name, so no plan is kept: a plan that was made while the table was small would read the
        # whole table for ever.
        self.live = self._statement(_LIVE)
        self.highest = self._statement(_HIGHEST)
        self.await_end = self._statement(_AWAIT, "await_end")
        self.leave = self._statement(_LEAVE)

    def making(self, *, with_schema: bool) -> list[Statement]:
        words = [_TURN_TO_MAKE, *_SCHEMA.split(";")]
        if with_schema and self.inspected[1] is not None:
            words.insert(1, "CREATE SCHEMA IF NOT EXISTS {schema}")
        return [self._statement(statement) for statement in words]

    def _statement(self, template: str, name: str = "", **parts: str) -> Statement:
        words = {part: sql.SQL(text).format(**self._words) for part, text in parts.items()}
        composed = sql.SQL(template).format(**self._words, **words)
        return Statement(composed.as_bytes(None), f"dibs_{name}".encode() if name else b"")
