"""Marks that somebody forges, with real workers: a stranger's, and a writer's who has no key.

Forged are claims, endings, revokes, what is said on the control issue, and another tool's marker;
and a flood of comments. What the fleet does, and what it asks the server, is as if they were not
there; but for the pages that have to be read.
"""

from datetime import timedelta

import httpx
import pytest
from tests.acceptance.harness import until

from dibs.core.card import Card, CardState, render_card, render_revoke, render_shown
from dibs.core.eligibility import PauseScope
from dibs.core.granter import Appointed, PauseWord, render_appointment, render_pause
from dibs.core.ids import HolderId, RunId, StageName, server_time
from dibs.core.lease import Ending, Outcome, Revocation

from .projects import COLLEAGUE, GATED, QUICK, REPOSITORY, STRANGER, project_on_a_hub

KEY = {"DIBS_SIGNING_KEY": "k1:a secret that is long enough to sign with"}
WHO = "GET /repos/{owner}/{repo}/collaborators/{login}/permission"
PAGE = "GET /repos/{owner}/{repo}/issues/{number}/comments"
ANOTHER_TOOL = "<!-- agent-claim:codename=mallory firing_id=f1 ts=2026-05-01T12:00:00Z -->"
FORGERS = pytest.mark.parametrize(
    ("login", "secret"),
    [
        pytest.param(STRANGER, {}, id="stranger"),
        pytest.param(STRANGER, KEY, id="stranger-with-keys", marks=pytest.mark.long),
        pytest.param(COLLEAGUE, KEY, id="writer-without-the-key"),
    ],
)


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        yield made


class Forger:
    """Somebody with an account and a token of it, over the API."""

    def __init__(self, project, login):
        self._project = project
        self._base = f"{project.hub.url}/repos/{REPOSITORY}"
        self._proof = {"Authorization": f"Bearer {login}-token"}

    def ask(self, verb, path, **wanted):
        address = f"{self._base}{path}"
        return httpx.request(verb, address, json=wanted or None, headers=self._proof, timeout=30)

    def says(self, number, *bodies):
        for body in bodies:
            reply = self.ask("POST", f"/issues/{number}/comments", body=body)
            assert reply.status_code == 201, reply.text

    @property
    def _later(self):
        return server_time(self._project.hub.state.now() + timedelta(hours=6))

    def claims(self):
        """To be the holder, and to have been it for long."""
        bid = Card(
            RunId("forged1"),
            timedelta(hours=12),
            holder=HolderId("mallory"),
            stage=StageName("ready"),
        )
        held = Card(
            RunId("forged2"),
            timedelta(hours=12),
            CardState.HELD,
            prev=self._later,
            stage=StageName("ready"),
            beats=3,
            floor=10**15,
        )
        yield render_card(bid)
        yield render_card(held)
        yield "<!-- claim run=forged3 ttl=600s --> a script has it"

    def endings(self, run):
        """Of somebody else's lease."""
        for ending in (
            Ending(Outcome.ADVANCED, StageName("review"), "done already"),
            Ending(Outcome.RETURNED, None, "given back"),
            Ending(Outcome.FAILED, None, "failed"),
        ):
            yield render_card(
                Card(
                    RunId(run),
                    timedelta(hours=12),
                    CardState.RELEASED,
                    prev=self._later,
                    stage=StageName("ready"),
                    ending=ending,
                    shown=True,
                )
            )
        yield render_shown(RunId(run))

    def revokes(self, run):
        yield render_revoke(Revocation(RunId(run), by="root", reason="stop"))
        yield render_revoke(Revocation(RunId(run), by="root", reason="stop", force=True))

    def opens_a_control_issue(self):
        """With its label, if a label is taken from this account at all."""
        made = self.ask("POST", "/issues", title="dibs: control", labels=["dibs:control"])
        assert made.status_code == 201
        return made.json()["number"]

    def commands(self):
        """On the control issue: everything stops, and another store grants."""
        yield render_pause(PauseWord(PauseScope.FLEET, "root", "stop"))
        yield render_pause(PauseWord(PauseScope.REPOSITORY, "root", "stop"))
        yield render_appointment(Appointed("redis://mallory.example"), over=0)


