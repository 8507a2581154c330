"""What only etcd can do to a lease: a leader that dies, a majority that is gone, a lease of etcd's
that is revoked, a snapshot from before, replies that never arrive.
"""

import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.servers.etcd import Certificates, Cluster, Etcd, single
from tests.servers.process import free_port, wait_until
from tests.servers.relay import Relay

from dibs.adapters.etcd.gateway import etcd_place
from dibs.adapters.etcd.leases import EtcdLeases
from dibs.adapters.system import SystemClock
from dibs.core.errors import (
    BadConfiguration,
    BadTtl,
    Damaged,
    Misuse,
    NotPermitted,
    Outage,
    Unavailable,
)
from dibs.core.ids import Fence, IssueRef
from dibs.core.lease import Busy, Full, Granted, Lost, Released, Renewed
from dibs.ports.leases import Waking
from dibs.testing.conformance.lease_harness import ADVANCED, CONCEDED, bid, record_of, revocation

LONG = timedelta(minutes=5)
ISSUE = IssueRef("acme/shop", "7")
_numbers = itertools.count()


@pytest.fixture
def opening():
    """Stores that are closed afterwards."""
    opened = []

    def open_store(url):
        store = EtcdLeases(url)
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def prefix():
    return f"own{next(_numbers)}"


@pytest.fixture
def server():
    return single()


@pytest.fixture
def store(server, prefix, opening):
    return opening(f"etcd://{server.endpoint}/{prefix}")


def granted(store, run="a", ttl=LONG, issue=ISSUE, **more):
    answer = store.acquire(replace(bid(issue, run, ttl), **more))
    assert isinstance(answer, Granted), answer
    return answer.lease


def end(store, lease):
    released = store.release(lease, ADVANCED)
    assert isinstance(released, Released), released
    store.acknowledge(released.record)


def seconds():
    return SystemClock().now()


class Spy:
    """Which requests a store makes."""

    def __init__(self, store):
        self.paths = []
        for endpoint in store._gateway._endpoints:
            endpoint.ask = self._spying(endpoint.ask)

    def _spying(self, ask):
        def spy(path, *rest):
            self.paths.append(path)
            return ask(path, *rest)

        return spy

    def during(self, operation):
        self.paths.clear()
        operation()
        return list(self.paths)


# One transaction each


def test_an_operation_is_one_transaction_once_the_store_is_warm(store):
    spy = Spy(store)
    first = spy.during(lambda: end(store, granted(store)))
    assert first == ["/v3/lease/grant"] + ["/v3/kv/txn"] * 3
    for number in range(50):
        end(store, granted(store, f"warm{number}"))
    leases = {}
    acquire = spy.during(lambda: leases.update(held=granted(store, "b")))
    renew = spy.during(lambda: leases.update(held=store.renew(leases["held"]).lease))
    release = spy.during(lambda: store.release(leases["held"], ADVANCED))
    again = spy.during(lambda: store.acquire(bid(ISSUE, "c", LONG)))
    for requests in (acquire, renew, release, again):
        # Asked for only if the server's second is in doubt, as when one has just begun.
        assert [path for path in requests if path != "/version"] == ["/v3/kv/txn"]


def test_a_stranger_learns_of_an_expired_lease_by_being_refused(server, store, prefix, opening):
    lease = granted(store, ttl=timedelta(seconds=0.5))
    wait_until(lambda: not record_of(store, ISSUE).live, "the lease is over")
    stranger = opening(f"etcd://{server.endpoint}/{prefix}")
    spy = Spy(stranger)
    requests = spy.during(lambda: granted(stranger, "b"))
    assert requests.count("/v3/kv/txn") == 2
    assert record_of(store, ISSUE).lease.granted_at >= lease.expires_at


# Time


def test_a_lease_is_never_shorter_than_was_asked_for(store):
    for ttl_s in (0.3, 1.7):
        issue = IssueRef("", f"ttl-{ttl_s}")
        for run in range(2):  # the second one may take what is left of an etcd lease
            asked = seconds()
            lease = granted(store, f"r{run}", timedelta(seconds=ttl_s), issue)
            assert lease.ttl == timedelta(seconds=ttl_s)
            assert lease.expires_at - lease.granted_at == lease.ttl
            wait_until(lambda issue=issue: not record_of(store, issue).live, "the lease is over")
            assert seconds() - asked >= ttl_s


