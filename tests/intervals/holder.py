"""A process that holds names or issues through dibs, and writes down how long it trusts each lease.

python -m tests.intervals.holder ORDERS
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import dibs
from dibs.services.keeping import InHand

from .judging import Ended, Granted, Passed, Renewed
from .writing_down import CLOCK, Holder

BETWEEN_CHECKS_S = 0.01
Taking = Callable[[str, str], AbstractContextManager[InHand]]


def _taking(backlog: dibs.Dibs, holder: Holder) -> Taking:
    ttl = f"{holder.orders.ttl_s}s"
    if holder.orders.by_issue:
        return lambda name, wait: backlog.lease(name, ttl=ttl, wait=wait)
    return lambda name, wait: backlog.hold(name, ttl=ttl, wait=wait)


def _take_turn(holder: Holder, taking: Taking) -> None:
    """Wait for a lease, work under it for a while that is often shorter than a renewal, end it."""
    dice, ttl_s = holder.dice, holder.orders.ttl_s
    name = dice.choice(holder.orders.names)
    work_s = ttl_s * (dice.uniform(0, 0.3) if dice.random() < 0.75 else dice.uniform(0.5, 2.0))
    with taking(name, f"{ttl_s * dice.uniform(0, 2):.3f}s") as held:
        got_at, until = CLOCK.now(), held._keeper.trusted_until
        asked_at = held._keeper.asked_at
        holder.note(Granted(held.run, name, held.fence, asked_at, got_at, until))
        try:
            while not holder.stopped and CLOCK.now() < got_at + work_s:
                before = CLOCK.now()
                held.check()
                holder.note(Passed(held.run, before))
                if (extended := held._keeper.trusted_until) != until:
                    until = extended
                    holder.note(Renewed(held.run, until))
                CLOCK.sleep(BETWEEN_CHECKS_S)
        except dibs.LeaseLost as lost:
            holder.note(Ended(held.run, CLOCK.now(), f"lost: {lost}"))
        else:
            holder.note(Ended(held.run, CLOCK.now(), "given back"))


def _hold_in_turn(holder: Holder) -> None:
    orders = holder.orders
    leases = orders.leases or None
    with dibs.open(orders.folder, leases=leases, holder=orders.who) as backlog:
        taking = _taking(backlog, holder)
        while not holder.stopped:
            try:
                _take_turn(holder, taking)
            except dibs.NotGranted:
                CLOCK.sleep(holder.dice.uniform(0, 0.05))


def main() -> None:
    holder = Holder()
    while not holder.stopped:
        try:
            _hold_in_turn(holder)
        except (dibs.Unavailable, dibs.LeaseLost) as failure:
            print(f"{type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
            CLOCK.sleep(0.1)


if __name__ == "__main__":
    main()
