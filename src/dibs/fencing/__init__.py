"""Fenced writes: the place of writing refuses a holder that has lost its lease.

A paused holder may wake up after another holder has got the lease, and write. No check before the
write can prevent this, because the pause may come after the check. The place of writing can: it
remembers the highest fence it has seen, and refuses lower fences in the same step as the write.

`dibs.fencing.sql`, `.redis`, `.objects` and `.files` do this for a SQL database, Redis, S3 and
files. They need no lease store and no driver of their own: they take the caller's connection or
client, and a fence.
"""

from dibs.fencing.values import (
    AlreadyApplied,
    Applied,
    Conflict,
    Duplicate,
    Missing,
    NotApplied,
    Outcome,
    Reading,
    Stale,
    StaleFence,
    Version,
    insist,
    key_for,
)

__all__ = [
    "AlreadyApplied",
    "Applied",
    "Conflict",
    "Duplicate",
    "Missing",
    "NotApplied",
    "Outcome",
    "Reading",
    "Stale",
    "StaleFence",
    "Version",
    "insist",
    "key_for",
]
