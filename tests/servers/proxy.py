"""A proxy between clients and a server on this machine that does what networks do, when told to.

It passes everything on; or it is cut, and resets whoever is connected or comes; or it swallows
whatever either side says; or it holds everything up, and delivers it late. It can lose a reply: the
request is passed on, the server does what it was asked, and instead of the answer the client gets a
reset, or nothing at all. After all of these it can pass again, on the same port.

One thread has all the connections, so that what was told is so when the call returns.
"""

import contextlib
import queue
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import TypeVar

_SIZE = 65536
_PATIENCE_S = 20.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time at all
_T = TypeVar("_T")


class Way(Enum):
    """What becomes of bytes."""

    PASSED = "passed"
    CUT = "cut"
    SWALLOWED = "swallowed"
    HELD_UP = "held up"


class _Pair:
    """A client's connection, and the one to the server that goes with it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.asked = False
        """Something went to the server, and nothing has come back since."""
        self.mute = False
        """Whatever either side says from now on is swallowed."""

    def ends(self) -> tuple[socket.socket, socket.socket]:
        return self.client, self.server

    def other(self, end: socket.socket) -> socket.socket:
        return self.server if end is self.client else self.client


class Proxy:
    """Listens on a port of loopback until it is closed."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = threading.Event()
        """Set when a reply was lost, after the witness has returned."""
        self._way = Way.PASSED
        self._pairs: dict[socket.socket, _Pair] = {}
        self._replies_until_loss = 0
        self._witness: Callable[[], None] = lambda: None
        self._silently = False
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell, self._ear = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._open = True
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # What a test tells it

    def pass_on(self) -> None:
        """From now on everything gets through. Connections that lost something are reset."""
        self._order(lambda: self._change(Way.PASSED))

    def cut(self) -> None:
        """Reset every connection, and every new one."""
        self._order(lambda: self._change(Way.CUT))

    def swallow(self) -> None:
        """Nothing gets through either way, and no connection breaks: a black hole."""
        self._order(lambda: self._change(Way.SWALLOWED))

    def hold_up(self) -> None:
        """Nothing gets through for now; `pass_on` delivers it late."""
        self._order(lambda: self._change(Way.HELD_UP))

    def lose_reply(
        self,
        nth: int = 1,
        witness: Callable[[], None] = lambda: None,
        *,
        silently: bool = False,
    ) -> None:
        """Lose the nth reply from now, and reset its connection; or `silently`, let it hang.

        `witness` is called between the server's doing and that. It must not talk through here.
        """
        assert nth > 0, "the first is number one"
        self._order(lambda: self._arm(nth, witness, silently=silently))

    def keep_replies(self) -> None:
        """Lose no more. `lost` goes on telling whether one was."""
        self._order(self._disarm)

    def close(self) -> None:
        if self._open:
            self._order(self._stop)
            self._thread.join(_PATIENCE_S)

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _order(self, order: Callable[[], _T]) -> _T:
        done: Future[_T] = Future()

        def obey() -> None:
            try:
                done.set_result(order())
            except BaseException as failure:  # noqa: BLE001 - the one who told it is told
                done.set_exception(failure)

        self._orders.put(obey)
        self._bell.send(b".")
        return done.result(_PATIENCE_S)

    # What its thread does

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                if key.fileobj is self._ear:
                    self._ear.recv(1)
                    self._orders.get()()
                    break  # an order may have closed what is next in this list
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._move(key.fileobj)

    def _change(self, way: Way) -> None:
        before, self._way = self._way, way
        if way is Way.CUT or before in (Way.CUT, Way.SWALLOWED):
            for pair in set(self._pairs.values()):
                self._reset(pair)
        for end in self._pairs:  # whoever is held up is not even read
            events = selectors.EVENT_READ if way is not Way.HELD_UP else 0
            self._watch(end, events)

    def _watch(self, end: socket.socket, events: int) -> None:
        if end in self._selector.get_map():
            self._selector.unregister(end)
        if events:
            self._selector.register(end, events)

    def _arm(self, nth: int, witness: Callable[[], None], *, silently: bool) -> None:
        self.lost.clear()
        self._replies_until_loss, self._witness, self._silently = nth, witness, silently

    def _disarm(self) -> None:
        self._replies_until_loss = 0

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._way is Way.CUT:
            _reset(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=_PATIENCE_S)
        except OSError:
            _reset(client)
            return
        pair = _Pair(client, server)
        for end in pair.ends():
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(_PATIENCE_S)
            self._pairs[end] = pair
            self._watch(end, 0 if self._way is Way.HELD_UP else selectors.EVENT_READ)

    def _move(self, end: socket.socket) -> None:
        """One piece from one end to the other, if that is the way now."""
        pair = self._pairs.get(end)
        if pair is None:
            return
        try:
            data = end.recv(_SIZE)
            if not data:
                self._hang_up(pair)
            elif self._way is Way.PASSED and not pair.mute and not self._loses(pair, end):
                pair.asked = pair.asked or end is pair.client
                pair.other(end).sendall(data)
        except OSError:
            self._reset(pair)

    def _loses(self, pair: _Pair, end: socket.socket) -> bool:
        """Whether this is a reply, the first piece of it, and the one to be lost."""
        if end is pair.client or not pair.asked:
            return False
        pair.asked = False
        if self._replies_until_loss == 0:
            return False
        self._replies_until_loss -= 1
        if self._replies_until_loss:
            return False
        self._witness()
        self.lost.set()  # before the client can know of it
        if self._silently:
            pair.mute = True
        else:
            self._reset(pair)
        return True

    def _hang_up(self, pair: _Pair) -> None:
        for end in self._forgotten(pair):
            end.close()

    def _reset(self, pair: _Pair) -> None:
        for end in self._forgotten(pair):
            _reset(end)

    def _forgotten(self, pair: _Pair) -> tuple[socket.socket, socket.socket]:
        for end in pair.ends():
            self._watch(end, 0)
            self._pairs.pop(end, None)
        return pair.ends()

    def _stop(self) -> None:
        self._open = False
        for pair in set(self._pairs.values()):
            self._reset(pair)
        self._selector.close()
        for end in (self._listener, self._ear, self._bell):
            end.close()


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    end.close()
