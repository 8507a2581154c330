"""Git leases under test: clients with eyes and object folders of their own, as on two machines.

There is no store clock to wait for: time is what the clients watch. A restart is a client that has
seen nothing, on the objects that the one before it left.
"""

import secrets
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path

from tests.servers.git_repository import bare_repository
from tests.servers.github_git import TOKEN, GithubServer
from tests.servers.process import free_port

from dibs.adapters.git.leases import GitLeases
from dibs.adapters.github.client import Transports
from dibs.adapters.github.limits import Limits
from dibs.adapters.github.refs import GithubRefs
from dibs.adapters.system import SystemClock
from dibs.adapters.wrappers.leases import MemoryObservations
from dibs.testing.conformance import LeaseHarness


def outwait(seconds: float) -> None:
    """Wait on this machine's monotonic clock, for as long as it takes and no longer."""
    clock, pause = SystemClock(), threading.Event()
    until = clock.now() + seconds
    while (left := until - clock.now()) > 0:
        pause.wait(min(left, 0.1))


class GitHarness(LeaseHarness):
    short = timedelta(seconds=1.5)
    sequences = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = bare_repository(folder / "remote.git")
        super().__init__(self.client("first"))
        self._second = self.client("second")

    def client(self, machine: str, **options) -> GitLeases:
        """One that has seen nothing yet."""
        place = options.pop("place", f"git:{self.remote}")
        return GitLeases.connect(place, self.folder / machine, root=self.folder, **options)

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        outwait(seconds)

    def restart(self):
        self.store, self._second = self.client("first"), self.client("second")
        return self.store

    def cut_off(self):
        return self.client("third", place=f"git:{self.folder / 'gone.git'}")


def github_refs(repository: str, *, token: str, api: str, timeout_s: float = 20) -> GithubRefs:
    """Through a transport that keeps to no limit, and remembers nothing of other tests."""
    environment = {
        "GITHUB_TOKEN": token,
        "GITHUB_API_URL": api,
        "XDG_STATE_HOME": tempfile.mkdtemp(),
    }
    transports = Transports(environment, limits=Limits.none(), reply_s=timeout_s)
    refs = GithubRefs(repository, transports.for_repository(repository), transports.close)
    weakref.finalize(refs, transports.close)  # many tests make one and drop it
    return refs


class GithubHarness(GitHarness):
    """The same through GitHub's API; a restart kills the server too."""

    def __init__(self, server: GithubServer, folder: Path) -> None:
        self.server, self.repository = server, f"acme/{secrets.token_hex(6)}"
        server.repository(self.repository)
        super().__init__(folder)

    def client(self, machine: str, **options) -> GitLeases:
        token, api = options.get("token", TOKEN), options.get("api", self.server.url)
        refs = github_refs(self.repository, token=token, api=api)
        clock = SystemClock()
        return GitLeases(refs, MemoryObservations(clock), clock)

    def restart(self):
        self.server.kill()
        self.server.begin()
        return super().restart()

    def cut_off(self):
        return self.client("third", api=f"http://127.0.0.1:{free_port()}")


@contextmanager
def git_leases() -> Iterator[GitHarness]:
    with tempfile.TemporaryDirectory(prefix="dibs-git-") as folder:
        yield GitHarness(Path(folder))


@contextmanager
def git_leases_over_github() -> Iterator[GithubHarness]:
    with tempfile.TemporaryDirectory(prefix="dibs-git-") as folder:
        yield GithubHarness(github(), Path(folder))


@cache
def github() -> GithubServer:
    return GithubServer()
