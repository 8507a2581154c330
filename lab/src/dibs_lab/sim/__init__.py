"""A simulator that runs the shipped services: one seed, virtual time, many kinds of faults.

    from dibs_lab.sim import Faults, Scenario, play, violations
    from dibs_lab.sim import timeline

    run = play(Scenario(workers=3, faults=Faults(freeze=0.1, crash=0.15)), seed=7)
    print(timeline(run, violations(run)))

The services run unchanged. `python -m dibs_lab.sim` prints the tables of the proof;
docs/internals/proof.md explains them.
"""

from dibs_lab.sim.checkers import RULES, Evidence, Hold, Violation, holds, promised, violations
from dibs_lab.sim.controls import seed_script, state_machine, workers_of
from dibs_lab.sim.exhaustive import CASES, Broken, Case, explore
from dibs_lab.sim.faults import Faults
from dibs_lab.sim.mutants import MUTANTS, Mutant
from dibs_lab.sim.runs import Cast, Run, our_workers, play
from dibs_lab.sim.timeline import timeline
from dibs_lab.sim.world import COMMENTS, MEMORY, Scenario

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