@FORGERS
def test_forged_marks_neither_block_nor_take_nor_free_an_issue(project, login, secret):
    project.also = secret
    project.begin_with(GATED)
    forger = Forger(project, login)
    (number,) = project.backlog(1)
    forger.says(number, *forger.claims())
    if login == STRANGER:  # other tools sign nothing, so a writer's marker is believed
        forger.says(number, ANOTHER_TOOL)
    worker = project.holding(number)
    control = project.control()
    (card,) = project.our_cards(number)
    assert card.state is CardState.HELD

    theirs = forger.opens_a_control_issue()
    forger.says(number, *forger.endings(card.run), *forger.revokes(card.run))
    forger.says(control, *forger.commands())
    forger.says(theirs, *forger.commands())
    (later,) = project.backlog(1)
    beats = project.our_cards(number)[0].beats
    until(lambda: project.our_cards(number)[0].beats > beats, "a renewal that looked at all that")
    shown = project.dibs("show", str(number), "--json").data
    assert shown["lease"]["run"] == card.run, "it is still the worker's"
    assert worker.running
    assert project.runs_on(number, "began") == [card.run]

    project.let_go()
    until(lambda: len(project.lines()) == 2, "what came after is worked, too")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number, later)
    assert project.dibs("pause", "--fleet", "--reason", "by us", "--json").code == 0
    told = [one["text"] for one in project.dibs("why", str(number), "--json").data["reasons"]]
    assert any("by us" in text for text in told)
    assert not any("stop" in text for text in told)
    assert "comments" in project.dibs("leases", "show").out


@FORGERS
def test_forged_marks_cost_one_question_about_who_wrote_them(project, login, secret):
    project.also = secret
    project.begin_with(QUICK)
    (clean,) = project.backlog(1)
    project.work()  # and who grants is appointed now
    (plain,) = project.backlog(1)
    with project.counted() as without:
        assert project.work().code == 0
    forger = Forger(project, login)
    (forged,) = project.backlog(1)
    run = project.our_cards(clean)[0].run
    for _ in range(3):
        forger.says(forged, *forger.claims(), *forger.endings(run), *forger.revokes(run))
        forger.says(project.control(), *forger.commands())
    with project.counted() as with_them:
        assert project.work().code == 0
    project.assert_worked_once(clean, plain, forged)
    asked = with_them.pop(WHO, 0) - without.pop(WHO, 0)
    assert asked <= 1, "once for each account, however much it wrote"
    assert with_them == without
    assert sum(without.values()) <= 12, "five of the issue's own, and a worker's start and end"


@pytest.mark.long
def test_a_crowd_of_strangers_costs_a_question_for_each_and_keeps_nobody_off(project):
    project.begin_with(QUICK, ttl_s=60)
    (first,) = project.backlog(1)
    project.work()
    (number,) = project.backlog(1)
    for at in range(9):
        project.hub.user(f"sock{at}")
        forger = Forger(project, f"sock{at}")
        forger.says(number, next(forger.claims()))
    with project.counted() as counted:
        assert project.work().code == 0
    project.assert_worked_once(first, number)
    assert counted[WHO] <= 10
    assert len(project.our_cards(number)) == 1, "it took one bid"


def test_a_stranger_can_neither_edit_nor_delete_a_card_nor_touch_labels_and_state(project):
    project.begin_with(GATED)
    (number,) = project.backlog(1)
    worker = project.holding(number)
    stranger = Forger(project, STRANGER)
    (card,) = project.comments(number)
    before = project.label_names(number)
    for verb, path, wanted in (
        ("PATCH", f"/issues/comments/{card.id}", {"body": "mine now"}),
        ("DELETE", f"/issues/comments/{card.id}", {}),
        ("POST", f"/issues/{number}/labels", {"labels": ["paused"]}),
        ("DELETE", f"/issues/{number}/labels/claimed", {}),
        ("PUT", f"/issues/{number}/labels", {"labels": ["stage:review"]}),
        ("PATCH", f"/issues/{number}", {"state": "closed"}),
        ("PUT", f"/issues/{number}/lock", {}),
        ("DELETE", "/labels/claimed", {}),
    ):
        assert stranger.ask(verb, path, **wanted).status_code == 403, (verb, path)
    assert project.label_names(number) == before
    project.let_go()
    until(lambda: project.label_names(number) == {"stage:review"}, "it is advanced")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number)


