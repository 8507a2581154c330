"""One value for everything that services share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.events import Reached, unwatched
from dibs.core.ids import RunId
from dibs.core.pipeline import Pipeline

if TYPE_CHECKING:
    from dibs.ports.leases import Pauses, ShownLeases
    from dibs.ports.system import Clock, Journal, Threads
    from dibs.ports.tracker import Tracker
    from dibs.services.claiming import Granting


class Backlog(Struct, frozen=True):
    """A tracker with its leases, as configured. Built once and handed to every service."""

    tracker: Tracker
    leases: ShownLeases
    pipeline: Pipeline
    pauses: Pauses
    journal: Journal
    clock: Clock
    threads: Threads
    granting: Granting
    new_run: Callable[[], RunId]
    grace: timedelta
    """How long after its expiry a lease is left to its holder."""
    settle: timedelta
    """How long after a write every reader is sure to see it, as configured."""
    max_ttl: timedelta
    reached: Reached = unwatched
    one_step: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes tracker and leases change together or not at all, where both are in one database."""
