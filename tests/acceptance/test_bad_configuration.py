"""A configuration that is wrong is refused before anything is touched, in one clear line."""

import pytest

from .harness import LEDGER, Project, bare_root, pipeline

GOOD = pipeline()
STAGE = "[[stage]]\nname = 'one'\nnext = 'done'\n"
END = "[[stage]]\nname = 'done'\n"

WRONG = {
    "unknown key": ("trakcer = 'sqlite:x.db'", ("'trakcer'", "did you mean 'tracker'?")),
    "unknown key in a stage": (
        f"preset = 'none'\n{STAGE}atempts = 3\n{END}",
        ("'stage[0].atempts'", "did you mean 'attempts'?"),
    ),
    "unknown key in the worker": (
        "[worker]\njbos = 3",
        ("'worker.jbos'", "did you mean 'jobs'?"),
    ),
    "unknown key like no other": ("zzz = 1", ("'zzz'", "known keys:", "tracker")),
    "ttl and renew": (
        f"preset = 'none'\n{STAGE}ttl = '10s'\nrenew = '5s'\n{END}",
        ("stage 'one'", "renew 5s", "ttl 10s"),
    ),
    "margin and renew": (
        f"preset = 'none'\n{STAGE}ttl = '10s'\nrenew = '1s'\nmargin = '2s'\n{END}",
        ("stage 'one'", "margin 2s", "renew 1s"),
    ),
    "ttl and max_ttl": ("ttl = '2h'\nmax_ttl = '1h'\nperson_ttl = '1h'", ("ttl 2h", "max_ttl 1h")),
    "person_ttl and max_ttl": ("max_ttl = '1h'", ("person_ttl 8h", "max_ttl 1h")),
    "a ttl of nothing": ("ttl = '0s'", ("ttl",)),
    "no duration": ("ttl = 'soon'", ("ttl",)),
    "a wrong type": ("ttl = 600", ('ttl: 600 has no unit; write ttl = "10m" for 600 seconds',)),
    "a size without a unit": (
        'output_max = "50"',
        ('output_max: "50" is not a size; write it like output_max = "50MB"',),
    ),
    "a stage's ttl without a unit": (
        "[[stage]]\nname = 'ready'\nttl = 90",
        ("stage[0].ttl", 'write ttl = "1m30s"'),
    ),
    "a duration without a unit": ("ttl = '10'", ('"10" is not a duration', '"90s"')),
    "a number in quotes": ("[worker]\njobs = '3'", ("worker.jobs", "write jobs = 3")),
    "a fraction": ("[worker]\njobs = 1.5", ("worker.jobs", "a whole number", "1.5")),
    "text without quotes": ("runs = 7", ("runs", 'write runs = "7"')),
    "a list of one": ("[labels]\npriorities = 'p0'", ('write priorities = ["p0"]',)),
    "yes for true": ("[people]\nmarkers = 'yes'", ("write markers = true",)),
    "a wrong word": ("[people]\npulls = 'yes'", ("is not one of writers, all, none",)),
    "one bracket": ("[stage]\nname = 'ready'", ("write [[stage]] with two brackets",)),
    "a value for a table": ("worker = 3", ("write [worker]",)),
    "a stage without a name": ("[[stage]]\nrun = 'x'", ("stage[0]: name is missing",)),
    "a name with a space": ("[[stage]]\nname = 'a b'", ('"a b" is not a name',)),
    "a misspelled stage": ("[[stage]]\nname = 'reday'\nrun = 'x'", ("did you mean 'ready'?",)),
    "a misspelled move": ("[[stage]]\nname = 'ready'\nnext = 'reviw'", ("did you mean 'review'?",)),
    "no TOML": ("tracker = = 1", ("not valid TOML", "line 1")),
    "not text": ("\x00\x01\x02", ("not valid TOML",)),
    "unknown preset": ("preset = 'agnet'", ("'agnet'", "did you mean 'agent'?")),
    "unknown next": (
        f"preset = 'none'\n[[stage]]\nname = 'one'\nnext = 'two'\n{END}",
        ("'one'", "'two'"),
    ),
    "two handlers": (
        f"preset = 'none'\n{STAGE}run = 'true'\npython = 'a:b'\n{END}",
        ("stage 'one'", "run and python"),
    ),
    "no function": (f"preset = 'none'\n{STAGE}python = 'module'\n{END}", ("module:function",)),
    "unknown gate": (f"preset = 'none'\n{STAGE}gate = 'vote'\n{END}", ("'vote'",)),
    "no stage": ("preset = 'none'", ("no stage",)),
    "one label for two": (
        f"preset = 'none'\n{STAGE}label = 'claimed'\n{END}",
        ("the same label 'claimed'",),
    ),
    "unknown tracker": ("tracker = 'gopher:x'", ("'gopher:x'", "sqlite:PATH")),
    "unknown store": ("leases = 'raft:x'", ("'raft:x'", "comments")),
    "a tracker without a place": ("tracker = 'sqlite:'", ("sqlite:PATH",)),
}


