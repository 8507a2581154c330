"""References to issues (`owner/repo#123`, `#123`, `123`, a URL, `ABC-123`) and addresses of stores.

Knows the spellings of references only; the tracker knows whether the issue exists. Of the address
of a tracker or a store, decides which part may be shown; no error shows a secret part.
"""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from dibs.core.errors import BadConfiguration, BadReference
from dibs.core.ids import IssueRef

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_SEGMENT = r"(?!\.{1,2}(?:[/#]|$))[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}"  # not a path that climbs
_REPO = rf"{_SEGMENT}(?:/{_SEGMENT}){{1,5}}"
_NUMBER = r"[1-9][0-9]{0,17}"
_BARE = rf"#?({_NUMBER})"
_QUALIFIED = rf"({_REPO})#({_NUMBER})"
_KEY = r"([A-Za-z][A-Za-z0-9_]{0,19}-[1-9][0-9]{0,11})"
_URL = (
    rf"(?a)https?://[^/\s]{{1,253}}/({_REPO}?)(?:/-)?/(?:issues|pull|pulls|merge_requests|work_items)/"
    rf"({_NUMBER})(?:[/?#]\S*)?"
)
_KEY_URL = (
    r"(?a)https?://[^/\s]{1,253}/(?:\S*/)?(?:browse|issue)/([A-Za-z][A-Za-z0-9_]{0,19}-[1-9][0-9]{0,11})"
    r"(?:[/?#]\S*)?"
)


def parse_reference(text: str, *, default_repo: str = "", repos: Collection[str] = ()) -> IssueRef:
    """Read a reference. Raises BadReference, which lists the accepted spellings.

    A repository of `default_repo` or `repos` is recognised in upper and lower case, and named as
    given there: a store keeps leases by the names of issues, and an issue must not have two.
    """
    wanted = text.strip()
    if len(wanted) > 2000:
        raise BadReference(wanted[:40] + "...")
    if match := re.fullmatch(_BARE, wanted):
        ref = IssueRef(default_repo, match[1])
    elif (match := re.fullmatch(_QUALIFIED, wanted)) or (match := re.fullmatch(_URL, wanted)):
        ref = IssueRef(match[1], match[2])
    elif (match := re.fullmatch(_KEY, wanted)) or (match := re.fullmatch(_KEY_URL, wanted)):
        ref = IssueRef(default_repo, match[1].upper())
    else:
        raise BadReference(wanted)
    for repo in (default_repo, *repos):
        if repo.casefold() == ref.repo.casefold():
            return IssueRef(repo, ref.key)
    return ref


_OPTIONS = r"(?s)[?][A-Za-z_.-]+=.*$"
_USER = r"(?s)(?<=//).*@"
_REST = r"(?s)[?#].*$"
_HALF_A_USER = r"(//[^/@:\[\]]*:)(?![0-9]*(?:[/,]|$))[^/]*"
_SCHEME = r"(?s)\s*([A-Za-z][A-Za-z0-9+.-]*):(?!//)(.*)@"
_PAIRS = r"(?is)(?<=[\s;,:&])(?:password|passwd|pwd|secret|token|key)\s*=.*$"
_OF_PLACES = ("sqlite", "memory", "github")
"""These address a file or a repository: there an @ is a part of the name."""


def without_secrets(place: str) -> str:
    """The address without user, password and options: fit for a name, an error and a log.

    An unquoted password may contain any character, so rather too much is left out than too little:
    also of an address that no adapter could read, as `redis:/user:password@host` or
    `postgres:password=...`. The user of `git:user@host:path` stays: it has no password.
    """
    shown = re.sub(_REST, "", re.sub(_USER, "", re.sub(_OPTIONS, "", place)))
    if (found := re.match(_SCHEME, shown)) and found[1].lower() not in _OF_PLACES:
        if found[1].lower() != "git" or ":" in found[2]:
            shown = f"{found[1]}:{shown[found.end() :]}"
    elif not found and re.fullmatch(r"[^/:]*@[^:]*", shown):
        shown = shown.rpartition("@")[2]
    return re.sub(_PAIRS, "", re.sub(_HALF_A_USER, r"\1***", shown))


def split_url(url: str, unreadable: str) -> "SplitResult":
    """Split the URL of a store. Raises BadConfiguration with the text `unreadable`.

    An unquoted / ? or # ends a password early. The rest of the password must not be read as a path
    or an option, because an error text would then show it.
    """
    from urllib.parse import urlsplit  # imported for a store with a URL only

    try:
        parts = urlsplit(url)
        url.encode()  # lone surrogates cannot be sent
    except ValueError:
        raise BadConfiguration(unreadable) from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise BadConfiguration(unreadable)
    return parts


def split_host(text: str, unreadable: str) -> tuple[str, int | None]:
    """The host and the port, if any. Raises BadConfiguration with the text `unreadable`.

    The error does not quote the host: it may contain a password that should have stood before an @.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise BadConfiguration(unreadable)
    return host, port


def this_machine(host: str) -> bool:
    """Whether a host is this machine: a loopback address, a socket's folder, or none at all."""
    import ipaddress

    if host.lower() in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def seconds_in(text: str, most: float, unreadable: str) -> float:
    """A number of seconds, above 0. Raises BadConfiguration with the text `unreadable`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= most:
        raise BadConfiguration(unreadable)
    return seconds
