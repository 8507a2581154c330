"""What the URL of a PostgreSQL store says: where the server is, and how it is reached.

    postgresql://[user[:password]@]host[:port][,host[:port]...]/database[?option=value&...]

Every option of libpq's passes through (`sslmode`, `target_session_attrs`, `host` for a socket's
folder, ...). Two are ours: `namespace`, the schema that keeps several backlogs apart in one
database, and `timeout`, in seconds. Connects to nothing. No error tells more of the URL than may be
shown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import conninfo, pq

from dibs.core.errors import BadConfiguration

SCHEMES = ("postgresql", "postgres")
_LONGEST_TIMEOUT_S = 3600.0
_LONGEST_NAME = 63  # bytes; PostgreSQL cuts off what is longer, and two names may become one
_UNREADABLE = (
    "the URL of the PostgreSQL store cannot be read: it has no host, or a port that is no number; "
    "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
)


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL that makes sense. Its repr shows no secret."""

    name: str
    """Fit for people: no user, no password, no options."""
    namespace: str | None
    """The schema of the tables; None: wherever the role's search path leads."""
    timeout_s: float
    parameters: Mapping[str, str] = field(repr=False)
    """By libpq's names, what we add to them included."""


def parse_postgres_url(url: str) -> PostgresUrl:
    """Raise BadConfiguration for what cannot be meant."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadConfiguration(_UNREADABLE) from None
    if parts.scheme not in SCHEMES:
        raise BadConfiguration(
            f"{parts.scheme!r} is no scheme of the PostgreSQL store; it has {', '.join(SCHEMES)}"
        )
    # A password with one of / ? # in it is cut there, and its rest must not be taken for a database
    # or an option, and so be shown.
    if parts.fragment or "@" in parts.path + parts.query:
        raise BadConfiguration(_UNREADABLE)
    ours, theirs = _options(parts.query)
    timeout_s = _timeout(ours.get("timeout", "5"))
    told = _libpq(f"postgresql://{parts.netloc}{parts.path}?{theirs}")
    return PostgresUrl(
        name=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        namespace=_namespace(ours.get("namespace")),
        timeout_s=timeout_s,
        parameters={**_defaults(timeout_s, told), **told},
    )


def _options(query: str) -> tuple[dict[str, str], str]:
    """Ours, decoded; and libpq's, as they were written."""
    ours: dict[str, str] = {}
    theirs: list[str] = []
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in {"namespace", "timeout"}:
            ours[name] = unquote(value)
        elif name in known:
            theirs.append(pair)
        else:
            raise BadConfiguration(
                f"the PostgreSQL store has no option {name!r}; it has namespace, timeout and "
                "those of libpq"
            )
    return ours, "&".join(theirs)


def _libpq(url: str) -> dict[str, str]:
    try:
        told = conninfo.conninfo_to_dict(url)
    except psycopg.Error:  # its text may quote any part of the URL
        raise BadConfiguration(_UNREADABLE) from None
    ports = str(told.get("port") or "")
    if not all(port.isdecimal() for port in ports.split(",") if port):  # libpq looks later
        raise BadConfiguration(_UNREADABLE)
    return {name: str(value) for name, value in told.items() if value is not None}


def _defaults(timeout_s: float, told: Mapping[str, str]) -> dict[str, str]:
    """What we ask for if the URL does not.

    A peer that vanished without a word is found out by keepalives on an idle connection, and by
    the user timeout while something is on its way. Of several servers, only the one that takes
    writes can grant anything.
    """
    several = {"target_session_attrs": "read-write"} if "," in told.get("host", "") else {}
    return {
        "fallback_application_name": "dibs",
        "client_encoding": "UTF8",
        "connect_timeout": str(max(2, math.ceil(timeout_s))),  # libpq takes 1 for 2
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": str(round(timeout_s * 1000)),
        **several,
    }


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise BadConfiguration(f"timeout {text!r} of the PostgreSQL store: write seconds, as in 5")
    return seconds


def _namespace(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.isprintable() or not 0 < len(text.encode()) <= _LONGEST_NAME:
        raise BadConfiguration(
            f"namespace {text!r}: it names a schema, of at most {_LONGEST_NAME} bytes"
        )
    return text
