"""Other tools' markers, in the spelling their own sources write: who has it, since when, till when.

The lines are those of the issue-claim state machine's documentation, of afk's pinned wire fixtures,
of kagan's lease module and of fabrika's contract; names and numbers are ours.
"""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.card import Card, CardState, parse_mark
from dibs.core.fold import FoldRules, standing_on_comments
from dibs.core.foreign import ForeignClaim, foreign_claims

from .builders import SIGNS, WILD, at, make_comment, make_snapshot, s

FOUR_HOURS = timedelta(hours=4)
LATE = 4 * 3600.0

AGENT = (
    "<!-- agent-claim:codename=lucius firing_id=20260501-194217-643a ts=2026-05-01T19:42:33Z -->"
)
AGENT_OVER = (
    "<!-- agent-release:codename=lucius firing_id=20260501-194217-643a outcome=success"
    " pr=https://github.com/foo/bar/pull/42 ts=2026-05-01T20:08:11Z -->"
)
AGENT_SWEPT = (
    "<!-- agent-release:codename=lucius firing_id=20260501-194217-643a outcome=stale-swept"
    " swept_by=20260502-000000-cleanup ts=2026-05-02T00:00:00Z -->"
)
AFK = (
    "<!-- afk:claim v1 worker=mbp.local:w6-3 kind=claim runner=x ts=2026-06-10T23:10:24Z -->\nword"
)
AFK_LOST = "<!-- afk:claim v1 worker=mbp.local:w6-3 kind=concede reason=lost runner=x -->\nword"
AFK_BARE = "<!-- afk:claim v1 worker=mbp.local:w6-3 kind=concede -->\nword"
TRIAGE = "<!-- fabrika-triage-claim session=944851f6-638b lane=3763c125 -->"
TRIAGE_OLD = "<!-- fabrika-triage-claim session=944851f6-638b -->"
BUILD = "build-claim: build:425cb3d4-b7c2:dc2ea2de-3d6a-4863 · 2026-09-06T21:02:54.454Z"


def kagan(minutes: int = 60, *, instance: str = "laptop:4711", **other: str) -> str:
    told = {
        "instance_id": instance,
        "acquired_at": "2019-01-01T10:00:00+00:00",
        "expires_at": f"2019-01-01T{10 + minutes // 60:02d}:{minutes % 60:02d}:00+00:00",
        **other,
    }
    return f"<!-- kagan:lease:v1 -->\n```json\n{json.dumps(told, indent=2)}\n```\n\nworked on\n"


def found(*bodies: str, now: float = 100, ttl: timedelta = FOUR_HOURS) -> tuple[ForeignClaim, ...]:
    comments = [make_comment(body, place, 10.0 * place) for place, body in enumerate(bodies, 1)]
    return foreign_claims(comments, now=at(now), ttl=ttl)


@pytest.mark.parametrize(
    ("body", "tool", "who"),
    [
        (AGENT, "agent-claim", "lucius"),
        (f"\n {AGENT}\n", "agent-claim", "lucius"),
        (AFK, "afk", "mbp.local:w6-3"),
        (TRIAGE, "fabrika", "944851f6-638b"),
        (TRIAGE_OLD, "fabrika", "944851f6-638b"),
        (BUILD, "fabrika", "build:425cb3d4-b7c2:dc2ea2de-3d6a-4863"),
        (kagan(), "kagan", "laptop:4711"),
    ],
)
def test_a_marker_says_who_has_it_and_the_server_since_when(body, tool, who):
    (claim,) = found(body)
    assert (claim.tool, claim.who, claim.comment, claim.since) == (tool, who, 1, at(10))
    assert claim.until in (at(10 + LATE), at(10 + 3 * 3600))


@pytest.mark.parametrize(
    "bodies",
    [(AGENT, AGENT_OVER), (AGENT, AGENT_SWEPT), (AFK, AFK_LOST), (AFK, AFK_BARE)],
    ids=["released", "swept", "conceded", "conceded without a reason"],
)
def test_a_marker_that_was_taken_back_counts_no_more(bodies):
    assert found(*bodies) == ()
    (again,) = found(*bodies, bodies[0])
    assert again.comment == 3


def test_what_another_firing_or_worker_takes_back_is_its_own():
    assert found(AGENT, AGENT_OVER.replace("643a", "0000"))
    assert found(AGENT, AGENT_OVER.replace("lucius", "robin"))
    assert found(AFK, AFK_LOST.replace("w6-3", "w6-4"))


def test_two_tools_may_both_have_it():
    assert [claim.tool for claim in found(AGENT, AFK, TRIAGE)] == ["agent-claim", "afk", "fabrika"]


@pytest.mark.parametrize("body", [AGENT, AFK, TRIAGE, BUILD])
def test_a_marker_that_nobody_takes_back_ends_with_the_ttl(body):
    assert found(body, now=10 + 59, ttl=s(60))
    assert found(body, now=10 + 60, ttl=s(60)) == ()


def test_an_edit_of_a_marker_is_a_sign_of_life():
    comment = make_comment(AGENT, 1, 10, 500)
    (claim,) = foreign_claims([comment], now=at(520), ttl=s(60))
    assert (claim.since, claim.until) == (at(10), at(560))


