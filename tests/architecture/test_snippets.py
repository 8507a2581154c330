"""What is shown can be used: TOML is valid, Python compiles, shell parses, the quickstart runs."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dibs
from dibs.core.errors import DibsError
from dibs.settings import load as config

from .pages import DOCS, ROOT, Block, blocks, name_of, pages

QUICKSTART = DOCS / "start" / "quickstart.md"
_PATIENCE_S = 60


def _shown(language: str) -> list[tuple[str, Block]]:
    """Every block of a language, with its place. There is at least one, or the rule is idle."""
    found = [
        (f"{name_of(page)}:{block.line}", block)
        for page in pages()
        for block in blocks(page)
        if block.language == language
    ]
    assert found, f"no page shows {language}"
    return found


def test_every_block_says_its_language():
    silent = [
        f"{name_of(page)}:{b.line}" for page in pages() for b in blocks(page) if not b.language
    ]
    assert not silent, "\n".join(silent)


def test_toml_is_a_valid_configuration(tmp_path):
    wrong = []
    for place, block in _shown("toml"):
        try:
            given = tomllib.loads(block.text)
            if "trust" in given:
                msgspec.convert(given, config.UserFile)
                continue
            settings = config.from_mapping(given, source="the page", root=tmp_path)
        except (DibsError, ValueError) as flaw:
            wrong.append(f"{place}: {flaw}")
        else:
            wrong += [] if settings.pipeline.stages else [f"{place}: has no stage"]
    assert not wrong, "\n".join(wrong)


def test_toml_uses_only_what_the_schema_knows():
    """By the published schema, as an editor would: keys of each table, and required ones."""
    defs = config.schema()["$defs"]
    wrong = [
        f"{place}: {misfit}"
        for place, block in _shown("toml")
        for misfit in _misfits(block.text, defs)
    ]
    assert not wrong, "\n".join(wrong)


def _misfits(written: str, defs: dict) -> list[str]:
    try:
        given = tomllib.loads(written)
        return [] if "trust" in given else list(_unfit(given, defs["ConfigFile"], defs))
    except tomllib.TOMLDecodeError as flaw:
        return [str(flaw)]


def _unfit(value: object, shape: dict, defs: dict) -> Iterator[str]:
    if "$ref" in shape:
        yield from _unfit(value, defs[shape["$ref"].rsplit("/", 1)[1]], defs)
        return
    if "anyOf" in shape:
        return  # a value or nothing: the program's own validation looks at those
    match value:
        case dict() if "properties" not in shape:  # its keys are the user's
            for inner in value.values():
                yield from _unfit(inner, shape["additionalProperties"], defs)
        case dict():
            yield from _unfit_table(value, shape, defs)
        case list():
            for inner in value:
                yield from _unfit(inner, shape.get("items", {}), defs)
        case str():
            yield from _unfit_text(value, shape)


def _unfit_text(value: str, shape: dict) -> Iterator[str]:
    if "enum" in shape:
        yield from () if value in shape["enum"] else [f"{value!r} is none of {shape['enum']}"]
    elif shape["type"] != "string" or not re.search(shape.get("pattern", ""), value):
        yield f"{value!r} is no {shape['type']} {shape.get('pattern', '')}"


def _unfit_table(value: dict, shape: dict, defs: dict) -> Iterator[str]:
    known = shape["properties"]
    yield from (f"{key!r} is not known" for key in value if key not in known)
    yield from (f"{key!r} is missing" for key in shape.get("required", ()) if key not in value)
    for key, inner in value.items():
        yield from _unfit(inner, known[key], defs) if key in known else ()


def test_json_is_json():
    wrong = []
    for place, block in _shown("json"):
        try:
            json.loads(block.text)
        except ValueError as flaw:
            wrong.append(f"{place}: {flaw}")
    assert not wrong, "\n".join(wrong)


def test_python_compiles_and_uses_public_names():
    wrong = []
    for place, block in _shown("python"):
        try:
            used = _used_of_dibs(ast.parse(block.text))
        except SyntaxError as flaw:
            wrong.append(f"{place}: {flaw}")
        else:
            unknown = used - {*dibs.__all__, "aio"}
            wrong += [f"{place}: dibs.{name} is not public" for name in sorted(unknown)]
    assert not wrong, "\n".join(wrong)


def _used_of_dibs(tree: ast.Module) -> set[str]:
    """What is written as `dibs.name`, or imported from `dibs`."""
    used = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="dibs"), attr=name):
                used.add(name)
            case ast.ImportFrom(module="dibs", names=names):
                used |= {alias.name for alias in names}
    return used


RUNNABLE = [
    pytest.param(block, id=place) for place, block in _shown("python") if "run" in block.words
]


@pytest.mark.parametrize("block", RUNNABLE)
def test_python_that_can_be_run_runs(block, tmp_path):
    """In a folder whose backlog has twelve issues, so that number 12 is there."""
    with dibs.open(tmp_path) as backlog:
        for number in range(1, 13):
            backlog.add(f"issue {number}")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.text],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_parses():
    wrong = []
    for place, block in _shown("sh"):
        done = subprocess.run(
            ["sh", "-n", "-c", block.text], capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode:
            wrong.append(f"{place}: {done.stderr.strip()}")
    assert not wrong, "\n".join(wrong)


# Followed to the letter


def _environment(folder: Path) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    return {**kept, "PATH": programs, "HOME": str(folder), "LC_ALL": "C.UTF-8"}


def _run(block: Block, folder: Path, outside: Path) -> str:
    done = subprocess.run(
        ["sh", "-e", "-c", block.text],
        cwd=folder,
        env=_environment(outside),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"line {block.line}: {done.stdout}"
    return done.stdout


def _timeless(text: str) -> list[str]:
    """Without what differs from run to run: ids, times, the folder, the shell's word on a kill."""
    text = re.sub(r"sqlite:/\S*/\.dibs/", "sqlite:FOLDER/.dibs/", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "RUN", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"(created|for another) (under 1s|\d+s)", r"\1 SOME", text)
    return [line.rstrip() for line in text.splitlines() if not re.search(r"\bKilled\b", line)]


def test_the_quickstart_does_what_it_says(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    shown = blocks(QUICKSTART)
    ran = 0
    for place, block in enumerate(shown):
        if block.language != "sh" or "run" not in block.words:
            continue
        said = _run(block, folder, tmp_path)
        ran += 1
        after = shown[place + 1] if place + 1 < len(shown) else None
        if after is not None and after.language == "text":
            assert _timeless(said) == _timeless(after.text), f"{QUICKSTART.name}:{after.line}"
    assert ran >= 8


def test_the_quickstart_shows_no_command_that_is_not_run():
    idle = [b.line for b in blocks(QUICKSTART) if b.language == "sh" and "run" not in b.words]
    assert idle == []


def test_the_readme_does_what_it_says(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    [block] = [b for b in blocks(ROOT / "README.md") if b.words == ("run",)]
    said = _run(block, folder, tmp_path)
    assert "claimed 3 (3 advanced)" in said
    assert "GATE_SHUT" in said
    assert "(looks right)" in said


def test_the_readme_keeps_to_ten_lines():
    first, second = [b for b in blocks(ROOT / "README.md") if b.language == "sh"][:2]
    lines = [*first.text.splitlines(), *second.text.splitlines()]
    assert len(lines) == 10
    assert lines[0].startswith("make demo")
