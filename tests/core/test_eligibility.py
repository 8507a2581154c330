"""Why an issue may not be claimed: every reason provoked, none of them harmful to follow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.eligibility import (
    IssuePause,
    Pause,
    PauseScope,
    Reason,
    ReasonCode,
    Surroundings,
    Verdict,
    judge,
    judge_claimable,
    judge_picture,
    paused_by,
    render_pause,
    render_resume,
    vetoed,
    words_of,
)
from dibs.core.granter import Appointed, objection
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Labelling, Person, Pull, Snapshot, TextChange
from dibs.core.lease import Standing
from dibs.core.pipeline import People, Pipeline, WhichText, WhosePulls
from dibs.core.presets import AGENT, STAGES

from .builders import (
    WILD,
    at,
    bid,
    edited,
    make_comment,
    make_issue,
    make_record,
    make_snapshot,
    make_try,
    ruling,
    s,
)

LIMITED = Pipeline(
    (replace(STAGES.stages[0], wip=2, attempts=3), *STAGES.stages[1:]), blockers=STAGES.blockers
)
FREE = Standing(None)
CODES = ReasonCode
NO_PAUSE = Surroundings()
FLEET = Pause(PauseScope.FLEET, "release day", "ann", at(3))
HERE = Pause(PauseScope.REPOSITORY, "migration", "", at(3), repo="acme/shop")
ELSEWHERE = Pause(PauseScope.REPOSITORY, "migration", "bob", at(3), repo="acme/other")


class Case(Struct):
    code: ReasonCode
    labels: list[str] = field(default_factory=lambda: ["stage:ready"])
    now: float = 100
    standing: Standing = FREE
    around: Surroundings = NO_PAUSE
    open: bool = True
    until: ServerTime | None = None
    missing: int = 0
    updated: float = 0
    words: tuple[str, ...] = ()
    also: tuple[ReasonCode, ...] = ()
    assignees: tuple[Person, ...] = ()
    pulls: tuple[Pull, ...] = ()
    comments: tuple[Comment, ...] = ()
    changed: TextChange | None = None
    labelled: tuple[Labelling, ...] = ()

    def snapshot(self) -> Snapshot:
        snapshot = make_snapshot(
            self.comments, now=self.now, labels=self.labels, open=self.open, updated=self.updated
        )
        issue = replace(
            snapshot.issue,
            comment_count=len(self.comments) + self.missing,
            assignees=self.assignees,
            pulls=self.pulls,
            changed=self.changed,
            labelled=self.labelled,
        )
        return replace(snapshot, issue=issue)


def held(as_of: float) -> Standing:
    return Standing(make_record(None, expires=120, as_of=as_of))


CASES = [
    Case(CODES.CLOSED, open=False, words=("closed",)),
    Case(CODES.NO_STAGE, labels=["bug"], words=("no stage",)),
    Case(CODES.SEVERAL_STAGES, labels=["stage:ready", "stage:review"], words=("2", "stage:review")),
    Case(CODES.FINAL_STAGE, labels=["stage:done"], words=("done", "end")),
    Case(CODES.PAUSED, labels=["stage:ready", "paused"], words=("paused",)),
    Case(
        CODES.TEXT_CHANGED,
        changed=TextChange("mallory", at(50)),
        labelled=(Labelling("stage:ready", "ann", at(40)),),
        words=("mallory", "may not write", "12:00:50Z"),
    ),
    Case(
        CODES.FLEET_PAUSED, around=Surroundings((FLEET,)), words=("ann", "release day", "12:00:03Z")
    ),
    Case(CODES.REPOSITORY_PAUSED, around=Surroundings((HERE,)), words=("somebody", "migration")),
    Case(CODES.PARKED, labels=["stage:ready", "parked"], words=("parked",)),
    Case(CODES.BLOCKED, labels=["stage:ready", "do-not-pickup"], words=("do-not-pickup",)),
    Case(CODES.GATE_SHUT, labels=["stage:review"], words=("review", "shut")),
    Case(
        CODES.HELD,
        labels=["stage:ready", "claimed"],
        standing=held(100),
        until=at(120),
        words=("worker-a", "fence 1", "20s"),
    ),
    Case(CODES.BID_PENDING, standing=Standing(None, (), at(110)), until=at(110), words=("bid",)),
    Case(
        CODES.IN_GRACE,
        now=125,
        standing=held(125),
        around=Surroundings(grace=s(10)),
        until=at(130),
        words=("worker-a", "grace"),
    ),
    Case(
        CODES.UNPAINTED,
        labels=["stage:ready", "claimed"],
        standing=Standing(make_record("advanced", "review", painted=False, as_of=100)),
        words=("labels",),
    ),
    Case(
        CODES.CLAIM_LABEL_ONLY,
        labels=["stage:ready", "claimed"],
        updated=50,
        until=at(650),
        words=("claimed", "no card"),
    ),
    Case(
        CODES.BACKING_OFF,
        standing=Standing(None, (make_try("failed", ended=90),)),
        until=at(120),
        words=("attempt 1 of 3", "20s"),
    ),
    Case(
        CODES.ATTEMPTS_SPENT,
        now=99_999,
        standing=Standing(None, (make_try(), make_try(None), make_try())),
        words=("3 times", "allows 3"),
    ),
    Case(CODES.WIP_LIMIT, around=Surroundings(in_flight=2), words=("2 of at most 2",)),
    Case(CODES.UNREADABLE, missing=3, words=("0 of 3",)),
    Case(
        CODES.ASSIGNED,
        assignees=(Person("ann"), Person("bob")),
        words=("ann and bob",),
    ),
    Case(
        CODES.DELEGATED,
        assignees=(Person("Copilot", human=False), Person("devin[bot]", human=False)),
        words=("Copilot and devin[bot]", "program"),
    ),
    Case(
        CODES.PULL_OPEN,
        pulls=(Pull(IssueRef("acme/shop", "31"), Person("cy")),),
        words=("cy", "acme/shop#31"),
    ),
    Case(
        CODES.FOREIGN_CLAIM,
        now=500,
        comments=(make_comment("<!-- agent-claim:codename=lucius firing_id=f1 ts=x -->", 9, 60),),
        until=at(60 + 4 * 3600),
        words=("agent-claim", "lucius", "12:01:00Z"),
    ),
    Case(
        CODES.GRANTED_ELSEWHERE,
        around=Surroundings(objections=(objection(Appointed("redis://db"), "comments"),)),
        words=("redis://db", "comments"),
    ),
]


def verdict_of(case: Case) -> Verdict:
    return judge(case.snapshot(), case.standing, LIMITED, case.around)


@pytest.mark.parametrize("case", CASES, ids=[case.code for case in CASES])
def test_each_reason_appears_alone_with_its_fact_its_remedy_and_its_end(case):
    verdict = verdict_of(case)
    assert not verdict.eligible
    (reason,) = verdict.reasons
    assert reason.code is case.code
    assert reason.until == case.until
    assert reason.text.strip()
    assert reason.remedy.strip()
    for word in case.words:
        assert word in reason.text
    assert {reason.code for reason in verdict.reasons} == {case.code}


@pytest.mark.parametrize("case", CASES, ids=[case.code for case in CASES])
def test_no_remedy_takes_an_issue_away_from_anybody(case):
    for reason in verdict_of(case).reasons:
        said = f"{reason.text} {reason.remedy}".lower()
        assert "revoke" not in said
        assert "--force" not in said


def test_every_reason_the_core_can_give_has_a_row():
    """Only a worker knows what it serves, only a claimer what it was granted, only a caller of the
    store whether it answers, and only who looks at the others what a bundle waits for.
    """
    given_above = {CODES.NOT_SERVED, CODES.FENCE_REGRESSED, CODES.BUNDLE_WAITS, CODES.STORE_AWAY}
    needs_a_stage_of_its_own = {CODES.UNPROTECTED}
    told = {case.code for case in CASES} | needs_a_stage_of_its_own
    assert told == set(ReasonCode) - given_above


def test_what_cannot_be_undone_is_claimed_only_where_the_store_protects_it():
    first, *rest = LIMITED.stages
    pipeline = replace(LIMITED, stages=(replace(first, irreversible=True), *rest))
    snapshot = Case(CODES.UNPROTECTED, labels=[first.label]).snapshot()
    (reason,) = judge(snapshot, FREE, pipeline, Surroundings(protected=False)).reasons
    assert reason.code is CODES.UNPROTECTED
    assert first.name in reason.text
    assert judge(snapshot, FREE, pipeline, Surroundings(protected=True)).eligible


PEOPLE = [CODES.ASSIGNED, CODES.DELEGATED, CODES.PULL_OPEN, CODES.FOREIGN_CLAIM]


@pytest.mark.parametrize("case", [one for one in CASES if one.code in PEOPLE], ids=lambda c: c.code)
def test_each_way_of_being_somebodys_can_be_turned_off_by_itself(case):
    switch = dict(zip(PEOPLE, ("assignees", "delegates", "pulls", "markers"), strict=True))[
        case.code
    ]
    off = {"assignees": False, "delegates": False, "pulls": WhosePulls.NONE, "markers": False}
    for name, value in off.items():
        pipeline = replace(LIMITED, people=People(**{name: value}))
        verdict = judge(case.snapshot(), FREE, pipeline, NO_PAUSE)
        assert verdict.eligible is (name == switch)


def test_what_the_fleets_own_accounts_do_keeps_nobody_off():
    case = Case(
        CODES.ASSIGNED,
        assignees=(Person("Fleet-Bot"), Person("ann")),
        pulls=(Pull(IssueRef("acme/shop", "31"), Person("FLEET-bot")),),
    )
    ours = replace(LIMITED, people=People(fleet=frozenset({"fleet-bot", "Ann"})))
    assert judge(case.snapshot(), FREE, ours, NO_PAUSE).eligible
    some = replace(LIMITED, people=People(fleet=frozenset({"fleet-bot"})))
    (reason,) = judge(case.snapshot(), FREE, some, NO_PAUSE).reasons
    assert (reason.code, "ann" in reason.text) == (CODES.ASSIGNED, True)
    assert "Fleet-Bot" not in reason.text


def test_a_strangers_pull_request_keeps_nobody_off_unless_all_count():
    mine = Pull(IssueRef("acme/shop", "4"), Person("ann"))
    strange = Pull(IssueRef("acme/shop", "5"), Person("mallory"), by_writer=False)
    case = Case(CODES.PULL_OPEN, pulls=(strange, mine))
    (reason,) = verdict_of(case).reasons
    assert "ann" in reason.text
    alone = Case(CODES.PULL_OPEN, pulls=(strange,))
    assert verdict_of(alone).eligible
    assert People().strangers_pulls(alone.snapshot().issue) == (strange,)
    everybody = replace(LIMITED, people=People(pulls=WhosePulls.ALL))
    reasons = judge(case.snapshot(), FREE, everybody, NO_PAUSE).reasons
    assert [one.code for one in reasons] == [CODES.PULL_OPEN] * 2
    assert everybody.people.strangers_pulls(case.snapshot().issue) == ()


MALLORYS = TextChange("mallory", at(1000))


def text_case(*labelled: Labelling, comments: tuple[Comment, ...] = ()) -> Case:
    return Case(CODES.TEXT_CHANGED, changed=MALLORYS, labelled=labelled, comments=comments)


def test_a_text_waits_until_a_person_releases_it_again():
    before, after = (
        Labelling("stage:ready", "ann", at(500)),
        Labelling("stage:ready", "ann", at(1001)),
    )
    assert [one.code for one in verdict_of(text_case(before)).reasons] == [CODES.TEXT_CHANGED]
    assert verdict_of(text_case(before, after)).eligible
    assert verdict_of(text_case(Labelling("stage:review", "ann", at(1001)))).eligible
    assert not verdict_of(text_case(replace(before, at=at(1000)))).eligible, "the same second"
    assert not verdict_of(text_case(replace(after, label="urgent"))).eligible
    assert not verdict_of(text_case()).eligible, "the release is too long ago to be seen"
    anything = replace(LIMITED, people=People(text=WhichText.ANY))
    assert judge(text_case(before).snapshot(), FREE, anything, NO_PAUSE).eligible


def test_an_approval_by_a_writer_names_the_text_that_was_read():
    issue = text_case().snapshot().issue
    mark = ruling(issue, "ready")
    assert verdict_of(text_case(comments=(make_comment(mark, 1, 1100),))).eligible
    forged = make_comment(mark, 1, 1100, by_writer=False)
    assert not verdict_of(text_case(comments=(forged,))).eligible
    other = make_comment(ruling(replace(issue, body="x"), "ready"), 1, 1100)
    assert not verdict_of(text_case(comments=(other,))).eligible


def test_where_a_form_put_the_label_on_nobody_released_anything():
    assert verdict_of(text_case(Labelling("stage:ready", "mallory", at(0)))).eligible


def test_the_labels_of_runs_release_nothing_and_a_stranger_makes_no_run():
    """Whatever account puts them on: a fleet may share one with a person."""
    moved = Labelling("stage:ready", "ann", at(1010))
    card = edited("a", "held", 1, 990, prev=990, updated=1009)
    assert not verdict_of(text_case(moved, comments=(card,))).eligible
    assert verdict_of(text_case(moved, comments=(replace(card, by_writer=False),))).eligible
    later_on = replace(moved, at=at(1009 + 2 * 20 + 61))
    assert verdict_of(text_case(later_on, comments=(card,))).eligible


def test_a_label_of_a_dead_runs_ending_releases_nothing_however_late_a_sweep_paints_it():
    """The run died after its decision, mallory edited, and hours later a sweep paints."""
    card = edited(
        "a", "released", 1, 900, prev=900, updated=905, outcome="advanced", target="ready"
    )
    painted = Labelling("stage:ready", "fleet", at(9000))
    assert not verdict_of(text_case(painted, comments=(card,))).eligible
    again = Labelling("stage:ready", "ann", at(9100))
    assert verdict_of(text_case(painted, again, comments=(card,))).eligible


def test_people_and_programs_who_have_the_issue_are_named_each_by_their_reason():
    bot = Person("Copilot", human=False)
    pull = Pull(IssueRef("acme/shop", "4"), bot)
    case = Case(CODES.DELEGATED, assignees=(bot, Person("ann")), pulls=(pull,))
    found = {one.code: one.text for one in verdict_of(case).reasons}
    assert list(found) == [CODES.ASSIGNED, CODES.DELEGATED, CODES.PULL_OPEN]
    assert "Copilot" not in found[CODES.ASSIGNED]
    assert "ann" not in found[CODES.DELEGATED]


def test_a_program_of_the_fleet_keeps_nobody_off():
    case = Case(CODES.DELEGATED, assignees=(Person("acme-fleet[bot]", human=False),))
    ours = replace(LIMITED, people=People(fleet=frozenset({"Acme-Fleet[bot]"})))
    assert not verdict_of(case).eligible
    assert judge(case.snapshot(), FREE, ours, NO_PAUSE).eligible


def test_a_crowd_is_not_listed_to_the_last_name():
    case = Case(CODES.ASSIGNED, assignees=tuple(Person(f"p{number}") for number in range(10)))
    assert "p0 and p1 and p2 and 7 more" in verdict_of(case).reasons[0].text


def test_a_later_assignment_stops_nothing_that_runs():
    """People pause or revoke for that."""
    for case in CASES:
        if case.code in PEOPLE:
            assert vetoed(case.snapshot().issue, LIMITED) is None


def test_a_scan_that_has_only_the_fields_sees_assignees_and_pulls():
    for case in CASES:
        if case.code in (CODES.ASSIGNED, CODES.DELEGATED, CODES.PULL_OPEN):
            (reason,) = judge_picture(case.snapshot().issue, LIMITED).reasons
            assert reason.code is case.code


@pytest.mark.parametrize("case", [case for case in CASES if case.until], ids=lambda case: case.code)
def test_a_reason_that_lifts_by_itself_is_gone_at_the_moment_it_named(case):
    moved = replace(case, now=(case.until - at(0)).total_seconds())
    if moved.standing.record is not None:
        record = replace(moved.standing.record, as_of=case.until)
        moved = replace(moved, standing=replace(moved.standing, record=record))
    assert verdict_of(moved).eligible


@pytest.mark.parametrize(
    ("labels", "standing", "around"),
    [
        (["stage:ready"], FREE, NO_PAUSE),
        (["stage:ready", "bug", "area:shop"], FREE, NO_PAUSE),
        (["stage:review", "approved"], FREE, NO_PAUSE),
        (["stage:ready"], FREE, Surroundings((ELSEWHERE,))),
        (["stage:ready"], FREE, Surroundings(in_flight=1)),
        (["stage:ready"], FREE, Surroundings(in_flight=None)),
        (["stage:ready"], Standing(None, (), at(100)), NO_PAUSE),
        (["stage:ready"], Standing(make_record("returned", as_of=100)), NO_PAUSE),
        (["stage:ready"], Standing(make_record("failed", as_of=100)), Surroundings(grace=s(999))),
        (["stage:ready", "claimed", "stage:processing"], held(120), NO_PAUSE),
        (["stage:ready"], held(130), Surroundings(grace=s(10))),
        (["stage:ready"], Standing(None, (make_try(ended=70),)), NO_PAUSE),
        (["stage:ready"], Standing(None, (make_try("returned"),) * 9), NO_PAUSE),
        (["stage:ready"], Standing(None, (*[make_try()] * 3, make_try("parked"))), NO_PAUSE),
    ],
)
def test_an_eligible_issue_has_a_stage_and_no_reason(labels, standing, around):
    verdict = judge(make_snapshot(now=100, labels=labels), standing, LIMITED, around)
    assert verdict.eligible
    assert verdict.reasons == ()
    assert verdict.stage.label in labels


def test_a_claim_label_without_a_card_counts_as_abandoned_one_ttl_after_the_last_change():
    for now, eligible in ((649, False), (650, True)):
        snapshot = make_snapshot(now=now, labels=["stage:ready", "claimed"], updated=50)
        assert judge(snapshot, FREE, LIMITED, NO_PAUSE).eligible is eligible


def test_a_claim_label_without_a_stage_is_given_a_ttl_too():
    verdict = judge(make_snapshot(now=1, labels=["claimed"]), FREE, LIMITED, NO_PAUSE)
    assert {reason.code for reason in verdict.reasons} == {CODES.NO_STAGE, CODES.CLAIM_LABEL_ONLY}


def test_every_reason_that_holds_is_told():
    snapshot = make_snapshot(
        [bid("a", 1, 0)],
        now=100,
        labels=["stage:review", "paused", "parked", "do-not-pickup", "claimed"],
        open=False,
    )
    snapshot = replace(snapshot, all_pages=False)
    tries = tuple(make_try(stage="review") for _ in range(3))
    around = Surroundings((FLEET, HERE, ELSEWHERE), in_flight=5)
    verdict = judge(snapshot, replace(held(100), tries=tries), LIMITED, around)
    assert {reason.code for reason in verdict.reasons} == {
        *(CODES.FLEET_PAUSED, CODES.REPOSITORY_PAUSED, CODES.CLOSED, CODES.GATE_SHUT),
        *(CODES.PAUSED, CODES.PARKED, CODES.BLOCKED, CODES.UNREADABLE),
        *(CODES.HELD, CODES.ATTEMPTS_SPENT),
    }
    assert verdict.failed_attempts == 3


def test_the_same_reason_may_stand_twice():
    pipeline = replace(STAGES, blockers=frozenset({"wontfix", "blocked"}))
    issue = make_issue(["stage:ready", "wontfix", "blocked"])
    reasons = judge_picture(issue, pipeline).reasons
    assert [reason.code for reason in reasons] == [CODES.BLOCKED, CODES.BLOCKED]
    assert "'blocked'" in reasons[0].text


def test_a_list_that_lacks_a_page_is_not_called_whole():
    snapshot = replace(
        make_snapshot([bid("a", 1, 0)], now=1, labels=["stage:ready"]), all_pages=False
    )
    (reason,) = [
        reason
        for reason in judge(snapshot, FREE, LIMITED, NO_PAUSE).reasons
        if reason.code is CODES.UNREADABLE
    ]
    assert "1 of 1" not in reason.text


def test_one_who_was_just_granted_the_lease_is_not_told_that_it_is_held():
    snapshot = make_snapshot(now=100, labels=["stage:ready", "claimed"])
    assert judge_claimable(snapshot, (), LIMITED, NO_PAUSE).eligible
    closed = make_snapshot(now=100, labels=["stage:ready"], open=False)
    shut = judge_claimable(closed, (), LIMITED, NO_PAUSE)
    assert [reason.code for reason in shut.reasons] == [CODES.CLOSED]
    tries = (make_try(ended=90),)
    resting = judge_claimable(snapshot, tries, LIMITED, NO_PAUSE)
    assert [reason.code for reason in resting.reasons] == [CODES.BACKING_OFF]
    assert resting.failed_attempts == 1


ANY_LABELS = st.frozensets(st.sampled_from([*LIMITED.every_label, "bug"]))
STANDINGS = st.builds(
    Standing,
    st.none()
    | st.builds(
        make_record,
        st.sampled_from([None, "advanced", "failed", "returned", "parked"]),
        expires=st.integers(0, 200),
        as_of=st.just(100),
        painted=st.booleans(),
    ),
    st.lists(
        st.builds(
            make_try, st.sampled_from([None, "failed", "returned"]), ended=st.integers(0, 100)
        ),
        max_size=4,
    ).map(tuple),
    st.none() | st.integers(0, 200).map(at),
)
AROUND = st.builds(
    Surroundings,
    st.lists(st.sampled_from([FLEET, HERE, ELSEWHERE]), max_size=2).map(tuple),
    st.integers(0, 60).map(s),
    st.none() | st.integers(0, 4),
)


@given(ANY_LABELS, STANDINGS, AROUND, st.booleans())
def test_a_verdict_is_consistent_whatever_stands_around_it(labels, standing, around, is_open):
    snapshot = make_snapshot(now=100, labels=labels, open=is_open)
    verdict = judge(snapshot, standing, LIMITED, around)
    claimable = judge_claimable(snapshot, standing.tries, LIMITED, around)
    assert verdict.eligible is (verdict.stage is not None and not verdict.reasons)
    assert set(judge_picture(snapshot.issue, LIMITED).reasons) <= set(claimable.reasons)
    assert set(claimable.reasons) <= set(verdict.reasons)
    assert (standing.live is None) is (CODES.HELD not in {r.code for r in verdict.reasons})
    for reason in verdict.reasons:
        assert reason.text
        assert reason.remedy
        assert "revoke" not in reason.remedy
        assert "--force" not in reason.remedy
        assert reason.until is None or reason.until > snapshot.now


@given(ANY_LABELS, STANDINGS, AROUND)
def test_no_issue_is_eligible_while_somebody_holds_it_or_a_person_said_stop(
    labels, standing, around
):
    snapshot = make_snapshot(now=100, labels=labels)
    if judge(snapshot, standing, LIMITED, around).eligible:
        assert standing.live is None
        assert standing.unpainted is None
        assert not labels & LIMITED.vetoes
        assert vetoed(snapshot.issue, LIMITED) is None


@pytest.mark.parametrize(
    ("labels", "is_open", "why"),
    [
        ([], True, None),
        (["stage:ready", "claimed", "bug"], True, None),
        (["paused"], True, "paused"),
        (["needs:human-scope"], True, "needs:human-scope"),
        (["do-not-pickup"], True, "do-not-pickup"),
        (["paused", "do-not-pickup"], True, "do-not-pickup"),
        (["paused"], False, "closed"),
        ([], False, "closed"),
    ],
)
def test_running_work_is_stopped_by_what_a_person_does_to_the_issue(labels, is_open, why):
    said = vetoed(make_issue(labels, open=is_open), AGENT)
    assert (said is None) is (why is None)
    if why is not None:
        assert why in said


def test_a_pause_of_another_repository_is_none_of_ours():
    snapshot = make_snapshot(now=1, labels=["stage:ready"], ref=IssueRef("acme/other", "1"))
    around = Surroundings((HERE, ELSEWHERE))
    assert [reason.code for reason in judge(snapshot, FREE, LIMITED, around).reasons] == [
        CODES.REPOSITORY_PAUSED
    ]


def test_reasons_and_verdicts_are_plain_values():
    reason = Reason(CODES.CLOSED, "t", "r")
    assert reason.until is None
    assert Verdict(None) == Verdict(None, (), 0)
    assert not Verdict(None).eligible
    assert Verdict(STAGES.stages[0]).eligible
    assert Surroundings() == Surroundings((), s(0), None)


# Who paused an issue


def paused(*bodies, labels=("stage:ready", "paused"), by_writer=True):
    comments = [
        make_comment(body, number, number, by_writer=by_writer)
        for number, body in enumerate(bodies, 1)
    ]
    return paused_by(make_snapshot(comments, now=100, labels=labels), STAGES)


@given(WILD, WILD)
def test_who_paused_an_issue_is_read_back_as_it_was_written(by, reason):
    assert paused(render_pause(by, reason)) == IssuePause(by, reason, at(1))


def test_a_handler_reads_the_words_of_a_pause_and_not_its_line_for_machines():
    assert words_of(render_pause("ann", "one\ntwo")) == "Paused by `ann`: `one two`"
    assert words_of(render_resume("ann")) == "Resumed by `ann`."
    assert words_of("<!-- mine -->\nas I wrote it") == "<!-- mine -->\nas I wrote it"


def test_the_newest_pause_counts_until_the_issue_is_resumed():
    ann, bob = render_pause("ann", "one"), render_pause("bob", "two")
    assert paused(ann, bob) == IssuePause("bob", "two", at(2))
    assert paused(ann, render_resume("ann")) is None, "paused again by hand"
    assert paused(ann, render_resume("ann"), bob) == IssuePause("bob", "two", at(3))


def test_only_marks_by_writers_on_a_paused_issue_say_who_paused_it():
    ann = render_pause("ann", "one")
    assert paused(ann, labels=("stage:ready",)) is None
    assert paused(ann, by_writer=False) is None
    assert paused("Paused by ann: by hand", "<!-- paused by=%ff -->") is None
