"""Who holds an issue together with whom while a fleet is switched: python -m benchmarks.mixed_fleet

Runners of the published state machine, ours, and both, in the simulator. Exits with 1 if two of
ours ever held one issue in a world that ours is made for.
"""

import argparse
import logging
import sys

from benchmarks.tables import Check, Column, Result, Table, render
from dibs_lab.sim.mixed import WORLDS, Fleet, Pair, count_pairs

FLEETS = {"four of theirs": Fleet(4, 0), "two and two": Fleet(2, 2), "four of ours": Fleet(0, 4)}


def run(schedules: int) -> Result:
    result = Result(f"Schedules of {schedules} in which two held one issue at the same time")
    rows = []
    for world in WORLDS:
        print(world.name, file=sys.stderr, flush=True)
        counted = [count_pairs(world, range(schedules), fleet) for fleet in FLEETS.values()]
        theirs, mixed, ours = counted
        rows.append(
            (
                world.name,
                theirs[Pair.THEIRS],
                mixed[Pair.THEIRS],
                mixed[Pair.MIXED],
                mixed[Pair.OURS],
                ours[Pair.OURS],
            )
        )
        if world.covered:
            none = mixed[Pair.OURS] == ours[Pair.OURS] == 0
            result.checks.append(Check(f"{world.name}: never two of ours", none))
    columns = (
        Column("world"),
        Column("theirs alone"),
        Column("mixed: two of theirs"),
        Column("mixed: one of each"),
        Column("mixed: two of ours"),
        Column("ours alone"),
    )
    result.tables.append(Table("four runners, one of which wins", columns, tuple(rows)))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed_fleet", description=__doc__)
    parser.add_argument("--schedules", type=int, default=300, help="of each fleet in each world")
    logging.disable(logging.CRITICAL)  # services warn of every fault; here they are the point
    result = run(parser.parse_args().schedules)
    print(render(result))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
