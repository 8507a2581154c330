"""A relay between a client and a server on this machine, for what networks do.

It can be cut, so that nothing answers where it was; it can lose the next reply, when the server has
done what it was asked; it can go silent. `TlsRelay` takes TLS in front of a server that has none.
"""

import contextlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path

_SIZE = 65536


class Relay:
    """Listens on a free port of loopback until it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._losing = threading.Event()
        self.lost = threading.Event()
        """Set when a reply was lost."""
        self._silent = threading.Event()
        self._start(self._accept)

    def lose_the_next_reply(self) -> None:
        """The request goes through; its reply does not, and the connection breaks."""
        self.lost.clear()
        self._losing.set()

    def go_silent(self) -> None:
        """Nothing comes through any more, and no connection breaks."""
        self._silent.set()

    def break_connections(self) -> None:
        """Those that are open now; new ones are taken."""
        with self._lock:
            broken, self._open = self._open, set()
        for end in broken:
            _hang_up(end)

    def cut(self) -> None:
        """Nobody listens here any more."""
        _hang_up(self._listener)
        self.break_connections()

    def __enter__(self):
        return self

    def __exit__(self, *failure: object) -> None:
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                front, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, front)

    def _serve(self, front: socket.socket) -> None:
        try:
            front = self._dressed(front)
            back = socket.create_connection(("127.0.0.1", self._target), timeout=10)
            back.settimeout(None)
        except OSError:
            _hang_up(front)
            return
        for end in (front, back):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {front, back}
        self._start(self._pump, front, back, False)
        self._pump(back, front, True)

    def _dressed(self, front: socket.socket) -> socket.socket:
        return front

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        try:
            while data := source.recv(_SIZE):
                if replies and self._losing.is_set():
                    self._losing.clear()
                    self.lost.set()
                    break
                if not self._silent.is_set():
                    sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._open -= {source, sink}
        _hang_up(source)
        _hang_up(sink)

    def _start(self, work, *words: object) -> None:
        threading.Thread(target=work, args=words, daemon=True).start()


class TlsRelay(Relay):
    """TLS in front, plain behind. `ca` is the file of the authority that signed for `localhost`."""

    def __init__(self, port: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dibs-tls-"))
        self.ca = self._folder / "certificate.pem"
        key = self._folder / "key.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=dibs"),
                *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(self.ca)),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(self.ca, key)
        super().__init__(port)

    def _dressed(self, front: socket.socket) -> socket.socket:
        front.settimeout(10)
        dressed = self._context.wrap_socket(front, server_side=True)
        dressed.settimeout(None)
        return dressed

    def cut(self) -> None:
        super().cut()
        shutil.rmtree(self._folder, ignore_errors=True)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
