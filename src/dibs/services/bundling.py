"""Claiming the issues of a bundle: all of them or none.

Issues with the same `agent:bundle:` label are a bundle. A claim judges every issue before the first
bid, then claims the issues in the order of `in_order`. If an issue cannot be claimed, the issues
won before are given back, the last first.

All workers use the same order, whichever issue they began with: of two workers that want the same
issues, the winner of the first issue gets all, and the loser has nothing to give back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.eligibility import Reason, ReasonCode, Verdict, over_limit
from dibs.core.errors import Misuse, Outage
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Snapshot
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
    """The issue's bundle label; of several, the first by name. None without a bundle."""
    found = (label for label in labels if label.casefold().startswith(PREFIX))
    return min((label for label in found if len(label) > len(PREFIX)), default=None)


def in_order(issues: Iterable[IssueRef]) -> tuple[IssueRef, ...]:
    """Sort by repository, then by number. Ignores case in repositories, as trackers do."""

    def rank(issue: IssueRef) -> tuple[str, bool, int, str]:
        number = int(issue.key) if issue.key.isascii() and issue.key.isdigit() else 0
        return issue.repo.casefold(), number == 0, number, issue.key

    return tuple(sorted(set(issues), key=rank))


MOST = 50
"""The largest bundle: with more issues, leases would run out while the rest is claimed."""


class Waits(Struct, frozen=True):
    """`member` may not be claimed now: no issue of the bundle is claimed."""

    member: Snapshot
    reasons: tuple[Reason, ...]
    after_grant: bool = False
    others: tuple[Issue, ...] = ()
    """The rest of the bundle, as listed: a claim that starts from them would wait as well."""

    def reasons_for(self, issue: IssueRef) -> tuple[Reason, ...]:
        """The reasons, worded for `issue`: the other members wait for `member`."""
        ref = self.member.issue.ref
        if ref == issue:
            return self.reasons
        return tuple(
            Reason(
                ReasonCode.BUNDLE_WAITS,
                f"its bundle waits for {ref}: {reason.text}",
                f"look at what keeps that one back: dibs why {ref.typed}",
                until=reason.until,
            )
            for reason in self.reasons
        )


