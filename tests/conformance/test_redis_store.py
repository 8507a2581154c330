"""What only the Redis store has: epochs, eviction, clusters, failover, waking, and its URL."""

import itertools
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis.crc import key_slot
from redis.exceptions import ReadOnlyError
from tests.servers.process import free_port, wait_until
from tests.servers.relay import Relay, TlsRelay
from tests.servers.valkey import ClusterNode, Valkey, Watched

from dibs.adapters.redis import scripts
from dibs.adapters.redis.leases import RedisLeases
from dibs.adapters.redis.links import parse_redis_url
from dibs.adapters.redis.scripts import FIELDS, issue_spelt, spelt
from dibs.adapters.system import SystemClock
from dibs.core.errors import BadConfiguration, Damaged, Misuse, NotPermitted, Unavailable
from dibs.core.ids import Fence, IssueRef
from dibs.core.lease import Busy, Ending, Full, Granted, Lost, Outcome, Released, Renewed
from dibs.ports.leases import Guarantee, Waking
from dibs.testing.conformance.lease_harness import ADVANCED, CONCEDED, bid, revocation

ISSUE = IssueRef("acme/shop", "42")
RECORD = "{dibs:dibs}:issue:acme/shop#42"
EPOCH = "{dibs:dibs}:epoch"
WAKE = "{dibs:dibs}:wake:acme/shop#42"
LONG = timedelta(minutes=5)
SECRET = "correct-horse"
PAGE = (Path(__file__).parents[2] / "docs" / "stores" / "redis.md").read_text("utf-8")
RIGHTS = re.findall(r"(?<!\S)\+[a-z|]+", PAGE)


@contextmanager
def running(**options):
    """A server of our own, that forgets everything when it ends unless it is told not to."""
    server = Valkey(**{"persistent": False, **options})
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def shared():
    with running() as server:
        yield server


@pytest.fixture
def server(shared):
    """Empty, and with nothing but its first settings."""
    with shared.client() as client:
        client.flushall()
        client.config_resetstat()
    return shared


@pytest.fixture
def open_store():
    with ExitStack() as opened:

        def connect(url: str) -> RedisLeases:
            store = RedisLeases.connect(url)
            opened.callback(store.close)
            return store

        yield connect


@pytest.fixture
def store(server, open_store):
    return open_store(server.url())


def grant(store, run="a", issue=ISSUE, ttl=LONG, **wishes):
    granted = store.acquire(replace(bid(issue, run, ttl), **wishes))
    assert isinstance(granted, Granted), granted
    return granted.lease


def give_back(store, lease):
    assert isinstance(store.release(lease, CONCEDED), Released)


def turn(store, run, issue=ISSUE):
    """Acquire and give back; the fence of it."""
    lease = grant(store, run, issue)
    give_back(store, lease)
    return lease.fence


# What an operator sees


def test_the_record_can_be_read_by_anybody_with_a_plain_client(server, store):
    lease = grant(store)
    with server.client() as client:
        seen = client.hgetall(RECORD)
        assert client.ttl(RECORD) == -1
    assert seen.keys() == {
        *("run", "holder", "stage", "fence", "ttl_ms", "granted_at", "expires_at", "beats"),
    }
    assert (seen["run"], seen["holder"], seen["stage"]) == ("a", "worker-a", "ready")
    assert int(seen["fence"]) == lease.fence
    store.release(lease, ADVANCED)
    with server.client() as client:
        ended = client.hgetall(RECORD)
    assert (ended["outcome"], ended["next"], ended["note"], ended["painted"]) == (
        *("advanced", "review", "it works", "0"),
    )


def test_a_new_lease_leaves_nothing_of_the_old_one_in_the_record(server, store):
    lease = grant(store)
    store.revoke(ISSUE, revocation("a"))
    released = store.release(lease, ADVANCED)
    assert released.record.revocation == revocation("a")
    store.acknowledge(released.record)
    grant(store, "b")
    with server.client() as client:
        assert not {"outcome", "next", "note", "painted", "revoked_by"} & set(client.hkeys(RECORD))


def test_namespaces_do_not_know_of_each_other(server, open_store):
    one, two = (open_store(server.url(f"namespace={name}")) for name in ("one", "two"))
    first, second = grant(one), grant(two, "b")
    assert [record.lease.run for record in one.live()] == [first.run]
    assert [record.lease.run for record in two.live()] == [second.run]
    assert isinstance(two.renew(first), Lost)
    assert grant(one, "c", IssueRef("", "1"), limit=2).run == "c"
    assert two.read(IssueRef("", "1")) is None


