"""The main job in one command: a fleet drains a backlog, one worker killed, one frozen.

Everything shown afterwards is read back from the tracker's cards and the journal; the demo judges
them and exits non-zero if an issue was lost or a stage advanced twice.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, field

from dibs.core.durations import parse_instant
from dibs.core.lease import Outcome
from dibs.frontends.cli.context import Context, answering, as_json
from dibs.frontends.cli.output import Answer, Exit, table, tell
from dibs.settings import load as config

if TYPE_CHECKING:
    from dibs.services.board import Overview, RunRow
    from dibs.wiring.services import Services

_TITLES = (
    "Parse dates with time zones",
    "Retry uploads that time out",
    "Explain the exit codes",
    "Speed up the nightly import",
    "Drop the old settings page",
    "Translate the error texts",
    "Test on a full disk",
    "Show progress while syncing",
    "Name the holder in the log",
    "Escape names in comments",
    "Cache the label lookup",
    "Document the pause command",
)
_TOML = """\
preset = "stages"
ttl    = "3s"

[worker]
poll  = "200ms"
sweep = "500ms"

[[stage]]
name = "ready"
run  = "sh handler.sh 0.7"

[[stage]]
name = "review"
gate = "none"
run  = "sh handler.sh 0.4"
next = "done"
"""
_HANDLER = """\
# A stand-in for an agent: reads the issue, works a while, says what it did.
cat > /dev/null
sleep "$1"
echo "$DIBS_ISSUE $DIBS_STAGE done under fence $DIBS_FENCE, attempt $DIBS_ATTEMPT"
"""
_LONGEST_S = 100.0


@click.command("demo")
@click.option("--workers", default=4, show_default=True, type=click.IntRange(3, 32))
@click.option("--issues", default=len(_TITLES), show_default=True, type=click.IntRange(4, 500))
@click.option("--keep", is_flag=True, help="Leave the folder behind and say where it is.")
@as_json
@answering
def demo_command(context: Context, workers: int, issues: int, keep: bool) -> Answer:
    """Drain a fresh backlog with several workers; kill one, freeze another; show what happened."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-demo-"))
    try:
        demo = Demo(folder, workers, issues)
        with demo.fleet(), _screen(as_json=context.as_json) as draw:
            demo.run(draw)
        return demo.verdict()
    finally:
        if keep:
            tell(f"the backlog, journal and runs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


Draw = Callable[["Overview", list[str]], None]


class Story(Struct):
    """What the demo did to the fleet."""

    killed: str = ""
    frozen: str = ""
    frozen_run: str = ""
    frozen_issue: str = ""
    frozen_at_s: float = 0.0
    woken: bool = False
    lines: list[str] = field(default_factory=list)


class Demo:
    def __init__(self, folder: Path, workers: int, issues: int) -> None:
        self._folder = folder
        self._names = [f"worker-{number}" for number in range(1, workers + 1)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._story = Story()
        (folder / "dibs.toml").write_text(_TOML)
        (folder / "handler.sh").write_text(_HANDLER)
        self._services = self._connect()
        self._clock = self._services.adapters.clock
        self._started_at = self._clock.now()
        first = self._services.pipeline.stages[0].label
        from dibs.core.issue import Draft

        for number in range(issues):
            title = _TITLES[number % len(_TITLES)]
            self._services.tracker.create(Draft(title, labels=frozenset({first})))
        self._issues = issues

    def _connect(self) -> "Services":
        from dibs.wiring.services import connect

        return connect(config.load(self._folder / "dibs.toml"), author="demo")

    @contextmanager
    def fleet(self) -> Iterator[None]:
        """The workers, as processes of their own, gone when we are."""
        for name in self._names:
            command = [sys.executable, "-m", "dibs", "work", "--drain", "--quiet", "--name", name]
            with (self._folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        try:
            yield
        finally:
            for process in self._processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                process.wait()

    # What happens

    def run(self, draw: Draw) -> None:
        self._say(f"{len(self._names)} workers, {self._issues} issues, two worked stages, ttl 3 s")
        while self._clock.now() - self._started_at < _LONGEST_S:
            overview = self._services.board.overview()
            self._meddle(overview)
            draw(overview, self._story.lines)
            alive = [name for name in self._names if self._processes[name].poll() is None]
            if not alive:
                self._say(f"every worker has gone home after {self._elapsed():.0f} s")
                draw(self._services.board.overview(), self._story.lines)
                return
            self._clock.sleep(0.15)
        self._say("out of time")

    def _meddle(self, overview: "Overview") -> None:
        """Kill one holder, then freeze another until somebody else has done its work."""
        story, events = self._story, self.events()
        done = sum(event["event"] == "advanced" for event in events)
        if not story.killed and done >= 2:
            self._kill(overview)
        elif story.killed and not story.frozen and done >= 5:
            self._freeze(overview)
        elif story.frozen and not story.woken and self._overtaken(events):
            self._wake()
        elif story.frozen and not story.woken and self._elapsed() > story.frozen_at_s + 12:
            self._thaw()

    def _kill(self, overview: "Overview") -> None:
        for record in overview.in_flight:
            self._story.killed = name = record.lease.holder
            self._processes[name].kill()
            self._say(f"{name} was killed with SIGKILL while it held {record.lease.issue}")
            return

    def _freeze(self, overview: "Overview") -> None:
        for record in overview.in_flight:
            name = record.lease.holder
            if name != self._story.killed and self._processes[name].poll() is None:
                self._story.frozen = name
                self._story.frozen_run = record.lease.run
                self._story.frozen_issue = str(record.lease.issue)
                self._story.frozen_at_s = self._elapsed()
                self._processes[name].send_signal(signal.SIGSTOP)
                self._say(f"{name} was frozen with SIGSTOP while it held {record.lease.issue}")
                return

    def _overtaken(self, events: list[dict[str, Any]]) -> bool:
        """Whether the frozen worker's issue is over: by another, or by itself just before."""
        for event in events:
            if event.get("issue") == self._story.frozen_issue and event["event"] == "advanced":
                frozen_claim = self._claim_of(events, self._story.frozen_run)
                if frozen_claim and event.get("fence", 0) >= frozen_claim.get("fence", 0):
                    return True
        return False

    @staticmethod
    def _claim_of(events: list[dict[str, Any]], run: str) -> dict[str, Any] | None:
        claims = (e for e in events if e["event"] == "claimed" and e.get("run") == run)
        return next(claims, None)

    def _wake(self) -> None:
        self._story.woken = True
        self._processes[self._story.frozen].send_signal(signal.SIGCONT)
        self._say(
            f"{self._story.frozen} was woken with SIGCONT; {self._story.frozen_issue} is done"
        )

    def _thaw(self) -> None:
        """A process stopped inside a write keeps SQLite's file locked: let it go, try again."""
        self._processes[self._story.frozen].send_signal(signal.SIGCONT)
        self._say(f"{self._story.frozen} was stopped in the middle of a write; woken, trying again")
        self._story.frozen = ""

    def _say(self, line: str) -> None:
        self._story.lines.append(f"{self._elapsed():5.1f} s  {line}")

    def _elapsed(self) -> float:
        return self._clock.now() - self._started_at

    def events(self) -> list[dict[str, Any]]:
        journal = self._services.settings.journal
        if journal is None or not journal.exists():
            return []
        return [json.loads(line) for line in journal.read_text("utf-8").splitlines()]

    # What came of it

    def verdict(self) -> Answer:
        board, events = self._services.board, self.events()
        rows = board.rows(closed_too=True, limit=self._issues + 1)
        histories = {str(row.issue.ref): board.history(row.issue.ref) for row in rows}
        lost = [str(row.issue.ref) for row in rows if row.issue.open]
        twice = _advanced_twice(histories)
        refused = [event for event in events if event["event"] == "finish_refused"]
        self._services.close()
        data = {
            "issues": len(rows),
            "done": len(rows) - len(lost),
            "lost": lost,
            "advanced_twice": twice,
            "killed": self._story.killed,
            "frozen": self._story.frozen,
            "takeovers": _takeovers(histories, events),
            "finishes_refused": refused,
            "seconds": round(self._elapsed(), 1),
            "runs": {ref: [entry.outcome for entry in runs] for ref, runs in histories.items()},
        }
        healthy = not lost and not twice and self._story.killed and self._story.woken
        return Answer(data, self._summary(data, histories), Exit.DONE if healthy else Exit.ERROR)

    def _summary(
        self, data: dict[str, Any], histories: dict[str, tuple["RunRow", ...]]
    ) -> list[str]:
        lines = ["", *_who_did_what(self._names, histories), "", *_per_issue(histories), ""]
        lines += [
            f"taken over: {entry['issue']} in {entry['stage']}, from {entry['from']} "
            f"(fence {entry['old_fence']}) by {entry['by']} (fence {entry['fence']}), "
            f"{entry['after_s']:.1f} s after its claim"
            for entry in data["takeovers"]
        ]
        lines += [
            f"refused: {event['holder']} tried to finish {event['issue']} with the stale fence "
            f"{event['fence']}: {event.get('why', '')}"
            for event in data["finishes_refused"]
        ]
        lines.append("")
        lines.append(
            f"{data['issues']} issues, {data['done']} done, {len(data['lost'])} lost, "
            f"{len(data['advanced_twice'])} advanced twice, in {data['seconds']} s"
        )
        return lines


def _advanced_twice(histories: dict[str, tuple["RunRow", ...]]) -> list[str]:
    advanced = Counter(
        f"{ref} {entry.stage}"
        for ref, runs in histories.items()
        for entry in runs
        if entry.outcome == Outcome.ADVANCED
    )
    return [what for what, count in advanced.items() if count > 1]


def _takeovers(
    histories: dict[str, tuple["RunRow", ...]], events: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A run that vanished, and the one that came after it in the same stage."""
    fences = {e["run"]: (e["fence"], e["logged_at"]) for e in events if e["event"] == "claimed"}
    found = []
    for ref, runs in histories.items():
        for before, after in itertools.pairwise(runs):
            if before.outcome != "vanished" or before.stage != after.stage:
                continue
            old_fence, claimed_at = fences.get(before.run, (0, ""))
            fence, taken_at = fences.get(after.run, (0, ""))
            both = claimed_at and taken_at
            wait = parse_instant(taken_at) - parse_instant(claimed_at) if both else None
            found.append(
                {
                    "issue": ref,
                    "stage": before.stage,
                    "from": before.holder,
                    "old_fence": old_fence,
                    "by": after.holder,
                    "fence": fence,
                    "after_s": wait.total_seconds() if wait else 0.0,
                }
            )
    return found


def _who_did_what(names: list[str], histories: dict[str, tuple["RunRow", ...]]) -> list[str]:
    runs = [entry for entries in histories.values() for entry in entries]
    rows = []
    for name in names:
        mine = Counter(entry.outcome for entry in runs if entry.holder == name)
        rows.append((name, sum(mine.values()), mine["advanced"], mine["vanished"]))
    return table(("worker", "leases", "advanced", "vanished"), rows)


def _per_issue(histories: dict[str, tuple["RunRow", ...]]) -> list[str]:
    rows = [
        (ref, " ".join(f"{entry.stage}:{entry.holder}({entry.outcome})" for entry in runs))
        for ref, runs in histories.items()
    ]
    return table(("issue", "runs"), rows)


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Draw]:
    """A live board on a terminal, plain lines elsewhere."""
    if as_json or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        with _plain_lines() as draw:
            yield draw
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from dibs.frontends.cli.live import render

    with Live(console=Console(stderr=True), refresh_per_second=8) as live:

        def redraw(overview: "Overview", lines: list[str]) -> None:
            live.update(Group(render(overview, "dibs demo"), Text("\n".join(lines))))

        yield redraw


@contextmanager
def _plain_lines() -> Iterator[Draw]:
    told = 0

    def draw(overview: "Overview", lines: list[str]) -> None:
        nonlocal told
        for line in lines[told:]:
            tell(line)
        if len(lines) > told:
            counts = ", ".join(
                f"{entry.stage.name} {entry.issues} ({entry.in_flight} in flight)"
                for entry in overview.stages
                if not entry.stage.final
            )
            tell(f"         {counts}")
        told = len(lines)

    yield draw
