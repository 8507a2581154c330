"""What only PostgreSQL has: isolation levels, poolers, waits for a row, roles, plans and NOTIFY."""

import itertools
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace
from psycopg import sql
from tests.servers.pooler import TransactionPooler
from tests.servers.postgres import Postgres, postgres
from tests.servers.process import wait_until
from tests.servers.relay import Relay

from dibs.adapters.postgres.database import Statement
from dibs.adapters.postgres.leases import PostgresLeases, _lock_number
from dibs.adapters.system import SystemClock
from dibs.core.errors import Damaged, Misuse, NotPermitted, Unavailable
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import (
    Bid,
    Busy,
    Ending,
    Full,
    Granted,
    Lost,
    Outcome,
    Released,
    Renewed,
    Revocation,
    StopAsked,
)
from dibs.ports.leases import Guarantee, Waking
from dibs.testing.conformance import LEASE_CHECKS, NotApplicable
from dibs.testing.conformance.leases import (
    a_crowd_never_exceeds_a_limit,
    a_crowd_never_holds_twice,
    any_sequence_of_calls_is_answered_rightly,
    nobody_sees_half_a_grant,
)

from .postgres_harness import PostgresHarness, outwait

CONCEDED = Ending(Outcome.CONCEDED)
ADVANCED = Ending(Outcome.ADVANCED, StageName("review"), "it works")
LONG = timedelta(minutes=5)
SHORT = timedelta(seconds=0.5)
ISSUE = IssueRef("acme/app", "7")
LEVELS = ("read committed", "repeatable read", "serializable")
_TURN = "SELECT pg_advisory_xact_lock(%s::regclass::oid::integer, %s)"
_KEPT = Statement(b"SELECT name FROM pg_prepared_statements ORDER BY name")
_CHANNELS = Statement(b"SELECT pg_listening_channels()")
_names = (f"store_{os.getpid()}_{number}" for number in itertools.count(1))


@pytest.fixture
def server():
    return postgres()


@pytest.fixture
def name():
    return next(_names)


@pytest.fixture
def admin(server):
    with closing(psycopg.connect(server.url(), autocommit=True)) as connection:
        yield connection


@pytest.fixture
def stores(server, name):
    """Opens clients of one store, which is new and empty."""
    with ExitStack() as opened:

        def client(options="timeout=20", url=None):
            place = url or server.url()
            store = PostgresLeases.connect(f"{place}?namespace={name}&{options}")
            return opened.enter_context(closing(store))

        yield client


@pytest.fixture
def store(stores):
    return stores()


@pytest.fixture
def database(admin, name, server):
    """A database of its own, for settings that concern a whole one."""
    admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield server.url(database=name)
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def pooler(server):
    with TransactionPooler(server.port) as pooler:
        yield pooler


@pytest.fixture
def threads():
    with ThreadPoolExecutor(16) as pool:
        yield pool


def bid(run, ttl=LONG, *, issue=ISSUE, stage="ready", limit=None, holder="worker"):
    return Bid(issue, RunId(run), HolderId(holder), StageName(stage), ttl, limit=limit)


def hold(store, run, ttl=LONG, **words):
    granted = store.acquire(bid(run, ttl, **words))
    assert isinstance(granted, Granted), granted
    return granted.lease


def connected(store):
    """However long a busy machine takes for it: a short timeout is for what comes then."""
    wait_until(lambda: store.highest() >= 0, "the store is connected")
    return store


def is_stuck(admin, on="Lock"):
    """Whether a statement of a store waits for somebody else's lock."""
    return admin.execute(
        "SELECT EXISTS (SELECT FROM pg_stat_activity"
        " WHERE application_name = 'dibs' AND wait_event_type = %s)",
        (on,),
    ).fetchone()[0]


@contextmanager
def holding_the_row(server, name, *, change="SELECT FROM {} FOR UPDATE"):
    """Somebody else's transaction, open until the block ends."""
    with closing(psycopg.connect(server.url())) as foreign:
        foreign.execute(sql.SQL(change).format(sql.Identifier(name, "dibs_leases")))
        yield
        foreign.commit()


# Isolation


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "check",
    [
        a_crowd_never_holds_twice,
        nobody_sees_half_a_grant,
        a_crowd_never_exceeds_a_limit,
        any_sequence_of_calls_is_answered_rightly,
    ],
    ids=lambda check: check.__name__,
)
def test_whatever_isolation_a_database_defaults_to(server, admin, database, name, level, check):
    _set_isolation(admin, name, level)
    with ExitStack() as opened:
        check(_Elsewhere(database, opened))


def _set_isolation(admin, database, level):
    setting = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
    admin.execute(setting.format(sql.Identifier(database), sql.Literal(level)))


class _Elsewhere(PostgresHarness):
    """The usual harness, on another URL."""

    sequences = 1

    def __init__(self, url, opened):
        self._elsewhere = url
        super().__init__(postgres(), opened)

    def open(self, url=""):
        del url
        return super().open(f"{self._elsewhere}?timeout=20")