def test_no_two_issues_share_a_record():
    refs = [
        *(IssueRef("a", "b#c"), IssueRef("a#b", "c"), IssueRef("a%23b", "c"), IssueRef("", "1")),
        *(
            IssueRef("1", ""),
            IssueRef("a%", "23#"),
            IssueRef("a%25", "1"),
            IssueRef("x/y", "ABC-1"),
        ),
    ]
    assert len({spelt(ref) for ref in refs}) == len(refs)
    assert [issue_spelt(spelt(ref)) for ref in refs] == refs


def test_a_record_that_is_not_whole_is_told_as_damage(server, store):
    grant(store)
    with server.client() as client:
        client.hdel(RECORD, "fence")
    with pytest.raises(Damaged, match="acme/shop#42"):
        store.read(ISSUE)


def test_a_key_of_another_kind_is_told_as_damage(server, store):
    with server.client() as client:
        client.set(RECORD, "somebody's")
    with pytest.raises(Damaged, match="WRONGTYPE"):
        store.acquire(bid(ISSUE, "a", LONG))


def test_a_grant_that_fails_half_way_grants_nothing(server, store):
    with server.client() as client:
        client.set("{dibs:dibs}:live:ready", "somebody's")
        with pytest.raises(Damaged, match="WRONGTYPE"):
            store.acquire(bid(ISSUE, "a", LONG))
        assert store.read(ISSUE) is None
        client.delete("{dibs:dibs}:live:ready")
        assert grant(store, "b").run == "b"


# Which servers are refused


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_may_evict_any_key_is_refused(policy):
    with running(maxmemory_policy=policy) as server:
        with pytest.raises(BadConfiguration, match=f"{policy}.*forget"):
            RedisLeases.connect(server.url()).read(ISSUE)
        with server.client() as client:
            assert client.dbsize() == 0


def test_a_server_that_evicts_only_what_expires_is_good_enough(open_store):
    with running(maxmemory_policy="volatile-lru") as server:
        grant(open_store(server.url()))


def test_a_replica_is_refused(server, open_store):
    with (
        running(replicaof=f"127.0.0.1 {server.port}") as replica,
        pytest.raises(Unavailable, match="replica, which grants nothing"),
    ):
        open_store(replica.url()).read(ISSUE)


def test_a_server_that_was_made_a_replica_grants_nothing(open_store):
    with running() as server, running() as other:
        store = open_store(server.url())
        lease = grant(store)
        with server.client() as client:
            client.replicaof("127.0.0.1", other.port)
        for operation in (
            lambda: store.acquire(bid(IssueRef("", "free"), "b", LONG)),
            lambda: store.renew(lease),
            lambda: store.release(lease, CONCEDED),
            lambda: store.read(ISSUE),
            store.live,
            store.highest,
        ):
            with pytest.raises(Unavailable):
                operation()


def test_a_link_to_what_is_a_replica_now_reads_nothing_old(open_store):
    """On the very link that greeted a primary: a new one would be refused anyway."""
    with running() as server, running() as other:
        store = open_store(server.url())
        grant(store)
        with server.client() as client:
            client.replicaof("127.0.0.1", other.port)
        link = store._links._idle[-1]
        for script, words in (
            (scripts.READ, (RECORD,)),
            (scripts.LIVE, (EPOCH, "{dibs:dibs}:live:", "9")),
            (scripts.HIGHEST, (EPOCH,)),
        ):
            with pytest.raises(ReadOnlyError):
                link.run(script, words)


def test_a_full_server_is_told_as_damage(server, store):
    with server.client() as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(Damaged, match="maxmemory"):
                store.acquire(bid(ISSUE, "a", LONG))
        finally:
            client.config_set("maxmemory", "0")
    assert store.read(ISSUE) is None


def test_durable_is_declared_only_with_an_append_only_file(server, store, open_store):
    assert Guarantee.DURABLE not in store.guarantees
    with server.client() as client:
        client.config_set("appendonly", "yes")
        try:
            assert Guarantee.DURABLE in open_store(server.url()).guarantees
        finally:
            client.config_set("appendonly", "no")


# Fences


def test_scripts_that_were_flushed_are_sent_again(server, store):
    lease = grant(store)
    for operation in (
        lambda: store.renew(lease),
        lambda: store.read(ISSUE),
        store.live,
        lambda: store.revoke(ISSUE, revocation("a")),
        lambda: store.release(lease, ADVANCED),
        lambda: store.acknowledge(store.read(ISSUE)),
        lambda: store.acquire(bid(ISSUE, "b", LONG)),
    ):
        with server.client() as client:
            client.script_flush()
        operation()
    assert store.read(ISSUE).lease.run == "b"


def epoch_of(server):
    with server.client() as client:
        return client.hgetall(EPOCH)


