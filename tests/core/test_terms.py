"""Lease terms: what exists is coherent, what is incoherent is named."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dibs.core.durations import SHORTEST_TTL, LeaseTerms, terms_for
from dibs.core.ids import LocalTime

from .builders import s

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("ttl", "renew", "margin", "hold", "named"),
    [
        (s(0.299), s(0.05), s(0.01), DAY, ["ttl", "299ms"]),
        (s(0), s(0.05), s(0.01), DAY, ["ttl", "0s"]),
        (s(-1), s(0.05), s(0.01), DAY, ["ttl"]),
        (s(60), s(20.001), s(1), DAY, ["renew", "20.001s", "ttl", "1m"]),
        (s(60), s(60), s(1), DAY, ["renew", "ttl"]),
        (s(60), s(0), s(1), DAY, ["renew", "0s"]),
        (s(60), s(-5), s(1), DAY, ["renew", "-5s"]),
        (s(60), s(20), s(0), DAY, ["margin", "0s"]),
        (s(60), s(20), s(-1), DAY, ["margin", "-1s"]),
        (s(60), s(20), s(20), DAY, ["margin", "20s", "renew"]),
        (s(60), s(20), s(21), DAY, ["margin", "21s", "renew"]),
        (s(60), s(20), s(1), s(59), ["max_hold", "59s", "ttl", "1m"]),
    ],
)
def test_incoherent_terms_cannot_be_built_and_name_the_pair(ttl, renew, margin, hold, named):
    with pytest.raises(ValueError) as refusal:
        LeaseTerms(ttl, renew, margin, hold)
    for word in named:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("ttl", "renew", "margin", "hold"),
    [
        (SHORTEST_TTL, s(0.1), s(0.05), DAY),
        (s(60), s(20), s(19.999), DAY),
        (s(60), s(1), s(0.5), s(60)),
    ],
)
def test_terms_on_the_edge_of_coherence_exist(ttl, renew, margin, hold):
    assert LeaseTerms(ttl, renew, margin, hold).ttl == ttl


@given(st.integers(300, 7 * 86_400_000))
@example(20_000)
@example(8_000)
@example(500)
@example(600_000)
def test_every_ttl_from_the_shortest_up_gets_coherent_terms_of_its_own(ttl_ms):
    ttl = timedelta(milliseconds=ttl_ms)
    terms = terms_for(ttl)
    assert terms.ttl == ttl
    assert abs(terms.renew_every - ttl / 3) <= timedelta(microseconds=1)
    assert timedelta() < terms.margin < terms.renew_every
    assert terms.max_hold >= ttl


@pytest.mark.parametrize(
    ("ttl", "grain", "trust"),
    [
        (s(600), s(0), s(595)),
        (s(600), s(1), s(594)),
        (s(30), s(0), s(27)),
        (s(30), s(1), s(26)),
        (s(0.3), s(0), s(0.27)),
    ],
)
def test_trust_leaves_room_for_the_servers_grain_and_the_time_to_stop(ttl, grain, trust):
    terms = terms_for(ttl, grain=grain)
    assert terms.trust == trust
    assert terms == terms_for(ttl).stamped_in(grain)


def test_a_margin_that_was_set_is_for_stopping_and_the_grain_comes_on_top():
    terms = terms_for(s(90), margin=s(2)).stamped_in(s(1))
    assert (terms.margin, terms.trust) == (s(2), s(87))


def test_the_shortest_ttl_on_whole_seconds_is_named_when_it_is_refused():
    with pytest.raises(ValueError, match=r"margin 400ms and timestamps in steps of 1s .*renew 1"):
        terms_for(s(4)).stamped_in(s(1))
    assert terms_for(s(5)).stamped_in(s(1)).trust == s(3.5)


def test_what_was_set_is_kept():
    terms = terms_for(s(90), renew_every=s(10), margin=s(2), max_hold=s(900))
    assert terms == LeaseTerms(s(90), s(10), s(2), s(900))


def test_a_cap_below_the_ttl_is_lifted_to_it_and_a_grain_beyond_the_renewal_is_refused():
    assert terms_for(s(90), max_hold=s(5)).max_hold == s(90)
    with pytest.raises(ValueError, match="margin"):
        terms_for(s(3), grain=s(1))


@given(st.floats(0, 1e6), st.integers(1, 86_400))
def test_trust_ends_a_margin_before_the_ttl_counted_from_before_the_request(asked, ttl_s):
    terms = terms_for(s(3 * ttl_s))
    until = terms.trusted_until(LocalTime(asked))
    assert until == pytest.approx(asked + 3 * ttl_s - terms.margin.total_seconds())
    grained = terms.stamped_in(s(0.05)).trusted_until(LocalTime(asked))
    assert grained == pytest.approx(until - 0.05)
    assert until < asked + 3 * ttl_s
