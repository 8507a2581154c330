"""A DynamoDB that speaks to this machine only: the `ministack` emulator.

It keeps its tables in memory and writes them to a file when it is told to end (SIGTERM), so a
restart goes by that: the process is gone, and what comes back was read from the disk. After a
SIGKILL nothing comes back. How durable DynamoDB itself is cannot be seen here.
"""

import os
import signal
import sys
import urllib.request
from pathlib import Path

from .process import ServerProcess, free_port

REGION = "eu-central-1"
# Nobody's keys, set where botocore looks first; and its search for others ends there.
_NOBODY = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    # A proxy that is set for this machine would carry requests away from it.
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


class DynamoServer:
    """One emulator, with its port and its folder, which outlive its process."""

    def __init__(self) -> None:
        os.environ.update(_NOBODY)
        self._server = ServerProcess("dynamodb")
        self.port = free_port()
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, table: str, **options: object) -> str:
        """A store's place on this server."""
        said = {"region": REGION, "endpoint": self.endpoint, **options}
        return f"dynamodb://{table}?" + "&".join(f"{key}={value}" for key, value in said.items())

    def restart(self) -> None:
        """End its process in good order, and start another on what it left."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End it in good order: its tables are on the disk when this returns."""
        self._server.kill(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a word: what it held is lost."""
        self._server.kill()

    def close(self) -> None:
        self._server.close()

    def start(self) -> None:
        folder = self._server.folder
        told = {
            "BIND_HOST": "127.0.0.1",  # it listens on every address unless told
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "dynamodb",
            "PERSIST_STATE": "1",
            "STATE_DIR": str(folder / "state"),
            "TMPDIR": str(folder),
            "LOG_LEVEL": "WARNING",
        }
        self._server.start(
            [Path(sys.executable).with_name("ministack")],
            self._healthy,
            env=os.environ | told,
        )

    def _healthy(self) -> bool:
        with urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=5) as reply:
            return reply.status == 200


_running: list[DynamoServer] = []


def dynamodb() -> DynamoServer:
    """The one emulator of this test process, started when it is first asked for."""
    if not _running:
        _running.append(DynamoServer())
    return _running[0]
