"""Reading the source: its modules, and every node of each one's syntax tree."""

import ast
from functools import cache
from pathlib import Path

from .pages import SRC, text

MODULES = sorted(SRC.rglob("*.py"))
RUNTIME = [path for path in MODULES if path.relative_to(SRC).parts[0] != "testing"]
"""Without the suites for testers."""


def name_in_source(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The module first. Every rule walks over them, so a module is parsed once for all rules."""
    return tuple(ast.walk(ast.parse(text(path))))