# Whether it can be opened is found out when it is.
NOT_IN_THE_FILE = {"unknown tracker", "unknown store", "a tracker without a place"}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_by_name_and_nothing_is_touched(project: Project, name: str) -> None:
    text, words = WRONG[name]
    project.configure(text)
    project.dibs("work", "--drain").told(1, *words)
    error = project.dibs("add", "an issue", "--json")
    assert (error.quiet().code, error.error["code"], error.err) == (1, "BAD_CONFIGURATION", "")
    for word in words:
        assert word in error.error["message"]
    if name not in NOT_IN_THE_FILE:
        project.dibs("config", "validate").told(1, *words)
    assert [path.name for path in project.root.iterdir()] == ["dibs.toml"]


def test_what_is_right_is_said_to_be(project: Project) -> None:
    project.configure(GOOD)
    assert project.dibs("config", "validate", "--json").data["valid"] is True
    assert [path.name for path in project.root.iterdir()] == ["dibs.toml"]


def test_a_file_that_is_named_must_be_there(project: Project) -> None:
    project.dibs("--config", "nowhere.toml", "list").told(1, "nowhere.toml")
    assert list(project.root.iterdir()) == []


def test_a_file_that_may_not_be_read(project: Project) -> None:
    before = bare_root()
    if before is None:
        pytest.skip("not run: as root, and no capability can be dropped (no setpriv)")
    project.script("dibs.toml", GOOD, mode=0o000)
    project.dibs("list", before=before).told(9, "dibs.toml", "cannot be read")


def test_the_hint_to_validate_is_given_where_it_helps(project: Project) -> None:
    project.configure("ttl = 600")
    assert "dibs config validate" in project.dibs("list").told(1, "ttl").err
    assert "dibs config validate" not in project.dibs("config", "validate").told(1, "ttl").err
    (project.root / "dibs.toml").unlink()
    for words in (("--config", "no.toml", "list"), ("loop",), ("hook", "install")):
        assert "dibs config validate" not in project.dibs(*words).told(1).err, words
    env = {"DIBS_FAILPOINT": "nowhere"}
    assert "dibs config validate" not in project.dibs("list", env=env).told(1).err


def test_a_failpoint_that_does_not_exist_is_refused(project: Project) -> None:
    project.begin(GOOD)
    project.dibs("list", env={"DIBS_FAILPOINT": "claim.nowhere"}).told(1, "claim.nowhere")


# Handlers

_BAD_HANDLERS = {
    "missing": ("./missing.sh", ("'./missing.sh'", "not found")),
    "missing on the path": ("no-such-program-here --now", ("'no-such-program-here'", "not found")),
    "not executable": ("./plain.sh", ("'./plain.sh'", "executable")),
    "a folder": ("./folder", ("'./folder'", "folder")),
    "unbalanced": ("./run.sh 'oh", ("cannot be read",)),
    "half a command": ("if true; then", ("'if true; then'", "not a valid shell command")),
}
_BAD_CALLABLES = {
    "no module": ("absent:step", ("absent",)),
    "no function": ("steps:absent", ("absent",)),
    "not callable": ("steps:NUMBER", ("int",)),
    "raises": ("raising:step", ("ZeroDivisionError",)),
    "leaves": ("leaving:step", ("leaving:step",)),
    "does not parse": ("garbled:step", ("SyntaxError",)),
}


