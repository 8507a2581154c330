"""Attacks on the program as a whole: from a folder, a handler, a comment, a socket.

Every test here is an attack of the table in docs/concepts/security.md. It runs the program that
`DIBS_UNDER_TEST` names (a `dibs` of another commit, to see that the attack once succeeded), else
the `dibs` of this environment. Each attack has a control beside it: the same attack with its wall
taken out by what an operator may allow, which must succeed; otherwise the attack proves nothing.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

# Looked for, as bytes, wherever an attacker can read.
SECRETS: Mapping[str, str] = {
    "GITHUB_TOKEN": "ghp_CANARYgithubtoken0000000000000000000",
    "DIBS_SIGNING_KEY": "fleet:CANARYsigningkey00000000000000000",
    "SLACK_BOT_TOKEN": "xoxb-CANARYslack-000000000000",
    "AWS_SECRET_ACCESS_KEY": "CANARYawssecret0000000000000000000000000",
    "PGPASSWORD": "CANARYpgpassword",
    "OPENAI_API_KEY": "sk-CANARYopenai00000000000000000000",
}
PROGRAM = os.environ.get("DIBS_UNDER_TEST") or str(Path(sys.executable).with_name("dibs"))
LIMIT_S = 120


class Ear:
    """A server of the attacker's on loopback, which keeps every byte that it is sent."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.heard = b""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        body = b'{"message": "heard"}'
        with connection:
            connection.settimeout(5)
            try:
                self.heard += connection.recv(65536) or b"(a connection without a word)"
                connection.sendall(
                    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()


class Victim:
    """A folder in which somebody runs dibs, with a home of their own and secrets to lose."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.folder = self.home / "project"
        self.folder.mkdir(parents=True)
        self.env: dict[str, str] = {
            "PATH": f"{Path(PROGRAM).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "DIBS_STATE": str(base / "state"),
            **SECRETS,
        }

    def configure(self, text: str, folder: Path | None = None) -> None:
        """Write the dibs.toml that the program finds."""
        ((folder or self.folder) / "dibs.toml").write_text(text, "utf-8")

    def dibs(
        self,
        *words: str,
        folder: Path | None = None,
        given: str = "",
        limit_s: float = LIMIT_S,
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `env` adds to the victim's environment."""
        return subprocess.run(
            [PROGRAM, *words],
            cwd=folder or self.folder,
            env={**self.env, **env},
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )

    def leaked(self, place: Path) -> dict[str, str]:
        """The names of the secrets in the files at or below a place, each with one such file."""
        files = [place] if place.is_file() else list(place.rglob("*"))
        found: dict[str, str] = {}
        for file in files:
            if file.is_file() and not file.is_symlink():
                content = file.read_bytes()
                for name, secret in SECRETS.items():
                    if secret.encode() in content:
                        found[name] = str(file.relative_to(place)) if file != place else file.name
        return found


@pytest.fixture
def ear() -> Iterator[Ear]:
    opened = Ear()
    yield opened
    opened.close()


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


@pytest.fixture
def reachable() -> Iterator[Victim]:
    """A victim whose folder every user of the machine can reach."""
    base = Path(tempfile.mkdtemp(prefix="dibs-reachable-"))
    base.chmod(0o755)
    yield Victim(base)
    shutil.rmtree(base)
