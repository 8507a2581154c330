"""Names for the identities and the two kinds of time that every other module passes around.

`ServerTime` orders claims and comes only out of replies. `LocalTime` is monotonic, counts suspend,
and only decides when to stop trusting. The type checker keeps them apart; nothing converts one
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
    """A name fit for a card: one line, and not longer than anybody would read."""
    return HolderId(" ".join(text.split())[:LONGEST_HOLDER] or "unnamed")


StageName = NewType("StageName", str)

Fence = NewType("Fence", int)
"""Rises with each grant on an issue. The place of writing refuses the lower one."""

ServerTime = NewType("ServerTime", datetime)
LocalTime = NewType("LocalTime", float)

ZERO = timedelta()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def server_time(moment: datetime) -> ServerTime:
    """Take an aware timestamp out of a reply. A naive one has no place in an ordering."""
    if moment.tzinfo is None:
        raise ValueError(f"a server timestamp must carry its time zone: {moment!r}")
    return ServerTime(moment.astimezone(UTC))


def later(moment: ServerTime, by: timedelta) -> ServerTime:
    return ServerTime(moment + by)


def moment(ms: int) -> ServerTime:
    """From milliseconds since 1970, as stores keep their times."""
    return ServerTime(_EPOCH + timedelta(milliseconds=ms))


def milliseconds(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def local_after(moment: LocalTime, span: timedelta) -> LocalTime:
    return LocalTime(moment + span.total_seconds())


class IssueRef(Struct, frozen=True, order=True):
    """Which issue: a repository (empty for the embedded tracker's only one) and a key in it."""

    repo: str
    key: str

    def __str__(self) -> str:
        return f"{self.repo}#{self.key}" if self.key.isdigit() else self.key

    @property
    def typed(self) -> str:
        """As a person types it: a bare `#1` would be a comment to the shell."""
        return str(self) if self.repo else self.key
