"""What is shown can be used: TOML is valid, Python compiles, shell parses, the quickstart runs."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dibs
from dibs import config

from .pages import DOCS, ROOT, Block, blocks, name_of, pages

QUICKSTART = DOCS / "start" / "quickstart.md"
_PATIENCE_S = 60


def _shown(language: str, *words: str) -> list:
    return [
        pytest.param(block, id=f"{name_of(page)}:{block.line}")
        for page in pages()
        for block in blocks(page)
        if block.language == language and set(words) <= set(block.words)
    ]


def test_every_block_says_its_language():
    silent = [
        f"{name_of(page)}:{b.line}" for page in pages() for b in blocks(page) if not b.language
    ]
    assert silent == []


@pytest.mark.parametrize("block", _shown("toml"))
def test_toml_is_a_valid_configuration(block, tmp_path):
    settings = config.from_mapping(tomllib.loads(block.text), source="the page", root=tmp_path)
    assert settings.pipeline.stages


@pytest.mark.parametrize("block", _shown("toml"))
def test_toml_uses_only_what_the_schema_knows(block):
    """By the published schema, as an editor would: keys of each table, and required ones."""
    defs = config.schema()["$defs"]
    _fits(tomllib.loads(block.text), defs["ConfigFile"], defs)


def _fits(value: object, shape: dict, defs: dict) -> None:
    if "$ref" in shape:
        return _fits(value, defs[shape["$ref"].rsplit("/", 1)[1]], defs)
    if "anyOf" in shape:
        return None  # a value or nothing: the program's own validation looks at those
    match value:
        case dict() if "properties" not in shape:  # its keys are the user's
            for inner in value.values():
                _fits(inner, shape["additionalProperties"], defs)
        case dict():
            assert set(value) <= set(shape["properties"])
            assert set(shape.get("required", ())) <= set(value)
            for key, inner in value.items():
                _fits(inner, shape["properties"][key], defs)
        case list():
            for inner in value:
                _fits(inner, shape.get("items", {}), defs)
        case str():
            assert shape["type"] == "string"
            assert re.search(shape.get("pattern", ""), value)
    return None


@pytest.mark.parametrize("block", _shown("json"))
def test_json_is_json(block):
    json.loads(block.text)


@pytest.mark.parametrize("block", _shown("python"))
def test_python_compiles_and_uses_public_names(block):
    tree = ast.parse(block.text)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dibs"
    }
    used |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "dibs"
        for alias in node.names
    }
    assert used <= {*dibs.__all__, "aio"}


@pytest.mark.parametrize("block", _shown("python", "run"))
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


@pytest.mark.parametrize("block", _shown("sh"))
def test_shell_parses(block):
    done = subprocess.run(
        ["sh", "-n", "-c", block.text], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


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
    """Without what differs from run to run: ids, times, and the shell's word about a kill."""
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
