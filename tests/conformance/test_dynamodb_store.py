"""DynamoDB leases beyond the suite: what is watched, what is lost on the way, what it costs."""

import json
import os
import subprocess
import sys
import threading
import traceback
from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import libfaketime
import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace
from tests.servers.dynamodb import REGION, DynamoServer
from tests.servers.process import wait_until
from tests.servers.relay import Relay

from dibs.adapters.dynamodb.leases import DynamoLeases
from dibs.adapters.dynamodb.table import DynamoPlace, DynamoTable, definition, parse_place
from dibs.adapters.sqlite.observations import FileObservations
from dibs.adapters.system import SystemClock, wall_clock
from dibs.core.errors import (
    BadConfiguration,
    Damaged,
    Misuse,
    NotPermitted,
    Outage,
    RateLimited,
    Unavailable,
)
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, StageName
from dibs.core.lease import (
    Bid,
    Busy,
    Full,
    Granted,
    Lease,
    Lost,
    Released,
    Renewed,
    StopAsked,
    Unproven,
)
from dibs.testing.clock import FakeClock
from dibs.testing.conformance.lease_harness import ADVANCED, CONCEDED, bid, record_of, revocation

from .dynamodb_harness import TABLE, dynamodb_leases, outwait
from .harnesses import files

TTL = timedelta(minutes=10)
TTL_S = TTL.total_seconds()
A_MOMENT_S = 0.001
SHORT = timedelta(seconds=1)


@pytest.fixture
def harness():
    with dynamodb_leases() as found:
        yield found


class Watcher:
    """A client with a clock and eyes of its own."""

    def __init__(self, harness) -> None:
        self.clock = FakeClock()
        self.store = harness.client(clock=self.clock)

    def ask(self, issue: IssueRef, run: str, **more):
        return self.store.acquire(replace(bid(issue, run, TTL), **more))

    def hold(self, issue: IssueRef, run: str, **more) -> Lease:
        granted = self.ask(issue, run, **more)
        assert isinstance(granted, Granted), f"{run} was not granted: {granted}"
        return granted.lease


@pytest.fixture
def watcher(harness):
    return lambda: Watcher(harness)


@contextmanager
def counting(store: DynamoLeases):
    """Which requests go out meanwhile."""
    sent: Counter[str] = Counter()

    def count(model, **_):
        sent[model.name] += 1

    events = store._table._client.meta.events
    events.register("before-call.dynamodb", count, unique_id="counting")
    try:
        yield sent
    finally:
        events.unregister("before-call.dynamodb", count, unique_id="counting")


@contextmanager
def answering(store: DynamoLeases, operation: str, code: str, times: int = 10**9):
    """The service refuses an operation, so often, with a code of its own."""
    left = [times]

    def refuse(**_):
        if left[0] > 0:
            left[0] -= 1
            raise ClientError({"Error": {"Code": code, "Message": "by the test"}}, operation)

    events, event = store._table._client.meta.events, f"before-call.dynamodb.{operation}"
    events.register(event, refuse, unique_id=code)
    try:
        yield
    finally:
        events.unregister(event, refuse, unique_id=code)


# Watching


def test_a_newcomer_waits_a_ttl_however_long_the_holder_is_dead(harness, watcher):
    issue, holder, newcomer = harness.issue(), watcher(), watcher()
    old = holder.hold(issue, "a")
    holder.clock.advance(100 * TTL_S)  # nobody has looked at it since
    first = newcomer.ask(issue, "b")
    assert isinstance(first, Busy), "a record was taken over at first sight"
    assert first.record.remaining == TTL
    newcomer.clock.advance(TTL_S - A_MOMENT_S)
    second = newcomer.ask(issue, "b")
    assert isinstance(second, Busy), "a record was taken over before it was watched for a ttl"
    assert second.record.remaining == timedelta(seconds=A_MOMENT_S)
    newcomer.clock.advance(A_MOMENT_S)
    new = newcomer.hold(issue, "b")
    assert new.fence == old.fence + 1
    assert isinstance(holder.store.renew(old), Lost)


def test_a_renewal_that_was_seen_starts_the_watch_again(harness, watcher):
    issue, holder, other = harness.issue(), watcher(), watcher()
    lease = holder.hold(issue, "a")
    other.ask(issue, "b")
    other.clock.advance(TTL_S - A_MOMENT_S)
    assert isinstance(holder.store.renew(lease), Renewed)
    other.clock.advance(A_MOMENT_S)
    assert isinstance(other.ask(issue, "b"), Busy), "the renewal was not noticed"
    other.clock.advance(TTL_S)
    other.hold(issue, "b")