# A clock that steps back


def step_back(admin, name):
    """What the server holds after its clock went back an hour: times that are yet to come."""
    table = sql.Identifier(name, "dibs_leases")
    admin.execute(
        sql.SQL("UPDATE {} SET expires_at = expires_at + interval '1 hour'").format(table)
    )


def told_by_renewal(store, lease):
    return isinstance(store.renew(lease), Lost)


def told_by_release(store, lease):
    return isinstance(store.release(lease, CONCEDED), Lost)


def told_by_revoke(store, lease):
    return store.revoke(ISSUE, Revocation(lease.run, "ada", "too late")) is None


def told_by_forced_revoke(store, lease):
    return store.revoke(ISSUE, Revocation(lease.run, "ada", "too late", force=True)) is None


def told_by_a_count(store, lease):
    del lease
    following = store.acquire(bid("n", issue=IssueRef("", "next"), limit=1))
    return isinstance(following, Granted)


@pytest.mark.parametrize(
    "told",
    [told_by_renewal, told_by_release, told_by_revoke, told_by_forced_revoke, told_by_a_count],
)
def test_what_was_told_to_be_over_stays_over_when_the_clock_steps_back(store, admin, name, told):
    lease = hold(store, "a", timedelta(milliseconds=1))
    wait_until(lambda: not store.read(ISSUE).live, "it expired")
    assert told(store, lease)
    step_back(admin, name)
    seen = store.read(ISSUE)
    assert (seen.live, seen.ending, seen.revocation, seen.lease.run) == (False, None, None, "a")
    assert isinstance(store.renew(lease), Lost)
    assert isinstance(store.release(lease, CONCEDED), Lost)
    assert store.revoke(ISSUE, Revocation(lease.run, "ada", "", force=True)) is None
    assert "a" not in {record.lease.run for record in store.live()}
    after = hold(store, "b")
    assert after.fence > lease.fence
    assert isinstance(store.renew(after), Renewed)
    assert isinstance(store.release(after, ADVANCED), Released)


def test_what_was_ended_by_force_stays_over_when_the_clock_steps_back(store, admin, name):
    lease = hold(store, "a")
    forced = Revocation(lease.run, "ada", "now", force=True)
    assert store.revoke(ISSUE, forced).revocation == forced
    step_back(admin, name)
    seen = store.read(ISSUE)
    assert (seen.live, seen.ending, seen.revocation) == (False, None, forced)
    assert isinstance(store.renew(lease), Lost)
    assert store.revoke(ISSUE, forced) is None
    hold(store, "b")


# Poolers


@pytest.mark.parametrize(
    "check",
    [check for check in LEASE_CHECKS if check.proves != Guarantee.DURABLE],
    ids=str,
)
def test_behind_a_transaction_pooler_everything_is_as_without(server, pooler, name, check):
    class Pooled(PostgresHarness):
        sequences = 1

        def open(self, url=""):
            return super().open(url or pooler.url(f"namespace={name}&timeout=20"))

    with ExitStack() as opened:
        try:
            check(Pooled(server, opened))
        except NotApplicable:
            if not check.optional:
                raise
    assert pooler.served > 0


def test_plans_are_kept_only_where_no_pooler_is_in_between(pooler, stores, admin, name):
    direct, pooled = stores(), stores(url=pooler.url())
    for store in (direct, pooled):
        for turn in range(10):
            store.release(hold(store, f"{id(store)}-{turn}"), CONCEDED)
    (kept,) = direct._database._idle
    assert [plan for (plan,) in kept.ask(_KEPT)] == [b"dibs_acquire", b"dibs_release"]
    (kept,) = pooled._database._idle
    assert {tuple(kept.ask(_KEPT)) for _ in range(8)} == {()}, "a backend was left with a plan"


def test_a_pooler_that_was_taken_for_the_server_is_found_out(pooler, stores):
    """As if it had greeted us under the process id of one of its backends."""
    store = stores(url=pooler.url())
    store.highest()
    (session,) = store._database._idle
    session._direct = True
    for turn in range(10):
        store.release(hold(store, f"r{turn}"), CONCEDED)
    assert store._database._pooled


def test_behind_a_pooler_waiting_is_a_short_nap(pooler, stores, admin):
    store = stores(url=pooler.url())
    hold(store, "a")
    clock = SystemClock()
    began = clock.now()
    for _ in range(3):
        store.await_end(ISSUE, 60)
    assert clock.now() - began < 30
    assert store.read(ISSUE).live
    for _ in range(8):
        heard = store._database._idle[-1].ask(_CHANNELS)
        assert heard == [], "a backend was left listening"


