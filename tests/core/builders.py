"""Short spellings of core values for the tables: seconds since one fixed server instant."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.approval import PostedPlan, RulingKind, Visit, at_gate, render_ruling, text_of
from dibs.core.card import Card, CardState, render_card, render_revoke, render_shown
from dibs.core.fold import FoldRules, PostedCard, PostedRevoke, RevokeMark
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime, StageName, server_time
from dibs.core.issue import Comment, Issue, Snapshot
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effects, PostComment, RemoveLabels
from dibs.core.lease import Ending, Lease, Outcome, Record, Revocation, Try
from dibs.core.presets import STAGES

START = server_time(datetime(2026, 5, 1, 12, 0, tzinfo=UTC))
REF = IssueRef("acme/shop", "7")
RULES = FoldRules()

# Any character at all, with those that could break a line, a field or an HTML comment in front.
SIGNS = ("--", "-->", "<!--", "-", ">", *" !=%+&;@#`*_\n\r\t\x00\x1b\u2028\xa0é🦄")
HOSTILE = st.one_of(st.sampled_from("".join(SIGNS)), st.characters(codec="utf-8"))
WILD = st.lists(st.one_of(st.sampled_from(SIGNS), st.characters(codec="utf-8")), max_size=25).map(
    "".join
)
RUNS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", fullmatch=True)


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def at(seconds: float) -> ServerTime:
    return ServerTime(START + timedelta(seconds=seconds))


def make_card(
    run: str = "a",
    state: str = "bid",
    *,
    ttl: float = 20,
    prev: float | None = None,
    ending: Ending | None = None,
    stage: str = "ready",
    beats: int = 0,
    shown: bool = False,
) -> Card:
    return Card(
        run=RunId(run),
        ttl=s(ttl),
        state=CardState(state),
        holder=HolderId(f"worker-{run}"),
        stage=StageName(stage),
        prev=None if prev is None else at(prev),
        beats=beats,
        ending=ending,
        shown=shown,
    )


def make_comment(
    body: str,
    id: int,  # noqa: A002
    created: float,
    updated: float | None = None,
    *,
    by_writer: bool = True,
) -> Comment:
    last = created if updated is None else updated
    return Comment(id, body, at(created), at(last), author="fleet", by_writer=by_writer)


def bid(run: str, id: int, created: float, *, ttl: float = 20, by_writer: bool = True) -> Comment:  # noqa: A002
    return make_comment(render_card(make_card(run, ttl=ttl)), id, created, by_writer=by_writer)


def edited(
    run: str,
    state: str,
    id: int,  # noqa: A002
    created: float,
    *,
    prev: float,
    updated: float,
    ttl: float = 20,
    outcome: str | None = None,
    target: str | None = None,
    stage: str = "ready",
    shown: bool = False,
    by_writer: bool = True,
) -> Comment:
    """A card as it stands after its holder's last edit. A release says what came of it."""
    if state == "released" and outcome is None:
        outcome = "returned"
    ending = (
        Ending(Outcome(outcome), StageName(target) if target else None)
        if outcome is not None
        else None
    )
    card = make_card(run, state, ttl=ttl, prev=prev, ending=ending, stage=stage, shown=shown)
    return make_comment(render_card(card), id, created, updated, by_writer=by_writer)


def revoke(
    run: str,
    id: int,  # noqa: A002
    created: float,
    *,
    force: bool = False,
    by: str = "operator",
    by_writer: bool = True,
) -> Comment:
    mark = Revocation(RunId(run), by, "stuck", force)
    return make_comment(render_revoke(mark), id, created, by_writer=by_writer)


def shown_by_another(run: str, id: int, created: float, *, by_writer: bool = True) -> Comment:  # noqa: A002
    """Somebody says that the labels show how this run ended."""
    return make_comment(render_shown(RunId(run)), id, created, by_writer=by_writer)


def posted(card: Card, id: int, created: float, updated: float | None = None) -> PostedCard:  # noqa: A002
    return PostedCard(card, id, at(created), at(created if updated is None else updated))


def posted_revoke(run: str, created: float, *, force: bool = False) -> PostedRevoke:
    return PostedRevoke(RevokeMark(Revocation(RunId(run), "op", "stuck", force)), at(created))


def make_issue(
    labels: Iterable[str] = (),
    *,
    open: bool = True,  # noqa: A002
    count: int = 0,
    updated: float = 0,
    ref: IssueRef = REF,
) -> Issue:
    return Issue(
        ref=ref,
        title="Prices are wrong",
        open=open,
        labels=frozenset(labels),
        comment_count=count,
        created_at=at(0),
        updated_at=at(updated),
    )


def make_snapshot(
    comments: Iterable[Comment] = (),
    *,
    now: float = 0,
    labels: Iterable[str] = (),
    open: bool = True,  # noqa: A002
    updated: float = 0,
    ref: IssueRef = REF,
) -> Snapshot:
    found = tuple(comments)
    issue = make_issue(labels, open=open, count=len(found), updated=updated, ref=ref)
    return Snapshot(issue, found, at(now))


def ruling(
    issue: Issue,
    stage: str = "review",
    by: str = "ann",
    *,
    kind: str = "approved",
    visit: str = "first",
    note: str = "",
    plan: PostedPlan | None = None,
) -> str:
    """The mark by which somebody approves, or rejects, this text of the issue."""
    stages = {one.name: one for one in STAGES.stages}
    gate = at_gate(Snapshot(issue, (), at(0)), (), stages["review"], STAGES)
    wanted = replace(stages["review"], name=StageName(stage))
    here = Visit(visit, at(0))
    gate = replace(gate, stage=wanted, visit=here, plan=plan, text=text_of(issue, plan))
    return render_ruling(RulingKind(kind), gate, by, note)


def make_lease(
    run: str = "a", *, stage: str = "ready", expires: float = 20, granted: float = 0, fence: int = 1
) -> Lease:
    return Lease(
        issue=REF,
        run=RunId(run),
        holder=HolderId(f"worker-{run}"),
        stage=StageName(stage),
        fence=Fence(fence),
        ttl=s(20),
        granted_at=at(granted),
        expires_at=at(expires),
    )


def make_record(
    outcome: str | None = None,
    target: str | None = None,
    *,
    stage: str = "ready",
    expires: float = 20,
    as_of: float = 30,
    painted: bool = True,
) -> Record:
    ending = (
        Ending(Outcome(outcome), StageName(target) if target else None)
        if outcome is not None
        else None
    )
    return Record(make_lease(stage=stage, expires=expires), at(as_of), ending, painted=painted)


def make_try(
    outcome: str | None = "failed",
    *,
    stage: str = "ready",
    ended: float | None = 10,
    excused: bool = False,
    run: str = "a",
) -> Try:
    return Try(
        run=RunId(run),
        stage=StageName(stage),
        ended_at=None if ended is None else at(ended),
        outcome=None if outcome is None else Outcome(outcome),
        excused=excused,
    )


def labels_after(effects: Effects, labels: frozenset[str]) -> frozenset[str]:
    """The labels of an issue after the effects."""
    for effect in effects:
        match effect:
            case AddLabels(added):
                labels |= set(added)
            case RemoveLabels(removed):
                labels -= set(removed)
            case PostComment() | EditComment() | CloseIssue():
                pass
    return labels
