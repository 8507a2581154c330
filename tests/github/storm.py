"""A fleet of real worker processes on the fake in bad weather: python -m tests.github.storm.

Writes become visible up to `settle` late, replies get lost after the write took effect, the server
answers 5xx, a worker is killed and another frozen for longer than its lease, again and again. Every
other fault that the fake has happens as well, and the repository spells its labels in another case.
Counted at the end: issues not done, stages advanced not exactly once, two handlers at one time.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from dibs.adapters.system import SystemClock
from dibs.core.card import CardState
from dibs.core.fold import FoldRules, PostedCard, counted_in_time, read_marks
from dibs.core.ids import ServerTime, server_time
from dibs.core.issue import Comment
from dibs.core.lease import Outcome as Ended
from dibs_lab.fakehub import Cut, FakeHub, Fault, Limits, Permission, Wrong
from dibs_lab.fakehub.seeding import seed

REPOSITORY = "acme/shop"
TOKEN = "fleet-token"
STAGES = ("ready", "check")
CONTROL = "dibs:control"
# A lock file that the kernel lets go of when its holder is gone: two at one time is seen as such.
HANDLER = (
    'exec 9>"held/${DIBS_ISSUE##*#}"; flock -n 9 || echo "$DIBS_ISSUE $DIBS_RUN" >> double; '
    "sleep WORK_S; "
    'echo "$DIBS_ISSUE $DIBS_STAGE $DIBS_RUN" >> ledger'
)
CONFIGURATION = """
tracker = "github:{repository}"
ttl = "{ttl_s}s"
settle = "{settle_s}s"
preset = "none"

[github]
pace = false

[worker]
poll = "2s"
stop_grace = "5s"

[[stage]]
name = "ready"
label = "stage:ready"
next = "check"
attempts = 20
backoff = "100ms"
run = '''{handler}'''

[[stage]]
name = "check"
label = "stage:check"
next = "done"
attempts = 20
backoff = "100ms"
run = '''{handler}'''

