"""Where an etcd is and how it is reached, as one URL: `etcd://host:port,host:port/prefix?timeout=5`.

`etcds://` is the same over TLS. Knows nothing of what is kept there.
"""

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.core.errors import BadConfiguration

_PORT = 2379
_OPTIONS = ("timeout", "ca", "cert", "key")
_UNREADABLE = (
    "the etcd URL cannot be read: it names a host that is not written as host:port; "
    "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
)


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    endpoints: tuple[tuple[str, int], ...]
    prefix: str
    timeout_s: float
    user: str
    password: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """None: plain HTTP."""

    @property
    def name(self) -> str:
        """The place without user, password and options."""
        hosts = ",".join(f"{_bracketed(host)}:{port}" for host, port in self.endpoints)
        return f"etcd{'s' if self.tls else ''}://{hosts}/{self.prefix}"


def etcd_place(url: str) -> EtcdPlace:
    try:
        parts = urlsplit(url)
        url.encode()  # half letters cannot be sent
    except ValueError:
        raise BadConfiguration(_UNREADABLE) from None
    # A password with one of / ? # in it is cut there, and its rest must not be taken for a prefix
    # or an option, and so be shown.
    if parts.fragment or "@" in parts.path + parts.query:
        raise BadConfiguration(_UNREADABLE)
    if parts.scheme not in ("etcd", "etcds"):
        raise BadConfiguration("an etcd store begins with etcd:// or etcds://")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise BadConfiguration(
            f"the etcd URL has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}"
        )
    secure = parts.scheme == "etcds"
    if not secure and (options.keys() & {"ca", "cert", "key"}):
        raise BadConfiguration("the options ca, cert and key are for etcds://, which is TLS")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return EtcdPlace(
        endpoints=tuple(_endpoint(host) for host in hosts.split(",")),
        prefix=unquote(parts.path).strip("/") or "dibs",
        timeout_s=_seconds(options.get("timeout", "5")),
        user=unquote(user),
        password=unquote(password),
        tls=_trust(options) if secure else None,
    )


def _endpoint(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        # Not quoted: a password that was meant to stand before an @ may be in it.
        raise BadConfiguration(_UNREADABLE)
    return host, port if port is not None else _PORT


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 600:
        raise BadConfiguration(f"timeout={text} in the etcd URL is not a number of seconds")
    return seconds


def _trust(options: dict[str, str]) -> ssl.SSLContext:
    """Whom we believe, and who we say we are. A server that proves nothing is refused."""
    try:
        context = ssl.create_default_context(cafile=options.get("ca") or None)
        if cert := options.get("cert"):
            context.load_cert_chain(cert, options.get("key") or None)
    except (OSError, ssl.SSLError) as failure:
        raise BadConfiguration(
            f"the certificates of the etcd URL cannot be read: {failure}"
        ) from failure
    return context


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
