"""Bare repositories for tests, alone and untouched by the settings of whoever runs them."""

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "test",
    "GIT_AUTHOR_EMAIL": "test@localhost",
    "GIT_COMMITTER_NAME": "test",
    "GIT_COMMITTER_EMAIL": "test@localhost",
}
ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **_IDENTITY}


def git(where: Path, *words: str, given: str = "", check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", str(where), *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=check,
        env={**os.environ, **ALONE},
    )
    return done.stdout.strip()


def bare_repository(where: Path) -> Path:
    """As a server keeps one: with a first commit, and pushes over HTTP allowed."""
    shutil.copytree(_template(), where)
    return where


@cache
def _template() -> Path:
    where = Path(tempfile.mkdtemp(prefix="dibs-git-template-"))
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    git(where, "init", "--quiet", "--bare", "--initial-branch=main", "--template=")
    for setting in ("gc.auto=0", "receive.autogc=false", "http.receivepack=true"):
        git(where, "config", *setting.split("="))
    blob = git(where, "hash-object", "-w", "--stdin", given="a shop\n")
    tree = git(where, "mktree", given=f"100644 blob {blob}\tREADME\n")
    git(where, "update-ref", "refs/heads/main", git(where, "commit-tree", tree, "-m", "first"))
    return where
