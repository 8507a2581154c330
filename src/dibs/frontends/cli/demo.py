"""`dibs demo`: a fleet drains a backlog while the demo kills a worker and freezes another.

Afterwards the demo reads the tracker's cards and the journal, shows them, and exits non-zero if an
issue was lost or a stage was advanced twice.
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
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dibs.core.durations import parse_instant
from dibs.core.lease import Lease, Outcome
from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.output import Answer, Exit, table, tell
from dibs.settings import load as config

if TYPE_CHECKING:
    from dibs.services.board import Overview, RunRow

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


@command("demo")
@click.option("--workers", default=4, show_default=True, type=click.IntRange(3, 32))
@click.option("--issues", default=len(_TITLES), show_default=True, type=click.IntRange(4, 500))
@click.option("--keep", is_flag=True, help="Keep the folder and print its path.")
def demo_command(context: Context, workers: int, issues: int, keep: bool) -> Answer:
    """Drain a fresh backlog with several workers; kill one, freeze another; show the outcome."""
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


class Demo:
    def __init__(self, folder: Path, workers: int, issues: int) -> None:
        self._folder, self._issues = folder, issues
        self._names = [f"worker-{number}" for number in range(1, workers + 1)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lines: list[str] = []
        self._killed = ""
        self._frozen: Lease | None = None
        """The lease of the worker that is or was frozen."""
        self._frozen_at_s, self._woken = 0.0, False
        (folder / "dibs.toml").write_text(_TOML)
        (folder / "handler.sh").write_text(_HANDLER)
        from dibs.core.issue import Draft
        from dibs.wiring.services import connect

        self._services = connect(config.load(folder / "dibs.toml"), author="demo")
        self._clock = self._services.adapters.clock
        self._started_at = self._clock.now()
        first = self._services.pipeline.stages[0].label
        for number in range(issues):
            title = _TITLES[number % len(_TITLES)]
            self._services.tracker.create(Draft(title, labels=frozenset({first})))

    @contextmanager
    def fleet(self) -> Iterator[None]:
        """Start the workers as processes; at the end kill the remaining ones."""
        # A handler that tries the demo must not work its own backlog.
        theirs = ("DIBS_CONFIG", "DIBS_LEASES")
        environment = {name: text for name, text in os.environ.items() if name not in theirs}
        for name in self._names:
            command = [sys.executable, "-m", "dibs", "work", "--drain", "--quiet", "--name", name]
            with (self._folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        try:
            yield
        finally:
            for process in self._processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                process.wait()

    def run(self, draw: Draw) -> None:
        """Interfere with the fleet and draw the board until every worker has left."""
        self._say(f"{len(self._names)} workers, {self._issues} issues, two worked stages, ttl 3 s")
        while self._clock.now() - self._started_at < _LONGEST_S:
            overview = self._services.board.overview()
            self._interfere(overview)
            draw(overview, self._lines)
            if all(process.poll() is not None for process in self._processes.values()):
                self._say(f"every worker has ended after {self._elapsed():.0f} s")
                draw(self._services.board.overview(), self._lines)
                return
            self._clock.sleep(0.15)
        self._say("the demo is out of time")

    def _interfere(self, overview: "Overview") -> None:
        """Kill a holder, then freeze another holder and wake it once the issue was advanced.

        Usually a third worker advances the issue, but the frozen worker may have been faster. A
        worker stopped in the middle of a write keeps the file of SQLite locked: after 12 s the demo
        wakes the worker and tries again.
        """
        events = self.events()
        advanced = [event for event in events if event["event"] == "advanced"]
        started = {event.get("run") for event in events if event["event"] == "handler_started"}
        leases = [record.lease for record in overview.in_flight]
        at_work = [lease for lease in leases if lease.run in started]
        frozen = self._frozen
        if not self._killed and len(advanced) >= 2 and at_work:
            # The latest to begin: work that is finished would be ended for it, not taken over.
            lease = max(at_work, key=lambda lease: lease.granted_at)
            self._killed = lease.holder
            self._processes[lease.holder].kill()
            self._say(f"{lease.holder} was killed with SIGKILL while it held {lease.issue}")
        elif self._killed and frozen is None and len(advanced) >= 5:
            alive = [lease for lease in leases if self._processes[lease.holder].poll() is None]
            for lease in [lease for lease in alive if lease.holder != self._killed][:1]:
                self._frozen, self._frozen_at_s = lease, self._elapsed()
                self._processes[lease.holder].send_signal(signal.SIGSTOP)
                self._say(f"{lease.holder} was frozen with SIGSTOP while it held {lease.issue}")
        elif frozen is None or self._woken:
            return
        elif any(
            event.get("issue") == str(frozen.issue) and event.get("fence", 0) >= frozen.fence
            for event in advanced
        ):
            self._woken = True
            self._processes[frozen.holder].send_signal(signal.SIGCONT)
            self._say(f"{frozen.holder} was woken with SIGCONT; {frozen.issue} is done")
        elif self._elapsed() > self._frozen_at_s + 12:
            self._processes[frozen.holder].send_signal(signal.SIGCONT)
            self._say(f"{frozen.holder} was stopped in the middle of a write; woken, trying again")
            self._frozen = None

    def _say(self, line: str) -> None:
        self._lines.append(f"{self._elapsed():5.1f} s  {line}")

    def _elapsed(self) -> float:
        return self._clock.now() - self._started_at

    def events(self) -> list[dict[str, Any]]:
        journal = self._services.settings.journal
        if journal is None or not journal.exists():
            return []
        return [json.loads(line) for line in journal.read_text("utf-8").splitlines()]

    def verdict(self) -> Answer:
        """Judge the run: no issue lost, no stage advanced twice, a worker killed and one woken."""
        board, events = self._services.board, self.events()
        rows = board.rows(closed_too=True, limit=self._issues + 1)
        histories = {str(row.issue.ref): board.history(row.issue.ref) for row in rows}
        lost = [str(row.issue.ref) for row in rows if row.issue.open]
        advanced = Counter(
            f"{ref} {entry.stage}"
            for ref, runs in histories.items()
            for entry in runs
            if entry.outcome == Outcome.ADVANCED
        )
        twice = [stage for stage, count in advanced.items() if count > 1]
        refused = [event for event in events if event["event"] == "finish_refused"]
        self._services.close()
        data = {
            "issues": len(rows),
            "done": len(rows) - len(lost),
            "lost": lost,
            "advanced_twice": twice,
            "killed": self._killed,
            "frozen": self._frozen.holder if self._frozen else "",
            "takeovers": _takeovers(histories, events),
            "finishes_refused": refused,
            "seconds": round(self._elapsed(), 1),
            "runs": {ref: [entry.outcome for entry in runs] for ref, runs in histories.items()},
        }
        healthy = not lost and not twice and self._killed and self._woken
        return Answer(data, self._summary(data, histories), Exit.DONE if healthy else Exit.ERROR)

    def _summary(
        self, data: dict[str, Any], histories: dict[str, tuple["RunRow", ...]]
    ) -> list[str]:
        """A table of workers, a table of issues, then takeovers, refused endings and the counts."""
        everything = [entry for entries in histories.values() for entry in entries]
        workers = []
        for name in self._names:
            outcomes = Counter(entry.outcome for entry in everything if entry.holder == name)
            counts = (sum(outcomes.values()), outcomes["advanced"], outcomes["vanished"])
            workers.append((name, *counts))
        issues = [
            (ref, " ".join(f"{entry.stage}:{entry.holder}({entry.outcome})" for entry in runs))
            for ref, runs in histories.items()
        ]
        lines = ["", *table(("worker", "leases", "advanced", "vanished"), workers), ""]
        lines += [*table(("issue", "runs"), issues), ""]
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
        totals = (
            f"{data['issues']} issues, {data['done']} done, {len(data['lost'])} lost, "
            f"{len(data['advanced_twice'])} advanced twice, in {data['seconds']} s"
        )
        return [*lines, "", totals]


def _takeovers(
    histories: dict[str, tuple["RunRow", ...]], events: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Pairs of runs in the same stage: a vanished run, and the next run."""
    claims = {e["run"]: (e["fence"], e["logged_at"]) for e in events if e["event"] == "claimed"}
    found = []
    for ref, runs in histories.items():
        for before, after in itertools.pairwise(runs):
            if before.outcome != "vanished" or before.stage != after.stage:
                continue
            # A worker may die between its claim and the journal's line about the claim.
            old_fence, claimed_at = claims.get(before.run, (0, ""))
            fence, taken_at = claims.get(after.run, (0, ""))
            both = claimed_at and taken_at
            wait = parse_instant(taken_at) - parse_instant(claimed_at) if both else timedelta()
            found.append(
                {
                    "issue": ref,
                    "stage": before.stage,
                    "from": before.holder,
                    "old_fence": old_fence,
                    "by": after.holder,
                    "fence": fence,
                    "after_s": wait.total_seconds(),
                }
            )
    return found


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Draw]:
    """A live board on a terminal; elsewhere the new lines, followed by the counts of the stages."""
    if as_json or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        printed = 0

        def print_new(overview: "Overview", lines: list[str]) -> None:
            nonlocal printed
            for line in lines[printed:]:
                tell(line)
            if len(lines) > printed:
                counts = ", ".join(
                    f"{entry.stage.name} {entry.issues} ({entry.in_flight} in flight)"
                    for entry in overview.stages
                    if not entry.stage.final
                )
                tell(f"         {counts}")
            printed = len(lines)

        yield print_new
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from dibs.frontends.cli.operating import render

    with Live(console=Console(stderr=True), refresh_per_second=8) as live:

        def redraw(overview: "Overview", lines: list[str]) -> None:
            live.update(Group(render(overview, "dibs demo"), Text("\n".join(lines))))

        yield redraw
