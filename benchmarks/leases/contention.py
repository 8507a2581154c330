"""A crowd on one key: how long the key lies idle between two holders, and what that costs.

Thirty-two processes want one key, over and over: whoever gets it holds it for a moment, gives it
back, does something else for a moment and comes again. A hand-over is measured from the call that
gives the key back to the return of the call that got it next, in whatever process that is: they
share a clock. The same without a crowd is one process that releases and acquires by itself.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey

from benchmarks.crew import Crew
from benchmarks.leases import contenders, etcd, sqlite
from benchmarks.leases.turns import Opens, Part, Plan, Turn, take_part
from benchmarks.tables import Check, Column, Result, Say, Table

QUESTION = "contention: 32 processes on one key"
CONTENDERS = 32
GRANTS = 320
_HOLD_S = 0.005
_AWAY_S = (0.01, 0.03)
_NOTES = f"""\
{CONTENDERS} processes, each with a client of its own; {GRANTS} grants, and one more for whoever
waits by then; a holder keeps the key for {_HOLD_S * 1000:.0f} ms and then stays away for\
 {_AWAY_S[0] * 1000:.0f} to {_AWAY_S[1] * 1000:.0f} ms
hand-over: from the call of release to the return of the next acquire, in another process as a rule
alone: the same with one process, which never has to wait
requests: per grant, release and waiting included, making the connections not; redis: what the
server read (total_reads_processed), a pipeline counts once; etcd: gRPC calls begun (/metrics), a
watch counts once; postgres: statements that were sent; sqlite: transactions begun or tried
shares: the fewest and the most grants that one of the processes got
redis-py Lock polls every 0.1 s, python-redis-lock blocks on a list, tooz polls every second,
the advisory lock queues in the server and flock in the kernel; neither of the last two expires
"""


@dataclass(slots=True)
class Side:
    store: str
    name: str
    opens: Opens
    ours: bool = False
    alone_s: list[float] = field(default_factory=list)
    handovers_s: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """A server that is up: where it is, and how it counts its requests."""

    url: str
    count: Callable[[], float] | None = None
    """None: the contenders count themselves."""


def run(*, rounds: int, durable: bool, say: Say) -> Result:
    repeats = 3 if rounds >= 100 else 1
    sides: list[Side] = []
    with Crew(CONTENDERS) as crew:
        for store, opens, rivals in _STORES:
            say(f"contention: {store}: starting it")
            with opens(durable=durable) as place:
                measured = [Side(store, *rival) for rival in rivals]
                for number in range(repeats):
                    say(f"contention: {store}, run {number + 1} of {repeats} of each side")
                    for side in measured:
                        _measure(crew, side, place)
            sides += measured
    result = Result(QUESTION, tables=[_table(sides, repeats)], notes=[_NOTES])
    result.checks = [
        Check(
            f"{side.store}, {side.name}: {_promise(side)} {'; '.join(side.flaws)}".rstrip(),
            not side.flaws,
        )
        for side in sides
    ]
    return result


def _measure(crew: Crew, side: Side, place: Place) -> None:
    with tempfile.TemporaryDirectory(prefix="dibs-bench-") as folder:
        tally = Path(folder) / "tally"

        def go(plan: Plan, members: int) -> tuple[list[Part], float]:
            tally.write_bytes(b"")
            before = place.count() if place.count else 0.0
            parts = crew.run(take_part, side.opens, place.url, plan, members=members)
            told = place.count() - before if place.count else sum(part.asked for part in parts)
            return parts, told

        (alone,), _ = go(Plan(tally, 100), 1)
        _, greeting = go(Plan(tally, 0), CONTENDERS)
        crowd, told = go(Plan(tally, GRANTS, _HOLD_S, _AWAY_S), CONTENDERS)
    side.alone_s += _handovers([alone])
    side.handovers_s += _handovers(crowd)
    side.shares += [len(part.turns) for part in crowd]
    side.requests.append((told - greeting) / sum(len(part.turns) for part in crowd))
    side.flaws += _flaws(side, crowd)


# What came of it


def _in_order(parts: Sequence[Part]) -> list[Turn]:
    return sorted((turn for part in parts for turn in part.turns), key=lambda turn: turn.granted_at)


def _handovers(parts: Sequence[Part]) -> list[float]:
    return [after.granted_at - before.released_at for before, after in pairwise(_in_order(parts))]


def _flaws(side: Side, parts: Sequence[Part]) -> list[str]:
    pairs = list(pairwise(_in_order(parts)))
    flaws = []
    if early := sum(after.granted_at < before.released_at for before, after in pairs):
        flaws.append(f"{early} grants while another held it")
    if side.ours and any((after.fence or 0) <= (before.fence or 0) for before, after in pairs):
        flaws.append("a fence that did not rise")
    return flaws


def _promise(side: Side) -> str:
    return "never two at once" + (", and every fence above the one before" if side.ours else "")


def _table(sides: Sequence[Side], repeats: int) -> Table:
    rows = []
    for side in sides:
        median, alone = statistics.median(side.handovers_s), statistics.median(side.alone_s)
        rows.append(
            (
                side.store,
                side.name,
                median * 1000,
                statistics.quantiles(side.handovers_s, n=20)[-1] * 1000,
                alone * 1000,
                median / alone,
                statistics.median(side.requests) if any(side.requests) else None,
                f"{min(side.shares)}-{max(side.shares)}",
            )
        )
    columns = (
        Column("store"),
        Column("side"),
        Column("hand-over ms", ".2f"),
        Column("p95 ms", ".2f"),
        Column("alone ms", ".2f"),
        Column("of alone", ".1f"),
        Column("requests/grant", ".1f"),
        Column("shares"),
    )
    title = f"hand-over of one key among {CONTENDERS}, {repeats} runs of {GRANTS} grants in turns"
    return Table(title, columns, tuple(rows))


# Servers


@contextmanager
def _redis(*, durable: bool) -> Iterator[Place]:
    with closing(Valkey(persistent=durable)) as server, server.client() as probe:
        yield Place(server.url(), lambda: probe.info("stats")["total_reads_processed"])


@contextmanager
def _postgres(*, durable: bool) -> Iterator[Place]:
    with closing(Postgres(fsync=durable)) as server:
        yield Place(server.url())


@contextmanager
def _etcd(*, durable: bool) -> Iterator[Place]:
    with ExitStack() as opened:
        server = etcd.started(opened, durable=durable)
        yield Place(f"etcd://{server.endpoint}/bench", lambda: etcd.calls(server))


@contextmanager
def _sqlite(*, durable: bool) -> Iterator[Place]:
    place = None if durable else sqlite.memory()
    with tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=place) as folder:
        yield Place(folder)


_STORES = (
    (
        "redis",
        _redis,
        (
            ("dibs, RedisLeases", contenders.redis_ours, True),
            ("redis-py Lock", contenders.redis_py),
            ("python-redis-lock", contenders.python_redis_lock),
        ),
    ),
    (
        "postgres",
        _postgres,
        (
            ("dibs, PostgresLeases", contenders.postgres_ours, True),
            ("advisory lock", contenders.advisory),
        ),
    ),
    (
        "etcd",
        _etcd,
        (
            ("dibs, EtcdLeases", contenders.etcd_ours, True),
            ("tooz, etcd3gw", contenders.tooz_etcd),
        ),
    ),
    (
        "sqlite",
        _sqlite,
        (
            ("dibs, SqliteLeases", contenders.sqlite_ours, True),
            ("flock", contenders.flock),
        ),
    ),
)