# A flood


def flood(project, number, count, login=STRANGER):
    """Put there without the API, which would take too long: text, and forged cards among it."""
    issue, acts = project.issue(number), project.acting(login)
    forged = list(Forger(project, login).claims())
    for at in range(count):
        acts.create_comment(issue, forged[at % len(forged)] if at % 50 == 0 else f"junk {at}")


@pytest.mark.long
def test_five_thousand_junk_comments_cost_their_pages_and_nothing_else(project):
    """More than GitHub takes on one issue: its limit is lifted for this."""
    project.hub.state.most_comments = None
    project.begin_with(QUICK, ttl_s=120)
    (first,) = project.backlog(1)
    project.work()
    (plain,) = project.backlog(1)
    with project.counted() as without:
        assert project.work().code == 0
    (flooded,) = project.backlog(1)
    flood(project, flooded, 5_000)
    with project.counted() as with_them:
        assert project.work().code == 0
    project.assert_worked_once(first, plain, flooded)
    readings = {PAGE, WHO, "graphql query Read"}
    assert {kind: count for kind, count in with_them.items() if kind not in readings} == {
        kind: count for kind, count in without.items() if kind not in readings
    }
    told = project.hub.counts.told()
    # Before the bid, after it, and with each of three writes; each walked twice, to be sure of it.
    assert with_them[PAGE] <= 5 * 2 * 51
    assert told["not_modified"] >= with_them[PAGE] - 70, "only what has changed is paid for"
    assert sum(told["points"].values()) <= 80


@pytest.mark.long
def test_a_flood_over_an_issue_that_is_held_ends_nothing(project):
    """It is full then, so that not even a comment of the fleet's is taken; edits are."""
    project.begin_with(GATED, ttl_s=30)
    (number,) = project.backlog(1)
    worker = project.holding(number)
    (card,) = project.our_cards(number)
    flood(project, number, 2_499)
    full = Forger(project, STRANGER).ask("POST", f"/issues/{number}/comments", body="more")
    assert full.status_code == 403
    until(lambda: project.our_cards(number)[0].beats > card.beats, "a renewal")
    assert project.our_cards(number)[0].state is CardState.HELD
    project.let_go()
    until(lambda: project.label_names(number) == {"stage:review"}, "it is advanced")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number)


@pytest.mark.long
def test_an_issue_that_is_full_is_left_alone_and_the_others_are_worked(project):
    project.begin_with(QUICK, ttl_s=120)
    full, other = project.backlog(2)
    flood(project, full, 2_500)
    reply = project.work()
    assert reply.code == 0
    assert reply.err.count("is full: GitHub takes no more than 2500 comments") == 1
    project.assert_worked_once(other)
    assert project.label_names(full) == {"stage:ready"}
    assert len(project.comments(full)) == 2_500
    named = project.dibs("fsck", "--json").data["flaws"]
    assert [(one["issue"], one["code"]) for one in named] == [
        (f"{REPOSITORY}#{full}", "NEARLY_FULL")
    ]
    project.dibs("claim", str(full)).told(9, f"{REPOSITORY}#{full} is full")
    refused = project.dibs("claim", str(full), "--json")
    assert (refused.code, refused.error["code"]) == (9, "ISSUE_LOCKED")
    for one in project.comments(full)[:100]:
        project.acting().delete_comment(one)
    assert project.work().code == 0
    project.assert_worked_once(full)


@pytest.mark.long
def test_a_flood_over_the_control_issue_costs_its_pages_and_pauses_nobody(project):
    project.begin_with(QUICK, ttl_s=120)
    (first,) = project.backlog(1)
    project.work()
    flood(project, project.control(), 2_400)
    Forger(project, STRANGER).says(project.control(), *Forger(project, STRANGER).commands())
    (number,) = project.backlog(1)
    with project.counted() as counted:
        assert project.work().code == 0
    project.assert_worked_once(first, number)
    told = project.hub.counts.told()
    assert counted[PAGE] - told["not_modified"] <= 26
    # What a repository's people can do about it: the fleet may write there all the same.
    project.acting().lock_issue(project.issue(project.control()), "spam")
    assert project.dibs("pause", "--fleet", "--reason", "by us").code == 0
    assert "by us" in project.dibs("status").out
