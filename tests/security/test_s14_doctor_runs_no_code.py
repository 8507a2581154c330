"""`dibs doctor` in a strange repository runs the repository's code.

Actor: a repository. Attack (S14): a stage with `python = "pkg.mod:f"`; doctor imported the module
to see whether it can be loaded, and an import runs the module and the packages around it. Wall:
doctor finds the files and reads them as text; `--handlers` imports them, and says so.
"""

from pathlib import Path

import pytest

from .conftest import Victim

CODE = "import pathlib\npathlib.Path(__file__).with_name('PWN').touch()\ndef f(work): pass\n"


def _plant(victim: Victim, target: str) -> Path:
    package = victim.folder / "pkg"
    package.mkdir()
    for name in ("__init__.py", "mod.py"):
        (package / name).write_text(CODE)
    (victim.folder / "click.py").write_text(CODE)
    (victim.folder / "sitecustomize.py").write_text(CODE)
    victim.configure(f'[[stage]]\nname = "ready"\npython = "{target}"\n')
    victim.dibs("init")
    return victim.folder


def _ran(folder: Path) -> list[Path]:
    return list(folder.rglob("PWN"))


@pytest.mark.parametrize("target", ["pkg.mod:f", "pkg:f", "click:f", "pkg.mod:gone", "pkg.no:f"])
def test_doctor_imports_nothing_of_the_folder(victim: Victim, target: str) -> None:
    folder = _plant(victim, target)
    for words in (("doctor",), ("doctor", "--offline"), ("doctor", "--json")):
        ran = victim.dibs(*words)
        assert _ran(folder) == [], words
        assert (ran.returncode == 0) == (target in ("pkg.mod:f", "pkg:f", "click:f")), ran.stderr


def test_a_package_without_a_file_of_its_own_is_found(victim: Victim) -> None:
    folder = victim.folder / "deep" / "er" / "est"
    folder.mkdir(parents=True)
    (folder / "mod.py").write_text(CODE)
    victim.configure('[[stage]]\nname = "ready"\npython = "deep.er.est.mod:f"\n')
    assert victim.dibs("doctor", "--offline").returncode == 0
    victim.configure('[[stage]]\nname = "ready"\npython = "deep.er.mod:f"\n')
    assert victim.dibs("doctor", "--offline").returncode == 1
    assert _ran(victim.folder) == []


def test_it_still_tells_what_is_missing(victim: Victim) -> None:
    _plant(victim, "pkg.mod:gone")
    assert "has no gone" in victim.dibs("doctor").stdout
    victim.configure('[[stage]]\nname = "ready"\npython = "pkg.no:f"\n')
    assert "there is no module pkg.no" in victim.dibs("doctor").stdout
    victim.configure('[[stage]]\nname = "ready"\npython = "pkg.mod:f"\n')
    assert "--handlers also imports" in victim.dibs("doctor").stdout


def test_control_with_handlers_they_are_imported(victim: Victim) -> None:
    folder = _plant(victim, "pkg.mod:f")
    assert victim.dibs("doctor", "--handlers").returncode == 0
    assert folder / "pkg" / "PWN" in _ran(folder)
