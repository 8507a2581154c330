"""Which test runs which line of dibs, and how long each test takes.

The map is made of layers, one for each time that tests were measured: the data of coverage.py with
one context for each test, and beside it what each test cost and the sources as they were. A test
file that has changed since is measured again, in a layer of its own; the lines of a source file
that has changed since are matched with those that were measured.

This module is the plugin of pytest that measures, too.
"""

import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import coverage
import msgspec
import pytest

from .mutating import ROOT, SOURCE, Mutant

_INTO = "DIBS_MUTANTS_MEASURED_INTO"


class Measured(msgspec.Struct):
    """One layer, but for the lines: those are in the file `coverage` beside it."""

    files: dict[str, str]
    """The test files, with a digest of each."""
    costs: dict[str, float]
    """The seconds of each test that passed."""
    sources: dict[str, list[str]]
    """The lines of each source file."""


class Layer:
    def __init__(self, folder: Path) -> None:
        self.measured = msgspec.json.decode((folder / "measured.json").read_bytes(), type=Measured)
        self.superseded: frozenset[str] = frozenset()
        self._data = coverage.CoverageData(str(folder / "coverage"))
        self._data.read()
        self.by_line = cache(self._by_line)

    def costs(self) -> dict[str, float]:
        return {
            test: cost
            for test, cost in self.measured.costs.items()
            if test.partition("::")[0] not in self.superseded
        }

    def _by_line(self, source: Path) -> dict[int, list[str]]:
        """The tests of each line of a source file, by the numbers that the lines have now."""
        then = self.measured.sources.get(str(source.relative_to(ROOT)))
        if then is None:
            return {}
        now = source.read_text("utf-8").splitlines()
        blocks = SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks()
        numbers = {at.a + n + 1: at.b + n + 1 for at in blocks for n in range(at.size)}
        costs = self.costs()
        return {
            numbers[line]: [test for test in tests if test in costs]
            for line, tests in self._data.contexts_by_lineno(str(source)).items()
            if line in numbers
        }


class Map:
    """Tells which tests reach a line."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._layers = tuple(layers)
        self.costs = {t: cost for layer in self._layers for t, cost in layer.costs().items()}

    def chosen(self, mutant: Mutant, budget_s: float) -> list[str]:
        """The tests that are to notice the mutant, and cost at most so many seconds together.

        The tests of its own package come first: they look at what others only pass by.
        """
        spent, chosen = 0.0, []
        near = f"tests/{mutant.file.partition('/')[0]}/"
        tests = self.tests_of(mutant.path, mutant.lines, mutant.around)
        for test in sorted(in_turn(tests), key=lambda test: not test.startswith(near)):
            spent += self.costs[test]
            if chosen and spent > budget_s:
                break
            chosen.append(test)
        return chosen

    def tests_of(self, source: Path, lines: range, wider: range | None) -> list[str]:
        """The tests that reach one of the lines, the cheapest first; if none, those of `wider`.

        `wider`: the function around the lines; None: the lines run at import, and any test that
        runs something else of the file may tell.
        """
        everywhere = range(1, sys.maxsize)
        for span in (lines, wider) if wider is not None else (everywhere,):
            tests = {
                test
                for layer in self._layers
                for line, found in layer.by_line(source).items()
                if line in span
                for test in found
            }
            if tests:
                return sorted(tests, key=lambda test: (self.costs[test], test))
        return []


def in_turn(tests: list[str]) -> list[str]:
    """One case of each test function first, then a second of each, and so on; each by its cost."""
    rounds: dict[str, int] = {}
    keyed = []
    for place, test in enumerate(tests):
        function = test.partition("[")[0]
        rounds[function] = rounds.get(function, 0) + 1
        keyed.append((rounds[function], place, test))
    return [test for *_, test in sorted(keyed)]


def measure(folder: Path, parts: Iterable[str], processes: int) -> Map:
    """The map of these files and folders of tests, brought up to date."""
    paths = [path for part in parts for path in _files(ROOT / part)]
    digests = {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Map(_up_to_date(folder, digests, processes))


def _files(part: Path) -> list[Path]:
    return [part] if part.is_file() else sorted(part.rglob("test_*.py"))


def _up_to_date(folder: Path, digests: dict[str, str], processes: int) -> list[Layer]:
    layers = [
        Layer(path) for path in sorted(folder.glob("*/")) if (path / "measured.json").exists()
    ]
    known = {name: digest for layer in layers for name, digest in layer.measured.files.items()}
    if changed := [name for name, digest in digests.items() if known.get(name) != digest]:
        layers.append(_measure(folder / f"{len(layers):03}", changed, digests, processes))
    for older, newer in itertools.combinations(layers, 2):
        older.superseded |= frozenset(newer.measured.files)
    return layers


def _measure(folder: Path, names: list[str], digests: dict[str, str], processes: int) -> Layer:
    sources = {
        str(path.relative_to(ROOT)): path.read_text("utf-8").splitlines()
        for path in sorted(SOURCE.rglob("*.py"))
    }
    print(f"measuring which lines {len(names)} test files run ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.covering"]
    command += ["-m", "not long", "-n", str(processes), "--dist", "worksteal", *names]
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env={**os.environ, _INTO: str(folder)},
        capture_output=True,
        text=True,
    )
    parts = sorted(folder.glob("costs.*"))
    if not parts:
        raise SystemExit(f"the tests could not be measured:\n{done.stdout[-4000:]}{done.stderr}")
    costs: dict[str, float] = {}
    for part in parts:
        costs |= msgspec.json.decode(part.read_bytes(), type=dict[str, float])
    print(done.stdout.splitlines()[-1], file=sys.stderr)
    combined = coverage.Coverage(data_file=str(folder / "coverage"))
    combined.combine([str(path) for path in folder.glob("coverage.*")])
    combined.save()
    measured = Measured({name: digests[name] for name in names}, costs, sources)
    (folder / "measured.json").write_bytes(msgspec.json.encode(measured))
    return Layer(folder)


class _Measuring:
    """In each process that runs tests: a context for each test."""

    def __init__(self, folder: Path, process: str) -> None:
        self._costs: dict[str, float] = {}
        self._failed: set[str] = set()
        self._into = folder / f"costs.{process}"
        self._coverage = coverage.Coverage(
            data_file=str(folder / f"coverage.{process}"),
            source=[str(SOURCE)],
            concurrency=["thread", "greenlet"],
            config_file=False,
        )
        self._coverage.start()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self._coverage.switch_context(item.nodeid)
        yield
        self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report):
        cost = self._costs.get(report.nodeid, 0.0)
        self._costs[report.nodeid] = round(cost + report.duration, 4)
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self):
        self._coverage.stop()
        self._coverage.save()
        passed = {test: cost for test, cost in self._costs.items() if test not in self._failed}
        self._into.write_bytes(msgspec.json.encode(passed))


def pytest_configure(config):
    into = os.environ.get(_INTO)
    worker = getattr(config, "workerinput", None)
    if into and (worker is not None or not config.getoption("numprocesses", None)):
        process = worker["workerid"] if worker is not None else "alone"
        config.pluginmanager.register(_Measuring(Path(into), process))
