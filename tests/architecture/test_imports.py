"""Imports point one way, and the core imports nothing that could surprise it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, SRC

CORE = sorted((SRC / "core").glob("*.py"))


def test_imports_point_one_way():
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed beside this interpreter")
    said = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("module", CORE, ids=lambda path: path.name)
def test_the_core_imports_only_the_standard_library(module):
    imported = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                imported |= {one.name for one in names}
            case ast.ImportFrom(module=str(name), level=0):
                imported.add(name)
            case ast.ImportFrom():
                imported.add("a relative import")
    strangers = {
        name
        for name in imported
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("dibs.core")
    }
    assert strangers == set()


def test_the_warden_imports_only_the_standard_library():
    """It is started with -I -S, by a path and not as a module: nothing of ours is there."""
    tree = ast.parse((SRC / "adapters" / "runners" / "warden.py").read_text("utf-8"))
    imported = {
        one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names
    }
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
    assert imported <= set(sys.stdlib_module_names)
