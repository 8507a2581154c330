"""kill -9 at every step of `dibs.core.events.Step`, in every mode: nothing lost, nothing twice.

The table says which mode passes which step, and both directions are checked: a worker told to die
at a step it passes is dead there, one told to die at a step it does not pass drains the backlog.
"""

import signal
from dataclasses import dataclass

import pytest

from dibs.core.events import Step

from .harness import LEASES, LEDGER, Project, pipeline
from .terms import AMPLE, BRISK, time_passes

ISSUES = 2


@dataclass(frozen=True, slots=True)
class Mode:
    leases: str
    batching: bool

    def __str__(self) -> str:
        return f"{self.leases}-{'batched' if self.batching else 'plain'}"

    @property
    def env(self) -> dict[str, str]:
        return {} if self.batching else {"DIBS_BATCH": "0"}


MODES = [Mode(leases, batching) for leases in LEASES for batching in (True, False)]
_EVERYWHERE = frozenset(MODES)
_COMMENTS = frozenset(mode for mode in MODES if mode.leases == "comments")
_PLAIN = frozenset(mode for mode in MODES if not mode.batching)

REACHED_IN = {
    Step.CLAIM_STARTED: _EVERYWHERE,
    Step.CLAIM_BID: _EVERYWHERE,
    Step.CLAIM_SETTLED: _COMMENTS,  # an atomic store has nothing to wait for
    Step.CLAIM_GRANTED: _EVERYWHERE,
    Step.CLAIM_JUDGED: _EVERYWHERE,
    Step.CLAIM_CONFIRMED: _EVERYWHERE,
    Step.CLAIM_PAINTED: _EVERYWHERE,
    Step.RENEW_STARTED: _EVERYWHERE,
    Step.RENEW_STORED: _EVERYWHERE,
    Step.RENEW_SHOWN: _EVERYWHERE,
    Step.FINISH_STARTED: _EVERYWHERE,
    Step.FINISH_VERIFIED: _EVERYWHERE,
    Step.FINISH_DECIDED: _EVERYWHERE,
    Step.FINISH_LABEL_ADDED: _PLAIN,  # a batching tracker paints in one transaction
    Step.FINISH_LABEL_REMOVED: _PLAIN,
    Step.FINISH_CLOSED: _PLAIN,
    Step.FINISH_SHOWN: _PLAIN,
    Step.FINISH_PAINTED: _EVERYWHERE,
    Step.FINISH_ACKNOWLEDGED: _EVERYWHERE,
}
# Killed between the handler's end and the decision: the work is done once more. Nowhere else.
RUN_AGAIN = {Step.FINISH_STARTED, Step.FINISH_VERIFIED}

# The doomed worker's handler goes on until its warden ends it, so that a renewal is sure to come.
LONG_IF_DOOMED = f'test -z "$LC_DOOMED" || exec sleep 60; {LEDGER}'


def test_the_table_has_every_step_and_every_step_is_passed_in_some_mode() -> None:
    assert set(REACHED_IN) == set(Step)
    assert [step for step, modes in REACHED_IN.items() if not modes] == []


# In `make test`: before and after the grant, in a renewal, on either side of the decision.
SHORT_STEPS = {
    *(Step.CLAIM_BID, Step.CLAIM_GRANTED, Step.RENEW_STORED),
    *(Step.FINISH_VERIFIED, Step.FINISH_DECIDED),
}


def _cases(*, reached: bool) -> list[object]:
    return [
        pytest.param(
            step,
            mode,
            id=f"{step}-{mode}",
            marks=[] if reached and step in SHORT_STEPS and mode == MODES[0] else pytest.mark.long,
        )
        for step in Step
        for mode in MODES
        if (mode in REACHED_IN.get(step, ())) is reached
    ]


@pytest.mark.parametrize(("step", "mode"), _cases(reached=True))
def test_killed_there_a_healthy_worker_finishes_everything_once(
    project: Project, step: Step, mode: Mode
) -> None:
    project.begin(pipeline(mode.leases, one=LONG_IF_DOOMED, ttl=AMPLE, extra=BRISK), ISSUES)
    fate = {"DIBS_FAILPOINT": step.value}
    if step.value.startswith("renew."):
        fate["LC_DOOMED"] = "yes"

    doomed = project.worker("doomed", "--drain", env={**mode.env, **fate})
    assert doomed.wait().code == -signal.SIGKILL, doomed.err
    project.nobody_left()
    time_passes(project)
    project.drain(env=mode.env)

    project.assert_drained(ISSUES)
    runs = project.ledger()
    assert set(runs) == {(f"#{n}", stage) for n in (1, 2) for stage in ("one", "two")}
    assert sorted(runs.values()) == ([1, 1, 1, 2] if step in RUN_AGAIN else [1, 1, 1, 1])
    project.nobody_left()


