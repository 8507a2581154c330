"""Durations and instants as text."""

import string
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.durations import (
    describe_span,
    format_duration,
    format_instant,
    format_seconds,
    parse_duration,
    parse_instant,
)

from .builders import HOSTILE

TEN_YEARS_MS = 3650 * 86_400_000
MILLISECONDS = st.one_of(
    st.integers(0, TEN_YEARS_MS),
    st.integers(0, 5_000),
    st.integers(0, 3650 * 86_400).map(lambda whole: whole * 1000),
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("10 m", 600),
        ("  10m ", 600),
        ("10M", 600),
        ("2d", 172_800),
        ("1.5s", 1.5),
        ("0.25h", 900),
        ("250ms", 0.25),
        ("1m500ms", 60.5),
        ("0s", 0),
        ("600s", 600),
        ("3650d", 315_360_000),
    ],
)
def test_a_duration_is_read_as_people_write_it(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "10",
        "m",
        "10 minutes",
        "-5s",
        "+5s",
        "1e3s",
        "1,5s",
        ".5s",
        "5.s",
        "1.2.3s",
        "10m!",
        "x10m",
        "10mm",
        "٣s",
        "1.1234567s",
        "1234567890s",
        "3651d",
        "999999999d",
        "PT10M",
        "10m\n5",
        "s" * 10_000,
    ],
)
def test_what_is_no_duration_is_refused_with_its_beginning_quoted(text):
    with pytest.raises(ValueError) as refusal:
        parse_duration(text)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("text", ["999999999d999999999d", "999999999d" * 50])
def test_a_duration_beyond_what_a_machine_can_count_is_a_value_error_too(text):
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1 0m", "1. 5s", "1m s"])
def test_a_space_inside_a_number_or_a_unit_is_not_quietly_closed_up(text):
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.one_of(st.text(HOSTILE, max_size=30), st.text(string.digits + "smhd. ", max_size=30)))
def test_reading_any_text_as_a_duration_gives_a_span_or_a_value_error(text):
    try:
        span = parse_duration(text)
    except ValueError:
        return
    assert timedelta() <= span <= timedelta(days=3650)


@given(MILLISECONDS)
def test_a_written_duration_reads_back_to_the_same_millisecond(ms):
    span = timedelta(milliseconds=ms)
    assert parse_duration(format_duration(span)) == span
    assert parse_duration(format_seconds(span)) == span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1.5, "1.5s"),
        (60, "1m"),
        (600, "10m"),
        (5400, "1h30m"),
        (90_061, "1d1h1m1s"),
        (61.25, "61.25s"),
        (-90, "-1m30s"),
        (-0.5, "-500ms"),
        (-0.0001, "0s"),
    ],
)
def test_a_duration_has_one_spelling(seconds, text):
    assert format_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(600, "600s"), (1.5, "1.5s"), (0.3, "0.3s"), (0.001, "0.001s"), (0, "0s")]
)
def test_the_card_counts_in_seconds(seconds, text):
    assert format_seconds(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "under 1s"),
        (0.9, "under 1s"),
        (1, "1s"),
        (598, "9m 58s"),
        (7200, "2h"),
        (90_061, "1d 1h"),
        (86_405, "1d 5s"),
        (-598, "9m 58s"),
    ],
)
def test_people_are_told_a_length_in_two_units_at_most(seconds, text):
    assert describe_span(timedelta(seconds=seconds)) == text


@given(st.integers(-(10**9), 10**9))
def test_a_length_for_people_is_never_empty_and_never_long(seconds):
    assert 1 <= len(describe_span(timedelta(seconds=seconds)).split()) <= 2


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-01T19:52:33Z", datetime(2026, 5, 1, 19, 52, 33, tzinfo=UTC)),
        ("2026-05-01T21:52:33+02:00", datetime(2026, 5, 1, 19, 52, 33, tzinfo=UTC)),
        ("2026-05-01T19:52:33.250Z", datetime(2026, 5, 1, 19, 52, 33, 250_000, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read_in_utc(text, moment):
    assert parse_instant(text) == moment
    assert parse_instant(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-05-01",
        "2026-05-01T19:52:33",
        "2026-13-01T00:00:00Z",
        "1746129153",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2026-05-01T25:00:00Z",
    ],
)
def test_what_is_no_instant_with_a_zone_is_refused(text):
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_instant(text)


@given(st.text(HOSTILE, max_size=40))
def test_reading_any_text_as_an_instant_gives_an_instant_or_a_value_error(text):
    try:
        moment = parse_instant(text)
    except ValueError:
        return
    assert moment.tzinfo is UTC


@given(st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)), st.integers(-720, 720))  # noqa: DTZ001
def test_a_written_instant_reads_back_to_the_same_millisecond(moment, minutes):
    in_ms = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    aware = in_ms.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    text = format_instant(aware)
    assert parse_instant(text) == aware
    assert text.endswith("Z")
    assert not set(text) & set(" \t\n")


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "2026-05-01T19:52:33Z"), (250_000, "2026-05-01T19:52:33.250Z")],
)
def test_milliseconds_are_written_only_where_there_are_any(micro, text):
    assert format_instant(datetime(2026, 5, 1, 19, 52, 33, micro, tzinfo=UTC)) == text


@given(st.integers(0, 999_999))
def test_an_instant_is_never_written_later_than_it_is(micro):
    """A `prev` that says more than the truth would let an edit count that landed too late."""
    moment = datetime(2026, 5, 1, 19, 52, 33, micro, tzinfo=UTC)
    assert parse_instant(format_instant(moment)) <= moment