def test_a_renewal_between_the_look_and_the_takeover_wins(harness, watcher):
    """The takeover is refused by the version, although by its own watch it was right."""
    issue, holder, other = harness.issue(), watcher(), watcher()
    lease = holder.hold(issue, "a")
    other.ask(issue, "b")
    other.clock.advance(TTL_S)
    renewals = []

    def renew_first(params, **_):
        if ":seen" in json.loads(params["body"]).get("ExpressionAttributeValues", {}):
            renewals.append(holder.store.renew(lease))

    events = other.store._table._client.meta.events
    events.register("before-call.dynamodb.UpdateItem", renew_first)
    answer = other.ask(issue, "b")
    assert [type(renewal) for renewal in renewals] == [Renewed]
    assert isinstance(answer, Busy)
    assert (answer.record.lease.run, answer.record.lease.beats) == ("a", 1)


def test_who_wrote_it_knows_it_from_before_it_was_sent(harness, watcher):
    """And refuses itself, so that nothing is revived that others may be taking over."""
    issue, holder = harness.issue(), watcher()
    lease = holder.hold(issue, "a")
    holder.clock.advance(TTL_S - A_MOMENT_S)
    assert record_of(holder.store, issue).live
    holder.clock.advance(A_MOMENT_S)
    assert isinstance(holder.store.renew(lease), Lost), "a late renewal revived the lease"
    assert isinstance(holder.store.release(lease, ADVANCED), Lost)
    assert record_of(holder.store, issue).ending is None


def test_what_one_has_watched_is_over_for_all(harness, watcher):
    """A process that lives for one command has watched nothing, and reads what others wrote."""
    issue, holder, other = harness.issue(), watcher(), watcher()
    lease = holder.hold(issue, "a")
    assert record_of(other.store, issue).live
    other.clock.advance(TTL_S)
    over = record_of(other.store, issue)
    assert not over.live
    assert over.as_of == over.lease.expires_at
    for client in (watcher(), holder):
        record = record_of(client.store, issue)
        assert not record.live, "somebody still reads it as live"
        assert record.lease == lease
        assert client.store.live() == ()
    assert isinstance(holder.store.renew(lease), Lost), "the holder revived it"
    watcher().hold(issue, "b")


def test_time_goes_on_after_the_end(harness, watcher):
    """A grace is counted from when it was seen to be over."""
    issue, other = harness.issue(), watcher()
    watcher().hold(issue, "a")
    other.store.read(issue)
    other.clock.advance(TTL_S + 7)
    newcomer = watcher()
    for client, seen_s in ((other, 7), (newcomer, 0)):
        for more_s in (0, 5):
            client.clock.advance(more_s)
            record = record_of(client.store, issue)
            assert record.as_of - record.lease.expires_at == timedelta(seconds=seen_s + more_s)


def test_time_goes_on_for_an_ending_that_nobody_has_painted(harness, watcher):
    """Others leave it alone while it is young; it must not stay so."""
    issue, holder, other = harness.issue(), watcher(), watcher()
    holder.store.release(holder.hold(issue, "a"), ADVANCED)
    for more_s in (0, 5, 30):
        other.clock.advance(more_s)
        record = record_of(other.store, issue)
        assert record.unpainted
        busy = other.ask(issue, "b")
        assert isinstance(busy, Busy)
        assert busy.record.as_of == record.as_of
    assert record.as_of - record.lease.expires_at == timedelta(seconds=35)


def test_a_lease_that_nobody_watched_may_be_renewed_late(harness, watcher):
    """By a process that does not know how old it is: nobody can have been granted it meanwhile."""
    issue, holder, resumed = harness.issue(), watcher(), watcher()
    lease = holder.hold(issue, "a")
    for client in (holder, resumed):
        client.clock.advance(2 * TTL_S)
    assert isinstance(resumed.store.renew(lease), Renewed)
    assert isinstance(holder.store.renew(lease), Renewed), "what another process kept is not over"


@pytest.mark.parametrize("limit", [None, 3], ids=["plain", "within-a-limit"])
def test_a_retried_acquire_may_be_trusted_from_the_retry_on(harness, watcher, limit):
    """A watcher that saw the first grant begins anew, although nothing shows that it changed."""
    issue, holder, other = harness.issue(), watcher(), watcher()
    lease = holder.hold(issue, "a", limit=limit)
    assert isinstance(other.ask(issue, "b"), Busy)
    for client in (holder, other):
        client.clock.advance(TTL_S - A_MOMENT_S)
    assert holder.hold(issue, "a", limit=limit) == lease
    other.clock.advance(A_MOMENT_S)
    assert isinstance(other.ask(issue, "b"), Busy), "it was taken while the retrier trusts it"
    assert isinstance(holder.store.renew(lease), Renewed)


