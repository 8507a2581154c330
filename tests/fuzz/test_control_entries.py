"""Entries of the control issue's log, whatever is in them: read back, and hidden from people."""

from hypothesis import given
from hypothesis import strategies as st
from tests.core.builders import WILD, at

from dibs.core.eligibility import PauseScope
from dibs.core.granter import (
    Appointed,
    Appointment,
    Moving,
    PauseWord,
    ResumeWord,
    fold_control,
    parse_entry,
    render_appointment,
    render_pause,
    render_resume,
)
from dibs.core.issue import Comment

from .properties import assert_contained

KINDS = ("granter", "pause", "resume", "claim")
LINES = st.builds(
    "<!-- {} {}={} {}={} v=1 -->{}".format,
    st.sampled_from(KINDS),
    st.sampled_from(("store", "scope", "over", "target")),
    st.one_of(WILD, st.sampled_from(("fleet", "x", "0"))),
    st.sampled_from(("over", "floor", "by", "v")),
    st.one_of(WILD, st.sampled_from(("1", "9" * 30))),
    WILD,
)


@given(st.one_of(WILD, LINES))
def test_any_text_is_an_entry_or_is_none_and_never_an_error(body):
    entry = parse_entry(body)
    assert entry is None or isinstance(entry, Appointment | PauseWord | ResumeWord)
    fold_control([Comment(1, body, at(0), at(0)), Comment(2, body, at(0), at(0))])


@given(WILD, WILD, WILD, st.sampled_from(PauseScope))
def test_what_is_written_shows_people_one_plain_sentence(first, second, third, scope):
    for body in (
        render_appointment(Appointed(first or "x"), over=3),
        render_appointment(Moving(first or "x", second or "y", mover=third), over=3),
        render_pause(PauseWord(scope, first, second)),
        render_resume(ResumeWord(scope, first)),
    ):
        assert parse_entry(body) is not None
        assert_contained(body)
