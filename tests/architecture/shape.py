"""The shape of the source as a reader meets it, in figures: what test_shape.py holds to budgets."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .pages import SRC

# Words that leave the reader to guess what is meant.
VAGUE = {
    *("it", "its", "that", "what", "whatever", "whoever", "whom", "whose", "somebody"),
    *("anybody", "nobody", "everybody", "one", "ones", "those", "these", "this", "there"),
    *("so", "such", "said", "told", "tells", "says", "known", "lately", "meanwhile"),
    *("else", "others", "other", "thing", "something", "anything", "nothing"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Runs in a process of its own: the modules whose functions are called while `dibs ARGUMENTS` runs.
_WALK = """
import json, os, sys, threading
import dibs
root = os.path.dirname(dibs.__file__) + os.sep
seen = set()
def called(frame, event, _):
    code = frame.f_code
    in_function = code.co_flags & 1 and not code.co_name.startswith("<")
    if event == "call" and in_function and code.co_filename.startswith(root):
        seen.add(code.co_filename[len(root):])
from dibs.frontends.cli.main import run
threading.setprofile(called)
sys.setprofile(called)
code = run(json.loads(sys.argv[1]))
sys.setprofile(None)
threading.setprofile(None)
assert code == 0, code
print("\\n" + json.dumps(sorted(seen)), file=sys.stderr)
"""


def modules(package: str = "") -> list[Path]:
    """The modules of a package, or of all that a fleet installs, with more than a docstring."""
    return [
        path
        for path in sorted((SRC / package).rglob("*.py"))
        if "testing" not in path.relative_to(SRC).parts[:-1] and len(_tree(path).body) > 1
    ]


def lines(package: str = "") -> int:
    return sum(path.read_text(encoding="utf8").count("\n") for path in modules(package))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf8"))


def used_once() -> tuple[float, list[str]]:
    """Private functions that their module mentions once, in percent of all functions; and which."""
    count, found = 0, []
    for path in modules():
        nodes = list(ast.walk(_tree(path)))
        loads = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in nodes
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        for node in nodes:
            if isinstance(node, _FUNCTIONS):
                count += 1
                private = node.name.startswith("_") and not node.name.startswith("__")
                if private and loads[node.name] == 1:
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} {node.name}")
    return 100 * len(found) / count, found


def vague_words() -> tuple[float, list[str]]:
    """Vague words in 100 words of the docstrings of functions and classes; the vaguest of them."""
    vague, total, found = 0, 0, []
    for path in modules():
        for node in ast.walk(_tree(path)):
            text = (
                ast.get_docstring(node) if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else None
            )
            if text is None:
                continue
            words = re.findall(r"[a-z']+", re.sub(r"`[^`]*`", " code ", text).lower())
            here = sum(word in VAGUE for word in words)
            vague, total = vague + here, total + len(words)
            found.append((here / max(len(words), 8), f"{path.relative_to(SRC)}:{node.lineno}"))
    return 100 * vague / total, [place for _, place in sorted(found, reverse=True)[:20]]


def repeated_class_names() -> list[str]:
    names = Counter(
        node.name
        for path in modules()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def walked(folder: Path, *arguments: str, environment: dict[str, str]) -> tuple[set[str], str]:
    """The modules that `dibs ARGUMENTS` walks through, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", _WALK, json.dumps(arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1])), done.stdout
