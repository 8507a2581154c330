"""A process that holds a lease and writes under it, told what to do line by line.

    actor.py FOLDER LEASES NAME

Each line is {"do": ..., ...}, each answer a line of JSON. All instants in answers are of the local
clock, which is the same for all processes of a machine; `wall` is what this process believes the
time of day to be.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import data
import dibs
from dibs.adapters.system import SystemClock, wall_clock
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import Bid, Ending, Granted, Lease, Outcome, Renewed
from dibs.fencing import Stale
from dibs.named.holds import Hold
from dibs.services.backlog import NAMES

CLOCK = SystemClock()


class Watch:
    """Works as long as it may: asks before each thing it would do, and notes when."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.passed_at = 0.0
        """When `check` was last called and did not raise."""
        self.stopped_at = 0.0
        """When it had raised."""
        self.why = ""
        self.over = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while not self.over.is_set():
            try:
                asked_at = CLOCK.now()
                self._hold.check()
                self.passed_at = asked_at
            except dibs.LeaseLost as lost:
                self.stopped_at, self.why = CLOCK.now(), str(lost)
                self.over.set()
            CLOCK.wait(self.over, 0.002)


class Actor:
    def __init__(self, folder: str, leases: str, name: str) -> None:
        self._name = HolderId(name)
        self._backlog = dibs.open(Path(folder), leases=leases, holder=name)
        owned: Any = self._backlog._services.adapters.store
        if owned.owner(NAMES) is None:  # whoever else asks the store itself, and owns nothing
            owned._own(NAMES)
        self._store: Any = owned.store
        self._context = contextlib.ExitStack()
        self._hold: Any = None
        self._watch: Any = None
        self._leases: dict[str, Lease] = {}

    # Holding by name

    def hold(self, name: str, ttl: str, wait: str = "0s") -> Any:
        asked_at = CLOCK.now()
        try:
            held = self._context.enter_context(self._backlog.hold(name, ttl=ttl, wait=wait))
        except dibs.NotGranted as refused:
            return {"refused": str(refused)}
        self._hold, self._watch = held, Watch(held)
        got_at = CLOCK.now()
        return {"fence": held.fence, "run": held.run, "asked_at": asked_at, "got_at": got_at}

    def condition(self) -> Any:
        watch = self._watch
        found = {"lost": self._hold.lost, "beats": self._hold.keeper.lease.beats}
        times = {"passed_at": watch.passed_at, "stopped_at": watch.stopped_at}
        return {**found, **times, "why": watch.why}

    def stopped(self) -> Any:
        """Wait until the work has stopped."""
        self._watch.over.wait()
        return self.condition()

    def release(self) -> Any:
        """Stop working, and give it back."""
        self._watch.over.set()
        asked_at = CLOCK.now()
        try:
            self._context.close()
        except dibs.Outage as outage:
            return {"asked_at": asked_at, "outage": str(outage)}
        return {"asked_at": asked_at}

    # Writing under the hold

    def write(self, to: str, number: int) -> Any:
        with contextlib.closing(data.reach(to)) as place:
            return _told(place.write(number, self._hold.fence))

    def stamp(self, to: str) -> Any:
        with contextlib.closing(data.reach(to)) as place:
            return _told(place.stamp(self._hold.fence))

    def check_freeze_write(self, to: str, number: int, *, bare: bool = False) -> Any:
        """The pause that no check can see: it comes after the check, and before the write."""
        with contextlib.closing(data.reach(to)) as place:
            place.read()
            # Not in the middle of a renewal: whoever stops inside a transaction of SQLite keeps the
            # file, and then nobody can be granted anything. That is another test's subject.
            with self._hold.keeper._renewing:
                self._hold.check()
                os.kill(os.getpid(), signal.SIGSTOP)
            if bare:
                return place.write_bare(number)
            return _told(place.write(number, self._hold.fence))

    # The store itself

    def acquire(self, issue: str, run: str, ttl_s: float) -> Any:
        span = timedelta(seconds=ttl_s)
        bid = Bid(IssueRef("~faults", issue), RunId(run), self._name, StageName("work"), span)
        told = self._store.acquire(bid)
        if isinstance(told, Granted):
            self._leases[run] = told.lease
        return self._answer(told, run)

    def renew(self, run: str) -> Any:
        told = self._store.renew(self._leases[run])
        if isinstance(told, Renewed):
            self._leases[run] = told.lease
        return self._answer(told, run)

    def give_back(self, run: str) -> Any:
        told = self._store.release(self._leases[run], Ending(Outcome.CONCEDED))
        return self._answer(told, run)

    def _answer(self, told: Any, run: str) -> Any:
        lease = self._leases.get(run)
        known = {"told": type(told).__name__, "wall": wall_clock().timestamp(), "at": CLOCK.now()}
        if lease is None:
            return known
        times = {"granted": lease.granted_at.timestamp(), "expires": lease.expires_at.timestamp()}
        return {**known, **times, "fence": lease.fence}


def _told(outcome: Any) -> Any:
    return ["Stale", outcome.seen] if isinstance(outcome, Stale) else [type(outcome).__name__]


def main() -> None:
    actor = Actor(*sys.argv[1:])
    print(json.dumps({"pid": os.getpid(), "wall": time.time()}), flush=True)  # noqa: TID251 - its own belief
    for line in sys.stdin:
        asked = json.loads(line)
        answer = getattr(actor, asked.pop("do"))(**asked)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
