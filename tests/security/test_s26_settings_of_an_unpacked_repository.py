"""S26. Actor: a repository, unpacked from an archive and not cloned, so with its own .git/config.

Attack: the settings name programs. `dibs show` with leases in git refs reaches the remote, and git
runs them with the reader's secrets in the environment.

Wall: of the settings of the repository only those count that name no program and no file, and make
git trust no other server. Git itself has no secret that the operator did not name for it.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.security.conftest import Victim
from tests.security.git_victims import ALONE, git


class _AsksForAPassword(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="shop"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a git server that demands a password."""
    served = ThreadingHTTPServer(("127.0.0.1", 0), _AsksForAPassword)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}/shop"
    served.shutdown()
    served.server_close()


@pytest.fixture
def loot(tmp_path: Path) -> Path:
    folder = tmp_path / "loot"
    folder.mkdir()
    (folder / "program").write_text(f"#!/bin/sh\nenv > '{folder}/loot'\nexit 1\n")
    (folder / "program").chmod(0o755)
    return folder


def unpacked(victim: Victim, url: str) -> Path:
    victim.env |= ALONE | {"DIBS_LEASES": "git:origin"}
    git(victim.folder, "init", "--quiet")
    git(victim.folder, "remote", "add", "origin", url)
    victim.configure("")
    added = victim.dibs("add", "first", DIBS_LEASES="")
    assert added.returncode == 0, added.stderr
    return victim.folder


def programs(loot: Path) -> tuple[tuple[str, str], ...]:
    program = str(loot / "program")
    return (
        ("core.sshCommand", program),
        ("core.gitProxy", program),
        ("core.askPass", program),
        ("core.fsmonitor", program),
        ("credential.helper", f"!{program}"),
        ("core.alternateRefsCommand", program),
        ("remote.origin.uploadpack", program),
        ("remote.origin.receivepack", program),
        ("protocol.ext.allow", "always"),
    )


ADDRESSES = ["ssh://git@127.0.0.1:9/shop", "git://127.0.0.1:9/shop", "password"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_program_of_the_repository_is_run(
    victim: Victim, loot: Path, server: str, address: str
) -> None:
    folder = unpacked(victim, server if address == "password" else address)
    for name, value in programs(loot):
        git(folder, "config", name, value)
    victim.dibs("show", "1")
    assert not (loot / "loot").exists()


@pytest.mark.parametrize("address", ["--upload-pack={}", "ext::{}"])
def test_no_address_of_the_repository_is_a_program(
    victim: Victim, loot: Path, address: str
) -> None:
    folder = unpacked(victim, "/nowhere")
    for name, value in programs(loot)[-1:]:
        git(folder, "config", name, value)
    git(folder, "config", "remote.origin.url", address.format(loot / "program"))
    shown = victim.dibs("show", "1")
    assert not (loot / "loot").exists()
    assert "git:" in shown.stderr


@pytest.mark.parametrize("address", ADDRESSES)
def test_control_the_same_settings_of_the_operator_are_obeyed(
    victim: Victim, loot: Path, server: str, address: str
) -> None:
    unpacked(victim, server if address == "password" else address)
    for name, value in programs(loot):
        git(victim.folder, "config", "--file", str(victim.home / ".gitconfig"), name, value)
    victim.dibs("show", "1", DIBS_GIT_ENV="GITHUB_TOKEN")
    assert set(victim.leaked(loot)) == {"GITHUB_TOKEN"}
