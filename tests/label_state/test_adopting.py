"""`dibs migrate alfred`: a repository with what the published rules leave behind, taken over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.in_process import run_in_process

import dibs.label_state as ls
from dibs.core.eligibility import PauseScope
from dibs.frontends.cli.main import run
from dibs.label_state.adopting import tidying

from .conftest import configure
from .old_runner import OldRunner, unreleased
from .test_claims import LUCIUS, ROBIN, another_process


def migrate(*words):
    told = ["migrate", "alfred", *words, "--json"]
    ran = run_in_process(run, told, cwd=Path.cwd(), env=dict(os.environ))
    assert ran.stdout, ran.stderr
    answer = json.loads(ran.stdout)
    return ran.returncode, answer.get("data", answer)


def told(answer):
    """Code by number of the issue."""
    rows = [row for row in answer["findings"] if "#" in row["place"] or row["place"].isdigit()]
    found = {}
    for row in rows:
        found.setdefault(int(row["place"].rpartition("#")[2]), []).append(row["found"])
    return found


@pytest.fixture
def lived_in(place):
    """One issue of each kind, with the claims of old runners an hour or none ago."""
    made = {
        "queued": place.issue("agent:implement"),
        "stale": place.issue("agent:implement"),
        "drifted": place.issue("agent:pr-open"),
        "fell out": place.issue("bug"),
        "several": place.issue("agent:done", "agent:pr-open"),
        "legacy": place.issue("lucius-pr-open"),
        "stale and several": place.issue("agent:implement", "lucius-pr-open", "agent:done"),
        "queued again": place.issue("agent:implement", "agent:pr-open"),
        "a person's own": place.issue("has-pr-open"),
        "gated": place.issue("agent:implement", "agent:plan-pending-approval"),
        "attempts": place.issue("agent:implement", "lucius-attempt-1", "lucius-attempt-2"),
        "person's": place.issue("agent:implement", "do-not-pickup"),
        "nobody's": place.issue("question"),
    }
    assert OldRunner(place, "old", "o1").claim(made["stale"])
    # An old runner looks at labels that this issue has only later.
    OldRunner(place, "old", "o2").labels_it(made["stale and several"])
    OldRunner(place, "old", "o2").comments(made["stale and several"])
    for kind in ("drifted", "fell out"):
        OldRunner(place, "old", f"o-{made[kind]}").comments(made[kind])
    return made


AFTER = {
    "queued": {"agent:implement"},
    "stale": {"agent:implement"},
    "drifted": {"agent:pr-open"},
    "fell out": {"bug"},
    "several": {"agent:done"},
    "legacy": {"agent:pr-open"},
    "stale and several": {"agent:done"},
    "queued again": {"agent:implement", "agent:pr-open"},
    "a person's own": {"has-pr-open"},
    "gated": {"agent:implement", "agent:plan-pending-approval"},
    "attempts": {"agent:implement", "lucius-attempt-1", "lucius-attempt-2"},
    "person's": {"agent:implement", "do-not-pickup"},
    "nobody's": {"question"},
}
FOUND = {
    "stale": ["STALE_CLAIM"],
    "drifted": ["STALE_CLAIM"],
    "fell out": ["FELL_OUT"],
    "several": ["STATES"],
    "legacy": ["STATES"],
    "stale and several": ["STALE_CLAIM", "STATES"],
    "queued again": ["IN_DOUBT"],
    "a person's own": ["IN_DOUBT"],
    "gated": ["PLAN_WAITS"],
    "attempts": ["ATTEMPTS"],
}


def picture(place, made):
    threads = {kind: place.read(number) for kind, number in made.items()}
    return {
        kind: (snapshot.issue.labels, [one.body for one in snapshot.comments])
        for kind, snapshot in threads.items()
    }


def test_it_says_what_it_would_do_and_writes_nothing(place, lived_in):
    before = picture(place, lived_in)
    code, answer = migrate("--max-age-hours", "0")
    assert (code, answer.get("dry_run"), answer.get("done")) == (0, True, 0), answer
    assert told(answer) == {lived_in[kind]: found for kind, found in FOUND.items()}
    assert picture(place, lived_in) == before


def test_it_takes_over_what_the_old_rules_left_behind_and_a_second_run_has_nothing_to_do(
    place, lived_in
):
    _, announced = migrate("--max-age-hours", "0")
    code, answer = migrate("--apply", "--max-age-hours", "0")
    assert (code, answer["dry_run"], answer["done"]) == (0, False, answer["changes"])
    assert (told(answer), answer["changes"]) == (told(announced), announced["changes"])
    assert {kind: place.labels(number) for kind, number in lived_in.items()} == AFTER
    for kind in ("stale", "drifted"):
        assert unreleased(place.read(lived_in[kind]).comments) == []
        assert "outcome=stale-swept" in place.bodies(lived_in[kind])[-1]
    after = picture(place, lived_in)
    code, answer = migrate("--apply", "--max-age-hours", "0")
    assert (code, answer["changes"]) == (3, 0)
    assert picture(place, lived_in) == after
    assert ls.claim_issue(place.slug, lived_in["stale"], **LUCIUS)


def test_what_runs_is_left_to_run(place):
    theirs, ours = place.issue("agent:implement"), place.issue("agent:implement")
    assert OldRunner(place, "old", "o1").claim(theirs)
    assert ls.claim_issue(place.slug, ours, **LUCIUS)
    before = picture(place, {"theirs": theirs, "ours": ours})
    _, answer = migrate("--apply")
    assert told(answer) == {theirs: ["HELD"], ours: ["HELD"]}
    assert picture(place, {"theirs": theirs, "ours": ours}) == before
    assert ls.release_issue(place.slug, ours, **LUCIUS)


def test_a_label_that_no_claim_explains_is_given_the_time_of_a_lease(hub):
    number = hub.issue("agent:in-flight")
    _, answer = migrate("--apply")
    assert told(answer) == {number: ["YOUNG"]}
    assert hub.labels(number) == {"agent:in-flight"}
    hub.pass_time(hours=5)
    _, answer = migrate("--apply")
    assert told(answer) == {number: ["UNCLAIMED_LABEL"]}
    assert hub.labels(number) == {"agent:implement"}


def test_missing_labels_are_made_and_a_pause_of_this_machine_is_everybodys(hub):
    ls.set_repo_paused("acme/shop", True)
    hub.services.adapters.pauses.resume(PauseScope.REPOSITORY, repo="acme/shop", by="ada")
    code, answer = migrate()
    kinds = {row["found"] for row in answer["findings"]}
    assert (code, kinds) == (0, {"MISSING_LABELS", "PAUSED_HERE"})
    assert migrate("--apply")[0] == 0
    assert migrate("--apply")[0] == 3
    another_process()
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **ROBIN).reason == "REPOSITORY_PAUSED"


def test_another_pipeline_is_not_migrated(embedded):
    embedded.issue("agent:implement")
    configure("sqlite:backlog.db", preset="stages")
    code, answer = migrate("--apply")
    assert code == 2
    assert "agent" in answer["error"]["message"]


# Killed in the middle


KILLED = """
import os, sys
from dibs.frontends.cli.main import run
import dibs.adapters.sqlite.tracker as sqlite
left = int(sys.argv[1])
def counting(name):
    plain = getattr(sqlite.SqliteTracker, name)
    def counted(self, *args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return plain(self, *args, **kwargs)
    setattr(sqlite.SqliteTracker, name, counted)
for name in ("comment", "edit_labels", "apply"):
    counting(name)
sys.exit(run(["migrate", "alfred", "--apply", "--max-age-hours", "0", "--json"]))
"""


@pytest.mark.parametrize("place", ["embedded"], indirect=True)
@pytest.mark.parametrize("writes", range(5))
def test_killed_after_any_write_the_next_run_gets_to_the_same_place(place, lived_in, writes):
    asked = [sys.executable, "-c", KILLED, str(writes)]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == -9, ran.stdout + ran.stderr
    assert migrate("--apply", "--max-age-hours", "0")[0] in (0, 3)
    assert {kind: place.labels(number) for kind, number in lived_in.items()} == AFTER
    assert migrate("--apply", "--max-age-hours", "0")[0] == 3


def test_a_plan_that_waits_is_worked_once_a_person_takes_the_gate_label_off(place):
    number = place.issue("agent:implement", "agent:plan-pending-approval")
    _, answer = migrate("--apply")
    assert told(answer) == {number: ["PLAN_WAITS"]}
    assert not ls.claim_issue(place.slug, number, **LUCIUS)
    place.edit(number, remove=("agent:plan-pending-approval",))
    assert place.services.explaining.explain(place.ref(number)).stage.name == "implement"
    assert ls.claim_issue(place.slug, number, **LUCIUS)


@pytest.mark.parametrize(
    ("on", "doubted"),
    [
        ({"agent:done", "agent:implement"}, True),
        ({"agent:pr-open", "agent:implement"}, True),
        ({"robin-pr-open", "agent:implement"}, True),
        ({"robin-pr-open"}, True),
        ({"robin-pr-open", "agent:done"}, False),
        ({"lucius-pr-open"}, False),
        ({"batman-pr-open", "bug"}, False),
        ({"agent:implement"}, False),
    ],
)
def test_what_a_person_may_have_meant_is_named_and_left(embedded, on, doubted):
    number = embedded.issue(*on)
    _, answer = migrate("--apply")
    found = told(answer).get(number, [])
    assert ("IN_DOUBT" in found) is doubted
    if doubted:
        assert embedded.labels(number) == on


def test_an_open_pull_request_says_what_a_queue_label_beside_it_is_worth(hub):
    number = hub.issue("agent:implement", "lucius-pr-open")
    repository = hub.hub.state.named(hub.repository)
    hub.hub.acting("fleet").create_pull(repository, "A fix", "fix", "main", body=f"Fixes #{number}")
    _, answer = migrate("--apply")
    assert told(answer) == {number: ["STATES"]}
    assert hub.labels(number) == {"agent:pr-open"}


def test_a_strangers_pull_request_does_not_take_a_persons_queue_label_off(hub):
    number = hub.issue("agent:implement", "agent:pr-open")
    repository = hub.hub.state.named(hub.repository)
    hub.hub.acting("mallory").create_pull(
        repository, "spam", "mallory:x", "main", body=f"Fixes #{number}"
    )
    _, answer = migrate("--apply")
    assert told(answer) == {number: ["IN_DOUBT"]}
    assert hub.labels(number) == {"agent:implement", "agent:pr-open"}


def test_an_agents_own_label_counts_where_its_claim_is(hub):
    number = hub.issue("robin-pr-open")
    old = OldRunner(hub, "robin", "r1")
    old.comments(number)
    hub.say(number, old.line("release", outcome="success"))
    _, answer = migrate("--apply")
    assert told(answer) == {number: ["STATES"]}
    assert hub.labels(number) == {"agent:pr-open"}


@pytest.mark.parametrize(
    ("on", "after"),
    [
        ({"agent:done", "agent:pr-open", "bug"}, {"agent:done", "bug"}),
        ({"agent:plan-pending-approval", "agent:implement"}, None),
        ({"robin-pr-open", "agent:done"}, {"agent:done"}),
        ({"robin-pr-open", "lucius-pr-open", "bug"}, {"agent:pr-open", "bug"}),
        ({"agent:implement", "bug"}, {"agent:implement", "bug"}),
        ({"bug"}, {"bug"}),
        (set(), set()),
    ],
)
def test_the_most_advanced_state_stays(on, after):
    known, after = set(on), on if after is None else after
    for effect in tidying(frozenset(on)):
        match type(effect).__name__:
            case "AddLabels":
                known |= set(effect.labels)
            case "RemoveLabels":
                known -= set(effect.labels)
    assert known == after
    assert tidying(frozenset(after)) == ()
