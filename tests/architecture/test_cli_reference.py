"""docs/reference/cli.md says what the program does, command by command and option by option."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator

import click

from dibs.core.roles import GivenBy
from dibs.frontends.cli.main import COMMANDS, GIVEN_BY, cli
from dibs.label_state import program as label_state
from dibs.services.board import RowState

from .pages import (
    REFERENCE,
    ROOT,
    blocks,
    codes,
    headings,
    name_of,
    pages,
    section,
    table,
    tables,
    text,
)

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
    documented = Counter(heading for level, heading in headings(PAGE) if level == 2)
    commands = Counter(list(PROGRAM))
    wrong = [f"{name_of(PAGE)}: has no section {path!r}" for path in commands - documented]
    wrong += [
        f"{name_of(PAGE)}: {path!r} is no command, or twice" for path in documented - commands
    ]
    assert not wrong, "\n".join(wrong)


def test_every_option_is_documented_and_nothing_else():
    wrong = []
    for path, command in PROGRAM.items():
        known = set(_options(command)) | (COMMON if path == "dibs" else set())
        documented = set(_documented(path))
        place = f"{name_of(PAGE)}: {path}"
        wrong += [f"{place} {name}: is not documented" for name in sorted(known - documented)]
        wrong += [f"{place} {name}: does not exist" for name in sorted(documented - known)]
    assert not wrong, "\n".join(wrong)


def test_the_usage_line_is_the_programs():
    wrong = []
    for path, command in PROGRAM.items():
        pieces = command.collect_usage_pieces(click.Context(command, info_name=path))
        usage = " ".join([path, *pieces])
        if (2, path) not in headings(PAGE) or usage not in section(PAGE, path).splitlines():
            wrong.append(f"{name_of(PAGE)}: {path}: does not show {usage!r}")
    assert not wrong, "\n".join(wrong)


def test_shown_defaults_are_the_documented_ones():
    wrong = []
    for place, option, said in _options_with_what_is_said():
        if option.show_default and not option.is_flag:
            default = f"{option.default:g}" if isinstance(option.default, float) else option.default
            if str(default) not in said:
                wrong.append(f"{place}: does not say {default}")
    assert not wrong, "\n".join(wrong)


def test_required_options_and_variables_are_documented():
    wrong = []
    for place, option, said in _options_with_what_is_said():
        if option.required and "required" not in said:
            wrong.append(f"{place}: does not say that it is required")
        if option.envvar and f"${option.envvar}" not in said:
            wrong.append(f"{place}: does not say ${option.envvar}")
    assert not wrong, "\n".join(wrong)


def _options_with_what_is_said() -> Iterator[tuple[str, click.Option, str]]:
    """Every option of every command, and what its row says of it: nothing if it has none."""
    for path, command in PROGRAM.items():
        documented = _documented(path)
        for name, option in _options(command).items():
            said = documented[name][1] if name in documented else ""
            yield f"{name_of(PAGE)}: {path} {name}", option, said


def test_every_command_says_in_a_line_what_it_does():
    silent = [path for path, command in PROGRAM.items() if not command.get_short_help_str()]
    assert silent == []


def test_every_state_of_an_issue_is_documented():
    assert table(PAGE, "dibs list", "state").names() == {state.value for state in RowState}


def test_writing_commands_can_be_tried_dry():
    dry = {path for path in PROGRAM if "--dry-run" in _options(PROGRAM[path])}
    looking = {"add", "init", "claim", "heartbeat", "release", "work", "take", "give-back"}
    looking |= {"pause", "resume", "revoke", "sweep", "fsck", "approve", "reject"}
    looking |= {"plan", "label"}
    looking |= {"leases migrate", "follow", "hook install", "hook uninstall"}
    assert dry == {f"dibs {name}" for name in looking}


# Commands that are mentioned anywhere


def _mentions() -> Iterator[tuple[str, str]]:
    for page in pages():
        for block in blocks(page):
            if block.language == "sh":
                for line in block.text.replace("\\\n", " ").splitlines():
                    yield from ((f"{name_of(page)}:{block.line}", one) for one in _calls(line))
        written = text(page)
        for span in re.finditer(r"(?<!`)`(dibs [^`\n]+)`(?!`)", written):
            yield f"{name_of(page)}:{_line(written, span)}", span[1]


def _line(written: str, found: re.Match[str]) -> int:
    return written.count("\n", 0, found.start()) + 1


def _calls(line: str) -> Iterator[str]:
    for part in re.split(r"&&|\|\||[|;&]|\$\(", line.split(" # ", maxsplit=1)[0]):
        words = re.sub(r"^\s*(?:[A-Z_]+=\S+ +)*", "", part)
        if words.startswith("dibs "):
            yield words


def test_every_command_line_in_the_documentation_exists():
    mentions = list(_mentions())
    assert mentions
    wrong = [
        f"{place}: {line}: there is no {unknown}"
        for place, line in mentions
        for unknown in _unknown(line)
    ]
    assert not wrong, "\n".join(wrong)


def _unknown(line: str) -> list[str]:
    """The command of a line if it does not exist, or those of its options that do not."""
    try:
        words = shlex.split(line.rstrip(")\"'"))
    except ValueError:
        words = line.split()
    words = [word for word in words[1:] if word not in ("...", "COMMAND", "[ARGS]...")]
    if not words or words[0].startswith("-"):
        known, rest = set(_options(cli)) | COMMON, words
    elif words[0] not in COMMANDS:
        return [f"dibs {words[0]}"]
    else:
        path = f"dibs {words[0]}"
        if len(words) > 1 and f"{path} {words[1]}" in PROGRAM:
            path = f"{path} {words[1]}"
        known, rest = set(_options(PROGRAM[path])) | COMMON, words[1:]
    rest = rest[: rest.index("--")] if "--" in rest else rest  # what follows is another program's
    options = [word for word in rest if word.startswith("-") and len(word) > 1]
    return [word for word in options if word.split("=")[0] not in known]


def test_every_make_target_that_is_mentioned_exists():
    targets = set(re.findall(r"^([a-z][a-z-]*):", text(ROOT / "Makefile"), re.MULTILINE))
    wrong = [
        f"{name_of(page)}:{_line(text(page), mention)}: make {mention[1]}"
        for page in pages()
        for mention in re.finditer(r"(?:`|^)make ([a-z][a-z-]*)", text(page), re.MULTILINE)
        if mention[1] not in targets
    ]
    assert not wrong, "\n".join(wrong)


# Inside a run


def test_every_command_says_who_gives_it_inside_a_run():
    """A command without an entry would be refused to handlers, without a decision."""
    commands = [path for path, one in PROGRAM.items() if not isinstance(one, click.Group)]
    assert {path.removeprefix("dibs ") for path in commands} == set(GIVEN_BY)
    assert set(GIVEN_BY.values()) == {one.value for one in GivenBy}


def test_the_page_lists_the_commands_by_who_gives_them():
    listed = {row[0]: set(codes(row[1])) for row in table(PAGE, "Inside a run").rows}
    given = {who: {n for n, by in GIVEN_BY.items() if by == who} for who in GIVEN_BY.values()}
    assert listed == given


def test_the_commands_of_label_state_that_write_are_operators():
    commands = dict(_walk(label_state.cli, "label-state"))
    operators = {
        path for path, one in commands.items() if isinstance(one, label_state.OperatorsCommand)
    }
    groups = {path for path, one in commands.items() if isinstance(one, click.Group)}
    reading = {"label-state dedup-check", "label-state status-issue", "label-state repo list"}
    assert set(commands) - groups - operators == reading
