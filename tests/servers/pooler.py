"""A transaction pooler in front of PostgreSQL: each transaction goes to another backend.

It does to a client what PgBouncer does in its mode `transaction`, and nothing else: it greets it
under a process id of its own, and lends it a backend until that one says that it is idle. Backends
are lent in turn, never the same one twice running, so that whatever is left behind in a session is
missed at once. It takes no TLS and no passwords.
"""

import contextlib
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_IDLE = b"I"


class TransactionPooler:
    """Listens on a free port of loopback until it is closed."""

    def __init__(self, port: int, *, backends: int = 6, user: str = "postgres") -> None:
        self._free: deque[_Wire] = deque()
        self._freed = threading.Condition()
        self.served = 0
        """How many transactions went through."""
        for _ in range(backends):
            wire, self._settings = _log_in(port, user)
            self._free.append(wire)
        self._all = tuple(self._free)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._clients: set[_Wire] = set()
        self._start(self._accept)

    def url(self, options: str = "") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres" + (options and f"?{options}")

    def __enter__(self):
        return self

    def __exit__(self, *failure: object) -> None:
        for wire in (*self._all, *self._clients):
            wire.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                front, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, _Wire(front))

    def _serve(self, client: "_Wire") -> None:
        self._clients.add(client)
        with contextlib.suppress(OSError, EOFError):
            if self._greet(client):
                while self._transaction(client):
                    pass
        self._clients.discard(client)
        client.close()

    def _greet(self, client: "_Wire") -> bool:
        while (code := client.read_startup()) in {_SSL, _GSS}:
            client.send(b"N")
        if code == _CANCEL:
            return False
        own_id = struct.pack("!II", random.getrandbits(31), random.getrandbits(32))
        client.send(_message(b"R", struct.pack("!I", 0)), *self._settings)
        client.send(_message(b"K", own_id), _message(b"Z", _IDLE))
        return True

    def _transaction(self, client: "_Wire") -> bool:
        """Whether the client stays for another."""
        first = client.read()
        if first[0] == b"X":
            return False
        with self._lent() as backend:
            self.served += 1
            asked = _turns(client, backend, first)
            while True:
                kind, body = backend.read()
                client.send(_message(kind, body))
                if kind == b"Z":
                    asked -= 1
                    if asked == 0 and body == _IDLE:
                        return True
                    if asked == 0:
                        asked = _turns(client, backend, client.read())

    @contextlib.contextmanager
    def _lent(self) -> Iterator["_Wire"]:
        with self._freed:
            self._freed.wait_for(lambda: self._free, timeout=60)
            backend = self._free.popleft()
        try:
            yield backend
        finally:
            with self._freed:
                self._free.append(backend)
                self._freed.notify()

    def _start(self, work, *words: object) -> None:
        threading.Thread(target=work, args=words, daemon=True).start()


def _turns(client: "_Wire", backend: "_Wire", first: tuple[bytes, bytes]) -> int:
    """Hand on what the client says until it is the backend's turn; how often it will be ready."""
    message, turns = first, 0
    while True:
        backend.send(_message(*message))
        turns += message[0] in {b"Q", b"S"}
        if turns and not client.has_more:
            return turns
        message = client.read()
        if message[0] == b"X":
            raise EOFError("the client left in the middle of a transaction")


class _Wire:
    """Messages of PostgreSQL's protocol on a socket."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end = end
        self._seen = b""

    @property
    def has_more(self) -> bool:
        return bool(self._seen)

    def send(self, *messages: bytes) -> None:
        self._end.sendall(b"".join(messages))

    def read(self) -> tuple[bytes, bytes]:
        kind, size = struct.unpack("!cI", self._take(5))
        return kind, self._take(size - 4)

    def read_startup(self) -> int:
        (size,) = struct.unpack("!I", self._take(4))
        return struct.unpack("!I", self._take(size - 4)[:4])[0]

    def _take(self, size: int) -> bytes:
        while len(self._seen) < size:
            data = self._end.recv(65536)
            if not data:
                raise EOFError("hung up")
            self._seen += data
        taken, self._seen = self._seen[:size], self._seen[size:]
        return taken

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def _log_in(port: int, user: str) -> tuple[_Wire, list[bytes]]:
    """A backend of our own, and what the server said about its settings."""
    wire = _Wire(socket.create_connection(("127.0.0.1", port), timeout=60))
    words = f"user\0{user}\0database\0postgres\0client_encoding\0UTF8\0\0".encode()
    wire.send(struct.pack("!II", len(words) + 8, 196608), words)
    settings = []
    while (message := wire.read())[0] != b"Z":
        if message[0] == b"E":
            raise RuntimeError(f"PostgreSQL refuses the pooler: {message[1]!r}")
        if message[0] == b"S":
            settings.append(_message(*message))
    return wire, settings


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body
