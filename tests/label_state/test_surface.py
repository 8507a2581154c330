"""The published surface, held name by name: what a fleet that switches calls today.

Signatures, defaults, keys of dictionaries and the order they come in. Whatever is added beside
them is ours to change; nothing in these tables is.
"""

import inspect
import json
import tomllib
from pathlib import Path

import pytest

import dibs.label_state as ls
from dibs.label_state import labels
from dibs.label_state.program import NAMES, cli, run

from .test_claims import LUCIUS, another_process

SIGNATURES = {
    "claim_issue": "(repo_slug, num, *, codename, firing_id, role=None)",
    "release_issue": (
        "(repo_slug, num, *, codename, firing_id, outcome='success', transition_to=None,"
        " pr_url=None)"
    ),
    "issue_dedup_check": "(repo_slug, num)",
    "find_stale_claims": "(repo_slug, *, max_age_hours=4)",
    "force_release_stale_claim": (
        "(repo_slug, num, *, sweep_id, released_codename=None, released_firing_id=None,"
        " label_drift=False, max_age_hours=None)"
    ),
    "is_repo_paused": "(repo_slug)",
    "list_paused_repos": "()",
    "set_repo_paused": "(repo_slug, paused)",
    "ensure_labels": "(repo_slug, labels=None)",
}
LABEL_SIGNATURES = {
    "bundle_label": "(slug)",
    "is_bundle_label": "(label)",
    "bundle_slug": "(label)",
    "bundle_labels": "(labels)",
    "lifecycle_state": "(labels)",
    "is_legal_transition": "(src, dst)",
    "legal_transitions": "(src)",
    "all_transitions": "()",
    "is_agent_pr_open_label": "(label)",
    "agent_pr_open_labels": "(labels)",
    "has_feature_dev_pickup_blocker": "(labels)",
    "pickup_blocking_labels": "(labels)",
    "has_pickup_blocker": "(labels)",
    "has_blocker": "(labels)",
    "claim_blocking_labels": "(labels)",
    "feature_dev_pickup_blocking_labels": "(labels)",
    "feature_dev_claim_blocking_labels": "(labels)",
    "robin_triage_blocking_labels": "(labels)",
}
LABELS = {
    "IMPLEMENT": "agent:implement",
    "IN_FLIGHT": "agent:in-flight",
    "PR_OPEN": "agent:pr-open",
    "DONE": "agent:done",
    "DO_NOT_PICKUP": "do-not-pickup",
    "NEEDS_HUMAN_SCOPE": "needs:human-scope",
    "PLAN_PENDING_APPROVAL": "agent:plan-pending-approval",
    "LARGE_FEATURE": "agent:large-feature",
    "BUNDLE_LABEL_PREFIX": "agent:bundle:",
    "FANOUT_COMPLETE": "batman:fanout-complete",
    "NEEDS_HUMAN_REVIEW": "agent:needs-human-review",
    "NEEDS_INFO": "needs:info",
    "DONE_ALREADY": "done-already",
    "LEGACY_PR_OPEN": "lucius-pr-open",
    "AGENT_PR_OPEN_SUFFIX": "-pr-open",
    "FEATURE": "feature",
    "ENHANCEMENT": "enhancement",
    "AUTHORED": "agent:authored",
    "LABEL_AGENT_PLAN_PENDING_APPROVAL": "agent:plan-pending-approval",
    "CLAIM_COMMENT_PREFIX": "<!-- agent-claim:",
    "RELEASE_COMMENT_PREFIX": "<!-- agent-release:",
}
CLAIM_BLOCKING = {
    *("agent:in-flight", "agent:pr-open", "lucius-pr-open", "agent:done", "done-already"),
    *("do-not-pickup", "needs:human-scope", "agent:needs-human-review", "needs:info"),
    "batman:fanout-complete",
}
BATMANS = {"agent:large-feature", "agent:plan-pending-approval"}
LABEL_SETS = {
    "LIFECYCLE_LABEL_SET": {"agent:implement", "agent:in-flight", "agent:pr-open", "agent:done"},
    "STICKY_LABEL_SET": {"do-not-pickup", "needs:human-scope"},
    "CLAIM_BLOCKING_LABEL_SET": CLAIM_BLOCKING,
    "PICKUP_BLOCKING_LABEL_SET": CLAIM_BLOCKING | BATMANS,
    "ROBIN_TRIAGE_BLOCKING_LABEL_SET": CLAIM_BLOCKING | BATMANS,
    "FEATURE_DEV_PRODUCT_CLAIM_BLOCKING_LABEL_SET": {"feature", "enhancement"},
    "FEATURE_DEV_ALWAYS_CLAIM_BLOCKING_LABEL_SET": BATMANS,
}
DEDUP_KEYS = [
    *("repo", "number", "state", "labels", "in_flight", "pr_open", "do_not_pickup"),
    *("needs_human_scope", "claimable", "latest_claim", "repo_paused"),
]
STALE_KEYS = [
    *("repo", "number", "title", "codename", "firing_id", "age_hours", "max_age_hours"),
    "label_drift",
]
COMMANDS = {
    "claim": {"--force"},
    "release": set(),
    "dedup-check": {"--json"},
    "status-issue": {"--json"},
    "repo": {"pause", "resume", "list"},
    "sweep-claims": {"--max-age-hours", "--repo", "--dry-run"},
}


