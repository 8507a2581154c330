"""A broken handler and sixty issues: real workers, real handlers, the embedded backlog."""

import pytest

from dibs.adapters.runners.process import last_words_of
from dibs.core.words import Masker, secrets_in

from .harness import LEDGER, Project, pipeline
from .terms import AMPLE

FAULTS = {
    "codexx --full-auto": "codexx",
    "echo 401: key expired >&2; exit 1": "401: key expired",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_handler_costs_sixty_issues_nothing(project: Project, fault: str) -> None:
    handler = f"{LEDGER}; test -e mended && exit 0; {fault}"
    project.begin(pipeline(one=handler, two="true", attempts=1, ttl=AMPLE), 60)
    reply = project.worker("worker", "--drain").wait().quiet()
    assert reply.code == 1
    assert 1 <= len(project.lines()) <= 5
    assert list(reply.data["stopped"]) == ["one"]
    assert FAULTS[fault] in reply.data["stopped"]["one"]
    assert "stage one is stopped" in reply.err
    assert "Mend the handler" in reply.err
    assert project.dibs("status", "--json").data["parked"] == 0
    assert project.failed_attempts() == 0
    assert len(project.dibs("ready", "--json").data) == 60

    (project.root / "mended").touch()
    assert project.drain().data["outcomes"] == {"advanced": 120}


def test_once_exits_with_1_too(project: Project) -> None:
    project.begin(pipeline(one="exit 1", ttl=AMPLE, extra="breaker = 1"), 2)
    reply = project.worker("worker", "--once").wait().quiet()
    assert reply.code == 1
    assert reply.data["outcomes"] == {"returned": 1}


def test_all_parked_issues_are_put_back_by_one_command(project: Project) -> None:
    project.begin(pipeline(one="exit 1", attempts=1, ttl=AMPLE, extra="breaker = 0"), 25)
    project.worker("worker", "--drain").wait().quiet()
    project.dibs("pause", "7", "--reason", "not yet")
    numbers = [f"#{number}" for number in range(1, 26)]
    planned = project.dibs("resume", "--parked", "--dry-run", "--json")
    assert planned.data == {"would_resume": numbers}
    assert project.dibs("resume", "--parked", "--stage", "two").code == 3
    assert project.dibs("resume", "--parked", "--stage", "nowhere").code == 2
    assert project.dibs("resume", "--stage", "one", "1").code == 2
    assert project.dibs("resume", "--parked", "1").code == 2
    reply = project.dibs("resume", "--parked", "--stage", "one", "--json")
    assert reply.data == {"resumed": numbers, "refused": []}
    assert "20 of 25 parked issues are done" in reply.err
    assert project.dibs("resume", "--parked").code == 3
    assert project.dibs("status", "--json").data["parked"] == 0
    assert project.dibs("why", "7", "--json").data["reasons"][0]["code"] == "PAUSED"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", ""),
        ("one\n\n  two  \n", "one / two"),
        ("a\nb\nc\nd\n", "b / c / d"),
        ("\x1b[31mred\x1b[0m \x07bell\n", "red bell"),
        ("\x1b]0;title\x07text", "text"),
        ("key sk-secret-1 is bad", "key *** is bad"),
        ("at https://me:pass@host/path", "at https://***@host/path"),
        ("x" * 300, f"...{'x' * 147}"),
        ("long " * 20 + "\n" + "y" * 100, "y" * 100),
    ],
)
def test_the_last_words_of_a_handler_are_short_and_safe(output: str, words: str) -> None:
    mask = Masker(secrets_in({"SOME_API_KEY": "sk-secret-1", "SHORT_KEY": "x"}))
    assert last_words_of(output, mask) == words