def test_an_etcd_lease_serves_many_and_each_of_them_long_enough(server, store):
    held = {granted(store, f"r{n}", LONG, IssueRef("", str(n))).run for n in range(50)}
    assert {record.lease.run for record in store.live()} == held
    before = len(server.leases())
    for number in range(50, 100):
        granted(store, f"r{number}", LONG, IssueRef("", str(number)))
    assert len(server.leases()) <= before + 1


def test_contention_leaves_no_leases_behind(server, store, prefix, opening):
    others = [opening(f"etcd://{server.endpoint}/{prefix}") for _ in range(4)]
    lease = granted(store)
    before = len(server.leases())

    def bid_often(number):
        for turn in range(50):
            answer = others[number % 4].acquire(bid(ISSUE, f"t{number}-{turn}", LONG))
            assert isinstance(answer, Busy)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(bid_often, range(8)))
    assert len(server.leases()) <= before + len(others)
    assert isinstance(store.renew(lease), Renewed)


def test_a_revoked_lease_of_etcds_frees_the_issue_and_is_replaced(server, store):
    lease = granted(store)
    for etcds in server.leases():
        server.post("/v3/lease/revoke", {"ID": etcds})
    assert not record_of(store, ISSUE).live
    assert isinstance(store.renew(lease), Lost)
    assert granted(store, "b").fence > lease.fence


# What is written, and where


ODD = ["a/b#1", "..", "", "%2F", "é🦄", "held", "a b\nc", '"quoted"', "\x00", "/", "issues/x/open"]


def test_any_text_may_name_an_issue_and_a_stage(store):
    names = [IssueRef(repo, key) for repo in ODD for key in ODD]
    for number, issue in enumerate(names):
        lease = granted(store, f"r{number}", LONG, issue, stage=ODD[number % len(ODD)])
        assert record_of(store, issue).lease == lease
    assert {record.lease.issue for record in store.live()} == set(names)
    for stage in ODD:
        assert {record.lease.stage for record in store.live(stage)} == {stage}
    end(store, record_of(store, names[0]).lease)
    assert len(store.live()) == len(names) - 1


HALF = "x\udc80"


def test_half_a_letter_in_a_name_is_refused_and_in_prose_replaced(store):
    lease = granted(store, holder=HALF)
    assert record_of(store, ISSUE).lease.holder == lease.holder == "x?"
    assert store.revoke(ISSUE, replace(revocation("a"), by=HALF, reason=HALF)) is not None
    assert isinstance(store.release(lease, replace(ADVANCED, note=HALF)), Released)
    assert record_of(store, ISSUE).ending == replace(ADVANCED, note="x?")
    for wish in (
        bid(IssueRef(HALF, "1"), "b", LONG),
        bid(IssueRef("", HALF), "b", LONG),
        bid(IssueRef("", "1"), HALF, LONG),
        replace(bid(IssueRef("", "1"), "b", LONG), stage=HALF),
    ):
        with pytest.raises(Misuse):
            store.acquire(wish)
    for ask in (
        lambda: store.read(IssueRef("", HALF)),
        lambda: store.live(HALF),
        lambda: store.revoke(ISSUE, revocation(HALF)),
        lambda: store.release(lease, replace(ADVANCED, next=HALF)),
    ):
        with pytest.raises(Misuse):
            ask()


