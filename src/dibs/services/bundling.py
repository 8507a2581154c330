"""Claiming issues that are worked together: all of them or none.

All are looked at before the first bid, and then claimed in the order of `in_order`. If one
cannot be had, those that were won are given back, the last one first.

Issues that are worked together: which label says so, and the order in which they are claimed.

The order is one for everybody, whichever issue they began with: of two who want the same issues,
the one who has the first of these gets all, and the other has nothing to give back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.eligibility import Reason, ReasonCode, Verdict, over_limit
from dibs.core.errors import Misuse, Outage
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Thread
from dibs.core.pipeline import BundleWorktree, Stage
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Beaten, Claimed, Claiming, ClaimOptions, Doubtful, Refused
from dibs.services.ending import Advancing
from dibs.services.keeping import Keeper
from dibs.services.reading import read_each

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

PREFIX = "agent:bundle:"


def bundle_of(labels: Iterable[str]) -> str | None:
    """The label of the issue's bundle; of several, the first by its name. None if it is in none."""
    found = (label for label in labels if label.casefold().startswith(PREFIX))
    return min((label for label in found if len(label) > len(PREFIX)), default=None)


def in_order(issues: Iterable[IssueRef]) -> tuple[IssueRef, ...]:
    """By repository and then by number; trackers fold case, so the order does, too."""
    return tuple(sorted(set(issues), key=_rank))


def _rank(issue: IssueRef) -> tuple[str, bool, int, str]:
    number = int(issue.key) if issue.key.isascii() and issue.key.isdigit() else 0
    return issue.repo.casefold(), number == 0, number, issue.key


MOST = 50
"""More issues than anybody works at once: their leases would run out while they are claimed."""


class Waits(Struct, frozen=True):
    """One of the issues may not be claimed now, and so none is."""

    member: Thread
    reasons: tuple[Reason, ...]
    after_grant: bool = False
    others: tuple[Issue, ...] = ()
    """The rest of the bundle, as it was listed: what is true of one of them is true of all."""

    def reasons_for(self, issue: IssueRef) -> tuple[Reason, ...]:
        """What that means for another issue of the bundle."""
        ref = self.member.issue.ref
        if ref == issue:
            return self.reasons
        return tuple(
            Reason(
                ReasonCode.BUNDLE_WAITS,
                f"it is worked together with {ref}, of which is true: {reason.text}",
                f"look at what keeps that one back: dibs why {ref.typed}",
                until=reason.until,
            )
            for reason in self.reasons
        )


BundleResult = tuple[Claimed, ...] | Waits | Beaten | Doubtful
Judge = Callable[[Thread], tuple[Thread, Verdict]]