# Waiting for a row


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
def test_a_lease_that_runs_out_while_its_renewal_waits_is_lost(
    server, store, admin, name, threads, strict
):
    store._database._strict = strict
    lease = hold(store, "a", SHORT)
    with holding_the_row(server, name):
        renewal = threads.submit(store.renew, lease)
        wait_until(lambda: is_stuck(admin), "the renewal waits for the row")
        outwait(server.url(), SHORT.total_seconds())
    assert isinstance(renewal.result(30), Lost)
    record = store.read(ISSUE)
    assert (record.live, record.lease.beats, record.lease.expires_at) == (
        False,
        0,
        lease.expires_at,
    )


def test_a_lease_that_runs_out_while_its_release_waits_is_lost(server, store, admin, name, threads):
    lease = hold(store, "a", SHORT)
    with holding_the_row(server, name):
        release = threads.submit(store.release, lease, ADVANCED)
        wait_until(lambda: is_stuck(admin), "the release waits for the row")
        outwait(server.url(), SHORT.total_seconds())
    assert isinstance(release.result(30), Lost)
    assert store.read(ISSUE).ending is None


def test_a_lease_that_runs_out_while_its_revoke_waits_is_not_revoked(
    server, store, admin, name, threads
):
    hold(store, "a", SHORT)
    with holding_the_row(server, name):
        revoke = threads.submit(store.revoke, ISSUE, Revocation(RunId("a"), "ada", "why"))
        wait_until(lambda: is_stuck(admin), "the revoke waits for the row")
        outwait(server.url(), SHORT.total_seconds())
    assert revoke.result(30) is None
    assert store.read(ISSUE).revocation is None


def releasing(store, lease):
    return store.release(lease, ADVANCED)


def revoking(store, lease):
    return store.revoke(ISSUE, Revocation(lease.run, "ada", "why", force=True)) or Lost("not live")


@pytest.mark.parametrize(
    "ask", [PostgresLeases.renew, releasing, revoking], ids=["renewal", "release", "revoke"]
)
def test_what_waited_while_another_run_was_granted_is_not_done_to_that_run(
    server, store, admin, name, threads, ask
):
    """The row was found as the run's own, and is another's by the time it can be written."""
    lease = hold(store, "a")
    change = (
        "UPDATE {} SET run = 'b', fence = fence + 1,"
        " granted_at = clock_timestamp(), expires_at = clock_timestamp() + interval '1 minute'"
    )
    with holding_the_row(server, name, change=change):
        asked = threads.submit(ask, store, lease)
        wait_until(lambda: is_stuck(admin), "it waits for the row")
    assert isinstance(asked.result(30), Lost)
    record = store.read(ISSUE)
    assert (
        record.lease.run,
        record.live,
        record.ending,
        record.revocation,
        record.lease.beats,
    ) == (
        "b",
        True,
        None,
        None,
        0,
    )


def test_a_grant_whose_turn_came_late_is_as_long_as_any_other(server, store, admin, name, threads):
    with closing(psycopg.connect(server.url())) as foreign:
        store.highest()
        table = sql.Identifier(name, "dibs_leases").as_string(foreign)
        foreign.execute(_TURN, (table, _lock_number(b"ready")))
        acquire = threads.submit(store.acquire, bid("b", SHORT, limit=1))
        wait_until(lambda: is_stuck(admin), "the bid waits for its turn")
        outwait(server.url(), 2 * SHORT.total_seconds())
        still_locked = admin.execute("SELECT clock_timestamp()").fetchone()[0]
        foreign.commit()
    lease = acquire.result(30).lease
    assert lease.granted_at >= still_locked
    assert lease.expires_at == lease.granted_at + SHORT


def test_a_grant_that_waited_is_as_long_as_any_other(server, store, admin, name, threads):
    first = hold(store, "a", SHORT)
    outwait(server.url(), SHORT.total_seconds())
    with holding_the_row(server, name):
        acquire = threads.submit(store.acquire, bid("b", SHORT))
        wait_until(lambda: is_stuck(admin), "the acquire waits for the row")
        outwait(server.url(), 2 * SHORT.total_seconds())
        still_locked = admin.execute("SELECT clock_timestamp()").fetchone()[0]
    lease = acquire.result(30).lease
    assert lease.fence == first.fence + 1
    assert lease.granted_at >= still_locked
    assert lease.expires_at == lease.granted_at + SHORT


def test_a_renewal_in_time_wins_over_an_acquire_that_came_while_it_was_committed(
    server, store, stores, admin, name, threads
):
    """The acquirer saw an expired lease, and finds a renewed one when it gets the row."""
    hold(store, "a", SHORT)
    renewing = "UPDATE {} SET expires_at = clock_timestamp() + interval '5 minutes'"
    with holding_the_row(server, name, change=renewing):
        outwait(server.url(), SHORT.total_seconds())
        acquire = threads.submit(stores().acquire, bid("b"))
        wait_until(lambda: is_stuck(admin), "the acquire waits for the row")
    told = acquire.result(30)
    assert isinstance(told, Busy)
    assert told.record.live
    assert told.record.lease.run == "a"