def test_another_process_of_the_server_begins_an_epoch(open_store):
    with running(persistent=True) as server:
        store = open_store(server.url())
        first = grant(store)
        before = epoch_of(server)
        open_store(server.url())
        assert epoch_of(server) == before, "the same process began a second epoch"
        server.restart()
        give_back(store, first)
        second = turn(store, "b")
        after = epoch_of(server)
    assert before["server"] != after["server"]
    assert int(before["floor"]) < first.fence < int(after["floor"]) < second


def test_a_restored_snapshot_does_not_take_fences_back(open_store):
    with running() as server:
        store = open_store(server.url())
        fences = [turn(store, "before")]
        server.save_snapshot("older.rdb")
        fences += [turn(store, f"after-{number}") for number in range(50)]
        server.restore_snapshot("older.rdb")
        assert store.read(ISSUE).lease.run == "before", "the older state is back"
        fences.append(turn(store, "next"))
        fences.append(turn(open_store(server.url()), "last"))
    assert fences == sorted(set(fences))


def test_losing_all_data_does_not_take_fences_back(open_store):
    with running() as server:
        store = open_store(server.url())
        fences = []
        for life in range(3):
            fences += [turn(store, f"{life}-{number}") for number in range(20)]
            server.lose_everything()
            assert store.read(ISSUE) is None
    assert fences == sorted(set(fences))


def test_flushing_a_running_server_does_not_take_fences_back(server, store):
    fences = []
    for life in range(20):
        fences += [turn(store, f"{life}-{number}") for number in range(5)]
        with server.client() as client:
            client.flushall()
    assert fences == sorted(set(fences))


def test_an_epoch_that_somebody_else_began_is_not_granted_under(server, store):
    """As on a server that was a replica for a while, and is a primary again."""
    first = turn(store, "a")
    with server.client() as client:
        client.hset(EPOCH, mapping={"server": "another"})
    second = turn(store, "b")
    assert second > int(epoch_of(server)["floor"]) > first
    with server.client() as client:
        assert epoch_of(server)["server"] == client.info("server")["run_id"]


def test_a_clock_that_went_back_does_not_take_fences_back(server, open_store):
    hour_ahead = Fence(0)
    store = open_store(server.url())
    with server.client() as client:
        whole, _ = client.time()
        hour_ahead = (whole + 3600) * 1_000_000
        client.hset(EPOCH, mapping={"server": "another", "floor": hour_ahead})
    first = turn(store, "a")
    assert first > hour_ahead
    assert store.highest() >= first
    assert int(epoch_of(server)["floor"]) == hour_ahead + 1_000_000
    with server.client() as client:
        client.hset(EPOCH, "server", "another again")
    assert turn(store, "b", IssueRef("", "untouched")) > first


def test_fences_are_written_out_in_full(server, store):
    for floor in (1_799_999_999_999_999, 8_999_999_999_999_999, 2**53 - 3):
        lease = grant(store, f"after-{floor}", floor=Fence(floor))
        assert lease.fence == floor + 1
        with server.client() as client:
            assert client.hget(RECORD, "fence") == str(floor + 1)
        assert store.read(ISSUE).lease.fence == floor + 1
        assert store.highest() == floor + 1 or floor < 1_800_000_000_000_000
        give_back(store, lease)


def test_a_fence_that_lua_cannot_count_is_not_granted(store):
    with pytest.raises(Damaged, match="cannot rise"):
        store.acquire(replace(bid(ISSUE, "a", LONG), floor=Fence(2**53 - 1)))
    assert store.read(ISSUE) is None


# A clock that steps back


def step_back(server, *leases):
    """What the server holds after its clock went back an hour: times that are yet to come."""
    with server.client() as client:
        for lease in leases:
            record = f"{{dibs:dibs}}:issue:{spelt(lease.issue)}"
            client.hincrby(record, "expires_at", 3_600_000)


def told_by_renewal(store, lease):
    return isinstance(store.renew(lease), Lost)


def told_by_release(store, lease):
    return isinstance(store.release(lease, CONCEDED), Lost)


def told_by_revoke(store, lease):
    return store.revoke(lease.issue, revocation(lease.run)) is None


def told_by_listing(store, lease):
    del lease
    return store.live() == ()


def told_by_a_count(store, lease):
    del lease
    next_issue = IssueRef("", "next")
    return isinstance(store.acquire(replace(bid(next_issue, "n", LONG), limit=1)), Granted)


