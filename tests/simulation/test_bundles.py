"""Claimers of one bundle, in every order that a seed can think of: one gets all, always.

The shipped services on virtual time, memory adapters behind them, a pause before and after every
call. The control claims in an order of its own, from the issue it picked, and shows what the one
order is for.
"""

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.services.places import NotedPlaces

from dibs.adapters.memory.control import MemoryGranters, MemoryPauses
from dibs.adapters.memory.leases import MemoryLeases
from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.system import MemoryJournal
from dibs.core.durations import terms_for
from dibs.core.ids import HolderId, RunId
from dibs.core.issue import Draft
from dibs.core.pipeline import BundleWorktree, NoGate
from dibs.core.presets import STAGES
from dibs.services import bundling
from dibs.services.claiming import ClaimOptions
from dibs.services.working import Until
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services
from dibs_lab.sim.fibres import Process, Simulation, microseconds

EURO = "agent:bundle:euro"
SEEDS = 150
KINDS = ("store", "comments")
MEMBERS = 3


class Slow:
    """An adapter at the end of a line: every call takes a while to arrive and to be answered."""

    def __init__(self, adapter, process, dice):
        self._adapter, self._process, self._dice = adapter, process, dice

    def __getattr__(self, name):
        found = getattr(self._adapter, name)
        if not callable(found):
            return found

        def call(*args, **kwargs):
            self._process.sleep(self._dice.uniform(0.001, 0.4))
            answer = found(*args, **kwargs)
            self._process.sleep(self._dice.uniform(0.001, 0.4))
            return answer

        return call


class Fleet:
    def __init__(self, kind, seed):
        self.simulation, self.dice = Simulation(), random.Random(seed)
        now = self.simulation.server_now
        self.tracker = MemoryTracker(now, author="fleet", settle=timedelta(seconds=1))
        self.store = MemoryLeases(now) if kind == "store" else None
        self.pauses, self.granters = MemoryPauses(now), MemoryGranters()
        self.places = NotedPlaces()
        terms = terms_for(timedelta(minutes=5))
        first, *others = (replace(stage, terms=terms, gate=NoGate()) for stage in STAGES.stages)
        stages = (replace(first, worktree=BundleWorktree()), *others)
        self.settings = replace(
            config.from_mapping({}, source="test", root=Path("/nowhere")),
            pipeline=replace(STAGES, stages=stages),
            leases="comments" if kind == "comments" else "auto",
            poll=timedelta(seconds=1),
        )
        self._runs = 0

    def bundle(self, label=EURO):
        labels = frozenset({"stage:ready", label})
        return [self.tracker.create(Draft("t", "", labels)).ref for _ in range(MEMBERS)]

    def services(self, process, handlers=None):
        adapters = Adapters(
            tracker=Slow(self.tracker, process, self.dice),
            store=Slow(self.store, process, self.dice) if self.store else None,
            pauses=self.pauses,
            observers=(MemoryJournal(),),
            clock=process,
            threads=process,
            granters=self.granters,
        )
        made = Services(
            self.settings,
            adapters,
            handlers=handlers,
            new_run=self._new_run,
            dice=lambda: random.Random(self.dice.random()),
        )
        made.workplaces = self.places
        return made

    def _new_run(self):
        self._runs += 1
        return RunId(f"run{self._runs}")

    def run(self, *works):
        """Each in a process of its own, until all have come to an end."""
        processes = [Process(self.simulation, f"p{number}") for number in range(len(works))]
        for process, work in zip(processes, works, strict=True):
            process.start(lambda process=process, work=work: work(process), "main")
        over = lambda: not any(process.fibres for process in processes)  # noqa: E731
        self.simulation.run(microseconds(3600.0), over=over)
        assert over(), "somebody is still at it"


def tries(kind, seed, *, claimers=2):
    """What each of so many got that try once, at about the same time, from different members."""
    fleet = Fleet(kind, seed)
    issues = fleet.bundle()
    got = []

    def try_once(number):
        def work(process):
            process.sleep(fleet.dice.uniform(0.0, 2.0))
            services = fleet.services(process, {"ready": lambda _: None})
            picked = fleet.tracker.read(issues[-number % MEMBERS])
            stage = services.pipeline.stages[0]
            result = services.bundling.claim(picked, stage, ClaimOptions(HolderId(f"h{number}")))
            got.append(len(result) if isinstance(result, tuple) else 0)

        return work

    fleet.run(*(try_once(number) for number in range(claimers)))
    live = fleet.store.live() if fleet.store else ()
    return got, live


@pytest.mark.parametrize("claimers", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_one_claimer_gets_all_and_the_others_nothing(kind, claimers):
    for seed in range(SEEDS):
        got, live = tries(kind, seed, claimers=claimers)
        assert sorted(got) == [0] * (claimers - 1) + [MEMBERS], (seed, got)
        if kind == "store":
            assert len({record.lease.holder for record in live}) == 1
            assert len(live) == MEMBERS


def test_without_the_one_order_two_claimers_undo_each_other(monkeypatch):
    """The control: each begins with what it picked, as anybody would who did not know better."""
    order = bundling.in_order

    def from_the_picked(issues):
        refs = list(issues)
        first = refs[0]  # `_members` names the picked one first
        return (first, *(ref for ref in order(refs) if ref != first))

    monkeypatch.setattr(bundling, "in_order", from_the_picked)
    undone = [seed for seed in range(SEEDS) if not any(tries("store", seed)[0])]
    assert undone


@pytest.mark.parametrize("kind", KINDS)
def test_a_fleet_works_every_bundle_once_and_whole(kind):
    for seed in range(6):
        fleet = Fleet(kind, seed)
        bundles = [fleet.bundle(f"agent:bundle:b{number}") for number in range(4)]
        worked, running = Counter(), set()

        def handler_of(process, worked=worked, running=running, fleet=fleet):
            def handler(work):
                issues = tuple(one["issue"] for one in work.issue["bundle"])
                assert running.isdisjoint(issues)
                running.update(issues)
                process.sleep(fleet.dice.uniform(1.0, 20.0))
                running.difference_update(issues)
                worked[issues] += 1

            return handler

        def worker(process, fleet=fleet, handler_of=handler_of):
            services = fleet.services(process, {"ready": handler_of(process)})
            stages = services.pipeline.stages[:1]
            services.worker(HolderId(process.name), stages, until=Until.DRAINED).run()

        fleet.run(worker, worker, worker)
        assert worked == {tuple(map(str, bundle)): 1 for bundle in bundles}, seed
        for bundle in bundles:
            labels = [fleet.tracker.read(ref).issue.labels for ref in bundle]
            assert all("stage:review" in one and "claimed" not in one for one in labels)
