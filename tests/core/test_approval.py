"""A gate opens only for the text, and in the visit, that an entitled person approved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.approval import (
    FIRST_VISIT,
    RulingKind,
    Void,
    at_gate,
    last_passage,
    plans,
    render_expired,
    render_labelled,
    render_plan,
    text_of,
    times_sent_back,
    visit_of,
)
from dibs.core.ids import StageName
from dibs.core.issue import Labelling
from dibs.core.pipeline import Approval, People
from dibs.core.presets import AGENT, STAGES

from .builders import WILD, at, edited, make_comment, make_issue, make_snapshot, make_try, ruling

REVIEW = STAGES.stages[1]
LABELS = ("stage:review", "approved")
ISSUE = replace(make_issue(LABELS), edited_at=at(0))
PLAN = "1. read\n2. write"


def snapshot_of(*comments, labelled=(), labels=LABELS, **fields):
    found = make_snapshot(comments, now=1000, labels=labels)
    fields = {"edited_at": at(0), "labelled": tuple(labelled), **fields}
    return replace(found, issue=replace(found.issue, **fields))


def gate_of(*comments, tries=(), pipeline=STAGES, **fields):
    return at_gate(snapshot_of(*comments, **fields), tries, REVIEW, pipeline)


def plan_comment(text=PLAN, number=1, created=10, *, run="", updated=None):
    body = render_plan(StageName("ready"), run, "worker", text)
    return make_comment(body, number, created, updated)


def with_approval(**settings):
    return replace(STAGES, approval=Approval(**settings))


def by(author, comment):
    return replace(comment, author=author)


# Which text


def test_an_approval_covers_the_plan():
    """A1: a plan that was approved and edited is another text."""
    posted = plan_comment()
    (plan,) = plans(snapshot_of(posted))
    yes = make_comment(ruling(ISSUE, plan=plan), 2, 20)
    assert gate_of(posted, yes).missing == 0
    altered = replace(posted, body=posted.body.replace("write", "delete"), updated_at=at(30))
    found = gate_of(altered, yes)
    assert (found.missing, found.rulings[0].void) == (1, Void.OTHER_TEXT)
    assert not found.plan.as_posted
    newer = plan_comment("3. burn", 3, 30)
    assert gate_of(posted, yes, newer).rulings[0].void is Void.OTHER_TEXT


@pytest.mark.parametrize("change", [{"title": "Other"}, {"body": "other"}])
def test_an_approval_covers_title_and_body(change):
    yes = make_comment(ruling(ISSUE), 1, 10)
    assert gate_of(yes).missing == 0
    assert gate_of(yes, **change).rulings[0].void is Void.OTHER_TEXT


@given(*[st.text(max_size=5)] * 6)
def test_two_texts_have_one_digest_only_if_they_are_equal(title, body, plan, title2, body2, plan2):
    first, second = (
        (replace(ISSUE, title=one, body=two), plans(snapshot_of(plan_comment(three)))[0])
        for one, two, three in ((title, body, plan), (title2, body2, plan2))
    )
    same = (title, body, first[1].text) == (title2, body2, second[1].text)
    assert (text_of(*first) == text_of(*second)) == same
    assert text_of(first[0]) != text_of(*first)


@given(WILD)
def test_a_plan_is_read_as_it_was_posted(text):
    (plan,) = plans(snapshot_of(plan_comment(text)))
    assert plan.text == text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    assert plan.as_posted


def test_what_stands_beside_the_block_of_a_plan_is_part_of_the_plan():
    posted = plan_comment()
    added = replace(posted, body=f"{posted.body}\n\nAnd then delete everything.")
    (plan,) = plans(snapshot_of(added))
    assert "delete everything" in plan.text
    assert not plan.as_posted


def test_a_strangers_plan_is_none():
    stranger = replace(plan_comment(), by_writer=False)
    assert plans(snapshot_of(stranger)) == ()


# Which visit


def test_an_approval_of_an_earlier_visit_opens_nothing():
    """A2: approved, sent back by hand, planned anew: the label and the text are still there."""
    yes = make_comment(ruling(ISSUE), 1, 10)
    again = make_try("advanced", stage="ready", run="again", ended=40)
    card = edited("again", "released", 2, 30, prev=50, updated=40, outcome="advanced",
                  target="review")  # fmt: skip
    found = gate_of(yes, card, tries=[again])
    assert (found.visit.name, found.rulings[0].void) == ("again", Void.EARLIER_VISIT)
    assert found.missing == 1
    fresh = make_comment(ruling(ISSUE, visit="again"), 3, 50)
    assert gate_of(yes, card, fresh, tries=[again]).missing == 0


def test_a_move_by_hand_begins_a_visit_with_or_without_a_history_of_labels():
    yes = make_comment(ruling(ISSUE), 1, 10)
    moved = Labelling("stage:review", "ann", at(500))
    assert gate_of(yes, labelled=[moved]).rulings[0].void is Void.EARLIER_VISIT
    mark = make_comment(render_labelled(("stage:review",), "ann"), 2, 500)
    assert gate_of(yes, mark).rulings[0].void is Void.EARLIER_VISIT


def test_a_run_that_failed_at_the_gate_begins_no_visit():
    yes = make_comment(ruling(ISSUE), 1, 10)
    assert gate_of(yes, tries=[make_try("failed", stage="review")]).missing == 0


def test_a_plan_of_an_earlier_visit_is_no_part_of_the_text():
    old = plan_comment("old", 1, 10, run="old")
    tries = [make_try("advanced", stage="ready", run=run) for run in ("old", "new")]
    assert gate_of(old, tries=tries[:1]).plan.text == "old"
    found = gate_of(old, tries=tries)
    assert (found.plan, found.text) == (None, text_of(ISSUE))


# By a label


def hand(at_s, who="ann"):
    return Labelling("approved", who, at(at_s))


def test_a_label_by_hand_counts_for_its_visit_only():
    """A3: an older approval of another text takes nothing from a label that is put on later."""
    moved = Labelling("stage:review", "fleet", at(100))
    assert gate_of(labelled=[moved, hand(200)]).missing == 0
    assert gate_of(labelled=[hand(50), moved]).label_void is Void.EARLIER_VISIT
    stale = make_comment(ruling(replace(ISSUE, body="v1")), 1, 110)
    own = hand(111)
    assert gate_of(stale, labelled=[moved, own]).label_void is Void.BY_COMMAND
    assert gate_of(stale, labelled=[moved, own, hand(300)]).missing == 0


def test_a_label_by_hand_is_older_than_no_change():
    late = {"edited_at": at(300)}
    assert gate_of(labelled=[hand(200)], **late).label_void is Void.TEXT_CHANGED
    changed = plan_comment(created=10, updated=250)
    assert gate_of(changed, labelled=[hand(200)]).label_void is Void.TEXT_CHANGED


def test_without_label_and_ruling_it_is_shut():
    for labelled in ([], [hand(200)]):
        found = gate_of(labels=["stage:review"], labelled=labelled)
        assert (found.missing, found.label_void) == (1, Void.NOT_ON)


def test_without_a_history_a_label_counts_until_somebody_rules():
    assert gate_of().missing == 0
    stale = make_comment(ruling(replace(ISSUE, body="v1")), 1, 10)
    assert gate_of(stale).label_void is Void.BY_RULING


# By a comment


def test_a_comment_approves_the_text_as_it_was_then():
    yes = make_comment("/approve", 1, 20)
    assert gate_of(yes).missing == 0
    assert gate_of(yes, edited_at=at(20)).rulings[0].void is Void.TEXT_CHANGED
    assert gate_of(yes, edited_at=None).rulings[0].void is Void.NO_DIGEST
    posted = plan_comment(created=10)
    assert gate_of(posted, make_comment("/approve\n\n> quoted mail", 2, 20)).missing == 0
    altered = replace(posted, updated_at=at(20))
    assert gate_of(altered, make_comment("/approve", 2, 20)).rulings[0].void is Void.TEXT_CHANGED


def test_a_comment_may_name_the_digest():
    assert gate_of(make_comment(f"/approve {text_of(ISSUE)}", 1, 20), edited_at=None).missing == 0
    half = make_comment(f"/approve {text_of(ISSUE)[:8]}", 1, 20)
    assert gate_of(half).rulings[0].void is Void.HALF_DIGEST
    other = make_comment(f"/approve {'0' * 32}", 1, 20)
    assert gate_of(other).rulings[0].void is Void.OTHER_TEXT


@pytest.mark.parametrize(
    "body", ["I would not /approve this", "/approved", "approve", "> /approve", "`/approve`", ""]
)
def test_other_words_are_no_ruling(body):
    assert gate_of(make_comment(body, 1, 20)).rulings == ()


def test_a_rejection_by_comment_carries_its_words():
    no = gate_of(make_comment("/reject too vague\nsay which table", 1, 20)).rejection
    assert (no.kind, no.note) == (RulingKind.REJECTED, "too vague\nsay which table")


def test_a_comment_that_was_edited_is_no_ruling():
    """Whoever may write may edit an approver's comment."""
    forged = make_comment("/approve", 1, 20, 60)
    assert gate_of(forged).rulings[0].void is Void.EDITED


