"""What users write, type-checked by mypy in strict mode and never run.

Each function is one thing that somebody does with the library; `assert_type` pins what they get.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_never, assert_type

import dibs
from dibs import aio
from dibs.core.eligibility import Reason
from dibs.core.issue import Issue
from dibs.core.lease import Record
from dibs.core.pipeline import Stage
from dibs.services.working import Worker, WorkReport


def open_it() -> None:
    assert_type(dibs.open(), dibs.Dibs)
    dibs.open("project", tracker="memory:", leases="comments", holder="ann")
    dibs.open(Path("project"), config_file=Path("other.toml"))
    with dibs.open() as backlog:
        assert_type(backlog, dibs.Dibs)
    assert_type(dibs.__version__, str)


def add_and_look(backlog: dibs.Dibs) -> None:
    issue = backlog.add("title", "body", stage="ready", labels=["bug"])
    assert_type(issue, Issue)
    assert_type(issue.ref, dibs.IssueRef)
    assert_type(backlog.why(issue).reasons, tuple[Reason, ...])
    assert_type(backlog.why("#12").claimable, bool)
    assert_type(backlog.sweep(dry_run=True).looked_at, int)
    assert_type(backlog.stages, tuple[Stage, ...])
    for row in backlog.board.ready(limit=5):
        assert_type(row.issue, Issue)
        assert_type(row.record, Record | None)


def hold_a_lease(backlog: dibs.Dibs) -> None:
    with backlog.lease(12, ttl="10m") as lease:
        assert_type(lease, dibs.HeldLease)
        assert_type(lease.fence, dibs.Fence)
        assert_type(lease.remaining_s, float)
        assert_type(lease.lost, bool)
        lease.check()
        lease.ensure(30)
        lease.on_lost(lambda why: print(why.upper()))
        lease.advance("review", note="done")
    with backlog.lease("owner/repo#12", ttl=timedelta(minutes=5)) as lease:
        lease.give_back(note="not today")
    with backlog.lease(dibs.IssueRef("", "12")) as lease:
        lease.fail()


def ask_without_insisting(backlog: dibs.Dibs) -> str:
    result = backlog.try_lease(12)
    assert_type(result, dibs.HeldLease | dibs.Refused | dibs.Beaten | dibs.Doubtful)
    match result:
        case dibs.HeldLease() as lease:
            lease.give_back()
            return lease.stage
        case dibs.Refused(issue, reasons):
            assert_type(issue, dibs.IssueRef)
            assert_type(reasons, tuple[Reason, ...])
            return ", ".join(reason.code for reason in reasons)
        case dibs.Beaten(_, record):
            assert_type(record, Record)
            return record.lease.holder
        case dibs.Doubtful(_, why):
            return why
        case never:
            assert_never(never)


def catch_what_can_go_wrong(backlog: dibs.Dibs) -> None:
    try:
        with backlog.lease(12) as lease:
            lease.advance()
    except dibs.NotGranted as refused:
        assert_type(refused.codes, tuple[str, ...])
    except dibs.LeaseLost as lost:
        assert_type(lost.fence, dibs.Fence)
        assert_type(lost.why, str)
    except dibs.RateLimited as limit:
        assert_type(limit.retry_after_s, float)
    except dibs.Outage as outage:
        assert_type(outage.retryable, bool)
    except (dibs.BadReference, dibs.NoSuchIssue, dibs.IllegalMove, dibs.NoSuchStage) as mistake:
        assert_type(mistake.code, str)
    except dibs.DibsError as error:
        assert_type(error.hint, str)


def handlers_in_this_process(backlog: dibs.Dibs) -> None:
    @backlog.handler("ready")
    def implement(work: dibs.Work) -> str | None:
        work.check()
        title = work.issue["title"]
        assert_type(title, Any)
        if work.attempt > 2:
            raise dibs.GiveBack("somebody else should look")
        return "review" if title else None

    # The decorator hands the function back as it was.
    same: Callable[[dibs.Work], str | None] = implement
    print(same)

    @backlog.handler("review")
    def review(work: dibs.Work) -> dict[str, str]:
        if work.lease is not None:
            work.lease.ensure(10)
        return {"next": "done", "note": f"fence {work.fence}"}

    report = backlog.work(jobs=2, until=dibs.Until.DRAINED)
    assert_type(report, WorkReport)
    assert_type(report.outcomes["advanced"], int)


def a_handler_must_take_work(backlog: dibs.Dibs) -> None:
    @backlog.handler("ready")  # type: ignore[type-var]
    def wrong(number: int) -> None:
        print(number)


def a_worker_of_its_own(backlog: dibs.Dibs) -> None:
    worker = backlog.worker(stages=["ready"], jobs=4, until=dibs.Until.STOPPED, tell=print)
    assert_type(worker, Worker)
    worker.leave()
    worker.leave_now()
    assert_type(worker.run(), WorkReport)


def a_fence_is_a_number_with_a_name(lease: dibs.HeldLease) -> int:
    number: int = lease.fence
    made: dibs.Fence = dibs.Fence(7)
    plain: dibs.Fence = 7  # type: ignore[assignment]
    return number + made + plain


async def asynchronous_callers() -> None:
    async with await aio.open(holder="ann") as backlog:
        assert_type(backlog, aio.AsyncDibs)
        issue = await backlog.add("title", labels=("bug",))
        async with backlog.lease(issue, ttl="5m") as lease:
            assert_type(lease, aio.AsyncLease)
            lease.check()
            lease.on_lost(print)
            await lease.ensure(5)
            await lease.advance("review")
        result = await backlog.try_lease(12)
        match result:
            case aio.AsyncLease():
                await result.give_back()
            case dibs.Refused() | dibs.Beaten() | dibs.Doubtful():
                print(result.issue)
            case never:
                assert_never(never)
        assert_type((await backlog.why(12)).claimable, bool)


if __name__ == "__main__":
    asyncio.run(asynchronous_callers())
