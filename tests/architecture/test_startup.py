"""The program starts fast because it imports late; these tests look at what, not at how long."""

import json
import subprocess
import sys
import tomllib

import click
import pytest

import dibs
from dibs.__main__ import SHUT
from dibs.frontends.cli.main import COMMANDS, LONG_RUNNING, cli

from .pages import ROOT

# What every command on the embedded backlog loads.
BACKLOG = {
    "dibs": "_version",
    "dibs.adapters": "system",
    "dibs.adapters.memory": "control",
    "dibs.adapters.sqlite": "control database leases tracker",
    "dibs.core": """
        agent_dialect card durations eligibility errors events fold following foreign granter grants
        ids issue labels lease marker named pipeline presets references""",
    "dibs.frontends": "",
    "dibs.frontends.cli": "context main output",
    "dibs.ports": "leases system tracker",
    "dibs.services": "backlog effects reading shown_leases",
    "dibs.settings": "load",
    "dibs.wiring": "services trackers",
}
BOARD = {"dibs.services": "board scanning"}
GRANTS = {"dibs.frontends.cli": "leasing", "dibs.services": "claiming resuming"}
NOTES = {"dibs.hook": "run_files"}
# What each of these loads besides; a module more makes every call of the command slower.
ALSO = {
    "list": [BOARD, {"dibs.frontends.cli": "issues"}],
    "status": [BOARD, {"dibs.frontends.cli": "operating", "dibs.services": "claiming"}],
    "claim 2": [GRANTS, NOTES],
    "claim --next": [GRANTS, NOTES, BOARD],
    "heartbeat 1": [GRANTS, {"dibs.services": "keeping"}],
}
# Of the standard library and of others: what costs a millisecond or more and is not needed here.
COSTLY = {
    *("asyncio", "dataclasses", "difflib", "getpass", "hashlib", "importlib.metadata", "json"),
    *("logging", "random", "rich", "secrets", "shutil", "socket", "subprocess", "tempfile"),
}
HEAVY = {
    "asyncio",
    "click",
    "dibs.api",
    "dibs.settings.load",
    "dibs.wiring.services",
    "msgspec",
    "rich",
    "sqlite3",
}
_TELL = "sys.stderr.write('\\n'.join(sys.modules))"


def _modules_after(arguments: list[str], folder) -> tuple[str, set[str]]:
    """Run the program in a fresh interpreter; what it printed, and what it had imported then."""
    code = (
        "import sys\n"
        "from dibs.frontends.cli.main import run\n"
        f"assert run({arguments!r}) == 0\n"
        f"{_TELL}\n"
    )
    return _after(code, folder)