def test_an_issue_that_another_transaction_is_just_inserting(
    server, store, stores, admin, name, threads
):
    """Its row is in nobody's snapshot yet, and still the loser is told who has it."""
    store.highest()
    inserting = (
        "INSERT INTO {} (repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at)"
        " VALUES ('acme/app', '7', 1, 'a', 'ada', 'ready', 300000, now(),"
        " now() + interval '5 minutes')"
    )
    with holding_the_row(server, name, change=inserting):
        others = [threads.submit(stores().acquire, bid(run)) for run in ("b", "a")]
        wait_until(lambda: is_stuck(admin), "the acquire waits for the row")
    told = [other.result(30) for other in others]
    assert isinstance(told[0], Busy)
    assert told[0].record.lease.run == "a"
    assert isinstance(told[1], Granted), "a retry of the same run lost to itself"
    assert told[1].lease.fence == 1


def test_a_crowd_that_asks_for_a_held_issue_neither_writes_nor_waits(
    server, store, stores, admin, name
):
    hold(store, "a")
    with holding_the_row(server, name):
        version = "SELECT xmin, xmax, ctid FROM {}"
        before = admin.execute(
            sql.SQL(version).format(sql.Identifier(name, "dibs_leases"))
        ).fetchall()
        for run in ("b", "c"):
            assert isinstance(stores().acquire(bid(run)), Busy)
        after = admin.execute(
            sql.SQL(version).format(sql.Identifier(name, "dibs_leases"))
        ).fetchall()
    assert before == after


def test_whoever_waits_too_long_for_a_row_is_told_and_does_nothing_later(
    server, store, stores, admin, name
):
    lease = hold(store, "a")
    hasty = connected(stores("timeout=0.5"))
    with holding_the_row(server, name):
        with pytest.raises(Unavailable, match=r"no answer within 0\.5 s"):
            hasty.renew(lease)
        wait_until(lambda: not is_stuck(admin), "the statement was withdrawn")
    assert store.read(ISSUE).lease == lease


# Limits


def test_a_renewal_that_is_being_committed_is_counted(server, store, stores, admin, name, threads):
    hold(store, "a", SHORT)
    renewing = "UPDATE {} SET expires_at = clock_timestamp() + interval '5 minutes'"
    with holding_the_row(server, name, change=renewing):
        outwait(server.url(), SHORT.total_seconds())
        other = bid("b", issue=IssueRef("acme/app", "8"), limit=1)
        acquire = threads.submit(stores().acquire, other)
        wait_until(lambda: is_stuck(admin), "the count waits for the renewal")
    assert acquire.result(30) == Full(1)


@pytest.mark.parametrize("level", LEVELS)
def test_a_count_is_taken_when_the_turn_has_come(server, admin, database, name, threads, level):
    """A snapshot from before the wait would not show what was granted meanwhile."""
    _set_isolation(admin, name, level)
    with closing(PostgresLeases.connect(database)) as store:
        store.highest()
        with closing(psycopg.connect(database)) as foreign:
            foreign.execute(_TURN, ("dibs_leases", _lock_number(b"ready")))
            acquire = threads.submit(store.acquire, bid("b", limit=1))
            wait_until(lambda: is_stuck(admin), "the bid waits for its turn")
            foreign.execute(
                "INSERT INTO dibs_leases (repo, key, fence, run, holder, stage, ttl_ms,"
                " granted_at, expires_at) VALUES ('', '8', 1, 'a', 'ada', 'ready', 300000,"
                " now(), now() + interval '5 minutes')"
            )
            foreign.commit()
        assert acquire.result(30) == Full(1)


def test_stages_do_not_wait_for_each_other_to_count(server, store, stores, admin, name):
    hasty = connected(stores("timeout=1"))
    with closing(psycopg.connect(server.url())) as foreign:
        foreign.execute(_TURN, (f"{name}.dibs_leases", _lock_number(b"ready")))
        hold(store, "a", stage="review", limit=1)
        hold(store, "b", issue=IssueRef("", "8"))
        with pytest.raises(Unavailable, match="no answer within 1 s"):
            hasty.acquire(bid("c", issue=IssueRef("", "9"), limit=9))
        foreign.rollback()
    hold(store, "c", issue=IssueRef("", "9"), limit=9)
    turns = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert admin.execute(turns).fetchone() == (0,), "a turn outlived its transaction"


def test_a_bid_without_a_limit_comes_on_top(store):
    one, two, three = (IssueRef("", str(number)) for number in range(3))
    hold(store, "a", issue=one, limit=1)
    assert store.acquire(bid("b", issue=two, limit=1)) == Full(1)
    hold(store, "b", issue=two)
    assert store.acquire(bid("c", issue=three, limit=2)) == Full(2)


# The table


