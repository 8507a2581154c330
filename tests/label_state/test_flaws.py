"""The 27 flaws of the published state machine, each as a test of what ours does instead.

Named by their numbers; `ELSEWHERE` names the tests in other files. That every flaw has one is a
test as well.
"""

import threading
from pathlib import Path

import pytest

import dibs.label_state as ls
from dibs.core.ids import HolderId, StageName
from dibs.label_state import labels, pauses
from dibs.label_state.backlogs import connections
from dibs.label_state.program import run
from dibs_lab.fakehub import Fault, Wrong
from dibs_lab.sim.mixed import WORLDS, Fleet, Pair, count_pairs

from .conftest import configure
from .old_runner import OldRunner, unreleased, words
from .places import let_all_go
from .test_claims import FIRING, LUCIUS, ROBIN, another_process

LIFECYCLE = {labels.IMPLEMENT, labels.IN_FLIGHT, labels.PR_OPEN, labels.DONE}
READ, POST, TRIP = "query Read", "POST .*/comments$", "mutation Trip"
TIES = next(world for world in WORLDS if "whole seconds" in world.name)
LAG = next(world for world in WORLDS if "within 2 s" in world.name)
STALLS = next(world for world in WORLDS if "stalls" in world.name)

SIM = "tests/simulation/test_mixed.py"
HOOK = "tests/hook/test_pushing.py"
FOLLOWING = "tests/services/test_following.py"
ELSEWHERE = {
    1: (f"{SIM}::test_nothing_that_is_promised_is_broken_in_the_agents_dialect",),
    2: (f"{SIM}::test_what_only_the_old_rules_allow_happens_to_none_of_ours",),
    3: (f"{SIM}::test_what_only_the_old_rules_allow_happens_to_none_of_ours",),
    4: (f"{SIM}::test_what_only_the_old_rules_allow_happens_to_none_of_ours",),
    5: (f"{SIM}::test_no_two_of_ours_ever_hold_an_issue_whoever_else_is_there",),
    6: (f"{SIM}::test_what_only_the_old_rules_allow_happens_to_none_of_ours",),
    7: (
        f"{SIM}::test_what_only_the_old_rules_allow_happens_to_none_of_ours",
        f"{HOOK}::test_flaw_07_a_holder_that_another_came_after_is_refused_and_told_who",
    ),
    19: (
        f"{FOLLOWING}::test_flaw_19_a_merge_moves_it_to_done_whoever_merged",
        f"{FOLLOWING}::test_flaw_19_closed_unmerged_goes_back_to_be_worked_again",
        "tests/label_state/test_adopting.py::test_the_most_advanced_state_stays",
    ),
    22: (
        f"{HOOK}::test_flaw_22_the_holder_pushes_with_its_run_in_the_environment",
        f"{HOOK}::test_flaw_22_every_form_is_seen_in_a_real_push",
    ),
}
"""Beside the tests of this file, which bear the numbers in their names: those of the hook, of pull
requests, and of the races in the simulator."""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flaw", range(1, 28))
def test_every_flaw_has_a_test_that_is_there(flaw):
    here = [name for name in globals() if name.startswith(f"test_{flaw}_")]
    named = [one.split("::") for one in ELSEWHERE.get(flaw, ())]
    assert here or named, f"flaw {flaw}"
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), name


def race(*calls):
    """All at once, from threads."""
    answers, together = {}, threading.Barrier(len(calls))

    def runner(place, call):
        together.wait()
        answers[place] = call()

    threads = [
        threading.Thread(target=runner, args=(place, call)) for place, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[place] for place in range(len(calls))]


def claimant(number, turn):
    key = {"codename": f"agent-{turn}", "firing_id": f"f{turn}"}
    return lambda: ls.claim_issue("shop", number, **key)


def test_1_a_loser_leaves_the_winners_lock_alone(hub):
    number = hub.issue("agent:implement")
    answers = race(*(claimant(number, turn) for turn in range(4)))
    assert sorted(map(bool, answers)) == [False, False, False, True]
    assert hub.labels(number) == {"agent:in-flight"}
    winner = answers.index(True)
    (claim,) = unreleased(hub.read(number).comments)
    assert claim[0] == (f"agent-{winner}", f"f{winner}")


