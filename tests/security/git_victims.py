"""A worker with a stage that has a worktree, for attacks by way of git."""

import json
import os
import subprocess
from pathlib import Path

from tests.security.conftest import Victim

ALONE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "test",
    "GIT_AUTHOR_EMAIL": "test@localhost",
    "GIT_COMMITTER_NAME": "test",
    "GIT_COMMITTER_EMAIL": "test@localhost",
}
_PIPELINE = """
preset = "none"
[worker]
poll = "100ms"
sweep = "200ms"
[[stage]]
name = "ready"
next = "done"
ttl = "60s"
attempts = 1
worktree = "shop"
run = '''{run}'''
[[stage]]
name = "done"
closes = true
"""


def git(where: Path, *words: str, given: bytes = b"") -> str:
    done = subprocess.run(
        ["git", "-C", str(where), *words],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **ALONE},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "replace").strip()


def remote_repository(place: Path, files: dict[str, str]) -> Path:
    """A bare repository with one commit, as somebody else pushed it."""
    made = place.with_suffix(".made")
    made.mkdir(parents=True)
    git(made, "init", "--quiet", "--initial-branch=main")
    (made / ".git/info/attributes").write_text("* -filter -working-tree-encoding\n")
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    git(made, "add", "--all", "--force")
    git(made, "commit", "--quiet", "-m", "first")
    git(made, "clone", "--quiet", "--bare", str(made), str(place))
    return place


def begin(victim: Victim, run: str, *titles: str, remote: Path | None = None) -> Path:
    """A clone, a pipeline with a handler, and an issue for each title; returns the clone."""
    victim.env |= ALONE
    base = victim.home.parent
    remote = remote or remote_repository(base / "shop.git", {"README": "a shop\n"})
    clone = victim.folder / "shop"
    git(base, "clone", "--quiet", "--no-checkout", str(remote), str(clone))
    victim.configure(_PIPELINE.format(run=run))
    for title in titles:
        added = victim.dibs("add", title)
        assert added.returncode == 0, added.stderr
    return clone


def worked(victim: Victim) -> set[str]:
    """The titles of the issues that went through the stage."""
    listed = json.loads(victim.dibs("list", "--all", "--json").stdout)
    return {one["title"] for one in listed["data"] if one["stage"] == "done"}
