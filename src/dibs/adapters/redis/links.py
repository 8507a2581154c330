"""The URL of a Redis or Valkey store, and connections to the primary that the URL leads to.

    redis://[user:password@]host[:port][/db]
    redis+sentinel://[user:password@]host[:port],host[:port],.../service[/db]
    redis+cluster://[user:password@]host[:port],host[:port],...
    redis+unix://[user:password@]/path/of/the.sock          (or unix://)

`rediss` in place of `redis` speaks TLS, with the options `ssl_ca_certs`, `ssl_certfile` and
`ssl_keyfile`. `namespace` keeps several backlogs apart on one server, `timeout` is in seconds,
`db` is a number. Reading a URL opens no connection. No error text shows a secret part of the URL.

Decides which server to trust: every new connection greets its server before the first command. The
greeting refuses a replica, and a server that may evict keys. If the greeting meets another server
process than before (restarted, failed over, restored from an older snapshot), a new epoch of fences
begins. Knows nothing of leases.

redis-py makes, authenticates and reads the connections. Its client and its pool are left out: they
double the time of a call, and a pool cannot tell which server process a reply came from.

If a connection breaks during a call, the call is repeated once on a new connection, because every
script is idempotent. A call that timed out is not repeated. Links do not cross a fork: a child
process starts with none.
"""

import re
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

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
from dibs.adapters.system import IdlePool
from dibs.core.errors import BadConfiguration, Damaged, Misuse, NotPermitted, Outage, Unavailable
from dibs.core.references import seconds_in, split_host, split_url

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


class RedisTopology(Enum):
    SINGLE = ""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"
    UNIX = "unix"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL that was checked. The repr shows no secret."""

    name: str
    """For messages: without user, password and options."""
    topology: RedisTopology
    tls: bool
    addresses: tuple[Address, ...]
    """The server, the sentinels, or the cluster nodes to ask first. Empty for a socket file."""
    path: str
    """The path of the socket file; empty for every other URL."""
    service: str
    """The sentinels' name for the primary; empty without sentinels."""
    db: int
    namespace: str
    timeout_s: float
    files: Mapping[str, str]
    """The TLS files, by redis-py's names."""
    credentials: Mapping[str, str] = field(repr=False)
    sentinel_credentials: Mapping[str, str] = field(repr=False)


def parse_redis_url(url: str) -> RedisUrl:
    """Raise BadConfiguration if a part of the URL is unknown, missing or out of range."""
    parts = split_url(url, _UNREADABLE)
    if parts.scheme not in SCHEMES:
        raise BadConfiguration(
            f"{parts.scheme!r} is no scheme of the Redis store; it has {', '.join(SCHEMES)}"
        )
    base, _, suffix = parts.scheme.partition("+")
    topology = RedisTopology.UNIX if base == "unix" else RedisTopology(suffix)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    credentials = {"username": unquote(user), "password": unquote(password)}
    options = _parse_options(parts.query)
    path, service, db = _parse_path(topology, unquote(parts.path))
    listed = () if topology is RedisTopology.UNIX else hosts.split(",")
    addresses = [split_host(host, _UNREADABLE) for host in listed]
    usual_port = 26379 if service else 6379
    db = options.get("db", db) or "0"
    if not db.isdecimal() or (topology is RedisTopology.CLUSTER and int(db)):
        allowed = "only 0" if topology is RedisTopology.CLUSTER else "a number"
        raise BadConfiguration(f"the database of the Redis store is {allowed}, not {db!r}")
    return RedisUrl(
        name=f"{parts.scheme}://{hosts}{parts.path}",
        topology=topology,
        tls=base == "rediss",
        addresses=tuple((host, port or usual_port) for host, port in addresses),
        path=path,
        service=service,
        db=int(db),
        namespace=options["namespace"],
        timeout_s=float(options["timeout"]),
        files={name: options[name] for name in _FILES if name in options},
        credentials={name: value for name, value in credentials.items() if value},
        sentinel_credentials={
            name.removeprefix("sentinel_"): options[name]
            for name in _SENTINEL_OPTIONS
            if name in options
        },
    )


