"""Full disks, read-only files, rubbish in place of a database: said in a line, and nothing lost."""

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .harness import Project, bare_root, pipeline
from .terms import AMPLE, time_passes

ISSUES = 4
COMMANDS = (
    ("add", "one more"),
    ("list",),
    ("claim", "1"),
    ("fsck",),
    ("work", "--drain", "--quiet"),
)


def _refused(
    project: Project, code: int, kind: str, *words: str, before: tuple[str, ...] = ()
) -> None:
    """Every command says the same, to people and to programs."""
    for command in COMMANDS:
        project.dibs(*command, before=before).told(code, *words)
        reply = project.dibs(*command, "--json", before=before)
        assert (reply.quiet().code, reply.error["code"], reply.err) == (code, kind, ""), command


@pytest.fixture
def backlog(project: Project) -> Project:
    return project.begin(pipeline(ttl=AMPLE), ISSUES)


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[None]:
    """Set something aside for a while, and put it back untouched."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        yield
    finally:
        for left in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
        aside.rename(path)


def _random_bytes(file: Path) -> None:
    file.write_bytes(random.Random(7).randbytes(50_000))


def _text(file: Path) -> None:
    file.write_text("this is not a database, it is a note to myself\n" * 100)


def _truncated(file: Path) -> None:
    whole = file.with_name(f"{file.name}.aside").read_bytes()
    file.write_bytes(whole[:5000])


def _garbled_pages(file: Path) -> None:
    whole = file.with_name(f"{file.name}.aside").read_bytes()
    assert len(whole) > 3 * 4096
    file.write_bytes(whole[:4096] + random.Random(7).randbytes(len(whole) - 4096))


def _other_application(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as sql:
        sql.execute("CREATE TABLE issues (something TEXT)")
        sql.execute("CREATE TABLE clock (id INTEGER, high INTEGER)")
        sql.execute("INSERT INTO clock VALUES (1, 0)")
        sql.commit()


@pytest.mark.parametrize("ruin", [_random_bytes, _text, _truncated, _garbled_pages])
def test_a_file_that_is_no_healthy_database_is_named(
    backlog: Project, ruin: Callable[[Path], None]
) -> None:
    with _replaced(backlog.file):
        ruin(backlog.file)
        before = backlog.file.read_bytes()
        _refused(backlog, 1, "DAMAGED", "backlog.db")
        assert backlog.file.read_bytes() == before, "somebody wrote into a damaged file"
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_another_programs_database_is_left_alone(backlog: Project) -> None:
    with _replaced(backlog.file):
        _other_application(backlog.file)
        for command in COMMANDS:
            reply = backlog.dibs(*command).quiet()
            assert reply.code == 1, (command, reply)
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_an_emptied_file_is_told_and_a_new_backlog_is_made_only_by_adding(backlog: Project) -> None:
    with _replaced(backlog.file):
        backlog.file.touch()
        backlog.dibs("list").told(1, str(backlog.file), "empty file")
        assert backlog.dibs("list", "--json").error["code"] == "NO_BACKLOG"
        assert backlog.file.stat().st_size == 0
        assert backlog.dibs("add", "first").code == 0
        assert [entry["issue"] for entry in backlog.dibs("list", "--json").data] == ["#1"]
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_a_folder_in_place_of_the_database(backlog: Project) -> None:
    with _replaced(backlog.file):
        backlog.file.mkdir()
        _refused(backlog, 9, "NOT_PERMITTED", "backlog.db")
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_a_file_in_place_of_the_folder(backlog: Project) -> None:
    with _replaced(backlog.root / ".dibs"):
        (backlog.root / ".dibs").write_text("in the way")
        _refused(backlog, 9, "NOT_PERMITTED", ".dibs")
    backlog.drain()
    backlog.assert_drained(ISSUES)


# Read only


def _assert_read_only(project: Project, *, before: tuple[str, ...] = ()) -> None:
    """Writers are refused with 9; readers answer or are refused, and nobody stumbles."""
    writers = {"add", "claim", "work"}
    for command in COMMANDS:
        for extra in ((), ("--json",)):
            reply = project.dibs(*command, *extra, before=before).quiet()
            if command[0] in writers or reply.code == 9:
                assert reply.code == 9, (command, reply)
                if extra:
                    assert reply.error["code"] == "NOT_PERMITTED"
                else:
                    reply.told(9, "backlog.db")
            else:
                assert reply.code in (0, 3), (command, reply)


def test_a_database_that_may_not_be_written(backlog: Project) -> None:
    before = bare_root()
    if before is None:
        pytest.skip("not run: as root, and no capability can be dropped (no setpriv)")
    backlog.file.chmod(0o444)
    _assert_read_only(backlog, before=before)
    backlog.file.chmod(0o644)
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_a_folder_that_may_not_be_written(backlog: Project) -> None:
    before = bare_root()
    if before is None:
        pytest.skip("not run: as root, and no capability can be dropped (no setpriv)")
    backlog.file.chmod(0o444)
    backlog.file.parent.chmod(0o555)
    _assert_read_only(backlog, before=before)
    backlog.file.parent.chmod(0o755)
    backlog.file.chmod(0o644)
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_a_database_that_may_not_even_be_read(backlog: Project) -> None:
    before = bare_root()
    if before is None:
        pytest.skip("not run: as root, and no capability can be dropped (no setpriv)")
    backlog.file.chmod(0o000)
    _refused(backlog, 9, "NOT_PERMITTED", "backlog.db", before=before)
    backlog.file.chmod(0o644)
    backlog.drain()
    backlog.assert_drained(ISSUES)


def test_an_immutable_database(backlog: Project) -> None:
    """Even the superuser may not write it."""
    tried = (
        subprocess.run(
            ["chattr", "+i", str(backlog.file)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if shutil.which("chattr")
        else None
    )
    if tried is None or tried.returncode:
        pytest.skip(f"not run: chattr +i does not work here: {tried.stderr if tried else 'absent'}")
    try:
        _assert_read_only(backlog)
    finally:
        subprocess.run(["chattr", "-i", str(backlog.file)], check=True, timeout=30)
    backlog.drain()
    backlog.assert_drained(ISSUES)


class Namespace:
    """A private view of the file system, kept open by a process that does nothing."""

    def __init__(self, project: Project, setup: str) -> None:
        script = f"set -e; {setup}; echo ready; exec cat"
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, "sh", str(project.root)],
            env=project.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "ready\n":
            _, said = self._keeper.communicate(timeout=30)
            pytest.skip(f"not run: no mount in a namespace of our own: {said.strip()}")
        view = f"--mount=/proc/{self._keeper.pid}/ns/mnt"
        # nsenter leaves the folder it was started in.
        there = ("sh", "-c", 'cd "$0" && exec "$@"', str(project.root))
        self.enter = ("nsenter", view, "--", *there)

    def run(self, *command: str) -> None:
        subprocess.run([*self.enter, *command], check=True, timeout=30)

    def see(self, path: Path) -> Path:
        """The same path as seen inside."""
        return Path(f"/proc/{self._keeper.pid}/root{path}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._keeper.pid, signal.SIGKILL)
        self._keeper.communicate(timeout=30)


@pytest.fixture
def namespace(project: Project) -> Iterator[Callable[..., Namespace]]:
    made: list[Namespace] = []

    def make(setup: str) -> Namespace:
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            pytest.skip("not run: no unshare or nsenter here")
        made.append(Namespace(project, setup))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_file_system_mounted_read_only(
    backlog: Project, namespace: Callable[..., Namespace]
) -> None:
    setup = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"'
    inside = namespace(setup)
    _assert_read_only(backlog, before=inside.enter)
    backlog.drain()
    backlog.assert_drained(ISSUES)


# Full


def _file_limit(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_file_that_may_not_grow_refuses_the_issue_and_keeps_the_others(backlog: Project) -> None:
    before = backlog.dump()
    big = "x" * 400_000
    told = backlog.dibs("add", "big", "--body-file", "-", given=big, limit=_file_limit(150_000))
    told.told(1, "backlog.db")
    reply = backlog.dibs(
        "add", "big", "--body-file", "-", "--json", given=big, limit=_file_limit(150_000)
    )
    assert (reply.quiet().code, reply.error["code"], reply.err) == (1, "DAMAGED", "")
    assert backlog.dump() == before
    backlog.drain()
    backlog.assert_drained(ISSUES)


@pytest.mark.long
@pytest.mark.parametrize("size", range(132_000, 240_000, 16_000))
def test_a_worker_that_cannot_write_any_more_leaves_and_loses_nothing(
    project: Project, size: int
) -> None:
    """Cut off at one size after another: in a claim, in an ending, in what paints it."""
    project.begin(pipeline(ttl=AMPLE), 12)
    reply = project.dibs("work", "--drain", limit=_file_limit(size)).quiet()
    assert reply.code == 1, reply
    assert "backlog.db" in reply.err
    time_passes(project)
    project.drain()
    project.assert_drained(12)


@pytest.mark.long
def test_a_full_disk(project: Project, namespace: Callable[..., Namespace]) -> None:
    inside = namespace('mount -t tmpfs -o size=600k none "$1"')
    folder = project.root
    project.root = inside.see(project.root)
    project.inside = inside.enter
    project.begin(pipeline(ttl=AMPLE))
    before = 0
    for length in (30_000, 4000):  # few issues, as all are worked below, and little room left
        added = before
        while added < 500:
            titles = (f"issue {added + n}" for n in range(1, 6))
            reply = project.dibs("add", *titles, "--body", "x" * length)
            if reply.code:
                break
            added += 5
        reply.told(1, "backlog.db")
        before = project.sql("SELECT COUNT(*) FROM issues")[0][0]
        assert added <= before < added + 5
    worker = project.dibs("work", "--drain").quiet()
    assert worker.code == 1, worker

    inside.run("mount", "-o", "remount,size=200m", str(folder))
    assert project.sql("PRAGMA integrity_check") == [("ok",)]
    assert project.sql("SELECT COUNT(*) FROM issues") == [(before,)]
    time_passes(project)
    project.drain()
    project.assert_drained(before)
