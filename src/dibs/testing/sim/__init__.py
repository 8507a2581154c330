"""A simulator that runs the shipped services: one seed, virtual time, everything that can go wrong.

    from dibs.testing.sim import Faults, Scenario, play, timeline, violations

    run = play(Scenario(workers=3, faults=Faults(freeze=0.1, crash=0.15)), seed=7)
    print(timeline(run, violations(run)))

The services are not changed and not told. `python -m dibs.testing.sim` prints the tables of the
proof; docs/internals/proof.md says what they mean. Needs greenlet: `pip install 'dibs[sim]'`.
"""

from dibs.testing.sim.checkers import RULES, Evidence, Hold, Violation, holds, promised, violations
from dibs.testing.sim.controls import seed_script, state_machine, workers_of
from dibs.testing.sim.exhaustive import CASES, Broken, Case, explore
from dibs.testing.sim.faults import Faults
from dibs.testing.sim.mutants import MUTANTS, Mutant
from dibs.testing.sim.runs import Cast, Run, our_workers, play
from dibs.testing.sim.timeline import timeline
from dibs.testing.sim.world import COMMENTS, MEMORY, Scenario

__all__ = [
    "CASES",
    "COMMENTS",
    "MEMORY",
    "MUTANTS",
    "RULES",
    "Broken",
    "Case",
    "Cast",
    "Evidence",
    "Faults",
    "Hold",
    "Mutant",
    "Run",
    "Scenario",
    "Violation",
    "explore",
    "holds",
    "our_workers",
    "play",
    "promised",
    "seed_script",
    "state_machine",
    "timeline",
    "violations",
    "workers_of",
]
