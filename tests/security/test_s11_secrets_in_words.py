"""S11: a handler's note, question or error carries a secret, and dibs publishes it.

Actor: a handler, without malice: errors of git and HTTP libraries carry addresses with tokens, and
an exception's text becomes the note by itself. The attack ends an attempt with a text that holds a
secret, and looks wherever dibs repeats the text: card, parking comment, journal, store, answers,
the worker's own lines and its log. The wall: words are masked where they leave, by the values of
the worker's own secrets and by the shapes of known tokens. The handler's own files (output.log,
result.json) are not masked.

No setting switches the wall off. One control takes it out of this process: then the secrets arrive.
The other is a word that is no secret, in each attempt: it arrives at every outlet, so every outlet
was looked at.
"""

import base64
import json
import logging
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.in_process import run_in_process

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import BadConfiguration
from dibs.core.ids import IssueRef
from dibs.frontends.cli import output
from dibs.frontends.cli.leasing import describe_claim
from dibs.frontends.cli.main import run
from dibs.services.claiming import Refused
from dibs.wiring import clean_record, mask
from dibs_lab.fakehub import FakeHub, Limits, Permission

from .conftest import SECRETS, Victim

CONTROL = "HARMLESSwordwithoutashape"
AWS, KEY = SECRETS["AWS_SECRET_ACCESS_KEY"], SECRETS["DIBS_SIGNING_KEY"]
# Each text that a handler may say, and what must not be left of it.
TEXTS = {
    **{secret: secret for secret in SECRETS.values()},
    "https://x-access-token:CANARYinurl0000@git.example/a.git": "CANARYinurl",
    "ghs_CANARYshapedonly00000000000000000000": "CANARYshaped",
    f"key {urllib.parse.quote(KEY, safe='')}": "CANARYsign",
    base64.b64encode(f"user:{AWS}".encode()).decode(): base64.b64encode(
        AWS[3:18].encode()
    ).decode(),
    "Authorization: Basic Q0FOQVJZOnBhc3N3b3Jk": "Q0FOQVJZ",
}
FEW = dict(list(TEXTS.items())[::3])
SETTINGS = """
{tracker}
ttl = "30s"
preset = "none"
[[stage]]
name = "ready"
next = "done"
attempts = 1
{how}
[[stage]]
name = "done"
"""
NUMBERED = 'run = "cat answer-${{DIBS_ISSUE##*#}} > $DIBS_RESULT; exit {code}"'
THE_HANDLERS_OWN = ("output.log", "result.json")


def _begin(victim: Victim, how: str, tracker: str = "", texts: Mapping[str, str] = TEXTS) -> None:
    victim.configure(SETTINGS.format(how=how, tracker=tracker))
    reply = victim.dibs("add", *(f"case {number}" for number in range(1, len(texts) + 1)))
    assert reply.returncode == 0, reply.stderr


def _worked(victim: Victim, texts: Mapping[str, str] = TEXTS) -> str:
    """What the workers say. Each works one issue: a row of failures would stop the stage."""
    said = ""
    for _ in texts:
        worked = victim.dibs("-v", "work", "--once")
        assert "claimed 1" in worked.stdout + worked.stderr, worked
        said += worked.stdout + worked.stderr
    return said


def _leave_answers(victim: Victim, key: str, texts: Mapping[str, str]) -> None:
    for number, text in enumerate(texts, 1):
        answer = json.dumps({key: f"{CONTROL} {text} (end)"})
        (victim.folder / f"answer-{number}").write_text(answer, "utf-8")


def _outlets(victim: Victim) -> dict[str, str]:
    """What dibs says and what dibs wrote down, by the outlet."""
    found = {}
    for words in [("status",), ("list", "--all"), ("runs",)]:
        found[" ".join(words)] = victim.dibs(*words).stdout
    for number in ("1", "3", "8"):  # the database has the notes of all; see the files below
        for words in [("show", number), ("runs", number, "--json")]:
            found[" ".join(words)] = victim.dibs(*words).stdout
    for file in (victim.folder / ".dibs").rglob("*"):
        if file.is_file() and file.name not in THE_HANDLERS_OWN:
            found[file.name] = file.read_bytes().decode("utf-8", "replace")
    return found


def _left(outlets: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, s) for name, text in outlets.items() for s in TEXTS.values() if s in text]


