"""Redis: acquire and release one free key, beside every Python library that offers a lock there.

All of them on one Valkey, each with a client of its own and default settings. The floor is the
least that an expiring lock with a fence takes: two scripts, called through redis-py's client. Ours
does not use that client, so the same two scripts over a bare socket stand in the table for scale.
"""

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.metadata import version
from importlib.util import find_spec
from secrets import token_hex
from typing import Any

import redis
from tests.servers.valkey import Valkey

from benchmarks.leases import ours, paired
from benchmarks.leases.paired import Contestant, Role, cycles_of
from benchmarks.tables import Result, Say
from dibs.adapters.redis.leases import RedisLeases

QUESTION = "redis: acquire + release on one key, one thread"
CYCLES = 20
GOAL_OF_HOLD, MOST_OF_HOLD = 1.2, 3.0
_TTL_MS = str(ours.TTL_S * 1000)

_ACQUIRE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2])
end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_NOTES = """\
floor: EVALSHA of SET NX PX and INCR of a fence, EVALSHA of GET, compare and DEL, by redis.Redis
floor, bare socket: the same two, packed by hand on a socket, the replies not decoded; for scale
ours: RedisLeases.acquire and .release, with a new run for each cycle; the record stays, ended
hold: `with backlog.hold(name)` beside an embedded tracker: the same, a keeper that would renew it,
the granter read after the grant, and a line in the journal
the others: their lock object is made once and used again, blocking=False, an expiry of 30 s
requests: what the server read from its connections, per cycle (total_reads_processed)
"""


def run(*, rounds: int, durable: bool, say: Say) -> Result:
    result = Result(QUESTION)
    with ExitStack() as opened:
        say("redis: starting Valkey")
        server = opened.enter_context(closing(Valkey(persistent=durable)))
        probe = opened.enter_context(server.client())
        contestants = paired.with_control([make(server, opened) for make in _SIDES])
        paired.count_requests(contestants, lambda: probe.info("stats")["total_reads_processed"])
        paired.race("redis", contestants, rounds=rounds, cycles=CYCLES, say=say)
    result.tables = [
        paired.speeds(contestants, CYCLES),
        paired.gains(contestants, ours.HEADS),
    ]
    result.notes = [paired.LEGEND, _NOTES, _server_note(durable=durable)]
    result.checks = [paired.behind_none(contestants)]
    if not durable:  # where every reply waits for a disk, it is the disk that is judged
        result.checks.insert(0, paired.not_above_floor(contestants))
        result.checks.insert(1, paired.not_above_floor(contestants, MOST_OF_HOLD, Role.HOLD))
        result.notes.append(f"the goal for a hold is {GOAL_OF_HOLD} times the floor")
    return result


def _server_note(*, durable: bool) -> str:
    kept = "append-only file, synced before every reply" if durable else "memory only"
    parser = "with hiredis" if find_spec("hiredis") else "without hiredis"
    return f"server: Valkey on loopback, {kept}; redis-py {version('redis')} {parser}"


# The floor


def _floor(server: Valkey, opened: ExitStack) -> Contestant:
    client = _client(server, opened)
    acquire, release = (client.script_load(text) for text in (_ACQUIRE, _RELEASE))

    def cycle() -> None:
        token = token_hex(6)
        assert client.evalsha(acquire, 2, "floor", "floor:fence", token, _TTL_MS) > 0
        assert client.evalsha(release, 1, "floor", token) == 1

    gives = ("yes", "yes", "a random token", "yes, not renewed", "refused")
    return Contestant("floor: two scripts", Role.FLOOR, cycles_of(cycle), gives)


def _bare(server: Valkey, opened: ExitStack) -> Contestant:
    client = _client(server, opened)
    acquire, release = (client.script_load(text) for text in (_ACQUIRE, _RELEASE))
    wire = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(*words: str) -> bytes:
        packed = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        wire.sendall(f"*{len(words)}\r\n{packed}".encode())
        return wire.recv(4096)

    def cycle() -> None:
        token = token_hex(6)
        assert ask("EVALSHA", acquire, "2", "bare", "bare:fence", token, _TTL_MS) > b":0"
        assert ask("EVALSHA", release, "1", "bare", token) == b":1\r\n"

    return Contestant("floor, bare socket", Role.ASIDE, cycles_of(cycle))


# Ours


def _ours(server: Valkey, opened: ExitStack) -> Contestant:
    store = opened.enter_context(closing(RedisLeases.connect(server.url())))
    batch = cycles_of(ours.cycle_of(store))
    return Contestant("dibs, RedisLeases", Role.OURS, batch, ours.GIVES)


def _hold(server: Valkey, opened: ExitStack) -> Contestant:
    return ours.hold_of(server.url(), opened)


# The others


def _redis_py(server: Valkey, opened: ExitStack) -> Contestant:
    lock = _client(server, opened).lock("redis-py", timeout=ours.TTL_S, blocking=False)
    gives = ("yes", "no", "a random token", "yes, extend", "refused")
    return _other("redis", "redis-py Lock", lock.acquire, lock.release, gives)


def _python_redis_lock(server: Valkey, opened: ExitStack) -> Contestant:
    import redis_lock

    lock = redis_lock.Lock(_client(server, opened), "python-redis-lock", expire=ours.TTL_S)
    gives = (
        "yes",
        "no",
        "an id of one's own",
        "yes, extend or a thread",
        "an error: already acquired",
    )
    return _other(
        "python-redis-lock",
        "python-redis-lock",
        lambda: lock.acquire(blocking=False),
        lock.release,
        gives,
    )


def _pottery(server: Valkey, opened: ExitStack) -> Contestant:
    from pottery import Redlock

    client = _client(server, opened)
    lock = Redlock(key="pottery", masters={client}, auto_release_time=ours.TTL_S)
    gives = ("yes", "no", "a random token", "yes, extend 3 times", "refused")
    return _other(
        "pottery",
        "pottery Redlock, one master",
        lambda: lock.acquire(blocking=False),
        lock.release,
        gives,
    )


def _sherlock(server: Valkey, opened: ExitStack) -> Contestant:
    from sherlock import RedisLock

    lock = RedisLock("sherlock", client=_client(server, opened), expire=ours.TTL_S)
    gives = ("yes", "no", "a random token", "yes, renew", "refused")
    return _other(
        "sherlock", "sherlock RedisLock", lambda: lock.acquire(blocking=False), lock.release, gives
    )


def _tooz(server: Valkey, opened: ExitStack) -> Contestant:
    from tooz import coordination

    coordinator: Any = coordination.get_coordinator(
        f"redis://127.0.0.1:{server.port}?lock_timeout={ours.TTL_S}", b"bench-1"
    )
    coordinator.start()
    opened.callback(coordinator.stop)
    lock = coordinator.get_lock(b"tooz")
    gives = ("yes", "no", "a random token", "yes, heartbeat", "refused")
    return _other(
        "tooz", "tooz, redis://", lambda: lock.acquire(blocking=False), lock.release, gives
    )


def _other(
    package: str,
    name: str,
    acquire: Callable[[], Any],
    release: Callable[[], Any],
    gives: tuple[str, ...],
) -> Contestant:
    def cycle() -> None:
        assert acquire()
        release()

    return Contestant(f"{name} {version(package)}", Role.OTHER, cycles_of(cycle), gives)


def _client(server: Valkey, opened: ExitStack) -> redis.Redis:
    client = redis.Redis(port=server.port)
    opened.callback(client.close)
    return client


_SIDES = (_floor, _bare, _ours, _hold, _redis_py, _python_redis_lock, _pottery, _sherlock, _tooz)