def test_2_two_claims_in_one_second_have_one_winner(hub):
    """The server's clock stands still, so every comment bears the same second."""
    number = hub.issue("agent:implement")
    assert sum(race(claimant(number, 1), claimant(number, 2))) <= 1
    stamps = {one.created_at for one in hub.read(number).comments}
    assert len(stamps) == 1
    assert count_pairs(TIES, range(40), Fleet(0, 4)) == {}
    assert count_pairs(TIES, range(40), Fleet(4, 0))[Pair.THEIRS] > 0, "the control"


def test_3_a_claim_that_cannot_be_seen_is_not_won(hub):
    number = hub.issue("agent:implement")
    hub.hub.hub.faults.add(Fault(Wrong.LAG, seconds=(60, 60), kind=POST))
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "UNPROVEN")
    assert hub.labels(number) == {"agent:implement"}
    assert count_pairs(LAG, range(40), Fleet(0, 4)) == {}
    assert count_pairs(LAG, range(40), Fleet(4, 0))[Pair.THEIRS] > 0, "the control"


def test_4_what_cannot_be_read_is_neither_claimed_nor_freed_nor_called_free(hub):
    number = hub.issue("do-not-pickup")
    assert OldRunner(hub, "old", "o1")
    hub.say(number, OldRunner(hub, "old", "o1").line("claim", ts="now"))
    hub.hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, login="fleet"))
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "UNAVAILABLE")
    told = ls.issue_dedup_check("shop", number)
    assert (told["claimable"], told["state"]) == (False, "UNKNOWN")
    assert not ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert run(["dedup-check", f"shop#{number}"]) == 1
    hub.hub.hub.faults.clear()
    assert hub.labels(number) == {"do-not-pickup"}


def test_4_a_list_that_lacks_comments_proves_nothing(hub):
    number = hub.issue("agent:implement")
    hub.hub.hub.faults.add(Fault(Wrong.SHORT, count=1, kind=READ))
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert not answer
    assert answer.reason in {"UNPROVEN", "UNREADABLE"}


def test_5_a_sweep_in_the_middle_of_a_claim_evicts_nobody(hub, monkeypatch):
    """Before each of the claim's requests and after it."""
    number = hub.issue("agent:implement")
    swept, tracker = [], type(hub.tracker)
    for name in ("comment", "read", "apply"):
        plain = getattr(tracker, name)

        def between(self, *args, plain=plain, **kwargs):
            swept.extend(ls.find_stale_claims("shop", max_age_hours=0))
            swept.extend(hub.services.sweeping.sweep().changed)
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(tracker, name, between)
    assert ls.claim_issue("shop", number, **LUCIUS)
    assert swept == []
    assert hub.labels(number) == {"agent:in-flight"}


