"""Leases move between stores under a fleet that never stops working: no issue has two holders."""

import itertools
from collections import defaultdict

import pytest

from .harness import Child, Project, until

pytestmark = pytest.mark.long

ISSUES = 30
STORES = ("comments", "sqlite:leases.db", "auto")
# One line when it begins and one when it ends, with the machine's uptime: one clock for all.
HANDLER = """#!/bin/sh
now() { cut -d' ' -f1 /proc/uptime; }
echo "begin $(now) $DIBS_ISSUE $DIBS_RUN $DIBS_FENCE" >> visits
sleep 0.05
echo "end $(now) $DIBS_ISSUE $DIBS_RUN $DIBS_FENCE" >> visits
"""
CONFIG = """
preset = "none"
leases = "comments"
ttl = "30s"

[worker]
poll = "100ms"
sweep = "500ms"
stop_grace = "5s"

[[stage]]
name = "one"
run = "./visit.sh"
next = "two"

[[stage]]
name = "two"
run = "./visit.sh"
next = "three"

[[stage]]
name = "three"
run = "./visit.sh"
next = "done"

[[stage]]
name = "done"
closes = true
"""


def _visits(project: Project) -> dict[str, list[tuple[float, str, str, int]]]:
    found = defaultdict(list)
    for line in project.lines("visits"):
        kind, at, issue, run, fence = line.split()
        found[issue].append((float(at), kind, run, int(fence)))
    return found


def _done(project: Project) -> int:
    found: int = project.sql("SELECT COUNT(*) FROM issues WHERE open = 0")[0][0]
    return found


def _next(granter: str) -> str:
    """A file is named from where the backlog lies, so only the kind of a store is compared."""
    kinds = [store.partition(":")[0] for store in STORES]
    return STORES[(kinds.index(granter.partition(":")[0]) + 1) % len(STORES)]


@pytest.mark.timeout(240)
def test_a_fleet_is_moved_back_and_forth_and_nobody_notices(project: Project) -> None:
    project.script("visit.sh", HANDLER)
    project.configure(CONFIG)
    assert project.dibs("init").code == 0
    project.add(ISSUES)
    fleet: list[Child] = [
        project.worker(f"{store.partition(':')[0]}-{number}", env={"DIBS_LEASES": store})
        for store in STORES
        for number in (1, 2)
    ]
    until(lambda: len(project.lines("visits")) >= 6, "the fleet is at work")
    granter = project.dibs("leases", "show", "--json").document["data"]["granter"]
    moves = []
    while _done(project) < ISSUES and len(moves) < 12:
        target = _next(granter)
        moved = project.dibs("leases", "migrate", "--to", target, "--json")
        assert moved.code == 0, (moved.out, moved.err)
        moves.append((granter, target, moved.data["floor"]))
        granter, seen = target, len(project.lines("visits"))
        until(
            lambda seen=seen: len(project.lines("visits")) >= seen + 4 or _done(project) == ISSUES,
            f"the fleet goes on with {target}",
        )
    until(lambda: _done(project) == ISSUES, "everything is done", within_s=90)
    assert len(moves) >= 3, "it was moved while there was work"
    assert [floor for *_, floor in moves] == sorted(floor for *_, floor in moves)
    for worker in fleet:
        worker.signal(15)
    for worker in fleet:
        worker.wait().quiet()
    for issue, visits in _visits(project).items():
        assert len(visits) == 6, f"{issue}: each of three stages ran once: {visits}"
        kinds = [kind for _, kind, *_ in visits]
        assert kinds == ["begin", "end"] * 3, f"{issue} had two holders at once: {visits}"
        fences = [fence for _, kind, _, fence in visits if kind == "begin"]
        assert all(one < two for one, two in itertools.pairwise(fences)), (issue, fences)
    fsck = project.dibs("fsck", "--json", env={"DIBS_LEASES": granter})
    assert (fsck.code, fsck.data) == (0, {"storage": [], "flaws": []})


@pytest.mark.parametrize("until_when", ["--drain", "--once"])
def test_a_worker_whose_store_does_not_grant_leaves_and_says_why(
    project: Project, until_when: str
) -> None:
    project.script("visit.sh", HANDLER)
    project.begin(CONFIG)
    project.dibs("add", "one")
    assert project.dibs("work", "--once").code == 0
    elsewhere = {"DIBS_LEASES": "sqlite:leases.db"}
    reply = project.dibs("work", until_when, "--json", env=elsewhere)
    assert reply.code == 6
    assert "leases are granted by comments" in reply.data["barred"]
    reply = project.dibs("work", until_when, env=elsewhere).quiet()
    assert (reply.code, "leases are granted by comments" in reply.err) == (6, True)


def test_onlookers_during_a_move_see_who_holds_in_the_old_store_and_that_nobody_grants(
    project: Project,
) -> None:
    """Also if the mover was killed, and with the setting for the new store."""
    project.script("visit.sh", HANDLER)
    project.begin(CONFIG.replace("comments", "auto"))
    project.dibs("add", "held", "free")
    held = project.dibs("claim", "1", "--ttl", "10m", "--json").data
    mover = project.start("mover", "leases", "migrate", "--to", "sqlite:leases.db")
    until(
        lambda: project.dibs("leases", "show", "--json").document["data"]["moving_to"],
        "nobody grants",
    )
    mover.signal(9)
    mover.wait()
    for store in ("auto", "sqlite:leases.db", "comments"):
        env = {"DIBS_LEASES": store}
        listed = project.dibs("list", "--json", env=env)
        assert [row["state"] for row in listed.data] == ["claimed", "ready"], store
        assert listed.data[0]["lease"]["holder"] == held["holder"]
        assert "no store grants" in listed.document["warnings"][0]
        status = project.dibs("status", "--json", env=env)
        assert [row["run"] for row in status.data["in_flight"]] == [held["run"]], store
        assert "no store grants" in status.document["warnings"][0]
        ready = project.dibs("ready", "--json", env=env)
        assert (ready.code, ready.data) == (3, [])
        assert "no store grants" in ready.document["warnings"][0]
        shown = project.dibs("leases", "show", env=env)
        assert (shown.code, "no store grants" in shown.out) == (6, True)
