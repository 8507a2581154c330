"""Every adapter through its suite, and what came of it: `make conformance`.

    python -m tests.conformance [NAME ...]

With names, only those lines of the tables. Ends with 1 if one of them does not conform.
"""

import sys
from collections.abc import Iterator

from msgspec.structs import replace

from dibs.testing.conformance import Report, prove_leases, prove_tracker

from .adapters import STORES, TRACKERS


def reports(wanted: set[str]) -> Iterator[Report]:
    for kind, table, prove in (
        ("lease store", STORES, prove_leases),
        ("tracker", TRACKERS, prove_tracker),
    ):
        for name, (factory, _) in table.items():
            if not wanted or name in wanted:
                yield replace(prove(factory), subject=f"{kind} {name}")


def main(arguments: list[str]) -> int:
    known = {*STORES, *TRACKERS}
    if unknown := set(arguments) - known:
        print(f"no such line: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
        return 1
    ok = True
    for report in reports(set(arguments)):
        print(report, end="\n\n", flush=True)
        ok = ok and report.ok
    print("every adapter conforms" if ok else "NOT EVERY ADAPTER CONFORMS")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
