"""The two pipelines that need no configuration: `stages` and `agent`."""

from dibs.core.ids import StageName
from dibs.core.pipeline import ApprovalGate, LabelNames, Pipeline, Stage


def _name(text: str) -> StageName:
    return StageName(text)


STAGES = Pipeline(
    stages=(
        Stage(
            name=_name("ready"),
            label="stage:ready",
            working_label="stage:processing",
            next=(_name("review"),),
        ),
        Stage(
            name=_name("review"),
            label="stage:review",
            gate=ApprovalGate("approved"),
            next=(_name("done"), _name("ready")),
        ),
        Stage(name=_name("done"), label="stage:done", closes=True),
    ),
    blockers=frozenset({"do-not-pickup"}),
)

AGENT = Pipeline(
    stages=(
        Stage(
            name=_name("implement"),
            label="agent:implement",
            working_label="agent:in-flight",
            next=(_name("pr-open"), _name("plan-pending-approval"), _name("done")),
        ),
        Stage(
            name=_name("plan-pending-approval"),
            label="agent:plan-pending-approval",
            gate=ApprovalGate("agent:plan-approved"),
            next=(_name("implement"),),
        ),
        Stage(
            name=_name("pr-open"),
            label="agent:pr-open",
            next=(_name("done"), _name("implement")),
        ),
        Stage(name=_name("done"), label="agent:done", closes=True),
    ),
    labels=LabelNames(parked="needs:human-scope"),
    blockers=frozenset({"do-not-pickup"}),
)

AUTHORED = "agent:authored"
"""On pull requests that an agent opened."""

PRESETS = {"stages": STAGES, "agent": AGENT}
