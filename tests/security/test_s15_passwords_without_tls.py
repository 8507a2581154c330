"""A server, or whoever is on the way to it, asks for a store's password without TLS.

Actor: the network. Attack (S15): libpq's own default is `sslmode=prefer`: a server that says that
it has no TLS and asks for the password in clear text got it. Nor did doctor say a word about
passwords that leave the machine without TLS. Wall: off this machine a PostgreSQL server must prove
who it is (`verify-full`), unless the operator chooses a weaker mode in the URL, the environment or
a service file; doctor warns for redis, etcd, PostgreSQL and git over http.

0.0.0.0 leads to this machine, and no rule knows it for a loopback address.
"""

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import postgres
from tests.servers.relay import TlsRelay

from .conftest import Victim

PASSWORD = "HUNTER2-of-the-database"
_SSL, _GSS = 80877103, 80877104


class Impostor:
    """Says that it has no TLS, and asks for the password in clear text."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.heard = b""
        self.met = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.met.set()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, struct.error):
            connection.settimeout(10)
            while True:
                said = connection.recv(4096)
                if not said:
                    return
                self.heard += said
                _, code = struct.unpack("!ii", said[:8])
                if code not in (_SSL, _GSS):
                    break
                connection.sendall(b"N")
            connection.sendall(b"R" + struct.pack("!ii", 8, 3))
            self.heard += connection.recv(4096)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def impostor() -> Iterator[Impostor]:
    opened = Impostor()
    yield opened
    opened.close()


def _claim(victim: Victim, url: str, **env: str) -> str:
    """Make an issue in a backlog of its own, and claim it with this store."""
    folder = Path(tempfile.mkdtemp(dir=victim.home))
    victim.dibs("add", "one", folder=folder)
    ran = victim.dibs("claim", "1", folder=folder, DIBS_LEASES=url, **env)
    return ran.stdout + ran.stderr


def _url(port: int, options: str = "", host: str = "0.0.0.0") -> str:
    return f"postgresql://ada:{PASSWORD}@{host}:{port}/fleet{options}"


def test_an_impostor_does_not_get_the_password(victim: Victim, impostor: Impostor) -> None:
    told = _claim(victim, _url(impostor.port))
    assert impostor.met.is_set()
    assert PASSWORD.encode() not in impostor.heard
    assert "did not prove who it is" in told
    assert "sslrootcert" in told
    assert PASSWORD not in told


def test_nor_through_a_service_file_that_chooses_no_mode(
    victim: Victim, impostor: Impostor
) -> None:
    file = victim.home / ".pg_service.conf"
    file.write_text(f"[fleet]\nhost=0.0.0.0\nport={impostor.port}\nuser=ada\ndbname=fleet\n")
    for url, env in (
        ("postgresql:///?service=fleet", {}),
        ("postgresql:///", {"PGSERVICE": "fleet"}),
    ):
        _claim(victim, url, PGPASSWORD=PASSWORD, **env)
        assert impostor.met.is_set(), url
        impostor.met.clear()
    assert PASSWORD.encode() not in impostor.heard


def test_nor_where_the_environment_names_the_host(victim: Victim, impostor: Impostor) -> None:
    env = {"PGHOST": "0.0.0.0", "PGPORT": str(impostor.port), "PGPASSWORD": PASSWORD}
    _claim(victim, "postgresql://ada@/fleet", **env)
    assert impostor.met.is_set()
    assert PASSWORD.encode() not in impostor.heard


def test_control_the_operator_chooses_a_weaker_mode(victim: Victim, impostor: Impostor) -> None:
    service = victim.home / ".pg_service.conf"
    service.write_text("[fleet]\nsslmode=prefer\n")
    chosen = (
        (_url(impostor.port, "?sslmode=prefer"), {}),
        (_url(impostor.port), {"PGSSLMODE": "prefer"}),
        (_url(impostor.port, "?service=fleet"), {}),
        (_url(impostor.port, host="127.0.0.1"), {}),
    )
    for url, env in chosen:
        impostor.heard = b""
        _claim(victim, url, **env)
        assert PASSWORD.encode() in impostor.heard, (url, env)


class _Postgres(TlsRelay):
    """TLS in front of a server that has none, as PostgreSQL begins it."""

    def _dressed(self, front: socket.socket) -> socket.socket:
        front.recv(8)
        front.sendall(b"S")
        return super()._dressed(front)


def test_a_real_server_that_proves_itself_is_used(victim: Victim) -> None:
    server = postgres()
    plain = f"postgresql://postgres@0.0.0.0:{server.port}/postgres"
    assert "did not prove" in _claim(victim, plain)
    assert "claimed" in _claim(victim, f"{server.url()}?namespace=s15_loopback"), "as ever"
    with _Postgres(server.port) as relay:
        place = f"postgresql://postgres@localhost:{relay.port}/postgres?hostaddr=0.0.0.0"
        assert "did not prove" in _claim(victim, place), "signed by nobody whom we trust"
        assert "claimed" in _claim(victim, f"{place}&sslrootcert={relay.ca}&namespace=s15_named")
        roots = {"SSL_CERT_FILE": str(relay.ca)}  # as if the machine trusted it
        assert "claimed" in _claim(victim, f"{place}&namespace=s15_system", **roots)


PLAIN = (
    f"redis://:{PASSWORD}@10.255.255.1/0",
    f"redis+sentinel://10.255.255.1/main?sentinel_password={PASSWORD}",
    f"redis+cluster://ada:{PASSWORD}@127.0.0.1,10.255.255.1",
    f"etcd://ada:{PASSWORD}@10.255.255.1:2379",
    f"postgresql://ada:{PASSWORD}@10.255.255.1/fleet?sslmode=prefer",
    f"postgresql://ada:{PASSWORD}@localhost/fleet?sslmode=disable&hostaddr=10.255.255.1",
    f"git:http://ada:{PASSWORD}@10.255.255.1/leases.git",
)
SAFE = (
    f"rediss://:{PASSWORD}@10.255.255.1/0",
    f"redis://:{PASSWORD}@[::1]:6379/0",
    f"redis://:{PASSWORD}@localhost/0",
    "redis://10.255.255.1/0",
    f"etcds://ada:{PASSWORD}@10.255.255.1",
    f"postgresql://ada:{PASSWORD}@10.255.255.1/fleet",
    f"postgresql://ada:{PASSWORD}@/fleet?sslmode=disable&host=/run/postgresql",
    f"git:https://ada:{PASSWORD}@10.255.255.1/leases.git",
)


@pytest.mark.parametrize("place", PLAIN)
def test_doctor_warns_of_a_password_without_tls(victim: Victim, place: str) -> None:
    ran = victim.dibs("doctor", "--offline", DIBS_LEASES=place)
    assert "warn  wires" in ran.stdout, ran.stdout
    assert "10.255.255.1 without TLS" in ran.stdout
    assert PASSWORD not in ran.stdout + ran.stderr


@pytest.mark.parametrize("place", SAFE)
def test_and_of_nothing_else(victim: Victim, place: str) -> None:
    ran = victim.dibs("doctor", "--offline", DIBS_LEASES=place)
    assert "warn  wires" not in ran.stdout, ran.stdout
    assert PASSWORD not in ran.stdout + ran.stderr


def test_the_environment_counts_for_doctor_too(victim: Victim) -> None:
    place = f"postgresql://ada:{PASSWORD}@10.255.255.1/fleet"
    ran = victim.dibs("doctor", "--offline", DIBS_LEASES=place, PGSSLMODE="disable")
    assert "warn  wires" in ran.stdout