def test_6_a_long_runner_that_lives_is_not_swept(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    for _ in range(6):
        hub.pass_time(hours=2)
        answer.lease._keeper.renew_now()
        assert ls.find_stale_claims("shop", max_age_hours=4) == []
    assert not ls.force_release_stale_claim("shop", number, sweep_id="s", max_age_hours=0)
    assert not answer.lease.lost
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open")
    assert hub.labels(number) == {"agent:pr-open"}


def test_7_a_worker_that_was_swept_moves_nothing_that_is_anothers_by_now(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    let_all_go()
    hub.pass_time(hours=5)
    assert ls.force_release_stale_claim("shop", number, sweep_id="s")
    winner = ls.claim_issue("shop", number, **ROBIN)
    before = hub.read(number)
    late = ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open")
    assert (bool(late), late.reason) == (False, "LEASE_LOST")
    after = hub.read(number)
    assert (after.issue.labels, after.comments) == (before.issue.labels, before.comments)
    winner.lease.check()


def test_7_each_grant_has_a_higher_fence_than_the_one_before(hub):
    number = hub.issue("agent:implement")
    fences = []
    for turn in range(3):
        key = {"codename": "lucius", "firing_id": f"f{turn}"}
        fences.append(ls.claim_issue("shop", number, **key).lease.fence)
        assert ls.release_issue("shop", number, **key)
    assert fences == sorted(set(fences))


def test_8_a_strangers_release_frees_nothing(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    forged = f"<!-- agent-release:codename=lucius firing_id={FIRING} outcome=success -->"
    hub.say(number, forged, login="mallory")
    assert ls.find_stale_claims("shop") == []
    assert not ls.claim_issue("shop", number, **ROBIN)
    answer.lease._keeper.renew_now()
    assert not answer.lease.lost
    assert hub.labels(number) == {"agent:in-flight"}


def test_9_a_strangers_claim_keeps_nobody_off(hub):
    number = hub.issue("agent:implement")
    hub.say(number, "<!-- agent-claim:codename=x firing_id=y ts=z -->", login="mallory")
    ours = "<!-- agent-claim:codename=x firing_id=y ts=z run=x ttl=9000s v=1 state=bid -->"
    hub.say(number, ours, login="mallory")
    assert ls.issue_dedup_check("shop", number)["latest_claim"] is None
    assert ls.claim_issue("shop", number, **LUCIUS)


def test_10_no_comment_opens_a_gate(hub):
    number = hub.issue("agent:plan-pending-approval")
    for login in ("mallory", "colleague"):
        hub.say(number, "Lucius - review\nShip-ready: yes\napproved :+1:", login=login)
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "GATE_SHUT")


def test_11_a_holder_is_seen_however_many_comments_come_after(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    acting, issue = hub.hub.acting(), hub.hub.issue(number)
    for turn in range(130):
        acting.create_comment(issue, f"noise {turn}")
    answer = ls.claim_issue("shop", number, **ROBIN)
    assert (bool(answer), answer.reason) == (False, "HELD")
    assert ls.issue_dedup_check("shop", number)["latest_claim"]["codename"] == "lucius"


def test_12_a_firing_that_claims_again_claims_anew(hub):
    number = hub.issue("agent:implement")
    for _ in range(3):
        assert ls.claim_issue("shop", number, **LUCIUS)
        assert not ls.claim_issue("shop", number, **ROBIN)
        assert OldRunner(hub, "s", "s").stale(number) == [], "their sweep pairs each by itself"
        another_process()
        assert ls.release_issue("shop", number, **LUCIUS)
        assert unreleased(hub.read(number).comments) == []


def test_12_two_processes_with_one_key_are_two(hub):
    number = hub.issue("agent:implement")
    answers = race(*[lambda: ls.claim_issue("shop", number, **LUCIUS)] * 3)
    assert sum(answers) == 1


@pytest.mark.parametrize(
    "key",
    [
        {"codename": "dark knight", "firing_id": "a b\tc"},
        {"codename": "x-->", "firing_id": "=&%="},
        {"codename": "", "firing_id": ""},
        {"codename": "ü🦄", "firing_id": "a firing b"},
        {"codename": "c" * 300, "firing_id": "f" * 300},
    ],
)
def test_12_any_name_and_any_outcome_pair(hub, key):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **key)
    assert not ls.claim_issue("shop", number, **ROBIN)
    another_process()
    url, outcome = "https://x.example/a b-->?c=d", "went wrong --> a=b\nnext"
    assert ls.release_issue("shop", number, **key, outcome=outcome, pr_url=url)
    assert unreleased(hub.read(number).comments) == []
    assert hub.labels(number) == {"agent:implement"}


@pytest.mark.parametrize("wrong", [Wrong.ERROR_BEFORE, Wrong.ERROR_AFTER, Wrong.DROP_AFTER])
@pytest.mark.parametrize("kind", [READ, POST, TRIP])
def test_13_whatever_fails_in_a_claim_the_issue_keeps_a_label_that_somebody_looks_for(
    hub, wrong, kind
):
    number = hub.issue("agent:implement")
    hub.hub.hub.faults.add(Fault(wrong, kind=kind, login="fleet", times=4))
    ls.claim_issue("shop", number, **LUCIUS)
    assert hub.labels(number) & LIFECYCLE
    hub.hub.hub.faults.clear()
    let_all_go()
    hub.pass_time(hours=9)
    hub.services.sweeping.sweep()
    connections.close()
    assert hub.labels(number) == {"agent:implement"}
    assert ls.claim_issue("shop", number, **ROBIN)


@pytest.mark.parametrize("wrong", [Wrong.ERROR_AFTER, Wrong.DROP_AFTER])
def test_14_a_claim_whose_reply_was_lost_is_found_and_not_repeated(hub, wrong):
    number = hub.issue("agent:implement")
    hub.hub.hub.faults.add(Fault(wrong, kind=POST, login="fleet", times=1))
    assert ls.claim_issue("shop", number, **LUCIUS)
    assert len(hub.bodies(number)) == 1
    assert hub.labels(number) == {"agent:in-flight"}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(Wrong.ERROR_BEFORE, marks=pytest.mark.long),  # it is tried again for a while
        *(Wrong.ERROR_AFTER, Wrong.DROP_AFTER),
    ],
)
def test_14_a_release_whose_reply_was_lost_is_one_release(hub, wrong):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    hub.hub.hub.faults.add(Fault(wrong, kind=TRIP, login="fleet", times=1))
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open")
    assert hub.labels(number) == {"agent:pr-open"}
    assert unreleased(hub.read(number).comments) == []