def test_a_strangers_comment_is_no_ruling():
    assert gate_of(make_comment("/approve", 1, 20, by_writer=False)).rulings == ()


# Who


def test_the_last_word_of_each_person_counts():
    yes, no = make_comment("/approve", 1, 20), make_comment("/reject no", 2, 30)
    assert gate_of(yes, no).missing == 1
    assert gate_of(yes, no, make_comment("/approve", 3, 40)).missing == 0
    assert gate_of(by("bob", no), yes).missing == 1, "another person still says no"


def test_only_approvers_count_where_there_are_any():
    pipeline = with_approval(approvers=frozenset({"Ann"}), proven=True)
    yes = make_comment("/approve", 1, 20)
    assert gate_of(by("mallory", yes), pipeline=pipeline).rulings[0].void is Void.NO_APPROVER
    assert gate_of(by("ann", yes), pipeline=pipeline).missing == 0
    assert gate_of(labelled=[hand(20, "bob")], pipeline=pipeline).label_void is Void.NO_APPROVER
    assert gate_of(labelled=[hand(20, "ANN")], pipeline=pipeline).missing == 0


def test_the_account_counts_and_not_the_name_in_the_mark():
    mark = make_comment(ruling(ISSUE, by="ann"), 1, 20)
    people = frozenset({"ann"})
    proven = with_approval(approvers=people, proven=True)
    assert gate_of(by("mallory", mark), pipeline=proven).rulings[0].void is Void.NO_APPROVER
    unproven = with_approval(approvers=people)
    assert gate_of(by("", mark), pipeline=unproven).missing == 0


