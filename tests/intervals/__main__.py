"""Looks from outside whether two processes ever trust one lease: `make intervals`.

    python -m tests.intervals [--stores redis,etcd] [--seconds 45] [--seed 1] [--json]

Processes hold leases through each store while they are killed, frozen for longer than the ttl, cut
off and misled about the time of day, and while the store's server is killed, frozen and its clock
set back. Each process writes down, by the machine's one monotonic clock, when it trusts which lease
with which fence. A finding is two trusted intervals on one name that overlap, a fence that does not
rise, or a holder that ended by itself.

The control, a lock of SET NX, a ttl and INCR in Redis, runs in the same weather. If no overlap of
its intervals is found, the checker is blind, and the run fails too. With --server-forward the
clocks of Redis and PostgreSQL are set forward instead of back: overlaps are then documented, and
counted without being findings; fences must rise all the same, from grant to grant.

Ends with 1 if there is a finding; the logs of that store are kept, and named.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from .grounds import CONTROL, GROUNDS
from .judging import Record, Verdict, judge
from .weather import weathered

FAULTS = ("kill", "freeze", "cut", "lock", "step", "server stop", "server freeze", "server step")
FEWEST_GRANTS = 10
"""A run with fewer grants shows nothing."""


class Sky(Struct, frozen=True):
    """How long and how bad the weather is for each store."""

    seconds: float = 45.0
    seed: int = 1
    members: int = 5
    server_forward: bool = False


class Outcome(Struct, frozen=True):
    """What was found in one store."""

    store: str
    faults: dict[str, int]
    verdict: Verdict
    findings: list[str]
    logs: str = ""
    """Where the logs are, if there is a finding."""


def examine(store: str, sky: Sky) -> Outcome:
    def enough(records: Iterable[Record]) -> bool:
        verdict = judge(records)
        caught = bool(verdict.overlaps) or store != CONTROL
        return caught and verdict.grants >= FEWEST_GRANTS

    folder = Path(tempfile.mkdtemp(prefix=f"dibs-intervals-{store}-"))
    try:
        weather = weathered(
            *(GROUNDS[store], folder),
            seconds=sky.seconds,
            enough=enough,
            seed=sky.seed,
            members=sky.members,
            forward=sky.server_forward,
        )
    except BaseException:
        shutil.rmtree(folder)
        raise
    faults = {kind: weather.faults[kind] for kind in FAULTS if weather.faults[kind]}
    excused = sky.server_forward and "server step" in faults
    verdict = judge(weather.records(), by_grants=excused)
    found = [*weather.flaws, *findings(store, verdict, excused=excused)]
    if not found:
        shutil.rmtree(folder)
        return Outcome(store, faults, verdict, found)
    (folder / "faults").write_text("\n".join(weather.history), "utf-8")
    return Outcome(store, faults, verdict, found, str(folder))


def findings(store: str, verdict: Verdict, *, excused: bool = False) -> list[str]:
    """What speaks against the store; for the control, against the checker."""
    found = []
    if verdict.grants < FEWEST_GRANTS:
        found.append(f"only {verdict.grants} grants, which shows nothing")
    if store == CONTROL:
        caught = [] if verdict.overlaps else ["no overlap was found: the checker is blind"]
        return [*found, *caught]
    overlaps = () if excused else verdict.overlaps
    return [*found, *map(str, overlaps), *map(str, verdict.falls)]


def table(outcomes: Sequence[Outcome]) -> str:
    head = ("store", "grants", "renewals", "checks", *FAULTS, "overlaps", "fence falls")
    rows = [
        [
            *(one.store, one.verdict.grants, one.verdict.renewals, one.verdict.checks),
            *(one.faults.get(kind, "-") for kind in FAULTS),
            *(len(one.verdict.overlaps), len(one.verdict.falls)),
        ]
        for one in outcomes
    ]
    widths = [max(len(str(row[place])) for row in (head, *rows)) for place in range(len(head))]
    return "\n".join(
        "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    )


def _stores(text: str) -> list[str]:
    wanted = text.split(",")
    if unknown := [name for name in wanted if name not in GROUNDS]:
        raise argparse.ArgumentTypeError(
            f"no such store: {', '.join(unknown)}; there are {', '.join(GROUNDS)}"
        )
    return wanted


def main(words: Sequence[str] | None = None) -> int:
    sky = Sky()
    parser = argparse.ArgumentParser(
        prog="python -m tests.intervals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stores", type=_stores, default=list(GROUNDS), metavar="NAME,NAME")
    parser.add_argument("--seconds", type=float, default=sky.seconds, help="for each store")
    parser.add_argument("--seed", type=int, default=sky.seed, help="of the faults")
    parser.add_argument("--members", type=int, default=sky.members, help="holders of each store")
    parser.add_argument("--server-forward", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    sky = Sky(asked.seconds, asked.seed, asked.members, asked.server_forward)
    outcomes = []
    for store in asked.stores:
        print(f"{store}: {asked.seconds:.0f} s ...", file=sys.stderr, flush=True)
        outcomes.append(one := examine(store, sky))
        seen = f"{one.verdict.grants} grants, {sum(one.faults.values())} faults"
        print(f"{store}: {seen}, {len(one.findings)} findings", file=sys.stderr, flush=True)
    ok = not any(one.findings for one in outcomes)
    if asked.json:
        print(msgspec.json.encode({"ok": ok, "sky": sky, "stores": outcomes}).decode())
        return 0 if ok else 1
    print(table(outcomes))
    for one in outcomes:
        if one.findings:
            print(f"{one.store}: the logs are in {one.logs}")
        for finding in one.findings:
            print(f"{one.store}: {finding}")
    print("no findings" if ok else "THERE ARE FINDINGS")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; no process and no server is left")
