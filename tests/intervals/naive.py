"""The control: the lock that everybody writes first, which the checker must catch.

`SET NX PX` takes the lock, `INCR` gives it a number, `DEL` gives it back. Its holder works for less
than the ttl, so that nothing goes wrong as long as nobody is frozen or cut off.

python -m tests.intervals.naive ORDERS
"""

import sys
import uuid
from urllib.parse import urlsplit

import redis

from .judging import Ended, Granted, Passed
from .writing_down import CLOCK, Holder

BETWEEN_CHECKS_S = 0.01


def _take_turn(holder: Holder, client: redis.Redis) -> None:
    ttl_s, dice, run = holder.orders.ttl_s, holder.dice, uuid.uuid4().hex
    name, work_s = dice.choice(holder.orders.names), ttl_s * dice.uniform(0.1, 0.6)
    asked_at = CLOCK.now()
    while not client.set(name, run, nx=True, px=int(ttl_s * 1000)):
        CLOCK.sleep(0.02)
        if holder.stopped:
            return
        asked_at = CLOCK.now()
    fence = client.incr(f"{name}:fence")
    got_at = CLOCK.now()
    holder.note(Granted(run, name, fence, asked_at, got_at, got_at))
    while not holder.stopped and CLOCK.now() < got_at + work_s:
        CLOCK.sleep(BETWEEN_CHECKS_S)
        holder.note(Passed(run, CLOCK.now()))
    holder.note(Ended(run, CLOCK.now(), "given back"))
    client.delete(name)


def main() -> None:
    holder = Holder()
    timeout_s = 2 * holder.orders.ttl_s
    port = urlsplit(holder.orders.leases).port
    client = redis.Redis(port=port, protocol=2, socket_timeout=timeout_s)
    while not holder.stopped:
        try:
            _take_turn(holder, client)
        except redis.RedisError as failure:
            print(f"{type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
            CLOCK.sleep(0.1)


if __name__ == "__main__":
    main()
