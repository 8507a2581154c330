"""Connections to the primary of a Redis or Valkey: found, greeted, reused, and given up.

Decides whom to trust: a server is greeted before the first command on every connection. A replica
is refused, and so is a server that may evict keys; and if another server process than before is
there (restarted, failed over, restored from an older snapshot), a new epoch of fences begins.
Knows nothing of leases.

redis-py makes, authenticates and reads the connections. Its client and its pool are left out: they
double the time of a call, and a pool cannot say which server process a reply came from.

A call whose connection broke is made once more on a new one, since every script is idempotent; one
that timed out is not. Links do not cross a fork: a child starts with none.

What the URL of a Redis or Valkey store says: where the server is, and how it is reached.

    redis://[user:password@]host[:port][/db]
    redis+sentinel://[user:password@]host[:port],host[:port],.../service[/db]
    redis+cluster://[user:password@]host[:port],host[:port],...
    redis+unix://[user:password@]/path/of/the.sock          (or unix://)

`rediss` in place of `redis` speaks TLS, with the options `ssl_ca_certs`, `ssl_certfile` and
`ssl_keyfile`. `namespace` keeps several backlogs apart on one server, `timeout` is in seconds,
`db` a number. Connects to nothing. No error tells more of the URL than may be shown.
"""

import os
import re
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as ConnectionBroke
from redis.exceptions import TimeoutError as TimedOut
from redis.retry import Retry
from redis.sentinel import Sentinel

from dibs.adapters.redis.scripts import BEGIN_EPOCH, Script
from dibs.core.errors import BadConfiguration, Damaged, Misuse, NotPermitted, Outage, Unavailable

Address = tuple[str, int]

SCHEMES = (
    *("redis", "rediss", "redis+sentinel", "rediss+sentinel"),
    *("redis+cluster", "rediss+cluster", "redis+unix", "unix"),
)
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_OPTIONS = ("namespace", "timeout", "db", *_FILES, *_SENTINEL_OPTIONS)
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_LONGEST_TIMEOUT_S = 3600.0
_UNREADABLE = (
    "the URL of the Redis store cannot be read: it has no host, or a port that is no number; "
    "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
)


class Kind(Enum):
    SINGLE = ""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"
    UNIX = "unix"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL that makes sense. Its repr shows no secret."""

    name: str
    """Fit for people: no user, no password, no options."""
    kind: Kind
    tls: bool
    addresses: tuple[Address, ...]
    """The server, the sentinels, or the nodes of a cluster that are asked first."""
    path: str
    """Of the socket file."""
    service: str
    """What the sentinels call the primary."""
    db: int
    namespace: str
    timeout_s: float
    files: Mapping[str, str]
    """Of TLS: by redis-py's names."""
    credentials: Mapping[str, str] = field(repr=False)
    sentinel_credentials: Mapping[str, str] = field(repr=False)


def parse_redis_url(url: str) -> RedisUrl:
    """Raise BadConfiguration for what cannot be meant."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadConfiguration(_UNREADABLE) from None
    # A password with one of / ? # in it is cut there, and its rest must not be taken for a database
    # or an option, and so be shown.
    if parts.fragment or "@" in parts.path + parts.query:
        raise BadConfiguration(_UNREADABLE)
    if parts.scheme not in SCHEMES:
        raise BadConfiguration(
            f"{parts.scheme!r} is no scheme of the Redis store; it has {', '.join(SCHEMES)}"
        )
    base, _, kind_name = parts.scheme.partition("+")
    kind = Kind.UNIX if base == "unix" else Kind(kind_name)
    login, _, place = parts.netloc.rpartition("@")
    options = _options(parts.query)
    path, service, db_text = _path(kind, unquote(parts.path))
    addresses = () if kind is Kind.UNIX else _addresses(place, 26379 if service else 6379)
    return RedisUrl(
        name=f"{parts.scheme}://{place}{parts.path}",
        kind=kind,
        tls=base == "rediss",
        addresses=addresses,
        path=path,
        service=service,
        db=_db(kind, options.get("db", db_text)),
        namespace=_namespace(options.get("namespace", "dibs")),
        timeout_s=_timeout(options.get("timeout", "5")),
        files=_files(options),
        credentials=_credentials(login),
        sentinel_credentials={
            name.removeprefix("sentinel_"): options[name]
            for name in _SENTINEL_OPTIONS
            if name in options
        },
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise BadConfiguration(
                f"the Redis store has no option {name!r}; it has {', '.join(_OPTIONS)}"
            )
    return options


def _path(kind: Kind, path: str) -> tuple[str, str, str]:
    """The socket's path, the service and the database, as far as this kind of URL has them."""
    if kind is Kind.UNIX:
        if not path:
            raise BadConfiguration("the URL of the Redis store names no socket file")
        return path, "", ""
    words = path.strip("/").split("/")
    if kind is Kind.SENTINEL:
        if not words[0]:
            raise BadConfiguration(
                "the URL of the Redis store names no service after the sentinels; "
                "write it as redis+sentinel://host:port/service"
            )
        return "", words[0], "/".join(words[1:])
    return "", "", "/".join(words)