def _parse_options(query: str) -> dict[str, str]:
    """The options, with a checked `namespace` and `timeout` and TLS files that exist."""
    options = {
        "namespace": "dibs",
        "timeout": "5",
        **dict(parse_qsl(query, keep_blank_values=True)),
    }
    for name, value in options.items():
        if name not in _OPTIONS:
            raise BadConfiguration(
                f"the Redis store has no option {name!r}; it has {', '.join(_OPTIONS)}"
            )
        if name in _FILES and not Path(value).is_file():
            raise BadConfiguration(f"{name}: there is no file {value}")
    namespace, timeout = options["namespace"], options["timeout"]
    # No braces: the namespace is in the hash tag that keeps its keys on one node of a cluster.
    if not _NAMESPACE.fullmatch(namespace):
        raise BadConfiguration(
            f"namespace {namespace!r}: one to 64 letters, digits and the signs _ . : / - "
            "are allowed"
        )
    wrong = f"timeout {timeout!r} of the Redis store: write seconds, as in 5"
    seconds_in(timeout, _LONGEST_TIMEOUT_S, wrong)
    return options


def _parse_path(topology: RedisTopology, path: str) -> tuple[str, str, str]:
    """The socket file, the service and the database; empty where the URL cannot have them."""
    if topology is RedisTopology.UNIX:
        if not path:
            raise BadConfiguration("the URL of the Redis store names no socket file")
        return path, "", ""
    words = path.strip("/").split("/")
    if topology is RedisTopology.SENTINEL:
        if not words[0]:
            raise BadConfiguration(
                "the URL of the Redis store names no service after the sentinels; "
                "write it as redis+sentinel://host:port/service"
            )
        return "", words[0], "/".join(words[1:])
    return "", "", "/".join(words)


T = TypeVar("T")
_MOST_IDLE = 32
_MOST_HOPS = 5
_FORBIDDEN = (AuthenticationError, AuthorizationError, NoPermissionError)
_LATER = (ConnectionBroke, TimedOut, ReadOnlyError, ClusterDownError, TryAgainError, AskError)
_LATER_CODES = ("BUSY", "NOREPLICAS", "READONLY", "UNBLOCKED", "UNKILLABLE")
# Redis 6 wraps the error of a command inside a script; a missing right there has no code at all.
_CODE = re.compile(r"(?:^|user_script: ?\d+: -)([A-Z]+) ")
_NO_RIGHT = re.compile("ACL failure in script|The user executing the script")
# The link cannot be used any more, but a new link may work: the connection broke, or the server is
# not the primary.
_GONE = (ConnectionBroke, ReadOnlyError, MovedError)


class RedisConnection(Protocol):
    """The part of redis-py's connections that dibs uses; redis-py gives them no types."""

    def connect(self) -> None: ...

    def on_connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: list[bytes]) -> None: ...

    def read_response(self) -> Any: ...


_TCP: Callable[..., RedisConnection] = Connection
_TLS: Callable[..., RedisConnection] = SSLConnection
_UNIX: Callable[..., RedisConnection] = UnixDomainSocketConnection
_SENTINEL: Any = Sentinel


