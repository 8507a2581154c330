"""Several workers at once, each killed at a step drawn by lot, again and again: once means once."""

import random
import signal

import pytest

from .harness import LEASES, Child, Project, pipeline, until
from .test_kill_at_every_step import MODES, REACHED_IN

pytestmark = pytest.mark.long

ISSUES = 8
LIVES = 14
AT_ONCE = 3


def _sentence(lots: random.Random, leases: str) -> dict[str, str]:
    """Where the next one dies: a step that short handlers pass, for the first or second time."""
    mode = lots.choice([mode for mode in MODES if mode.leases == leases])
    steps = [
        step
        for step, modes in REACHED_IN.items()
        if mode in modes and not step.value.startswith("renew.")
    ]
    return {**mode.env, "DIBS_FAILPOINT": f"{lots.choice(steps)}:{lots.randint(1, 2)}"}


def _one_ends(crowd: list[Child]) -> None:
    until(lambda: any(not worker.running for worker in crowd), "one of them ends", within_s=60)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("leases", LEASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_fleet_that_keeps_dying_advances_everything_once(
    project: Project, leases: str, seed: int
) -> None:
    project.begin(pipeline(leases), ISSUES)
    lots = random.Random(seed)
    crowd: list[Child] = []
    ends: list[int] = []
    for life in range(LIVES):
        crowd.append(project.worker(f"life-{life}", "--drain", env=_sentence(lots, leases)))
        if len(crowd) < AT_ONCE:
            continue
        _one_ends(crowd)
        gone = [worker for worker in crowd if not worker.running]
        crowd = [worker for worker in crowd if worker.running]
        ends += [worker.wait().quiet().code for worker in gone]
    ends += [worker.wait(60).quiet().code for worker in crowd]
    # Killed, done, or come too late to find anything.
    assert set(ends) <= {-signal.SIGKILL, 0, 3}
    assert ends.count(-signal.SIGKILL) >= LIVES // 2
    last = project.worker("last", "--drain").wait(60).quiet()
    assert last.code in (0, 3)
    project.assert_drained(ISSUES)
    project.nobody_left()
