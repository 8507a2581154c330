"""Old runners and ours on one issue of a fake GitHub, step by step."""

import pytest

import dibs.label_state as ls
from dibs.core.ids import HolderId
from dibs.services.claiming import ClaimOptions
from dibs_lab.fakehub import Permission

from .old_runner import OldRunner, unreleased, words
from .places import let_all_go
from .test_claims import LUCIUS, ROBIN


def test_an_old_runner_sees_ours_as_held(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    old = OldRunner(hub, "old", "o1")
    assert not old.sees_it_free(number), "by its label"
    hub.edit(number, remove=("agent:in-flight",))
    hub.pass_time(seconds=2)
    assert not old.claim(number), "and by its comment"


def test_ours_takes_nothing_that_an_old_runner_holds(hub):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(number)
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "FOREIGN_CLAIM")
    assert [words(body)[1]["codename"] for body in hub.bodies(number)] == ["old"]
    hub.edit(number, add=("agent:implement",), remove=("agent:in-flight",))
    assert not ls.claim_issue("shop", number, **LUCIUS), "the comment counts, not the label"
    told = ls.issue_dedup_check("shop", number)
    assert (told["claimable"], told["latest_claim"]["codename"]) == (False, "old")


def test_what_an_old_runner_released_is_ours_to_take(hub):
    number = hub.issue("agent:implement")
    old = OldRunner(hub, "old", "o1")
    assert old.claim(number)
    old.release(number)
    assert ls.claim_issue("shop", number, **LUCIUS)


def test_an_old_runner_that_is_about_to_comment_is_left_alone(hub):
    """Its label is there, its claim is not yet: nothing of ours takes the label for a leftover."""
    number = hub.issue("agent:implement")
    old = OldRunner(hub, "old", "o1")
    assert old.sees_it_free(number)
    old.labels_it(number)
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "CLAIM_LABEL_ONLY")
    assert hub.services.sweeping.sweep().changed == ()
    old.comments(number)
    assert old.has_won(number)
    assert hub.services.sweeping.sweep().changed == ()
    assert hub.labels(number) == {"agent:in-flight"}


def test_an_old_runner_that_came_between_our_look_and_our_claim_keeps_it(hub, monkeypatch):
    """It saw the issue free and commented in the second of our bid: it wins the tie, and we see."""
    number = hub.issue("agent:implement")
    old = OldRunner(hub, "old", "o1")
    claiming = type(hub.services.claiming)
    judge_again = claiming._judge_again

    def meanwhile(self, granted, snapshot, stage, options):
        old.labels_it(number)
        old.comments(number)
        return judge_again(self, granted, self._tracker.read(snapshot.issue.ref), stage, options)

    monkeypatch.setattr(claiming, "_judge_again", meanwhile)
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "FOREIGN_CLAIM")
    assert old.has_won(number), "our bid is conceded: it is no claim to them any more"
    assert hub.labels(number) == {"agent:in-flight"}, "and we touched no label"


