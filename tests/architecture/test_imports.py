"""Imports point one way, and the core imports nothing that could surprise it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import ROOT, SRC
from .sources import nodes

CORE = SRC / "core"
OF_MSGSPEC = {
    "msgspec.Struct",
    "msgspec.field",
    "msgspec.structs.force_setattr",
    "msgspec.structs.replace",
}
"""What defines values and makes one from another: nothing that reads, writes or checks types."""


def test_imports_point_one_way():
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed beside this interpreter")
    said = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_core_imports_only_the_standard_library_and_msgspec():
    strangers = [
        f"core/{module.relative_to(CORE).as_posix()}:{line}: {name}"
        for module in sorted(CORE.rglob("*.py"))
        for line, name in _imported(module)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not name.startswith("dibs.core.")
        and name not in OF_MSGSPEC
    ]
    assert not strangers, "\n".join(strangers)


def _imported(module: Path) -> Iterator[tuple[int, str]]:
    """Each name that is imported, with the module it is from: `msgspec.Struct`."""
    for node in nodes(module):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, one.name) for one in names)
            case ast.ImportFrom(module=str(place), level=0, names=names):
                yield from ((node.lineno, f"{place}.{one.name}") for one in names)
            case ast.ImportFrom():
                yield node.lineno, "a relative import"


def test_the_warden_imports_only_the_standard_library():
    """It is started with -I -S, by a path and not as a module: nothing of ours is there."""
    warden = nodes(SRC / "adapters" / "runners" / "warden.py")
    imported = {one.name for node in warden if isinstance(node, ast.Import) for one in node.names}
    assert not any(isinstance(node, ast.ImportFrom) for node in warden)
    assert imported <= set(sys.stdlib_module_names)
