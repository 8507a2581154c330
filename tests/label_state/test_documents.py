"""What the documents of the state machine show, run as they show it: in processes of their own.

Commands through a shell, calls from a script, the lifecycle edge by edge. Only placeholders are
filled in: the repository and the number of an issue.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dibs.label_state as ls
from dibs.label_state import labels
from dibs.label_state.program import NAMES

from .test_claims import LUCIUS, ROBIN, another_process

CLAIM = (
    "<!-- agent-claim:codename=lucius firing_id=20260501-194217-643a ts=2026-05-01T19:42:33Z -->"
)
RELEASE = (
    "<!-- agent-release:codename=lucius firing_id=20260501-194217-643a outcome=success"
    " pr=https://github.com/foo/bar/pull/42 ts=2026-05-01T20:08:11Z -->"
)
ONE_ISSUE = ["{program} claim {org}/{repo}#{number}", "{program} release {org}/{repo}#{number}"]
ONE_ISSUE_BARE = ["{program} claim {repo}#{number}", "{program} release {repo}#{number}"]
ONE_REPOSITORY = ["{program} repo pause {repo}", "{program} repo resume {repo}"]
SWEEP = 'LABEL_STATE_SWEEP_REPOS="{repo}" {program} sweep-claims --max-age-hours 4 --dry-run'
SEVERAL = (
    'LABEL_STATE_SWEEP_REPOS="your-backend,your-frontend,your-mobile" \\\n'
    "  alfred-label-state sweep-claims --max-age-hours 4 --dry-run"
)
API = """
import json, sys
from pathlib import Path
from dibs.label_state import (
    claim_issue, release_issue, issue_dedup_check, find_stale_claims, force_release_stale_claim,
    is_repo_paused, list_paused_repos, set_repo_paused,
    LIFECYCLE_LABELS, CLAIM_COMMENT_PREFIX, RELEASE_COMMENT_PREFIX, PAUSED_REPOS_FILE,
)
from dibs.label_state.labels import (
    IMPLEMENT, IN_FLIGHT, PR_OPEN, DONE, DO_NOT_PICKUP, NEEDS_HUMAN_SCOPE, AUTHORED,
    LARGE_FEATURE, bundle_label, is_legal_transition,
)
repo, num, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
codename, firing_id = "lucius", "20260501-194217-643a"
told = {"before": issue_dedup_check(repo, num)}
told["claim"] = bool(claim_issue(repo, num, codename=codename, firing_id=firing_id))
told["again"] = bool(claim_issue(repo, num, codename="robin", firing_id="r1"))
told["during"] = issue_dedup_check(repo, num)
told["release"] = bool(release_issue(
    repo, num, codename=codename, firing_id=firing_id, outcome="success",
    transition_to=PR_OPEN, pr_url="https://github.com/foo/bar/pull/42",
))
told["after"] = issue_dedup_check(repo, num)
told["stale"] = find_stale_claims(repo, max_age_hours=0)
told["swept"] = bool(force_release_stale_claim(
    repo, left, sweep_id="20260502-030000-cleanup", released_codename="old",
    released_firing_id="o1", max_age_hours=0,
))
told["paused"] = [set_repo_paused(repo, True), is_repo_paused(repo), list_paused_repos()]
told["resumed"] = [set_repo_paused(repo, False), is_repo_paused(repo), list_paused_repos()]
told["constants"] = [
    [name for name, colour, description in LIFECYCLE_LABELS], CLAIM_COMMENT_PREFIX,
    RELEASE_COMMENT_PREFIX, isinstance(PAUSED_REPOS_FILE, Path),
]
told["labels"] = [
    IMPLEMENT, IN_FLIGHT, PR_OPEN, DONE, DO_NOT_PICKUP, NEEDS_HUMAN_SCOPE, AUTHORED,
    LARGE_FEATURE, bundle_label("x"), is_legal_transition(IMPLEMENT, IN_FLIGHT),
]
print(json.dumps(told))
"""


@pytest.fixture
def shell(tmp_path):
    """A shell that has the program, under both its names, and nothing else of ours."""
    folder = tmp_path / "bin"
    folder.mkdir()
    source = f"#!{sys.executable}\nfrom dibs.label_state.__main__ import main\nmain()\n"
    for name in NAMES:
        (folder / name).write_text(source, "utf-8")
        (folder / name).chmod(0o755)

    def run(line):
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", line],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def filled(line, place, number=0, program="label-state"):
    org = os.environ["GH_ORG"]
    return line.format(program=program, org=org, repo=place.slug, number=number)


# Commands


@pytest.mark.parametrize(
    ("program", "lines"), [(NAMES[0], ONE_ISSUE_BARE), (NAMES[1], ONE_ISSUE)], ids=NAMES
)
def test_an_issue_is_taken_by_hand_and_given_back(place, shell, lines, program):
    number = place.issue("agent:implement")
    claim, release = lines
    taken = shell(filled(claim, place, number, program))
    assert taken.returncode == 0, taken.stderr
    assert place.labels(number) == {"agent:implement", "do-not-pickup"}
    assert ls.claim_issue(place.slug, number, **LUCIUS).reason == "BLOCKED"
    assert shell(filled(release, place, number, program)).returncode == 0
    assert ls.claim_issue(place.slug, number, **LUCIUS)


def test_a_repository_is_taken_offline_and_back(place, shell):
    number = place.issue("agent:implement")
    pause, resume = ONE_REPOSITORY
    assert shell(filled(pause, place)).returncode == 0
    assert ls.is_repo_paused(place.slug)
    assert ls.claim_issue(place.slug, number, **LUCIUS).reason == "REPOSITORY_PAUSED"
    assert shell(filled(resume, place)).returncode == 0
    another_process()
    assert ls.claim_issue(place.slug, number, **LUCIUS)


def test_a_sweep_says_what_it_would_do(place, shell):
    place.issue("agent:implement")
    swept = shell(filled(SWEEP, place))
    assert (swept.returncode, swept.stdout) == (0, "0 stale claims, nothing written\n")


def test_several_repositories_are_swept_without_a_configuration(hub, shell, monkeypatch):
    """As it is written, on GitHub, from the environment alone."""
    Path("dibs.toml").unlink()
    monkeypatch.setenv("GH_ORG", "your-org")
    for name in ("backend", "frontend", "mobile"):
        hub.hub.repository(f"your-org/your-{name}")
        repository = hub.hub.state.named(f"your-org/your-{name}")
        hub.hub.acting().create_issue(repository, "Stuck", labels=("agent:in-flight",))
    hub.pass_time(hours=5)
    swept = shell(SEVERAL)
    assert swept.returncode == 0, swept.stderr
    lines = swept.stdout.splitlines()
    assert [line.partition("#")[0] for line in lines[:3]] == [
        *("your-backend", "your-frontend", "your-mobile"),
    ]
    assert lines[3:] == ["3 stale claims, nothing written"]


# The API


def test_every_call_of_the_reference_is_called_from_a_script(place):
    number, left = place.issue("agent:implement"), place.issue("agent:in-flight")
    place.say(left, "<!-- agent-claim:codename=old firing_id=o1 ts=2026-05-01T19:42:33Z -->")
    asked = [sys.executable, "-c", API, place.slug, str(number), str(left)]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["before"]["claimable"] is True
    assert (told["claim"], told["again"], told["release"]) == (True, False, True)
    assert told["during"]["in_flight"] is True
    assert told["during"]["latest_claim"].items() >= LUCIUS.items()
    assert (told["after"]["pr_open"], told["after"]["claimable"]) == (True, False)
    assert [(row["codename"], row["firing_id"]) for row in told["stale"]] == [("old", "o1")]
    assert told["swept"] is True
    assert place.labels(left) == {"agent:implement"}
    assert told["paused"] == [[place.slug], True, [place.slug]]
    assert told["resumed"] == [[], False, []]
    assert told["constants"][1:] == ["<!-- agent-claim:", "<!-- agent-release:", True]
    assert told["labels"] == [
        *("agent:implement", "agent:in-flight", "agent:pr-open", "agent:done", "do-not-pickup"),
        *("needs:human-scope", "agent:authored", "agent:large-feature", "agent:bundle:x", True),
    ]


# The comments


def test_the_comments_of_the_documents_are_understood(place):
    number = place.issue("agent:implement")
    place.say(number, CLAIM)
    told = ls.issue_dedup_check(place.slug, number)
    assert told["latest_claim"].items() >= {**LUCIUS, "ts": "2026-05-01T19:42:33Z"}.items()
    assert ls.claim_issue(place.slug, number, **ROBIN).reason == "FOREIGN_CLAIM"
    place.say(number, RELEASE)
    assert ls.claim_issue(place.slug, number, **ROBIN)


def test_ours_begin_with_the_words_of_the_documents(place):
    """The same keys in the same order; what is ours comes after them."""
    number = place.issue("agent:implement")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    url = "https://github.com/foo/bar/pull/42"
    assert ls.release_issue(place.slug, number, **LUCIUS, transition_to="agent:pr-open", pr_url=url)
    claim, release = place.bodies(number)
    assert claim.startswith(CLAIM.partition("ts=")[0] + "ts=")
    assert release.startswith(RELEASE.partition("ts=")[0] + "ts=")


# The lifecycle, edge by edge


@pytest.mark.parametrize(
    ("to", "after"),
    [
        (None, labels.IMPLEMENT),
        (labels.PR_OPEN, labels.PR_OPEN),
        (labels.PLAN_PENDING_APPROVAL, labels.PLAN_PENDING_APPROVAL),
    ],
)
def test_what_is_in_flight_goes_where_the_diagram_says(place, to, after):
    number = place.issue(labels.IMPLEMENT)
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    assert place.labels(number) == {labels.IN_FLIGHT}
    assert ls.release_issue(place.slug, number, **LUCIUS, transition_to=to)
    assert place.labels(number) == {after}


def test_a_plan_that_is_approved_is_in_flight_again(place):
    number = place.issue(labels.PLAN_PENDING_APPROVAL)
    assert ls.claim_issue(place.slug, number, **LUCIUS).reason == "GATE_SHUT"
    place.services.steering.approve(place.ref(number), by="ada")
    assert ls.claim_issue(place.slug, number, **LUCIUS)
    assert place.labels(number) - {labels.PLAN_APPROVED} == {labels.IN_FLIGHT}


def test_three_failed_attempts_need_a_person(place):
    number = place.issue(labels.IMPLEMENT)
    for turn in range(3):
        key = {"codename": "lucius", "firing_id": f"f{turn}"}
        assert ls.claim_issue(place.slug, number, **key)
        assert ls.release_issue(place.slug, number, **key, outcome="failure")
    assert labels.NEEDS_HUMAN_SCOPE in place.labels(number)
    assert ls.issue_dedup_check(place.slug, number)["needs_human_scope"] is True


def test_of_two_firings_the_earlier_claim_keeps_it_uncontested(place):
    """The sequence of the documents, but that who loses leaves the winner's label alone."""
    number = place.issue(labels.IMPLEMENT)
    assert ls.claim_issue(place.slug, number, codename="lucius", firing_id="A")
    late = ls.claim_issue(place.slug, number, codename="lucius", firing_id="B")
    assert (bool(late), late.reason) == (False, "HELD")
    assert place.labels(number) == {labels.IN_FLIGHT}
    assert ls.release_issue(place.slug, number, codename="lucius", firing_id="A")
