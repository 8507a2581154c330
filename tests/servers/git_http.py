"""Repositories over smart HTTP: git's own backend behind Python's server, as a process.

A file `password` in the folder makes it ask for one; its text is `user:password`. A file `lose`
names requests (`POST git-receive-pack`) that are done and then not answered, one in each line.
"""

import base64
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .git_repository import ALONE
from .process import ServerProcess, answers, free_port

ROOT = Path(__file__).parents[2]


class GitHttpServer(ServerProcess):
    """Serves every repository in its folder."""

    def __init__(self) -> None:
        super().__init__("git-http")
        self.port = free_port()
        self.begin()

    def begin(self) -> None:
        command = (sys.executable, "-m", __name__, self.folder, str(self.port))
        self.start(command, lambda: answers(self.port), cwd=ROOT)

    def url(self, repository: str, *, user: str = "", port: int = 0) -> str:
        account = f"{user}@" if user else ""
        return f"http://{account}127.0.0.1:{port or self.port}/{repository}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        if not self._admitted():
            self._send(401, [("WWW-Authenticate", 'Basic realm="git"')], b"")
            return
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **ALONE, **self._gateway()},
        )
        if loses(self.folder, f"{self.command} {self.path.rpartition('/')[2]}"):
            self.close_connection = True
            return
        head, _, reply = done.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode("latin-1").split("\r\n")]
        status = next((text for name, text in headers if name == "Status"), "200 OK")
        shown = [(name, text) for name, text in headers if name != "Status"]
        self._send(int(status.split()[0]), shown, reply)

    def _admitted(self) -> bool:
        secret = self.folder / "password"
        if not secret.exists():
            return True
        expected = base64.b64encode(secret.read_bytes().strip()).decode()
        return self.headers.get("Authorization") == f"Basic {expected}"

    def _gateway(self) -> dict[str, str]:
        path, _, query = self.path.partition("?")
        return {
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": self.headers.get("Content-Length", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_USER": "ada",
            "REMOTE_ADDR": "127.0.0.1",
        }

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def loses(folder: Path, request: str) -> bool:
    """Whether this is a request whose reply shall be lost: one for each line of the file."""
    lose = folder / "lose"
    wanted = lose.read_text("utf-8").splitlines() if lose.exists() else []
    if not wanted or wanted[0] not in request:
        return False
    lose.write_text("\n".join(wanted[1:]), encoding="utf-8")
    return True


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
