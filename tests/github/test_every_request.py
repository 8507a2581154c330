"""Every fault of the fake at every request of a claim, a beat and an ending.

One worker meets the fault, once. Another, of another account, tries the issue in the middle of the
first one's work, and does what the first left over. Both run in one thread, on virtual time.
"""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.adapters.github.auth import AppInstallation, api_at
from dibs.adapters.github.client import Transport
from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import MemoryJournal
from dibs.core.card import Card, parse_mark
from dibs.core.errors import DibsError
from dibs.core.labels import label_looks
from dibs.core.presets import STAGES
from dibs.frontends.cli.output import Exit, for_error
from dibs.frontends.cli.work import _answer
from dibs.services.working import Until
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services
from dibs_lab.fakehub import Fault, Wrong
from dibs_lab.fakehub.seeding import seed

from .hubs import REPOSITORY, UNPACED, Hub
from .test_auth import PEM
from .test_stray_refusals import PUBLIC
from .tiny import memory_ledger

LOOKS = label_looks(STAGES)
BOT = "fleet-bot[bot]"
FIRST, SECOND = "fleet", "colleague"
MOST_REQUESTS = 60
DONE_WITHIN = 40
DOCUMENTED = {Exit.DONE, Exit.ERROR, Exit.NOTHING, Exit.LIMITED, Exit.FORBIDDEN}
NEEDS = {
    Wrong.SLOW.value: {"seconds": (0.02, 0.02)},  # the only one that takes real time
    "hidden_comment": {"author": SECOND},
    "unknown_field": {"containing": "lastEditedAt"},
}


class OneThread:
    """Runs a job where it is started. Nobody renews: the handler does, and moves the time."""

    def start(self, work, name):
        if name.startswith("dibs-job"):
            work()
        return self

    def start_within(self, seconds, work, name, otherwise):
        return self

    def join(self):
        pass


@dataclass
class Crew:
    """Two workers of two accounts, one issue, and the control issue."""

    hub: Hub
    opened: ExitStack
    wrong: Wrong
    runs: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def by_app(self):
        return self.wrong is Wrong.NEW_TOKEN_LAG

    def __post_init__(self):
        if self.by_app:
            self.installed = self.hub.hub.install("fleet-bot", PUBLIC, REPOSITORY)
        self.second = self.services(SECOND, self.done_by_second)
        self.second.adapters.tracker.prepare(list(LOOKS))
        self.second.adapters.prepare()
        issues = [{"title": "one", "labels": ["stage:ready"]}]
        seed(self.hub.state, {"repositories": [{"full_name": REPOSITORY, "issues": issues}]})
        self.number = max(
            one.number
            for one in self.hub.state.primary().issues(self.hub.state.named(REPOSITORY).id)
        )
        self.first = self.services(BOT if self.by_app else FIRST, self.done_by_first)

    def transport(self, login):
        if login != BOT:
            return self.hub.transport(login, clock=self.hub.clock)
        number = str(self.installed.app.id)
        app = AppInstallation(number, PEM, self.hub.clock, repository=REPOSITORY)
        ledger = memory_ledger(self.hub.clock, UNPACED)
        made = Transport(api_at(self.hub.hub.url), app, ledger, self.hub.clock)
        self.opened.callback(made.close)
        return made

    def services(self, login, handler):
        tracker = GithubTracker(
            self.transport(login),
            REPOSITORY,
            looks=LOOKS,
            trusted=(BOT, SECOND) if self.by_app else (),
            minds_people=True,
        )
        control = GithubControl([tracker], self.hub.clock)
        settings = config.from_mapping(
            {"tracker": f"github:{REPOSITORY}", "journal": ""}, source="test", root=Path("/nowhere")
        )
        adapters = Adapters(
            tracker=tracker,
            store=None,
            pauses=control,
            observers=(MemoryJournal(),),
            clock=self.hub.clock,
            threads=OneThread(),
            granters=control,
            prepare=control.prepare,
        )
        return Services(replace(settings, pipeline=STAGES), adapters, handlers={"ready": handler})

    # What the two do

    def done_by_first(self, work):
        self.runs.append(FIRST)
        self.hub.clock.advance(work.lease.terms.renew_every.total_seconds())
        for _ in range(4):  # a beat that failed is tried again by the second
            work.lease.beat()
            self.hub.clock.advance(50)
        assert self.work(self.second, SECOND)[1].claimed == 0, "two at one time"
        work.check()

    def done_by_second(self, work):
        self.runs.append(SECOND)

    def work(self, services, name):
        """One step of a worker: its exit code, and what it reports."""
        stages = (services.pipeline.stage("ready"),)
        worker = services.worker(name, stages, until=Until.ONCE, tell=self.told.append)
        try:
            report = worker.run()
        except DibsError as flaw:
            return for_error(flaw), worker.report
        return _answer(report, [], may_be_idle=False).exit, report

    def labels(self):
        view = self.hub.state.primary()
        return {label.name for label in view.labels_on(self.hub.issue(self.number))}

    def advances(self):
        view = self.hub.state.primary()
        marks = (parse_mark(one.body) for one in view.comments(self.hub.issue(self.number).id))
        endings = [mark.ending for mark in marks if isinstance(mark, Card) and mark.ending]
        return [ending.outcome.value for ending in endings].count("advanced")

    def is_done(self):
        """Advanced, once. What another bot makes of the labels afterwards is for `dibs fsck`."""
        labels = self.labels()
        shown = labels == {"stage:review"} or (self.wrong is Wrong.UNLABEL and not labels)
        return shown and self.advances() == 1


