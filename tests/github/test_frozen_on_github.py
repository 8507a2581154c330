"""A worker that is frozen past its lease, and wakes up when another has done its work."""

import signal

import pytest
from tests.acceptance.harness import frozen, until

from .projects import GATED, project_on_a_hub

pytestmark = pytest.mark.long


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        yield made


def test_a_sleeper_that_wakes_after_its_lease_finishes_nothing_on_github(project):
    project.begin_with(GATED)
    (number,) = project.backlog(1)
    sleeper = project.holding(number, name="sleeper")
    (first,) = project.runs_on(number, "began")
    sleeper.signal(signal.SIGSTOP)
    until(lambda: frozen(sleeper.pid), "it is frozen")
    heir = project.start("heir", "work", "--name", "heir")
    until(lambda: len(project.runs_on(number, "began")) == 2, "another takes over", within_s=60)
    assert project.lines("double") == [], "the sleeper's handler was gone before"
    sleeper.signal(signal.SIGCONT)
    until(lambda: first in sleeper.err and "refused" in sleeper.err, "its ending is refused")
    (_, second) = project.runs_on(number, "began")
    assert project.our_cards(number)[-1].run == second
    project.let_go()
    until(lambda: project.label_names(number) == {"stage:review"}, "it is advanced")
    for worker in (sleeper, heir):
        worker.process.terminate()
    for worker in (sleeper, heir):
        assert worker.wait().quiet().code == 0
    project.assert_worked_once(number)
    assert project.runs_on(number) == [second]