def test_what_etcd_will_never_take_is_not_tried_again(store):
    with pytest.raises(BadTtl):
        store.acquire(bid(ISSUE, "a", timedelta(seconds=10**10)))
    lease = granted(store)
    with pytest.raises(Damaged, match="larger than max"):
        store.release(lease, replace(ADVANCED, note="x" * 3_000_000))
    assert record_of(store, ISSUE).live


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (500, b"internal", Unavailable),
        (429, b"slow down", Unavailable),
        (404, b"nothing here", Damaged),
        (400, b'{"code": 11, "message": "required revision is a future revision"}', Unavailable),
        (400, b'{"code": 11, "message": "too large lease TTL"}', BadTtl),
    ],
)
def test_a_refusal_says_whether_a_later_try_may_help(opening, status, text, error):
    class Refusing(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        store = opening(f"etcd://127.0.0.1:{other.server_port}/dibs?timeout=0.5")
        with pytest.raises((Outage, Misuse)) as refused:
            store.read(ISSUE)
        assert type(refused.value) is error
        other.shutdown()


def test_a_renewal_extends_the_lease_by_its_ttl_and_no_more(store):
    lease = granted(store)
    renewed = store.renew(lease)
    assert isinstance(renewed, Renewed)
    assert lease.expires_at <= renewed.lease.expires_at < lease.expires_at + LONG


def test_a_lease_whose_records_were_deleted_is_lost(server, store, prefix, opening):
    lease = granted(store)
    server.ctl("del", "--prefix", f"{prefix}/")
    assert isinstance(store.renew(lease), Lost)
    assert isinstance(opening(f"etcd://{server.endpoint}/{prefix}").renew(lease), Lost)


def test_a_lease_begins_after_the_one_before_it_whatever_a_members_clock_says(
    server, store, prefix, opening
):
    """As if the member that wrote the earlier lease had a clock that is an hour ahead."""
    lease = granted(store)
    [(key, text)] = server.keys(f"{prefix}/issues/acme%2Fshop/7/open").items()
    ended_at = lease.expires_at + timedelta(hours=1)
    server.put(key, json.dumps(json.loads(text) | {"expires_at": ended_at.isoformat()}))
    server.ctl("del", f"{prefix}/issues/acme%2Fshop/7/held")  # as at the end of its time
    other = opening(f"etcd://{server.endpoint}/{prefix}")
    assert granted(other, "b").granted_at >= ended_at


def test_without_a_record_no_fence_was_granted(store):
    assert store.highest() == 0


def test_an_operator_reads_a_holder_with_etcdctl(server, store, prefix):
    lease = granted(store, "9f3ac2d1e0b4", holder="Ada's laptop")
    lines = server.ctl("get", f"{prefix}/live/ready/", "--prefix", "--print-value-only")
    told = json.loads(lines)
    assert (told["holder"], told["run"], told["stage"]) == ("Ada's laptop", lease.run, "ready")
    held = server.ctl("get", f"{prefix}/issues/acme%2Fshop/7/held", "-w", "json")
    assert json.loads(held)["kvs"][0]["create_revision"] == lease.fence
    end(store, lease)
    assert set(server.keys(f"{prefix}/")) == {f"{prefix}/issues/acme%2Fshop/7/done"}


def test_a_record_that_nobody_can_read_is_told_as_damage(server, store, prefix):
    server.put(f"{prefix}/issues/acme%2Fshop/7/open", "{")
    for operation in (lambda: store.read(ISSUE), lambda: store.acquire(bid(ISSUE, "a", LONG))):
        with pytest.raises(Damaged, match="open"):
            operation()
    server.put(f"{prefix}/floor", "many")
    with pytest.raises(Damaged, match="floor"):
        store.acquire(bid(IssueRef("", "8"), "a", LONG))


def test_live_leases_are_listed_page_by_page(store):
    runs = [granted(store, f"r{n}", LONG, IssueRef("", str(n))).run for n in range(1100)]
    assert [record.lease.run for record in store.live(limit=5000)] == runs
    assert [record.lease.run for record in store.live(limit=501)] == runs[:501]
    assert store.live(limit=0) == ()
    assert store.highest() == record_of(store, IssueRef("", "1099")).lease.fence


# Fences


def test_a_floor_is_kept_for_all_issues_and_raised_once(server, store, prefix, opening):
    first = granted(store, floor=Fence(10**9))
    floor = server.keys(f"{prefix}/floor")
    assert first.fence > 10**9
    other = opening(f"etcd://{server.endpoint}/{prefix}")
    later = granted(other, "b", issue=IssueRef("", "8"))
    assert later.fence > first.fence
    granted(store, "c", issue=IssueRef("", "9"), floor=Fence(10**9))
    assert server.keys(f"{prefix}/floor") == floor


def test_records_brought_from_a_cluster_with_higher_revisions_keep_their_fences(server, store):
    lease = granted(store)
    end(store, lease)
    key = f"{etcd_place(f'etcd://x/{store._keys.issues.decode()}').prefix}/acme%2Fshop/7/done"
    (text,) = server.keys(key).values()
    brought = json.loads(text) | {"fence": 10**12}
    server.put(key, json.dumps(brought))
    assert store.highest() == 10**12
    again = granted(store, "b")
    assert again.fence > 10**12
    assert record_of(store, ISSUE).lease == again
    assert [record.lease.fence for record in store.live()] == [again.fence]


def test_a_grant_below_an_old_fence_that_a_crash_left_behind_is_not_handed_out(server, store):
    """As if the bidder had died between its transaction and the look at what came back."""
    lease = granted(store)
    prefix = store._keys.issues.decode()
    (text,) = server.keys(f"{prefix}acme%2Fshop/7/open").values()
    old = json.loads(text) | {"run": "old", "fence": 10**12, "ending": {"outcome": "advanced"}}
    server.put(f"{prefix}acme%2Fshop/7/done", json.dumps(old))
    again = granted(store, lease.run)
    assert again.fence > 10**12


def test_an_operator_may_raise_the_floor_by_hand(server, store, prefix):
    """As after restoring a snapshot, where etcd itself cannot."""
    end(store, granted(store))
    server.ctl("put", f"{prefix}/floor", "5000000")
    assert granted(store, "b").fence > 5_000_000


def test_a_client_that_saw_later_revisions_refuses_an_old_snapshot(tmp_path, opening):
    server = Etcd()
    server.start()
    try:
        store = opening(f"etcd://{server.endpoint}/dibs")
        granted(store)
        server.ctl("snapshot", "save", str(tmp_path / "backup"))
        for number in range(20):
            granted(store, f"r{number}", issue=IssueRef("", str(number)))
        server.restore(tmp_path / "backup")
        with pytest.raises(Damaged, match="went back"):
            store.acquire(bid(IssueRef("", "99"), "x", LONG))
        with pytest.raises(Damaged, match="went back"):
            store.live()
    finally:
        server.close()


# Counting


def test_several_limits_and_bids_without_one_are_counted_together(store):
    granted(store, "free", issue=IssueRef("", "0"))
    granted(store, "one", issue=IssueRef("", "1"), limit=2)
    assert store.acquire(replace(bid(IssueRef("", "2"), "two", LONG), limit=2)) == Full(2)
    granted(store, "three", issue=IssueRef("", "3"), limit=3)
    assert store.acquire(replace(bid(IssueRef("", "4"), "four", LONG), limit=1)) == Full(3)
    assert store.acquire(replace(bid(IssueRef("", "4"), "four", LONG), limit=0)) == Full(3)
    short = timedelta(seconds=0.5)
    gone = granted(store, "brief", short, IssueRef("", "5"), limit=4)
    wait_until(lambda: not record_of(store, gone.issue).live, "the lease is over")
    granted(store, "six", issue=IssueRef("", "6"), limit=4)
    assert len(store.live("ready")) == 4


# Waiting


def test_a_waiter_is_woken_by_a_release(server, store, prefix, opening):
    assert isinstance(store, Waking)
    other = opening(f"etcd://{server.endpoint}/{prefix}")
    lease = granted(store)
    assert isinstance(other.acquire(bid(ISSUE, "b", LONG)), Busy)
    began = seconds()
    timer = threading.Timer(0.2, store.release, (lease, CONCEDED))
    timer.start()
    other.await_end(ISSUE, 60)
    assert 0.1 < seconds() - began < 30
    timer.join()
    assert isinstance(other.acquire(bid(ISSUE, "b", LONG)), Granted)


def test_a_waiter_is_woken_by_an_expiry(store):
    granted(store, ttl=timedelta(seconds=0.5))
    began = seconds()
    store.await_end(ISSUE, 60)
    assert seconds() - began < 30
    assert isinstance(store.acquire(bid(ISSUE, "b", LONG)), Granted)


def test_an_end_between_the_refusal_and_the_wait_is_not_missed(server, store, prefix, opening):
    other = opening(f"etcd://{server.endpoint}/{prefix}")
    lease = granted(store)
    assert isinstance(other.acquire(bid(ISSUE, "b", LONG)), Busy)
    assert isinstance(store.release(lease, CONCEDED), Released)
    began = seconds()
    other.await_end(ISSUE, 60)
    assert seconds() - began < 30


def test_a_waiter_waits_for_the_painting_of_an_ending(server, store, prefix, opening):
    other = opening(f"etcd://{server.endpoint}/{prefix}")
    released = store.release(granted(store), ADVANCED)
    assert isinstance(other.acquire(bid(ISSUE, "b", LONG)), Busy)
    timer = threading.Timer(0.2, store.acknowledge, (released.record,))
    timer.start()
    other.await_end(ISSUE, 60)
    timer.join()
    assert isinstance(other.acquire(bid(ISSUE, "b", LONG)), Granted)


def test_a_free_issue_is_not_waited_for(server, store, prefix, opening):
    end(store, granted(store))
    for waiter in (store, opening(f"etcd://{server.endpoint}/{prefix}")):
        began = seconds()
        waiter.await_end(ISSUE, 30)
        assert seconds() - began < 30


def test_a_wait_is_over_when_its_time_is(store):
    store.await_end(ISSUE, 60)  # nobody holds it
    granted(store)
    began = seconds()
    store.await_end(ISSUE, 0.3)
    assert 0.25 < seconds() - began < 30


def test_renewals_wake_nobody(store):
    lease = granted(store)
    timer = threading.Timer(0.1, store.renew, (lease,))
    timer.start()
    began = seconds()
    store.await_end(ISSUE, 0.5)
    assert seconds() - began > 0.4
    timer.join()


def test_a_crowd_of_waiters_is_served_one_by_one(server, prefix, opening):
    stores = [opening(f"etcd://{server.endpoint}/{prefix}") for _ in range(4)]
    inside, served, flaws = [], [], []

    def wait_for_a_turn(number):
        store, run = stores[number % 4], f"w{number}"
        for _ in range(1000):
            answer = store.acquire(bid(ISSUE, run, LONG))
            if isinstance(answer, Granted):
                inside.append(run)
                flaws.extend([list(inside)] if len(inside) > 1 else [])
                served.append(run)
                inside.remove(run)
                store.release(answer.lease, CONCEDED)
                return
            store.await_end(ISSUE, 60)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(wait_for_a_turn, range(32)))
    assert sorted(served) == sorted(f"w{number}" for number in range(32))
    assert flaws == []