@dataclass(frozen=True)
class Outcome:
    hit: bool
    code: int
    runs: tuple[str, ...]
    flaws: tuple[str, ...]


def with_fault(wrong, place, times):
    """The whole story with the fault at one request of the first worker, or at some in a row."""
    with ExitStack() as opened:
        hub = Hub(opened)
        crew = Crew(hub, opened, wrong)
        options = {
            "login": FIRST,
            "after": place,
            "times": times,
            **NEEDS.get(wrong.value, {}),
        }
        if wrong is Wrong.NEW_TOKEN_LAG:
            options = {"seconds": (place + 1, place + 1)}
        hub.hub.faults.add(Fault(wrong, **options))
        code, report = crew.work(crew.first, FIRST)
        left = [fault["times"] for fault in hub.hub.faults.told()]
        hit = wrong is Wrong.NEW_TOKEN_LAG or left != [times]
        hub.hub.faults.clear()
        for _ in range(DONE_WITHIN):
            if crew.is_done():
                break
            hub.clock.advance(60)
            crew.work(crew.second, SECOND)
        return Outcome(hit, code, tuple(crew.runs), tuple(flaws_of(crew, code, report)))


def flaws_of(crew, code, report):
    if not crew.is_done():
        yield f"it has {sorted(crew.labels())} and {crew.advances()} endings"
    if len(crew.runs) != 1:
        yield f"it was worked by {crew.runs}"
    if code not in DOCUMENTED:
        yield f"exit code {code} is not documented"
    lost = FIRST in crew.runs and report.outcomes.get("advanced", 0) == 0
    if lost and code not in (Exit.ERROR, Exit.FORBIDDEN):
        yield f"the ending did not get through, and the exit code is {code}"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wrong", list(Wrong), ids=[wrong.value for wrong in Wrong])
@pytest.mark.parametrize("times", [1, 3])
def test_a_fault_at_any_request_costs_neither_the_issue_nor_the_work(wrong, times, capsys):
    outcomes = []
    for place in range(12 if wrong is Wrong.NEW_TOKEN_LAG else MOST_REQUESTS):
        outcome = with_fault(wrong, place, times)
        if not outcome.hit:
            break
        outcomes.append(outcome)
    codes = dict(Counter(int(outcome.code) for outcome in outcomes))
    by_first = sum(outcome.runs == (FIRST,) for outcome in outcomes)
    with capsys.disabled():
        print(f"\n{wrong.value} x{times}: hit {len(outcomes)}, by the first {by_first}, {codes}")
    assert outcomes
    flaws = {at: outcome.flaws for at, outcome in enumerate(outcomes) if outcome.flaws}
    assert flaws == {}
