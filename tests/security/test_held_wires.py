"""A server that cannot prove who it is gets no credential, and a credential follows no redirect.

The actor: somebody on the network between us and a server, or a server that was taken over. The
attack: answer with a certificate that nobody vouches for; redirect a request, or name the next
page, to a server of the attacker's. The wall: certificates are checked, redirects are not followed
to another server. Each store's own tests try more: tests/conformance/test_redis_store.py,
test_etcd_store.py, tests/github/test_transport.py.
"""

import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import pytest
from tests.github.tiny import Say, TinyServer

from .conftest import SECRETS

_TOKEN = SECRETS["GITHUB_TOKEN"].encode()


class Impostor:
    """A server with a certificate of its own making, which keeps what it could decrypt."""

    def __init__(self, folder, *, postgres=False):
        self.certificate = folder / "certificate.pem"
        key = folder / "key.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=dibs"),
                *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(self.certificate)),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(self.certificate, key)
        self._postgres = postgres
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.called, self.heard = 0, b""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.called += 1
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection):
        with suppress(OSError), connection:
            connection.settimeout(10)
            if self._postgres:
                connection.recv(8)  # libpq asks whether there is TLS
                connection.sendall(b"S")
            with self._context.wrap_socket(connection, server_side=True) as inside:
                self.heard += inside.recv(65536)

    def close(self):
        self._socket.close()


_WIRES = {
    "rediss": ({"DIBS_LEASES": "rediss://:PW@localhost:{port}/0{ca}"}, "?ssl_ca_certs={file}"),
    "etcds": ({"DIBS_LEASES": "etcds://u:PW@localhost:{port}/dibs{ca}"}, "?ca={file}"),
    "postgres": (
        {"DIBS_LEASES": "postgres://u:PW@localhost:{port}/db?sslmode=verify-full{ca}"},
        "&sslrootcert={file}",
    ),
    "github": ({"GITHUB_API_URL": "https://localhost:{port}"}, ""),
}


def _asked(victim, impostor, name, *, vouched):
    env, ca = _WIRES[name]
    file = str(impostor.certificate)
    filled = ca.replace("{file}", file) if vouched else ""
    env = {
        key: text.replace("{ca}", filled).replace("{port}", str(impostor.port))
        for key, text in env.items()
    }
    if vouched and name == "github":
        env["SSL_CERT_FILE"] = file
    if name == "github":
        # the token is for this server by the victim's own word
        env["DIBS_GITHUB_TOKEN"] = env["GH_ENTERPRISE_TOKEN"] = SECRETS["GITHUB_TOKEN"]
        victim.configure('tracker = "github:acme/shop"\n')
    else:
        victim.dibs("init")
        victim.dibs("add", "an issue")
    return victim.dibs("show", "1", **env)


@pytest.fixture
def impostor(request, tmp_path):
    folder = tmp_path / "impostor"
    folder.mkdir()
    made = Impostor(folder, postgres=request.param == "postgres")
    yield made
    made.close()


each = pytest.mark.parametrize(
    ("name", "impostor"), [(name, name) for name in _WIRES], indirect=["impostor"], ids=_WIRES
)


@each
def test_a_certificate_that_nobody_vouches_for_is_refused(victim, impostor, name):
    ran = _asked(victim, impostor, name, vouched=False)
    assert ran.returncode not in {0, 3}, ran.stdout
    assert "certificate" in ran.stderr.lower(), ran.stderr
    assert impostor.called
    assert impostor.heard == b""


@each
def test_the_same_server_is_believed_if_its_certificate_is_named(victim, impostor, name):
    """Control: what it could decrypt is there to be seen."""
    _asked(victim, impostor, name, vouched=True)
    assert impostor.heard


# Redirects


def _listed(victim, server):
    victim.configure('tracker = "github:acme/shop"\n[github]\ngraphql = false\npace = false\n')
    own = {"DIBS_GITHUB_TOKEN": SECRETS["GITHUB_TOKEN"]}
    return victim.dibs("list", GITHUB_API_URL=server.url, **own)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_server_is_not_followed(victim, ear, status):
    def answer(heard):
        return Say(status, {}, {"Location": f"{ear.url}{heard.path}"})

    with TinyServer(answer) as server:
        ran = _listed(victim, server)
        assert any(_TOKEN in one.bearer.encode() for one in server.heard), "control: it was asked"
    assert ran.returncode not in {0, 3}
    assert ear.heard == b""


def test_a_next_page_on_another_server_is_not_read(victim, ear):
    def answer(heard):
        return Say(200, [], {"Link": f'<{ear.url}{heard.path}?page=2>; rel="next"'})

    with TinyServer(answer) as server:
        _listed(victim, server)
        assert server.heard, "control: the first page was asked for"
    assert ear.heard == b""
