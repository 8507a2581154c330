"""Rulings on GitHub: who wrote them, which text they mean, and what reading them costs."""

from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from dibs.core.approval import RulingKind, Void, at_gate, render_plan
from dibs.core.ids import IssueRef, StageName
from dibs.core.pipeline import Approval, People
from dibs.core.presets import STAGES

from .hubs import REPOSITORY, Hub

REVIEW = STAGES.stages[1]
PEOPLE = People(fleet=frozenset({"fleet"}))


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def ref(hub):
    made = hub.acting("mallory").create_issue(hub.state.named(REPOSITORY), "one", body="text")
    hub.clock.advance(2)
    hub.acting().add_labels(made, ["stage:review"])
    hub.clock.advance(2)
    return IssueRef(REPOSITORY, str(made.number))


def says(hub, ref, login, body):
    made = hub.acting(login).create_comment(hub.issue(int(ref.key)), body)
    hub.clock.advance(2)
    return made


def gate_of(hub, ref, *, graphql=True, **approval):
    pipeline = replace(STAGES, people=PEOPLE, approval=Approval(proven=True, **approval))
    return at_gate(hub.client(graphql=graphql).read(ref), (), REVIEW, pipeline)


def test_a_writers_comment_counts_and_a_strangers_does_not(hub, ref):
    says(hub, ref, "mallory", "/approve")
    assert gate_of(hub, ref).rulings == ()
    says(hub, ref, "colleague", "/approve")
    found = gate_of(hub, ref)
    assert ([one.by for one in found.approvals], found.missing) == (["colleague"], 0)


def test_the_account_of_the_fleet_approves_nothing(hub, ref):
    says(hub, ref, "fleet", "/approve")
    assert gate_of(hub, ref).rulings[0].void is Void.FLEET


def test_only_an_approver_counts_by_label_and_by_comment(hub, ref):
    approvers = frozenset({"Boss"})
    hub.acting().add_labels(hub.issue(int(ref.key)), ["approved"])
    hub.clock.advance(2)
    assert gate_of(hub, ref, approvers=approvers).label_void is Void.NO_APPROVER
    says(hub, ref, "colleague", "/approve")
    assert gate_of(hub, ref, approvers=approvers).rulings[0].void is Void.NO_APPROVER
    assert gate_of(hub, ref, approvers=frozenset({"COLLEAGUE"})).missing == 0


@pytest.mark.parametrize("change", [{"title": "other"}, {"body": "other"}])
def test_an_edit_after_a_comment_voids_it(hub, ref, change):
    says(hub, ref, "colleague", "/approve")
    assert gate_of(hub, ref).missing == 0
    hub.acting("mallory").edit_issue(hub.issue(int(ref.key)), **change)
    hub.clock.advance(2)
    assert gate_of(hub, ref).rulings[0].void is Void.TEXT_CHANGED
    says(hub, ref, "colleague", f"/approve {gate_of(hub, ref).text}")
    assert gate_of(hub, ref).missing == 0


def test_an_edit_of_the_plan_voids_it(hub, ref):
    body = render_plan(StageName("ready"), "", "ann", "1. read")
    posted = says(hub, ref, "fleet", body)
    says(hub, ref, "colleague", "/approve")
    assert gate_of(hub, ref).missing == 0
    hub.acting().edit_comment(posted, body.replace("read", "delete"))
    hub.clock.advance(2)
    found = gate_of(hub, ref)
    assert (found.rulings[0].void, found.plan.as_posted) == (Void.TEXT_CHANGED, False)


def test_another_writer_cannot_turn_a_comment_into_an_approval(hub, ref):
    posted = says(hub, ref, "colleague", "Looks odd")
    hub.clock.advance(5)
    hub.acting("fleet").edit_comment(posted, "/approve")
    assert gate_of(hub, ref).rulings[0].void is Void.EDITED


def test_a_label_that_was_put_on_again_is_a_word_of_its_own(hub, ref):
    issue = hub.issue(int(ref.key))
    hub.acting().add_labels(issue, ["approved"])
    hub.clock.advance(2)
    assert gate_of(hub, ref).missing == 0
    hub.acting().remove_label(issue, "stage:review")
    hub.clock.advance(2)
    hub.acting().add_labels(issue, ["stage:review"])
    hub.clock.advance(2)
    assert gate_of(hub, ref).label_void is Void.EARLIER_VISIT, "A2: the issue was away"


def test_without_graphql_a_comment_needs_a_digest(hub, ref):
    says(hub, ref, "colleague", "/approve")
    found = gate_of(hub, ref, graphql=False)
    assert found.rulings[0].void is Void.NO_DIGEST
    says(hub, ref, "colleague", f"/approve {found.text}")
    assert gate_of(hub, ref, graphql=False).missing == 0


def test_a_rejection_needs_no_text(hub, ref):
    says(hub, ref, "colleague", "/reject\nnot this way")
    found = gate_of(hub, ref, graphql=False).rejection
    assert (found.kind, found.note) == (RulingKind.REJECTED, "not this way")
