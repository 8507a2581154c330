"""`claim_issue` and `release_issue`: in each place, with its labels and its comments."""

import pickle

import pytest

import dibs.label_state as ls
from dibs.core.errors import LeaseLost
from dibs.core.ids import HolderId
from dibs.label_state.backlogs import connections

from .old_runner import words
from .places import let_all_go

FIRING = "20260501-194217-643a"
LUCIUS = {"codename": "lucius", "firing_id": FIRING}
ROBIN = {"codename": "robin", "firing_id": "20260501-194218-0001"}


def another_process():
    """What this one knows of its claims is forgotten, and nothing renews them."""
    let_all_go()
    connections.close()


def test_a_claim_moves_the_label_and_says_who_it_is(place):
    number = place.issue("agent:implement", "bug")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    assert place.labels(number) == {"agent:in-flight", "bug"}
    kind, said = words(place.bodies(number)[0])
    assert (kind, said["codename"], said["firing_id"]) == ("claim", "lucius", FIRING)
    assert said["state"] == "held"


@pytest.mark.parametrize(
    ("to", "after", "still_open"),
    [
        (None, {"agent:implement"}, True),
        ("agent:implement", {"agent:implement"}, True),
        ("agent:pr-open", {"agent:pr-open"}, True),
        ("agent:plan-pending-approval", {"agent:plan-pending-approval"}, True),
        ("needs:human-scope", {"agent:implement", "needs:human-scope"}, True),
        ("agent:done", {"agent:done"}, False),
    ],
)
def test_a_release_moves_it_on_and_is_said_in_a_comment_that_pairs(place, to, after, still_open):
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    url = "https://github.com/foo/bar/pull/42"
    assert ls.release_issue(place.slug, number, **LUCIUS, transition_to=to, pr_url=url)
    assert place.labels(number) == after
    assert place.read(number).issue.open is still_open
    (_, claim), (kind, release) = filter(None, map(words, place.bodies(number)))
    assert kind == "release"
    keys = ("codename", "firing_id")
    assert [claim[key] for key in keys] == [release[key] for key in keys]
    assert (release["outcome"], release["pr"]) == ("success", url)


@pytest.mark.parametrize("merged", [True, False])
def test_a_pull_request_given_to_the_release_is_followed_whatever_its_text_says(hub, merged):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    pull = hub.hub.acting("fleet").create_pull(
        hub.hub.state.named(hub.repository), "Mend the till", "fix", "main"
    )
    url = f"https://github.com/{hub.repository}/pull/{pull.number}"
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open", pr_url=url)
    hub.pass_time(seconds=5)
    if merged:
        hub.hub.acting().merge_pull(pull)
    else:
        hub.hub.acting().edit_pull(pull, state="closed")
    assert len(hub.services.following.follow(HolderId("w1")).changed) == 1
    assert hub.labels(number) == {"agent:done" if merged else "agent:implement"}
    assert hub.read(number).issue.open is not merged


def test_only_one_of_two_gets_it_and_the_other_is_told_why(place):
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    answer = ls.claim_issue(place.slug, number, **ROBIN)
    assert not answer
    assert answer.reason == "HELD"
    assert "lucius" in answer.text
    assert place.labels(number) == {"agent:in-flight"}
    assert len(place.bodies(number)) == 1, "who loses writes nothing"


def test_a_claim_is_released_by_another_process_that_knows_its_key(place):
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    another_process()
    assert ls.release_issue(place.slug, number, **LUCIUS, transition_to="agent:pr-open")
    assert place.labels(number) == {"agent:pr-open"}


def test_a_release_of_what_is_not_ours_touches_nothing(place):
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    before = place.read(number)
    answer = ls.release_issue(place.slug, number, **ROBIN, transition_to="agent:pr-open")
    assert (bool(answer), answer.reason) == (False, "LEASE_LOST")
    after = place.read(number)
    assert (after.issue.labels, after.comments) == (before.issue.labels, before.comments)


@pytest.mark.parametrize("to", ["agent:large-feature", "shipped", "do-not-pickup", ""])
def test_an_illegal_move_is_refused_and_the_claim_stays(place, to):
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    answer = ls.release_issue(place.slug, number, **LUCIUS, transition_to=to)
    assert (bool(answer), answer.reason) == (False, "ILLEGAL_MOVE")
    assert place.labels(number) == {"agent:in-flight"}
    assert ls.release_issue(place.slug, number, **LUCIUS)


def test_an_issue_that_nobody_queued_may_be_claimed_and_goes_back_to_nobody(place):
    number = place.issue("agent:summarise")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    assert place.labels(number) == {"agent:summarise", "agent:in-flight"}
    another_process()
    assert ls.release_issue(place.slug, number, **LUCIUS, outcome="failure")
    assert place.labels(number) == {"agent:summarise"}
    assert ls.claim_issue(place.slug, number, **ROBIN)
    assert ls.release_issue(place.slug, number, **ROBIN, transition_to="agent:done")
    assert place.labels(number) == {"agent:summarise", "agent:done"}


