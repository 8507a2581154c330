"""A self-driving agent: claims, renews, works and releases until a file appears.

    agent.py NAME STOP COMMANDS

COMMANDS is a JSON list of command lines. RUN and ISSUE in them are replaced by what the claim
answered, COMMAND by the agent's work: a line in the ledger. The agent notes in the file NAME which
run it holds, so that a test can kill it then. It does what `dibs prime` says of exit codes: 3 claim
again, 5 stop and claim again; any other failure ends it.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

NOTHING, LOST = 3, 5
WORK = 'sleep 0.2; echo "$DIBS_ISSUE $DIBS_RUN" >> "{ledger}"'


def main(name: str, stop: str, commands: str) -> int:
    state = Path(name)
    claim, *rest = [shlex.split(line) for line in json.loads(commands)]
    ledger = Path(stop).parent / "ledger"
    while not Path(stop).exists():
        claimed = _dibs([*claim, "--as", state.name])
        if claimed.returncode == NOTHING:
            continue
        if claimed.returncode:
            return _broken(claimed)
        lease = json.loads(claimed.stdout)["data"]
        state.write_text(lease["run"])
        work = ["sh", "-c", WORK.format(ledger=ledger)]
        filled = {"RUN": [lease["run"]], "ISSUE": [lease["issue"]], "COMMAND": work}
        for line in rest:
            words = [word for given in line for word in filled.get(given, [given])]
            done = _dibs(words)
            if done.returncode == LOST:
                break
            if done.returncode:
                return _broken(done)
        state.write_text("")
    return 0


def _dibs(words: list[str]) -> subprocess.CompletedProcess[str]:
    assert words[0] == "dibs", words
    argv = [sys.executable, "-m", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)


def _broken(done: subprocess.CompletedProcess[str]) -> int:
    sys.stderr.write(f"{done.args} exited with {done.returncode}: {done.stdout}{done.stderr}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