class Link:
    """A connection that greets the server each time redis-py connects."""

    __slots__ = ("_connection", "_epoch", "_name", "durable", "server")

    def __init__(self, make: Callable[..., RedisConnection], epoch: str, name: str) -> None:
        self._epoch, self._name = epoch, name
        self.server = ""
        """The run_id of the server process: a new one after every start."""
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
        except NoScriptError:  # the server restarted, flushed its scripts, or never had this one
            return self.ask(("EVAL", script.text, script.keys, *words))[0]

    def ask(self, *commands: Sequence[str]) -> list[Any]:
        """The replies to several commands, in a single round trip."""
        self._connection.send_packed_command([packed(command) for command in commands])
        return [self._connection.read_response() for _ in commands]

    def _greet(self, connection: RedisConnection) -> None:
        """Refuse an unfit server, and begin a new epoch if the server process is a new one."""
        with ExitStack() as hang_up:
            # redis-py disconnects after its own errors only. After any other error it would go on
            # to use the connection without a greeting.
            hang_up.callback(connection.disconnect)
            connection.on_connect()
            # A cluster node that does not have our keys answers the second command with MOVED.
            info, stored = self.ask(("INFO",), ("HMGET", self._epoch, "server"))
            lines = (line.partition(":") for line in info.splitlines() if not line.startswith("#"))
            facts = {name: value for name, _, value in lines}
            if facts.get("role") != "master":
                raise Unavailable(
                    f"{self._name} is a replica, which grants nothing; ask its primary"
                )
            policy = facts.get("maxmemory_policy", "unknown")
            if policy.startswith("allkeys"):
                raise BadConfiguration(
                    f"{self._name} evicts any key when its memory is full (maxmemory-policy "
                    f"{policy}): it could forget who holds an issue, and which fences it granted; "
                    "leases need a server with the policy noeviction, or one of volatile-*"
                )
            if not facts.get("run_id"):
                raise BadConfiguration(
                    f"{self._name} does not tell its run_id (INFO server), so that a restart, "
                    "after which fences must not repeat, could go unnoticed"
                )
            self.server, self.durable = facts["run_id"], facts.get("aof_enabled") == "1"
            if stored != [self.server]:
                self.ask(("EVAL", BEGIN_EPOCH.text, "1", self._epoch, self.server))
            hang_up.pop_all()


class RedisLinks:
    """A pool of links to the primary. A thread borrows a link for each call."""

    def __init__(self, url: RedisUrl, epoch: str) -> None:
        self._url, self._epoch = url, epoch
        self.name = url.name
        self.durable: bool | None = None
        """Whether the server that was greeted last keeps an append-only file; None: none was."""
        self._idle = IdlePool(_MOST_IDLE, Link.close)
        self._primary: Address | None = None
        self._asking_sentinels = threading.Lock()
        self._sentinel = _sentinel(url) if url.topology is RedisTopology.SENTINEL else None

    def run(self, script: Script, words: Sequence[str], again: Sequence[str] = ()) -> Any:
        """Run the script. `again` replaces `words` in a second try: the first may have run."""
        return self._call(
            self._borrow,
            lambda link: link.run(script, words),
            lambda link: link.run(script, again or words),
        )

    def run_greeted(self, script: Script, words: Sequence[str]) -> Any:
        """Run the script on a new link, which greets the server before the script runs."""
        self._idle.drop()
        return self._call(self._open, lambda link: link.run(script, words))

    def ask(self, *commands: Sequence[str]) -> list[Any]:
        """The replies to several commands, in a single round trip."""
        return self._call(self._borrow, lambda link: link.ask(*commands))

    def close(self) -> None:
        self._idle.close()
        for client in self._sentinel.sentinels if self._sentinel is not None else ():
            client.close()

    def _call(
        self,
        lend: Callable[[], Link],
        first: Callable[[Link], T],
        second: Callable[[Link], T] | None = None,
    ) -> T:
        """Make a call; repeat it once on a new link if the link broke or the primary moved."""
        try:
            try:
                return self._on(lend(), first)
            except RedisError as failure:
                if not isinstance(failure, _GONE) and _code(failure) != "READONLY":
                    raise
            self._idle.drop()  # the idle links lead to the same server
            return self._on(self._open(), second or first)
        except RedisError as failure:
            raise self._outage(failure) from failure

    def _on(self, link: Link, call: Callable[[Link], T]) -> T:
        """Make a call on the link, then keep the link for the next call if there is room."""
        try:
            reply = call(link)
        except BaseException:
            link.close()  # a reply that nobody reads may still be on its way
            raise
        self._idle.keep(link)
        return reply

    def _borrow(self) -> Link:
        return self._idle.take() or self._open()

    def _open(self) -> Link:
        """A new link to the first address that answers.

        Raises dibs' own errors and never a RedisError: `_call` must not ask an unreachable server
        twice.
        """
        if self._idle.closed:
            raise Unavailable(f"{self.name} was closed by this program")
        failure: RedisError = ConnectionBroke("there is no address to ask")
        try:
            addresses = self._url.addresses or (("", 0),)
            if self._sentinel is not None:
                with self._asking_sentinels:  # redis-py reorders its sentinels while it asks them
                    addresses = (self._sentinel.discover_master(self._url.service),)
            elif self._url.topology is RedisTopology.CLUSTER and self._primary is not None:
                addresses = (self._primary, *addresses)  # the likeliest address first
            for address in addresses:
                try:
                    link = self._reach(address)
                except (ConnectionBroke, TimedOut) as missed:
                    failure = missed
                else:
                    self.durable = link.durable
                    return link
        except RedisError as refused:
            failure = refused
        outage = self._outage(failure)
        outage.hint = _tls_hint(failure, tls=self._url.tls)
        raise outage from failure

    def _reach(self, address: Address) -> Link:
        """Connect to the address, or to the cluster node that the server there names instead."""
        url = self._url
        settings = {**_settings(url), "db": url.db, **url.credentials}
        for _ in range(_MOST_HOPS):
            host, port = address
            make: Callable[..., RedisConnection]
            if url.topology is RedisTopology.UNIX:
                make = partial(_UNIX, path=url.path, **settings)
            elif url.tls:
                make = partial(_TLS, **url.files, **settings, host=host, port=port)
            else:
                make = partial(_TCP, **settings, host=host, port=port)
            link = Link(make, self._epoch, self.name)
            try:
                link.open()
            except MovedError as moved:
                address = (moved.host or host, moved.port)
            except ConnectionBroke as failure:
                if isinstance(failure.__context__, ssl.SSLCertVerificationError):
                    text = f"{self.name} cannot prove who it is ({failure})"
                    raise NotPermitted(text) from failure
                raise
            else:
                self._primary = address
                return link
        raise ConnectionBroke("its nodes do not agree on who has our keys")

    def _outage(self, failure: RedisError) -> Outage:
        """Translate to dibs' error tree: who must act, and whether a later try may help."""
        if isinstance(failure, _FORBIDDEN) or _NO_RIGHT.search(str(failure)):
            return NotPermitted(f"{self.name} refuses us ({failure})")
        if isinstance(failure, _LATER) or _code(failure) in _LATER_CODES:
            return Unavailable(f"{self.name} cannot be used now ({failure})")
        return Damaged(f"{self.name} cannot do its work ({failure})")