def called(function):
    """How it is called: names, defaults and what is by keyword only."""
    signature = inspect.signature(function)
    plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return str(inspect.Signature(plain))


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_call_is_called_as_it_is_published(name):
    assert called(getattr(ls, name)) == SIGNATURES[name]
    assert name in ls.__all__


@pytest.mark.parametrize("name", LABEL_SIGNATURES)
def test_every_call_about_labels_is_called_as_it_is_published(name):
    assert called(getattr(labels, name)) == LABEL_SIGNATURES[name]
    assert name in labels.__all__


@pytest.mark.parametrize("name", LABELS)
def test_every_label_is_spelt_as_it_is_published(name):
    assert getattr(labels, name) == LABELS[name]
    assert name in labels.__all__


@pytest.mark.parametrize("name", LABEL_SETS)
def test_every_set_of_labels_has_what_it_is_published_to_have(name):
    assert getattr(labels, name) == LABEL_SETS[name]
    assert isinstance(getattr(labels, name), frozenset)
    assert name in labels.__all__


def test_the_labels_of_the_framework_and_the_moves_are_of_the_published_types():
    assert isinstance(labels.LIFECYCLE_LABEL_DEFS, tuple)
    looks = {one.name: one.color for one in labels.LIFECYCLE_LABEL_DEFS}
    assert (
        looks.items()
        >= {
            "agent:in-flight": "e11d21",
            "agent:pr-open": "fbca04",
            "agent:done": "0e8a16",
            "do-not-pickup": "5319e7",
            "needs:human-scope": "e99695",
            "agent:large-feature": "ff6b00",
            "agent:authored": "c2e0c6",
        }.items()
    )
    assert isinstance(labels.LIFECYCLE_LABELS_TUPLES, tuple)
    assert [row[:2] for row in labels.LIFECYCLE_LABELS_TUPLES] == list(looks.items())
    moves = labels.legal_transitions("agent:in-flight")
    assert isinstance(moves, tuple)
    assert all(isinstance(one, labels.Transition) and one.trigger for one in moves)
    assert {one.dst for one in moves} >= {"agent:implement", "agent:pr-open"}
    assert labels.all_transitions() == labels.TRANSITIONS
    assert isinstance(labels.all_transitions(), tuple)
    assert labels.legal_transitions("nothing") == ()


def test_the_marker_of_an_agent_of_its_own_is_no_state():
    assert labels.is_agent_pr_open_label("custom-lucius-pr-open")
    assert not labels.is_agent_pr_open_label("agent:pr-open")
    assert labels.agent_pr_open_labels(["b-pr-open", "agent:pr-open", "a-pr-open"]) == [
        *("a-pr-open", "b-pr-open")
    ]
    assert labels.has_feature_dev_pickup_blocker(["feature"])
    assert not labels.has_feature_dev_pickup_blocker(["agent:bundle:x", "agent:implement"])


def test_the_environment_without_a_word_is_empty():
    empty = labels.LabelStateConfig.from_env(env={})
    assert empty == labels.LabelStateConfig() == labels.LabelStateConfig("", (), "")
    assert labels.LabelStateConfig.from_env({"ALFRED_HOME": "/srv/a"}).alfred_home == "/srv/a"


def test_the_constants_are_of_the_published_types_and_spellings():
    assert ls.CLAIM_COMMENT_PREFIX == "<!-- agent-claim:"
    assert ls.RELEASE_COMMENT_PREFIX == "<!-- agent-release:"
    assert isinstance(ls.PAUSED_REPOS_FILE, Path)
    assert ls.PAUSED_REPOS_FILE.parts[-2:] == ("state", "paused-repos.json")
    for table in (ls.LIFECYCLE_LABELS, ls.STANDARD_LABELS):
        assert isinstance(table, list)
        assert all(isinstance(row, tuple) and len(row) == 3 for row in table)
        assert all(isinstance(part, str) for row in table for part in row)
    fields = inspect.signature(labels.Transition).parameters
    assert list(fields) == ["src", "dst", "trigger"]
    assert list(inspect.signature(labels.LabelDef).parameters) == ["name", "color", "description"]
    made = inspect.signature(labels.LabelStateConfig).parameters
    assert list(made) == ["gh_org", "sweep_repos", "alfred_home"]


