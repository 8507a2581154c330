"""A process of its own that claims by git refs: one line in, one line out."""

import sys
from datetime import timedelta
from pathlib import Path

from dibs.adapters.git.leases import GitLeases
from dibs.core.ids import IssueRef
from dibs.core.lease import Busy, Granted
from dibs.testing.conformance.lease_harness import CONCEDED, bid


def main(place: str, folder: str) -> None:
    store = GitLeases.connect(place, Path(folder))
    held = {}
    print("ready", flush=True)
    for line in sys.stdin:
        verb, key, *rest = line.split()
        issue = IssueRef("", key)
        match verb:
            case "acquire":
                run, ttl_s = rest
                result = store.acquire(bid(issue, run, timedelta(seconds=float(ttl_s))))
                if isinstance(result, Granted):
                    held[key] = result.lease
            case "renew":
                result = store.renew(held[key])
            case "release":
                result = store.release(held[key], CONCEDED)
            case _:
                raise AssertionError(verb)
        who = result.record.lease.run if isinstance(result, Busy) else ""
        stamp = held[key].granted_at.isoformat() if key in held else ""
        print(type(result).__name__, who or "-", stamp or "-", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