def test_two_who_make_the_table_at_once_both_find_it(stores):
    clients = [stores() for _ in range(8)]
    gate = threading.Barrier(len(clients))

    def begin(number):
        gate.wait(timeout=30)
        return clients[number].acquire(bid(f"r{number}"))

    with ThreadPoolExecutor(len(clients)) as pool:
        told = list(pool.map(begin, range(len(clients))))
    assert sum(isinstance(answer, Granted) for answer in told) == 1
    assert sum(isinstance(answer, Busy) for answer in told) == len(clients) - 1


def test_a_role_that_may_not_make_tables_works_with_one_that_is_there(
    server, store, stores, admin, name
):
    role = sql.Identifier(f"plain_{name}")
    store.highest()
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    plain = stores(url=server.url(user=f"plain_{name}"))
    with pytest.raises(NotPermitted, match="permission denied for schema"):
        plain.highest()
    schema, table = sql.Identifier(name), sql.Identifier(name, "dibs_leases")
    admin.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))
    with pytest.raises(NotPermitted, match="permission denied for table"):
        plain.highest()
    admin.execute(sql.SQL("GRANT SELECT, INSERT, UPDATE ON {} TO {}").format(table, role))
    lease = hold(plain, "a", limit=3)
    assert isinstance(plain.renew(lease), Renewed)
    assert isinstance(plain.release(lease, ADVANCED), Released)
    plain.acknowledge(plain.read(ISSUE))
    assert plain.live() == ()


def test_a_role_that_may_not_make_the_table_says_what_is_missing(server, admin, name):
    role = sql.Identifier(f"plain_{name}")
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    url = server.url(user=f"plain_{name}")
    with (
        closing(PostgresLeases.connect(url)) as store,
        pytest.raises(NotPermitted, match=r'no table "dibs_leases".*CREATE on the schema'),
    ):
        store.read(ISSUE)


def test_what_the_page_shows_makes_a_table_that_works_and_tells_who_holds_what(admin, database):
    page = Path(__file__).parents[2] / "docs" / "stores" / "postgres.md"
    held, making = re.findall(r"```sql\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    admin.execute("DROP ROLE IF EXISTS fleet")
    admin.execute("CREATE ROLE fleet LOGIN")
    with closing(psycopg.connect(database, autocommit=True)) as there:
        there.execute(making)
        with closing(PostgresLeases.connect(database.replace("postgres@", "fleet@"))) as store:
            lease = hold(store, "a")
            ((repo, key, stage, holder, run, fence, granted_at, remaining),) = there.execute(held)
            assert (repo, key, stage, holder) == ("acme/app", "7", "ready", "worker")
            assert (run, fence) == ("a", 1)
            assert granted_at == lease.granted_at
            assert timedelta() < remaining <= LONG
            columns = "SELECT string_agg(column_name || data_type || is_nullable, ',' ORDER BY 1)"
            columns += " FROM information_schema.columns WHERE table_name = 'dibs_leases'"
            shown = there.execute(columns).fetchone()
            there.execute("DROP TABLE dibs_leases")
        with closing(PostgresLeases.connect(database)) as store:
            store.highest()
            assert there.execute(columns).fetchone() == shown
        there.execute("DROP OWNED BY fleet")


def test_a_table_of_another_version_is_left_alone(store, stores, admin, name):
    store.highest()
    table = sql.Identifier(name, "dibs_leases")
    admin.execute(sql.SQL("COMMENT ON TABLE {} IS 'dibs leases, version 9'").format(table))
    with pytest.raises(Damaged, match="another version"):
        stores().read(ISSUE)


def test_a_table_that_vanished_is_not_made_again_with_its_fences_at_one(store, admin, name):
    hold(store, "a")
    admin.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name, "dibs_leases")))
    for _ in range(2):
        with pytest.raises(Damaged, match="does not have what dibs made there"):
            store.acquire(bid("b"))


def test_what_is_in_flight_is_found_without_reading_what_is_over(store, admin, name):
    lease = hold(store, "a")
    table = sql.Identifier(name, "dibs_leases")
    admin.execute(
        sql.SQL(
            "INSERT INTO {} (repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at,"
            " outcome) SELECT 'past', n::text, 1, 'r' || n, 'w', 'ready', 60000,"
            " now() - interval '3 days', now() - interval '2 days',"
            " CASE WHEN n % 2 = 0 THEN 'advanced' END"
            " FROM generate_series(1, 20000) AS n"
        ).format(table)
    )
    assert [record.lease for record in store.live()] == [lease]
    for statement, values in (
        (store._statements.live, ("NULL", "1000")),
        (store._statements.live, ("'ready'", "1000")),
        (store._statements.settle, ("'ready'",)),
    ):
        plan = _explained(admin, statement, values)
        assert "dibs_leases_running" in str(plan), plan
        assert "Seq Scan" not in str(plan), plan
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 20, plan
    counted = _explained(
        admin,
        store._statements.acquire_counted,
        ("'acme/app'", "'new'", "'r'", "'w'", "'ready'", "60000", "0", "1"),
    )
    assert "Seq Scan" not in str(counted), counted
    assert counted["Shared Hit Blocks"] + counted["Shared Read Blocks"] < 20, counted


