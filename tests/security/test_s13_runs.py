"""Actor: another user of the machine.

Attack: it reads what handlers printed, in .dibs/runs, where agents print secrets.
Wall: the folder of a run is open to its own user only, whatever the umask.
"""

import stat
import subprocess
from pathlib import Path

from .conftest import Victim
from .handlers import needs_root, run_folder, serve, work


def test_the_files_of_a_run_are_its_users_alone(victim: Victim) -> None:
    serve(victim, 'echo said\necho null > "$DIBS_RESULT"', "ttl = '10m'")
    work(victim, before=("sh", "-c", 'umask 000; exec "$@"', "sh"))
    folder = run_folder(victim)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    modes.pop("result.json")  # the handler's own file
    assert set(modes) == {"issue.json", "output.log", "exit"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def _read_by_another_user(place: Path) -> bytes:
    given_up = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command = [*given_up, "sh", "-c", "cat .dibs/runs/*/output.log"]
    return subprocess.run(command, cwd=place, capture_output=True, check=False).stdout


@needs_root
def test_another_user_reads_none_of_it(reachable: Victim) -> None:
    serve(reachable, "echo said")
    work(reachable)
    assert _read_by_another_user(reachable.folder) == b""


@needs_root
def test_control_another_user_reads_what_its_owner_opens(reachable: Victim) -> None:
    serve(reachable, "echo said")
    work(reachable)
    log = run_folder(reachable) / "output.log"
    for place in (log, *log.parents[:3]):
        place.chmod(0o755)
    assert _read_by_another_user(reachable.folder) == b"said\n"
