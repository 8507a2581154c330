"""A host of pull requests that is a folder: real enough to be shared by processes that die.

Every request is counted in a file, and every pull request is one, so a test sees what reached the
host whatever became of who asked.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict, replace

from dibs.core.errors import Unavailable
from dibs.worktrees import PullRequest, PullState


class FileHost:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.broken: set[str] = set()
        """Repositories that do not answer."""
        self.deaf: set[str] = set()
        """Repositories that do what they are asked, and whose answer is lost."""

    def _count(self, what: str) -> None:
        with (self.folder / "requests").open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    @property
    def requests(self) -> list[str]:
        path = self.folder / "requests"
        return path.read_text("utf-8").split("\n")[:-1] if path.exists() else []

    def _asked(self, what: str, repo: str) -> None:
        self._count(f"{what} {repo}")
        if repo in self.broken:
            raise Unavailable(f"{repo} does not answer")

    def pulls(self, repo: str | None = None) -> list[PullRequest]:
        read = [json.loads(one.read_text("utf-8")) for one in sorted(self.folder.glob("*.json"))]
        found = [
            PullRequest(
                **{**one, "state": PullState(one["state"]), "labels": frozenset(one["labels"])}
            )
            for one in read
        ]
        return [one for one in found if repo in (None, one.repo)]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05}.json"

    def write(self, pull: PullRequest) -> None:
        part = self.folder / f".{os.getpid()}.part"
        part.write_text(json.dumps({**asdict(pull), "labels": sorted(pull.labels)}), "utf-8")
        part.replace(self._path(pull.number))

    def find(self, repo: str, *, head: str) -> list[PullRequest]:
        self._asked("find", repo)
        return [one for one in reversed(self.pulls(repo)) if one.head == head]

    def create(self, repo: str, *, title: str, body: str, head: str, base: str) -> PullRequest:
        self._asked("create", repo)
        base = base or "main"
        for one in self.pulls(repo):
            if (one.head, one.base, one.state) == (head, base, PullState.OPEN):
                return one
        number = len(self.pulls()) + 1
        url = f"https://host/{repo}/pull/{number}"
        made = PullRequest(repo, number, url, head, base, body)
        self.write(made)
        if repo in self.deaf:
            self.deaf.remove(repo)
            raise Unavailable(f"{repo}: the answer was lost")
        return made

    def add_labels(self, pull: PullRequest, labels: Sequence[str]) -> None:
        self._asked("label", pull.repo)
        self.write(replace(pull, labels=pull.labels | set(labels)))

    def edit_body(self, pull: PullRequest, *, body: str) -> None:
        self._asked("edit", pull.repo)
        self.write(replace(pull, body=body))
