"""Who gives a command inside a run: a handler has the words that its own issue needs, and no more.

Decides by the environment of a command whether a run surrounds it, and which commands are refused
there. Refuses to know which commands there are: each program has its own table. This stops
accidents, and agents that a stranger's words have turned, as long as they use the command line. It
does not stop code: a process may change its own environment (ADR 0033).
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from dibs.core.errors import HandlerMayNot
from dibs.core.pipeline import ApprovalGate, Pipeline, Stage


class GivenBy(StrEnum):
    """Who gives a command where a run surrounds it."""

    EVERYBODY = "everybody"
    """It reads, or it changes nothing that others decide by."""
    HOLDER = "the holder of the run"
    """It acts for one run: for a handler, only for its own."""
    AGENT = "an agent that drives itself"
    """It fetches work: a handler has its work already."""
    OPERATOR = "an operator"
    """It decides for others: where a run surrounds it, it is refused."""


class Surrounding(Struct, frozen=True):
    """The run in whose environment a command is given."""

    runs: tuple[str, ...]
    """The run, and those of the other issues in its bundle."""
    handler: bool
    """Whether dibs ends the lease. If not, an agent drives itself and named its run."""


_LET_IN = "add it to an earlier stage without that label; a person decides the rest"
_AROUND = ("DIBS_ISSUE", "DIBS_DEADLINE", "DIBS_OPERATOR")


def surrounding(environment: Mapping[str, str]) -> Surrounding | None:
    """The run around a command; None outside of runs, and if an operator vouches for the command.

    The run of a hold or a loop is none: an operator gave its command. It is one inside a handler.
    """
    run, named = environment.get("DIBS_RUN"), {"DIBS_HOLD", "DIBS_LOOP"}
    if not run or environment.get("DIBS_OPERATOR", "") not in ("", "0"):
        return None
    if not named.isdisjoint(environment) and "DIBS_ISSUE" not in environment:
        return None
    runs = dict.fromkeys((run, *environment.get("DIBS_RUNS", "").split()))
    return Surrounding(tuple(runs), handler="DIBS_DEADLINE" in environment)


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which the command of a hold is inside the handler that started the hold."""
    return {name: environment[name] for name in _AROUND if name in environment}


def insist_may(command: str, given_by: str, around: Surrounding | None) -> None:
    """Raise HandlerMayNot for a command that is not for those inside this run.

    `given_by`: a value of `GivenBy`.
    """
    if around is None or given_by in (GivenBy.EVERYBODY, GivenBy.HOLDER):
        return
    if given_by == GivenBy.OPERATOR:
        raise HandlerMayNot(f"{command} is for operators, and not for run {around.runs[0]}")
    if around.handler:
        text = f"{command} is for agents that drive themselves: run {around.runs[0]} has its issue"
        hint = "DIBS_ISSUE names the issue; further work goes into an issue of its own: dibs add"
        raise HandlerMayNot(text, hint=hint)


def insist_own(run: str, around: Surrounding | None) -> None:
    """Raise HandlerMayNot if a handler would act for another run than its own."""
    if around is not None and around.handler and run not in around.runs:
        own = " and ".join(around.runs)
        text = f"run {run} is another's: this is the handler of run {own}"
        raise HandlerMayNot(text, hint="name no run, and the command acts for the handler's own")


def insist_before_gates(
    pipeline: Pipeline, stage: Stage, labels: Iterable[str], around: Surrounding | None
) -> None:
    """Raise HandlerMayNot if a run would add an issue behind a gate, or with a label that decides.

    A stage is behind a gate if moves lead from the gate to it, and none from the first stage
    without passing a gate.
    """
    if around is None:
        return
    gated = [one for one in pipeline.stages if isinstance(one.gate, ApprovalGate)]
    gates = {one.name for one in gated}
    if stage.name not in _reachable(pipeline, pipeline.stages[:1], shut=gates):
        for one in gated:
            if stage.name in _reachable(pipeline, map(pipeline.stage, one.next)):
                text = f"stage {stage.name!r} is behind the gate of stage {one.name!r}"
                raise HandlerMayNot(text, hint=_LET_IN)
    deciding = {label.casefold() for label in pipeline.every_label if label != stage.label}
    deciding -= {label.casefold() for label in pipeline.blockers}
    if wrong := [label for label in labels if label.casefold() in deciding]:
        text = f"the label {wrong[0]!r} decides where an issue stands"
        raise HandlerMayNot(text, hint=_LET_IN)


def _reachable(
    pipeline: Pipeline, starts: Iterable[Stage], *, shut: Collection[str] = ()
) -> set[str]:
    """The names of the stages to which moves lead, with the starts; none leads out of `shut`."""
    found: set[str] = set()
    left = list(starts)
    while left:
        stage = left.pop()
        if stage.name not in found and stage.name not in shut:
            left += map(pipeline.stage, stage.next)
        found.add(stage.name)
    return found
