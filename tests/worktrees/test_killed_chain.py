"""kill -9 at every step of a chain: whoever goes on gets to the same result, with nothing twice.

Real git, real pushes to bare remotes, real processes that die; the host is a folder that outlives
them.
"""

import signal
from collections import Counter
from dataclasses import replace

import pytest
from tests.servers.git_repository import git

from dibs.worktrees import ChainStep

from .features import BRANCH, NAMES, chain_in, clones, planned, targets
from .places import child

PASSED = Counter(
    {
        ChainStep.BEGUN: 1,
        ChainStep.PUSHED: 3,
        ChainStep.PUSH_NOTED: 3,
        ChainStep.OPENED: 3,
        ChainStep.LABELLED: 3,
        ChainStep.OPEN_NOTED: 3,
        ChainStep.REFRESHED: 3,
        ChainStep.REFRESH_NOTED: 3,
    }
)
SHORT = ((ChainStep.PUSHED, 1), (ChainStep.OPENED, 2))
"""In `make test`; all others are in the long tier."""
CASES = [(step, nth) for step in ChainStep for nth in range(1, PASSED[step] + 1)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a chain comes to that nobody disturbs."""
    place = tmp_path_factory.mktemp("undisturbed")
    clones(place)
    passed = []
    chain = chain_in(place, reached=passed.append)
    chain.execute(planned(chain, targets(place)))
    return outcome(place), Counter(passed)


def outcome(place):
    """All that is the same in two folders: commits are not, which have the time in them."""
    chain = chain_in(place)
    state = chain.states.read(planned(chain, targets(place)))
    pushed = {
        name: state.pushed[name] == git(place / f"{name} remote.git", "rev-parse", BRANCH)
        for name in NAMES
    }
    branches = [
        git(place / f"{name} remote.git", "for-each-ref", "--format=%(refname)") for name in NAMES
    ]
    return chain.client.pulls(), replace(state, pushed={}), pushed, branches


def died(place, step, nth):
    process = child("doomed_chain", str(place), step.value, str(nth))
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err


def test_every_step_is_passed_as_often_as_the_table_says(undisturbed):
    assert undisturbed[1] == PASSED


@pytest.mark.parametrize(
    ("step", "nth"),
    [pytest.param(*one, marks=[] if one in SHORT else pytest.mark.long) for one in CASES],
    ids=str,
)
def test_killed_there_another_one_gets_to_the_same_result(place, undisturbed, step, nth):
    repos = clones(place)
    died(place, step, nth)
    chain = chain_in(place)
    result = chain.execute(planned(chain, targets(place)))
    assert result.ok
    assert outcome(place) == undisturbed[0]
    for one in repos:
        assert git(one.remote, "rev-parse", BRANCH) == one("rev-parse", BRANCH)


def test_crash_upon_crash_gets_to_the_same_result(place, undisturbed):
    clones(place)
    for step in ChainStep:
        # The first passing of each is over after one death, so each dies a little further on.
        died(place, step, 1)
    chain = chain_in(place)
    assert chain.execute(planned(chain, targets(place))).ok
    assert outcome(place) == undisturbed[0]
