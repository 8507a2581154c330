"""`dibs config show` and the file's structs: what can be set is what is shown."""

import tomllib
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dibs.settings import load
from dibs.settings.show import as_lines, shown

FULL = """
tracker = "github:acme/shop"
leases = "redis://:hunter2@db:6379/1"
preset = "agent"
ttl = "7m"
comments = "writers"
max_ttl = "2d"
grace = "4s"
settle = "3s"
person_ttl = "5h"
journal = ""
[labels]
priorities = ["urgent", "größe 🚧"]
[worker]
jobs = 3
poll = "2s"
[people]
pulls = false
text = "any"
fleet = ["bot"]
[github]
trusted = ["ada", "bob"]
machines = 4
pace = false
[hook]
strict = true
timeout = "9s"
[repos]
"acme/shop" = "shop"
"acme/größe" = "elsewhere"
[[stage]]
name = "implement"
run = "make"
irreversible = true
wip = 2
ttl = "9m"
renew = "1m"
timeout = "1h"
pass_env = ["KEY"]
env = "inherit"
run_as = "agent"
worktree = "bundle"
[[stage]]
name = "plan-pending-approval"
gate = "signed"
[[stage]]
name = "pr-open"
python = "shop.handlers:open"
[[hold]]
name = "deploy"
slots = 2
[[loop]]
name = "nightly"
every = "1h"
run = "make report"
"""
FILES = {"full": FULL, "built-in": "", "one stage": '[[stage]]\nname = "x"\nlabel = "y"\n'}


def settings_of(text: str, root: Path):
    return load.from_mapping(tomllib.loads(text), source="a test", root=root)


def keys(kind: type[msgspec.Struct]) -> set[str]:
    """Every key that a file may have, in whatever section."""
    found = set()
    for field in msgspec.structs.fields(kind):
        found.add(field.name)
        for inner in load._structs(field.type):
            found |= keys(inner)
    return found


def named(value: object) -> set[str]:
    match value:
        case dict():
            return set(value).union(*map(named, value.values()))
        case list():
            return set().union(*map(named, value))
        case _:
            return set()


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_is_shown_is_a_file_that_gives_the_same_settings(text, tmp_path):
    settings = settings_of(text, tmp_path)
    as_toml = "\n".join(as_lines(settings))
    again = settings_of(as_toml, tmp_path)
    expected = replace(settings, leases="redis://db:6379/1") if "redis" in text else settings
    assert again == expected


def test_every_key_that_can_be_set_is_shown(tmp_path):
    settings = settings_of(FULL, tmp_path)
    assert keys(load.ConfigFile) <= named(shown(settings))
    lines = "\n".join(as_lines(settings))
    missing = {key for key in keys(load.ConfigFile) if key not in lines}
    assert not missing


def test_no_secret_is_shown(tmp_path):
    settings = settings_of(FULL, tmp_path)
    assert "hunter2" not in "\n".join(as_lines(settings))
    assert "hunter2" not in str(shown(settings))