@pytest.mark.parametrize(
    "told",
    [told_by_renewal, told_by_release, told_by_revoke, told_by_listing, told_by_a_count],
)
def test_what_was_told_to_be_over_stays_over_when_the_clock_steps_back(server, store, told):
    lease = grant(store, ttl=timedelta(milliseconds=1))
    wait_until(lambda: not store.read(ISSUE).live, "it expired")
    assert told(store, lease)
    step_back(server, lease)
    seen = store.read(ISSUE)
    assert (seen.live, seen.ending, seen.lease.run) == (False, None, "a")
    assert isinstance(store.renew(lease), Lost)
    assert isinstance(store.release(lease, CONCEDED), Lost)
    assert store.revoke(ISSUE, revocation("a", force=True)) is None
    assert "a" not in {record.lease.run for record in store.live()}
    after = grant(store, "b")
    assert after.fence > lease.fence
    assert isinstance(store.renew(after), Renewed)
    give_back(store, after)


def test_what_was_ended_by_force_stays_over_when_the_clock_steps_back(server, store):
    lease = grant(store)
    assert store.revoke(ISSUE, revocation("a", force=True)) is not None
    step_back(server, lease)
    seen = store.read(ISSUE)
    assert (seen.live, seen.ending, seen.revocation) == (False, None, revocation("a", force=True))
    assert isinstance(store.renew(lease), Lost)
    grant(store, "b")


def test_a_takeover_takes_the_mark_of_the_expired_lease_away(server, store):
    for limit in (None, 1):
        lease = grant(store, f"vanished-{limit}", ttl=timedelta(milliseconds=1))
        wait_until(lambda: not store.read(ISSUE).live, "it expired")
        assert isinstance(store.renew(lease), Lost) or limit
        after = grant(store, f"next-{limit}", limit=limit)
        assert store.read(ISSUE).live
        assert [record.lease for record in store.live()] == [after]
        give_back(store, after)


def test_a_renewal_that_the_index_has_not_heard_of_is_not_taken_for_expired(server, store):
    lease = grant(store)
    with server.client() as client:
        index = "{dibs:dibs}:live:ready"
        client.zadd(index, dict.fromkeys(client.zrange(index, 0, -1), 1))
    assert [record.lease for record in store.live()] == [lease]
    assert isinstance(store.renew(lease), Renewed)


# Names that cannot be kept


def test_names_with_half_letters_are_refused(server, store):
    half = "c\udc80"
    for wish in (
        bid(IssueRef("acme/shop", half), "a", LONG),
        bid(IssueRef(half, "1"), "a", LONG),
        bid(ISSUE, half, LONG),
        replace(bid(ISSUE, "a", LONG), stage=half),
    ):
        with pytest.raises(Misuse, match="half letters"):
            store.acquire(wish)
    with pytest.raises(Misuse, match="half letters"):
        store.read(IssueRef("acme/shop", half))
    lease = grant(store, "a", IssueRef("acme/shop", r"c\udc80"))
    with pytest.raises(Misuse, match="half letters"):
        store.release(lease, Ending(Outcome.ADVANCED, half))
    assert isinstance(store.renew(lease), Renewed)


def test_prose_with_half_letters_is_kept_as_far_as_it_goes(store):
    half = "caf\u00e9 \udc80"
    lease = grant(store, holder=half)
    assert lease.holder == store.read(ISSUE).lease.holder == "caf\u00e9 ?"
    spoken = replace(revocation("a"), by=half, reason=half)
    assert store.revoke(ISSUE, spoken).revocation.by == "caf\u00e9 ?"
    give_back(store, lease)
    lease = grant(store, "b")
    released = store.release(lease, Ending(Outcome.CONCEDED, None, half))
    assert released.record.ending == store.read(ISSUE).ending
    assert released.record.ending.note == "caf\u00e9 ?"


# Cost


def calls(client):
    """How often each command ran since the last reset, those in scripts included."""
    return {
        name.removeprefix("cmdstat_"): stats["calls"]
        for name, stats in client.info("commandstats").items()
    }


def test_what_is_over_costs_nothing(server, store):
    """Ten thousand ended leases are not touched by a listing, nor by a bid with a limit."""
    for number in range(10_000):
        turn(store, f"over-{number}", IssueRef("", str(number)))
    held = [grant(store, f"held-{number}", IssueRef("live", str(number))) for number in range(3)]
    with server.client() as client:
        client.config_resetstat()
        assert len(store.live()) == 3
        listing = calls(client)
        assert (listing["hmget"], listing["zrange"]) == (3, 1)
        client.config_resetstat()
        assert store.acquire(replace(bid(ISSUE, "a", LONG), limit=3)) == Full(3)
        counting = calls(client)
        assert (counting["hmget"], counting["zcard"]) == (2, 1)
        assert "zrange" not in counting
        assert client.zcard("{dibs:dibs}:live:ready") == len(held)