def _addresses(place: str, port: int) -> tuple[Address, ...]:
    found = []
    for one in place.split(","):
        try:
            parts = urlsplit(f"//{one}")
            host, number = parts.hostname, parts.port
        except ValueError:
            host, number = None, None
        if not host:
            raise BadConfiguration(_UNREADABLE)
        found.append((host, number or port))
    return tuple(found)


def _db(kind: Kind, text: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or (kind is Kind.CLUSTER and int(text)):
        known = "only 0" if kind is Kind.CLUSTER else "a number"
        raise BadConfiguration(f"the database of the Redis store is {known}, not {text!r}")
    return int(text)


def _namespace(text: str) -> str:
    # No braces: the namespace is in the hash tag that keeps its keys on one node of a cluster.
    if not _NAMESPACE.fullmatch(text):
        raise BadConfiguration(
            f"namespace {text!r}: one to 64 letters, digits and the signs _ . : / - are allowed"
        )
    return text


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise BadConfiguration(f"timeout {text!r} of the Redis store: write seconds, as in 5")
    return seconds


def _files(options: Mapping[str, str]) -> dict[str, str]:
    files = {name: options[name] for name in _FILES if name in options}
    for name, path in files.items():
        if not Path(path).is_file():
            raise BadConfiguration(f"{name}: there is no file {path}")
    return files


def _credentials(login: str) -> dict[str, str]:
    user, _, password = login.partition(":")
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


T = TypeVar("T")
_MOST_IDLE = 32
_MOST_HOPS = 5
_FORBIDDEN = (AuthenticationError, AuthorizationError, NoPermissionError)
_LATER = (ConnectionBroke, TimedOut, ReadOnlyError, ClusterDownError, TryAgainError, AskError)
_LATER_CODES = ("BUSY", "NOREPLICAS", "READONLY", "UNBLOCKED", "UNKILLABLE")
# Redis 6 wraps what a command inside a script says; rights that lack there have no code at all.
_CODE = re.compile(r"(?:^|user_script: ?\d+: -)([A-Z]+) ")
_NO_RIGHT = re.compile("ACL failure in script|The user executing the script")
# This link is of no more use, but another may be: it broke, or its server is not the primary.
_GONE = (ConnectionBroke, ReadOnlyError, MovedError)


class Wire(Protocol):
    """What is used of redis-py's connections, which it leaves without types."""

    def connect(self) -> None: ...

    def on_connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: list[bytes]) -> None: ...

    def read_response(self) -> Any: ...


_TCP: Callable[..., Wire] = Connection
_TLS: Callable[..., Wire] = SSLConnection
_UNIX: Callable[..., Wire] = UnixDomainSocketConnection
_SENTINEL: Any = Sentinel