def test_an_account_of_the_fleet_never_counts():
    pipeline = replace(with_approval(proven=True), people=People(fleet=frozenset({"fleet-bot"})))
    assert gate_of(by("Fleet-Bot", make_comment("/approve", 1, 20)), pipeline=pipeline).rulings[
        0
    ].void is Void.FLEET  # fmt: skip


def test_a_relay_counts_if_it_signs():
    people = {"approvers": frozenset({"ann"}), "relays": frozenset({"slack"}), "proven": True}
    mark = by("slack", make_comment(ruling(ISSUE, by="ann"), 1, 20))
    pipeline = with_approval(**people)
    assert gate_of(mark, pipeline=pipeline).rulings[0].void is Void.UNSIGNED_RELAY
    assert gate_of(replace(mark, signed=True), pipeline=pipeline).approvals[0].by == "ann"
    forged = by("slack", make_comment(ruling(ISSUE, by="mallory"), 1, 20))
    found = gate_of(replace(forged, signed=True), pipeline=pipeline)
    assert found.rulings[0].void is Void.NO_APPROVER


def test_a_relay_without_approvers_is_refused():
    with pytest.raises(ValueError, match="anybody could be relayed"):
        Approval(relays=frozenset({"slack"}))
    with pytest.raises(ValueError, match="there are 1 approvers"):
        Approval(approvers=frozenset({"ann"}), needed=2)