def test_a_graceful_revoke_gives_no_time(harness, watcher):
    issue, holder, other = harness.issue(), watcher(), watcher()
    lease = holder.hold(issue, "a")
    other.ask(issue, "b")
    for client in (holder, other):
        client.clock.advance(TTL_S / 2)
    revoked = other.store.revoke(issue, revocation("a"))
    assert revoked is not None
    assert revoked.remaining == TTL / 2, "the revoke started the watch again"
    assert isinstance(holder.store.renew(lease), StopAsked)
    other.clock.advance(TTL_S / 2)
    assert other.store.revoke(issue, revocation("a")) is None, "what is over was revoked"
    other.hold(issue, "b")
    assert isinstance(holder.store.renew(lease), Lost)


@pytest.mark.long
def test_one_winner_in_every_race_for_an_expired_record(harness, watcher):
    holder, clients = watcher(), [watcher() for _ in range(6)]
    for round_ in range(50):
        issue = harness.issue()
        dead = holder.hold(issue, "dead")
        for client in clients:
            assert isinstance(client.ask(issue, "early"), Busy)
            client.clock.advance(TTL_S)
        gate, won = threading.Barrier(len(clients)), []

        def race(client, run, issue=issue, gate=gate, won=won):
            gate.wait(timeout=30)
            answer = client.ask(issue, run)
            if isinstance(answer, Granted):
                won.append(answer.lease)

        threads = [
            threading.Thread(target=race, args=(client, f"r{number}"))
            for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(won) == 1, f"round {round_}: {len(won)} were granted one record"
        assert won[0].fence == dead.fence + 1


def test_whoever_may_only_read_tells_what_it_has_watched(harness, watcher):
    issue, reader = harness.issue(), watcher()
    watcher().hold(issue, "a")
    with answering(reader.store, "UpdateItem", "AccessDeniedException"):
        assert record_of(reader.store, issue).live
        reader.clock.advance(TTL_S)
        assert not record_of(reader.store, issue).live
        assert reader.store.live() == ()
    assert record_of(watcher().store, issue).live, "it was written all the same"


# Other processes


_PROGRAM = """
import sys
from datetime import timedelta
from pathlib import Path

from dibs.adapters.dynamodb.leases import DynamoLeases
from dibs.adapters.sqlite.observations import FileObservations
from dibs.adapters.sqlite.database import Database
from dibs.core.ids import IssueRef
from dibs.core.lease import Granted
from dibs.testing.conformance.lease_harness import bid

url, sightings, key, run, ttl_s = sys.argv[1:]
seen = FileObservations(Database(Path(sightings))) if sightings else None
store = DynamoLeases.connect(url, seen)
answer = store.acquire(bid(IssueRef("", key), run, timedelta(seconds=float(ttl_s))))
print(type(answer).__name__)
if isinstance(answer, Granted):
    print(answer.lease.granted_at.isoformat())
    print(type(store.renew(answer.lease)).__name__)
"""


def in_a_process(
    harness, issue: IssueRef, run: str, *, ttl=TTL, sightings: Path | str = "", skew: str = ""
) -> list[str]:
    """Ask, and renew at once if it was granted, in a process of its own."""
    faked = {}
    if skew:
        library = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
        faked = {
            "LD_PRELOAD": str(library),
            "FAKETIME": skew,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    words = (harness.url(), sightings, issue.key, run, ttl.total_seconds())
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, words)],
        check=False,
        env=os.environ | faked,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_file_carries_a_sighting_to_the_next_process(harness):
    issue = harness.issue()
    assert isinstance(harness.store.acquire(bid(issue, "dead", SHORT)), Granted)
    with files() as opened:
        sightings = opened.path
        FileObservations(opened.open())
        first = in_a_process(harness, issue, "b", sightings=sightings)
        assert first == ["Busy"], "a process that sees it for the first time waits"
        outwait(SHORT.total_seconds())
        blind = in_a_process(harness, issue, "c")
        assert blind == ["Busy"], "a process without the file sees it for the first time, too"
        granted = in_a_process(harness, issue, "d", sightings=sightings)
        assert granted[0] == "Granted", "the sighting of the first process was not used"


@pytest.mark.parametrize("skew", ["+3600s", "-3600s"], ids=["ahead", "behind"])
def test_a_time_of_day_that_is_off_by_an_hour_changes_nothing(harness, skew):
    held, over = harness.issue(), harness.issue()
    kept = harness.store.acquire(bid(held, "a", TTL))
    assert isinstance(kept, Granted)
    assert in_a_process(harness, held, "b", skew=skew) == ["Busy"], "it took what another holds"

    word, granted_at, renewed = in_a_process(harness, over, "c", ttl=SHORT, skew=skew)
    assert (word, renewed) == ("Granted", "Renewed")
    off = abs(datetime.fromisoformat(granted_at) - wall_clock())
    assert off > timedelta(minutes=50), "the clock was not off at all"

    clock = SystemClock()
    asked_at = clock.now()
    first = harness.store.acquire(bid(over, "d", TTL))
    assert isinstance(first, Busy), "the lease of a client whose clock is off was over at once"
    assert timedelta() < first.record.remaining <= SHORT
    while not isinstance(taken := harness.store.acquire(bid(over, "d", TTL)), Granted):
        outwait(0.05)
    assert clock.now() - asked_at >= SHORT.total_seconds(), "it was not watched for a ttl"
    assert taken.lease.fence == first.record.lease.fence + 1
    assert isinstance(harness.store.renew(kept.lease), Renewed)


