"""Fencing where it is written: the place of writing refuses who has lost the lease.

A paused holder wakes up after its lease is somebody else's, and writes. No check before the write
can prevent that, because the pause may come after the check. The place of writing can: it remembers
the highest fence it has seen, and refuses lower ones in the same step as the write.

`dibs.fencing.sql`, `.redis`, `.objects` and `.files` do that for the places they are named after.
They need no lease store and no driver of their own: they take the caller's connection or client,
and a fence.
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
