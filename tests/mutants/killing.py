"""Runs the tests that reach a mutant, the cheapest first, until one fails.

A `Stable` is a process that has collected all the tests, with dibs as it is. It forks a child for
each mutant; the child gives the mutated function its new code, wherever the function is, and runs
the chosen tests. What is run at import, and whatever a stable lets live, goes to a fresh process in
which a hook compiles the mutated text when the module is imported.

The processes that a test starts see the mutant by the same hook.
"""

import gc
import multiprocessing
import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from runpy import run_path
from types import CodeType, FunctionType
from typing import NamedTuple

from .mutating import ROOT, Mutant

_SITE = Path(__file__).with_name("site")
_WARM = ("pytest", "pytest_timeout", "msgspec", "msgspec.structs", "httpx", "jsonschema", "redis")
_FRESH = 15
"""So many tests try once more in a fresh process what a stable lets live."""
_PATIENCE_S = 240.0
_NOT_BEGUN = (2, 4)
"""The exit codes of pytest where a test file or a conftest.py could not be imported."""
_MACHINES = multiprocessing.get_context("forkserver")
_MACHINES.set_forkserver_preload([*_WARM, "psycopg", "click", "rich.console", "hypothesis"])


class Fate(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    UNREACHED = "no test reaches it"


class Trial(NamedTuple):
    mutant: Mutant
    fate: Fate
    by: str = ""
    tests: int = 0


def kill(mutant: Mutant, chosen: list[str], stable: "Stable") -> Trial:
    """Try to kill the mutant with these tests, in their order."""
    if not chosen:
        return Trial(mutant, Fate.UNREACHED)
    with tempfile.TemporaryDirectory(prefix="dibs-mutant-") as place:
        folder = Path(place)
        (folder / "text.py").write_text(mutant.mutated(), "utf-8")
        if mutant.around is None:
            by = _in_a_fresh_process(mutant, chosen, folder)
        else:
            by = stable.run(mutant, chosen, folder)
            by = by or _in_a_fresh_process(mutant, chosen[:_FRESH], folder)
    return Trial(mutant, Fate.KILLED if by else Fate.SURVIVED, by or "", len(chosen))


def _files(tests: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


class _Chosen:
    """Keeps only the chosen tests, in the order given, and notes the first that fails."""

    def __init__(self, tests: list[str], killer: Path) -> None:
        self._places = {test: place for place, test in enumerate(tests)}
        self._killer = killer

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid in self._places]
        items.sort(key=lambda item: self._places[item.nodeid])

    def pytest_collectreport(self, report):
        if report.failed and not self._killer.exists():
            self._killer.write_text(f"{report.nodeid} cannot be imported", "utf-8")

    def pytest_runtest_logreport(self, report):
        if report.failed and not self._killer.exists():
            self._killer.write_text(report.nodeid, "utf-8")


# In a fresh process


def _in_a_fresh_process(mutant: Mutant, tests: list[str], folder: Path) -> str | None:
    """What killed the mutant: a test, or the limit; None if it lives."""
    process = _MACHINES.Process(target=_fresh, args=(str(folder), mutant.module, tests))
    process.start()
    process.join(_PATIENCE_S)
    ended = process.exitcode is not None
    _end(process.pid)
    process.join()
    if (folder / "killer").exists():
        return (folder / "killer").read_text("utf-8")
    if not ended:
        return f"it took longer than {_PATIENCE_S:.0f} s"
    if process.exitcode in _NOT_BEGUN:
        return "the tests cannot be imported"
    if process.exitcode != 0:
        log = (folder / "log").read_text("utf-8", errors="replace")
        raise RuntimeError(f"{mutant}\nended with {process.exitcode}:\n{log[-3000:]}")
    return None


def _end(group: int | None) -> None:
    if group is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _fresh(place: str, module: str, tests: list[str]) -> None:
    import pytest

    folder = Path(place)
    options = _prepare(folder)
    _mutate_children(folder, module)
    run_path(str(_SITE / "sitecustomize.py"))
    chosen = _Chosen(tests, folder / "killer")
    code = pytest.main([*options, "-x", *_files(tests)], plugins=[chosen])
    sys.stdout.flush()
    os._exit(0 if code == 5 else int(code))  # 5: none of the tests is there


def _prepare(folder: Path) -> list[str]:
    """Make this process one that runs tests and nothing else. Returns pytest's options."""
    _apart(folder)
    os.chdir(ROOT)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles all of dibs anew
    sys.dont_write_bytecode = False
    sys.path.insert(0, str(ROOT))
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("dibs", "dibs_lab")]
    assert not loaded, f"imported too early: {loaded}"
    options = ["-q", "-s", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return [*options, "--hypothesis-seed=0", "--timeout=100", f"--basetemp={folder / 'tests'}"]


def _apart(folder: Path) -> None:
    """A group of its own, and a log and a folder for what is only for a while."""
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ |= {"TMPDIR": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "examples")}
    tempfile.tempdir = None


