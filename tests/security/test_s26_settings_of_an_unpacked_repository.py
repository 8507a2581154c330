"""S26. Actor: a repository, unpacked from an archive and not cloned, so with its own .git/config.

Attack: the settings name programs. `dibs show` with leases in git refs reaches the remote, and git
runs them with the reader's secrets in the environment.

A proxy in the settings gets the password that the operator's credential helper has for a server.

Wall: of the settings of the repository only those count that name no program, no file and no proxy,
and make git trust no other server. Git itself has no secret that the operator did not name for it.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.security.conftest import Victim
from tests.security.git_victims import ALONE, git


class _AsksForAPassword(BaseHTTPRequestHandler):
    given: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.given.append(self.headers["Authorization"])
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="shop"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a git server, or a proxy, that demands a password."""
    _AsksForAPassword.given.clear()
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


@pytest.mark.parametrize("whose", ["the repository's", "the operator's"])
def test_a_proxy_of_the_repository_gets_no_password(
    victim: Victim, server: str, whose: str
) -> None:
    """The operator's own proxy, as the control, is obeyed."""
    folder, own = unpacked(victim, "http://git.example/shop"), victim.home / ".gitconfig"
    (victim.home / ".git-credentials").write_text("http://ada:CANARY@git.example\n")
    git(folder, "config", "--file", str(own), "credential.helper", "store")
    file = own if whose == "the operator's" else folder / ".git" / "config"
    git(folder, "config", "--file", str(file), "http.proxy", server)
    git(folder, "config", "--file", str(file), "http.http://git.example.proxy", server)
    victim.dibs("list")
    assert any(_AsksForAPassword.given) == (whose == "the operator's")