def _explained(admin, statement, values):
    text = statement.text.decode()
    for number, value in enumerate(values, start=1):
        text = text.replace(f"${number}", value)
    row = admin.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {text}").fetchone()
    return row[0][0]["Plan"]


# Servers and networks


def test_a_frozen_server_is_told_as_one_in_time_and_asked_again_later(server, stores):
    idle, new = connected(stores("timeout=1")), stores("timeout=1")
    clock = SystemClock()
    server.freeze()
    try:
        for store in (idle, new):
            began = clock.now()
            with pytest.raises(Unavailable):
                store.acquire(bid("a"))
            assert clock.now() - began < 30, "far more than the timeout and a connection's"
        idle.await_end(ISSUE, 5)
    finally:
        server.thaw()
    # What was sent may have been done after all, by a server that woke up late: it is one grant.
    assert hold(connected(idle), "a").fence == 1
    assert hold(connected(new), "a").fence == 1


def test_a_restart_under_idle_connections_costs_nobody_an_answer(server, store, threads):
    gate = threading.Barrier(6)

    def take(number, part):
        gate.wait(timeout=30)
        return hold(store, f"{part}-{number}", issue=IssueRef(part, str(number)))

    before = [threads.submit(take, number, "before") for number in range(6)]
    leases = [lease.result(30) for lease in before]
    assert len(store._database._idle) > 1
    server.restart()
    after = [threads.submit(take, number, "after") for number in range(6)]
    assert all(lease.result(30).fence == 1 for lease in after)
    assert all(isinstance(store.renew(lease), Renewed) for lease in leases)


@pytest.fixture
def relayed(server, stores):
    """A store, and what is between it and the server."""
    with Relay(server.port) as relay:
        store = stores(url=f"postgresql://postgres@127.0.0.1:{relay.port}/postgres")
        store.highest()
        yield store, relay


def test_what_was_done_before_the_reply_was_lost_is_not_done_twice(relayed, stores):
    store, relay = relayed

    def losing(act, *words):
        relay.lose_the_next_reply()
        answer = act(*words)
        assert relay.lost.is_set()
        return answer

    lease = losing(store.acquire, bid("a")).lease
    assert lease.fence == 1
    renewed = losing(store.renew, lease)
    assert renewed.lease.beats == 1
    assert renewed == Renewed(store.read(ISSUE).lease)
    released = losing(store.release, renewed.lease, ADVANCED)
    assert released.record.ending == ADVANCED
    losing(store.acknowledge, released.record)
    assert store.read(ISSUE).painted
    assert hold(store, "b", limit=1).fence == 2
    forced = losing(store.revoke, ISSUE, Revocation(RunId("b"), "ada", "why", force=True))
    assert not forced.live
    assert losing(store.acquire, bid("c", limit=1)).lease.fence == 3
    assert isinstance(stores().acquire(bid("d", limit=1)), Busy)


def test_a_cut_connection_is_told_as_an_outage(relayed):
    store, relay = relayed
    lease = hold(store, "a")
    relay.cut()
    for operation in (lambda: store.renew(lease), lambda: store.acquire(bid("b")), store.live):
        with pytest.raises(Unavailable, match="cannot be reached"):
            operation()
    store.await_end(ISSUE, 5)


def test_a_silent_network_is_told_as_an_outage(server, stores):
    with Relay(server.port) as relay:
        url = f"postgresql://postgres@127.0.0.1:{relay.port}/postgres"
        lease = hold(stores(url=url), "a")
        store = connected(stores("timeout=1", url=url))
        relay.go_silent()
        with pytest.raises(Unavailable, match="no answer within 1 s"):
            store.renew(lease)


# Failover


@pytest.fixture
def pair():
    """A primary, and a standby that takes its changes over without anybody waiting for it."""
    with closing(Postgres()) as primary, closing(Postgres(follows=primary)) as standby:
        yield primary, standby


def test_a_standby_that_lagged_grants_above_what_it_never_heard_of(pair):
    primary, standby = pair
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    with closing(PostgresLeases.connect(f"postgresql://postgres@{hosts}/postgres")) as store:
        store.release(hold(store, "known"), CONCEDED)
        with closing(psycopg.connect(standby.url(), autocommit=True)) as sight:
            known = "SELECT outcome FROM dibs_leases"
            wait_until(lambda: sight.execute(known).fetchone() == ("conceded",), "it is copied")
        standby.kill()
        lost = hold(store, "lost")
        primary.kill()
        standby.run()
        standby.promote()
        assert store.read(ISSUE).lease.run == "known", "nothing was lost, so nothing is shown"
        assert isinstance(store.renew(lost), Lost)
        lease = hold(store, "next")
        assert lease.fence > lost.fence
        assert store.highest() == lease.fence
        store.release(lease, CONCEDED)
        assert hold(store, "after").fence == lease.fence + 1