def _assert_untouched(project: Project) -> None:
    assert project.sql("SELECT COUNT(*) FROM leases") == [(0,)]
    assert project.sql("SELECT COUNT(*) FROM comments") == [(0,)]
    assert project.events() == []
    assert project.labels() == {"stage:one"}
    assert project.failed_attempts() == 0


def _assert_refused_then_mended(project: Project, *words: str, before: tuple[str, ...]) -> None:
    project.dibs("work", "--drain", before=before).told(1, *words)
    error = project.dibs("work", "--once", "--json", before=before)
    assert (error.quiet().code, error.error["code"], error.err) == (1, "HANDLER_UNUSABLE", "")
    _assert_untouched(project)
    project.configure(pipeline())
    project.drain()
    project.assert_drained(1)


@pytest.mark.parametrize("name", _BAD_HANDLERS)
def test_a_command_that_cannot_start_costs_no_attempt(project: Project, name: str) -> None:
    command, words = _BAD_HANDLERS[name]
    project.script("plain.sh", f"#!/bin/sh\n{LEDGER}\n", mode=0o644)
    (project.root / "folder").mkdir()
    project.begin(pipeline(one=command), 1)
    _assert_refused_then_mended(project, *words, before=())


def test_a_script_that_may_not_be_read_costs_no_attempt(project: Project) -> None:
    before = bare_root()
    if before is None:
        pytest.skip("not run: as root, and no capability can be dropped (no setpriv)")
    project.script("secret.sh", f"#!/bin/sh\n{LEDGER}\n", mode=0o311)
    project.begin(pipeline(one="./secret.sh", attempts=2), 1)
    _assert_refused_then_mended(project, "'./secret.sh'", "readable", before=before)


@pytest.mark.parametrize("name", _BAD_CALLABLES)
def test_a_callable_that_cannot_be_loaded_costs_no_attempt(project: Project, name: str) -> None:
    target, words = _BAD_CALLABLES[name]
    project.script("steps.py", "NUMBER = 1\n")
    project.script("raising.py", "1 / 0\n")
    project.script("leaving.py", "raise SystemExit(3)\n")
    project.script("garbled.py", "def step(:\n")
    text = pipeline().replace(f"run = '''{LEDGER}'''", f"python = '{target}'", 1)
    project.begin(text, 1)
    _assert_refused_then_mended(project, *words, before=())


def test_no_handler_at_all_is_said(project: Project) -> None:
    project.begin(f"preset = 'none'\n{STAGE}{END}", 1)
    project.dibs("work", "--drain").told(1, "no handler is set")


def test_a_runs_folder_that_cannot_be_written_costs_no_attempt(project: Project) -> None:
    project.begin(pipeline(ttl="10m"), 1)
    runs = project.root / ".dibs" / "runs"
    runs.write_text("in the way")
    reply = project.worker("worker", "--drain").wait().quiet()
    assert reply.code == 1
    assert "cannot write the run's folder" in reply.err + reply.out
    assert project.failed_attempts() == 0
    assert project.labels() == {"stage:one"}
    assert [outcome for *_, outcome in project.endings()] == ["returned"]
    runs.unlink()
    project.drain()
    project.assert_drained(1)


def test_a_journal_that_cannot_be_written_stops_nothing(project: Project) -> None:
    (project.root / ".dibs" / "events.jsonl").mkdir(parents=True)
    project.begin(pipeline(), 2)
    reply = project.drain()
    assert reply.err.count("cannot be written") == 1
    project.assert_drained(2)
