"""The Redis store on a real Valkey: by itself, and as a cluster."""

import itertools
import os
import threading
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from tests.servers.relay import Relay
from tests.servers.valkey import Valkey, cluster_node, valkey

from dibs.adapters.redis.leases import RedisLeases
from dibs.testing.conformance import LeaseHarness

_namespaces = (f"conformance-{os.getpid()}-{number}" for number in itertools.count(1))


class RedisHarness(LeaseHarness):
    short = timedelta(seconds=0.4)
    sequences = 3

    def __init__(self, server: Valkey, scheme: str, opened: ExitStack) -> None:
        self._server, self._opened = server, opened
        self._url = server.url(f"namespace={next(_namespaces)}&timeout=20", scheme=scheme)
        super().__init__(self._open())
        self._second = self._open()

    def _open(self, url: str = "") -> RedisLeases:
        store = RedisLeases.connect(url or self._url)
        self._opened.callback(store.close)
        return store

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        with self._server.client() as client:

            def now() -> float:
                whole, microseconds = client.time()
                return whole + microseconds / 1e6

            until, pause = now() + seconds, threading.Event()
            while (left := until - now()) > 0:
                pause.wait(min(left, 0.1))

    def restart(self):
        self._server.restart()
        self.store, self._second = self._open(), self._open()
        return self.store

    def cut_off(self):
        relay = Relay(self._server.port)
        store = self._open(f"redis://127.0.0.1:{relay.port}?timeout=20")
        relay.cut()
        return store


class ClusterHarness(RedisHarness):
    sequences = 1  # a node that was started again lets two seconds pass before it serves


@contextmanager
def redis_leases():
    with ExitStack() as opened:
        yield RedisHarness(valkey(), "redis", opened)


@contextmanager
def redis_cluster_leases():
    with ExitStack() as opened:
        yield ClusterHarness(cluster_node(), "redis+cluster", opened)