def test_who_vanished_is_forgotten_by_the_index_once(server, store):
    for number in range(50):
        grant(store, f"r{number}", IssueRef("", str(number)), timedelta(milliseconds=1))
    with server.client() as client:
        wait_until(lambda: store.live() == (), "all of them have expired")
        assert client.zcard("{dibs:dibs}:live:ready") == 0
        client.config_resetstat()
        assert store.live() == ()
        assert "hmget" not in calls(client)


def test_one_round_trip_for_each_operation(server, store):
    turn(store, "a")
    with server.client() as client:
        client.config_resetstat()
        turn(store, "b")
        seen = calls(client)
    assert seen.pop("config|resetstat", 1) == 1
    assert seen["evalsha"] == 2
    assert sum(seen.values()) - seen["evalsha"] <= 11, f"more work than needed: {seen}"


# Waiting


class Waiters:
    """Threads that wait for the end of the lease, each on a connection of its own."""

    def __init__(self, server, store, count):
        self._server = server
        self.threads = [
            threading.Thread(target=store.await_end, args=(ISSUE, 60), daemon=True)
            for _ in range(count)
        ]
        for thread in self.threads:
            thread.start()
        self.wait_until_blocked(count)

    def wait_until_blocked(self, count):
        with self._server.client() as client:
            wait_until(
                lambda: client.info("clients")["blocked_clients"] == count, f"{count} are blocked"
            )

    def left(self):
        return sum(thread.is_alive() for thread in self.threads)


@pytest.fixture
def patient(server, open_store):
    """A store whose waiters stay blocked for the whole test."""
    return open_store(server.url("timeout=200"))


def test_it_says_that_it_can_wake(store):
    assert isinstance(store, Waking)


def test_a_release_wakes_exactly_one(server, patient):
    lease = grant(patient)
    waiters = Waiters(server, patient, 4)
    for left in (3, 2, 1, 0):
        give_back(patient, lease)
        wait_until(lambda left=left: waiters.left() == left, f"{left} go on waiting")
        waiters.wait_until_blocked(left)
        lease = grant(patient, f"after-{left}")


def test_a_forced_revoke_wakes_one_and_a_graceful_one_nobody(server, patient):
    grant(patient)
    waiters = Waiters(server, patient, 2)
    patient.revoke(ISSUE, revocation("a"))
    waiters.wait_until_blocked(2)
    patient.revoke(ISSUE, revocation("a", force=True))
    wait_until(lambda: waiters.left() == 1, "one was woken")
    lease = grant(patient, "b")
    waiters.wait_until_blocked(1)
    give_back(patient, lease)
    wait_until(lambda: waiters.left() == 0, "the other was woken")


def test_an_unpainted_ending_wakes_one_and_its_painting_another(server, patient):
    lease = grant(patient)
    waiters = Waiters(server, patient, 2)
    record = patient.release(lease, ADVANCED).record
    wait_until(lambda: waiters.left() == 1, "somebody may paint it")
    late = threading.Thread(target=patient.await_end, args=(ISSUE, 60), daemon=True)
    late.start()
    waiters.wait_until_blocked(2)
    assert late.is_alive(), "an issue that cannot be had is waited for"
    patient.acknowledge(record)
    wait_until(lambda: waiters.left() == 0, "the one who waited longest was woken")
    give_back(patient, grant(patient, "b"))
    late.join(timeout=60)
    assert not late.is_alive()


def test_whoever_asks_for_a_free_issue_does_not_wait(server, patient):
    clock = SystemClock()
    before = clock.now()
    patient.await_end(ISSUE, 60)
    assert patient.read(ISSUE) is None, "waiting made a record"
    turn(patient, "a")
    patient.await_end(ISSUE, 60)
    grant(patient, "b", ttl=timedelta(milliseconds=1))
    wait_until(lambda: not patient.read(ISSUE).live, "it expired")
    patient.await_end(ISSUE, 60)
    assert clock.now() - before < 60


def test_an_ending_tells_of_renewals_that_its_holder_never_heard_of(store):
    """The reply to a renewal was lost: what the holder knows of its record is not the whole."""
    lease = grant(store)
    assert isinstance(store.renew(lease), Renewed)
    released = store.release(lease, ADVANCED)
    assert isinstance(released, Released)
    assert released.record.lease.beats == 1


def test_without_waiters_nothing_is_written_for_them(server, store):
    turn(store, "a")
    with server.client() as client:
        assert client.exists(WAKE) == 0
        assert "lpush" not in calls(client)