# Forks


def test_a_parent_and_its_child_are_never_both_granted_an_issue(server, prefix):
    place = f"etcd://{server.endpoint}/{prefix}?timeout=2"
    program = [sys.executable, "-m", "tests.conformance.fork_racer", "etcd", place, "25"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_child_of_a_fork_begins_with_nothing_of_its_parents(store, monkeypatch):
    granted(store, issue=IssueRef("", "warm"))
    parents, terms = store._gateway, store._terms
    (idle,) = parents._endpoints[0]._idle
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with terms._lock:  # as if a thread of the parent was just asking for an etcd lease
        store.close()
        assert idle.sock is not None, "the child closed a connection of its parent's"
        granted(store)
    assert store._terms is not terms
    assert store._gateway.revision > parents.revision > 0
    assert parents._endpoints[0]._idle == [idle]
    store.close()
    monkeypatch.undo()
    parents.close()


# Replies that are lost, and servers that are silent


@pytest.fixture
def relayed(server, prefix, opening):
    with Relay(server.port) as relay:
        yield relay, opening(f"etcd://127.0.0.1:{relay.port}/{prefix}?timeout=2")


def test_a_lost_reply_to_an_acquire_is_the_same_grant(relayed, store):
    relay, client = relayed
    granted(client, "warm", issue=IssueRef("", "warm"))
    client._gateway.now(client._gateway.deadline())
    relay.lose_the_next_reply()
    lease = granted(client)
    assert relay.lost.is_set()
    assert record_of(store, ISSUE).lease == lease
    assert len(store.live()) == 2


def test_a_lost_reply_to_a_release_counts(relayed, store):
    relay, client = relayed
    lease = granted(client)
    relay.lose_the_next_reply()
    released = client.release(lease, ADVANCED)
    assert relay.lost.is_set()
    assert isinstance(released, Released)
    assert record_of(store, ISSUE).ending == ADVANCED


def test_a_lost_reply_to_a_renewal_keeps_the_lease(relayed, store):
    relay, client = relayed
    lease = granted(client)
    client._gateway.now(client._gateway.deadline())
    relay.lose_the_next_reply()
    renewed = client.renew(lease)
    assert isinstance(renewed, Renewed)
    assert renewed.lease.fence == lease.fence
    assert record_of(store, ISSUE).live


def test_a_lost_reply_to_a_forced_revoke_is_told_as_done(relayed, store):
    relay, client = relayed
    granted(client)
    relay.lose_the_next_reply()
    record = client.revoke(ISSUE, revocation("a", force=True))
    assert relay.lost.is_set()
    assert record == record_of(store, ISSUE)
    assert record is not None
    assert not record.live
    assert client.revoke(ISSUE, revocation("a", force=True)) is None


@pytest.mark.long
def test_a_silent_server_is_unavailable_in_bounded_time(relayed):
    relay, client = relayed
    lease = granted(client)
    relay.go_silent()
    for operation in (
        lambda: client.acquire(bid(ISSUE, "b", LONG)),
        lambda: client.renew(lease),
        lambda: client.read(ISSUE),
        client.live,
    ):
        began = seconds()
        with pytest.raises(Unavailable):
            operation()
        assert seconds() - began < 20


def test_connections_that_died_while_idle_are_replaced(relayed):
    relay, client = relayed
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: granted(client, f"r{n}", issue=IssueRef("", str(n))), range(8)))
    relay.break_connections()
    assert len(client.live()) == 8


