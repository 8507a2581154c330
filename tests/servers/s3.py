"""An S3 that speaks to this machine only: the `ministack` emulator, which has conditional writes.

It decides `If-Match` and `If-None-Match` in the same step as the write, and its ETags are digests
of the bytes, as S3's are. That real S3 is as exact under contention cannot be seen here.
"""

import os
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from .process import ServerProcess, free_port

# Nobody's keys, said to the client itself, so that no others are looked for.
_NOBODY = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}


def client_for(endpoint: str) -> Any:
    """boto3's own client."""
    import boto3

    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **_NOBODY)


class ObjectServer(ServerProcess):
    def __init__(self) -> None:
        super().__init__("s3")
        self.port = free_port()
        told = {
            "BIND_HOST": "127.0.0.1",  # it listens on every address unless told
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "s3",
            "TMPDIR": str(self.folder),
            "LOG_LEVEL": "WARNING",
        }
        command = [Path(sys.executable).with_name("ministack")]
        self.start(command, self._healthy, env=os.environ | told)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        return client_for(self.endpoint)

    def _healthy(self) -> bool:
        with urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=5) as reply:
            return reply.status == 200


@cache
def object_server() -> ObjectServer:
    """The server of this test process, started by whoever asks first."""
    return ObjectServer()