def test_15_an_issue_that_was_never_queued_is_not_queued_by_us(hub):
    number = hub.issue("agent:summarise")
    assert ls.claim_issue("shop", number, **LUCIUS)
    assert ls.release_issue("shop", number, **LUCIUS, outcome="failure")
    assert hub.labels(number) == {"agent:summarise"}
    assert ls.claim_issue("shop", number, **LUCIUS)
    let_all_go()
    hub.pass_time(hours=5)
    hub.services.sweeping.sweep()
    assert hub.labels(number) == {"agent:summarise"}


@pytest.mark.parametrize("role", [None, "feature-dev", "anything"])
def test_16_a_plan_that_nobody_approved_is_claimed_in_no_role(hub, role):
    number = hub.issue("agent:plan-pending-approval")
    answer = ls.claim_issue("shop", number, **LUCIUS, role=role)
    assert (bool(answer), answer.reason) == (False, "GATE_SHUT")


def test_17_an_approval_is_void_once_the_text_was_changed(hub):
    number = hub.issue("agent:plan-pending-approval")
    hub.services.steering.approve(hub.ref(number), by="ada")
    assert ls.issue_dedup_check("shop", number)["claimable"] is True
    hub.hub.acting().edit_issue(hub.hub.issue(number), body="And delete the backups")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "GATE_SHUT")
    assert "it is for another text" in answer.text
    hub.services.steering.approve(hub.ref(number), by="ada")
    assert ls.claim_issue("shop", number, **LUCIUS)


def test_18_attempts_are_those_that_failed_and_a_person_starts_them_afresh(hub):
    number = hub.issue("agent:implement")

    def fail(turn):
        key = {"codename": "lucius", "firing_id": f"f{turn}"}
        assert ls.claim_issue("shop", number, **key)
        assert not ls.claim_issue("shop", number, **ROBIN), "a lost race"
        assert ls.release_issue("shop", number, **key, outcome="failure-tests")

    for turn in range(3):
        fail(turn)
    assert "needs:human-scope" in hub.labels(number)
    assert not [one for one in hub.labels(number) if "attempt" in one]
    hub.edit(number, remove=("needs:human-scope",))
    fail(3)
    assert "needs:human-scope" not in hub.labels(number)


def test_20_a_sweep_sees_closed_issues_and_every_page(hub):
    numbers = [hub.issue("agent:in-flight", title=f"issue {turn}") for turn in range(130)]
    hub.hub.acting().close_issue(hub.hub.issue(numbers[0]))
    hub.pass_time(hours=5)
    assert {row["number"] for row in ls.find_stale_claims("shop")} == set(numbers)