def _tls_hint(failure: RedisError, *, tls: bool) -> str:
    """What to try if a first connection ended as between TLS and plain text; else empty."""
    beneath = failure.__context__
    if tls and (isinstance(beneath, ssl.SSLError) or "handshake" in str(beneath)):
        return "the server may not speak TLS on this port: then write redis://"
    cut = isinstance(beneath, ConnectionResetError) or "closed by server" in str(failure)
    return "the server may want TLS on this port: then write rediss://" if cut and not tls else ""


def _settings(url: RedisUrl) -> dict[str, Any]:
    return {
        "socket_timeout": url.timeout_s,
        "socket_connect_timeout": url.timeout_s,
        "protocol": 2,
        "client_name": "dibs",
        "decode_responses": True,
        "encoding_errors": "backslashreplace",  # any stored bytes can be shown
    }


def _sentinel(url: RedisUrl) -> Any:
    settings = {**_settings(url), "retry": Retry(NoBackoff(), 0), **url.sentinel_credentials}
    if url.tls:
        settings |= {"ssl": True, **url.files}
    return _SENTINEL(url.addresses, sentinel_kwargs=settings)


def packed(words: Sequence[str], head: str = "", in_head: int = 0) -> bytes:
    """A command in Redis' wire format; `head` is a packed beginning of `in_head` words.

    Raise Misuse for a word that is no valid Unicode text: a replacement character could make two
    names equal. redis-py's own packer takes a third of the time of a whole call.
    """
    count = f"*{len(words) + in_head}\r\n{head}"
    text = "".join([count, *[f"${len(word)}\r\n{word}\r\n" for word in words]])
    if text.isascii():
        return text.encode("ascii")
    parts = [count.encode("ascii")]
    for word in words:
        try:
            data = word.encode()
        except UnicodeEncodeError:
            raise Misuse(f"{word!r} cannot be kept by Redis: it has half letters") from None
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _code(failure: RedisError) -> str:
    """The error code in the server's text, for errors that redis-py has no class for."""
    found = _CODE.search(str(failure))
    return found[1] if found else ""