class Link:
    """One connection, greeted whenever it is made."""

    __slots__ = ("_connection", "_epoch", "_name", "durable", "server")

    def __init__(self, make: Callable[..., Wire], epoch: str, name: str) -> None:
        self._epoch, self._name = epoch, name
        self.server = ""
        """Which process answers: another one after every start."""
        self.durable = False
        self._connection = make(redis_connect_func=self._greet)

    def open(self) -> None:
        self._connection.connect()

    def close(self) -> None:
        self._connection.disconnect()

    def run(self, script: Script, words: Sequence[str]) -> Any:
        if script.granting:
            words = (*words, self.server)
        self._connection.send_packed_command([packed(words, script.head, 3)])
        try:
            return self._connection.read_response()
        except NoScriptError:  # restarted, flushed, or new to the server
            return self.ask(("EVAL", script.text, script.keys, *words))[0]

    def ask(self, *commands: Sequence[str]) -> list[Any]:
        """The replies to several commands, for one round trip."""
        self._connection.send_packed_command([packed(command) for command in commands])
        return [self._connection.read_response() for _ in commands]

    def _greet(self, connection: Wire) -> None:
        try:
            connection.on_connect()
            # A node of a cluster that does not have our keys answers the second with MOVED.
            told, known = self.ask(("INFO",), ("HMGET", self._epoch, "server"))
            facts = _facts(told)
            self._refuse_unfit(facts)
            self.server, self.durable = facts["run_id"], facts.get("aof_enabled") == "1"
            if known != [self.server]:
                self.ask(("EVAL", BEGIN_EPOCH.text, "1", self._epoch, self.server))
        except BaseException:
            # redis-py hangs up after its own errors only, and would use the rest without greeting.
            connection.disconnect()
            raise

    def _refuse_unfit(self, facts: dict[str, str]) -> None:
        if facts.get("role") != "master":
            raise Unavailable(f"{self._name} is a replica, which grants nothing; ask its primary")
        policy = facts.get("maxmemory_policy", "unknown")
        if policy.startswith("allkeys"):
            raise BadConfiguration(
                f"{self._name} evicts any key when its memory is full (maxmemory-policy {policy}): "
                "it could forget who holds an issue, and which fences it granted; leases need a "
                "server with the policy noeviction, or one of volatile-*"
            )
        if not facts.get("run_id"):
            raise BadConfiguration(
                f"{self._name} does not tell its run_id (INFO server), so that a restart, after "
                "which fences must not repeat, could go unnoticed"
            )


