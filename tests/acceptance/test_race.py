"""Two command lines ask for the same issue at the same moment: exactly one has it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dibs.core.card import CardState

from .harness import LEASES, PATIENCE_S, Project, pipeline

pytestmark = pytest.mark.long

ROUNDS = 200
WIP_ROUNDS = 100
FRESH_ROUNDS = 10


def _holders(project: Project, leases: str, issues: int) -> dict[str, str]:
    """Who holds each issue by the database's own word: the run."""
    if leases == "auto":
        rows = project.sql("SELECT key, run FROM leases WHERE outcome IS NULL")
        return {f"#{key}": run for key, run in rows}
    held = {}
    for number in range(1, issues + 1):
        cards = [card for card in project.cards(number) if card.state is CardState.HELD]
        assert len(cards) == 1, f"#{number} has {len(cards)} confirmed cards"
        held[f"#{number}"] = cards[0].run
    return held


def _check(project: Project, leases: str, rounds: list[list[dict[str, Any]]]) -> None:
    """Rounds of [answer, answer], each {"code": ..., "answer": the JSON object}."""
    codes = Counter(tuple(sorted(answer["code"] for answer in pair)) for pair in rounds)
    assert codes == {(0, 4): len(rounds)}
    winners = {}
    for pair in rounds:
        for each in pair:
            assert each["answer"]["exit"] == each["code"]
            if each["code"] == 0:
                winners[each["answer"]["data"]["issue"]] = each["answer"]["data"]["run"]
    assert len(winners) == len(rounds)
    assert _holders(project, leases, len(rounds)) == winners
    claimed = project.events("claimed")
    assert Counter(event["issue"] for event in claimed) == dict.fromkeys(winners, 1)
    assert {event["issue"]: event["run"] for event in claimed} == winners


def _race(project: Project, folder: Path, rounds: int, how: str) -> list[list[dict[str, Any]]]:
    """Both racers' answers, round by round."""
    barrier = folder / "barrier"
    barrier.write_bytes(bytes(16))
    program = str(Path(__file__).with_name("racer.py"))
    results = [folder / f"results-{place}" for place in (0, 1)]
    racers = [
        subprocess.Popen(
            [
                *(sys.executable, program, str(barrier), str(place), str(rounds)),
                *(str(results[place]), str(project.root), how),
            ],
            env=project.environment(),
            start_new_session=True,
        )
        for place in (0, 1)
    ]
    assert [racer.wait(2 * PATIENCE_S) for racer in racers] == [0, 0]
    answers = [[json.loads(line) for line in path.read_text().splitlines()] for path in results]
    found = [list(pair) for pair in zip(*answers, strict=True)]
    assert len(found) == rounds
    return found


@pytest.mark.parametrize("leases", LEASES)
def test_two_hundred_races_have_one_winner_each(
    project: Project, tmp_path: Path, leases: str
) -> None:
    project.begin(pipeline(leases, ttl="10m"), ROUNDS, history=False)
    rounds = _race(project, tmp_path, ROUNDS, "same")
    _check(project, leases, rounds)
    # Evidence that they raced: both were past the first look often enough for a bid to be beaten.
    # In the embedded file look and bid are one transaction: nobody bids for what another has.
    assert bool(project.events("claim_lost")) is (leases != "auto")
    winners = {
        answer["answer"]["data"]["holder"]
        for pair in rounds
        for answer in pair
        if answer["code"] == 0
    }
    assert winners == {"racer-0", "racer-1"}


@pytest.mark.parametrize("leases", LEASES)
def test_one_place_under_a_wip_limit_goes_to_one_of_two(
    project: Project, tmp_path: Path, leases: str
) -> None:
    """Two issues, one place: both ask at once, never do both get in."""
    project.begin(pipeline(leases, ttl="10m", extra="wip = 1"), 2 * WIP_ROUNDS)
    rounds = _race(project, tmp_path, WIP_ROUNDS, "apart")
    codes = Counter(tuple(sorted(answer["code"] for answer in pair)) for pair in rounds)
    # Two that cannot tell who was first both step back. That is rare, and not over the limit.
    assert set(codes) <= {(0, 6), (6, 6)}
    assert codes[0, 6] > WIP_ROUNDS // 2
    outcomes = Counter(outcome for *_, outcome in project.endings())
    # Winners give back at the end of a round; a loser may have had to step back from a grant.
    assert set(outcomes) == {"returned"}
    assert codes[0, 6] <= outcomes["returned"] < 2 * WIP_ROUNDS


@pytest.mark.parametrize("leases", LEASES)
def test_fresh_processes_race_too(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, ttl="10m"), FRESH_ROUNDS, history=False)
    rounds = []
    for issue in range(1, FRESH_ROUNDS + 1):
        # Each shell waits for a line of its own and then becomes the program.
        racers = [
            subprocess.Popen(
                [
                    "sh",
                    "-c",
                    'read go; exec "$@"',
                    "sh",
                    *project.argv("claim", f"#{issue}"),
                    "--json",
                ],
                cwd=project.root,
                env=project.environment({"DIBS_ACTOR": f"racer-{place}"}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for place in (0, 1)
        ]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.communicate(timeout=PATIENCE_S) for racer in racers]
        assert [err for _, err in said] == ["", ""]
        rounds.append(
            [
                {"code": racer.returncode, "answer": json.loads(out)}
                for racer, (out, _) in zip(racers, said, strict=True)
            ]
        )
    _check(project, leases, rounds)
