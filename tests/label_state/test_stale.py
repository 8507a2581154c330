"""Stale claims: whose lease is over, whose comment is old, and labels that nothing explains."""

import json
import math
from pathlib import Path

import pytest

import dibs.label_state as ls
from dibs.core.errors import NoSuchIssue, Unavailable
from dibs.label_state.backlogs import connections
from dibs.label_state.program import run
from dibs_lab.fakehub import Fault, Wrong

from .old_runner import OldRunner, unreleased, words
from .places import let_all_go
from .test_claims import LUCIUS, ROBIN

KEYS = [
    *("repo", "number", "title", "codename", "firing_id"),
    *("age_hours", "max_age_hours", "label_drift"),
]


def dead_claim(place, number, **key):
    assert ls.claim_issue(place.slug, number, **key)
    let_all_go()


def test_a_claim_is_stale_when_its_lease_is_over_and_not_before(hub):
    number = hub.issue("agent:implement")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=3.9)
    assert ls.find_stale_claims("shop", max_age_hours=1) == [], "its holder may still trust it"
    hub.pass_time(hours=0.2)
    (row,) = ls.find_stale_claims("shop")
    assert list(row) == KEYS
    assert (row["repo"], row["number"], row["title"]) == ("shop", number, "Prices are wrong")
    assert (row["codename"], row["firing_id"]) == tuple(LUCIUS.values())
    assert (row["age_hours"], row["max_age_hours"], row["label_drift"]) == (4.1, 4, False)


def test_freeing_a_stale_claim_queues_it_again_and_releases_it_for_their_readers(hub):
    number = hub.issue("agent:implement")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=4.1)
    answer = ls.force_release_stale_claim(
        "shop",
        number,
        sweep_id="20260501-235900-manual",
        released_codename="lucius",
        released_firing_id=LUCIUS["firing_id"],
    )
    assert answer
    assert hub.labels(number) == {"agent:implement"}
    kind, said = words(hub.bodies(number)[-1])
    assert kind == "release"
    assert {key: said[key] for key in ("codename", "firing_id", "outcome", "swept_by")} == {
        **LUCIUS,
        "outcome": "stale-swept",
        "swept_by": "20260501-235900-manual",
    }
    assert ls.find_stale_claims("shop") == []
    assert OldRunner(hub, "old", "o1").claim(number), "to them it is free as well"


def test_a_claim_that_is_not_over_is_not_ended_whoever_asks(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    answer = ls.force_release_stale_claim("shop", number, sweep_id="s", max_age_hours=0)
    assert (bool(answer), answer.reason) == (False, "HELD")
    assert hub.labels(number) == {"agent:in-flight"}


def test_a_claim_of_an_old_runner_is_stale_by_its_age(hub):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(number)
    hub.pass_time(hours=3.9)
    assert ls.find_stale_claims("shop") == []
    refused = ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert (bool(refused), refused.reason) == (False, "HELD")
    hub.pass_time(hours=0.2)
    (row,) = ls.find_stale_claims("shop")
    assert (row["codename"], row["firing_id"], row["age_hours"]) == ("old", "o1", 4.1)
    assert ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert hub.labels(number) == {"agent:implement"}
    assert OldRunner(hub, "old", "o2").claim(number)


def test_a_label_that_no_claim_explains_is_given_the_time_of_a_lease(hub):
    number = hub.issue("agent:implement")
    OldRunner(hub, "old", "o1").labels_it(number)
    assert ls.find_stale_claims("shop") == []
    hub.pass_time(hours=4.1)
    (row,) = ls.find_stale_claims("shop")
    assert list(row) == [*KEYS, "missing_claim"]
    assert (row["codename"], row["firing_id"], row["missing_claim"]) == ("?", "?", True)
    assert math.isinf(row["age_hours"])
    assert ls.force_release_stale_claim(
        "shop", number, sweep_id="s", released_codename="?", released_firing_id="?"
    )
    assert hub.labels(number) == {"agent:implement"}
    assert hub.bodies(number) == [], "there is nobody to release it for"


def test_a_claim_whose_label_somebody_moved_is_released_and_the_labels_stay(hub):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(number)
    hub.edit(number, add=("agent:implement", "bug"), remove=("agent:in-flight",))
    hub.pass_time(hours=5)
    (row,) = ls.find_stale_claims("shop")
    assert row["label_drift"] is True
    assert ls.force_release_stale_claim("shop", number, sweep_id="s", label_drift=True)
    assert hub.labels(number) == {"agent:implement", "bug"}
    assert ls.find_stale_claims("shop") == []


def test_a_stale_claim_beside_a_fresh_one_is_released_and_the_label_stays(hub):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(number)
    hub.edit(number, add=("agent:implement",), remove=("agent:in-flight",))
    hub.pass_time(hours=5)
    assert OldRunner(hub, "old", "o2").claim(number)
    answer = ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert (bool(answer), answer.reason) == (True, "LABELS_KEPT")
    assert hub.labels(number) == {"agent:in-flight"}
    assert not ls.claim_issue("shop", number, **ROBIN)


def test_an_unqueued_issue_whose_holder_died_is_not_queued(hub):
    number = hub.issue("agent:summarise")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=5)
    assert ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert hub.labels(number) == {"agent:summarise"}


