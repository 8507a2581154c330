"""Why an issue is not being picked: every reason, in words and as codes, and what would help."""

from msgspec import Struct

from dibs.core.attempts import Attempts, count_attempts
from dibs.core.eligibility import Reason, ReasonCode, Verdict
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.core.lease import Standing
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.leases import ShownLeases
from dibs.ports.tracker import Tracker
from dibs.services.bundling import Bundling
from dibs.services.claiming import Claiming


class Explanation(Struct, frozen=True):
    thread: Thread
    stage: Stage | None
    standing: Standing
    reasons: tuple[Reason, ...]
    attempts: Attempts

    @property
    def claimable(self) -> bool:
        return not self.reasons


class Explaining:
    def __init__(
        self,
        tracker: Tracker,
        leases: ShownLeases,
        pipeline: Pipeline,
        claiming: Claiming,
        bundling: Bundling,
    ) -> None:
        self._tracker = tracker
        self._leases = leases
        self._pipeline = pipeline
        self._claiming = claiming
        self._bundling = bundling

    def explain(self, issue: IssueRef) -> Explanation:
        thread = self._tracker.read(issue)
        standing = self._leases.standing(thread)
        verdict = self._claiming.judge(thread, in_flight=self._in_flight(thread))
        attempts = count_attempts(standing.tries, verdict.stage) if verdict.stage else Attempts()
        reasons = (*verdict.reasons, *self._of_its_bundle(thread, verdict), *_unserved(verdict))
        return Explanation(thread, verdict.stage, standing, reasons, attempts)

    def _of_its_bundle(self, thread: Thread, verdict: Verdict) -> tuple[Reason, ...]:
        """What it waits for if it could be had by itself."""
        if verdict.stage is None or not verdict.eligible:
            return ()
        return self._bundling.explain(thread, verdict.stage)

    def _in_flight(self, thread: Thread) -> int | None:
        stages = self._pipeline.stages_of(thread.issue.labels)
        if len(stages) != 1 or stages[0].wip is None:
            return None
        return len(self._leases.live(stages[0].name, limit=stages[0].wip + 1))


def _unserved(verdict: Verdict) -> tuple[Reason, ...]:
    stage = verdict.stage
    if stage is None or stage.final or stage.served:
        return ()
    return (
        Reason(
            ReasonCode.NOT_SERVED,
            f"no worker serves stage {stage.name!r}: it has neither run nor python",
            "give the stage a handler in dibs.toml, or work it by hand with dibs claim",
        ),
    )
