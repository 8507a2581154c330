"""What of a bid, an ending or a revocation can be written down where all text is UTF-8.

Python's text may hold half letters (lone surrogates), as from a file name or an argument that was
not UTF-8. A name is found by again, so it is kept as it is or refused; what people say must not
keep a lease from beginning or ending, so there the half letter is replaced. Decides nothing else.
"""

from msgspec.structs import replace

from dibs.core.errors import Misuse
from dibs.core.ids import HolderId
from dibs.core.lease import Bid, Ending, Revocation


def plain_bid(bid: Bid) -> Bid:
    for name in (bid.issue.repo, bid.issue.key, bid.run, bid.stage):
        plain_name(name)
    return replace(bid, holder=HolderId(_prose(bid.holder)))


def plain_ending(ending: Ending) -> Ending:
    if ending.next is not None:
        plain_name(ending.next)
    return replace(ending, note=_prose(ending.note))


def plain_revocation(revocation: Revocation) -> Revocation:
    plain_name(revocation.run)
    return replace(revocation, by=_prose(revocation.by), reason=_prose(revocation.reason))


def plain_name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{text!r} cannot be kept by the store: it has half a letter in it") from None
    return text


def _prose(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