@pytest.mark.parametrize(("key", "code"), [("note", 0), ("note", 1), ("ask", 77)])
def test_notes_and_questions_are_masked_at_every_outlet(
    victim: Victim, key: str, code: int
) -> None:
    texts = TEXTS if code == 1 else FEW
    _begin(victim, NUMBERED.format(code=code), texts=texts)
    _leave_answers(victim, key, texts)
    outlets = {"the worker": _worked(victim, texts), **_outlets(victim)}
    for control in ("the worker", "events.jsonl", "show 1", "runs 1 --json", "backlog.db"):
        assert CONTROL in outlets[control], control
    assert _left(outlets) == []


def test_the_control_without_the_wall_the_secrets_arrive(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.core.words._SHAPES", ())
    monkeypatch.setattr("dibs.core.words.secrets_in", lambda _: ())
    _begin(victim, NUMBERED.format(code=1))
    _leave_answers(victim, "note", TEXTS)
    ran = run_in_process(run, ["-v", "work", "--once"], cwd=victim.folder, env=victim.env)
    journal = (victim.folder / ".dibs/events.jsonl").read_text("utf-8")
    assert {name for name, _ in _left({"worker": ran.stderr, "journal": journal})} == {
        *("worker", "journal")
    }


def test_a_note_of_a_command_and_the_reason_of_a_person_are_masked(victim: Victim) -> None:
    _begin(victim, "")
    for number, text in enumerate(TEXTS, 1):
        words = f"{CONTROL} {text}"
        if number % 3 == 0:
            victim.dibs("pause", str(number), "--reason", words)
            continue
        claimed = json.loads(victim.dibs("claim", str(number), "--json").stdout)
        run = claimed["data"]["run"]
        if number % 3 == 1:
            victim.dibs(
                "release", str(number), "--run", run, "--outcome", "failed", "--note", words
            )
        else:
            victim.dibs("revoke", str(number), "--reason", words)
    outlets = _outlets(victim)
    for control in ("events.jsonl", "show 1", "backlog.db"):
        assert CONTROL in outlets[control], control
    assert _left(outlets) == []


def test_an_exception_and_last_words_are_masked(victim: Victim) -> None:
    module = (
        "texts = open('answers').read().split('\\n\\n')\n"
        "def work(work):\n"
        "    text = texts[int(work.issue['issue'].rpartition('#')[2]) - 1]\n"
        f"    raise RuntimeError('{CONTROL} ' + text)\n"
    )
    (victim.folder / "handlers.py").write_text(module, "utf-8")
    (victim.folder / "answers").write_text("\n\n".join(TEXTS), "utf-8")
    _begin(victim, 'python = "handlers:work"')
    outlets = {"the worker": _worked(victim), **_outlets(victim)}
    for control in ("the worker", "events.jsonl", "show 1"):
        assert CONTROL in outlets[control], control
    assert _left(outlets) == []
    # The output of a run is shown without them as well; the file itself is the handler's.
    run = json.loads(victim.dibs("runs", "1", "--json").stdout)["data"][0]["run"]
    for words in (("runs", "--output", run), ("runs", "--output", run, "--json")):
        shown = victim.dibs(*words).stdout
        assert CONTROL in shown
        assert _left({"output": shown}) == []


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(limits=Limits.off()) as opened:
        opened.repository("acme/shop")
        may = {"acme/shop": Permission.WRITE}
        opened.user("fleet", may, token=SECRETS["GITHUB_TOKEN"])
        yield opened


@pytest.mark.parametrize(("key", "code"), [("note", 0), ("note", 1), ("ask", 77)])
def test_cards_and_parking_comments_on_github_are_masked(
    victim: Victim, hub: FakeHub, key: str, code: int
) -> None:
    victim.env["GITHUB_API_URL"] = hub.url
    tracker = 'tracker = "github:acme/shop"\nsettle = "50ms"'
    _begin(victim, NUMBERED.format(code=code), tracker, FEW)
    _leave_answers(victim, key, FEW)
    _worked(victim, FEW)
    repository = hub.state.named("acme/shop").id
    view = hub.state.view().primary
    bodies = {
        f"comment {comment.id}": urllib.parse.unquote(comment.body)
        for number in range(1, len(FEW) + 1)
        for comment in view.comments(view.issue(repository, number).id)
    }
    assert sum(CONTROL in body for body in bodies.values()) >= len(FEW) * (2 if code else 1)
    assert _left(bodies) == []


# Errors, warnings, progress and log lines, in this process


@pytest.fixture
def secretive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)


@pytest.mark.usefixtures("secretive")
def test_errors_warnings_and_progress_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS:
        failure = BadConfiguration(f"{CONTROL}: {text}", hint=f"look at {text}")
        output.emit_error(failure, as_json=False)
        output.emit_error(failure, as_json=True)
        output.tell(f"#1 parked ({text})")
        for as_json in (False, True):
            output.emit(output.Answer(None, warnings=[f"{text} was refused"]), as_json=as_json)
    seen = capsys.readouterr()
    assert seen.err.count(CONTROL) == seen.out.count(CONTROL) == len(TEXTS)
    assert _left({"out": seen.out, "err": seen.err}) == []


