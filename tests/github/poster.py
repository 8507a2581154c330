"""A worker of sorts: a process that writes comments as fast as it is let, over its environment.

`python -m tests.github.poster MOST SECONDS`: keeps to MOST creations a minute, for so long and
until it was refused many times in a row; prints what became of each attempt, one word a line, and
the seconds to wait beside a refusal.
"""

import os
import sys

from dibs.adapters.github.client import Limits, Purpose, Transports
from dibs.adapters.system import SystemClock
from dibs.core.errors import Outage, RateLimited

_MANY = 20


def main(most: int, seconds: float) -> None:
    clock = SystemClock()
    transports = Transports(os.environ, limits=Limits(creations_a_minute=most))
    transport = transports.for_repository("acme/shop")
    until, in_a_row = clock.now() + seconds, 0
    while clock.now() < until or in_a_row < _MANY:
        try:
            transport.rest(
                "POST",
                "/repos/acme/shop/issues/1/comments",
                purpose=Purpose.HOLD,
                wanted={"body": "a bid"},
            )
        except RateLimited as limit:
            print(f"refused {limit.retry_after_s:.3f}", flush=True)
            in_a_row += 1
            clock.sleep(0.02)
        except Outage as failure:
            print(f"{failure.code.lower()} {failure}", flush=True)
        else:
            in_a_row = 0
            print("posted", flush=True)
    transports.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
