"""docs/reference/cli.md says what the program does, command by command and option by option."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from dibs.frontends.cli.main import COMMANDS, cli
from dibs.services.board import RowState

from .pages import REFERENCE, ROOT, blocks, codes, headings, name_of, pages, section, table, tables

PAGE = REFERENCE / "cli.md"
COMMON = {"-h", "--help"}


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _walk(inner, f"{path} {name}")


PROGRAM = dict(_walk(cli, "dibs"))


def _options(command: click.Command) -> dict[str, click.Option]:
    return {
        name: param
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def _documented(path: str) -> dict[str, tuple[str, ...]]:
    """The options of a command's table, each with its row."""
    found = [one for one in tables(PAGE) if one.heading == path and one.columns[0] == "option"]
    return {
        spelled.split()[0]: row
        for one in found
        for row in one.rows
        for spelled in codes(row[0])
        if spelled.startswith("-")
    }


def test_every_command_has_a_section_and_every_section_a_command():
    documented = [text for level, text in headings(PAGE) if level == 2]
    assert sorted(documented) == sorted(PROGRAM)


@pytest.mark.parametrize("path", PROGRAM)
def test_every_option_is_documented_and_nothing_else(path):
    known = set(_options(PROGRAM[path]))
    if path == "dibs":
        known |= COMMON
    assert set(_documented(path)) == known


@pytest.mark.parametrize("path", PROGRAM)
def test_the_usage_line_is_the_programs(path):
    command = PROGRAM[path]
    pieces = command.collect_usage_pieces(click.Context(command, info_name=path))
    assert " ".join([path, *pieces]) in section(PAGE, path).splitlines()


@pytest.mark.parametrize("path", PROGRAM)
def test_shown_defaults_are_the_documented_ones(path):
    documented = _documented(path)
    for name, option in _options(PROGRAM[path]).items():
        if option.show_default and not option.is_flag:
            default = f"{option.default:g}" if isinstance(option.default, float) else option.default
            assert str(default) in documented[name][1], f"{path} {name}"


@pytest.mark.parametrize("path", PROGRAM)
def test_required_options_and_variables_are_documented(path):
    documented = _documented(path)
    for name, option in _options(PROGRAM[path]).items():
        if option.required:
            assert "required" in documented[name][1], f"{path} {name}"
        if option.envvar:
            assert f"${option.envvar}" in documented[name][1], f"{path} {name}"


def test_every_command_says_in_a_line_what_it_does():
    silent = [path for path, command in PROGRAM.items() if not command.get_short_help_str()]
    assert silent == []


def test_every_state_of_an_issue_is_documented():
    assert table(PAGE, "dibs list", "state").names() == {state.value for state in RowState}


def test_writing_commands_can_be_tried_dry():
    dry = {path for path in PROGRAM if "--dry-run" in _options(PROGRAM[path])}
    looking = {"add", "init", "claim", "heartbeat", "release", "work", "take", "give-back"}
    looking |= {"pause", "resume", "revoke", "sweep", "fsck", "approve", "label"}
    looking |= {"leases migrate", "follow", "hook install", "hook uninstall"}
    assert dry == {f"dibs {name}" for name in looking}


# Commands that are mentioned anywhere


def _mentions() -> Iterator[tuple[str, str]]:
    for page in pages():
        for block in blocks(page):
            if block.language == "sh":
                for line in block.text.replace("\\\n", " ").splitlines():
                    yield from ((f"{name_of(page)}:{block.line}", one) for one in _calls(line))
        text = page.read_text("utf-8")
        for span in re.findall(r"(?<!`)`(dibs [^`\n]+)`(?!`)", text):
            yield name_of(page), span


def _calls(line: str) -> Iterator[str]:
    for part in re.split(r"&&|\|\||[|;&]|\$\(", line.split(" # ", maxsplit=1)[0]):
        words = re.sub(r"^\s*(?:[A-Z_]+=\S+ +)*", "", part)
        if words.startswith("dibs "):
            yield words


@pytest.mark.parametrize(("place", "line"), sorted(set(_mentions())))
def test_every_command_line_in_the_documentation_exists(place, line):
    try:
        words = shlex.split(line.rstrip(")\"'"))
    except ValueError:
        words = line.split()
    words = [word for word in words[1:] if word not in ("...", "COMMAND", "[ARGS]...")]
    if not words or words[0].startswith("-"):
        known, rest = set(_options(cli)) | COMMON, words
    else:
        assert words[0] in COMMANDS, f"{place}: dibs {words[0]}"
        path = f"dibs {words[0]}"
        if len(words) > 1 and f"{path} {words[1]}" in PROGRAM:
            path = f"{path} {words[1]}"
        known, rest = set(_options(PROGRAM[path])) | COMMON, words[1:]
    rest = rest[: rest.index("--")] if "--" in rest else rest  # what follows is another program's
    unknown = [word for word in rest if word.startswith("-") and len(word) > 1]
    assert [word for word in unknown if word.split("=")[0] not in known] == [], f"{place}: {line}"


def test_every_make_target_that_is_mentioned_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        text = page.read_text("utf-8")
        spans = re.findall(r"`make ([a-z]+)", text) + re.findall(
            r"^make ([a-z]+)", text, re.MULTILINE
        )
        assert set(spans) <= targets, name_of(page)
