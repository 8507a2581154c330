"""The fake in a process of its own, filled with a backlog, and its counts."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = "acme/shop"
TOKEN = "fleet-token"
LABELS = (
    "stage:ready",
    "stage:review",
    "stage:done",
    "claimed",
    "paused",
    "parked",
    "dibs:control",
)
_NO_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the server was asked since the last reset."""

    told: Mapping[str, Any]

    @property
    def requests(self) -> int:
        return int(self.told["requests"])

    @property
    def free(self) -> int:
        """Answered with "not modified", which costs nothing."""
        return int(self.told["not_modified"])

    @property
    def points(self) -> int:
        return sum(self.told["points"].values())

    @property
    def comments(self) -> int:
        return int(self.told["created"].get("issue_comment", 0))

    def of(self, *kinds: str) -> int:
        """Requests whose kind ends in one of these."""
        return sum(count for kind, count in self.told["by_kind"].items() if kind.endswith(kinds))


class Hub:
    def __init__(self, url: str) -> None:
        self.url = url
        self._door = httpx.Client(base_url=url, timeout=_NO_WAIT)

    def reset(self) -> None:
        self._door.delete("/_fakehub/counts").raise_for_status()

    def asked(self) -> Asked:
        return Asked(self._door.get("/_fakehub/counts").raise_for_status().json())

    def environment(self, state: Path) -> dict[str, str]:
        """For a process of ours that talks to it."""
        return {"GITHUB_API_URL": self.url, "GITHUB_TOKEN": TOKEN, "DIBS_STATE": str(state)}

    def close(self) -> None:
        self._door.close()


def backlog(ready: int, review: int = 0) -> list[dict[str, Any]]:
    """So many issues in the two stages, nobody's."""
    stages = ["stage:ready"] * ready + ["stage:review"] * review
    return [{"title": f"Issue {place}", "labels": [label]} for place, label in enumerate(stages)]


@contextmanager
def serving(issues: Sequence[Mapping[str, Any]]) -> Iterator[Hub]:
    world = {
        "users": [{"login": "fleet"}],
        "repositories": [
            {
                "full_name": REPOSITORY,
                "permissions": {"fleet": "write"},
                "labels": [{"name": label} for label in LABELS],
                "issues": list(issues),
            }
        ],
        "tokens": [{"token": TOKEN, "login": "fleet"}],
    }
    with tempfile.TemporaryDirectory() as folder:
        seed = Path(folder) / "world.json"
        seed.write_text(json.dumps(world), "utf-8")
        words = ["-m", "dibs_lab.fakehub", "--limits", "off", "--seed", str(seed)]
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert process.stdout is not None, "it was asked for"
        try:
            line = process.stdout.readline()
            hub = Hub(line.strip().partition("=")[2])
            try:
                yield hub
            finally:
                hub.close()
        finally:
            process.terminate()
            process.wait(_NO_WAIT)
            process.stdout.close()
