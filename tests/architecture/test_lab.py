"""The laboratory is a distribution of its own, of the same version."""

import tomllib

import dibs

from .pages import ROOT

LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf8"))["project"]


def test_the_laboratory_has_the_version_of_dibs_and_wants_it():
    assert LAB["version"] == dibs.__version__
    assert f"dibs=={dibs.__version__}" in LAB["dependencies"]


def test_what_a_fleet_installs_has_nothing_of_the_laboratory():
    testing = ROOT / "src" / "dibs" / "testing"
    parts = {path.relative_to(testing).parts[0] for path in testing.rglob("*.py")}
    assert parts == {"__init__.py", "clock.py", "conformance"}
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    assert not [name for name in wanted["dependencies"] if "greenlet" in name or "graphql" in name]