@pytest.mark.usefixtures("secretive")
@pytest.mark.parametrize("as_json", [False, True])
def test_what_an_answer_says_of_a_failure_is_masked(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """The reasons of `why`, which succeeds, and all that a refused or failed command answers."""
    for text in TEXTS:
        words = f"{CONTROL} {text}"
        reasons = (Reason(ReasonCode.STORE_AWAY, words, f"look at {text}"),)
        lines = output.reason_lines(reasons)
        why = output.Answer({"reasons": output.reason_data(reasons)}, lines)
        output.emit(why, as_json=as_json)
        output.emit(describe_claim(Refused(IssueRef("", "1"), reasons)), as_json=as_json)
        failure = output.Answer({"of": [{"why": (words,)}]}, [words], output.Exit.UNPROVEN)
        output.emit(failure, as_json=as_json)
    seen = capsys.readouterr()
    assert (seen.out + seen.err).count(CONTROL) == 3 * len(TEXTS)
    assert _left({"out": seen.out, "err": seen.err}) == []


@pytest.mark.usefixtures("secretive")
def test_log_lines_and_their_tracebacks_are_masked_and_forge_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.addFilter(clean_record)
    log = logging.getLogger("dibs.security")
    log.addHandler(handler)
    try:
        for text in TEXTS:
            failure = RuntimeError(f"{text}\nINFO forged \x1b[2J")
            log.error("%s %s\nINFO forged", CONTROL, text, exc_info=failure)
    finally:
        log.removeHandler(handler)
    seen = capsys.readouterr().err
    assert seen.count(CONTROL) == len(TEXTS)
    assert "RuntimeError: " in seen
    assert not any(line.startswith("INFO") for line in seen.splitlines())
    assert "\x1b" not in seen
    assert _left({"log": seen}) == []


def test_a_secret_that_was_read_from_a_file_is_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.adapters import system

    monkeypatch.setattr(system, "_learned", frozenset())
    words = "it is CANARYfromafile1 and no shape tells"
    assert mask(words) == words, "the control: nobody has named it a secret"
    system.learn_secret("DIBS_SIGNING_KEY", "fleet:CANARYfromafile1")
    assert mask(words) == "it is *** and no shape tells"


@pytest.mark.usefixtures("secretive")
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    "outlet",
    [
        *("about_signing", "about_gates", "about_handlers", "about_environment", "about_places"),
        *("about_wires", "about_terms"),
    ],
)
def test_doctor_masks_the_errors_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outlet: str, fails: bool
) -> None:
    from dibs.services import diagnosing

    (tmp_path / "dibs.toml").write_text("")

    said = f"{CONTROL} {' '.join(TEXTS)}"

    def refuse(*_: object) -> Iterator[object]:
        error = BadConfiguration(said, hint=said)
        yield (
            diagnosing.failed("signing", error)
            if fails
            else diagnosing.Finding("signing", diagnosing.Level.WARN, said, said)
        )

    monkeypatch.setattr(diagnosing, outlet, refuse)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **SECRETS}
    run_in_process(run, ["init"], cwd=tmp_path, env=env)
    for words in (["doctor"], ["doctor", "--json"]):
        ran = run_in_process(run, words, cwd=tmp_path, env=env)
        assert (ran.stdout + ran.stderr).count(CONTROL) >= 2
        assert _left({"doctor": ran.stdout + ran.stderr}) == []


@pytest.mark.usefixtures("secretive")
@pytest.mark.parametrize("as_json", [False, True])
def test_doctor_masks_what_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    said = f"{CONTROL} {' '.join(TEXTS)}"

    def refuse(*_: object, **__: object) -> None:
        raise BadConfiguration(said, hint=said)

    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **SECRETS}
    run_in_process(run, ["init"], cwd=tmp_path, env=env)
    for place in (
        "dibs.services.diagnosing.Diagnosing.examine",
        "dibs.wiring.services.refuse_to_pass",
        "dibs.wiring.services.keyring_of",
        "dibs.wiring.trackers.tracker_kind",
        "dibs.settings.load.load",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, refuse)
            words = ["doctor", *(["--json"] * as_json)]
            ran = run_in_process(run, words, cwd=tmp_path, env=env)
        assert _left({place: ran.stdout + ran.stderr}) == []
        assert CONTROL in ran.stdout + ran.stderr, place