def _mutate_children(folder: Path, module: str) -> None:
    os.environ |= {
        "DIBS_MUTANT_MODULE": module,
        "DIBS_MUTANT_TEXT": str(folder / "text.py"),
        "PYTHONPATH": f"{_SITE}{os.pathsep}{ROOT}",
    }


# In a stable


class Stable:
    """A process that has collected tests. One mutant at a time."""

    def __init__(self, tests: Iterable[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-stable-")
        self._wire, theirs = _MACHINES.Pipe()
        self._process = _MACHINES.Process(
            target=_serve, args=(theirs, self._folder.name, _files(tests)), daemon=True
        )
        self._process.start()
        theirs.close()
        self._sound: dict[str, bool] = {}
        """Tests that have killed: whether they pass here when nothing is mutated."""

    def run(self, mutant: Mutant, tests: list[str], folder: Path) -> str | None:
        """What killed the mutant; None if it lives, or cannot be had without an import."""
        left = list(tests)
        while left:
            by = self._ask(_Task(mutant, left, str(folder)))
            if by is None or by not in left:
                return by
            if by not in self._sound:
                self._sound[by] = self._ask(_Task(None, [by], str(folder))) is None
            if self._sound[by]:
                return by
            left = left[left.index(by) + 1 :]  # it fails here for a reason of its own
        return None

    def _ask(self, task: "_Task") -> str | None:
        self._wire.send(task)
        try:
            return self._wire.recv()
        except EOFError:
            log = Path(self._folder.name, "log").read_text("utf-8", errors="replace")
            raise RuntimeError(f"the tests could not be collected:\n{log[-3000:]}") from None

    def close(self) -> None:
        with suppress(OSError):
            self._wire.send(None)
        self._process.join(10)
        _end(self._process.pid)
        self._folder.cleanup()


class _Task(NamedTuple):
    mutant: Mutant | None
    tests: list[str]
    folder: str


def _serve(wire: Connection, place: str, files: list[str]) -> None:
    import pytest

    options = _prepare(Path(place))
    pytest.main([*options, *files], plugins=[_Serving(wire)])
    os._exit(0)


class _Serving:
    """Runs, in place of all that was collected, what it is asked for, each in a child."""

    def __init__(self, wire: Connection) -> None:
        self._wire = wire

    def pytest_runtestloop(self, session):
        items = {item.nodeid: item for item in session.items}
        with suppress(EOFError):
            while (task := self._wire.recv()) is not None:
                killer = Path(task.folder) / "killer"
                killer.unlink(missing_ok=True)
                child = os.fork()
                if child == 0:
                    self._try(session, [items[t] for t in task.tests if t in items], task, killer)
                self._wire.send(self._wait(child, killer))
        return True

    def _wait(self, child: int, killer: Path) -> str | None:
        ended, _, _ = select.select([os.pidfd_open(child)], [], [], _PATIENCE_S)
        _end(child)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if killer.exists():
            told = killer.read_text("utf-8")
            killer.unlink()
            return told
        if not ended:
            return f"it took longer than {_PATIENCE_S:.0f} s"
        return None if status == 0 else f"the process ended with {status}"

    def _try(self, session, items, task: _Task, killer: Path) -> None:
        """In the child. Never returns."""
        try:
            _apart(Path(task.folder))
            if task.mutant is not None:
                _mutate_children(Path(task.folder), task.mutant.module)
                if not _swap(task.mutant, Path(task.folder) / "text.py"):
                    os._exit(0)
            session.config.pluginmanager.register(_Chosen([], killer))
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if killer.exists():
                    break
        except BaseException as failure:  # noqa: BLE001 - whatever ends pytest ends the mutant
            if not killer.exists():
                killer.write_text(f"pytest ended: {failure!r}", "utf-8")
        finally:
            os._exit(0)


def _swap(mutant: Mutant, text: Path) -> bool:
    """Give every function made of the mutated lines its new code; False if there is none."""
    path = str(mutant.path)
    new = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _codes(compile(text.read_bytes(), path, "exec", dont_inherit=True))
    }
    found = False
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__code__.co_filename != path:
            continue
        old = function.__code__
        lines = [line for *_, line in old.co_lines() if line]
        # The outermost function is enough: those inside it are made of its code.
        if "<locals>" in old.co_qualname or not lines or mutant.around is None:
            continue
        if mutant.around.start <= max(lines) and old.co_firstlineno < mutant.around.stop:
            code = new.get((old.co_qualname, old.co_firstlineno))
            if code is not None and code.co_freevars == old.co_freevars:
                function.__code__ = code
                found = True
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
