"""The program starts fast because it imports late; these tests look at what, not at how long."""

import json
import subprocess
import sys
import tomllib

import pytest

import dibs

from .pages import ROOT

HEAVY = {"asyncio", "click", "dibs.api", "dibs.config", "dibs.wiring", "msgspec", "rich", "sqlite3"}
_TELL = "import json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"


def _modules_after(arguments: list[str], folder) -> tuple[str, set[str]]:
    """Run the program in a fresh interpreter; what it printed, and what it had imported then."""
    code = (
        f"import sys; sys.argv = ['dibs', *{arguments!r}]\n"
        "from dibs.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"finally:\n    {_TELL}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, set(json.loads(done.stderr))


def test_the_version_is_printed_without_importing_anything(tmp_path):
    said, modules = _modules_after(["--version"], tmp_path)
    assert said == f"dibs {dibs.__version__}\n"
    assert modules & HEAVY == set()
    assert {name for name in modules if name.startswith("dibs")} <= {
        "dibs",
        "dibs.__main__",
        "dibs._version",
    }


def test_both_ways_to_print_the_version_agree(tmp_path):
    fast, _ = _modules_after(["--version"], tmp_path)
    slow, _ = _modules_after(["-v", "--version"], tmp_path)
    assert fast == slow


def test_importing_the_package_imports_nothing_of_it():
    code = f"import dibs; {_TELL}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert set(json.loads(done.stderr)) & HEAVY == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["add", "one"], ["why", "1"], ["config", "show"]], ids=str
)
def test_ordinary_commands_do_not_import_what_draws(arguments, tmp_path):
    if arguments[0] == "why":
        _modules_after(["add", "one"], tmp_path)
    _, modules = _modules_after(arguments, tmp_path)
    assert {name for name in modules if name.split(".")[0] in ("rich", "asyncio")} == set()


def test_help_touches_nothing(tmp_path):
    for arguments in (["--help"], ["work", "--help"], ["config", "show"], ["config", "schema"]):
        _modules_after(arguments, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_base_install_stays_small():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needs = {line.split(">")[0] for line in project["project"]["dependencies"]}
    assert needs == {"click", "msgspec", "rich"}
    assert project["build-system"]["build-backend"] == "hatchling.build"
