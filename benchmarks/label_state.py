"""python -m benchmarks.label_state: what the published calls ask of GitHub, counted at the server.

A firing is a process of its own, as in a fleet that is started by schedule: what a process asks
once is in the count of its first call. Beside ours stand the published system's numbers, which were
counted at its own functions (see docs/guides/switch-from-label-state.md). Exits with 1 if a bound
is broken.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from benchmarks.tables import Check, Column, Result, Table, render
from dibs.core.granter import (
    CONTROL_BODY,
    CONTROL_LABEL,
    CONTROL_TITLE,
    Appointed,
    render_appointment,
)
from dibs.core.presets import EVERY, IMPLEMENT, IN_FLIGHT
from dibs.testing.clock import FakeClock
from dibs_lab.fakehub import FakeHub, Limits, Permission
from dibs_lab.fakehub.records import Repository

ORG, REPO = "acme", "shop"
NAME = f"{ORG}/{REPO}"
THEIRS = {
    "win": 20,
    "release": 10,
    "release elsewhere": 10,
    "refused": 2,
    "dedup check": 2,
    "sweep": 226,
}
MOST = {
    "win": 4,
    "release": 2,
    "release elsewhere": 4,
    "refused": 1,
    "dedup check": 1,
    "sweep": 4,
}
IN_USE, QUEUED, STALE = 20, 80, 3
CONFIGURATION = f"""
preset = "agent"
tracker = "github:{NAME}"
leases = "comments"
ttl = "4h"
settle = "50ms"
journal = ""
[github]
pace = false
"""
CALLS = f"""
import json, sys
import dibs.label_state as ls
for line in sys.stdin:
    name, number, told = json.loads(line)
    print(json.dumps(bool(getattr(ls, name)({REPO!r}, number, **told))), flush=True)
"""
LUCIUS = {"codename": "lucius", "firing_id": "20260501-194217-643a"}
ROBIN = {"codename": "robin", "firing_id": "20260501-194218-0001"}


@dataclass
class Place:
    hub: FakeHub
    clock: FakeClock
    folder: Path

    def __post_init__(self) -> None:
        self.hub.user("fleet")
        self.hub.repository(NAME)
        self.hub.state.grant(NAME, "fleet", Permission.WRITE)
        self._acting = self.hub.state.acting(self.hub.state.viewer("fleet-token"))
        for label in EVERY:
            self._acting.create_label(self._repository, label.name)
        self._acting.create_label(self._repository, CONTROL_LABEL)
        control = self._acting.create_issue(
            self._repository, CONTROL_TITLE, body=CONTROL_BODY, labels=(CONTROL_LABEL,)
        )
        self._acting.create_comment(control, render_appointment(Appointed("comments"), over=0))
        (self.folder / "dibs.toml").write_text(CONFIGURATION, "utf-8")

    @property
    def _repository(self) -> Repository:
        return self.hub.state.named(NAME)

    def issue(self, *labels: str) -> int:
        return int(self._acting.create_issue(self._repository, "One", labels=labels).number)

    def say(self, number: int, body: str) -> None:
        issue = self.hub.state.view().primary.issue(self._repository.id, number)
        self._acting.create_comment(issue, body)

    def calls(self, *asked: tuple[str, int, Mapping[str, object]]) -> list[tuple[bool, int]]:
        """One after the other in one process: each answer, and what the server was asked for it."""
        with subprocess.Popen(
            [sys.executable, "-c", CALLS],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None, "it was asked for"
            assert process.stdout is not None, "it was asked for"
            answers = []
            for call in asked:
                self.hub.counts.reset()
                process.stdin.write(json.dumps(call) + "\n")
                process.stdin.flush()
                answers.append((bool(json.loads(process.stdout.readline())), self._counted()))
            process.stdin.close()
        return answers

    def program(self, *words: str) -> tuple[dict[str, object], int]:
        self.hub.counts.reset()
        ran = subprocess.run(
            [sys.executable, "-m", "dibs.label_state", *words, "--json"],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return dict(json.loads(ran.stdout)), self._counted()

    def _counted(self) -> int:
        return int(self.hub.counts.told()["requests"])

    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "GITHUB_API_URL": self.hub.url,
            "GITHUB_TOKEN": "fleet-token",
            "GH_ORG": ORG,
            "DIBS_STATE": str(self.folder / "state"),
            "ALFRED_HOME": str(self.folder / "alfred"),
        }


@contextmanager
def place() -> Iterator[Place]:
    clock = FakeClock(grain=timedelta(seconds=1))
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeHub(limits=Limits.off(), clock=clock.server_now) as hub,
    ):
        yield Place(hub, clock, Path(folder))


def measure() -> dict[str, int]:
    """Requests for each call, as the server counted them."""
    asked: dict[str, int] = {}
    with place() as here:
        first, second = here.issue(IMPLEMENT), here.issue(IMPLEMENT)
        release = ("release_issue", {**LUCIUS, "transition_to": "agent:pr-open"})
        (won, asked["win"]), (told, asked["release"]) = here.calls(
            ("claim_issue", first, LUCIUS), (release[0], first, release[1])
        )
        assert (won, told) == (True, True), "each call has its answer"
        ((won, _),) = here.calls(("claim_issue", second, LUCIUS))
        (refused, asked["refused"]), (_, asked["dedup check"]) = here.calls(
            ("claim_issue", second, ROBIN), ("issue_dedup_check", second, {})
        )
        ((told, asked["release elsewhere"]),) = here.calls((release[0], second, release[1]))
        assert (won, refused, told) == (True, False, True), "each call has its answer"
    with place() as here:
        asked["sweep"] = _sweep(here)
    return asked


def _sweep(here: Place) -> int:
    """Twenty in flight, three of them stale, and eighty in the queue: the published case."""
    for turn in range(STALE):
        _in_flight(here, f"stale-{turn}")
    here.clock.advance(5 * 3600)
    for turn in range(IN_USE - STALE):
        _in_flight(here, f"fresh-{turn}")
    for _ in range(QUEUED):
        here.issue(IMPLEMENT)
    told, asked = here.program("sweep-claims", "--repo", REPO)
    claims = told["claims"]
    assert isinstance(claims, list), told
    assert [row["released"] for row in claims] == ["yes"] * STALE, claims
    return asked


def _in_flight(here: Place, codename: str) -> None:
    number = here.issue(IN_FLIGHT)
    here.say(number, f"<!-- agent-claim:codename={codename} firing_id=f1 ts=now -->")


def run() -> Result:
    asked = measure()
    result = Result("HTTP requests of the published calls, each firing a process of its own")
    columns = (Column("call"), Column("published"), Column("ours"), Column("bound"))
    rows = tuple((name, THEIRS[name], asked[name], MOST[name]) for name in MOST)
    result.tables.append(Table("counted at the server", columns, rows))
    result.notes.append(
        f"sweep: {IN_USE} in flight, {STALE} of them stale and released, {QUEUED} queued.\n"
        "release: by the process that claimed; elsewhere: by another one, which reads first.\n"
        "published: with a fresh process, up to a hundred comments and labels."
    )
    result.checks += [
        Check(f"{name}: {asked[name]} of at most {most}", asked[name] <= most)
        for name, most in MOST.items()
    ]
    return result


def main() -> int:
    result = run()
    print(render(result))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
