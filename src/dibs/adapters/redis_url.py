"""What the URL of a Redis or Valkey store says: where the server is, and how it is reached.

    redis://[user:password@]host[:port][/db]
    redis+sentinel://[user:password@]host[:port],host[:port],.../service[/db]
    redis+cluster://[user:password@]host[:port],host[:port],...
    redis+unix://[user:password@]/path/of/the.sock          (or unix://)

`rediss` in place of `redis` speaks TLS, with the options `ssl_ca_certs`, `ssl_certfile` and
`ssl_keyfile`. `namespace` keeps several backlogs apart on one server, `timeout` is in seconds,
`db` a number. Connects to nothing. No error tells more of the URL than may be shown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.core.errors import BadConfiguration

Address = tuple[str, int]

SCHEMES = (
    *("redis", "rediss", "redis+sentinel", "rediss+sentinel"),
    *("redis+cluster", "rediss+cluster", "redis+unix", "unix"),
)
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL = ("sentinel_username", "sentinel_password")
_OPTIONS = ("namespace", "timeout", "db", *_FILES, *_SENTINEL)
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
            name.removeprefix("sentinel_"): options[name] for name in _SENTINEL if name in options
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
