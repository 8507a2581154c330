"""etcd: acquire and release one free key over the JSON gateway, beside two raw transactions.

The floor puts a key that does not exist yet, attached to a lease of etcd's, and deletes it if it is
ours: its fence is the revision of the first. It asks over one kept connection of `http.client`, as
ours does.
"""

import base64
import http.client
import json
from contextlib import ExitStack, closing
from importlib.metadata import version
from secrets import token_hex
from typing import Any

from tests.servers.etcd import Etcd

from benchmarks.leases import ours, paired
from benchmarks.leases.paired import Contestant, Role, cycles_of
from benchmarks.tables import Result, Say
from dibs.adapters.etcd.leases import EtcdLeases

QUESTION = "etcd: acquire + release on one key, one thread"
CYCLES = 10
_FLOOR_LEASE_S = 3600
_NOTES = """\
floor: two Txn over HTTP, of one comparison and one write each; its etcd lease is granted once,
before, and serves every cycle. A lock that asks for a lease of its own each time makes three
requests, as tooz does
ours: EtcdLeases.acquire and .release, with a new run for each cycle; an etcd lease serves every
grant for a tenth of the ttl and is then asked for anew, inside the time; three keys a grant
tooz: its etcd3gw driver, blocking=False; LeaseGrant, Txn, Txn; it leaves its leases to expire
requests: gRPC calls that the server began, per cycle (/metrics)
"""


def run(*, rounds: int, durable: bool, say: Say) -> Result:
    result = Result(QUESTION)
    with ExitStack() as opened:
        say("etcd: starting etcd")
        server = started(opened, durable=durable)
        contestants = paired.with_control([make(server, opened) for make in _SIDES])
        paired.count_requests(contestants, lambda: calls(server))
        paired.race("etcd", contestants, rounds=rounds, cycles=CYCLES, say=say)
        told = server.get("/version")["etcdserver"]
    kept = "writes are synced" if durable else "writes are not synced (--unsafe-no-fsync)"
    result.tables = [paired.speeds(contestants, CYCLES), paired.gains(contestants, ours.HEADS)]
    result.notes = [paired.LEGEND, _NOTES, f"server: etcd {told}, one member on loopback, {kept}"]
    result.checks = [paired.behind_none(contestants)]
    return result


def started(opened: ExitStack, *, durable: bool) -> Any:
    server = opened.enter_context(closing(Etcd(*(() if durable else ("--unsafe-no-fsync",)))))
    server.start()
    return server


def calls(server: Any) -> float:
    """How many gRPC calls the server has begun, the gateway's included."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    with closing(connection):
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    begun = (line for line in lines if line.startswith("grpc_server_started_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in begun)


def _floor(server: Any, opened: ExitStack) -> Contestant:
    connection = opened.enter_context(
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30))
    )

    def ask(path: str, body: dict[str, Any]) -> Any:
        connection.request("POST", path, json.dumps(body))
        return json.loads(connection.getresponse().read())

    lease = ask("/v3/lease/grant", {"TTL": _FLOOR_LEASE_S})["ID"]
    key = _text("floor")
    absent = [{"key": key, "target": "CREATE", "create_revision": 0}]
    gone = [{"request_delete_range": {"key": key}}]

    def cycle() -> None:
        token = _text(token_hex(6))
        put = {"request_put": {"key": key, "value": token, "lease": lease}}
        granted = ask("/v3/kv/txn", {"compare": absent, "success": [put]})
        assert granted["succeeded"]
        assert int(granted["header"]["revision"])
        mine = [{"key": key, "target": "VALUE", "value": token}]
        assert ask("/v3/kv/txn", {"compare": mine, "success": gone})["succeeded"]

    gives = ("yes", "yes", "a random token", "yes, not renewed", "refused")
    return Contestant("floor: two Txn", Role.FLOOR, cycles_of(cycle), gives)


def _ours(server: Any, opened: ExitStack) -> Contestant:
    store = opened.enter_context(closing(EtcdLeases(f"etcd://{server.endpoint}/bench")))
    batch = cycles_of(ours.cycle_of(store))
    return Contestant("dibs, EtcdLeases", Role.OURS, batch, ours.GIVES)


def _tooz(server: Any, opened: ExitStack) -> Contestant:
    from tooz import coordination

    coordinator: Any = coordination.get_coordinator(
        f"etcd3+http://127.0.0.1:{server.port}?lock_timeout={ours.TTL_S}", b"bench-1"
    )
    coordinator.start()
    opened.callback(coordinator.stop)
    lock = coordinator.get_lock(b"tooz")

    def cycle() -> None:
        assert lock.acquire(blocking=False)
        assert lock.release()

    gives = ("yes", "no", "a random token", "yes, heartbeat", "refused")
    return Contestant(f"tooz, etcd3gw {version('tooz')}", Role.OTHER, cycles_of(cycle), gives)


def _text(plain: str) -> str:
    return base64.b64encode(plain.encode()).decode()


def _hold(server: Any, opened: ExitStack) -> Contestant:
    return ours.hold_of(f"etcd://{server.endpoint}/hold", opened)


_SIDES = (_floor, _ours, _hold, _tooz)