def test_a_standby_grants_nothing_and_says_so(pair):
    _, standby = pair
    with (
        closing(PostgresLeases.connect(standby.url())) as store,
        pytest.raises(Unavailable, match="is read-only now"),
    ):
        store.acquire(bid("a"))


def test_a_server_that_tells_nothing_of_its_log_grants_all_the_same(server, admin, database):
    with closing(psycopg.connect(database, autocommit=True)) as sql_there:
        sql_there.execute("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC")
        sql_there.execute("DROP ROLE IF EXISTS unprivileged")
        sql_there.execute("CREATE ROLE unprivileged LOGIN")
        sql_there.execute("GRANT CREATE ON SCHEMA public TO unprivileged")
    url = database.replace("postgres@", "unprivileged@")
    with closing(PostgresLeases.connect(url)) as store:
        assert [hold(store, "a").fence, hold(store, "b", issue=IssueRef("", "8")).fence] == [1, 1]
        store.release(store.read(ISSUE).lease, CONCEDED)
        assert hold(store, "c").fence == 2


# Errors


def test_who_is_not_let_in_is_told_so_without_the_password(server, admin):
    admin.execute("DROP ROLE IF EXISTS guarded")
    admin.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'open sesame'")
    right = server.url(user="guarded:open%20sesame")
    with closing(PostgresLeases.connect(right)) as store:
        store.highest()
        assert store.name == f"postgresql://127.0.0.1:{server.port}/postgres"
    for url in (
        server.url(user="guarded:open%20barley"),
        server.url(user="guarded"),
        server.url(user="nobody-of-that-name"),
    ):
        with (
            closing(PostgresLeases.connect(url)) as store,
            pytest.raises(NotPermitted, match="does not let us in") as told,
        ):
            store.highest()
        assert "barley" not in str(told.value)
        assert "barley" not in str(told.value.__cause__)
        assert "barley" not in repr(store._database._url)


def test_a_database_that_is_not_there(server):
    with (
        closing(PostgresLeases.connect(server.url(database="nowhere"))) as store,
        pytest.raises(Damaged, match="is not there"),
    ):
        store.highest()


def test_a_server_that_takes_no_writes_is_not_available(admin, database, name):
    with closing(PostgresLeases.connect(database)) as store:
        lease = hold(store, "a")
        settings = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
        admin.execute(settings.format(sql.Identifier(name)))
        store._database._idle.drop()  # the setting is for new sessions, as after a switch-over
        with pytest.raises(Unavailable, match="read-only"):
            store.renew(lease)
        assert store.read(ISSUE).live


def test_a_database_that_cannot_keep_every_letter_is_refused(server, admin, name):
    create = "CREATE DATABASE {} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    admin.execute(sql.SQL(create).format(sql.Identifier(name)))
    with (
        closing(PostgresLeases.connect(server.url(database=name))) as store,
        pytest.raises(Damaged, match="keeps text as LATIN1"),
    ):
        store.highest()
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_what_cannot_be_kept_is_replaced_in_prose_and_refused_in_names(store):
    lease = hold(store, "a", holder="Ada\0 \ud800")
    assert lease.holder == "Ada\ufffd ?"
    assert store.read(ISSUE).lease == lease
    said = Revocation(RunId("a"), "ada\0", "why\0")
    assert store.revoke(ISSUE, said).revocation == replace(said, by="ada\ufffd", reason="why\ufffd")
    released = store.release(lease, Ending(Outcome.PARKED, note="half\0done"))
    assert released.record.ending.note == "half\ufffddone"
    for odd in ("7\0", "7\ud800"):
        with pytest.raises(Misuse, match="cannot be kept"):
            store.acquire(bid("b", issue=IssueRef("acme/app", odd)))


@pytest.mark.parametrize(
    "setting", ["datestyle = 'German'", "timezone = 'Asia/Kathmandu'", "bytea_output = 'escape'"]
)
def test_times_are_read_rightly_whatever_the_database_is_set_to(admin, database, name, setting):
    admin.execute(sql.SQL("ALTER DATABASE {} SET ").format(sql.Identifier(name)) + sql.SQL(setting))
    with closing(PostgresLeases.connect(database)) as store:
        before = admin.execute("SELECT clock_timestamp()").fetchone()[0]
        lease = hold(store, "a")
        after = admin.execute("SELECT clock_timestamp()").fetchone()[0]
        assert before <= lease.granted_at <= after
        assert lease.expires_at == lease.granted_at + LONG
        assert store.read(ISSUE).lease == lease


# Waiting for the end of a lease


def test_it_wakes_who_waits(store):
    assert isinstance(store, Waking)


@pytest.fixture
def all_ears(monkeypatch):
    """Nobody looks by itself before its time is over: who goes on earlier was told."""
    monkeypatch.setattr("dibs.adapters.postgres.leases._LISTEN_S", (60.0, 60.0))


