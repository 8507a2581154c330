"""Real git and real pushes to bare remotes; the host of pull requests is a folder."""

import contextlib
import dataclasses
import json

import pytest
from msgspec.structs import replace
from tests.servers.git_repository import git

from dibs.core.errors import Damaged, LeaseLost, Unavailable
from dibs.core.ids import Fence, IssueRef
from dibs.worktrees import BadChain, ChainState, PullState

from .features import BRANCH, NAMES, chain_in, clones, planned, targets
from .places import commit, write


@pytest.fixture
def repos(place):
    return clones(place)


@pytest.fixture
def chain(place, repos):
    return chain_in(place)


@pytest.fixture
def host(chain):
    return chain.client


def entries(body):
    return [
        line.split(": ", 1)[1] for line in body.splitlines() if line[:3] in {"1. ", "2. ", "3. "}
    ]


def urls(*numbers):
    return [f"https://host/acme/{NAMES[one - 1]}/pull/{one}" for one in numbers]


def test_as_the_documents_show_it(chain, host, repos, place):
    plan = planned(chain, targets(place))
    assert plan.state_file == place / "state" / "42.json"
    assert not (place / "state").exists()
    result = chain.execute(plan)
    assert result.ok
    assert result.feature_id == "42"
    assert result.opened == dict(zip(NAMES, urls(1, 2, 3), strict=True))
    assert result.failed == []
    bodies = [one.body for one in host.pulls()]
    assert entries(bodies[0]) == ["this one", *urls(2, 3)]
    assert entries(bodies[1]) == [*urls(1), "this one", *urls(3)]
    assert entries(bodies[2]) == [*urls(1, 2), "this one"]
    for one in repos:
        assert git(one.remote, "rev-parse", BRANCH) == one("rev-parse", BRANCH)
    assert host.pulls()[0].labels == {"agent:pr-open", "agent:authored"}


def test_planning_asks_nobody(chain, host, place):
    planned(chain, targets(place))
    assert host.requests == []


def test_the_state_has_the_fields_of_the_published_one(chain, place):
    plan = planned(chain, targets(place))
    chain.execute(plan)
    state = json.loads(plan.state_file.read_text())
    assert state["feature_id"] == "42"
    assert state["parent_repo"] == "backend"
    assert state["parent_issue"] == 7
    assert state["repos"] == list(NAMES)
    assert state["prs"] == dict(zip(NAMES, urls(1, 2, 3), strict=True))
    assert state["created_at"] == 1700000000.0


def test_a_chain_that_the_published_system_began_goes_on(chain, host, place):
    first = planned(chain, targets(place, ["backend"]))
    chain.execute(first)
    body = "Part 1 of 2: as they write it\n\n## Sibling PRs\n\n- Part 2 (frontend): pending\n"
    host.write(replace(host.pulls()[0], body=body))
    old = {
        "feature_id": "42",
        "parent_repo": "backend",
        "parent_issue": 7,
        "repos": ["backend", "frontend"],
        "prs": {"backend": urls(1)[0]},
        "created_at": 1.5,
    }
    first.state_file.write_text(json.dumps(old))
    result = chain.execute(planned(chain, targets(place, NAMES[:2])))
    assert result.ok
    assert len(host.pulls()) == 2
    assert host.pulls()[0].body.startswith(body)
    assert entries(host.pulls()[0].body) == ["this one", *urls(2)]


def test_doing_it_again_asks_nobody_and_changes_nothing(chain, host, place):
    plan = planned(chain, targets(place))
    first = chain.execute(plan)
    before, asked = host.pulls(), host.requests
    assert chain.execute(plan) == first
    assert host.pulls() == before
    assert host.requests == asked


def test_what_it_costs(chain, host, place):
    chain.execute(planned(chain, targets(place)))
    assert sorted({what: host.requests.count(what) for what in host.requests}.items()) == [
        ("create acme/backend", 1),
        ("create acme/frontend", 1),
        ("create acme/mobile", 1),
        ("edit acme/backend", 2),
        ("edit acme/frontend", 1),
        ("find acme/backend", 3),
        ("find acme/frontend", 2),
        ("find acme/mobile", 1),
        ("label acme/backend", 1),
        ("label acme/frontend", 1),
        ("label acme/mobile", 1),
    ]


