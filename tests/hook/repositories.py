"""Real repositories, real worktrees, real pushes to bare remotes on this disk."""

import os
import subprocess
from pathlib import Path

from tests.in_process import run_in_process

from dibs.frontends.cli.main import run

_OURS = ("DIBS_", "GITHUB_", "GH_", "GIT_", "LABEL_STATE_")


class Pushed:
    """How a git command ended, and what was said on the way."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def went_out(self):
        assert "Traceback" not in self.err, self.err
        return self.code == 0

    def refused(self, *words):
        """Refused by us, in these words."""
        assert self.code != 0, self.err
        assert "the push is refused" in self.err, self.err
        for word in words:
            assert word in self.err, (word, self.err)
        return True


class Clone:
    """A working tree and what git needs to work in it, away from this machine's own settings."""

    def __init__(self, folder: Path, home: Path, **environment: str) -> None:
        self.folder = folder
        self.home = home
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(_OURS)},
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Ann",
            "GIT_AUTHOR_EMAIL": "ann@acme.example",
            "GIT_COMMITTER_NAME": "Ann",
            "GIT_COMMITTER_EMAIL": "ann@acme.example",
            "DIBS_ACTOR": "ann",
            **environment,
        }

    @classmethod
    def made(cls, folder: Path, **environment: str) -> "Clone":
        """A repository with one commit, pushed to a bare remote beside it."""
        home = folder / "home"
        home.mkdir(parents=True)
        bare, tree = folder / "acme" / "shop.git", folder / "tree"
        tree.mkdir()
        clone = cls(tree, home, **environment)
        clone.git("init", "--quiet", "--bare", "--initial-branch=main", str(bare), cwd=folder)
        clone.git("init", "--quiet", "--initial-branch=main")
        clone.git("remote", "add", "origin", str(bare))
        clone.commit("Begin")
        assert clone.push("main").went_out
        return clone

    @property
    def remote(self) -> Path:
        return self.home.parent / "acme" / "shop.git"

    def beside(self, folder: Path, **environment: str) -> "Clone":
        """The same person in another folder."""
        return Clone(folder, self.home, **{**_told(self.environment), **environment})

    def run(self, *words, cwd=None, given=None, **environment):
        ran = subprocess.run(
            [str(word) for word in words],
            cwd=cwd or self.folder,
            env={**self.environment, **environment},
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            timeout=60,
            check=False,
        )
        out, err = (told.decode("utf-8", "replace") for told in (ran.stdout, ran.stderr))
        return Pushed(ran.returncode, out, err)

    def git(self, *words, cwd=None, **environment):
        done = self.run("git", *words, cwd=cwd, **environment)
        assert done.code == 0, (words, done.err)
        return done.out.strip()

    def dibs(self, *words, given=None, **environment):
        words = [str(word) for word in words]
        env = {**self.environment, **environment}
        return Pushed(*run_in_process(run, words, cwd=self.folder, env=env, given=given or b""))

    def commit(self, message, *options):
        """An empty commit. A message of bytes is written as it is."""
        text = self.home / "message"
        text.write_bytes(message if isinstance(message, bytes) else message.encode())
        self.git("commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "-F", text, *options)
        return self.git("rev-parse", "HEAD")

    def push(self, *words, remote="origin", **environment):
        return self.run("git", "push", "--quiet", remote, *words, **environment)

    def worktree(self, name, *words) -> "Clone":
        folder = self.home.parent / name
        self.git("worktree", "add", "--quiet", folder, *words)
        return self.beside(folder)

    def write(self, name, text, *, mode=None):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if mode is not None:
            path.chmod(mode)
        return path


def _told(environment):
    return {key: value for key, value in environment.items() if key.startswith(_OURS)}