def test_a_wake_that_nobody_takes_is_gone_soon(server, patient):
    lease = grant(patient)
    waiters = Waiters(server, patient, 1)
    give_back(patient, lease)
    wait_until(lambda: waiters.left() == 0, "the waiter was woken")
    for run in ("b", "c"):  # still thought to be awaited
        turn(patient, run)
    with server.client() as client:
        assert client.llen(WAKE) <= 1
        wait_until(lambda: client.exists(WAKE) == 0, "it expired")


def test_a_wait_is_made_of_turns_and_ends_in_time(server, open_store):
    store, clock = open_store(server.url("timeout=1.5")), SystemClock()
    grant(store)
    before = clock.now()
    store.await_end(ISSUE, 2)
    assert clock.now() - before >= 2
    with server.client() as client:
        assert calls(client)["blpop"] >= 3


# Lost connections


def behind(relay, query="timeout=20"):
    return f"redis://127.0.0.1:{relay.port}?{query}"


def test_lost_replies_have_no_second_effect(server, open_store):
    with Relay(server.port) as relay:
        store = open_store(behind(relay))
        assert store.read(ISSUE) is None  # connects, so that the reply to the grant is lost
        relay.lose_the_next_reply()
        lease = grant(store)
        assert relay.lost.is_set()
        assert [record.lease for record in store.live()] == [lease]
        relay.lose_the_next_reply()
        renewed = store.renew(lease)
        assert relay.lost.is_set()
        assert isinstance(renewed, Renewed)
        assert renewed.lease.beats == 1, "a renewal whose reply was lost was counted twice"
        relay.lose_the_next_reply()
        released = store.release(renewed.lease, ADVANCED)
        assert relay.lost.is_set()
        assert isinstance(released, Released)
        assert store.read(ISSUE).ending == ADVANCED


@pytest.mark.parametrize("force", [False, True])
def test_a_revoke_whose_reply_was_lost_tells_what_it_revoked(server, open_store, force):
    spoken = revocation("a", force=force)
    with Relay(server.port) as relay:
        store = open_store(behind(relay))
        grant(store)
        relay.lose_the_next_reply()
        told = store.revoke(ISSUE, spoken)
        assert relay.lost.is_set()
        assert told is not None
        assert (told.revocation, told.live) == (spoken, not force)


def test_what_somebody_else_ended_by_force_is_not_told_as_ours(server, open_store):
    with Relay(server.port) as relay:
        store, other = open_store(behind(relay)), open_store(server.url())
        grant(other)
        assert other.revoke(ISSUE, revocation("a", force=True)) is not None
        assert store.revoke(ISSUE, revocation("a", force=True)) is None, "not sent twice"
        relay.lose_the_next_reply()
        assert store.revoke(ISSUE, replace(revocation("a", force=True), by="another")) is None
        assert relay.lost.is_set()


def test_connections_that_broke_unnoticed_are_made_anew(server, open_store):
    with Relay(server.port) as relay:
        store = open_store(behind(relay))
        lease = grant(store)
        relay.break_connections()
        assert isinstance(store.renew(lease), Renewed)


@pytest.mark.parametrize("fault", ["silent", "cut", "frozen"])
def test_a_call_without_an_answer_ends_in_time(fault, open_store):
    clock = SystemClock()
    with running() as server, Relay(server.port) as relay:
        store = open_store(behind(relay, "timeout=1"))
        lease = grant(store)
        {"silent": relay.go_silent, "cut": relay.cut, "frozen": server.freeze}[fault]()
        for operation in (
            lambda: store.renew(lease),
            lambda: store.acquire(bid(ISSUE, "b", LONG)),
            lambda: store.await_end(ISSUE, 5),
        ):
            before = clock.now()
            with pytest.raises(Unavailable):
                operation()
            assert clock.now() - before < 30
        server.thaw()


def test_a_server_that_comes_back_is_used_again(open_store):
    with running(persistent=True) as server:
        store = open_store(server.url())
        lease = grant(store)
        server.kill()
        with pytest.raises(Unavailable):
            store.renew(lease)
        server.run()
        assert isinstance(store.renew(lease), Renewed)


def test_after_closing_nothing_is_asked(server, open_store):
    store = open_store(server.url())
    grant(store)
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        store.read(ISSUE)


# Sentinel, cluster, TLS, socket file


def test_a_failover_is_followed_through_the_sentinel(open_store):
    watched = Watched()
    try:
        store = open_store(watched.url())
        lease = grant(store)
        fences = [lease.fence, *(turn(store, f"r{n}", IssueRef("", str(n))) for n in range(3))]
        with watched.primary.client() as client:
            assert client.wait(1, 10_000) == 1, "the replica has it all"
        watched.fail_over()
        renewed = store.renew(lease)
        assert isinstance(renewed, Renewed), "the holder's lease survived the failover"
        assert isinstance(store.acquire(bid(ISSUE, "b", LONG)), Busy)
        give_back(store, renewed.lease)
        fences.append(turn(store, "b"))
        assert fences[-1] > max(fences[:-1])
        assert int(epoch_of(watched.replica)["floor"]) > max(fences[:-1])
    finally:
        watched.close()