# Several members


def test_the_first_endpoint_may_be_dead(server, prefix, opening):
    store = opening(f"etcd://127.0.0.1:{free_port()},{server.endpoint}/{prefix}")
    end(store, granted(store))
    dead, _ = store._gateway._endpoints
    dead.ask = lambda *_: pytest.fail("a dead endpoint was asked first again")
    end(store, granted(store, "b"))
    with pytest.raises(Outage):
        opening(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/x").read(ISSUE)


@pytest.fixture(scope="module")
def cluster():
    three = Cluster()
    yield three
    three.close()


def when_it_answers(operation):
    """What it answers as soon as there is a leader."""
    answers = []

    def try_it():
        try:
            answers.append(operation())
        except Unavailable:
            return False
        return True

    wait_until(try_it, "the cluster has a leader again")
    return answers[0]


def test_a_lease_outlives_its_leader(cluster, prefix, opening):
    leader = cluster.leader
    store = opening(cluster.url(leader, prefix))
    lease, over = granted(store), granted(store, "z", issue=IssueRef("", "8"))
    end(store, over)
    leader.kill()
    try:
        renewed = when_it_answers(lambda: store.renew(lease))
        assert isinstance(renewed, Renewed)
        assert renewed.lease.fence == lease.fence
        assert isinstance(store.acquire(bid(ISSUE, "b", LONG)), Busy)
        end(store, renewed.lease)
        assert granted(store, "b").fence > lease.fence
        assert granted(store, "y", issue=over.issue).fence > over.fence
    finally:
        leader.restart()


@pytest.mark.long
def test_without_a_majority_nothing_is_granted(cluster, prefix, opening):
    leader = cluster.leader
    dead = [member for member in cluster.members if member is not leader]
    store = opening(cluster.url(leader, prefix, "?timeout=1"))
    held = granted(store, issue=IssueRef("", "8"))
    for member in dead:
        member.kill()
    try:
        for operation in (
            lambda: store.acquire(bid(ISSUE, "b", LONG)),
            lambda: store.renew(held),
            lambda: store.release(held, ADVANCED),
            lambda: store.read(ISSUE),
            store.live,
        ):
            began = seconds()
            with pytest.raises(Unavailable):
                operation()
            assert seconds() - began < 20
    finally:
        for member in dead:
            member.launch()
        for member in cluster.members:
            member.await_healthy()
    # What was sent to a leader without followers may yet be carried out: by that run, or not.
    record = when_it_answers(lambda: store.read(ISSUE))
    assert record is None or record.lease.run == "b"
    assert isinstance(when_it_answers(lambda: store.acquire(bid(ISSUE, "b", LONG))), Granted)


@pytest.mark.long
def test_a_leader_that_hung_takes_no_lease_along(cluster, prefix, opening):
    """It wakes up believing that it leads, and ends what it thinks is over (etcd issue 15247)."""
    leader = cluster.leader
    store = opening(cluster.url(leader, prefix, "?timeout=3"))
    ttl = timedelta(seconds=9)
    lease = granted(store, ttl=ttl)
    leader.freeze()
    try:
        began = renewed_at = seconds()
        while seconds() - began < 2 * ttl.total_seconds():
            asked = seconds()
            assert asked - renewed_at < ttl.total_seconds(), "the machine stalled for a whole ttl"
            if isinstance(when_it_answers(lambda: store.renew(lease)), Renewed):
                renewed_at = asked
            threading.Event().wait(0.2)
    finally:
        leader.thaw()
    leader.await_healthy()
    for _ in range(10):
        assert isinstance(when_it_answers(lambda: store.renew(lease)), Renewed)
        threading.Event().wait(0.1)
    assert record_of(store, ISSUE).lease.fence == lease.fence


# Who may ask


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    server = Etcd(tls=certificates)
    server.start()
    yield server, certificates
    server.close()


def test_tls_with_a_clients_certificate(secured, opening):
    server, own = secured
    store = opening(
        f"etcds://{server.endpoint}/dibs?ca={own.ca}&cert={own.cert}&key={own.key}&timeout=5"
    )
    assert store.name == f"etcds://{server.endpoint}/dibs"
    lease = granted(store)
    timer = threading.Timer(0.2, store.release, (lease, CONCEDED))
    timer.start()
    store.await_end(ISSUE, 60)
    timer.join()
    assert isinstance(store.acquire(bid(ISSUE, "b", LONG)), Granted)


def test_a_server_or_a_client_that_proves_nothing_is_refused(secured, opening):
    server, own = secured
    for options in (f"?cert={own.cert}&key={own.key}", f"?ca={own.ca}"):
        with pytest.raises(NotPermitted, match="certificates"):
            opening(f"etcds://{server.endpoint}/dibs{options}").read(ISSUE)
    with pytest.raises(Outage):
        opening(f"etcd://{server.endpoint}/dibs").read(ISSUE)


def test_a_certificate_with_a_name_is_turned_away_where_there_are_users(tmp_path, opening):
    own = Certificates(tmp_path)
    server = Etcd(tls=own)
    server.start()
    try:
        server.ctl("user", "add", "root:toor")
        server.ctl("user", "grant-role", "root", "root")
        server.ctl("auth", "enable")
        options = f"?ca={own.ca}&cert={own.cert}&key={own.key}"
        with pytest.raises(NotPermitted, match="CommonName"):
            opening(f"etcds://root:toor@{server.endpoint}/dibs{options}").read(ISSUE)
    finally:
        server.close()


@pytest.fixture(scope="module")
def guarded():
    """Users and roles: `worker` may touch what is below team-a."""
    server = Etcd("--auth-token-ttl", "2")
    server.start()
    server.ctl("user", "add", "root:toor")
    server.ctl("user", "grant-role", "root", "root")
    server.ctl("role", "add", "team-a")
    server.ctl("role", "grant-permission", "team-a", "--prefix=true", "readwrite", "team-a/")
    server.ctl("role", "add", "look")
    server.ctl("role", "grant-permission", "look", "--prefix=true", "read", "team-a/")
    server.ctl("user", "add", "board:b")
    server.ctl("user", "grant-role", "board", "look")
    server.ctl("user", "add", "worker:s3cret p%ss")
    server.ctl("user", "grant-role", "worker", "team-a")
    server.ctl("auth", "enable")
    yield server
    server.close()


def test_a_user_works_below_its_own_prefix_only(guarded, opening):
    store = opening(f"etcd://worker:s3cret%20p%25ss@{guarded.endpoint}/team-a")
    lease = granted(store)
    assert "s3cret" not in store.name
    assert "worker" not in store.name
    elsewhere = opening(f"etcd://worker:s3cret%20p%25ss@{guarded.endpoint}/team-b")
    for operation in (lambda: elsewhere.read(ISSUE), lambda: granted(elsewhere)):
        with pytest.raises(NotPermitted) as told:
            operation()
        assert "s3cret" not in str(told.value)
    board = opening(f"etcd://board:b@{guarded.endpoint}/team-a")
    assert [record.lease for record in board.live()] == [record_of(board, ISSUE).lease] == [lease]
    for operation in (
        lambda: board.release(lease, ADVANCED),
        lambda: board.acquire(bid(IssueRef("", "8"), "b", LONG)),
    ):
        with pytest.raises(NotPermitted):
            operation()
    # The server forgets a token that nobody shows, and one that was given before a restart.
    guarded.restart()
    assert isinstance(when_it_answers(lambda: store.renew(lease)), Renewed)
    timer = threading.Timer(0.2, store.release, (lease, CONCEDED))
    timer.start()
    store.await_end(ISSUE, 60)
    timer.join()


@pytest.mark.parametrize("who", ["", "worker:wrong@", "nobody:x@"])
def test_whoever_cannot_sign_in_is_told_so(guarded, opening, who):
    store = opening(f"etcd://{who}{guarded.endpoint}/team-a")
    for operation in (lambda: store.read(ISSUE), lambda: store.acquire(bid(ISSUE, "a", LONG))):
        with pytest.raises(NotPermitted) as told:
            operation()
        assert "wrong" not in str(told.value)


def test_a_user_is_let_in_before_and_after_there_are_users(opening):
    server = Etcd()
    server.start()
    try:
        store = opening(f"etcd://root:toor@{server.endpoint}/dibs")
        lease = granted(store)
        server.ctl("user", "add", "root:toor")
        server.ctl("user", "grant-role", "root", "root")
        server.ctl("auth", "enable")
        end(store, lease)
        granted(store, "b")
    finally:
        server.close()


def test_a_full_database_is_damage(opening):
    server = Etcd("--quota-backend-bytes", str(100_000))
    server.start()
    try:
        store = opening(f"etcd://{server.endpoint}/dibs")

        def fill():
            for number in range(2000):
                granted(store, f"r{number}", issue=IssueRef("", str(number)))

        with pytest.raises(Damaged, match="space"):
            fill()
        assert store.live(), "what is there can still be read"
    finally:
        server.close()


def test_another_server_than_etcd_is_damage(opening, tmp_path):
    import functools

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            self.send_error(405)

    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        store = opening(f"etcd://127.0.0.1:{other.server_port}/dibs")
        with pytest.raises(Damaged):
            store.read(ISSUE)
        other.shutdown()


# The URL


def test_the_parts_of_the_url():
    place = etcd_place("etcd://u%40x:p%3Aw@a:1,[::1]:2,c/team%20a/x?timeout=0.5")
    assert place.endpoints == (("a", 1), ("::1", 2), ("c", 2379))
    assert (place.user, place.password, place.prefix) == ("u@x", "p:w", "team a/x")
    assert place.timeout_s == 0.5
    assert place.name == "etcd://a:1,[::1]:2,c:2379/team a/x"
    assert "p:w" not in repr(place)
    assert etcd_place("etcd://a").prefix == "dibs"


@pytest.mark.parametrize(
    "url",
    [
        *("http://a", "etcd://", "etcd://a:x", "etcd://a,", "etcd://user:secret"),
        *("etcd://a?timeout=0", "etcd://a?timeout=x", "etcd://a?timeout=nan", "etcd://a?tmeout=5"),
        *("etcd://a?ca=x", "etcds://a?ca=/nowhere", "etcds://a?cert=/nowhere"),
        *("etcd://u:2024/secret@a:1/dibs", "etcd://u:2024?secret@a:1/dibs"),
        *("etcd://u:2024#secret@a:1/dibs", "etcd://u:[secret@a", "etcd://[a", "etcd://a/\udc80"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url):
    with pytest.raises(BadConfiguration) as told:
        etcd_place(url)
    assert "secret" not in str(told.value)


def test_a_forced_revoke_wakes_and_frees(server, store, prefix, opening):
    other = opening(f"etcd://{server.endpoint}/{prefix}")
    lease = granted(store)
    assert isinstance(other.acquire(bid(ISSUE, "b", LONG)), Busy)
    timer = threading.Timer(0.2, store.revoke, (ISSUE, revocation("a", force=True)))
    timer.start()
    other.await_end(ISSUE, 60)
    timer.join()
    assert granted(other, "b").fence > lease.fence