class RedisLinks:
    """A stock of links to wherever the primary is. Threads borrow one for a call."""

    def __init__(self, url: RedisUrl, epoch: str) -> None:
        self._url, self._epoch = url, epoch
        self.name = url.name
        self.durable = False
        """Whether the server that was greeted last keeps an append-only file."""
        self._idle: list[Link] = []
        self._pid = os.getpid()
        self._closed = False
        self._primary: Address | None = None
        self._finding = threading.Lock()
        self._sentinel = _sentinel(url) if url.kind is Kind.SENTINEL else None

    def run(self, script: Script, words: Sequence[str], again: Sequence[str] = ()) -> Any:
        """What the script answers. `again`: the words for when it may have run already."""
        return self._call(
            self._borrow,
            lambda link: link.run(script, words),
            lambda link: link.run(script, again or words),
        )

    def run_greeted(self, script: Script, words: Sequence[str]) -> Any:
        """What the script answers to a link that greets its server now."""
        self._drop_idle()
        return self._call(self._open, lambda link: link.run(script, words))

    def ask(self, *commands: Sequence[str]) -> list[Any]:
        """The replies to several commands, for one round trip."""
        return self._call(self._borrow, lambda link: link.ask(*commands))

    def close(self) -> None:
        self._closed = True
        self._drop_idle()
        for asked in self._sentinel.sentinels if self._sentinel is not None else ():
            asked.close()

    def _call(
        self,
        lend: Callable[[], Link],
        first: Callable[[Link], T],
        second: Callable[[Link], T] | None = None,
    ) -> T:
        try:
            try:
                return self._on(lend(), first)
            except RedisError as failure:
                if not isinstance(failure, _GONE) and _code(failure) != "READONLY":
                    raise
            self._drop_idle()  # they lead to the same server
            return self._on(self._open(), second or first)
        except RedisError as failure:
            raise self._outage(failure) from failure

    def _on(self, link: Link, call: Callable[[Link], T]) -> T:
        try:
            reply = call(link)
        except BaseException:
            link.close()  # there may be an answer on the way that nobody waits for
            raise
        self._give_back(link)
        return reply

    def _borrow(self) -> Link:
        if self._pid != os.getpid():
            self._pid, self._idle = os.getpid(), []
        return self._idle_link() or self._open()

    def _idle_link(self) -> Link | None:
        try:
            return self._idle.pop()  # one step: nobody else has it then, and no lock is needed
        except IndexError:
            return None

    def _give_back(self, link: Link) -> None:
        if self._closed or len(self._idle) >= _MOST_IDLE:
            link.close()
        else:
            self._idle.append(link)

    def _drop_idle(self) -> None:
        while (link := self._idle_link()) is not None:
            link.close()

    def _open(self) -> Link:
        """A new link. Raises what is ours: a server that cannot be reached is not asked twice."""
        if self._closed:
            raise Unavailable(f"{self.name} was closed by this program")
        try:
            link = self._first_of(self._addresses())
        except RedisError as failure:
            raise self._outage(failure) from failure
        self.durable = link.durable
        return link

    def _addresses(self) -> Iterable[Address]:
        """Where the primary may be, the likeliest first."""
        if self._sentinel is not None:
            with self._finding:  # redis-py reorders its sentinels while it asks them
                return (self._sentinel.discover_master(self._url.service),)
        if self._url.kind is Kind.CLUSTER and self._primary is not None:
            return (self._primary, *self._url.addresses)
        return self._url.addresses or (("", 0),)

    def _first_of(self, addresses: Iterable[Address]) -> Link:
        failure: RedisError | None = None
        for address in addresses:
            try:
                return self._reach(address)
            except (ConnectionBroke, TimedOut) as missed:
                failure = missed
        raise failure or ConnectionBroke("there is no address to ask")

    def _reach(self, address: Address) -> Link:
        for _ in range(_MOST_HOPS):
            link = Link(self._making(address), self._epoch, self.name)
            try:
                link.open()
            except MovedError as moved:
                address = (moved.host or address[0], moved.port)
            except ConnectionBroke as failure:
                if isinstance(failure.__context__, ssl.SSLCertVerificationError):
                    text = f"{self.name} cannot prove who it is ({failure})"
                    raise NotPermitted(text) from failure
                raise
            else:
                self._primary = address
                return link
        raise ConnectionBroke("its nodes do not agree on who has our keys")

    def _making(self, address: Address) -> Callable[..., Wire]:
        url = self._url
        settings = {**_settings(url), "db": url.db, **url.credentials}
        if url.kind is Kind.UNIX:
            return partial(_UNIX, path=url.path, **settings)
        settings |= {"host": address[0], "port": address[1]}
        return partial(_TLS, **url.files, **settings) if url.tls else partial(_TCP, **settings)

    def _outage(self, failure: RedisError) -> Outage:
        """Which of our errors this is: who must act, and would trying again help."""
        if isinstance(failure, _FORBIDDEN) or _NO_RIGHT.search(str(failure)):
            return NotPermitted(f"{self.name} refuses us ({failure})")
        if isinstance(failure, _LATER) or _code(failure) in _LATER_CODES:
            return Unavailable(f"{self.name} cannot be used now ({failure})")
        return Damaged(f"{self.name} cannot do its work ({failure})")


def _settings(url: RedisUrl) -> dict[str, Any]:
    return {
        "socket_timeout": url.timeout_s,
        "socket_connect_timeout": url.timeout_s,
        "protocol": 2,
        "client_name": "dibs",
        "decode_responses": True,
        "encoding_errors": "backslashreplace",  # whatever is stored or said, it can be told
    }


def _sentinel(url: RedisUrl) -> Any:
    settings = {**_settings(url), "retry": Retry(NoBackoff(), 0), **url.sentinel_credentials}
    if url.tls:
        settings |= {"ssl": True, **url.files}
    return _SENTINEL(url.addresses, sentinel_kwargs=settings)


def packed(words: Sequence[str], head: str = "", in_head: int = 0) -> bytes:
    """A command in Redis' own form. redis-py's packer takes a third of the time of a whole call."""
    count = f"*{len(words) + in_head}\r\n{head}"
    text = "".join([count, *[f"${len(word)}\r\n{word}\r\n" for word in words]])
    if text.isascii():
        return text.encode("ascii")
    parts = [_in_utf8(word) for word in words]
    return count.encode("ascii") + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def _in_utf8(word: str) -> bytes:
    """As it is, or not at all: two names that are spelt alike would be one."""
    try:
        return word.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{word!r} cannot be kept by Redis: it has half letters") from None


def _code(failure: RedisError) -> str:
    """The server's word for it, where redis-py has no class for that."""
    found = _CODE.search(str(failure))
    return found[1] if found else ""


def _facts(told: str) -> dict[str, str]:
    """What INFO says, by name."""
    lines = (line.partition(":") for line in told.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}