def test_grants_that_a_failover_lost_are_outranked(open_store):
    """Replication is asynchronous: the next holder is granted beside the last, above its fence."""
    watched = Watched()
    try:
        store = open_store(watched.url())
        turn(store, "replicated")
        with watched.primary.client() as client:
            client.wait(1, 10_000)
        watched.replica.freeze()
        lost = grant(store, "lost")
        # What the primary has sent already is in the replica's buffers; a kill loses the rest.
        watched.primary.kill()
        watched.replica.thaw()
        watched.wait_for_the_promotion()
        with watched.replica.client() as client:
            client.delete(RECORD)  # make sure that it is lost
        assert grant(store, "next").fence > lost.fence
        assert isinstance(store.renew(lost), Lost)
    finally:
        watched.close()


def test_a_sentinel_is_asked_over_tls_if_the_url_says_so():
    """It is told a password, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as other:

        def first_byte():
            connection, _ = listener.accept()
            with connection:
                return connection.recv(1)

        heard = other.submit(first_byte)
        port = listener.getsockname()[1]
        with pytest.raises(Unavailable):
            RedisLeases.connect(f"rediss+sentinel://127.0.0.1:{port}/leases?timeout=5").highest()
        assert heard.result(30) == b"\x16", "a handshake of TLS"


def test_a_sentinel_that_is_not_there_is_told_as_an_outage():
    with pytest.raises(Unavailable, match="leases"):
        RedisLeases.connect(f"redis+sentinel://127.0.0.1:{free_port()}/leases?timeout=1").highest()


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two, of which each has half of the slots."""
    with ExitStack() as opened:
        pair = [ClusterNode(slots=slots) for slots in ((0, 8191), (8192, 16383))]
        for node in pair:
            opened.callback(node.close)
        pair[0].meet(pair[1])
        yield pair


def namespace_of(slots):
    names = (f"n{number}" for number in itertools.count())
    return next(name for name in names if key_slot(f"{{dibs:{name}}}".encode()) in slots)


def test_a_cluster_is_entered_by_any_node(nodes, open_store):
    asked = ",".join(f"127.0.0.1:{port}" for port in (free_port(), nodes[0].port))
    for slots in (range(8192), range(8192, 16384)):
        store = open_store(f"redis+cluster://{asked}?namespace={namespace_of(slots)}")
        assert store.name == f"redis+cluster://{asked}"
        turn(store, "a")
        assert len(store.live()) == 0


def test_a_namespace_that_moves_to_another_node_is_followed(nodes, open_store):
    name = namespace_of(range(8192, 16384))
    store = open_store(f"redis+cluster://127.0.0.1:{nodes[0].port}?namespace={name}")
    lease = grant(store)
    nodes[1].give_slot(key_slot(f"{{dibs:{name}}}".encode()), nodes[0])
    renewed = store.renew(lease)
    assert isinstance(renewed, Renewed)
    give_back(store, renewed.lease)
    assert turn(store, "b") > lease.fence
    with nodes[0].client() as client:
        epoch = client.hgetall(f"{{dibs:{name}}}:epoch")
        assert epoch["server"] == client.info("server")["run_id"]


def test_a_plain_url_into_a_cluster_follows_as_well(nodes, open_store):
    name = namespace_of(range(8192, 16000))
    turn(open_store(f"redis://127.0.0.1:{nodes[0].port}?namespace={name}"), "a")


def test_a_server_on_the_wrong_side_of_tls_comes_with_a_hint(server, open_store):
    with pytest.raises(Unavailable) as plain:
        open_store(f"rediss://127.0.0.1:{server.port}").highest()
    assert "redis://" in plain.value.hint
    with TlsRelay(server.port) as relay, pytest.raises(Unavailable) as ciphered:
        open_store(f"redis://localhost:{relay.port}").highest()
    assert "rediss://" in ciphered.value.hint
    for scheme in ("redis", "rediss"):
        with pytest.raises(Unavailable) as nobody:
            open_store(f"{scheme}://127.0.0.1:{free_port()}").highest()
        assert "TLS" not in nobody.value.hint


def test_tls_asks_for_proof(server, open_store):
    with TlsRelay(server.port) as relay, TlsRelay(server.port) as stranger:
        store = open_store(f"rediss://localhost:{relay.port}?ssl_ca_certs={relay.ca}")
        turn(store, "a")
        for query in (f"ssl_ca_certs={stranger.ca}", ""):
            with pytest.raises(NotPermitted, match="cannot prove"):
                RedisLeases.connect(f"rediss://localhost:{relay.port}?{query}").highest()


