"""The Python API for asynchronous callers: the same services, called in worker threads.

A thread renews the lease, so a blocked event loop does not lose it. The loop only notices a loss
later.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from dibs import api
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Issue
from dibs.services.board import Explanation
from dibs.services.claiming import Beaten, Doubtful, Refused
from dibs.services.following import FollowReport
from dibs.services.sweeping import SweepReport


class AsyncLease:
    """A held lease. `check` is synchronous and asks no server; calls that write are awaited."""

    def __init__(self, lease: api.HeldLease) -> None:
        self._lease = lease

    @property
    def issue(self) -> IssueRef:
        return self._lease.issue

    @property
    def stage(self) -> str:
        return self._lease.stage

    @property
    def run(self) -> RunId:
        return self._lease.run

    @property
    def fence(self) -> Fence:
        return self._lease.fence

    @property
    def remaining_s(self) -> float:
        return self._lease.remaining_s

    @property
    def lost(self) -> bool:
        return self._lease.lost

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost when you must stop."""
        self._lease.check()

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` once with the reason, on the running event loop, if the lease is lost."""
        loop = asyncio.get_running_loop()

        def pass_on(why: str) -> None:
            loop.call_soon_threadsafe(watcher, why)

        self._lease.on_lost(pass_on)

    async def ensure(self, seconds: float) -> None:
        await asyncio.to_thread(self._lease.ensure, seconds)

    async def advance(self, to: str | None = None, *, note: str = "") -> None:
        await asyncio.to_thread(self._lease.advance, to, note=note)

    async def give_back(self, *, note: str = "") -> None:
        await asyncio.to_thread(self._lease.give_back, note=note)

    async def fail(self, *, note: str = "") -> None:
        await asyncio.to_thread(self._lease.fail, note=note)


class AsyncDibs:
    """An open backlog for asynchronous callers."""

    def __init__(self, dibs: api.Dibs) -> None:
        self._dibs = dibs
        self._threads = ThreadPoolExecutor(thread_name_prefix="dibs-aio")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._dibs.close)

    async def add(
        self, title: str, body: str = "", *, stage: str | None = None, labels: Iterable[str] = ()
    ) -> Issue:
        return await asyncio.to_thread(self._dibs.add, title, body, stage=stage, labels=labels)

    async def why(self, issue: api.IssueLike) -> Explanation:
        return await asyncio.to_thread(self._dibs.why, issue)

    async def sweep(self, *, limit: int = 1000, dry_run: bool = False) -> SweepReport:
        return await asyncio.to_thread(self._dibs.sweep, limit=limit, dry_run=dry_run)

    async def follow(self, *, limit: int = 1000, dry_run: bool = False) -> FollowReport:
        return await asyncio.to_thread(self._dibs.follow, limit=limit, dry_run=dry_run)

    async def try_lease(
        self, issue: api.IssueLike, *, ttl: timedelta | str | None = None
    ) -> AsyncLease | Refused | Beaten | Doubtful:
        """Claim the issue. Returns the lease, or a value with the reason why the claim failed."""
        held = await self._claim(issue, ttl)
        return AsyncLease(held) if isinstance(held, api.HeldLease) else held

    async def _claim(
        self, issue: api.IssueLike, ttl: timedelta | str | None
    ) -> api.HeldLease | Refused | Beaten | Doubtful:
        """Claim in a thread. If the caller is cancelled, a lease that is won later is returned."""
        claim = self._threads.submit(self._dibs.try_lease, issue, ttl=ttl)
        try:
            return await asyncio.shield(asyncio.wrap_future(claim))
        except asyncio.CancelledError:
            claim.add_done_callback(_give_back_unwanted)
            raise

    @asynccontextmanager
    async def lease(
        self, issue: api.IssueLike, *, ttl: timedelta | str | None = None
    ) -> AsyncIterator[AsyncLease]:
        """Hold the issue for the length of an `async with` body; see `dibs.Dibs.lease`."""
        held = await self._claim(issue, ttl)
        if not isinstance(held, api.HeldLease):
            raise api.not_granted(held)
        try:
            yield AsyncLease(held)
        except BaseException as failure:
            # Shielded: a cancelled task must still give its issue back.
            await asyncio.shield(asyncio.to_thread(held.leave, failure))
            raise
        await asyncio.shield(asyncio.to_thread(held.leave, None))


def _give_back_unwanted(claim: Future[api.HeldLease | Refused | Beaten | Doubtful]) -> None:
    if claim.exception() is None and isinstance(held := claim.result(), api.HeldLease):
        held.leave(None)


async def open(  # noqa: A001 - dibs.aio.open(...) mirrors dibs.open(...)
    folder: str | Path | None = None,
    *,
    config_file: str | Path | None = None,
    tracker: str | None = None,
    leases: str | None = None,
    holder: str | None = None,
    create: bool = True,
) -> AsyncDibs:
    """Open the backlog of a folder; see `dibs.open`."""
    opened = await asyncio.to_thread(
        api.open,
        folder,
        config_file=config_file,
        tracker=tracker,
        leases=leases,
        holder=holder,
        create=create,
    )
    return AsyncDibs(opened)