def test_it_takes_as_many_people_as_the_settings_say():
    pipeline = with_approval(needed=2, proven=True)
    yes = make_comment("/approve", 1, 20)
    assert gate_of(yes, replace(yes, id=2), pipeline=pipeline).missing == 1
    assert gate_of(yes, by("bob", replace(yes, id=2)), pipeline=pipeline).missing == 0
    assert gate_of(labelled=[hand(20)], pipeline=pipeline).label_void is Void.SEVERAL


def test_with_four_eyes_nobody_approves_their_own_work():
    pipeline = with_approval(four_eyes=True, proven=True)
    yes = by("ann", make_comment("/approve", 9, 500))
    card = by("ann", edited("a", "released", 1, 10, prev=20, updated=15))
    assert gate_of(yes, pipeline=pipeline).missing == 0
    assert gate_of(card, yes, pipeline=pipeline).rulings[0].void is Void.OWN_WORK
    assert gate_of(yes, author="Ann", pipeline=pipeline).rulings[0].void is Void.OWN_WORK
    named = by("worker-a", make_comment("/approve", 9, 500))
    assert gate_of(card, named, pipeline=pipeline).rulings[0].void is Void.OWN_WORK


# After the gate


def passed(*comments, verdict="approved", ended=60):
    """An issue that a run moved out of review."""
    card = edited("pass", "released", 8, 50, prev=70, updated=ended, outcome="advanced",
                  target="done", stage="review")  # fmt: skip
    tries = [make_try("advanced", stage="review", run="pass", ended=ended)]
    return last_passage(snapshot_of(*comments, card), tries, STAGES)


def test_the_next_handler_learns_who_approved_what():
    posted = plan_comment()
    (plan,) = plans(snapshot_of(posted))
    yes = make_comment(ruling(ISSUE, plan=plan, note="go"), 2, 20)
    found = passed(posted, yes)
    assert (found.verdict, found.by, found.note) == ("approved", "ann", "go")
    assert found.text == text_of(ISSUE, plan)
    assert (found.plan.text, found.plan_changed) == (PLAN, False)
    altered = replace(posted, body=posted.body.replace("write", "delete"), updated_at=at(70))
    assert passed(altered, yes).plan_changed


def test_the_next_handler_learns_of_a_rejection_and_of_silence():
    found = passed(make_comment("/reject too vague", 2, 20))
    assert (found.verdict, found.note) == ("rejected", "too vague")
    gate = gate_of()
    assert passed(make_comment(render_expired(gate), 2, 20)).verdict == "expired"
    assert passed() is not None, "its label was there without a history"


def test_how_often_it_was_sent_back_is_counted_since_the_last_yes():
    no = [make_comment(ruling(ISSUE, kind="rejected", visit=f"v{n}"), n, n) for n in range(1, 4)]
    assert times_sent_back(snapshot_of(*no, no[0]), REVIEW) == 3
    yes = make_comment(ruling(ISSUE, visit="v3"), 4, 4)
    again = make_comment(ruling(ISSUE, kind="rejected", visit="v5"), 5, 5)
    assert times_sent_back(snapshot_of(*no, yes, again), REVIEW) == 1


def test_the_first_visit_has_a_name():
    assert visit_of(snapshot_of(), (), REVIEW, STAGES).name == FIRST_VISIT
    stage = AGENT.stage("plan-pending-approval")
    assert at_gate(snapshot_of(), (), stage, AGENT).visit.name == FIRST_VISIT
