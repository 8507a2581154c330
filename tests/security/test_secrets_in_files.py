"""Actor: whoever can read the environment of the worker: root's tools, a crash report, a child.

Wall: a secret may come from a file, from systemd's credentials, or through a descriptor that can be
read once, and is then in no environment at all.
"""

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import PROGRAM, Ear, Victim
from .handlers import printed, serve, work

KEY = "fleet:CANARYfromfile0000000000000000000"


@pytest.fixture
def bare(victim: Victim) -> Victim:
    """A victim with no secret in the environment."""
    for name in ("GITHUB_TOKEN", "DIBS_SIGNING_KEY"):
        del victim.env[name]
    return victim


def test_a_file_a_credential_and_a_descriptor_are_read(bare: Victim, tmp_path: Path) -> None:
    bare.configure('tracker = "sqlite:.dibs/backlog.db"\n')
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n", "utf-8")
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "DIBS_SIGNING_KEY").write_text(KEY, "utf-8")
    reading, writing = os.pipe()
    os.write(writing, KEY.encode())
    os.close(writing)
    for named, passed in (
        ({"DIBS_SIGNING_KEY_FILE": str(file)}, ()),
        ({"CREDENTIALS_DIRECTORY": str(credentials)}, ()),
        ({"DIBS_SIGNING_KEY_FILE": f"/dev/fd/{reading}"}, (reading,)),
    ):
        done = subprocess.run(
            [PROGRAM, "doctor", "--offline"],
            cwd=bare.folder,
            env={**bare.env, **named},
            pass_fds=passed,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "strict: we sign with fleet" in done.stdout, done.stdout
        assert "CANARYfromfile" not in done.stdout + done.stderr
    os.close(reading)


def test_a_token_in_a_file_is_sent_where_it_belongs(bare: Victim, ear: Ear, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("ghp_CANARYfromfile", "utf-8")
    bare.configure('tracker = "github:acme/shop"\n')
    bare.dibs("list", GITHUB_API_URL=ear.url, GITHUB_TOKEN_FILE=str(file))
    assert b"ghp_CANARYfromfile" in ear.heard


def test_a_handler_learns_neither_the_secret_nor_the_file(bare: Victim, tmp_path: Path) -> None:
    file = tmp_path / "key-file"
    file.write_text(KEY, "utf-8")
    serve(bare, "env", 'env = "inherit"')
    bare.env["DIBS_CONFIG"] = str(bare.folder / "dibs.toml")
    names = {"DIBS_SIGNING_KEY_FILE": str(file), "CREDENTIALS_DIRECTORY": str(tmp_path)}
    done = work(bare, env={**names, "GITHUB_TOKEN_FILE": str(file)})
    assert "advanced" in done.stdout + done.stderr
    assert b"CANARYfromfile" not in printed(bare)
    assert b"key-file" not in printed(bare)
    assert b"CREDENTIALS_DIRECTORY" not in printed(bare)


@pytest.mark.parametrize("walled", [True, False])
def test_gh_learns_none_of_them(bare: Victim, tmp_path: Path, ear: Ear, *, walled: bool) -> None:
    """Without a token dibs asks `gh`, which may be any program of that name on the path."""
    seen, file = tmp_path / "seen", tmp_path / "key-file"
    file.write_text(KEY, "utf-8")
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(f"#!/bin/sh\nenv > {seen}\necho gho_stored\n", "utf-8")
    gh.chmod(0o755)
    bare.env["PATH"] = f"{gh.parent}:{bare.env['PATH']}"
    bare.configure('tracker = "github:acme/shop"\n')
    wall_out = "import dibs.adapters.github.auth as a; a.git_environment = dict"
    names = {"DIBS_SIGNING_KEY_FILE": str(file), "GITHUB_API_URL": ear.url, "GH_CONFIG_DIR": "/c"}
    work(bare, "list", env=names, without="" if walled else wall_out)
    assert ("CANARY" in seen.read_text()) is not walled
    assert "GH_CONFIG_DIR=/c" in seen.read_text(), "what gh needs to find its token"


@pytest.mark.parametrize(
    ("text", "why"), [(None, "No such file"), (b"", "empty"), (b"\xff", "text")]
)
def test_a_file_that_holds_no_secret_is_an_error(
    bare: Victim, tmp_path: Path, text: bytes | None, why: str
) -> None:
    file = tmp_path / "leases"
    if text is not None:
        file.write_bytes(text)
    done = bare.dibs("list", DIBS_LEASES_FILE=str(file))
    assert done.returncode != 0
    assert f"DIBS_LEASES_FILE: {file}" in done.stderr
    assert why in done.stderr


def test_control_the_variable_goes_before_its_file(bare: Victim, ear: Ear, tmp_path: Path) -> None:
    bare.configure('tracker = "github:acme/shop"\n')
    named = {"GITHUB_TOKEN": "ghp_variable", "GITHUB_TOKEN_FILE": str(tmp_path / "missing")}
    bare.dibs("list", GITHUB_API_URL=ear.url, **named)
    assert b"ghp_variable" in ear.heard
