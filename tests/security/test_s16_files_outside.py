"""A repository's dibs.toml, or a link in it, makes dibs write to files outside of its folder.

Actor: whoever can put a dibs.toml or a link into a repository.
Attack: `journal`, `runs`, `tracker` or `leases` name a path outside of the folder, or git's own
files; or `.dibs`, or a file in it, is a link to a place outside.
Wall: after all links are followed, what a found file names lies in its folder. The operator allows
other paths: in the user's own file, by `--config`, or by `DIBS_LEASES`.
"""

import json
import subprocess
from pathlib import Path

import pytest

from .conftest import Victim
from .test_s01_token_to_another_host import users_file

SETTINGS = {
    "journal": 'journal = "../keys"',
    "an absolute journal": 'journal = "{outside}"',
    "runs": 'runs = "../keys"',
    "tracker": 'tracker = "sqlite:../keys"',
    "leases": 'leases = "sqlite:../keys"',
    "a folder that is not there": 'journal = "not/there/../../../keys"',
    "git's own": 'journal = ".git/config"',
    "a bare repository": 'leases = "git:../keys"',
    "a bare repository by its URL": 'leases = "git:file://{outside}"',
    "a bare repository by an escaped URL": 'leases = "git:file://{folder}/%2e%2e/keys"',
    "a bare repository at home": 'leases = "git:~/keys"',
    "a socket": 'leases = "unix://{outside}"',
    "a socket by an escaped path": 'leases = "unix://{folder}/%2e%2e/keys"',
}


@pytest.fixture
def outside(victim: Victim) -> Path:
    """A file of the victim's beside the repository."""
    file = victim.home / "keys"
    file.write_text("ssh-ed25519 AAAA mine\n")
    return file


def everything(victim: Victim, *more: str) -> None:
    """What a person does with a backlog. Each command may be refused."""
    for words in (["add", "one"], ["take", "1"]):
        victim.dibs(*more, *words)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_found_file_writes_to_no_file_outside(victim: Victim, outside: Path, name: str) -> None:
    before = outside.read_bytes()
    text = SETTINGS[name].format(outside=outside, folder=victim.folder)
    victim.configure(text)
    everything(victim)
    assert outside.read_bytes() == before
    assert sorted(path.name for path in victim.home.iterdir()) == ["keys", "project"]
    refused = victim.dibs("list", "--json")
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "UNTRUSTED"
    assert text.partition(" ")[0] in error["message"]


@pytest.mark.parametrize(
    "link",
    [".dibs", ".dibs/events.jsonl", ".dibs/backlog.db", ".dibs/backlog.db-wal", ".dibs/runs"],
)
def test_a_link_that_comes_with_a_repository_leads_nowhere(
    victim: Victim, outside: Path, link: str
) -> None:
    before = outside.read_bytes()
    place = victim.folder / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside.parent / "there" if link == ".dibs" else outside)
    (outside.parent / "there").mkdir()
    everything(victim)
    assert outside.read_bytes() == before
    assert list((outside.parent / "there").iterdir()) == []
    assert str(outside.parent) in victim.dibs("list").stderr


def test_runs_that_were_left_open_are_not_looked_for_in_another_folder(victim: Victim) -> None:
    """A worker removes what dead workers left there."""
    there = victim.home / "letters"
    there.mkdir()
    (there / "letter").write_text("dear")
    (victim.folder / ".dibs" / "runs").mkdir(parents=True)
    (victim.folder / ".dibs" / "runs" / ".open").symlink_to(there)
    victim.configure("[[stage]]\nname = 'ready'\nrun = 'true'\n")
    victim.dibs("add", "one")
    victim.dibs("work", "--once")
    assert (there / "letter").exists()


def test_gits_own_files_are_not_written_to(victim: Victim) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=victim.folder, check=True, timeout=60)
    before = (victim.folder / ".git" / "config").read_bytes()
    victim.configure('journal = ".git/config"')
    everything(victim)
    assert (victim.folder / ".git" / "config").read_bytes() == before


