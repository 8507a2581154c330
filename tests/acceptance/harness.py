"""A project on disk, the program run in it, and what it left behind.

Truth is read where it lives: the database (with triggers that keep a history of every decision and
every label), the journal, and a ledger that the handlers themselves append to.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.in_process import run_in_process

from dibs.adapters.system import SystemClock
from dibs.core.card import Card, parse_mark
from dibs.frontends.cli.main import run

CLOCK = SystemClock()
LEASES = ("auto", "comments")
# The same for tests that start processes: services and simulation have tried the second before.
EITHER_LEASES = ("auto", pytest.param("comments", marks=pytest.mark.long))
PROC = Path("/proc")
PATIENCE_S = 40.0
_NEVER = threading.Event()
_TEMPLATES: dict[tuple[str, int, bool], bytes] = {}
_T = TypeVar("_T")
_COMPILED = str(Path(tempfile.gettempdir()) / f"dibs-acceptance-{os.getuid()}")

# One line per completed step, in one write: lines of several processes never mix.
LEDGER = 'echo "$DIBS_ISSUE $DIBS_STAGE $DIBS_RUN $DIBS_FENCE $DIBS_ATTEMPT" >> ledger'

_HISTORY = (
    "CREATE TABLE audit_labels (number INTEGER, label TEXT, change TEXT)",
    """CREATE TRIGGER audit_label_added AFTER INSERT ON issue_labels
    BEGIN INSERT INTO audit_labels VALUES (NEW.number, NEW.label, 'added'); END""",
    """CREATE TRIGGER audit_label_removed AFTER DELETE ON issue_labels
    BEGIN INSERT INTO audit_labels VALUES (OLD.number, OLD.label, 'removed'); END""",
    "CREATE TABLE audit_cards (number INTEGER, comment INTEGER, body TEXT, updated_at INTEGER)",
    """CREATE TRIGGER audit_card_edited AFTER UPDATE OF body ON comments
    BEGIN INSERT INTO audit_cards VALUES (NEW.number, NEW.id, NEW.body, NEW.updated_at); END""",
)
_STORE_HISTORY = (
    "CREATE TABLE audit_endings (number TEXT, stage TEXT, run TEXT, fence INTEGER, outcome TEXT)",
    """CREATE TRIGGER audit_ended AFTER UPDATE OF outcome ON leases
    WHEN OLD.outcome IS NULL AND NEW.outcome IS NOT NULL
    BEGIN INSERT INTO audit_endings
    VALUES (NEW.key, NEW.stage, NEW.run, NEW.fence, NEW.outcome); END""",
)
# Asks the database from inside a namespace, where this process cannot open it.
_ASK = """
import json, sqlite3, sys
sql = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
print(json.dumps(sql.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))
"""


def until(condition: Callable[[], _T], what: str, *, within_s: float = PATIENCE_S) -> _T:
    """Wait for a condition; its value. Fails by name when the patience is over."""
    deadline = CLOCK.now() + within_s
    while True:
        if found := condition():
            return found
        if CLOCK.now() >= deadline:
            raise AssertionError(f"not within {within_s:.0f} s: {what}")
        CLOCK.wait(_NEVER, 0.02)


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The answer as JSON: exactly one object on exactly one line."""
        assert self.out.count("\n") == 1, f"not one line: {self.out!r}; stderr: {self.err}"
        found = json.loads(self.out)
        assert isinstance(found, dict)
        assert found["exit"] == self.code
        assert found["ok"] is (self.code == 0)
        assert set(found) - {"warnings"} == {"ok", "exit", "data" if "data" in found else "error"}
        return found

    @property
    def data(self) -> Any:
        return self.document["data"]

    @property
    def error(self) -> dict[str, Any]:
        found = self.document["error"]
        assert isinstance(found, dict)
        assert found["code"]
        assert found["message"]
        return found

    def told(self, code: int, *words: str) -> "Reply":
        """A refusal as promised: the code, one line that says what is wrong, perhaps a hint."""
        self.quiet()
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        first, *rest = self.err.splitlines()
        assert first.startswith("dibs: "), self.err
        assert len(rest) <= 1, self.err
        assert all(line.startswith("  ") for line in rest), self.err
        for word in words:
            assert word in first, (word, first)
        return self

    def quiet(self) -> "Reply":
        """Nothing that only a programmer could read."""
        assert "Traceback" not in self.err, self.err
        assert "Traceback" not in self.out, self.out
        return self


