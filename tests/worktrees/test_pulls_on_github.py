"""A GitHub of our own over real HTTP; real git and real pushes; real processes that die."""

import os
import signal

import pytest

from dibs.adapters.github.client import Limits as Paces
from dibs.adapters.github.client import Transports
from dibs.adapters.github.pulls import GithubPulls
from dibs.core.errors import BadConfiguration, NotPermitted, Unavailable
from dibs.worktrees import ChainStep, CrossRepoPRChain, PullState
from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Wrong

from .features import BRANCH, NAMES, chain_in, clones, planned, targets
from .places import child

REPO = "acme/backend"


@pytest.fixture
def hub(monkeypatch):
    for name in [one for one in os.environ if one.startswith(("GITHUB_", "GH_"))]:
        monkeypatch.delenv(name)
    with FakeHub(limits=Limits.off()) as running:
        may = {f"acme/{name}": Permission.WRITE for name in NAMES}
        for name in may:
            running.repository(name)
        monkeypatch.setenv("GITHUB_API_URL", running.url)
        monkeypatch.setenv("GITHUB_TOKEN", running.user("worker", may))
        yield running


@pytest.fixture
def pulls(hub):
    made = GithubPulls(Transports(os.environ, limits=Paces.none()))
    yield made
    made.close()


def opened(pulls, **given):
    wanted = {"title": "t", "body": "b", "head": "topic", "base": "main", **given}
    return pulls.create(REPO, **wanted)


def acting(hub, login="worker"):
    return hub.state.acting(hub.state.viewer(f"{login}-token"))


def issue(hub, number, repo=REPO):
    return hub.state.view().primary.issue(hub.state.named(repo).id, number)


def labels_of(hub, number, repo=REPO):
    return {one.name for one in hub.state.view().primary.labels_on(issue(hub, number, repo))}


def test_one_that_was_opened_is_found_by_its_branch(pulls):
    made = opened(pulls)
    assert (made.number, made.head, made.base, made.body) == (1, "topic", "main", "b")
    assert made.url.endswith(f"/{REPO}/pull/1")
    assert pulls.find(REPO, head="topic") == (made,)
    assert pulls.find(REPO, head="other") == ()
    assert pulls.find(REPO, head="top") == ()


def test_without_a_base_it_is_the_default_branch(pulls):
    assert opened(pulls, base="").base == "main"


def test_open_closed_and_merged_are_told_apart_newest_first(pulls, hub):
    first = opened(pulls)
    acting(hub).edit_pull(issue(hub, first.number), state="closed")
    second = opened(pulls)
    acting(hub).merge_pull(issue(hub, second.number))
    opened(pulls)
    found = pulls.find(REPO, head="topic")
    assert [one.number for one in found] == [3, 2, 1]
    assert [one.state for one in found] == [PullState.OPEN, PullState.MERGED, PullState.CLOSED]


def test_a_branch_of_a_fork_is_another_branch(pulls, hub):
    acting(hub).create_pull(hub.state.named(REPO), "theirs", "stranger:topic", "main")
    assert pulls.find(REPO, head="topic") == ()


def test_there_is_never_a_second_one_from_a_branch_into_a_base(pulls):
    made = opened(pulls)
    assert opened(pulls, body="another") == made
    assert opened(pulls, base="release").number == 2


def test_more_than_a_page_of_them_are_read(pulls, hub):
    for _ in range(103):
        made = opened(pulls)
        acting(hub).edit_pull(issue(hub, made.number), state="closed")
    assert len(pulls.find(REPO, head="topic")) == 103


def test_labels_are_added_and_made_if_they_are_not_there(pulls, hub):
    made = opened(pulls)
    pulls.add_labels(made, ["agent:authored", "new"])
    [found] = pulls.find(REPO, head="topic")
    assert found.labels == {"agent:authored", "new"}


def test_a_text_is_replaced(pulls):
    pulls.edit_body(opened(pulls), body="äöü\n")
    assert pulls.find(REPO, head="topic")[0].body == "äöü\n"


def test_what_github_refuses_is_no_second_one(pulls):
    with pytest.raises(NotPermitted, match="422"):
        opened(pulls, head="main")
    with pytest.raises(NotPermitted, match="404"):
        pulls.find("acme/secret", head="topic")


@pytest.mark.parametrize("wrong", [Wrong.DROP_AFTER, Wrong.ERROR_AFTER])
def test_an_answer_that_was_lost_leads_to_the_one_that_is_there(pulls, hub, wrong):
    hub.faults.add(Fault(wrong, kind="pull", containing='"title"', times=1))
    with pytest.raises(Unavailable):
        opened(pulls)
    hub.faults.clear()
    assert opened(pulls).number == 1


def test_one_that_a_replica_does_not_show_yet_is_not_opened_twice(pulls, hub):
    opened(pulls)
    hub.faults.add(Fault(Wrong.STALE, seconds=(3600, 3600), kind="pull"))
    with pytest.raises(Unavailable, match="not listed yet"):
        opened(pulls)


# The chain


def bodies(hub):
    return [issue(hub, 1, f"acme/{name}").body for name in NAMES]


def executed(place, **given):
    chain = CrossRepoPRChain(state_dir=place / "state", now=1.0, **given)
    return chain.execute(planned(chain, targets(place)))


def test_a_chain_on_github(hub, place):
    clones(place)
    result = executed(place)
    assert result.ok
    assert [url.rsplit("/", 4)[-3] for url in result.opened.values()] == list(NAMES)
    for name, body in zip(NAMES, bodies(hub), strict=True):
        assert all(url in body for other, url in result.opened.items() if other != name)
        assert labels_of(hub, 1, f"acme/{name}") == {"agent:pr-open", "agent:authored"}
    hub.counts.reset()
    assert executed(place) == result
    assert hub.counts.told()["by_kind"] == {}


STEPS = [
    (step, nth)
    for step in (ChainStep.OPENED, ChainStep.LABELLED, ChainStep.OPEN_NOTED, ChainStep.REFRESHED)
    for nth in (1, 3)
]


@pytest.mark.parametrize(("step", "nth"), STEPS, ids=str)
def test_killed_there_another_one_gets_to_the_same_result(hub, place, step, nth):
    clones(place)
    process = child("doomed_chain", str(place), step.value, str(nth), "github")
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    result = executed(place)
    assert result.ok
    for name, body in zip(NAMES, bodies(hub), strict=True):
        assert all(url in body for other, url in result.opened.items() if other != name)
        assert body.count("dibs:chain") == 1
        assert labels_of(hub, 1, f"acme/{name}") == {"agent:pr-open", "agent:authored"}
        assert issue(hub, 2, f"acme/{name}") is None


def test_a_server_that_loses_every_third_answer_gets_the_same_chain(hub, place):
    clones(place)
    hub.faults.set([Fault(Wrong.DROP_AFTER, chance=0.3)], seed=5)
    for _ in range(30):
        if executed(place).ok:
            break
    hub.faults.clear()
    assert executed(place).ok
    for name in NAMES:
        assert issue(hub, 2, f"acme/{name}") is None


def test_the_branch_of_the_chain_is_what_it_says(hub, place):
    clones(place)
    executed(place)
    assert issue(hub, 1).pull.head == BRANCH


def test_planning_needs_no_token_and_executing_does(place, monkeypatch):
    clones(place)
    monkeypatch.setenv("GITHUB_API_URL", "not an address")
    chain = CrossRepoPRChain(state_dir=place / "state")
    plan = planned(chain, targets(place))
    with pytest.raises(BadConfiguration):
        chain.execute(plan)
    assert chain_in(place).execute(plan).ok