# Forks


@pytest.mark.long
def test_a_parent_and_its_child_are_never_both_granted_an_issue(harness):
    place = harness.url(timeout=2)
    program = [sys.executable, "-m", "tests.conformance.fork_racer", "dynamodb", place, "25"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_child_of_a_fork_has_a_client_of_its_own(harness, monkeypatch):
    store = harness.client()
    parents, closed = store._table._client, []
    close = parents.close
    monkeypatch.setattr(parents, "close", lambda: closed.append(parents))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    store.close()
    assert store._table._client is not parents
    assert store._table._client is store._table._client
    store.close()
    assert closed == [], "the child closed what its parent has open"
    close()


def test_an_answer_to_another_request_is_no_grant(harness):
    store = harness.client()

    def swap(parsed, **_):
        parsed.get("Attributes", {})["version"] = {"S": "another"}

    store._table._client.meta.events.register("after-call.dynamodb.UpdateItem", swap)
    with pytest.raises(Unavailable, match="another request"):
        store.acquire(bid(harness.issue(), "a", TTL))


# What gets lost on the way


@pytest.fixture
def lossy(harness):
    """A relay, and a client behind it."""
    with Relay(harness.server.port) as relay:
        url = harness.url(endpoint=f"http://127.0.0.1:{relay.port}", timeout=5)
        store = DynamoLeases.connect(url)
        yield relay, store
        store.close()


def test_a_lost_reply_to_an_acquire_is_read_back(harness, lossy):
    relay, store = lossy
    issue = harness.issue()
    relay.lose_the_next_reply()
    granted = store.acquire(bid(issue, "a", TTL))
    assert relay.lost.is_set()
    assert isinstance(granted, Granted), f"a bidder lost to itself: {granted}"
    record = record_of(harness.store, issue)
    assert (record.lease, record.lease.fence) == (granted.lease, 1)


def test_a_lost_reply_to_a_renewal_is_read_back(harness, lossy):
    relay, store = lossy
    granted = store.acquire(bid(harness.issue(), "a", TTL))
    relay.lose_the_next_reply()
    renewed = store.renew(granted.lease)
    assert relay.lost.is_set()
    assert isinstance(renewed, Renewed), f"a holder lost to itself: {renewed}"
    assert renewed.lease.beats == 1, "the renewal was done twice"


def test_a_lost_reply_to_an_ending_is_read_back(harness, lossy):
    relay, store = lossy
    issue = harness.issue()
    granted = store.acquire(bid(issue, "a", TTL))
    relay.lose_the_next_reply()
    released = store.release(granted.lease, ADVANCED)
    assert relay.lost.is_set()
    assert isinstance(released, Released), f"a holder lost to itself: {released}"
    assert record_of(harness.store, issue).ending == ADVANCED


def test_a_lost_reply_to_a_forced_revoke_is_read_back(harness, lossy):
    relay, store = lossy
    issue = harness.issue()
    assert isinstance(store.acquire(bid(issue, "a", TTL)), Granted)
    relay.lose_the_next_reply()
    record = store.revoke(issue, revocation("a", force=True))
    assert relay.lost.is_set()
    assert record is not None
    assert not record.live


def test_a_lost_reply_to_a_grant_within_a_limit_is_read_back(harness, lossy):
    relay, store = lossy
    issue = harness.issue()
    wish = replace(bid(issue, "a", TTL), limit=1)

    def lose(**_):
        relay.lose_the_next_reply()

    store._table._client.meta.events.register("before-call.dynamodb.TransactWriteItems", lose)
    granted = store.acquire(wish)
    assert relay.lost.is_set()
    assert isinstance(granted, Granted), f"a bidder lost to itself: {granted}"
    assert record_of(harness.store, issue).lease == granted.lease


@pytest.mark.parametrize("operation", ["acquire", "renew", "release", "read", "live"])
def test_a_silent_service_is_an_outage_in_time(harness, operation):
    with Relay(harness.server.port) as relay:
        store = DynamoLeases.connect(
            harness.url(endpoint=f"http://127.0.0.1:{relay.port}", timeout=0.5)
        )
        issue = harness.issue()
        lease = harness.store.acquire(bid(issue, "a", TTL)).lease
        wait_until(lambda: store.read(issue) is not None, "the store is connected")
        relay.go_silent()
        calls = {
            "acquire": lambda: store.acquire(bid(issue, "b", TTL)),
            "renew": lambda: store.renew(lease),
            "release": lambda: store.release(lease, ADVANCED),
            "read": lambda: store.read(issue),
            "live": store.live,
        }
        clock = SystemClock()
        asked_at = clock.now()
        with pytest.raises(Unavailable, match=f"dynamodb://{TABLE}"):
            calls[operation]()
        # Twice the timeout, a pause of the library's of at most a second, and a slow machine.
        assert clock.now() - asked_at < 30
        store.close()


# Fences


def test_a_floor_above_the_known_fence_takes_a_second_look(harness, watcher):
    issue, client = harness.issue(), watcher()
    assert client.hold(issue, "a", floor=Fence(41)).fence == 42
    client.store.release(client.hold(issue, "a"), CONCEDED)
    assert client.hold(issue, "b", floor=Fence(7)).fence == 43
    client.store.revoke(issue, revocation("b", force=True))
    assert client.hold(issue, "c", floor=Fence(99)).fence == 100
    client.store.revoke(issue, revocation("c", force=True))
    assert client.hold(issue, "d", floor=Fence(200), limit=5).fence == 201
    assert client.store.highest() == 201


# Limits


def test_a_dead_holder_counts_until_it_has_been_watched(harness, watcher):
    issues, client = [harness.issue() for _ in range(2)], watcher()
    watcher().hold(issues[0], "dead")
    assert client.ask(issues[1], "b", limit=1) == Full(1)
    client.clock.advance(TTL_S - A_MOMENT_S)
    assert client.ask(issues[1], "b", limit=1) == Full(1)
    client.clock.advance(A_MOMENT_S)
    client.hold(issues[1], "b", limit=1)
    assert not record_of(watcher().store, issues[0]).live, "its place was taken, and it lives on"


def test_a_grant_within_the_same_limit_meanwhile_makes_us_count_again(harness, watcher):
    """Counted, and not yet granted, when another is granted the last place."""
    issues, slow, quick = [harness.issue() for _ in range(2)], watcher(), watcher()
    raced = []

    def overtake(**_):
        if not raced:
            raced.append(quick.ask(issues[0], "quick", limit=1))

    events = slow.store._table._client.meta.events
    events.register("before-call.dynamodb.TransactWriteItems", overtake)
    answer = slow.ask(issues[1], "slow", limit=1)
    assert isinstance(raced[0], Granted)
    assert answer == Full(1), f"two were granted one place: {answer}"
    assert slow.store.read(issues[1]) is None


def test_nobody_counts_before_the_last_grant_can_be_seen(harness, watcher):
    """A transaction becomes visible item by item: here its turn is there, and its grant is not."""
    first, second, client = harness.issue(), harness.issue(), watcher()
    lease = client.hold(first, "a", limit=2)
    edit(harness, "stage:ready", "SET fence = :v", {"N": str(lease.fence + 1)})
    answer = client.ask(second, "b", limit=2)
    assert isinstance(answer, Unproven), f"it was counted although a grant is on its way: {answer}"
    assert "cannot be seen yet" in answer.why
    edit(harness, "stage:ready", "SET fence = :v", {"N": str(lease.fence)})
    client.hold(second, "b", limit=2)


def test_a_limit_that_cannot_be_settled_is_no_grant(harness, watcher):
    issue, client = harness.issue(), watcher()
    canceled = {
        "Error": {"Code": "TransactionCanceledException", "Message": ""},
        "CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}],
    }

    def collide(**_):
        raise ClientError(canceled, "TransactWriteItems")

    client.store._table._client.meta.events.register(
        "before-call.dynamodb.TransactWriteItems", collide
    )
    answer = client.ask(issue, "a", limit=1)
    assert isinstance(answer, Unproven)
    assert client.store.read(issue) is None


def test_a_write_that_meets_a_transaction_is_tried_again(harness, watcher):
    issue, client = harness.issue(), watcher()
    with answering(client.store, "UpdateItem", "TransactionConflictException", times=3):
        client.hold(issue, "a")
    with (
        answering(client.store, "UpdateItem", "TransactionConflictException"),
        pytest.raises(Unavailable, match="others kept writing"),
    ):
        client.store.revoke(issue, revocation("a"))


# What it costs


def test_every_operation_is_one_request(harness, watcher):
    issue, client = harness.issue(), watcher()
    with counting(client.store) as sent:
        lease = client.hold(issue, "a")
        assert isinstance(client.ask(issue, "b"), Busy)
        client.store.renew(lease)
        client.store.revoke(issue, revocation("a"))
        released = client.store.release(lease, ADVANCED)
        client.store.acknowledge(released.record)
        client.hold(issue, "c")
    assert sent == {"UpdateItem": 7}
    with counting(client.store) as sent:
        client.store.read(issue)
    assert sent == {"GetItem": 1}


def test_a_takeover_is_two_requests(harness, watcher):
    issue, client = harness.issue(), watcher()
    watcher().hold(issue, "a")
    client.store.read(issue)
    client.clock.advance(TTL_S)
    with counting(client.store) as sent:
        client.hold(issue, "b")
    assert sent == {"UpdateItem": 2}


def test_what_is_live_is_listed_page_by_page_in_the_order_of_the_grants(harness):
    """Over two hundred leases are more than two pages; those that are over are not even read."""
    store, runs = harness.store, [f"r{number:03}" for number in range(205)]
    for run in runs:
        stage = "review" if run.endswith("7") else "ready"
        issue = IssueRef("acme/shop", run)
        assert isinstance(store.acquire(bid(issue, run, TTL, stage=stage)), Granted)
        outwait(0.001)  # stamps are in milliseconds
    for number in range(20):
        ended = store.acquire(bid(IssueRef("acme/shop", f"over{number}"), f"over{number}", TTL))
        store.release(ended.lease, CONCEDED)
    with counting(harness.another()) as sent:
        listed = [record.lease.run for record in harness.another().live()]
    assert listed == runs
    assert sent == {"Query": 3, "BatchGetItem": 3}
    assert [record.lease.run for record in store.live(limit=150)] == runs[:150]
    review = [run for run in runs if run.endswith("7")]
    assert [record.lease.run for record in store.live("review")] == review
    assert {record.lease.issue.repo for record in store.live(limit=3)} == {"acme/shop"}
    assert store.live(limit=0) == ()


# What an operator sees


def test_an_item_is_legible(harness):
    issue = IssueRef("acme/shop", "12")
    wish = Bid(issue, RunId("9f3ac2d1e0b4"), HolderId("Ada's laptop"), StageName("ready"), TTL)
    granted = harness.store.acquire(wish)
    harness.store.revoke(issue, revocation(wish.run))
    raw = boto3.client(
        "dynamodb", region_name=REGION, endpoint_url=harness.server.endpoint
    ).get_item(
        TableName=TABLE,
        Key={"namespace": {"S": harness.namespace}, "record": {"S": "issue:acme/shop#12"}},
    )["Item"]
    item = {name: next(iter(value.values())) for name, value in raw.items()}
    assert item.pop("version")
    for stamp in ("granted_at", "expires_at", "since"):
        moment = datetime.fromisoformat(item.pop(stamp))
        assert abs(moment - wall_clock()) < 2 * TTL
    assert item == {
        "namespace": harness.namespace,
        "record": "issue:acme/shop#12",
        "state": "held",
        "run": "9f3ac2d1e0b4",
        "holder": "Ada's laptop",
        "stage": "ready",
        "fence": "1",
        "ttl_ms": str(int(TTL_S * 1000)),
        "beats": "0",
        "revoked_by": "ada",
        "revoked_why": "wrong branch",
        "revoked_now": False,
    }
    assert isinstance(harness.store.release(granted.lease, ADVANCED), Released)


@pytest.mark.parametrize(
    "ref",
    [
        IssueRef("", "1"),
        IssueRef("acme/shop", "12"),
        IssueRef("a b/ü#", "A-1#%/x"),
        IssueRef("", "é"),
    ],
    ids=str,
)
def test_any_issue_has_a_record_of_its_own(harness, ref):
    granted = harness.store.acquire(bid(ref, "a", TTL))
    assert granted.lease.issue == ref
    assert [record.lease.issue for record in harness.store.live()] == [ref]
    assert record_of(harness.another(), ref).lease == granted.lease


def test_half_a_letter_in_a_name_is_refused_and_in_prose_replaced(harness):
    store, issue, half = harness.store, harness.issue(), "x\udc80"
    lease = store.acquire(replace(bid(issue, "a", TTL), holder=half)).lease
    assert record_of(store, issue).lease.holder == lease.holder == "x?"
    assert store.revoke(issue, replace(revocation("a"), by=half, reason=half)) is not None
    assert isinstance(store.release(lease, replace(ADVANCED, note=half)), Released)
    assert record_of(store, issue).ending == replace(ADVANCED, note="x?")
    for ask in (
        lambda: store.acquire(bid(IssueRef(half, "1"), "b", TTL)),
        lambda: store.acquire(bid(IssueRef("", half), "b", TTL)),
        lambda: store.acquire(bid(IssueRef("", "1"), half, TTL)),
        lambda: store.acquire(replace(bid(IssueRef("", "1"), "b", TTL), stage=half)),
        lambda: store.read(IssueRef("", half)),
        lambda: store.live(half),
        lambda: store.revoke(issue, revocation(half)),
        lambda: store.release(lease, replace(ADVANCED, next=half)),
    ):
        with pytest.raises(Misuse):
            ask()


@pytest.mark.parametrize(
    "elsewhere",
    [{"region": "us-east-1"}, {"endpoint": "http://ada:geheim@127.0.0.1:1"}, {"namespace": "x"}],
    ids=lambda elsewhere: next(iter(elsewhere)),
)
def test_tables_of_one_name_do_not_share_their_sightings(harness, elsewhere):
    def identity(**options):
        table = DynamoTable(parse_place(harness.server.url(TABLE, **options)), SystemClock())
        table.close()
        return table.identity

    assert identity() == identity(timeout=1)
    assert identity() != identity(**elsewhere)
    assert "geheim" not in identity(**elsewhere)


def test_namespaces_of_one_table_do_not_meet(harness):
    issue = harness.issue()
    assert isinstance(harness.store.acquire(bid(issue, "a", TTL)), Granted)
    with dynamodb_leases() as other:
        assert other.store.read(issue) is None
        assert other.store.live() == ()
        assert other.store.highest() == 0
        assert isinstance(other.store.acquire(bid(issue, "b", TTL)), Granted)


def test_what_people_add_to_an_item_is_left_alone(harness):
    issue = harness.issue()
    granted = harness.store.acquire(bid(issue, "a", TTL))
    edit(harness, f"issue:#{issue.key}", "SET labels = :v", {"L": [{"S": "urgent"}]})
    assert isinstance(harness.store.renew(granted.lease), Renewed)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("fence", {"S": "many"}),
        ("state", {"N": "3"}),
        ("expires_at", {"S": "tomorrow"}),
        ("version", {"BOOL": True}),
    ],
)
def test_an_item_that_was_spoilt_is_damage(harness, attribute, value):
    issue = harness.issue()
    assert isinstance(harness.store.acquire(bid(issue, "a", TTL)), Granted)
    edit(harness, f"issue:#{issue.key}", f"SET #{attribute} = :v", value)
    with pytest.raises(Damaged, match=f"no usable '{attribute}'"):
        harness.store.read(issue)