def _after(code: str, folder) -> tuple[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, set(done.stderr.splitlines())


def _names(packages: dict[str, str]) -> set[str]:
    return {
        name
        for package, modules in packages.items()
        for name in (package, *(f"{package}.{module}" for module in modules.split()))
    }


@pytest.mark.parametrize("command", ALSO)
def test_commands_import_only_what_they_need(command, tmp_path):
    _modules_after(["init"], tmp_path)
    _modules_after(["add", "one", "two"], tmp_path)
    arguments = command.split()
    if arguments[0] == "heartbeat":
        claimed, _ = _modules_after(["claim", "1", "--json"], tmp_path)
        arguments += ["--run", json.loads(claimed)["data"]["run"]]
    _, modules = _modules_after(arguments, tmp_path)
    allowed = _names(BACKLOG).union(*map(_names, ALSO[command]))
    assert {name for name in modules if name.split(".")[0] == "dibs"} - allowed == set()
    assert modules & COSTLY == set()


def test_help_imports_no_command(tmp_path):
    _, modules = _modules_after(["--help"], tmp_path)
    assert {name for name in modules if name.split(".")[0] == "dibs"} == {
        *("dibs", "dibs._version", "dibs.frontends", "dibs.frontends.cli"),
        "dibs.frontends.cli.main",
    }
    assert modules & {"msgspec", "pathlib", "logging"} == set()


def test_what_help_says_of_a_command_is_what_the_command_says():
    context = click.Context(cli)
    for name, (_, about) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command.get_short_help_str(200) == about, name


def test_commands_that_run_long_are_commands_and_shut_themselves():
    assert COMMANDS.keys() >= LONG_RUNNING
    assert SHUT - {"--exec", "--watch", "--wait", "doctor"} == LONG_RUNNING


def test_short_commands_do_not_pay_for_the_shutting(tmp_path):
    asked = "import sys; sys.argv = ['dibs', 'list', '--help']\nfrom dibs import __main__"
    code = f"{asked}\n__main__.leave = lambda _: None\n__main__.main()\n{_TELL}"
    _, modules = _after(code, tmp_path)
    assert modules & {"ctypes", "dibs.adapters.runners"} == set()


def test_the_version_is_printed_without_importing_anything(tmp_path):
    asked = "import sys; sys.argv = ['dibs', '--version']\nfrom dibs.__main__ import main"
    code = f"{asked}\nmain()\n{_TELL}"
    said, modules = _after(code, tmp_path)
    assert said == f"dibs {dibs.__version__}\n"
    assert modules & HEAVY == set()
    assert {name for name in modules if name.startswith("dibs")} <= {
        "dibs",
        "dibs.__main__",
        "dibs._version",
    }


def test_both_ways_to_print_the_version_agree(tmp_path):
    slow, _ = _modules_after(["-v", "--version"], tmp_path)
    assert slow == f"dibs {dibs.__version__}\n"


def test_importing_the_package_imports_nothing_of_it(tmp_path):
    _, modules = _after(f"import sys, dibs; {_TELL}", tmp_path)
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["add", "one"], ["why", "1"], ["config", "show"]], ids=str
)
def test_ordinary_commands_do_not_import_what_draws(arguments, tmp_path):
    if arguments[0] in ("list", "why"):
        _modules_after(["add", "one"], tmp_path)
    _, modules = _modules_after(arguments, tmp_path)
    assert {name for name in modules if name.split(".")[0] in ("rich", "asyncio")} == set()


def test_help_touches_nothing(tmp_path):
    for arguments in (["--help"], ["work", "--help"], ["config", "show"], ["config", "schema"]):
        _modules_after(arguments, tmp_path)
    assert list(tmp_path.iterdir()) == []


# How it ends


@pytest.mark.parametrize("code", [0, 3])
def test_the_process_ends_with_the_answer_written_and_its_exit_functions_run(code, tmp_path):
    program = (
        "import atexit, sys\n"
        "from dibs.__main__ import leave\n"
        "atexit.register(print, 'at exit')\n"
        f"sys.stdout.write('answer\\n')\nleave({code})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "answer\nat exit\n", "")


@pytest.mark.parametrize("closed", ["2>&-", ">&-"])
def test_a_stream_that_the_caller_closed_is_no_failure(closed, tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m dibs --help {closed}",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


def test_garbage_is_collected_again_once_a_backlog_is_open(tmp_path):
    code = (
        "import gc, sys\n"
        "gc.disable()\n"
        "from dibs.frontends.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "assert not gc.isenabled()\n"
        "assert run(['add', 'one']) == 0\n"
        "assert gc.isenabled()\n"
    )
    _after(code, tmp_path)


def test_a_thread_that_is_left_is_waited_for(tmp_path):
    code = (
        "import threading\n"
        "from dibs.__main__ import leave\n"
        "go = threading.Event()\n"
        "def late():\n    go.wait(30)\n    print('late')\n"
        "threading.Thread(target=late).start()\n"
        "go.set()\nleave(0)"
    )
    said, _ = _after(code, tmp_path)
    assert said == "late\n"


def test_the_base_install_stays_small():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needs = {line.split(">")[0] for line in project["project"]["dependencies"]}
    assert needs == {"click", "msgspec", "rich"}
    assert project["build-system"]["build-backend"] == "hatchling.build"
