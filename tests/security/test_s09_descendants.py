"""Actor: a handler, or a tool that it starts.

Attack: it leaves a process in a session of its own, deaf to SIGTERM, which goes on with the work
when the lease is over: after the handler's exit, after a stop, after the death of the worker.
Wall: the warden adopts what the handler's processes leave behind, and kills it until none is left.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dibs.adapters.runners import warden
from dibs.adapters.system import SystemClock

from .conftest import PROGRAM, Victim
from .handlers import serve, work

DEAF = """trap "" TERM HUP INT; echo $$ >> pids; while :; do sleep 0.05; done"""
# Each process starts the next and ends: none is there for long enough to be found and killed.
CHAIN = """\
test -e stop && exit
echo $$ >> pids
test $1 -gt 5000 || setsid sh ./chain.sh $(($1 + 1)) &
"""
LEFT = {
    "setsid": f"setsid sh -c '{DEAF}' &",
    "double fork": f"(setsid sh -c '(setsid sh -c \"$0\" &) ; exit 0' '{DEAF}' &)",
    "nohup": f"nohup sh -c '{DEAF}' > /dev/null 2>&1 &",
    "a chain": f"echo '{CHAIN}' > chain.sh; setsid sh ./chain.sh 0 &",
}
WAIT = "until test -s pids; do sleep 0.02; done\n"
NO_ADOPTION = """\
import pathlib, dibs.adapters.runners.process as process
process.__file__ = str(pathlib.Path({folder!r}) / "process.py")
"""


def _alive(pids: Path) -> list[int]:
    found = []
    for pid in map(int, pids.read_text().split()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


@pytest.fixture
def pids(victim: Victim):
    """The file in which the strays write their ids. Ends them."""
    path = victim.folder / "pids"
    yield path
    (victim.folder / "stop").touch()
    for pid in _alive(path) if path.exists() else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _until_none_is_left(pids: Path) -> bool:
    clock = SystemClock()
    deadline = clock.now() + 30
    while (left := _alive(pids)) and clock.now() < deadline:
        clock.sleep(0.02)
    return not left


@pytest.mark.parametrize("how", LEFT)
def test_what_a_handler_leaves_is_over_when_its_run_is(victim, pids, how: str) -> None:
    serve(victim, f"{LEFT[how]}\n{WAIT}exit 0")
    done = work(victim)
    assert "advanced" in done.stdout + done.stderr
    count = len(pids.read_text().split())
    SystemClock().sleep(0.2)  # a chain that goes on would be longer by now
    assert (_alive(pids), len(pids.read_text().split())) == ([], count)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_a_worker_that_is_ended(victim, pids, number: int) -> None:
    serve(victim, f"{LEFT['setsid']}\n{WAIT}sleep 600", 'ttl = "10m"')
    worker = subprocess.Popen(
        [PROGRAM, "work", "--once", "--grace", "0s"],
        cwd=victim.folder,
        env=victim.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    clock = SystemClock()
    deadline = clock.now() + 60
    while not (pids.exists() and pids.read_text()) and clock.now() < deadline:
        clock.sleep(0.02)
    worker.send_signal(number)
    worker.wait(60)
    assert _until_none_is_left(pids)


def test_a_handler_that_kills_its_warden_ends_with_it(victim, pids) -> None:
    """What it had put into other sessions before goes on: that is a matter for `run_as`."""
    serve(victim, "echo $$ >> pids\nkill -KILL $PPID\nwhile :; do sleep 0.05; done")
    done = work(victim)
    assert "its warden died" in done.stdout + done.stderr
    assert _until_none_is_left(pids)


def test_a_reason_that_begins_with_kill_is_no_order_to_kill(victim, pids) -> None:
    """`stop kill switch`, as a person's reason may be, leaves the time to clean up."""
    (orders, worker), (heard, told) = os.pipe(), os.pipe()
    handler = (
        f"trap 'echo cleaned > {victim.folder}/cleaned; exit 0' TERM; echo up; sleep 600 & wait"
    )
    words = [
        str(orders),
        str(told),
        "20",
        str(SystemClock().now() + 600),
        "-1",
        "-1",
        "0",
        "",
        "--",
    ]
    started = subprocess.Popen(
        [sys.executable, "-I", "-S", warden.__file__, *words, "sh", "-c", handler],
        pass_fds=(orders, told),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"up\n"
    os.write(worker, b"stop kill switch\n")
    started.wait(60)
    started.stdout.close()
    for number in (orders, worker, told):
        os.close(number)
    assert (victim.folder / "cleaned").exists()
    with os.fdopen(heard, "rb") as status:
        assert status.read().splitlines()[-1] == b"stopped kill switch"


def test_control_without_adoption_it_goes_on(victim, pids, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    source = Path(warden.__file__).read_text("utf-8")
    assert source.count("_prctl(_SET_SUBREAPER, 1)") == 1
    source = source.replace("_prctl(_SET_SUBREAPER, 1)", "pass")
    (folder / "warden.py").write_text(source, "utf-8")
    serve(victim, f"{LEFT['double fork']}\n{WAIT}exit 0")
    work(victim, without=NO_ADOPTION.format(folder=str(folder)))
    assert _alive(pids) != []