def edit(harness, record: str, update: str, value) -> None:
    """As an operator might, by hand."""
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=harness.server.endpoint)
    name = update.split()[1]
    names = {"ExpressionAttributeNames": {name: name[1:]}} if name.startswith("#") else {}
    client.update_item(
        TableName=TABLE,
        Key={"namespace": {"S": harness.namespace}, "record": {"S": record}},
        UpdateExpression=update,
        ExpressionAttributeValues={":v": value},
        **names,
    )


# Where it is, and what may go wrong there


def test_a_place_is_read_from_its_url():
    assert parse_place("dynamodb://Leases") == DynamoPlace("Leases")
    assert parse_place(
        "dynamodb://my.leases-1?region=eu-central-1&endpoint=http://127.0.0.1:8000"
        "&timeout=2.5&namespace=shop&create=true"
    ) == DynamoPlace(
        "my.leases-1", "eu-central-1", "http://127.0.0.1:8000", 2.5, "shop", create=True
    )


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("dynamodb://", "cannot be the name"),
        ("dynamodb://ab", "cannot be the name"),
        ("dynamodb://a table", "cannot be the name"),
        ("dynamodb://leases/path", "is written as"),
        ("dynamodb://leases#part", "is written as"),
        ("dynamodb://AKIA:secret@leases", "is written as"),
        ("dynamodb://leases?tiemout=5", "no option tiemout"),
        ("dynamodb://leases?timeout=soon", "timeout 'soon'"),
        ("dynamodb://leases?timeout=0", "timeout '0'"),
        ("dynamodb://leases?timeout=nan", "timeout 'nan'"),
        ("dynamodb://leases?create=yes", "create may be true or false"),
        ("dynamodb://leases?endpoint=localhost:8000", "endpoint must begin"),
        ("dynamodb://leases?endpoint=http://[secret", "endpoint must begin"),
        ("dynamodb://leases?endpoint=http://u:secret@h:x", "endpoint must begin"),
        ("dynamodb://[secret", "is written as"),
        ("dynamodb://AKIA?secret@leases", "is written as"),
        ("dynamodb://AKIA:x/secret@leases", "is written as"),
        ("dynamodb://leases?namespace=\udc80", "is written as"),
    ],
)
def test_a_place_that_makes_no_sense_is_a_bad_setting(url, told):
    with pytest.raises(BadConfiguration, match=told) as failure:
        parse_place(url)
    assert "secret" not in str(failure.value)


