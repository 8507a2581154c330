"""A GitHub that we did not write: the npm package `emulate`, its REST only, on loopback.

Where it differs from GitHub: no GraphQL, no ETag, no permissions, milliseconds in its times, and
label names that are another when their case is. Its state is in memory: a restart is a new world.
"""

import json
import urllib.request
from functools import cache
from itertools import count

from tests.contracts import npm

from .process import ServerProcess, free_port

OWNER, TOKEN = "acme", "emulate-token"
SEED = {
    "tokens": {TOKEN: {"login": OWNER, "scopes": ["repo", "user"]}},
    "github": {"users": [{"login": OWNER, "name": "Acme", "email": "acme@example.com"}]},
}
_NAMES = count(1)


class Emulate(ServerProcess):
    def __init__(self) -> None:
        super().__init__("emulate")
        self.port = free_port()
        seed = self.folder / "seed.yaml"
        seed.write_text(json.dumps(SEED))  # which is YAML too
        command = (
            *(npm.NODE, npm.emulate(), "start", "--service", "github", "--seed", seed),
            # Bodies and Link then name the address that the client used.
            *("--port", str(self.port), "--base-url", self.url),
        )
        self.start(command, lambda: bool(self.ask("GET", "/user")), cwd=self.folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def repository(self, name: str = "") -> str:
        """A new one, empty; its full name."""
        wanted = name or f"shop-{next(_NAMES)}"
        self.ask("POST", "/user/repos", {"name": wanted})
        return f"{OWNER}/{wanted}"

    def ask(self, verb: str, path: str, body: object = None) -> object:
        """What a person's script would do beside the adapter."""
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            method=verb,
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            raw = reply.read()
        return json.loads(raw) if raw else None


@cache
def single() -> Emulate:
    """The one that the tests of this process share, each in a repository of its own."""
    return Emulate()
