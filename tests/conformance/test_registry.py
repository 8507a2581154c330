"""Adapters of strangers: laid out as pip does, configured by their scheme, put to the suites."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.in_process import run_in_process

from dibs.core.errors import BadConfiguration
from dibs.frontends.cli.main import run
from dibs.settings.load import from_mapping
from dibs.testing.conformance import TrackerHarness, prove_tracker
from dibs.wiring.services import refuse_unknown
from dibs.wiring.stores import Surroundings, open_store, store_kind, store_kinds
from dibs.wiring.trackers import open_tracker, tracker_kind

from .harnesses import outwait

PACKAGE = '''\
"""A stranger's adapters: they keep everything in a SQLite file of their own."""

from pathlib import Path

from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.leases import SqliteLeases
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.ports.leases import Guarantee
from dibs.wiring.stores import Expiry, StoreKind, Waiting
from dibs.wiring.trackers import OpenTracker, TrackerKind


class TinyTracker(SqliteTracker):
    pass


class TinyStore(SqliteLeases):
    def __init__(self, database):
        super().__init__(database)
        self.close = database.close


def open_tiny(request):
    database = Database(request.settings.root / request.place)
    return OpenTracker(TinyTracker(database, author=request.author), close=[database.close])


def open_store(place, around):
    return TinyStore(Database(around.root / place.partition(":")[2]))


TRACKER = TrackerKind("tiny", "tiny:PATH", "one machine", open_tiny, auto_leases="comments")
STORE = StoreKind(
    "tinystore",
    "tinystore:PATH",
    "one machine",
    Guarantee.ATOMIC | Guarantee.FENCED,
    Expiry.SERVER,
    Waiting.POLLS,
    open_store,
)
NOT_A_ROW = "something else"
'''
POINTS = """\
[dibs.trackers]
tiny = tiny_adapters:TRACKER
odd = tiny_adapters:NOT_A_ROW
lost = tiny_adapters:MISSING

[dibs.stores]
tinystore = tiny_adapters:STORE
"""
BROKEN_STORE = "broken = tiny_adapters_without_their_library:STORE\n"


def install(folder: Path) -> None:
    """What pip leaves behind of a distribution."""
    (folder / "tiny_adapters.py").write_text(PACKAGE)
    info = folder / "tiny_adapters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-adapters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    folder = tmp_path / "installed"
    folder.mkdir()
    install(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("tiny_adapters", None)


def settings_in(folder: Path, **wanted):
    return from_mapping({"tracker": "tiny:here.db", **wanted}, source="a test", root=folder)


class TinyHarness(TrackerHarness):
    def __init__(self, first, second, database) -> None:
        super().__init__(first.tracker)
        self._second, self._database = second.tracker, database

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        outwait(self._database, seconds)


def test_a_strangers_tracker_is_opened_by_its_scheme_and_conforms(installed, tmp_path):
    numbers = iter(range(1000))

    @contextmanager
    def opened():
        folder = tmp_path / f"backlog-{next(numbers)}"
        folder.mkdir()
        first, second = (open_tracker(settings_in(folder), "fleet") for _ in range(2))
        try:
            yield TinyHarness(first, second, first.tracker._database)
        finally:
            for one in (*first.close, *second.close):
                one()

    prove_tracker(opened).insist()


def test_a_strangers_store_is_opened_by_its_scheme_and_listed(installed, tmp_path):
    kind = store_kind("tinystore:leases.db")
    assert store_kinds()["tinystore"] is kind
    store = open_store("tinystore:leases.db", Surroundings(tmp_path))
    assert type(store).__name__ == "TinyStore"
    store.close()


def test_a_whole_backlog_runs_on_them(installed, tmp_path):
    folder = tmp_path / "backlog"
    folder.mkdir()
    (folder / "dibs.toml").write_text('tracker = "tiny:b.db"\nleases = "tinystore:l.db"\n')

    def dibs(*words):
        done = subprocess.run(
            [sys.executable, "-m", "dibs", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    dibs("init")
    dibs("add", "one", "two")
    dibs("claim", "1", "--ttl", "10m")
    assert "claimed" in dibs("list")
    dibs("pause", "--fleet", "--reason", "a look around")
    assert "a look around" in dibs("status")
    assert "tinystore:PATH" in dibs("stores")


@pytest.fixture
def asked(installed, tmp_path):
    """The program beside a broken store and a broken tracker, in a folder of its own."""
    points = installed / "tiny_adapters-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + BROKEN_STORE)
    folder = tmp_path / "backlog"
    folder.mkdir()

    def ask(*words: str, file: str = ""):
        (folder / "dibs.toml").write_text(file)
        return run_in_process(run, words, cwd=folder, env={})

    return ask


def test_a_store_that_cannot_be_loaded_says_so_in_its_row_and_hides_no_other(asked):
    told = asked("stores")
    assert told.returncode == 0, told.stderr
    rows = {line.split()[0]: line for line in told.stdout.splitlines() if line}
    assert {"comments", "sqlite:PATH", "tinystore:PATH", "broken:"} <= set(rows)
    assert rows["broken:"].endswith(
        "'broken' is declared in dibs.stores as tiny_adapters_without_their_library:STORE, which "
        "cannot be loaded: No module named 'tiny_adapters_without_their_library'"
    )
    assert "'lost' is declared in dibs.trackers as tiny_adapters:MISSING" in told.stderr


def test_the_row_of_a_broken_store_has_the_keys_of_all_rows(asked):
    told = asked("stores", "--json", file='leases = "broken:somewhere"\n')
    assert told.returncode == 0, told.stderr
    rows = {row["leases"]: row for row in json.loads(told.stdout)["data"]}
    assert {frozenset(row) for row in rows.values()} == {frozenset(rows["comments"])}
    assert [form for form, row in rows.items() if row["configured"]] == ["broken:"]
    assert [form for form, row in rows.items() if row["problem"]] == ["broken:"]
    assert "cannot be loaded" in rows["broken:"]["problem"]


def test_a_configured_tracker_that_cannot_be_loaded_leaves_stores_and_doctor_usable(asked):
    stores = asked("stores", file='tracker = "lost:x"\n')
    assert (stores.returncode, "sqlite:PATH" in stores.stdout) == (0, True)
    doctor = asked("doctor", file='tracker = "lost:x"\n')
    assert doctor.returncode == 1
    assert "fail  tracker        'lost' is declared in dibs.trackers as" in doctor.stdout
    assert "ok    configuration" in doctor.stdout


def test_a_scheme_that_nobody_declares_is_refused_with_those_that_there_are(installed, tmp_path):
    with pytest.raises(BadConfiguration, match=r"'gitlab:acme/shop' is not known; .* sqlite:PATH"):
        refuse_unknown(settings_in(tmp_path, tracker="gitlab:acme/shop"))


@pytest.mark.parametrize(
    ("scheme", "flaw"), [("odd", "is no TrackerKind"), ("lost", "cannot be loaded")]
)
def test_an_entry_point_that_is_no_row_is_named(installed, scheme, flaw):
    with pytest.raises(BadConfiguration, match=flaw):
        tracker_kind(f"{scheme}:x")
