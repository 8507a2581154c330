"""Our side, the same for every store: a lease is taken and given back as a hold does it.

And the hold itself, as a program uses it: with a keeper, the journal and the granter.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from secrets import token_hex

import dibs
from benchmarks.leases.paired import Contestant, Role, cycles_of
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Ending, Granted, Outcome, Released
from dibs.core.named import HOLD_STAGE
from dibs.ports.leases import LeaseStore

TTL = timedelta(seconds=30)
TTL_S = 30
KEY = "bench"
ISSUE = IssueRef("bench/leases", KEY)
HOLDER = HolderId("bench-1")
STAGE = StageName(HOLD_STAGE)
CONCEDED = Ending(Outcome.CONCEDED)
HEADS = ("atomic", "fence", "holder shown", "expires, renewed", "retry after a lost reply")
GIVES = (
    "yes",
    "yes",
    "who, run, since, until",
    "yes, by compare",
    "the same grant, the same ending",
)


def fresh_run() -> RunId:
    return RunId(token_hex(6))


def cycle_of(store: LeaseStore) -> Callable[[], None]:
    def cycle() -> None:
        granted = store.acquire(Bid(ISSUE, fresh_run(), HOLDER, STAGE, TTL))
        assert isinstance(granted, Granted), granted
        released = store.release(granted.lease, CONCEDED)
        assert isinstance(released, Released), released

    return cycle


def hold_of(leases: str, opened: ExitStack) -> Contestant:
    """`backlog.hold()` in a folder of its own, beside the embedded tracker."""
    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="dibs-bench-"))
    backlog = opened.enter_context(dibs.open(folder, leases=leases, holder=HOLDER))

    def cycle() -> None:
        with backlog.hold(KEY):
            pass

    return Contestant("dibs, backlog.hold()", Role.HOLD, cycles_of(cycle), GIVES)