# The operator may


@pytest.mark.parametrize("how", ["paths", "folders", "--config"])
def test_control_the_operator_allows_the_path(victim: Victim, outside: Path, how: str) -> None:
    victim.configure('journal = "../keys"')
    if how != "--config":
        users_file(victim, f"{how} = ['{outside if how == 'paths' else victim.folder}']")
    everything(victim, *(["--config", "dibs.toml"] if how == "--config" else []))
    assert "#1" in outside.read_text()


def test_control_a_handler_may_use_what_the_operator_allowed_its_worker(
    victim: Victim, outside: Path
) -> None:
    """In a handler, DIBS_CONFIG is the worker's word; DIBS_CONFIG_NAMED says whose file it is."""
    text = "[[stage]]\nname = 'ready'\nrun = 'dibs add found-on-the-way'\n"
    victim.configure(f'tracker = "sqlite:../there/b.db"\n{text}')
    (victim.home / "there").mkdir()
    named = ("--config", "dibs.toml")
    assert victim.dibs(*named, "add", "one").returncode == 0
    assert victim.dibs(*named, "work", "--once", "--stage", "ready").returncode == 0
    assert "found-on-the-way" in victim.dibs(*named, "list").stdout


def test_control_a_link_to_a_place_that_the_operator_allows(victim: Victim) -> None:
    (victim.home / "there").mkdir()
    (victim.folder / ".dibs").symlink_to(victim.home / "there")
    users_file(victim, "paths = ['~/there']")
    everything(victim)
    assert (victim.home / "there" / "backlog.db").exists()


def test_control_paths_inside_are_free(victim: Victim) -> None:
    victim.configure('tracker = "sqlite:data/b.db"\njournal = "sub/../log"\nruns = "out"\n')
    (victim.folder / "data").mkdir()
    assert victim.dibs("add", "one").returncode == 0
    assert "one" in victim.dibs("list").stdout


REMOTES = {
    "a relative path": ("git:origin", {"remote.origin.url": "../other.git"}),
    "an absolute path": ("git:origin", {"remote.origin.url": "{other}"}),
    "a path at home": ("git:origin", {"remote.origin.url": "~/other.git"}),
    "a URL": ("git:origin", {"remote.origin.url": "file://{other}"}),
    "where it pushes": (
        "git:origin",
        {"remote.origin.url": "https://example.com/x", "remote.origin.pushUrl": "{other}"},
    ),
    "a rule": ("git:https://example.com/x", {"url.{other}.insteadOf": "https://example.com/x"}),
    "a rule for pushes": (
        "git:origin",
        {"remote.origin.url": "hub:x", "url.{other}.pushInsteadOf": "hub:x"},
    ),
    "two rules": (
        "git:origin",
        {"remote.origin.url": "a:x", "url.b:y.insteadOf": "a:x", "url.{other}.insteadOf": "b:y"},
    ),
    "two rules, one for pushes": (
        "git:b:x",
        {"url.b:y.insteadOf": "b:x", "url.{other}.pushInsteadOf": "b:y"},
    ),
}


def remote_of(victim: Victim, how: str) -> Path:
    """A repository of the victim's, to which the settings of the project's git lead."""
    other = victim.home / "other.git"
    git(victim.home, "init", "--quiet", "--bare", str(other))
    git(victim.folder, "init", "--quiet")
    leases, settings = REMOTES[how]
    for name, value in settings.items():
        git(victim.folder, "config", name.format(other=other), value.format(other=other))
    victim.configure(f'leases = "{leases}"\n')
    return other


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, check=True, timeout=60, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("how", REMOTES)
def test_a_remote_of_an_unpacked_repository_is_no_way_out(victim: Victim, how: str) -> None:
    """An archive brings `.git/config` along, and with it the address behind a remote's name."""
    other = remote_of(victim, how)
    everything(victim)
    assert not git(other, "for-each-ref")
    if "two rules" not in how:  # the first rule leads to a server, and the second counts for none
        refused = json.loads(victim.dibs("list", "--json").stdout)["error"]
        assert refused["code"] == "UNTRUSTED"
        assert str(other) in refused["message"]