@pytest.mark.parametrize(("minutes", "lasts"), [(60, 3 * 3600), (30, 2.5 * 3600), (599, LATE)])
def test_a_kagan_lease_runs_as_long_as_it_says_and_its_grace_by_the_servers_clock(minutes, lasts):
    """Its times are years off here: a tool's own clock orders nothing."""
    (claim,) = found(kagan(minutes))
    assert claim.until == at(10 + lasts)


@pytest.mark.parametrize(
    "other",
    [{"expires_at": "soon"}, {"expires_at": "2019-01-01T11:00:00"}, {"acquired_at": ""}],
)
def test_a_kagan_lease_without_times_counts_as_long_as_any_marker(other):
    assert found(kagan(**other))[0].until == at(10 + LATE)


def test_of_several_kagan_leases_the_last_counts():
    (claim,) = found(kagan(instance="a:1"), kagan(instance="b:2"))
    assert (claim.who, claim.comment) == ("b:2", 2)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "I have it",
        f"They say `{AGENT}`, do they not?",
        f"> {AGENT}",
        "<!-- agent-claim:codename=lucius",
        "<!-- afk:claim v1 kind=claim runner=claude -->",
        "<!-- afk:claim v1 worker=w kind=maybe -->",
        "<!-- afk:claim v2 worker=w kind=claim -->",
        "<!-- stn:claim v1 worker=w kind=claim -->",
        "<!-- kagan:lease:v1 -->",
        "<!-- kagan:lease:v1 -->\n```json\n{\n```",
        "<!-- kagan:lease:v1 -->\n```json\n[1]\n```",
        "build-claim: x",
        "build-note: handed off",
        "claim: s · 2026-09-06T21:02:54.454Z",
    ],
)
def test_what_is_no_marker_claims_nothing(body):
    assert found(body) == ()


@pytest.mark.parametrize("body", [AGENT, AFK, TRIAGE, BUILD, kagan()])
def test_a_strangers_marker_claims_nothing_and_takes_nothing_back(body):
    stranger = make_comment(body, 1, 10, by_writer=False)
    assert foreign_claims([stranger], now=at(20), ttl=FOUR_HOURS) == ()


def test_a_strangers_release_frees_nothing():
    comments = [make_comment(AGENT, 1, 10), make_comment(AGENT_OVER, 2, 20, by_writer=False)]
    assert foreign_claims(comments, now=at(30), ttl=FOUR_HOURS)


def test_the_servers_order_decides_whatever_order_they_come_in():
    claim, release = make_comment(AGENT, 7, 10), make_comment(AGENT_OVER, 8, 10)
    assert foreign_claims([release, claim], now=at(20), ttl=FOUR_HOURS) == ()


def test_the_founding_seeds_claim_comment_is_a_bid_of_the_fold_and_no_marker():
    """Labels as locks: whoever follows its script takes part in the protocol like any bidder."""
    body = "<!-- claim run=9f3ac2d1e0b4 ttl=600s --> claimed by worker-7"
    card = parse_mark(body)
    assert isinstance(card, Card)
    assert (card.state, card.ttl) == (CardState.BID, s(600))
    snapshot = make_snapshot([make_comment(body, 5, 10)], now=100)
    assert standing_on_comments(snapshot, FoldRules()).bidding_until == at(610)
    assert found(body) == ()


@given(
    st.sampled_from([AGENT, AGENT_OVER, AFK, AFK_LOST, TRIAGE, BUILD, kagan()]),
    st.integers(0, 200),
    st.sampled_from(SIGNS),
    WILD,
)
def test_a_damaged_marker_never_breaks_and_its_name_is_one_plain_word(body, place, sign, tail):
    damaged = body[:place] + sign + body[place:] + tail
    for claim in found(damaged):
        assert 0 < len(claim.who) <= 80
        assert not set(claim.who) & set("<>\n\r\x1b` ")


@given(WILD)
def test_any_comment_at_all_can_be_looked_at(body):
    found(body)


def test_a_junk_comment_costs_a_look_at_its_beginning():
    huge = "<!-- kagan:lease:v1 -->```json{" + "{" * 200_000
    assert found(huge, "<!-- agent-claim:" + "a=" * 100_000, " " * 300_000) == ()


ODD = [
    "<!-- agent-claim:codename=lucius firing_id=a>b ts=2026-05-01T19:42:33Z -->",
    "<!-- agent-claim:codename=<lucius> firing_id=f1 ts=2026-05-01T19:42:33Z -->",
    "<!-- agent-claim:codename=lucius firing_id=f1 ts=2026-05-01T19:42:33Z",
    "<!-- agent-claim:codename=lucius firing_id=f1 ts=2026-05-01T19:42:33Z --",
]


@pytest.mark.parametrize("body", ODD)
def test_a_claim_is_seen_as_its_own_runners_see_it_however_it_is_cut_or_spelt(body):
    (claim,) = found(body)
    assert (claim.tool, claim.who.strip("_")) == ("agent-claim", "lucius")
    assert found(body, body.replace("agent-claim", "agent-release")) == ()


def test_a_line_of_ours_that_is_cut_is_no_claim_of_another_tool():
    ours = "<!-- agent-claim:codename=lucius firing_id=f1 run=r1 ttl=600s v=1 stage=imple"
    assert found(ours) == ()
