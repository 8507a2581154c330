"""Finding the way: help in groups, suggestions that do no harm, and what a shell completes."""

from pathlib import Path

import pytest

from dibs.frontends.cli.main import COMMANDS, GROUPS
from dibs.frontends.cli.suggesting import MEANT, READING, suggestion

from .harness import Project, pipeline


def test_every_command_is_in_one_group_with_a_few_words() -> None:
    grouped = [name for group in GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(COMMANDS)
    long = [few for group in GROUPS.values() for few in group.values() if len(few) > 24]
    assert long == []


def test_help_fits_a_screen_of_80_by_40(project: Project) -> None:
    reply = project.dibs("--help", env={"COLUMNS": "80"})
    lines = reply.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith("...") and "Usage" not in line] == []
    for group in GROUPS:
        assert f"{group}:" in lines
    assert project.dibs("help", env={"COLUMNS": "80"}).out == reply.out


def test_on_a_narrow_screen_help_has_one_column(project: Project) -> None:
    lines = project.dibs("--help", env={"COLUMNS": "50"}).out.splitlines()
    assert max(map(len, lines)) <= 50
    assert {line.split()[0] for line in lines if line} >= set(COMMANDS)


@pytest.mark.parametrize("words", [("work",), ("config", "show"), ("give-back",)], ids=" ".join)
def test_help_of_a_command_is_what_the_command_says(
    project: Project, words: tuple[str, ...]
) -> None:
    assert project.dibs("help", *words).out == project.dibs(*words, "--help").out


def test_help_of_what_is_no_command_is_refused(project: Project) -> None:
    for words in (("nothing",), ("work", "hard"), ("config", "shwo")):
        reply = project.dibs("help", *words).quiet()
        assert (reply.code, reply.out) == (2, ""), words


# Suggestions


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("create", "add"), ("new", "add"), ("ls", "list"), ("unpause", "resume")),
        *(("lsit", "list"), ("statsu", "status"), ("stauts", "status"), ("doktor", "doctor")),
        *(
            ("calim", "claim"),
            ("relase", "release"),
            ("aprove", "approve"),
            ("giveback", "give-back"),
        ),
        *(("wrok", "work"), ("pasue", "pause"), ("Show", "show"), ("give_back", "give-back")),
        *((word, None) for word in ("delete", "delte", "clean", "claen", "clear", "remove", "rm")),
        *((word, None) for word in ("purge", "reset", "destroy", "kill", "stop", "make", "", "-")),
    ],
)
def test_a_mistyped_word_is_met_with_a_safe_guess_or_none(word: str, meant: str | None) -> None:
    assert suggestion(word, COMMANDS) == meant


def test_what_is_suggested_exists() -> None:
    assert set(MEANT.values()) <= set(COMMANDS)
    assert set(COMMANDS) >= READING
    assert not set(MEANT) & set(COMMANDS)


def test_the_guess_is_in_the_refusal(project: Project) -> None:
    said = project.dibs("create", "an issue")
    assert (said.code, "Did you mean 'add'?" in said.err) == (2, True)
    said = project.dibs("delete", "1")
    assert (said.code, "Did you mean" in said.err, "dibs help" in said.err) == (2, False, True)


# Completion


def _completed(project: Project, *words: str, shell: str = "zsh") -> list[tuple[str, str]]:
    """What a shell offers for the last word: each value with its description."""
    asked = {
        "_DIBS_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(("dibs", *words)),
        "COMP_CWORD": str(len(words)),
    }
    reply = project.dibs(env=asked, alone=True).quiet()
    assert (reply.code, reply.err) == (0, "")
    lines = reply.out.splitlines()
    return [(lines[i + 1], lines[i + 2]) for i in range(0, len(lines) - 2, 3)]


def test_issues_and_runs_are_completed(project: Project) -> None:
    project.begin(pipeline(ttl="1h"), 12, history=False)
    project.sql("UPDATE issues SET title = 'one' || char(10) || 'two' WHERE number = 1")
    assert [value for value, _ in _completed(project, "show", "1")] == ["1", "10", "11", "12"]
    assert _completed(project, "take", "1")[0] == ("1", "one\\ntwo")
    assert len(_completed(project, "approve", "3", "")) == 12
    assert _completed(project, "why", "x") == []
    run = project.dibs("claim", "1", "--json").data["run"]
    assert [value for value, _ in _completed(project, "heartbeat", "1", "--run", "")] == [run]
    assert project.dibs("work", "--once", "--quiet").code == 0
    (here,) = [path.name for path in (project.root / ".dibs/runs").glob("[!.]*")]
    assert here in dict(_completed(project, "runs", "--output", here[:4]))


def test_where_nothing_can_be_looked_up_nothing_is_offered(project: Project) -> None:
    assert _completed(project, "show", "") == []
    project.configure("ttl = [")
    assert _completed(project, "show", "") == []
    project.configure("tracker = 'github:owner/repo'\n[github]\napi = 'http://127.0.0.1:9'\n")
    assert _completed(project, "show", "") == []
    assert _completed(project, "heartbeat", "1", "--run", "") == []
    assert [path.name for path in project.root.iterdir()] == ["dibs.toml"]


def test_on_another_tracker_the_runs_of_this_machine_are_offered(project: Project) -> None:
    project.configure("tracker = 'github:owner/repo'\n")
    folder: Path = project.root / ".dibs/runs/abc"
    folder.mkdir(parents=True)
    (folder / "issue.json").write_text('{"issue": "owner/repo#7", "title": "seven"}')
    assert _completed(project, "show", "") == [("owner/repo#7", "seven")]
    assert _completed(project, "runs", "--output", "a") == [("abc", "owner/repo#7 seven")]