def test_20_recovery_needs_no_sweep(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    let_all_go()
    hub.pass_time(hours=4.1)
    assert ls.claim_issue("shop", number, **ROBIN)


def test_21_the_oldest_of_many_is_the_first(hub):
    numbers = [hub.issue("agent:implement", title=f"issue {turn}") for turn in range(60)]
    ready = hub.services.board.ready(limit=60)
    assert [int(row.issue.ref.key) for row in ready] == numbers


def test_21_a_person_who_forces_a_claim_stops_the_agent(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert run(["claim", f"shop#{number}", "--force"]) == 0
    answer.lease._keeper.renew_now()
    assert answer.lease.lost


def test_23_the_same_codename_on_two_hosts_is_two_claimants(hub):
    """No lock of a host takes part: two connections, one key, one winner."""
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    another_process()
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "HELD")


def test_24_a_pause_holds_for_every_name_of_the_repository_and_when_it_cannot_be_read(hub):
    number = hub.issue("agent:implement")
    ls.set_repo_paused("shop", True)
    assert ls.is_repo_paused("acme/shop")
    assert not ls.claim_issue("acme/shop", number, **LUCIUS)
    pauses.PAUSED_REPOS_FILE.write_text("{not json")
    assert ls.is_repo_paused("shop")
    assert not ls.claim_issue("shop", number, **LUCIUS)


def test_25_there_is_one_catalogue_of_labels():
    from dibs.core.presets import AGENT

    published = {name for name, _, _ in ls.LIFECYCLE_LABELS}
    assert published <= set(AGENT.every_label)
    assert {*ls.LIFECYCLE_LABELS} <= {*labels.LIFECYCLE_LABELS_TUPLES}


def test_26_two_claimers_of_a_bundle_do_not_undo_each_other(hub):
    """In one order, so that whoever has the first has them all; who loses writes nothing."""
    members = sorted(hub.issue("agent:implement", "agent:bundle:x") for _ in range(3))

    def claim_all(turn):
        taken = []
        for number in members:
            if not claimant(number, turn)():
                break
            taken.append(number)
        return taken

    one, other = race(lambda: claim_all(1), lambda: claim_all(2))
    assert sorted([one, other]) == [[], members]
    assert all(len(unreleased(hub.read(number).comments)) == 1 for number in members)


def test_26_a_member_that_is_rolled_back_is_where_it_was(hub):
    number = hub.issue("agent:bundle:x")
    assert ls.claim_issue("shop", number, **LUCIUS)
    assert ls.release_issue("shop", number, **LUCIUS, outcome="bundle-claim-rolled-back")
    assert hub.labels(number) == {"agent:bundle:x"}


def test_27_every_no_says_why(hub):
    """Each in its own word, for programs and for people."""
    seen = {}

    def no(number, **key):
        answer = ls.claim_issue("shop", number, **{**LUCIUS, **key})
        assert not answer
        assert answer.text
        seen[answer.reason] = number

    closed = hub.issue("agent:implement")
    hub.hub.acting().close_issue(hub.hub.issue(closed))
    no(closed)
    no(hub.issue("do-not-pickup"))
    no(hub.issue("agent:plan-pending-approval"))
    no(hub.issue("agent:in-flight"))
    theirs = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(theirs)
    no(theirs)
    ours = hub.issue("agent:implement")
    assert ls.claim_issue("shop", ours, **ROBIN)
    no(ours)
    no(4711)
    ls.set_repo_paused("shop", True)
    no(hub.issue("agent:implement"))
    assert set(seen) == {
        *("CLOSED", "BLOCKED", "GATE_SHUT", "CLAIM_LABEL_ONLY", "FOREIGN_CLAIM", "HELD"),
        *("NO_SUCH_ISSUE", "REPOSITORY_PAUSED"),
    }


def test_27_what_happened_is_in_the_journal(hub):
    configure("github:acme/shop", journal="events.jsonl")
    connections.close()
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    assert ls.release_issue("shop", number, **LUCIUS)
    with open("events.jsonl", encoding="utf-8") as file:  # noqa: PTH123
        told = file.read()
    assert '"claimed"' in told
    assert '"returned"' in told
    assert words(hub.bodies(number)[0])[0] == "claim"
    assert HolderId(f"lucius firing {FIRING}") in told
    assert StageName("implement") in told
