"""The operations of a lease store as pure functions: from the record it has to the record to write.

Decides nothing about how a record is kept. A store that swaps whole records (in memory, in etcd, in
a git ref) calls these functions and writes the result if the record is still the one it read. A
store with a language of its own (SQL, a script) spells the same rules in that language, and the
conformance suite checks that they agree.

`plain_bid`, `plain_ending`, `plain_revocation`: Python's text may hold half letters (lone
surrogates), as from a file name or an argument that was not UTF-8. A name is used to find a record
again, so a name with a half letter is refused; prose must not keep a lease from beginning or
ending, so a half letter in prose is replaced.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from dibs.core.errors import Misuse
from dibs.core.ids import Fence, HolderId, ServerTime, StageName, later
from dibs.core.lease import (
    Bid,
    Busy,
    Ending,
    Granted,
    Lease,
    Lost,
    Outcome,
    Record,
    Released,
    Revocation,
    StopAsked,
)

NOT_OURS = "the lease expired or another run holds the issue"
EXPIRED = "expired"
"""Stored as the outcome of a lease that ran out. It stays over even if the clock steps back."""


def stored_record(
    lease: Lease,
    as_of: ServerTime,
    *,
    outcome: str | None,
    following: str | None,
    note: str | None,
    painted: bool,
    revoked_by: str | None,
    revoked_why: str | None,
    revoked_now: bool,
) -> Record:
    """The record of a store that keeps each field by itself.

    `following` is the next stage of the ending; `revoked_now`: by force. Raises ValueError for an
    unknown outcome.
    """
    ending = revocation = None
    if outcome == EXPIRED:
        as_of = max(as_of, lease.expires_at)
    elif outcome is not None:
        stage = StageName(following) if following is not None else None
        ending = Ending(Outcome(outcome), stage, note or "")
    if revoked_by is not None:
        revocation = Revocation(lease.run, revoked_by, revoked_why or "", force=revoked_now)
    return Record(lease, as_of, ending, painted=painted, revocation=revocation)


def refusal(known: Record | None, bid: Bid) -> Granted | Busy | None:
    """The answer to a bid without a new grant; None if the issue is free for a grant."""
    if known is None:
        return None
    if known.live and known.lease.run == bid.run:
        return Granted(known.lease)  # a retry after a lost reply
    return Busy(known) if known.live or known.unpainted else None


def next_fence(known: Record | None, bid: Bid) -> Fence:
    """Above the fence of the last lease and above the bid's floor."""
    return Fence(max(known.lease.fence if known is not None else 0, bid.floor) + 1)


def grant(bid: Bid, fence: Fence, now: ServerTime) -> Record:
    lease = Lease(
        issue=bid.issue,
        run=bid.run,
        holder=bid.holder,
        stage=bid.stage,
        fence=fence,
        ttl=bid.ttl,
        granted_at=now,
        expires_at=later(now, bid.ttl),
    )
    return Record(lease, as_of=now)


def renewal(known: Record | None, lease: Lease, now: ServerTime) -> Record | StopAsked | Lost:
    """The record to write, with a later expiry; or the answer if the lease is not renewed."""
    if known is None or known.lease.run != lease.run or not known.live:
        return Lost(NOT_OURS)
    if known.revocation is not None:
        return asked_to_stop(known.revocation)
    beaten = replace(
        known.lease, expires_at=later(now, known.lease.ttl), beats=known.lease.beats + 1
    )
    return replace(known, lease=beaten, as_of=now)


def asked_to_stop(revocation: Revocation) -> StopAsked:
    return StopAsked(f"revoked by {revocation.by}: {revocation.reason}")


def ending(
    known: Record | None, lease: Lease, decided: Ending, now: ServerTime
) -> Record | Released | Lost:
    """The record to write; or `Released` if the run has ended its lease before; or `Lost`."""
    if known is None or known.lease.run != lease.run:
        return Lost(NOT_OURS)
    if known.ending is not None:
        return Released(known)  # a retry after a lost reply
    if not known.live:
        return Lost(NOT_OURS)
    return replace(
        known,
        lease=replace(known.lease, expires_at=now),
        as_of=now,
        ending=decided,
        painted=decided.outcome is Outcome.CONCEDED,
    )


def acknowledgement(known: Record | None, shown: Record) -> Record | None:
    """The record to write, marked as painted; None if the last lease is of another run, or has no
    unpainted ending.
    """
    if known is None or known.lease.run != shown.lease.run or not known.unpainted:
        return None
    return replace(known, painted=True)


def revoked(known: Record | None, revocation: Revocation, now: ServerTime) -> Record | None:
    """The record to write, with the revocation; None if its run does not hold the issue.

    A forced revocation also ends the lease now.
    """
    if known is None or known.lease.run != revocation.run or not known.live:
        return None
    lease = replace(known.lease, expires_at=now) if revocation.force else known.lease
    return replace(known, lease=lease, as_of=now, revocation=revocation)


def live_records(found: Iterable[Record | None], stage: str | None) -> list[Record]:
    """The live leases of the stage, or of every stage; the oldest grant first."""
    live = [
        record
        for record in found
        if record is not None and record.live and stage in (None, record.lease.stage)
    ]
    return sorted(live, key=lambda record: (record.lease.granted_at, record.lease.issue))


def plain_bid(bid: Bid) -> Bid:
    """The bid as UTF-8: raises Misuse for a half letter in a name, replaces it in the holder."""
    for name in (bid.issue.repo, bid.issue.key, bid.run, bid.stage):
        plain_name(name)
    return replace(bid, holder=HolderId(plain_prose(bid.holder)))


def plain_ending(ending: Ending) -> Ending:
    """The ending as UTF-8: raises Misuse for a half letter in `next`, replaces it in the note."""
    if ending.next is not None:
        plain_name(ending.next)
    return replace(ending, note=plain_prose(ending.note))


def plain_revocation(revocation: Revocation) -> Revocation:
    """The revocation as UTF-8: raises Misuse for a half letter in the run, replaces it in prose."""
    plain_name(revocation.run)
    return replace(revocation, by=plain_prose(revocation.by), reason=plain_prose(revocation.reason))


def plain_name(text: str) -> str:
    """The name itself; raises Misuse for text which cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{text!r} cannot be kept by the store: it has half a letter in it") from None
    return text


def plain_prose(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
