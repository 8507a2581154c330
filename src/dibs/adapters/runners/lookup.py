"""Looks for a Python handler without importing it: no code of the handler's folder runs.

`importlib.util.find_spec` imports the packages around a module, and an import can have any effect.
Here the files are found by the import path and read as text.
"""

import ast
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from dibs.core.errors import HandlerUnusable

_LARGEST = 1_000_000
_MAKES_NAMES = {"__getattr__", "globals", "setattr", "exec", "*"}
"""A module in which one of these occurs may have names that its text does not show."""


def look_for_python(target: str, folder: Path) -> None:
    """Raise HandlerUnusable if the module is missing, or its text does not contain the name."""
    module, _, name = target.partition(":")
    spec = find_module(module, folder.absolute())
    if spec is None:
        raise HandlerUnusable(f"the handler {target!r} was not found: there is no module {module}")
    source = Path(spec.origin or "")
    if source.suffix != ".py" or not source.is_file():  # built in, compiled, in an archive
        return
    if source.stat().st_size > _LARGEST:
        return
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as flaw:
        why = str(flaw) or type(flaw).__name__
        raise HandlerUnusable(f"the handler {target!r} cannot be read: {why}") from flaw
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
                names.add(found)
            case ast.ClassDef(name=found) | ast.Name(id=found):
                names.add(found)
            case ast.alias(name=found, asname=other):
                names.add(other or found)
    if name.partition(".")[0] not in names and not names & _MAKES_NAMES:
        raise HandlerUnusable(f"the handler {target!r} was not found: {source} has no {name}")


def find_module(module: str, folder: Path) -> ModuleSpec | None:
    """The place of a module on a handler's import path: the folder, then the path of dibs."""
    top, *inner = module.split(".")
    spec = PathFinder.find_spec(top, [str(folder)])
    for finder in sys.meta_path if spec is None else ():
        if (spec := finder.find_spec(top, None)) is not None:
            break
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name: with the whole name, a finder may ask for the imported package.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec
