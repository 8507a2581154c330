"""The program `label-state`: its words, its answers, its exit codes, in a process of its own."""

import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest
from msgspec.structs import replace

import dibs.label_state as ls
from dibs.core.agent_dialect import firing_holder
from dibs.core.card import Card, CardState, parse_mark, render_card
from dibs.core.ids import RunId, StageName
from dibs.label_state.program import run

from .old_runner import OldRunner
from .places import let_all_go
from .test_claims import LUCIUS


def label_state(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dibs.label_state", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("spelling", ["{slug}#{number}", "{owner}/{slug}#{number}"])
def test_a_person_takes_an_issue_and_gives_it_back(place, spelling):
    number = place.issue("agent:implement")
    ref = spelling.format(slug=place.slug, owner="acme", number=number)
    assert label_state("claim", ref).returncode == 0
    assert place.labels(number) == {"agent:implement", "do-not-pickup"}
    assert not ls.claim_issue(place.slug, number, **LUCIUS)
    assert label_state("release", ref).returncode == 0
    assert place.labels(number) == {"agent:implement"}


def test_dedup_check_answers_by_its_exit_code(place):
    number = place.issue("agent:implement")
    ref = f"{place.slug}#{number}"
    assert label_state("dedup-check", ref).returncode == 0
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    answer = label_state("dedup-check", ref, "--json")
    assert answer.returncode == 1
    told = json.loads(answer.stdout)
    assert told["claimable"] is False
    assert told["reasons"] == [f"in-flight (lucius:{LUCIUS['firing_id']})"]
    assert list(told)[:-1] == [
        *("repo", "number", "state", "labels", "in_flight", "pr_open", "do_not_pickup"),
        *("needs_human_scope", "claimable", "latest_claim", "repo_paused"),
    ]


@pytest.mark.parametrize(
    ("labels", "force", "code"),
    [
        (("agent:implement",), False, 0),
        (("agent:pr-open",), False, 2),
        (("agent:pr-open",), True, 2),
        (("robin-pr-open",), True, 2),
        (("agent:in-flight",), False, 2),
        (("agent:in-flight",), True, 0),
    ],
)
def test_what_is_being_worked_is_taken_by_force_only(embedded, labels, force, code):
    number = embedded.issue(*labels)
    words = ["claim", f"shop#{number}", *(["--force"] if force else [])]
    assert label_state(*words).returncode == code
    assert ("do-not-pickup" in embedded.labels(number)) is (code == 0)


@pytest.mark.parametrize(
    "word", ["shop", "shop#0", "shop#x", "a/b/c#1", "#1", "sh op#1", "shop#1 "]
)
def test_what_names_no_issue_is_not_understood(embedded, word):
    for command in ("claim", "release", "dedup-check", "status-issue"):
        assert run([command, word]) == 1


def test_an_issue_that_cannot_be_read_is_not_free(embedded):
    assert run(["dedup-check", "shop#4711"]) == 1
    assert run(["claim", "shop#4711"]) == 1
    assert run(["status-issue", "shop#4711"]) == 1


def test_a_label_that_could_not_be_written_is_no_success(embedded, capsys):
    assert run(["release", "shop#4711"]) == 1
    assert "NO_SUCH_ISSUE" in capsys.readouterr().err


def test_status_shows_what_dedup_check_looks_at(embedded):
    number = embedded.issue("agent:implement", "bug")
    shown = label_state("status-issue", f"shop#{number}")
    assert shown.returncode == 0
    assert "labels" in shown.stdout
    told = json.loads(label_state("status-issue", f"shop#{number}", "--json").stdout)
    assert told == ls.issue_dedup_check("shop", number)


def test_a_repository_is_paused_resumed_and_listed(embedded, capsys):
    assert run(["repo", "pause", "shop"]) == 0
    assert run(["repo", "list"]) == 0
    assert "shop" in capsys.readouterr().out.splitlines()
    assert ls.is_repo_paused("acme/shop")
    assert run(["repo", "resume", "acme/shop"]) == 0
    capsys.readouterr()
    assert run(["repo", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"paused": []}
    assert run(["repo", "pause"]) == 2
    assert run(["repo", "pause", " "]) == 2
    assert run(["repo"]) == 2


def test_inside_a_run_the_program_only_reads(embedded, monkeypatch, capsys):
    number = embedded.issue("agent:implement")
    monkeypatch.setenv("DIBS_RUN", "540d0db55fb6")
    ref = f"{embedded.slug}#{number}"
    for words in (["claim", ref], ["release", ref], ["repo", "pause", "shop"], ["sweep-claims"]):
        assert run(words) == 2
        assert "HANDLER_MAY_NOT" in capsys.readouterr().err
    assert embedded.labels(number) == {"agent:implement"}
    assert run(["dedup-check", ref]) == 0
    assert run(["repo", "list"]) == 0
    monkeypatch.setenv("DIBS_OPERATOR", "1")
    assert run(["claim", ref]) == 0


# Sweeping


@pytest.fixture
def stale(hub):
    """A dead claim of ours, one of an old runner's, a label alone, and one that is alive."""
    ours, theirs, alone, alive = (hub.issue("agent:implement") for _ in range(4))
    assert ls.claim_issue("shop", ours, **LUCIUS)
    let_all_go()
    assert OldRunner(hub, "old", "o1").claim(theirs)
    OldRunner(hub, "old", "o2").labels_it(alone)
    hub.pass_time(hours=5)
    assert ls.claim_issue("shop", alive, **LUCIUS)
    return hub, {ours, theirs, alone}, alive


def test_a_sweep_frees_what_is_over_and_nothing_else(stale, monkeypatch, capsys):
    hub, over, alive = stale
    monkeypatch.setenv("LABEL_STATE_SWEEP_REPOS", "shop")
    assert run(["sweep-claims", "--max-age-hours", "4", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] is True
    assert {row["number"] for row in told["claims"]} == over
    assert all(hub.labels(number) == {"agent:in-flight"} for number in over)
    assert run(["sweep-claims"]) == 0
    assert "3 stale claims" in capsys.readouterr().out
    assert all(hub.labels(number) == {"agent:implement"} for number in over)
    assert hub.labels(alive) == {"agent:in-flight"}
    assert run(["sweep-claims"]) == 0
    assert "0 stale claims" in capsys.readouterr().out


def test_a_sweep_of_nothing_is_refused(embedded, capsys):
    assert run(["sweep-claims"]) == 2
    assert "LABEL_STATE_SWEEP_REPOS" in capsys.readouterr().err


def test_one_repository_that_cannot_be_read_does_not_keep_the_others(stale, capsys):
    hub, over, _ = stale
    assert run(["sweep-claims", "--repo", "acme/nowhere", "--repo", "shop"]) == 0
    told = capsys.readouterr()
    assert "acme/nowhere" in told.err
    assert all(hub.labels(number) == {"agent:implement"} for number in over)


def test_who_lost_a_race_is_not_called_the_one_at_work(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, codename="winner", firing_id="w1")
    now = hub.read(number).now
    for state, prev in ((CardState.CONCEDED, now), (CardState.BID, None)):
        bid = Card(RunId(state.value), timedelta(hours=1), state, firing_holder("loser", "l1"))
        card = render_card(replace(bid, stage=StageName("implement"), prev=prev))
        assert parse_mark(card).state is state
        hub.say(number, card)
    assert "in-flight (winner:w1)" in label_state("dedup-check", f"shop#{number}").stdout
    assert ls.issue_dedup_check("shop", number)["latest_claim"]["codename"] == "winner"


def test_a_sweep_that_could_read_nothing_does_not_say_that_all_is_well(hub, capsys):
    assert run(["sweep-claims", "--repo", "acme/nowhere", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["claims"], told["not_swept"]) == ([], ["acme/nowhere"])


def test_force_stops_the_agent_that_is_at_it(hub):
    number = hub.issue("agent:implement")
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert run(["claim", f"shop#{number}", "--force"]) == 0
    answer.lease._keeper.renew_now()
    assert answer.lease.lost


def test_the_doctor_is_answered(embedded):
    told = label_state("claim", "whatever", ALFRED_DOCTOR="1")
    assert (told.returncode, told.stdout) == (0, "[LABEL-STATE-DOCTOR-OK]\n")
