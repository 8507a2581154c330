"""The two pipelines that need no configuration: `stages` and `agent`."""

from dibs.core import agent_labels
from dibs.core.dialects import Dialect
from dibs.core.ids import StageName
from dibs.core.pipeline import ApprovalGate, FollowsPull, LabelNames, Pipeline, Stage


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

AUTHORED = agent_labels.AUTHORED
"""On pull requests that an agent opened."""

AGENT = Pipeline(
    stages=(
        Stage(
            name=_name("implement"),
            label=agent_labels.IMPLEMENT,
            gives_way=True,
            next=(_name("pr-open"), _name("plan-pending-approval"), _name("done")),
        ),
        Stage(
            name=_name("plan-pending-approval"),
            label=agent_labels.PLAN_PENDING_APPROVAL,
            gate=ApprovalGate(agent_labels.PLAN_APPROVED),
            gives_way=True,
            next=(_name("implement"), _name("pr-open"), _name("done")),
        ),
        Stage(
            name=_name("pr-open"),
            label=agent_labels.PR_OPEN,
            next=(_name("done"), _name("implement")),
            follows=FollowsPull(back=_name("implement"), authored=AUTHORED),
        ),
        Stage(name=_name("done"), label=agent_labels.DONE, closes=True),
    ),
    labels=LabelNames(claimed=agent_labels.IN_FLIGHT, parked=agent_labels.NEEDS_HUMAN_SCOPE),
    blockers=frozenset(
        {
            agent_labels.DO_NOT_PICKUP,
            agent_labels.NEEDS_INFO,
            agent_labels.NEEDS_HUMAN_REVIEW,
            agent_labels.DONE_ALREADY,
        }
    ),
    dialect=Dialect.AGENT,
)
"""The issue-claim state machine: its labels exclude each other, and its runners read our cards."""

PRESETS = {"stages": STAGES, "agent": AGENT}