class Child:
    """A process that goes on while the test does something else."""

    def __init__(
        self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._out = folder / f"{name}.{uuid.uuid4().hex[:6]}.out"
        self._err = self._out.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill_group(self) -> None:
        """Kill the process, and all that it started in its own session."""
        os.killpg(self.pid, signal.SIGKILL)

    def wait(self, within_s: float = PATIENCE_S) -> Reply:
        """Its end; the code is minus the signal if one killed it."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end; it said:\n{self.err}") from None
        return Reply(code, self._out.read_text("utf-8"), self.err)

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8", errors="replace")


class Project:
    """A folder with a backlog. Every process started here carries the project's tag."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inside: tuple[str, ...] = ()
        """A command to put before every other: it enters a namespace and the folder there."""
        self.tag = f"XDG_ACCEPTANCE_TAG={uuid.uuid4().hex}"
        self._children: list[Child] = []
        root.mkdir(parents=True, exist_ok=True)

    # Setting up

    def configure(self, text: str) -> None:
        (self.root / "dibs.toml").write_text(text, "utf-8")

    def begin(self, text: str, titles: int = 0, *, history: bool = True) -> "Project":
        """Configuration, database, history, issues.

        The program makes each kind of database once; after that its file is copied.
        """
        self.configure(text)
        leases = text.partition("leases = '")[2].partition("'")[0]  # where its tables are, if any
        made = _TEMPLATES.get(kind := (leases, titles, history))
        if made is not None and not self.inside:
            self.file.parent.mkdir(exist_ok=True)
            self.file.write_bytes(made)
            return self
        assert self.dibs("init").code == 0
        if history:
            self.keep_history()
        if titles:
            self.add(titles)
        if not self.inside:
            assert list(self.file.parent.glob("backlog.db*")) == [self.file]
            _TEMPLATES[kind] = self.file.read_bytes()
        return self

    def keep_history(self) -> None:
        known = {row[0] for row in self.sql("SELECT name FROM sqlite_master")}
        for trigger in (*_HISTORY, *(_STORE_HISTORY if "leases" in known else ())):
            self.sql(trigger)

    def add(self, count: int, *extra: str) -> list[str]:
        titles = "".join(f"issue {number}\n" for number in range(1, count + 1))
        reply = self.dibs("add", "-", *extra, "--json", given=titles)
        return [entry["issue"] for entry in reply.data]

    def script(self, name: str, text: str, mode: int = 0o755) -> Path:
        path = self.root / name
        path.write_text(text, "utf-8")
        path.chmod(mode)
        return path

    # Running

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = ("DIBS_", "GITHUB_", "GH_", "PYTEST_", "XDG_ACCEPTANCE_", "PYTHONUNBUFFERED")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of starts, compiled once
        name, _, value = self.tag.partition("=")
        ours_now = {name: value, "DIBS_ACTOR": "tester", "PYTHONPYCACHEPREFIX": _COMPILED}
        return {**kept, **ours_now, **(extra or {})}

    def argv(self, *arguments: str) -> list[str]:
        return [*self.inside, sys.executable, "-m", "dibs", *arguments]

    def dibs(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        given: str = "",
        before: Sequence[str] = (),
        limit: Callable[[], None] | None = None,
        cwd: Path | None = None,
        alone: bool = False,
    ) -> Reply:
        """Run one command to its end, in this process where nothing speaks against it.

        In one of its own if it is to be `alone` or hands its streams to a command, for what is put
        `before` it, for a `limit` that is set in the child before the program, and in a thread.
        """
        here = threading.current_thread() is threading.main_thread()
        alone = alone or arguments[:1] in (("hold",), ("loop",))
        if here and not (alone or before or limit or self.inside):
            where, env = cwd or self.root, self.environment(env)
            return Reply(*run_in_process(run, arguments, cwd=where, env=env, given=given))
        done = subprocess.run(
            [*before, *self.argv(*arguments)],
            cwd=cwd or self.root,
            env=self.environment(env),
            input=given,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            preexec_fn=limit,
            start_new_session=True,
        )
        return Reply(done.returncode, done.stdout, done.stderr)

    def start(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        return self.watch(Child(name, self.argv(*arguments), self.root, self.environment(env)))

    def watch(self, child: Child) -> Child:
        """Kill the child at the end of the test, if it is still there."""
        self._children.append(child)
        return child

    def worker(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        return self.start(name, "work", "--name", name, "--json", *arguments, env=env)

    def drain(self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 0) -> Reply:
        """A healthy worker that leaves when nothing is left to do or to wait for."""
        reply = self.worker("healthy", "--drain", *arguments, env=env).wait(80)
        assert reply.code == code, reply.err
        return reply.quiet()

    # What is there

    @property
    def file(self) -> Path:
        return self.root / ".dibs" / "backlog.db"

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        sql = sqlite3.connect(self.file, timeout=30, isolation_level=None)
        try:
            yield sql
        finally:
            sql.close()

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if self.inside:
            place = str(self.file.relative_to(self.root))
            asked = [sys.executable, "-c", _ASK, place, query, json.dumps(values)]
            said = subprocess.run(
                [*self.inside, *asked], env=self.environment(), stdout=subprocess.PIPE, check=True
            )
            return [tuple(row) for row in json.loads(said.stdout)]
        with self.database() as sql:
            return sql.execute(query, values).fetchall()

    def writable(self) -> bool:
        """Whether nobody keeps the database locked."""
        sql = sqlite3.connect(self.file, timeout=0.3, isolation_level=None)
        try:
            sql.execute("BEGIN IMMEDIATE")
            sql.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            sql.close()
        return True

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every table but the clock's and our own history."""
        with self.database() as sql:
            names = [
                row[0]
                for row in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                if row[0] != "clock" and not row[0].startswith("audit_")
            ]
            return {name: sorted(sql.execute(f"SELECT * FROM {name}"), key=repr) for name in names}

    def labels(self, issue: object = 1) -> set[str]:
        number = int(str(issue).lstrip("#"))
        rows = self.sql("SELECT label FROM issue_labels WHERE number = ?", number)
        return {row[0] for row in rows}

    def cards(self, issue: object = 1) -> list[Card]:
        number = int(str(issue).lstrip("#"))
        rows = self.sql("SELECT body FROM comments WHERE number = ? ORDER BY id", number)
        return [mark for (body,) in rows if isinstance(mark := parse_mark(body), Card)]

    def events(self, *kinds: str, **fields: object) -> list[dict[str, Any]]:
        path = self.root / ".dibs" / "events.jsonl"
        if not path.exists():
            return []
        whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
        found = [json.loads(line) for line in whole]
        return [
            event
            for event in found
            if (not kinds or event["event"] in kinds)
            and all(event.get(key) == value for key, value in fields.items())
        ]

    def seen(self, kind: str, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """Wait until the journal holds so many events of a kind."""

        def enough() -> list[dict[str, Any]]:
            found = self.events(kind, **fields)
            return found if len(found) >= count else []

        return until(enough, f"{count} times {kind} {fields or ''} in the journal")

    def lines(self, name: str = "ledger") -> list[str]:
        path = self.root / name
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def appears(self, name: str) -> Path:
        path = self.root / name
        until(path.exists, f"the file {name}")
        return path

    def pid(self, name: str) -> int:
        """The process that wrote its id into a file, once the line is whole."""
        path = self.appears(name)
        until(lambda: path.read_text().endswith("\n"), f"a process id in {name}")
        return int(path.read_text().split()[0])

    def ledger(self) -> Counter[tuple[str, str]]:
        """How often handlers completed each (issue, stage)."""
        return Counter((issue, stage) for issue, stage, *_ in map(str.split, self.lines()))

    def advances(self) -> Counter[tuple[str, str]]:
        """How often (issue, stage) was decided to be done, wherever this project's leases live."""
        return Counter(
            (issue, stage) for issue, stage, outcome in self.endings() if outcome == "advanced"
        )

    def endings(self) -> list[tuple[str, str, str]]:
        """(issue, stage, outcome) of every ending that counted, in order; concessions left out."""
        known = {row[0] for row in self.sql("SELECT name FROM sqlite_master")}
        if "audit_endings" in known:
            rows = self.sql("SELECT number, stage, outcome FROM audit_endings ORDER BY rowid")
            return [
                (f"#{n}", stage, outcome) for n, stage, outcome in rows if outcome != "conceded"
            ]
        rows = self.sql("SELECT number, body, updated_at FROM audit_cards ORDER BY rowid")
        return [
            (f"#{number}", card.stage, card.ending.outcome.value)
            for number, body, updated_ms in rows
            if isinstance(card := parse_mark(body), Card) and card.ending and card.prev
            # An edit at or after the expiry it was written against counts for nothing.
            if updated_ms < round(card.prev.timestamp() * 1000)
        ]

    def gained(self, label: str) -> Counter[str]:
        """How often each issue was given a label."""
        rows = self.sql(
            "SELECT number FROM audit_labels WHERE label = ? AND change = 'added'", label
        )
        return Counter(f"#{row[0]}" for row in rows)

    def failed_attempts(self, issue: object = 1) -> int:
        found: int = self.dibs("why", str(issue), "--json").data["failed_attempts"]
        return found

    def assert_drained(self, issues: int, stages: Sequence[str] = ("one", "two")) -> None:
        """Every issue at the end, every stage decided once, nothing parked, nothing half shown."""
        refs = [f"#{number}" for number in range(1, issues + 1)]
        assert self.advances() == {(ref, stage): 1 for ref in refs for stage in stages}
        for ref in refs:
            assert self.labels(ref) == {"stage:done"}, ref
        for stage in (*stages, "done"):
            assert self.gained(f"stage:{stage}") == dict.fromkeys(refs, 1), stage
        assert self.gained("parked") == {}
        assert self.sql("SELECT COUNT(*) FROM issues WHERE open = 1") == [(0,)]
        fsck = self.dibs("fsck", "--json")
        assert (fsck.code, fsck.data) == (0, {"storage": [], "flaws": []})

    # Processes

    def strays(self) -> list[int]:
        """Living processes that carry the project's tag: ours, their wardens, their handlers."""
        return [pid for pid in _tagged(self.tag.encode()) if pid != os.getpid()]

    def nobody_left(self) -> None:
        until(lambda: not self.strays(), "every process of the project ends")

    def end(self) -> None:
        """Kill whatever is left, frozen or not, each by its own id."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        deadline = CLOCK.now() + 10
        while (left := self.strays()) and CLOCK.now() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            CLOCK.wait(_NEVER, 0.02)
        for child in self._children:
            child.process.wait(10)


def _tagged(tag: bytes) -> Iterator[int]:
    if not PROC.is_dir():
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                carries = tag in (entry / "environ").read_bytes().split(b"\0")
                dead = b") Z" in (entry / "stat").read_bytes()
            except OSError:
                continue
            if carries and not dead:
                yield int(entry.name)


def alive(pid: int) -> bool:
    try:
        return b") Z" not in (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return False


def frozen(pid: int) -> bool:
    try:
        return b") T" in (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return False


def pipeline(
    leases: str = "auto",
    one: str = LEDGER,
    two: str = LEDGER,
    *,
    ttl: str = "1500ms",
    attempts: int = 50,
    backoff: str = "100ms",
    top: str = "",
    extra: str = "",
    jobs: int = 1,
    poll: str = "100ms",
) -> str:
    """Two worked stages and an end. The commands may use single and double quotes."""
    common = f"ttl = '{ttl}'\nattempts = {attempts}\nbackoff = '{backoff}'\n"
    common += f"backoff_max = '{backoff}'\n"
    return f"""
preset = 'none'
leases = '{leases}'
{top}
[worker]
jobs = {jobs}
poll = '{poll}'
sweep = '200ms'
[[stage]]
name = 'one'
working_label = 'stage:one-in-work'
next = 'two'
{common}
{extra}
run = '''{one}'''
[[stage]]
name = 'two'
next = 'done'
{common}
run = '''{two}'''
[[stage]]
name = 'done'
closes = true
"""


@cache
def bare_root() -> tuple[str, ...] | None:
    """What makes file permissions count for this user; None if nothing does.

    A superuser walks past them, unless every capability is taken from the child first.
    """
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        return None
    before = ("setpriv", "--bounding-set=-all")
    with tempfile.NamedTemporaryFile() as closed:
        Path(closed.name).chmod(0)
        probe = subprocess.run(
            [*before, "test", "-r", closed.name], check=False, capture_output=True, timeout=30
        )
    return before if probe.returncode == 1 else None