def test_an_answer_is_a_bool_to_whoever_treats_it_as_one(embedded):
    number = embedded.issue("agent:implement")
    yes = ls.claim_issue("shop", number, **LUCIUS)
    no = ls.claim_issue("shop", number, **LUCIUS)
    assert (yes, no) == (True, False)
    assert (f"{yes}", f"{no}", json.dumps([yes, no])) == ("True", "False", "[1, 0]")
    assert (not yes, not no) == (False, True)
    assert {True: "held"}[yes] == "held"
    assert (yes.reason, no.reason) == ("", "HELD")


def test_a_look_has_the_published_keys_of_the_published_types(place):
    number = place.issue("agent:implement", "bug")
    told = ls.issue_dedup_check(place.slug, number)
    assert list(told) == DEDUP_KEYS
    assert told == {
        **dict.fromkeys(("in_flight", "pr_open", "do_not_pickup", "needs_human_scope"), False),
        "repo": place.slug,
        "number": number,
        "state": "OPEN",
        "claimable": True,
        "labels": ["agent:implement", "bug"],
        "latest_claim": None,
        "repo_paused": False,
    }
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    told = ls.issue_dedup_check(place.slug, number)
    assert list(told) == DEDUP_KEYS
    assert (told["in_flight"], told["claimable"]) == (True, False)
    assert set(told["latest_claim"]) >= {"codename", "firing_id", "ts", "createdAt"}
    assert told["latest_claim"].items() >= LUCIUS.items()


def test_a_row_of_stale_claims_has_the_published_keys(hub):
    claimed, labelled = hub.issue("agent:implement"), hub.issue("agent:in-flight")
    assert ls.claim_issue("shop", claimed, **LUCIUS)
    another_process()
    hub.pass_time(hours=5)
    rows = {row["number"]: row for row in ls.find_stale_claims("shop")}
    assert list(rows[claimed]) == STALE_KEYS
    assert list(rows[labelled]) == [*STALE_KEYS, "missing_claim"]
    assert rows[labelled]["missing_claim"] is True
    assert (rows[labelled]["codename"], rows[labelled]["firing_id"]) == ("?", "?")
    assert rows[labelled]["age_hours"] == float("inf")
    assert rows[claimed]["max_age_hours"] == 4
    assert isinstance(rows[claimed]["age_hours"], float)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_published_words(name):
    command = cli.commands[name]
    words = set(getattr(command, "commands", {}))
    words |= {word for one in command.params for word in getattr(one, "opts", ())}
    assert words >= COMMANDS[name]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["repo", "pause"], 2),
        (["repo", "resume"], 2),
        (["repo", "list"], 0),
        (["sweep-claims"], 2),
        (["claim", "shop"], 1),
        (["--help"], 0),
        (["no-such-word"], 2),
    ],
)
def test_every_exit_code_is_the_published_one(embedded, words, code):
    assert run(words) == code


@pytest.mark.parametrize("name", NAMES)
def test_the_program_is_installed_under_its_names(name):
    told = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert told["project"]["scripts"][name] == "dibs.label_state.__main__:main"


@pytest.mark.parametrize("name", NAMES)
def test_a_doctor_is_answered_in_its_own_name(name, monkeypatch, capsys):
    monkeypatch.setenv("ALFRED_DOCTOR", "1")
    assert run([], name=name) == 0
    assert capsys.readouterr().out == f"[{name.upper()}-DOCTOR-OK]\n"


# What is documented

PAGE = (Path(__file__).parents[2] / "docs/reference/label-state.md").read_text("utf-8")


@pytest.mark.parametrize("name", [*ls.__all__, *labels.__all__])
def test_every_name_is_documented(name):
    assert f"`{name}`" in PAGE or f"`{name}(" in PAGE


def test_the_documented_moves_are_the_legal_ones():
    rows = PAGE.partition("## Moves")[2].partition("## The program")[0].splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows if row.startswith("| `")]
    told = {(src.strip("`"), dst.strip("` ")) for src, to in cells for dst in to.split(",")}
    assert told == {(one.src, one.dst) for one in labels.TRANSITIONS}


def test_every_command_and_option_is_documented():
    program = PAGE.partition("## The program")[2]
    for name, command in cli.commands.items():
        assert f"label-state {name}" in program
        for option in command.params:
            assert all(word in program for word in option.opts if word.startswith("--"))
        for inner in getattr(command, "commands", ()):
            assert f"label-state {name} {inner}" in program
