"""Somebody who wants the same lease, asks the store itself and keeps asking: as early as can be."""

import itertools
from dataclasses import dataclass
from datetime import timedelta

from acceptance.harness import CLOCK, until
from dibs.core.errors import Unavailable
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Busy, Granted, Lease
from dibs.core.named import HOLD_STAGE, is_named
from dibs.ports.leases import LeaseStore

_runs = (RunId(f"contender-{number}") for number in itertools.count(1))


@dataclass(frozen=True, slots=True)
class Win:
    lease: Lease
    asked_at: float
    """By the local clock, before the winning request was sent: it was granted after this ..."""
    told_at: float
    """... and before this, when the reply was there."""

    @property
    def fence(self) -> Fence:
        return self.lease.fence


def bid_for(ref: IssueRef, *, ttl_s: float = 30.0, run: str | None = None) -> Bid:
    """A new run's, unless it is named."""
    stage = HOLD_STAGE if is_named(ref) else StageName("work")
    span = timedelta(seconds=ttl_s)
    return Bid(ref, RunId(run) if run else next(_runs), HolderId("contender"), stage, span)


def try_once(store: LeaseStore, ref: IssueRef) -> Win | None:
    bid, asked_at = bid_for(ref), CLOCK.now()
    try:
        told = store.acquire(bid)
    except Unavailable:
        return None  # a server that was just started, or is not there at all
    if isinstance(told, Granted):
        return Win(told.lease, asked_at, CLOCK.now())
    assert isinstance(told, Busy), told
    return None


def get_it(store: LeaseStore, ref: IssueRef) -> Win:
    """Ask until it is granted."""
    return until(lambda: try_once(store, ref), f"{ref} is granted")