@pytest.mark.parametrize(
    ("label", "role", "reason"),
    [
        ("do-not-pickup", None, "BLOCKED"),
        ("needs:human-scope", None, "BLOCKED"),
        ("agent:pr-open", None, "BLOCKED"),
        ("lucius-pr-open", None, "BLOCKED"),
        ("anybody-pr-open", None, "BLOCKED"),
        ("agent:done", None, "BLOCKED"),
        ("done-already", None, "BLOCKED"),
        ("needs:info", None, "BLOCKED"),
        ("agent:needs-human-review", None, "BLOCKED"),
        ("batman:fanout-complete", None, "BLOCKED"),
        ("agent:plan-pending-approval", None, "GATE_SHUT"),
        ("agent:plan-pending-approval", "feature-dev", "GATE_SHUT"),
        ("agent:large-feature", "feature-dev", "BLOCKED"),
        ("feature", "feature-dev", "BLOCKED"),
        ("enhancement", "feature-dev", "BLOCKED"),
    ],
)
def test_a_blocker_is_a_no_that_names_it_and_dedup_agrees(embedded, label, role, reason):
    number = embedded.issue(label)
    answer = ls.claim_issue(embedded.slug, number, **LUCIUS, role=role)
    assert (bool(answer), answer.reason) == (False, reason)
    assert embedded.bodies(number) == [], "nobody bids for it"
    if role is None:
        assert ls.issue_dedup_check(embedded.slug, number)["claimable"] is False


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ((), None),
        (("agent:large-feature",), None),
        (("feature",), None),
        (("agent:bundle:billing",), None),
        (("agent:bundle:billing",), "feature-dev"),
        (("feature", "agent:implement", "severity:p1"), "feature-dev"),
    ],
)
def test_what_does_not_block_does_not(embedded, labels, role):
    number = embedded.issue(*labels)
    assert ls.issue_dedup_check(embedded.slug, number)["claimable"] is True
    assert ls.claim_issue(embedded.slug, number, **LUCIUS, role=role)


def test_a_plan_that_a_person_approved_may_be_claimed_and_led_on(embedded):
    number = embedded.issue("agent:plan-pending-approval")
    embedded.edit(number, add=("agent:plan-approved",))
    assert ls.claim_issue(embedded.slug, number, **LUCIUS)
    assert embedded.labels(number) == {"agent:in-flight", "agent:plan-approved"}
    assert ls.release_issue(embedded.slug, number, **LUCIUS, transition_to="agent:pr-open")
    assert embedded.labels(number) == {"agent:pr-open"}


def test_three_failures_park_it_and_lost_races_do_not(embedded):
    number = embedded.issue("agent:implement")
    for turn in range(3):
        key = {"codename": "lucius", "firing_id": f"f{turn}"}
        assert ls.claim_issue(embedded.slug, number, **key)
        assert not ls.claim_issue(embedded.slug, number, **ROBIN)
        assert ls.release_issue(embedded.slug, number, **key, outcome="push-failed")
    assert "needs:human-scope" in embedded.labels(number)
    assert not ls.claim_issue(embedded.slug, number, **ROBIN)


@pytest.mark.parametrize("outcome", ["partial", "rate-limit", "max-turns", "race-yielded"])
def test_what_says_nothing_of_the_issue_counts_no_attempt(embedded, outcome):
    number = embedded.issue("agent:implement")
    for turn in range(4):
        key = {"codename": "lucius", "firing_id": f"f{turn}"}
        assert ls.claim_issue(embedded.slug, number, **key)
        assert ls.release_issue(embedded.slug, number, **key, outcome=outcome)
    assert embedded.labels(number) == {"agent:implement"}


# The answer


def test_an_answer_is_as_good_as_the_bool_it_was():
    yes, no = ls.Answer(True), ls.Answer(False, "HELD", "somebody has it")
    assert yes == True and no == False  # noqa: E712, PT018
    assert (hash(yes), hash(no)) == (hash(True), hash(False))
    assert {True: 1}[yes] == 1
    assert f"{yes} {no}" == "True False"
    assert sum([yes, no, yes]) == 2
    assert (not yes, not no) == (False, True)
    assert yes is not True, "what cannot be kept: nothing is True but True"
    assert pickle.loads(pickle.dumps(no)).reason == "HELD"


def test_a_granted_claim_can_be_checked_while_it_is_worked(embedded):
    number = embedded.issue("agent:implement")
    answer = ls.claim_issue(embedded.slug, number, **LUCIUS)
    assert answer.reason == ""
    answer.lease.check()
    assert answer.lease.fence > 0
    assert not answer.lease.lost
    assert ls.release_issue(embedded.slug, number, **LUCIUS)
    with pytest.raises(LeaseLost):
        answer.lease.check()


def test_an_issue_that_is_not_there_is_a_no_and_no_exception(place):
    answer = ls.claim_issue(place.slug, 4711, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "NO_SUCH_ISSUE")
    assert not ls.release_issue(place.slug, 4711, **LUCIUS)


def test_a_bare_name_needs_an_owner(hub, monkeypatch):
    monkeypatch.delenv("GH_ORG")
    with pytest.raises(RuntimeError, match="GH_ORG"):
        ls.claim_issue("shop", 1, **LUCIUS)
    number = hub.issue("agent:implement")
    assert ls.claim_issue("acme/shop", number, **LUCIUS)


def test_a_dry_run_asks_nobody_and_says_yes(hub, monkeypatch):
    monkeypatch.setenv("ALFRED_DRY_RUN", "1")
    number = hub.issue("agent:implement")
    with hub.counted() as counted:
        assert ls.claim_issue("shop", number, **LUCIUS)
        assert ls.release_issue("shop", number, **LUCIUS)
    assert counted == {}
    assert hub.labels(number) == {"agent:implement"}
