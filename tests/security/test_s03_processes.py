"""Actor: a handler that runs as the user of its worker.

Attack: it reads /proc/PID/environ and /proc/PID/fd of its worker and of its warden, where the
tokens and the signing key are, and the pipes by which the warden is ordered.
Wall: worker and warden are not dumpable, so the kernel shuts these files to their own user; a
worker before it imports anything that takes time.
"""

import pytest

from .conftest import SECRETS, Victim
from .handlers import POWERLESS, needs_powerless, printed, serve, work

LOOT = """\
pid=$PPID
while test "$pid" -gt 1; do
    tr '\\0' '\\n' < "/proc/$pid/environ" 2>/dev/null
    ancestors="$ancestors $pid"
    pid=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$pid/status)
done
set -- $ancestors
for pid in $1 $2; do
    ls -l /proc/$pid/fd 2>/dev/null | grep -q pipe && echo OPEN-FILES-OF-$pid
    cat /proc/$pid/maps 2>/dev/null | head -c 100
    test -r /proc/$pid/mem && (: < /proc/$pid/mem) 2>/dev/null && echo MEMORY-OF-$pid
done
exit 0
"""
DUMPABLE = """\
import dibs.adapters.runners.warden as warden
warden.shut_process = lambda: None
"""

# Looks into the program from another process, at the moment at which its own code begins to load.
LOOKED_AT = """\
import os, subprocess, sys
class Look:
    def find_spec(self, name, *_):
        if name == "dibs.frontends":
            with open("looked", "wb") as out:
                subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], stdout=out)
sys.meta_path.insert(0, Look())
"""


def _stolen(victim: Victim) -> set[str]:
    return {name for name, secret in SECRETS.items() if secret.encode() in printed(victim)}


@needs_powerless
def test_no_secret_of_the_worker_is_read_from_its_process(victim: Victim) -> None:
    serve(victim, LOOT)
    done = work(victim, before=POWERLESS)
    assert done.returncode == 0, done.stderr
    assert _stolen(victim) == set()


@needs_powerless
def test_the_memory_and_the_open_files_of_worker_and_warden_are_shut(victim: Victim) -> None:
    """By the warden's pipes a handler could say that it exited with 0, or extend its own time."""
    serve(victim, LOOT)
    work(victim, before=POWERLESS)
    assert b"OPEN-FILES-OF" not in printed(victim)
    assert b"MEMORY-OF" not in printed(victim)


@needs_powerless
def test_control_a_worker_that_is_dumpable_is_read(victim: Victim) -> None:
    serve(victim, LOOT)
    work(victim, before=POWERLESS, without=DUMPABLE)
    assert _stolen(victim) == set(SECRETS)
    assert b"OPEN-FILES-OF" in printed(victim)


COMMANDS = [
    ("work", "--once"),
    ("--json", "hold", "door", "--", "true"),
    ("claim", "1", "--exec", "--", "true"),
    ("keep", "0123456789ab", "--", "true"),
    ("loop", "often", "--once"),
    ("listen", "--port", "none"),
    ("status", "--watch", "--help"),
    ("claim", "1", "--wait", "1s"),
    ("take", "1", "--wait=1s"),
]


@needs_powerless
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("without", ["", DUMPABLE], ids=["wall", "control"])
def test_a_command_shuts_itself_before_it_loads(
    victim: Victim, words: tuple[str, ...], without: str
) -> None:
    """A handler of another worker of the user waits for this one to start."""
    serve(victim, "exit 0")
    work(victim, *words, before=POWERLESS, without=f"{without}{LOOKED_AT}")
    looked = (victim.folder / "looked").read_bytes()
    stolen = {name for name, secret in SECRETS.items() if secret.encode() in looked}
    assert stolen == (set(SECRETS) if without else set())


@needs_powerless
@pytest.mark.parametrize("verb", [("hold", "door"), ("claim", "1", "--exec")])
def test_commands_that_a_person_types_cannot_read_it_either(
    victim: Victim, verb: tuple[str, ...]
) -> None:
    serve(victim, "exit 0")
    loot = victim.folder / "loot.sh"
    loot.write_text(LOOT, "utf-8")
    done = work(victim, "--json", *verb, "--", "sh", "./loot.sh", before=POWERLESS)
    assert done.returncode == 0, done.stderr
    assert _stolen(victim) & {"SLACK_BOT_TOKEN", "GITHUB_TOKEN", "DIBS_SIGNING_KEY"} == set()