def test_a_region_has_to_be_known(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(BadConfiguration, match="names no region"):
        DynamoLeases.connect("dynamodb://leases")


def test_a_missing_table_says_what_to_do(harness):
    store = DynamoLeases.connect(harness.server.url("nowhere"))
    for call in (
        lambda: store.read(harness.issue()),
        lambda: store.acquire(bid(harness.issue(), "a", TTL)),
        store.live,
    ):
        with pytest.raises(Damaged, match=r"no such table in region .*create=true"):
            call()
    store.close()


def test_a_table_without_its_index_is_damage(harness):
    shape = definition("plain")
    del shape["LocalSecondaryIndexes"]
    shape["AttributeDefinitions"] = shape["AttributeDefinitions"][:2]
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=harness.server.endpoint)
    client.create_table(**shape)
    store = DynamoLeases.connect(harness.server.url("plain"))
    with pytest.raises(Damaged, match=r"not as it should be.*in_flight"):
        store.live()
    store.close()


def test_the_table_is_the_one_that_the_page_shows():
    page = (Path(__file__).parents[2] / "docs/stores/dynamodb.md").read_text("utf-8")
    shown = json.loads(page.partition("```json")[2].partition("```")[0])
    assert shown == definition("dibs-leases")


def test_many_may_create_the_table_at_once(harness):
    table = f"fresh-{harness.namespace}"
    clients = [DynamoLeases.connect(harness.server.url(table, create="true")) for _ in range(4)]
    gate, answers = threading.Barrier(len(clients)), []

    def ask(client, run):
        gate.wait(timeout=30)
        answers.append(client.acquire(bid(IssueRef("", "1"), run, TTL)))

    threads = [
        threading.Thread(target=ask, args=(client, f"r{number}"))
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(type(answer).__name__ for answer in answers) == ["Busy"] * 3 + ["Granted"]
    for client in clients:
        client.close()


@contextmanager
def saying(status: int, body: bytes):
    """A service that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=30)


def problem(code: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws#{code}", "message": "it was said"}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, problem("ProvisionedThroughputExceededException"), RateLimited),
        (400, problem("ThrottlingException"), RateLimited),
        (400, problem("RequestLimitExceeded"), RateLimited),
        (400, problem("AccessDeniedException"), NotPermitted),
        (400, problem("UnrecognizedClientException"), NotPermitted),
        (400, problem("InvalidSignatureException"), NotPermitted),
        (400, problem("ExpiredTokenException"), NotPermitted),
        (403, b"{}", NotPermitted),
        (400, problem("ItemCollectionSizeLimitExceededException"), Damaged),
        (400, problem("ValidationException"), Damaged),
        (500, problem("InternalServerError"), Unavailable),
        (503, b"", Unavailable),
        (200, b"<html>welcome to our network</html>", Unavailable),
        (200, b"{}", Unavailable),
    ],
    ids=lambda value: value.decode()[:60] if isinstance(value, bytes) else str(value),
)
def test_every_failure_of_the_service_is_one_of_ours(harness, status, body, kind):
    with saying(status, body) as endpoint:
        store = DynamoLeases.connect(harness.url(endpoint=endpoint))
        for call in (
            lambda: store.acquire(bid(harness.issue(), "a", TTL)),
            lambda: store.acquire(replace(bid(harness.issue(), "a", TTL), limit=2)),
            lambda: store.read(harness.issue()),
            store.live,
        ):
            with pytest.raises(Outage) as failure:
                call()
            assert type(failure.value) is kind
            assert f"dynamodb://{TABLE}" in str(failure.value)
        store.close()


def test_an_endpoints_password_is_told_nobody(harness):
    store = DynamoLeases.connect(harness.url(endpoint="http://ada:geheim@127.0.0.1:1", timeout=0.2))
    assert store.name == f"dynamodb://{TABLE}"
    with pytest.raises(Unavailable) as failure:
        store.read(harness.issue())
    assert "geheim" not in "".join(traceback.format_exception(failure.value))
    store.close()


def test_without_credentials_nothing_is_permitted(harness, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    store = DynamoLeases.connect(harness.url())
    with pytest.raises(NotPermitted, match="no usable AWS credentials"):
        store.read(harness.issue())
    store.close()


# What the emulator does, so that nobody reads more into these tests than there is


@pytest.mark.long
def test_a_killed_emulator_forgets():
    """It comes back as it last ended in good order, so nothing here shows what DynamoDB keeps."""
    server = DynamoServer()
    store = DynamoLeases.connect(server.url(TABLE, create="true"))
    issue = IssueRef("", "1")
    granted = store.acquire(bid(issue, "a", TTL))
    server.restart()
    assert record_of(store, issue).lease == granted.lease
    assert isinstance(store.renew(granted.lease), Renewed)
    server.kill()
    server.start()
    assert record_of(store, issue).lease == granted.lease, "the renewal was on its disk after all"
    store.close()
    server.close()