def test_a_loser_of_theirs_spoils_our_label_and_the_next_renewal_repaints_it(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    hub.pass_time(seconds=5)
    late = OldRunner(hub, "old", "o1")
    late.labels_it(number)
    late.comments(number)
    assert not late.has_won(number)
    late.yields(number)
    assert hub.labels(number) == {"agent:implement"}, "as every loser of theirs does"
    assert not ls.claim_issue("shop", number, **ROBIN), "the card says that it is held"
    assert not OldRunner(hub, "old", "o2").claim(number), "to them as well"
    answer.lease._keeper.renew_now()
    assert not answer.lease.lost
    assert hub.labels(number) == {"agent:in-flight"}


def test_a_sweep_of_theirs_sees_our_claim_and_only_its_age(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    sweeper = OldRunner(hub, "sweeper", "s1")
    assert sweeper.stale(number) == []
    for _ in range(4):
        hub.pass_time(hours=1.2)
        answer.lease._keeper.renew_now()
    assert not answer.lease.lost
    assert sweeper.stale(number) == [("lucius", LUCIUS["firing_id"])], (
        "their rule: the comment's age"
    )


def test_a_holder_that_their_sweep_released_stops_and_nobody_of_ours_takes_it_before(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    hub.pass_time(hours=3)
    answer.lease._keeper.renew_now()
    hub.pass_time(hours=2)
    OldRunner(hub, "sweeper", "s1").sweep(number)
    assert hub.labels(number) == {"agent:implement"}
    assert not ls.claim_issue("shop", number, **ROBIN), "its holder has not heard of it yet"
    answer.lease._keeper.renew_now()
    assert answer.lease.lost
    assert ls.release_issue("shop", number, **LUCIUS, outcome="partial")
    assert hub.labels(number) == {"agent:implement"}
    assert ls.claim_issue("shop", number, **ROBIN)


def test_our_release_frees_it_for_them(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    assert ls.release_issue("shop", number, **LUCIUS)
    assert unreleased(hub.read(number).comments) == []
    assert OldRunner(hub, "old", "o1").claim(number)


def test_a_claim_that_was_made_before_the_switch_is_released_after_it(hub):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "lucius", LUCIUS["firing_id"]).claim(number)
    url = "https://github.com/foo/bar/pull/42"
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open", pr_url=url)
    assert hub.labels(number) == {"agent:pr-open"}
    kind, said = words(hub.bodies(number)[-1])
    assert (kind, said["outcome"], said["pr"]) == ("release", "success", url)
    assert unreleased(hub.read(number).comments) == []
    refused = ls.release_issue("shop", number, **ROBIN)
    assert (bool(refused), refused.reason) == (False, "LEASE_LOST")


def test_a_dead_claim_of_ours_is_swept_by_them_and_worked_by_them(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    let_all_go()
    hub.pass_time(hours=4.5)
    OldRunner(hub, "sweeper", "s1").sweep(number)
    old = OldRunner(hub, "old", "o1")
    assert old.claim(number)
    assert not ls.claim_issue("shop", number, **ROBIN)
    old.release(number, to="agent:pr-open")
    assert hub.labels(number) == {"agent:pr-open"}


# An old runner that loses puts `agent:implement` on, whether or not the issue was queued


def race_lost_by_theirs(hub, number):
    """Ours has claimed; an old runner that had seen the issue free comes late, loses and yields."""
    hub.pass_time(seconds=5)
    late = OldRunner(hub, "old", "o1")
    late.labels_it(number)
    late.comments(number)
    assert not late.has_won(number)
    late.yields(number)
    assert "agent:implement" in hub.labels(number), "as every loser of theirs does"


@pytest.mark.parametrize("on", ["agent:summarise", "agent:plan-pending-approval"])
@pytest.mark.parametrize(
    ("to", "after", "still_open"),
    [("agent:done", {"agent:done"}, False), ("agent:pr-open", {"agent:pr-open"}, True)],
)
def test_what_ours_finished_is_shown_though_a_loser_of_theirs_queued_it(
    hub, on, to, after, still_open
):
    number = hub.issue(on, *(["agent:plan-approved"] if "plan" in on else []))
    assert ls.claim_issue("shop", number, **LUCIUS)
    race_lost_by_theirs(hub, number)
    answer = ls.release_issue("shop", number, **LUCIUS, transition_to=to)
    assert (bool(answer), answer.reason) == (True, "")
    assert hub.labels(number) - {"agent:summarise"} == after
    assert hub.read(number).issue.open is still_open
    assert not ls.claim_issue("shop", number, **ROBIN), "nobody of ours does it again"
    assert ls.issue_dedup_check("shop", number)["claimable"] is False


def test_an_issue_that_a_loser_of_theirs_queued_is_not_queued_by_going_back(hub):
    number = hub.issue("agent:summarise")
    assert ls.claim_issue("shop", number, **LUCIUS)
    race_lost_by_theirs(hub, number)
    assert ls.release_issue("shop", number, **LUCIUS, outcome="partial")
    assert hub.labels(number) == {"agent:summarise"}


def test_a_loser_of_theirs_that_dies_before_its_release_comment_moves_nothing_either(hub):
    number = hub.issue("agent:summarise")
    assert ls.claim_issue("shop", number, **LUCIUS)
    hub.pass_time(seconds=5)
    late = OldRunner(hub, "old", "o1")
    late.labels_it(number)
    late.comments(number)
    hub.edit(number, add=("agent:implement",), remove=("agent:in-flight",))
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:done")
    assert hub.labels(number) == {"agent:summarise", "agent:done"}


def test_what_a_loser_of_theirs_queued_after_our_release_is_no_second_stage_for_ever(hub):
    number = hub.issue("agent:summarise")
    assert ls.claim_issue("shop", number, **LUCIUS)
    hub.pass_time(seconds=5)
    late = OldRunner(hub, "old", "o1")
    late.comments(number)
    assert not late.has_won(number)
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open")
    late.yields(number)
    assert hub.labels(number) == {"agent:summarise", "agent:pr-open", "agent:implement"}
    assert not ls.claim_issue("shop", number, **ROBIN)
    hub.pass_time(hours=5)
    assert [one.repaired for one in hub.services.checking.check(repair=True)] == [True]
    assert hub.labels(number) == {"agent:summarise", "agent:pr-open"}


@pytest.mark.parametrize("raced", [False, True])
def test_what_a_person_queued_meanwhile_stays_queued_and_the_answer_says_so(hub, raced):
    number = hub.issue("agent:summarise")
    assert ls.claim_issue("shop", number, **LUCIUS)
    if raced:
        race_lost_by_theirs(hub, number)
        hub.edit(number, remove=("agent:implement",))
    hub.hub.hub.user("ada", {hub.repository: Permission.WRITE})
    acting = hub.hub.acting("ada")
    acting.edit_issue(hub.hub.issue(number), labels=["agent:summarise", "agent:implement"])
    answer = ls.release_issue("shop", number, **LUCIUS, transition_to="agent:done")
    assert (bool(answer), answer.reason) == (True, "LABELS_KEPT")
    assert "implement" in answer.text
    assert hub.labels(number) == {"agent:summarise", "agent:implement"}
    assert hub.read(number).issue.open
    assert ls.claim_issue("shop", number, **ROBIN), "that is the person's word"


def test_a_move_by_a_person_is_told_on_every_tracker(place):
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    place.edit(number, add=("agent:plan-pending-approval",), remove=("agent:in-flight",))
    answer = ls.release_issue(place.slug, number, **LUCIUS, transition_to="agent:pr-open")
    assert (bool(answer), answer.reason) == (True, "LABELS_KEPT")
    assert place.labels(number) == {"agent:plan-pending-approval"}


# What people see of it


@pytest.mark.parametrize("label", ["on", "stripped"])
def test_every_view_says_the_same_of_a_claim_of_theirs(place, label):
    number, free = place.issue("agent:implement"), place.issue("agent:implement")
    assert OldRunner(place, "old", "o1").claim(number)
    if label == "stripped":
        place.edit(number, add=("agent:implement",), remove=("agent:in-flight",))
    ref, board = place.ref(number), place.services.board
    states = {row.issue.ref: row.state for row in board.rows()}
    assert states == {ref: "theirs", place.ref(free): "ready"}
    assert board.show(ref)[1].state == "theirs"
    assert [row.issue.ref for row in board.ready()] == [place.ref(free)]
    (stage, *_) = board.survey().overview.stages
    assert (stage.stage.name, stage.apart, stage.waiting) == ("implement", {"theirs": 1}, 1)
    codes = {reason.code for reason in place.services.explaining.explain(ref).reasons}
    assert "FOREIGN_CLAIM" in codes


def test_a_list_says_of_a_failed_issue_what_a_claim_would_say(place):
    number = place.issue("agent:implement")
    stage = place.services.pipeline.stage("implement")
    options = ClaimOptions(HolderId("w1"))
    claimed = place.services.claiming.claim(place.ref(number), stage, options)
    keeper = place.services.keep(claimed)
    place.services.advancing.fail(keeper, "the tests are red")
    assert [row.state for row in place.services.board.rows()] == ["resting"]
    assert place.services.board.ready() == ()