BundleResult = tuple[Claimed, ...] | Waits | Beaten | Doubtful
Judge = Callable[[Snapshot], tuple[Snapshot, Verdict]]


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

    def explain(self, snapshot: Snapshot, stage: Stage) -> tuple[Reason, ...]:
        """Why an issue waits for its bundle, if it alone could be claimed. Writes nothing."""
        if not self.concerns(snapshot.issue, stage):
            return ()
        looked = self._look(snapshot, stage, lambda seen: (seen, self._claiming.judge(seen)))
        if not isinstance(looked, Waits):
            return ()
        ours = (ReasonCode.BUNDLE_WAITS, ReasonCode.WIP_LIMIT)
        reasons = looked.reasons_for(snapshot.issue.ref)
        return tuple(reason for reason in reasons if reason.code in ours)

    def claim(
        self,
        picked: Snapshot,
        stage: Stage,
        options: ClaimOptions,
        *,
        leaving: Callable[[], bool] = lambda: False,
    ) -> BundleResult:
        """Try once to claim all issues of the stage in the bundle of the picked issue.

        Claiming many issues takes long: if `leaving` turns true, the issues won are given back.
        """
        looked = self._look(picked, stage, self._claiming.look_at)
        if isinstance(looked, Waits):
            return looked
        won: list[Claimed] = []
        try:
            for snapshot in looked:
                wanted = replace(options, look_first=True, seen=snapshot)
                match self._claiming.claim(snapshot.issue.ref, stage, wanted):
                    case Claimed() as claimed:
                        won.append(claimed)
                        if leaving() and len(won) < len(looked):
                            self._give_back(won, None)
                            return Doubtful(snapshot.issue.ref, "the worker is leaving")
                        # Renew the leases that are due: the last of many claims must not cost
                        # the first lease.
                        for place, member in enumerate(won):
                            keeper = self._keep(member)
                            if keeper.beat() is None:
                                self._give_back(won, None)
                                why = "its lease was over before the rest of its bundle was claimed"
                                return Doubtful(member.lease.issue, why)
                            won[place] = replace(
                                member, lease=keeper.lease, asked_at=keeper.asked_at
                            )
                    case Refused(_, reasons, after_grant):
                        self._give_back(won, snapshot)
                        others = tuple(other.issue for other in looked if other is not snapshot)
                        return Waits(snapshot, reasons, after_grant or bool(won), others)
                    case Beaten() | Doubtful() as lost:
                        self._give_back(won, snapshot)
                        return lost
                    case never:
                        assert_never(never)
        except Exception:
            self._give_back(won, None)
            raise
        return tuple(won)

    def _give_back(self, won: Sequence[Claimed], missing: Snapshot | None) -> None:
        """Give back the issues won, the last first; `missing` could not be claimed."""
        why = "its bundle could not be claimed as a whole"
        note = why if missing is None else f"{why}: {missing.issue.ref} was not to be had"
        for claimed in reversed(won):
            # After a failure the lease expires; the other issues are given back all the same.
            with suppress(Outage, Misuse):
                self._advancing.give_back(self._keep(claimed), note)

    def _look(self, picked: Snapshot, stage: Stage, judge: Judge) -> tuple[Snapshot, ...] | Waits:
        """Read and judge the bundle: the issues in the order of claiming, or the first obstacle."""
        members = self._members(picked.issue, stage)

        def waits(member: Snapshot, *reasons: Reason) -> Waits:
            rest = (issue for ref, issue in members.items() if ref != member.issue.ref)
            return Waits(member, reasons, others=tuple(rest))

        most = MOST if stage.wip is None else min(stage.wip, MOST)
        if (count := len(members)) > most:
            reason = Reason(
                ReasonCode.BUNDLE_WAITS,
                f"its bundle has {count} issues in stage {stage.name!r}, "
                f"and {most} may be in flight",
                "make the bundle smaller, or raise the stage's wip",
            )
            return waits(picked, reason)
        others = (ref for ref in members if ref != picked.issue.ref)
        snapshots = {snapshot.issue.ref: snapshot for snapshot in read_each(self._tracker, others)}
        snapshots[picked.issue.ref] = picked
        found: list[Snapshot] = []
        # An issue that was deleted since the list was read is in no bundle.
        for read in (snapshots[ref] for ref in members if ref in snapshots):
            snapshot, verdict = judge(read)
            if verdict.stage is not None and verdict.stage.name != stage.name:
                if snapshot.issue.ref == picked.issue.ref:
                    text = f"it is in stage {verdict.stage.name!r} by now"
                    remedy = "look again: another stage's worker may want it"
                    return waits(snapshot, Reason(ReasonCode.NOT_SERVED, text, remedy))
                continue  # `claimed` hid its stage label, and its stage is another
            if verdict.reasons:
                return waits(snapshot, *verdict.reasons)
            found.append(snapshot)
        in_flight = self._claiming.in_flight(stage) if len(found) > 1 else 0
        if stage.wip is not None and in_flight + len(found) > stage.wip:
            # Some could be claimed, and would be given back in every try.
            return waits(picked, over_limit(stage, in_flight, wanted=len(found)))
        return tuple(found)

    def _members(self, picked: Issue, stage: Stage) -> Mapping[IssueRef, Issue]:
        """The picked issue and the rest of the bundle in the stage, in the order of claiming.

        An issue with several bundle labels is only in the bundle of `bundle_of`. While a run holds
        an issue, `claimed` may hide the stage label: issues without a stage label count as well,
        and `_look` drops the issues of other stages.
        """
        label = bundle_of(picked.labels)
        found = {picked.ref: picked}
        if label is not None:
            for issue in self._tracker.find(IssueQuery((label,), limit=MOST + 1)).issues:
                own = bundle_of(issue.labels)
                if own is None or own.casefold() != label.casefold():
                    continue
                stages = self._pipeline.stages_of(issue.labels)
                claimed = self._pipeline.labels.claimed in issue.labels
                if stage in stages or (stage.gives_way and not stages and claimed):
                    found[issue.ref] = issue
        return {ref: found[ref] for ref in in_order(found)}