@pytest.mark.parametrize("step", sorted(RUN_AGAIN))
def test_finished_work_is_not_done_again_while_the_dead_workers_lease_is_live(
    project: Project, step: Step
) -> None:
    """The warden recorded the exit code; the next worker of the folder writes the ending."""
    project.begin(pipeline("auto", ttl=AMPLE), ISSUES)
    doomed = project.worker("doomed", "--drain", env={"DIBS_FAILPOINT": step.value})
    assert doomed.wait().code == -signal.SIGKILL, doomed.err
    [left] = (project.root / ".dibs" / "runs" / ".open").iterdir()

    reply = project.drain()

    assert f"the worker of run {left.name} ended when its handler had finished" in reply.err
    project.assert_drained(ISSUES)
    assert sorted(project.ledger().values()) == [1, 1, 1, 1]
    assert not list((project.root / ".dibs" / "runs" / ".open").iterdir())
    project.nobody_left()


def test_what_a_killed_worker_had_not_finished_is_not_taken_for_finished(project: Project) -> None:
    text = pipeline("auto", one=LONG_IF_DOOMED, ttl=AMPLE, extra=BRISK)
    project.begin(text, ISSUES)
    fate = {"DIBS_FAILPOINT": Step.RENEW_STORED.value, "LC_DOOMED": "yes"}
    assert project.worker("doomed", "--drain", env=fate).wait().code == -signal.SIGKILL
    project.nobody_left()
    time_passes(project)
    reply = project.drain()
    assert "had finished" not in reply.err
    project.assert_drained(ISSUES)
    assert sorted(project.ledger().values()) == [1, 1, 1, 1]


@pytest.mark.parametrize(("step", "mode"), _cases(reached=False))
def test_a_step_that_a_mode_does_not_pass_kills_nobody_there(
    project: Project, step: Step, mode: Mode
) -> None:
    project.begin(pipeline(mode.leases, ttl=AMPLE), ISSUES)
    project.drain(env={**mode.env, "DIBS_FAILPOINT": step.value})
    project.assert_drained(ISSUES)


@pytest.mark.long
@pytest.mark.parametrize("leases", LEASES)
@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_killed_after_any_label_came_off(project: Project, nth: int, leases: str) -> None:
    """Stage, working label, `claimed`; then the second stage's; each in a call of its own."""
    project.begin(pipeline(leases, ttl=AMPLE), 1)
    env = {"DIBS_BATCH": "0", "DIBS_FAILPOINT": f"{Step.FINISH_LABEL_REMOVED}:{nth}"}
    assert project.worker("doomed", "--drain", env=env).wait().code == -signal.SIGKILL
    time_passes(project)
    healthy = project.worker("healthy", "--drain", env={"DIBS_BATCH": "0"}).wait()
    # The last label of the last stage leaves nothing to do.
    assert healthy.quiet().code in ((0, 3) if nth == 5 else (0,))
    project.assert_drained(1)
    assert project.ledger() == {("#1", "one"): 1, ("#1", "two"): 1}


@pytest.mark.long
@pytest.mark.parametrize("leases", LEASES)
@pytest.mark.parametrize("step", [Step.CLAIM_PAINTED, Step.FINISH_DECIDED, Step.FINISH_PAINTED])
def test_crash_upon_crash_at_the_same_step_does_no_harm_either(
    project: Project, step: Step, leases: str
) -> None:
    project.begin(pipeline(leases, ttl=AMPLE), ISSUES)
    for number in range(3):
        doomed = project.worker(f"doomed-{number}", "--drain", env={"DIBS_FAILPOINT": step.value})
        assert doomed.wait().code == -signal.SIGKILL, doomed.err
        time_passes(project)
    project.drain()
    project.assert_drained(ISSUES)


@pytest.mark.long
@pytest.mark.parametrize("leases", LEASES)
@pytest.mark.parametrize("step", [Step.FINISH_DECIDED, Step.FINISH_PAINTED])
def test_killed_while_parking_the_issue_still_comes_back_with_all_its_attempts(
    project: Project, step: Step, leases: str
) -> None:
    mended = f"test -e mended || exit 1; {LEDGER}"
    project.begin(pipeline(leases, one=mended, attempts=2, backoff="50ms", ttl=AMPLE), 1)
    project.worker("first", "--once").wait()
    assert [outcome for *_, outcome in project.endings()] == ["failed"]
    doomed = project.worker("doomed", "--drain", env={"DIBS_FAILPOINT": step.value})
    assert doomed.wait().code == -signal.SIGKILL
    assert [outcome for *_, outcome in project.endings()] == ["failed", "parked"]
    project.dibs("sweep")
    assert project.labels() == {"stage:one", "parked"}

    (project.root / "mended").touch()
    assert project.dibs("resume", "1").code == 0
    assert project.failed_attempts() == 0
    project.drain()
    assert project.labels() == {"stage:done"}
    assert [outcome for *_, outcome in project.endings()] == [
        "failed",
        "parked",
        "advanced",
        "advanced",
    ]