def test_a_plan_that_grew_goes_on_and_the_earlier_ones_learn_of_it(chain, host, place):
    chain.execute(planned(chain, targets(place, NAMES[:2])))
    assert "Part 1 of 2" in host.pulls()[0].body
    chain.execute(planned(chain, targets(place)))
    assert len(host.pulls()) == 3
    assert "Part 1 of 3" in host.pulls()[0].body
    assert entries(host.pulls()[1].body) == [*urls(1), "this one", *urls(3)]


# What people do meanwhile


def test_what_people_wrote_into_earlier_texts_stays(chain, host, place):
    chain.execute(planned(chain, targets(place, NAMES[:2])))
    pull = host.pulls()[0]
    edited = f"Reviewed by me.\r\n\r\n{pull.body}\n- [x] tried it\n".replace("\n", "\r\n")
    host.write(replace(pull, body=edited))
    chain.execute(planned(chain, targets(place)))
    body = host.pulls()[0].body
    assert body.startswith("Reviewed by me.")
    assert body.rstrip().endswith("- [x] tried it")
    assert entries(body) == ["this one", *urls(2, 3)]


def test_one_that_somebody_opened_by_hand_is_taken_in(chain, host, place):
    chain.git(["push", "origin", BRANCH], cwd=place / "frontend")
    host.create("acme/frontend", title="mine", body="By hand.", head=BRANCH, base="main")
    assert chain.execute(planned(chain, targets(place))).ok
    assert [one.repo for one in host.pulls()] == ["acme/frontend", "acme/backend", "acme/mobile"]
    assert host.pulls()[0].body.startswith("By hand.")
    assert "2. frontend: this one" in host.pulls()[0].body
    assert host.pulls()[0].labels == frozenset()


def test_one_into_another_base_is_somebody_elses(chain, host, place):
    host.create("acme/backend", title="t", body="b", head=BRANCH, base="release")
    wanted = [dataclasses.replace(one, base="main") for one in targets(place)]
    assert chain.execute(planned(chain, wanted)).ok
    assert host.pulls()[0].body == "b"
    assert len(host.pulls("acme/backend")) == 2


def test_one_of_the_chain_that_somebody_closed_is_not_opened_again(chain, host, place):
    plan = planned(chain, targets(place))
    chain.execute(plan)
    host.write(replace(host.pulls()[0], state=PullState.CLOSED))
    plan.state_file.unlink()
    assert chain.execute(plan).ok
    assert len(host.pulls()) == 3


def test_an_old_one_from_the_same_branch_is_not_taken_for_it(chain, host, place):
    made = host.create("acme/backend", title="t", body="old", head=BRANCH, base="")
    host.write(replace(made, state=PullState.MERGED))
    assert chain.execute(planned(chain, targets(place))).ok
    assert len(host.pulls("acme/backend")) == 2
    assert host.pulls()[0].body == "old"


def test_a_state_that_is_lost_is_found_again_at_the_host(chain, host, place):
    plan = planned(chain, targets(place))
    first = chain.execute(plan)
    before = host.pulls()
    plan.state_file.unlink()
    assert chain.execute(plan) == first
    assert host.pulls() == before


# Branches


def test_new_commits_are_pushed_by_the_next_execution(chain, host, place, repos):
    plan = planned(chain, targets(place))
    chain.execute(plan)
    repos[0]("checkout", "--quiet", BRANCH)
    newest = commit(repos[0].path, "more")
    assert chain.execute(plan).ok
    assert git(repos[0].remote, "rev-parse", BRANCH) == newest


def test_what_somebody_else_pushed_to_the_branch_is_never_overwritten(chain, host, place, repos):
    other = place / "other"
    git(place, "clone", "--quiet", str(repos[1].remote), str(other))
    git(other, "checkout", "--quiet", "-b", BRANCH)
    theirs = commit(other, "theirs")
    git(other, "push", "--quiet", "origin", BRANCH)
    result = chain.execute(planned(chain, targets(place)))
    assert not result.ok
    assert result.failed == ["frontend"]
    assert "commits that this one has not" in result.reasons["frontend"]
    assert git(repos[1].remote, "rev-parse", BRANCH) == theirs
    assert host.pulls("acme/frontend") == []
    assert entries(host.pulls()[0].body)[1] == "not open yet"


def test_a_branch_that_is_already_there_needs_no_clone(chain, host, place, repos):
    for one in repos:
        one("push", "--quiet", "origin", BRANCH)
    wanted = [dataclasses.replace(one, checkout_path=None) for one in targets(place)]
    assert chain.execute(planned(chain, wanted)).ok