@pytest.mark.usefixtures("all_ears")
@pytest.mark.parametrize("way", ["release", "acknowledge", "force"])
def test_whoever_waits_is_told_of_the_end(store, stores, admin, name, threads, way):
    waiter = stores()
    for turn in range(3):
        lease = hold(store, f"{way}-{turn}")
        if way == "acknowledge":
            record = store.release(lease, ADVANCED).record
        waiting = threads.submit(_seconds, waiter.await_end, ISSUE, 60)
        wait_until(lambda: len(_awaiting(admin, name)) == 1, "somebody waits")
        match way:
            case "release":
                assert isinstance(store.release(lease, CONCEDED), Released)
            case "acknowledge":
                store.acknowledge(record)
            case "force":
                by = Revocation(lease.run, "ada", "why", force=True)
                assert store.revoke(ISSUE, by) is not None
        assert waiting.result(60) < 50, "nobody told; the wait ended by itself"


@pytest.mark.usefixtures("all_ears")
def test_an_issue_that_is_free_is_not_waited_for(store):
    assert _seconds(store.await_end, ISSUE, 60) < 50
    store.release(hold(store, "a"), CONCEDED)
    assert _seconds(store.await_end, ISSUE, 60) < 50


def test_who_stops_waiting_leaves_no_name_behind(store, admin, name):
    hold(store, "a")
    store.await_end(ISSUE, 0.2)
    assert _awaiting(admin, name) == []


@pytest.mark.usefixtures("all_ears")
def test_a_queue_is_woken_one_by_one_in_its_order(store, stores, admin, name, threads):
    lease = hold(store, "first")
    order, asked = [], []

    def queue(number, client):
        for turn in range(50):
            client.await_end(ISSUE, 60)
            asked.append(number)
            told = client.acquire(bid(f"{number}-{turn}"))
            if isinstance(told, Granted):
                order.append(number)
                assert isinstance(client.release(told.lease, CONCEDED), Released)
                return
        raise AssertionError(f"{number} never got its turn")

    queued = []
    for number in range(8):
        queued.append(threads.submit(queue, number, stores()))
        wait_until(lambda: len(_awaiting(admin, name)) == len(queued), "the next one waits")
    took_s = _seconds(lambda: (store.release(lease, CONCEDED), [one.result(60) for one in queued]))
    assert took_s < 50, "somebody was not told, and looked by itself"
    assert order == list(range(8))
    assert asked == order, "somebody asked who was not meant"


def test_a_graceful_revoke_wakes_nobody(store, stores, admin, name, threads):
    lease = hold(store, "a")
    waiting = threads.submit(stores().await_end, ISSUE, 60)
    wait_until(lambda: len(_awaiting(admin, name)) == 1, "somebody waits")
    store.revoke(ISSUE, Revocation(RunId("a"), "ada", "why"))
    assert isinstance(store.renew(lease), StopAsked)
    assert not waiting.done()
    store.release(lease, CONCEDED)
    waiting.result(30)


def test_a_restart_ends_the_waiting_quietly(server, store, stores, admin, name, threads):
    hold(store, "a")
    waiting = threads.submit(stores().await_end, ISSUE, 60)
    wait_until(lambda: len(_awaiting(admin, name)) == 1, "somebody waits")
    server.restart()
    waiting.result(30)
    assert store.read(ISSUE).live


def _seconds(act, *words):
    clock = SystemClock()
    began = clock.now()
    act(*words)
    return clock.now() - began


def _awaiting(admin, name):
    table = sql.Identifier(name, "dibs_leases")
    row = admin.execute(sql.SQL("SELECT awaited FROM {}").format(table)).fetchone()
    return row[0] or []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("strict", "times"), [(False, 20), (True, 4)], ids=["a statement", "a transaction"]
)
def test_a_crash_forgets_no_grant_although_the_role_commits_asynchronously(strict, times):
    """With the same fence twice, no check of a fence could tell the two holders apart."""
    with closing(Postgres()) as server:
        with closing(psycopg.connect(server.url(), autocommit=True)) as admin:
            admin.execute("ALTER ROLE postgres SET synchronous_commit = off")
            # So that nothing else writes the log out between the answer and the kill.
            admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            admin.execute("ALTER SYSTEM SET wal_writer_flush_after = 0")
            if strict:
                admin.execute(
                    "ALTER ROLE postgres SET default_transaction_isolation = serializable"
                )
            admin.execute("SELECT pg_reload_conf()")
        fences = []
        for number in range(times):
            with closing(PostgresLeases.connect(server.url())) as store:
                issue = IssueRef("acme/app", "7")
                bid = Bid(issue, RunId(f"run-{number}"), HolderId("ann"), StageName("ready"), SHORT)
                won = store.acquire(bid)
                assert isinstance(won, Granted), won
                fences.append(won.lease.fence)
                server.restart()
                outwait(server.url(), SHORT.total_seconds())
        assert fences == list(range(1, times + 1)), "it rises every time"