[[stage]]
name = "done"
label = "stage:done"
closes = true
"""


@dataclass(frozen=True, slots=True)
class Weather:
    workers: int = 16
    issues: int = 300
    settle_s: float = 2.0
    ttl_s: int = 30
    work_s: float = 0.5
    lost_replies: float = 0.05
    errors: float = 0.02
    strays: float = 0.005
    """How likely each of the other faults is."""
    every_s: float = 60.0
    """How often one is killed and another frozen."""
    patience_s: float = 1800.0
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    took_s: float = 0.0
    killed: int = 0
    frozen: int = 0
    requests: int = 0
    ended_with: Counter[int] = field(default_factory=Counter)
    handlers: int = 0
    lost_bids: int = 0
    flaws: list[str] = field(default_factory=list)


class Storm:
    def __init__(self, weather: Weather, folder: Path, hub: FakeHub) -> None:
        self._weather = weather
        self._folder = folder
        self._hub = hub
        self._dice = random.Random(weather.seed)
        self._clock = SystemClock()
        self._crew: list[subprocess.Popen[bytes]] = []
        self._thawing: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._named = 0
        onlooker = {"Authorization": "Bearer onlooker-token"}
        self._onlooker = httpx.Client(base_url=hub.url, headers=onlooker, timeout=60)
        self.outcome = Outcome()

    def prepare(self) -> None:
        weather = self._weather
        (self._folder / "held").mkdir()
        self._folder.joinpath("dibs.toml").write_text(
            CONFIGURATION.format(
                repository=REPOSITORY,
                ttl_s=weather.ttl_s,
                settle_s=weather.settle_s,
                handler=HANDLER.replace("WORK_S", str(weather.work_s)),
            ),
            "utf-8",
        )
        self._run("init")
        issues = [
            {"title": f"Issue {number}", "labels": ["stage:ready"]}
            for number in range(weather.issues)
        ]
        seed(self._hub.state, {"repositories": [{"full_name": REPOSITORY, "issues": issues}]})
        commenting = self._hub.state.acting(self._hub.state.viewer("flagged-token"))
        view, repository = self._hub.state.primary(), self._hub.state.named(REPOSITORY)
        for issue in view.issues(repository.id)[::10]:
            commenting.create_comment(issue, "hidden from everybody else, and counted")
        self._hub.faults.add(*faults_of(weather))

    def blow(self) -> None:
        weather, began_at = self._weather, self._clock.now()
        strike_at = began_at + weather.every_s / 2
        self._crew = [self._start() for _ in range(weather.workers)]
        while self._left() and self._clock.now() < began_at + weather.patience_s:
            self._clock.sleep(0.2)
            self._replace_the_gone()
            if self._clock.now() >= strike_at:
                strike_at += weather.every_s
                self._strike()
        self._calm()
        self.outcome.took_s = self._clock.now() - began_at
        self.outcome.requests = self._hub.counts.told()["requests"]

    def _strike(self) -> None:
        awake = [one for one in self._crew if one not in {frozen for _, frozen in self._thawing}]
        doomed, sleeper = self._dice.sample(awake, 2)
        doomed.kill()
        self.outcome.killed += 1
        sleeper.send_signal(signal.SIGSTOP)
        self.outcome.frozen += 1
        self._thawing.append((self._clock.now() + self._weather.ttl_s * 1.3, sleeper))

    def _replace_the_gone(self) -> None:
        now = self._clock.now()
        for thaw_at, sleeper in [entry for entry in self._thawing if entry[0] <= now]:
            sleeper.send_signal(signal.SIGCONT)
            self._thawing.remove((thaw_at, sleeper))
        for place, worker in enumerate(self._crew):
            if worker.poll() is not None:
                self.outcome.ended_with[worker.returncode] += 1
                self._crew[place] = self._start()

    def _calm(self) -> None:
        for _, sleeper in self._thawing:
            sleeper.send_signal(signal.SIGCONT)
        for worker in self._crew:
            worker.terminate()
        for worker in self._crew:
            worker.wait(60)
        # Each write has a lag of its own: the last card may be seen after the label that it led to.
        self._clock.sleep(self._weather.settle_s)

    def _left(self) -> bool:
        """Whether anything is open but the control issue."""
        reply = self._onlooker.get(f"/repos/{REPOSITORY}/issues?state=open&per_page=2")
        return any(
            CONTROL not in {label["name"] for label in issue["labels"]}
            for issue in reply.raise_for_status().json()
        )

    def _everything(self, path: str) -> list[dict[str, Any]]:
        """All pages. Asked as somebody else, whom nothing goes wrong for."""
        address: str | None = f"/repos/{REPOSITORY}/{path}{'&' if '?' in path else '?'}per_page=100"
        found: list[dict[str, Any]] = []
        while address is not None:
            reply = self._onlooker.get(address).raise_for_status()
            found += reply.json()
            address = reply.links.get("next", {}).get("url")
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        self._named += 1
        log = (self._folder / f"worker-{self._named}.log").open("wb")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "dibs", "work", "--name", f"worker-{self._named}"],
                cwd=self._folder,
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _run(self, *words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "dibs", *words],
            cwd=self._folder,
            env=self._environment(),
            check=True,
            capture_output=True,
            timeout=60,
        )

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "GITHUB_API_URL": self._hub.url,
            "GITHUB_TOKEN": TOKEN,
            "DIBS_STATE": str(self._folder / "state"),
        }

    def close(self) -> None:
        for worker in self._crew:
            worker.kill()
            worker.wait(60)
        self._onlooker.close()

    # What came of it

    def judge(self) -> Outcome:
        outcome, flaws = self.outcome, self.outcome.flaws
        double = _lines(self._folder / "double")
        flaws += [f"two handlers at one time: {line}" for line in double]
        outcome.handlers = len(_lines(self._folder / "ledger"))
        for issue in self._everything("issues?state=all"):
            names = {label["name"].lower() for label in issue["labels"]}
            if CONTROL in names:
                continue
            if issue["state"] == "open" or names != {"stage:done"}:
                flaws.append(f"#{issue['number']} is {issue['state']} with {sorted(names)}")
            cards = self._cards(issue["number"])
            outcome.lost_bids += sum(one.card.state is CardState.CONCEDED for one in cards)
            advanced = Counter(str(one.card.stage) for one in cards if _advanced(one))
            if advanced != Counter(STAGES):
                flaws.append(f"#{issue['number']} was advanced {dict(advanced)}")
        return outcome

    def _cards(self, number: int) -> Sequence[PostedCard]:
        comments = [
            Comment(one["id"], one["body"], _time(one["created_at"]), _time(one["updated_at"]))
            for one in self._everything(f"issues/{number}/comments")
        ]
        return read_marks(comments, FoldRules()).cards


_AGAIN = 1_000_000
"""Without this some faults would happen once."""
_RESTS = ("RATE_LIMIT", "TOO_QUICKLY")
"""Each of these stops the whole fleet for a minute, which is longer than a lease."""


def faults_of(weather: Weather) -> Iterator[Fault]:
    """At least one fault of each kind that the fake has, so also of a kind that it learns later."""
    half, stray = weather.lost_replies / 2, weather.strays
    # Together within `settle`, by which every reader sees a write: else nothing is promised.
    lag, behind = (0.0, weather.settle_s * 0.6), (0.0, weather.settle_s * 0.35)
    special = {
        Wrong.LAG: [Fault(Wrong.LAG, seconds=lag)],
        Wrong.STALE: [Fault(Wrong.STALE, chance=stray, seconds=behind)],
        Wrong.ERROR_AFTER: [Fault(Wrong.ERROR_AFTER, chance=half)],
        Wrong.DROP_AFTER: [Fault(Wrong.DROP_AFTER, chance=half)],
        Wrong.ERROR_BEFORE: [Fault(Wrong.ERROR_BEFORE, chance=weather.errors, status=503)],
        Wrong.SLOW: [Fault(Wrong.SLOW, chance=stray, seconds=(0.1, 2.0))],
        # A stage's label that somebody takes off is for a person; `claimed` is put on again.
        Wrong.UNLABEL: [Fault(Wrong.UNLABEL, chance=stray, label="(?i)^claimed$")],
        Wrong.RESOURCE_LIMITS: [
            *(Fault(Wrong.RESOURCE_LIMITS, chance=stray, cut=cut) for cut in Cut),
            Fault(Wrong.RESOURCE_LIMITS, cut=Cut.PATHLESS, nodes=10_000),
        ],
        Wrong.HIDDEN_COMMENT: [Fault(Wrong.HIDDEN_COMMENT, chance=10 * stray, author="flagged")],
        Wrong.LABEL_CASE: [Fault(Wrong.LABEL_CASE)],
        Wrong.UNKNOWN_FIELD: [
            Fault(Wrong.UNKNOWN_FIELD, chance=10 * stray, containing="assignedActors")
        ],
    }
    for wrong in Wrong:
        times = 2 if wrong.name in _RESTS else _AGAIN
        for fault in special.get(wrong, [Fault(wrong, chance=stray, times=times)]):
            yield replace(fault, login="fleet")


def _advanced(posted: PostedCard) -> bool:
    """An ending that counts: it landed before the lease was over."""
    ending = posted.card.ending
    return ending is not None and ending.outcome is Ended.ADVANCED and counted_in_time(posted)


def _time(text: str) -> ServerTime:
    return server_time(datetime.fromisoformat(text))


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def ride_out(weather: Weather) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, FakeHub(limits=Limits.off()) as hub:
        hub.repository(REPOSITORY)
        hub.user("fleet", {REPOSITORY: Permission.WRITE}, token=TOKEN)
        hub.user("onlooker", {REPOSITORY: Permission.READ})
        hub.user("flagged")
        spelt = [{"name": name} for name in ("Stage:Ready", "STAGE:check", "Claimed")]
        seed(hub.state, {"repositories": [{"full_name": REPOSITORY, "labels": spelt}]})
        storm = Storm(weather, Path(folder), hub)
        try:
            storm.prepare()
            storm.blow()
            return storm.judge()
        finally:
            storm.close()


def main(words: Sequence[str] | None = None) -> int:
    calm = Weather()
    parser = argparse.ArgumentParser(prog="python -m tests.github.storm", description=__doc__)
    parser.add_argument("--workers", type=int, default=calm.workers)
    parser.add_argument("--issues", type=int, default=calm.issues)
    parser.add_argument("--seed", type=int, default=calm.seed)
    asked = parser.parse_args(words)
    outcome = ride_out(Weather(workers=asked.workers, issues=asked.issues, seed=asked.seed))
    print(
        f"{asked.workers} workers, {asked.issues} issues, two stages: {outcome.took_s:.0f} s, "
        f"{outcome.killed} killed, {outcome.frozen} frozen, {outcome.handlers} handlers ended, "
        f"{outcome.lost_bids} lost bids, {outcome.requests} requests, "
        f"workers that ended by themselves: {dict(outcome.ended_with)}"
    )
    print("\n".join(outcome.flaws) or "all done, each stage advanced once, never two at one issue")
    return 1 if outcome.flaws else 0


if __name__ == "__main__":
    sys.exit(main())