class Bundling:
    def __init__(
        self,
        backlog: "Backlog",
        claiming: Claiming,
        advancing: Advancing,
        keep: Callable[[Claimed], Keeper],
    ) -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._advancing = advancing
        self._keep = keep

    @staticmethod
    def concerns(issue: Issue, stage: Stage) -> bool:
        return isinstance(stage.worktree, BundleWorktree) and bundle_of(issue.labels) is not None

    def explain(self, thread: Thread, stage: Stage) -> tuple[Reason, ...]:
        """Why an issue waits that could be had by itself. Changes nothing."""
        if not self.concerns(thread.issue, stage):
            return ()
        looked = self._look(thread, stage, lambda seen: (seen, self._claiming.judge(seen)))
        if not isinstance(looked, Waits):
            return ()
        about_it = looked.reasons_for(thread.issue.ref)
        ours = (ReasonCode.BUNDLE_WAITS, ReasonCode.WIP_LIMIT)
        return tuple(one for one in about_it if one.code in ours)

    def claim(
        self,
        picked: Thread,
        stage: Stage,
        options: ClaimOptions,
        *,
        leaving: Callable[[], bool] = lambda: False,
    ) -> BundleResult:
        """Try once, for all that are in the stage and in the bundle of the picked one.

        Claiming many takes long: whoever is `leaving` meanwhile gives back what was won.
        """
        looked = self._look(picked, stage, self._claiming.look_at)
        if isinstance(looked, Waits):
            return looked
        won: list[Claimed] = []
        try:
            for thread in looked:
                wanted = replace(options, look_first=True, seen=thread)
                match self._claiming.claim(thread.issue.ref, stage, wanted):
                    case Claimed() as claimed:
                        won.append(claimed)
                        if leaving() and len(won) < len(looked):
                            self._give_back(won, None)
                            return Doubtful(thread.issue.ref, "the worker is leaving")
                        if (lost := self._keep_all(won)) is not None:
                            self._give_back(won, None)
                            return lost
                    case Refused(_, reasons, after_grant):
                        self._give_back(won, thread)
                        others = tuple(one.issue for one in looked if one is not thread)
                        return Waits(thread, reasons, after_grant or bool(won), others)
                    case Beaten() | Doubtful() as lost:
                        self._give_back(won, thread)
                        return lost
                    case never:
                        assert_never(never)
        except Exception:
            self._give_back(won, None)
            raise
        return tuple(won)

    def _keep_all(self, won: list[Claimed]) -> Doubtful | None:
        """Renew those for which it is time: the last of many must not cost the first."""
        for place, claimed in enumerate(won):
            keeper = self._keep(claimed)
            if keeper.beat() is None:
                why = "its lease was over before the rest of its bundle was claimed"
                return Doubtful(claimed.lease.issue, why)
            won[place] = replace(claimed, lease=keeper.lease, asked_at=keeper.asked_at)
        return None

    def _give_back(self, won: Sequence[Claimed], missing: Thread | None) -> None:
        why = "its bundle could not be claimed as a whole"
        note = why if missing is None else f"{why}: {missing.issue.ref} was not to be had"
        for claimed in reversed(won):
            with suppress(Outage, Misuse):  # then it expires; the next one is given back anyhow
                self._advancing.give_back(self._keep(claimed), note)

    # Who is in it

    def _look(self, picked: Thread, stage: Stage, judge: Judge) -> tuple[Thread, ...] | Waits:
        """All of them, in the order of claiming; or the first that is in the way."""
        members = self._members(picked.issue, stage)

        def waits(member: Thread, *reasons: Reason) -> Waits:
            rest = (one for ref, one in members.items() if ref != member.issue.ref)
            return Waits(member, reasons, others=tuple(rest))

        if (reason := _too_many(len(members), stage)) is not None:
            return waits(picked, reason)
        found: list[Thread] = []
        for read in self._read(picked, members):
            thread, verdict = judge(read)
            if verdict.stage is not None and verdict.stage.name != stage.name:
                if thread.issue.ref == picked.issue.ref:
                    return waits(thread, _elsewhere(verdict.stage))
                continue  # its label has given way in another stage
            if verdict.reasons:
                return waits(thread, *verdict.reasons)
            found.append(thread)
        in_flight = self._claiming.in_flight(stage) if len(found) > 1 else 0
        if stage.wip is not None and in_flight + len(found) > stage.wip:
            # Some of them could be had, and would be given back each time that it is tried.
            return waits(picked, over_limit(stage, in_flight, wanted=len(found)))
        return tuple(found)

    def _read(self, picked: Thread, members: Mapping[IssueRef, Issue]) -> Iterator[Thread]:
        """In their order; those that are gone since they were listed are in no bundle."""
        others = (ref for ref in members if ref != picked.issue.ref)
        read = {thread.issue.ref: thread for thread in read_each(self._tracker, others)}
        read[picked.issue.ref] = picked
        return (read[ref] for ref in members if ref in read)

    def _members(self, picked: Issue, stage: Stage) -> Mapping[IssueRef, Issue]:
        label = bundle_of(picked.labels)
        found = {picked.ref: picked}
        if label is not None:
            query = IssueQuery((label,), limit=MOST + 1)
            listed = self._tracker.find(query).issues
            found |= {one.ref: one for one in listed if self._may_be_in(one, label, stage)}
        return {ref: found[ref] for ref in in_order(found)}

    def _may_be_in(self, issue: Issue, label: str, stage: Stage) -> bool:
        """While somebody holds it, its label may have given way."""
        own = bundle_of(issue.labels)
        if own is None or own.casefold() != label.casefold():
            return False  # of the bundles that it is labelled with, it is in one
        stages = self._pipeline.stages_of(issue.labels)
        hidden = stage.gives_way and not stages and self._pipeline.labels.claimed in issue.labels
        return stage in stages or hidden


def _too_many(count: int, stage: Stage) -> Reason | None:
    most = MOST if stage.wip is None else min(stage.wip, MOST)
    if count <= most:
        return None
    return Reason(
        ReasonCode.BUNDLE_WAITS,
        f"its bundle has {count} issues in stage {stage.name!r}, and {most} may be in flight",
        "make the bundle smaller, or raise the stage's wip",
    )


def _elsewhere(stage: Stage) -> Reason:
    return Reason(
        ReasonCode.NOT_SERVED,
        f"it is in stage {stage.name!r} by now",
        "look again: another stage's worker may want it",
    )