def test_a_dead_claim_may_be_taken_over_without_any_sweep(hub):
    number = hub.issue("agent:implement")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=4.1)
    assert ls.issue_dedup_check("shop", number)["latest_claim"]["codename"] == "lucius"
    assert ls.claim_issue("shop", number, **ROBIN)
    assert ls.release_issue("shop", number, **ROBIN)
    assert hub.labels(number) == {"agent:implement"}


def test_closed_issues_and_more_than_a_hundred_are_seen(hub):
    numbers = [hub.issue("agent:implement", title=f"issue {n}") for n in range(120)]
    for number in numbers:
        OldRunner(hub, "old", f"o{number}").labels_it(number)
    hub.hub.acting().close_issue(hub.hub.issue(numbers[3]))
    hub.pass_time(hours=5)
    assert {row["number"] for row in ls.find_stale_claims("shop")} == set(numbers)


def test_a_sweep_that_cannot_read_says_so_and_not_that_all_is_well(hub):
    number = hub.issue("agent:implement")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=5)
    hub.hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, login="fleet"))
    with pytest.raises(Unavailable):
        ls.find_stale_claims("shop")
    answer = ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert (bool(answer), answer.reason) == (False, "UNAVAILABLE")


def test_an_issue_that_is_not_there_has_no_stale_claim(hub):
    answer = ls.force_release_stale_claim("shop", 4711, sweep_id="s")
    assert (bool(answer), answer.reason) == (False, NoSuchIssue.code)


# Closed issues


@pytest.mark.parametrize("claimed_by", ["ours", "theirs", "nobody"])
@pytest.mark.parametrize("freed_by", ["sweep-claims", "force", "dibs sweep"])
def test_a_closed_issue_is_freed_and_not_queued(hub, claimed_by, freed_by):
    number = hub.issue("agent:implement")
    match claimed_by:
        case "ours":
            dead_claim(hub, number, **LUCIUS)
        case "theirs":
            assert OldRunner(hub, "old", "o1").claim(number)
        case _:
            OldRunner(hub, "old", "o1").labels_it(number)
    hub.hub.acting().close_issue(hub.hub.issue(number))
    hub.pass_time(hours=5)
    match freed_by:
        case "sweep-claims":
            assert run(["sweep-claims", "--repo", "shop"]) == 0
        case "force":
            assert ls.force_release_stale_claim("shop", number, sweep_id="s")
        case _:
            assert len(hub.services.sweeping.sweep().changed) == 1
    assert hub.labels(number) == set(), "who reopens it decides whether it is queued"
    assert ls.find_stale_claims("shop") == [] or freed_by == "dibs sweep"


# A window that is shorter than a lease


def test_a_lease_that_is_silent_and_not_over_is_named_with_its_end_and_kept(hub, capsys):
    number = hub.issue("agent:implement")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=1.5)
    assert run(["sweep-claims", "--max-age-hours", "1", "--repo", "shop", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["claims"] == []
    (row,) = told["not_over"]
    assert (row["number"], row["codename"], row["age_hours"]) == (number, "lucius", 1.5)
    assert row["lease_until"].endswith("Z")
    assert run(["sweep-claims", "--max-age-hours", "1", "--repo", "shop"]) == 0
    assert f"its lease runs until {row['lease_until']}" in capsys.readouterr().out
    answer = ls.force_release_stale_claim("shop", number, sweep_id="s", max_age_hours=1)
    assert (bool(answer), answer.reason) == (False, "HELD")
    assert row["lease_until"] in answer.text
    assert "and renews" not in answer.text, "nobody knows whether its holder lives"
    assert hub.labels(number) == {"agent:in-flight"}
    assert run(["sweep-claims", "--max-age-hours", "2", "--repo", "shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_over"] == [], "not silent for so long"


def test_a_shorter_window_in_the_environment_makes_shorter_leases(hub, monkeypatch):
    Path("dibs.toml").unlink()
    monkeypatch.setenv("ALFRED_CLAIM_MAX_AGE_HOURS", "1")
    connections.close()
    number = hub.issue("agent:implement")
    dead_claim(hub, number, **LUCIUS)
    hub.pass_time(hours=1.1)
    assert [row["number"] for row in ls.find_stale_claims("shop", max_age_hours=1)] == [number]


# Claims without names


def test_the_release_of_a_claim_without_names_pairs_with_it(hub):
    number = hub.issue("agent:implement")
    nameless = OldRunner(hub, "", "")
    assert nameless.claim(number)
    hub.pass_time(hours=5)
    assert ls.force_release_stale_claim("shop", number, sweep_id="s")
    assert unreleased(hub.read(number).comments) == []