def test_a_socket_file_is_a_way_in(open_store):
    with running(unixsocket="here.sock") as server:
        path = server.folder / "here.sock"
        store = open_store(f"redis+unix://{path}?db=1")
        turn(store, "a")
        assert store.name == f"redis+unix://{path}"
        server.kill()
        with pytest.raises(Unavailable):
            store.read(ISSUE)


# Secrets and rights


def test_a_password_is_nowhere_to_be_seen(open_store):
    with running(requirepass=SECRET) as server:
        store = open_store(server.url(login=f":{SECRET}@"))
        turn(store, "a")
        texts = [store.name, repr(parse_redis_url(server.url(login=f"ada:{SECRET}@")))]
        for login in ("", ":wrong-horse@", "ada:wrong-horse@"):
            with pytest.raises(NotPermitted) as refused:
                RedisLeases.connect(server.url(login=login)).read(ISSUE)
            texts.append(str(refused.value))
        server.kill()
        with pytest.raises(Unavailable) as gone:
            store.read(ISSUE)
        texts.append(str(gone.value))
    assert store.name == f"redis://127.0.0.1:{server.port}"
    assert not [text for text in texts if "horse" in text or "ada" in text]


def test_a_user_needs_no_more_rights_than_the_page_says(server, open_store):
    with server.client() as client:
        client.acl_setuser(
            "dibs",
            enabled=True,
            passwords=[f"+{SECRET}"],
            keys=["{dibs:*"],
            commands=RIGHTS,
        )
        try:
            store = open_store(server.url(login=f"dibs:{SECRET}@"))
            lease = grant(store, limit=5)
            assert isinstance(store.acquire(bid(ISSUE, "b", LONG)), Busy)
            store.await_end(ISSUE, 0.01)
            assert isinstance(store.renew(lease), Renewed)
            assert len(store.live()) == 1
            assert store.revoke(ISSUE, revocation("a", force=True)) is not None
            lease = grant(store, "c")
            store.acknowledge(store.release(lease, ADVANCED).record)
            store.highest()
            client.acl_setuser("dibs", commands=["-zadd"])
            with pytest.raises(NotPermitted):
                store.acquire(bid(ISSUE, "d", LONG))
        finally:
            client.acl_deluser("dibs")


def test_the_page_explains_every_field_of_a_record():
    explained = set(re.findall(r"`(\w+)`", PAGE))
    assert explained >= {*FIELDS, "awaited_until"}


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://host", "scheme"),
        ("redis://", "no host"),
        ("redis://host:port", "port"),
        ("redis://host/first", "database"),
        ("redis://host?db=-1", "database"),
        ("redis+cluster://host/1", "only 0"),
        ("redis+sentinel://host:1", "service"),
        ("redis+unix://", "socket"),
        ("redis://host?namespace={x}", "namespace"),
        ("redis://host?namespace=", "namespace"),
        ("redis://host?timeout=soon", "timeout"),
        ("redis://host?timeout=-1", "timeout"),
        ("redis://host?timeout=nan", "timeout"),
        ("redis://host?retry=5", "retry"),
        ("rediss://host?ssl_ca_certs=/nowhere.pem", "ssl_ca_certs"),
        ("redis://:correct/horse@host", "%2F"),
        ("redis://ada:12/horse@host", "%2F"),
        ("redis://ada:12#horse@host", "%23"),
        ("redis://ada:12?horse@host", "%3F"),
        ("redis://[::1", "cannot be read"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_and_not_repeated(url, word):
    with pytest.raises(BadConfiguration, match=word) as refused:
        parse_redis_url(url)
    assert "horse" not in str(refused.value)


def test_what_a_url_says():
    url = parse_redis_url(
        "rediss+sentinel://ada:p%40ss@one:1,[::1]:2,three/leases/7?namespace=x&timeout=2.5"
        "&sentinel_password=s%26t"
    )
    assert url.name == "rediss+sentinel://one:1,[::1]:2,three/leases/7"
    assert url.addresses == (("one", 1), ("::1", 2), ("three", 26379))
    assert (url.service, url.db, url.namespace, url.timeout_s, url.tls) == (
        *("leases", 7, "x", 2.5, True),
    )
    assert url.credentials == {"username": "ada", "password": "p@ss"}
    assert url.sentinel_credentials == {"password": "s&t"}
    plain = parse_redis_url("redis://host")
    assert (plain.addresses, plain.db, plain.namespace) == ((("host", 6379),), 0, "dibs")
