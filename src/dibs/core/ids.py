"""Types for the identities and for the two kinds of time.

`ServerTime` orders claims and comes only out of replies. `LocalTime` is monotonic, counts suspend,
and only decides when to stop trusting. The type checker keeps them apart; no function converts one
into the other.
"""

from datetime import UTC, datetime, timedelta
from typing import NewType

from msgspec import Struct

RunId = NewType("RunId", str)
"""Nonce of one attempt. A fleet shares one login, so this, not the author, is the identity."""

HolderId = NewType("HolderId", str)
"""Who holds a lease, for people to read. Proves nothing."""

LONGEST_HOLDER = 100


def holder_name(text: str) -> HolderId:
    """The text as a name for a card: one line, at most 100 characters, `unnamed` if empty."""
    return HolderId(" ".join(text.split())[:LONGEST_HOLDER] or "unnamed")


StageName = NewType("StageName", str)

Fence = NewType("Fence", int)
"""Rises with each grant on an issue. A resource that checks fences refuses a lower one."""

ServerTime = NewType("ServerTime", datetime)
LocalTime = NewType("LocalTime", float)

ZERO = timedelta()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def server_time(moment: datetime) -> ServerTime:
    """Take an aware timestamp out of a reply, in UTC. A naive timestamp has no place in an order.

    Raises ValueError.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a server timestamp must carry its time zone: {moment!r}")
    return ServerTime(moment.astimezone(UTC))


def later(moment: ServerTime, by: timedelta) -> ServerTime:
    return ServerTime(moment + by)


def moment(ms: int) -> ServerTime:
    """The instant of so many milliseconds since 1970, the form in which stores keep times."""
    return ServerTime(_EPOCH + timedelta(milliseconds=ms))


def milliseconds(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def local_after(moment: LocalTime, span: timedelta) -> LocalTime:
    return LocalTime(moment + span.total_seconds())


class IssueRef(Struct, frozen=True, order=True):
    """An issue by repository and key. The repository is empty for the embedded tracker."""

    repo: str
    key: str

    def __str__(self) -> str:
        return f"{self.repo}#{self.key}" if self.key.isdigit() else self.key

    @property
    def typed(self) -> str:
        """The spelling for a command line: without a repository, `1` and not `#1`.

        A shell would take `#1` for a comment.
        """
        return str(self) if self.repo else self.key
