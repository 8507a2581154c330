"""Does a test die with every line that keeps somebody safe? `make mutants`.

    python -m tests.mutants [--packages core,services] [--seed 1] [--count 40] [--one ID] [--list]
    python -m tests.mutants --sample

Changes dibs by one small step at a time, and runs the tests that reach the change until one fails.
The seed and a mutant's name alone decide which `--count` mutants of each package are drawn; 0 is
all. A mutant that no test need notice is in `accepted.toml`, with the reason, and is not run.

Ends with 1 if less than 95 % of the others are killed, or if an entry of `accepted.toml` names no
mutant any more. `--one` runs mutants by their ids, as the list of survivors names them; `--sample`
is what the long tier runs.
"""

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import blake2s
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from .covering import Map, measure
from .killing import Fate, Stable, Trial, kill
from .mutating import ROOT, SOURCE, Mutant, mutants_of

_WANTED = 0.95
_STORE = ("tests/conformance",)
_SERVICES = ("tests/core", "tests/services")

_SHOW_ONLY = ("core/errors.py", "services/board.py", "services/diagnosing.py")
"""They tell people about leases, and decide nothing about one."""


class Package(NamedTuple):
    """Source files below `src/dibs`, and the folders of tests which are to notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


PACKAGES = {
    "core": Package(("core/*.py",), _SERVICES),
    "services": Package(("services/*.py",), _SERVICES),
    "sqlite": Package(
        ("adapters/sqlite/*.py",),
        (*_STORE, *_SERVICES, "tests/architecture/test_embedded_database.py"),
    ),
    "redis": Package(("adapters/redis/*.py",), _STORE),
    "postgres": Package(("adapters/postgres/*.py",), _STORE),
    "etcd": Package(("adapters/etcd/*.py",), _STORE),
    "git": Package(("adapters/git/*.py",), (*_STORE, "tests/worktrees/test_git_program.py")),
    "trust": Package(
        ("adapters/github/trust.py", "adapters/github/shapes.py"),
        tuple(
            f"tests/github/test_{part}.py"
            for part in (
                "account",
                "believing",
                "forgery",
                "partial_answers",
                "people_and_keys",
                "strangers",
                "tracker_refusals",
                "tracker_requests",
            )
        ),
    ),
    "fencing": Package(("fencing/*.py",), ("tests/fencing",)),
}


class Accepted(NamedTuple):
    """The mutants that may live, with the reason, by their names."""

    reasons: dict[tuple[str, str, str, str, str, int], str]

    @classmethod
    def kept(cls) -> "Accepted":
        text = Path(__file__).with_name("accepted.toml").read_text("utf-8")
        fields = ("file", "function", "operator", "line", "change")
        return cls(
            {
                (*(entry[field] for field in fields), entry.get("number", 0)): entry["reason"]
                for entry in tomllib.loads(text).get("mutant", ())
            }
        )


def all_mutants(package: Package) -> list[Mutant]:
    paths = [path for pattern in package.sources for path in sorted(SOURCE.glob(pattern))]
    paths = [path for path in paths if str(path.relative_to(SOURCE)) not in _SHOW_ONLY]
    return [mutant for path in paths for mutant in mutants_of(path)]


def drawn(mutants: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """As many mutants; a change of the source changes no draw among the mutants that stay."""

    def lot(mutant: Mutant) -> bytes:
        return blake2s(f"{seed}|{mutant.name}".encode()).digest()

    return sorted(mutants, key=lot)[: count or None]


def table(trials: dict[str, list[Trial]], accepted: Counter[str]) -> tuple[str, float]:
    """A line for each package and one for all; and the rate of all."""
    lines = [
        f"{'package':10} {'mutants':>8} {'killed':>8} {'accepted':>9} {'alive':>6} {'rate':>7}"
    ]
    sums: Counter[str] = Counter()
    rate = 1.0
    for package in (*trials, "all"):
        if package != "all":
            found = trials[package]
            killed = sum(trial.fate is Fate.KILLED for trial in found)
            counts = Counter(killed=killed, alive=len(found) - killed, accepted=accepted[package])
            sums += counts
        else:
            counts = sums
        tried = counts["killed"] + counts["alive"]
        rate = counts["killed"] / tried if tried else 1.0
        lines.append(
            f"{package:10} {tried + counts['accepted']:8} {counts['killed']:8}"
            f" {counts['accepted']:9} {counts['alive']:6} {rate:7.1%}"
        )
    return "\n".join(lines), rate


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    chosen = {name: PACKAGES[name] for name in options.packages.split(",")}
    everything = {name: all_mutants(package) for name, package in PACKAGES.items()}
    accepted = Accepted.kept()
    stale = accepted.reasons.keys() - {one.name for ms in everything.values() for one in ms}
    for name in sorted(stale):
        print(f"accepted.toml names no mutant: {' | '.join(map(str, name))}")
    if options.one:
        wanted = options.one.split(",")
        draw = {
            name: [one for one in mutants if one.id in wanted]
            for name, mutants in everything.items()
        }
        draw = {name: mutants for name, mutants in draw.items() if mutants}
        if strange := set(wanted) - {one.id for mutants in draw.values() for one in mutants}:
            print(f"no mutant of today has the id {', '.join(sorted(strange))}: see --list")
            return 2
    else:
        draw = {name: drawn(everything[name], options.seed, options.count) for name in chosen}
    if options.list:
        for mutant in (one for mutants in draw.values() for one in mutants):
            print(mutant)
        return 0
    parts = options.tests.split(",") if options.tests else _tests_of(draw)
    reached = measure(ROOT / ".cache" / "mutants", parts, options.processes)
    accepted_here = frozenset() if options.one else frozenset(accepted.reasons)
    wanted = {
        name: [one for one in mutants if one.name not in accepted_here]
        for name, mutants in draw.items()
    }
    excused = Counter({name: len(draw[name]) - len(wanted[name]) for name in draw})
    trials: dict[str, list[Trial]] = {name: [] for name in draw}
    for name, trial in _tried(wanted, reached, options):
        trials[name].append(trial)
        if trial.fate is not Fate.KILLED or options.verbose or options.one:
            how = trial.by or f"{trial.fate.value} ({trial.tests} tests)"
            print(f"{name}: {trial.mutant}\n          {how}", flush=True)
    text, rate = table(trials, excused)
    print(text)
    return 1 if rate < _WANTED or stale else 0


def _tried(
    wanted: dict[str, list[Mutant]], reached: Map, options: argparse.Namespace
) -> Iterator[tuple[str, Trial]]:
    """The trials, in the order in which they end."""
    chosen = {
        mutant: reached.chosen(mutant, options.budget)
        for mutants in wanted.values()
        for mutant in mutants
    }
    needed = dict.fromkeys(test for tests in chosen.values() for test in tests)
    stables: SimpleQueue[Stable] = SimpleQueue()
    for _ in range(options.processes):
        stables.put(Stable(needed))

    def one(mutant: Mutant) -> Trial:
        stable = stables.get()
        try:
            return kill(mutant, chosen[mutant], stable)
        finally:
            stables.put(stable)

    with ThreadPoolExecutor(options.processes) as pool:
        running = {
            pool.submit(one, mutant): name for name, mutants in wanted.items() for mutant in mutants
        }
        for number, done in enumerate(as_completed(running), start=1):
            yield running[done], done.result()
            print(f"\r{number} of {len(running)} ", end="", file=sys.stderr, flush=True)
    while not stables.empty():
        stables.get().close()


def _tests_of(draw: dict[str, list[Mutant]]) -> list[str]:
    return list(dict.fromkeys(part for name in draw for part in PACKAGES[name].tests))


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--packages", default=",".join(PACKAGES), help="some of %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0, help="of each package; 0: all")
    parser.add_argument("--sample", action="store_true", help="a few of the quickest packages")
    parser.add_argument("--one", default="", help="these ids only, also if they are accepted")
    parser.add_argument("--tests", default="", help="folders of tests, instead of the package's")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests for a mutant")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    parser.add_argument("--verbose", action="store_true", help="what killed each")
    options = parser.parse_args(words)
    if options.sample:
        options.packages, options.count = "core,services", 20
    if strange := set(options.packages.split(",")) - PACKAGES.keys():
        parser.error(f"there is no package {', '.join(sorted(strange))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