@pytest.mark.parametrize("name", ["evil", "./evil", "file://{folder}/evil", "linked"])
def test_a_repository_in_the_folder_runs_no_hook(victim: Victim, name: str) -> None:
    """A bare repository is a folder of files like any other, and can be committed with its hooks.

    Git takes `linked` for `linked.git`, which may be a link or a file that names another folder.
    """
    evil = victim.folder / "evil"
    git(victim.home, "init", "--quiet", "--bare", str(evil))
    hook = evil / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {victim.home}/ran\n")
    hook.chmod(0o755)
    (victim.folder / "linked.git").write_text(f"gitdir: {evil}\n")
    victim.configure(f'leases = "git:{name.format(folder=victim.folder)}"\n')
    everything(victim)
    assert not (victim.home / "ran").exists()
    everything(victim, "--config", "dibs.toml")
    assert (victim.home / "ran").exists(), "control: for a file that the operator names it runs"


@pytest.mark.parametrize("allowed", ["paths", "--config"])
def test_control_the_operator_keeps_leases_in_a_clone_s_origin(
    victim: Victim, allowed: str
) -> None:
    other = remote_of(victim, "an absolute path")
    if allowed == "paths":
        users_file(victim, f'paths = ["{other}"]')
    everything(victim, *(("--config", "dibs.toml") if allowed == "--config" else ()))
    assert git(other, "for-each-ref")


@pytest.mark.parametrize("allowed", ["paths", "--config"])
def test_control_each_way_that_the_refusal_names_is_one_for_handlers_too(
    victim: Victim, allowed: str
) -> None:
    """A handler has the worker's file without the worker's `DIBS_LEASES`."""
    other = remote_of(victim, "an absolute path")
    run = "dibs heartbeat && dibs show 1 && dibs add found-on-the-way"
    victim.configure(f"leases = 'git:origin'\n[[stage]]\nname = 'ready'\nrun = '{run}'\n")
    hint = json.loads(victim.dibs("list", "--json").stdout)["error"]["hint"]
    assert allowed in hint
    assert "DIBS_LEASES" not in hint
    if allowed == "paths":
        users_file(victim, f'paths = ["{other}"]')
    named = ("--config", "dibs.toml") if allowed == "--config" else ()
    assert victim.dibs(*named, "add", "one").returncode == 0
    done = victim.dibs(*named, "work", "--once", "--stage", "ready")
    assert "found-on-the-way" in victim.dibs(*named, "list").stdout, done.stderr


@pytest.mark.parametrize("in_git", [False, True])
def test_a_remote_that_is_not_there_is_a_mistake_and_no_attack(
    victim: Victim, in_git: bool
) -> None:
    if in_git:
        git(victim.folder, "init", "--quiet")
    victim.configure('leases = "git:orgin"\n')
    everything(victim)
    error = json.loads(victim.dibs("list", "--json").stdout)["error"]
    assert error["code"] == "BAD_CONFIGURATION"
    assert "there is no remote 'orgin' here, and no repository at " in error["message"]
    assert sorted(path.name for path in victim.home.iterdir()) == ["project"]


@pytest.mark.parametrize("remote", ["--upload-pack=touch ../ran:x", "-c", "x" * 10_000])
def test_a_remote_is_no_option_of_git(victim: Victim, remote: str) -> None:
    victim.configure(f'leases = "git:{remote}"\n')
    victim.dibs("add", "one")
    refused = victim.dibs("list", "--json")
    assert json.loads(refused.stdout)["ok"] is False
    assert sorted(path.name for path in victim.home.iterdir()) == ["project"]
