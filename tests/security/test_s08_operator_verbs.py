"""S8: a handler uses the command line as if it were the operator.

Actor: an agent that runs as a handler, and was talked into something by the words of an issue.
Attack: from inside its run it opens the gate that is meant for a person, takes, labels and pauses
other issues, ends another's run, and adds an issue that is approved already. Wall: where DIBS_RUN
is set, the command line refuses what is an operator's or another run's (`core/roles.py`). It is no
wall against code, which can clear its environment: docs/concepts/stages-and-gates.md says what is.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import PROGRAM, Victim

ATTACKS = {
    "approve": "dibs approve 1",
    "approve from a hold": "dibs hold any -- dibs approve 1",
    "approve from another folder": 'here=$PWD; cd / && dibs -C "$here" approve 1',
    "approve by the module": f"{Path(PROGRAM).with_name('python')} -P -m dibs approve 1",
    "take": "dibs take 2 --as mallory",
    "label": "dibs label 1 --add approved",
    "pause": "dibs pause 2 --reason mine",
    "pause the fleet": "dibs pause --fleet --reason mine",
    "claim": "dibs claim 2 --as mallory",
    "release of another": 'dibs release 3 --run "$(cat run)" --outcome advanced',
    "add as approved": "dibs add later --stage review --label approved",
    "add behind the gate": "dibs add later --stage done",
}
GATED, FREE, HELD, WORKED = 1, 2, 3, 4


def config(run: str) -> str:
    """A pipeline whose first stage runs the attack, and whose second stage has a gate."""
    passed = 'pass_env = ["DIBS_OPERATOR"]'
    stage = f'[[stage]]\nname = "ready"\nrun = {json.dumps(run)}\n{passed}\n'
    return f'{stage}[labels]\npriorities = ["urgent"]\n'


def state(victim: Victim) -> dict[str, Any]:
    """What the attacks would change: every issue but the one that the handler works, the pauses."""
    rows = json.loads(victim.dibs("list", "--all", "--json").stdout)["data"]
    found = {row["issue"]: (row["labels"], (row["lease"] or {}).get("holder")) for row in rows}
    del found[f"#{WORKED}"]
    return {**found, "pauses": json.loads(victim.dibs("status", "--json").stdout)["data"]["pauses"]}


def attacked(victim: Victim, attack: str, **env: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Attack from the handler of the last issue. The state before and after, and what dibs said."""
    victim.configure(config("true"))
    assert victim.dibs("init").returncode == 0
    victim.dibs("add", "gated", "free", "held")
    victim.dibs("add", "worked", "--label", "urgent")
    victim.dibs("label", str(GATED), "--add", "stage:review", "--remove", "stage:ready")
    claimed = victim.dibs("claim", str(HELD), "--as", "ann", "--json")
    (victim.folder / "run").write_text(json.loads(claimed.stdout)["data"]["run"])
    before = state(victim)
    victim.configure(config(f"({attack}) > attack.log 2>&1"))
    named = str(victim.folder / "dibs.toml")
    worked = victim.dibs("--config", named, "work", "--once", "--stage", "ready", **env)
    log = victim.folder / "attack.log"
    assert log.exists(), worked.stderr
    return before, state(victim), log.read_text()


def test_a_handler_is_no_operator(victim: Victim) -> None:
    """All attacks, one after the other: each is refused, with 9."""
    each = [f"({attack}); echo {name!r}: $? >> codes" for name, attack in ATTACKS.items()]
    before, after, said = attacked(victim, "\n".join(each))
    assert after == before, said
    codes = (victim.folder / "codes").read_text().splitlines()
    assert codes == [f"{name}: 9" for name in ATTACKS]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_control_an_operator_may_vouch_for_a_handler(victim: Victim, attack: str) -> None:
    before, after, said = attacked(victim, attack, DIBS_OPERATOR="1")
    assert after != before, said


def test_the_operators_word_reaches_no_handler_that_was_not_meant(victim: Victim) -> None:
    """A worker that was started with DIBS_OPERATOR=1 keeps it, unless the stage passes it on."""
    victim.configure('[[stage]]\nname = "ready"\nrun = "dibs pause 2 --reason mine"\n')
    victim.dibs("init")
    victim.dibs("add", "one", "two")
    victim.dibs("work", "--once", "--stage", "ready", DIBS_OPERATOR="1")
    victim.dibs("claim", "--next", "--exec", "--", "dibs", "pause", "2", "--reason", "mine",
                DIBS_OPERATOR="1")  # fmt: skip
    shown = json.loads(victim.dibs("show", "2", "--json").stdout)["data"]
    assert shown["paused"] is None


def test_what_a_handler_needs_it_still_has(victim: Victim) -> None:
    """Reading, follow-up issues, its own lease, a name to hold; and for people all is as before."""
    words = ["show 1", "why 1", "list", "prime", "fence check", "add further", "heartbeat",
             "hold gpu -- true", "keep $DIBS_RUN -- true", "runs 1"]  # fmt: skip
    line = " && ".join(f"dibs {word}" for word in words)
    victim.configure(f'[[stage]]\nname = "ready"\nrun = {json.dumps(line)}\n')
    victim.dibs("init")
    victim.dibs("add", "one")
    worked = victim.dibs("work", "--once", "--stage", "ready")
    assert "#1 advanced to review" in worked.stdout + worked.stderr
    assert victim.dibs("approve", "1").returncode == 0


def test_an_agent_that_drives_itself_goes_on_to_the_next_issue(victim: Victim) -> None:
    victim.configure("")
    victim.dibs("init")
    victim.dibs("add", "one", "two")
    first = json.loads(victim.dibs("claim", "--next", "--json").stdout)["data"]["run"]
    assert victim.dibs("approve", "2", DIBS_RUN=first).returncode == 9
    assert victim.dibs("release", "--outcome", "advanced", DIBS_RUN=first).returncode == 0
    claimed = victim.dibs("claim", "--next", "--json", DIBS_RUN=first)
    second = json.loads(claimed.stdout)["data"]["run"]
    assert victim.dibs("heartbeat", second, DIBS_RUN=first).returncode == 0
