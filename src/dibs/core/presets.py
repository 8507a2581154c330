"""The two pipelines that need no configuration: `stages` and `agent`.

Also the catalogue of the labels of the issue-claim state machine, with their colours and meanings.
Presets, label plans, the published constants and the creation of labels all read the catalogue, so
that no two of them disagree.
"""

from msgspec import Struct

from dibs.core.ids import StageName
from dibs.core.pipeline import ApprovalGate, Dialect, FollowsPull, LabelNames, Pipeline, Stage

IMPLEMENT = "agent:implement"
IN_FLIGHT = "agent:in-flight"
PLAN_PENDING_APPROVAL = "agent:plan-pending-approval"
PLAN_APPROVED = "agent:plan-approved"
PR_OPEN = "agent:pr-open"
DONE = "agent:done"
DO_NOT_PICKUP = "do-not-pickup"
NEEDS_HUMAN_SCOPE = "needs:human-scope"
AUTHORED = "agent:authored"
"""On pull requests that an agent opened."""
LARGE_FEATURE = "agent:large-feature"
FANOUT_COMPLETE = "batman:fanout-complete"
NEEDS_HUMAN_REVIEW = "agent:needs-human-review"
NEEDS_INFO = "needs:info"
DONE_ALREADY = "done-already"


class LabelDef(Struct, frozen=True):
    name: str
    color: str
    """Six hexadecimal digits."""
    description: str
    """At most 100 characters: GitHub refuses longer descriptions."""


LIFECYCLE = (
    LabelDef(IMPLEMENT, "0e8a16", "Queued: an agent may take it"),
    LabelDef(IN_FLIGHT, "e11d21", "An agent holds it; the newest claim comment says which"),
    LabelDef(PR_OPEN, "fbca04", "A pull request is open for it"),
    LabelDef(DONE, "0e8a16", "Shipped"),
    LabelDef(DO_NOT_PICKUP, "5319e7", "A person has it: agents leave it alone"),
    LabelDef(NEEDS_HUMAN_SCOPE, "e99695", "Set aside until a person has said what is wanted"),
)
FURTHER = (
    LabelDef(PLAN_PENDING_APPROVAL, "d4c5f9", "A plan waits for a person's yes or no"),
    LabelDef(PLAN_APPROVED, "0e8a16", "A person said yes to the plan"),
    LabelDef(AUTHORED, "c2e0c6", "An agent opened this pull request"),
    LabelDef(NEEDS_HUMAN_REVIEW, "d93f0b", "A person looks at it before any agent does"),
    LabelDef(NEEDS_INFO, "d876e3", "Something has to be said first"),
)
STANDARD = (
    LabelDef("batman-pr-open", "5319e7", "A multi-repository agent has pull requests open for it"),
    LabelDef(LARGE_FEATURE, "ff6b00", "For an agent that works in several repositories"),
    LabelDef(FANOUT_COMPLETE, "5319e7", "All its parts are issues of their own"),
    LabelDef(DONE_ALREADY, "0e8a16", "What it asks for was there before"),
)
EVERY = (*LIFECYCLE, *FURTHER, *STANDARD)


STAGES = Pipeline(
    stages=(
        Stage(
            name=StageName("ready"),
            label="stage:ready",
            working_label="stage:processing",
            next=(StageName("review"),),
        ),
        Stage(
            name=StageName("review"),
            label="stage:review",
            gate=ApprovalGate("approved", back=StageName("ready")),
            next=(StageName("done"), StageName("ready")),
        ),
        Stage(name=StageName("done"), label="stage:done", closes=True),
    ),
    blockers=frozenset({"do-not-pickup"}),
)

AGENT = Pipeline(
    stages=(
        Stage(
            name=StageName("implement"),
            label=IMPLEMENT,
            gives_way=True,
            next=(StageName("pr-open"), StageName("plan-pending-approval"), StageName("done")),
        ),
        Stage(
            name=StageName("plan-pending-approval"),
            label=PLAN_PENDING_APPROVAL,
            gate=ApprovalGate(PLAN_APPROVED, back=StageName("implement")),
            gives_way=True,
            next=(StageName("implement"), StageName("pr-open"), StageName("done")),
        ),
        Stage(
            name=StageName("pr-open"),
            label=PR_OPEN,
            next=(StageName("done"), StageName("implement")),
            follows=FollowsPull(back=StageName("implement"), authored=AUTHORED),
        ),
        Stage(name=StageName("done"), label=DONE, closes=True),
    ),
    labels=LabelNames(claimed=IN_FLIGHT, parked=NEEDS_HUMAN_SCOPE),
    blockers=frozenset(
        {
            DO_NOT_PICKUP,
            NEEDS_INFO,
            NEEDS_HUMAN_REVIEW,
            DONE_ALREADY,
        }
    ),
    dialect=Dialect.AGENT,
)
"""The issue-claim state machine: its labels exclude each other, and its runners read our cards."""

PRESETS = {"stages": STAGES, "agent": AGENT}