def test_a_clone_that_is_gone_after_it_was_pushed_is_not_missed(chain, host, place, repos):
    plan = planned(chain, targets(place))
    host.broken = {"acme/backend"}
    assert chain.execute(plan).failed == ["backend"]
    host.broken = set()
    repos[0].path.rename(place / "away")
    assert chain.execute(plan).ok


def test_a_branch_that_was_cleared_after_it_was_pushed_is_not_missed(chain, host, place, repos):
    for one in repos:
        one("push", "--quiet", "origin", BRANCH)
        one("branch", "--quiet", "-D", BRANCH)
    assert chain.execute(planned(chain, targets(place))).ok


def test_a_branch_that_is_nowhere_is_said_to_be(chain, host, place, repos):
    repos[2]("branch", "--quiet", "-D", BRANCH)
    result = chain.execute(planned(chain, targets(place)))
    assert result.failed == ["mobile"]
    assert BRANCH in result.reasons["mobile"]


def test_hooks_of_the_user_have_their_say_about_a_push(chain, host, place, repos):
    write(
        repos[0].path / ".git/hooks", "pre-push", "#!/bin/sh\necho error: no >&2\nexit 1\n"
    ).chmod(0o755)
    result = chain.execute(planned(chain, targets(place)))
    assert result.failed == ["backend"]
    assert "no" in result.reasons["backend"]


# Faults


def test_what_fails_for_one_is_not_in_the_way_of_the_others_and_is_done_later(chain, host, place):
    host.broken = {"acme/frontend"}
    result = chain.execute(planned(chain, targets(place)))
    assert result.failed == ["frontend"]
    assert set(result.opened) == {"backend", "mobile"}
    host.broken = set()
    assert chain.execute(planned(chain, targets(place))).ok
    assert {tuple(entries(one.body)).count("this one") for one in host.pulls()} == {1}
    assert not any("not open yet" in one.body for one in host.pulls())


def test_an_answer_that_was_lost_does_not_make_a_second_one(chain, host, place):
    host.deaf = {"acme/backend"}
    assert chain.execute(planned(chain, targets(place))).failed == ["backend"]
    assert chain.execute(planned(chain, targets(place))).ok
    assert len(host.pulls("acme/backend")) == 1


def test_a_lost_lease_stops_it_before_the_next_thing_that_others_see(chain, host, place):
    left = [3]

    def check():
        left[0] -= 1
        if left[0] < 0:
            raise LeaseLost(IssueRef("acme/backend", "7"), fence=Fence(3), why="gone")

    with pytest.raises(LeaseLost):
        chain.execute(planned(chain, targets(place)), check=check)
    assert [one for one in host.requests if one.startswith("create")] == ["create acme/backend"]
    assert chain.execute(planned(chain, targets(place))).ok
    assert len(host.pulls()) == 3


def test_two_at_once_are_one_too_many(chain, host, place):
    plan = planned(chain, targets(place))
    with chain.states.alone(plan), pytest.raises(Unavailable, match="another process"):
        chain.execute(plan)
    assert host.requests == []
    assert chain.execute(plan).ok


def test_a_state_of_another_parent_is_not_gone_on_with(chain, host, place):
    plan = planned(chain, targets(place))
    chain.execute(plan)
    with pytest.raises(BadChain, match="backend#7"):
        chain.execute(dataclasses.replace(plan, parent_issue=8))


@pytest.mark.parametrize("text", ["{", "[]", '{"feature_id": 3}', ""])
def test_a_state_that_is_none_is_said_to_be(chain, host, place, text):
    plan = planned(chain, targets(place))
    write(place / "state", "42.json", text)
    with pytest.raises(Damaged, match=r"42\.json"):
        chain.execute(plan)
    assert host.requests == []


def test_the_state_may_be_kept_elsewhere(chain, host, place):
    class InMemory:
        def __init__(self):
            self.kept = []

        def alone(self, plan):
            return contextlib.nullcontext()

        def read(self, plan):
            return self.kept[-1] if self.kept else None

        def write(self, plan, state: ChainState):
            self.kept.append(dataclasses.replace(state, prs=dict(state.prs)))

    kept = InMemory()
    chain = dataclasses.replace(chain, states=kept)
    assert chain.execute(planned(chain, targets(place))).ok
    # After each step: the beginning, three pushes, three openings, three texts.
    assert len(kept.kept) == 1 + 3 + 3 + 3
    assert not (place / "state" / "42.json").exists()
