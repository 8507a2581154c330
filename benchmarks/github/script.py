"""The same by a shell script that claims with labels and comments, over the real gh."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.github.hub import REPOSITORY, TOKEN, backlog, serving
from benchmarks.tables import Check, Column, Result, Table

SCRIPT = Path(__file__).with_name("labels_as_locks.sh")
_ROUND_S = 120.0


def run(*, say: Callable[[str], None], quick: bool = False) -> Result:
    issues = 3 if quick else 10
    result = Result("The same by a shell script that claims with labels and comments over gh")
    with tempfile.TemporaryDirectory() as folder, serving(backlog(issues)) as hub:
        around = environment(hub.url, Path(folder))
        hub.reset()
        said = [round_of(around) for _ in range(issues)]
        asked = hub.asked()
    done = sum(line.startswith("done") for line in said)
    say(f"the script worked {done} issues")
    columns = (
        Column("issues"),
        Column("requests an issue", ".1f"),
        Column("comments an issue", ".1f"),
    )
    row = (done, asked.requests / max(done, 1), asked.comments / max(done, 1))
    result.tables.append(Table("at the server", columns, (row,)))
    result.checks.append(Check(f"the script worked {done} of {issues}", done == issues))
    return result


def environment(url: str, folder: Path) -> dict[str, str]:
    """How gh is pointed at a server on loopback: as its proxy, over plain HTTP."""
    program = shutil.which(
        "gh", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    assert program is not None, "gh comes with the extra dev"
    return {
        "PATH": os.pathsep.join((str(Path(program).parent), os.environ["PATH"])),
        "HOME": str(folder),
        "GH_CONFIG_DIR": str(folder / "gh"),
        "GH_HOST": "github.localhost",
        "GH_TOKEN": TOKEN,
        "GH_NO_UPDATE_NOTIFIER": "1",
        "HTTP_PROXY": f"http://{urlsplit(url).netloc}",
        "REPO": f"github.localhost/{REPOSITORY}",
    }


def round_of(around: dict[str, str]) -> str:
    ended = subprocess.run(
        ["bash", str(SCRIPT)],
        env=around,
        capture_output=True,
        text=True,
        timeout=_ROUND_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
