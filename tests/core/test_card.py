"""The card codec: one spelling, read back exactly; anything else is no card."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.card import (
    VERSION,
    Card,
    CardState,
    ExcuseMark,
    RevokeMark,
    ShownMark,
    UnknownMark,
    parse_mark,
    render_card,
    render_excuse,
    render_revoke,
    render_shown,
)
from dibs.core.ids import LONGEST_HOLDER, HolderId, RunId, StageName, server_time
from dibs.core.lease import Ending, Outcome, Revocation
from dibs.core.marker import LONGEST_LINE

from .builders import HOSTILE, RUNS, WILD, at, make_card, s

KNOWN = {
    *("run", "ttl", "v", "holder", "stage", "state", "prev", "beats"),
    *("outcome", "next", "note", "shown"),
}
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True).filter(lambda key: key not in KNOWN)
EXTRAS = st.dictionaries(KEYS, WILD.filter(bool), max_size=3).map(
    lambda found: tuple(found.items())
)
INSTANTS = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
    lambda moment: server_time(
        moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
    )
)
ENDINGS = st.builds(
    Ending,
    st.sampled_from(Outcome),
    st.none() | WILD.filter(bool).map(StageName),
    WILD,
)
TTLS = st.integers(0, 10 * 86_400_000).map(lambda ms: timedelta(milliseconds=ms))


@st.composite
def cards(draw):
    """Every card a holder could write, with values as hostile as a configuration allows."""
    state = draw(st.sampled_from(CardState))
    return Card(
        run=RunId(draw(RUNS)),
        ttl=draw(TTLS),
        state=state,
        holder=HolderId(draw(WILD)),
        stage=StageName(draw(WILD)),
        prev=None if state is CardState.BID else draw(INSTANTS),
        beats=draw(st.integers(0, 999_999_999)),
        ending=draw(ENDINGS) if state is CardState.RELEASED else None,
        shown=state is CardState.RELEASED and draw(st.booleans()),
        extra=draw(EXTRAS),
    )


REVOCATIONS = st.builds(Revocation, RUNS.map(RunId), WILD, WILD, st.booleans())


def first_line(body):
    return body.split("\n", 1)[0]


def values_of(line):
    return [pair.split("=", 1)[1] for pair in line.split(" ")[2:-1]]


# Reading back


@given(cards())
def test_a_card_reads_back_exactly_whatever_its_values(card):
    assert parse_mark(render_card(card)) == card


@given(REVOCATIONS)
def test_a_revoke_reads_back_exactly_whatever_its_values(revocation):
    assert parse_mark(render_revoke(revocation)) == RevokeMark(revocation)


@given(RUNS.map(RunId))
def test_what_somebody_says_for_another_run_reads_back_exactly(run):
    assert parse_mark(render_shown(run)) == ShownMark(run)


@given(RUNS.map(RunId), WILD.map(HolderId), WILD)
def test_an_excuse_reads_back_whatever_its_values(run, by, reason):
    assert parse_mark(render_excuse(run, by, reason)) == ExcuseMark(run)


@pytest.mark.parametrize(
    "value",
    [
        *("--", "---", "----", "-->", "->", "-", "a--", "--a", "<!-- claim run=b ttl=1s -->"),
        *("%", "%2D", "-%2D", "%zz", "+", "a b", "a=b", "@ann", "#1", "?", "é", "🦄"),
        *("\n", "\r\n\r\n", "\t", "\x00", "\xa0", "\u2028"),
    ],
)
def test_a_value_that_could_break_the_line_is_escaped_and_comes_back(value):
    card = Card(
        RunId("a"),
        s(60),
        CardState.RELEASED,
        HolderId(value),
        StageName(value),
        at(20),
        ending=Ending(Outcome.ADVANCED, StageName(value), value),
        extra=(("k", value),),
    )
    body = render_card(card)
    assert parse_mark(body) == card
    assert "--" not in first_line(body)[4:-3]
    revocation = Revocation(RunId("a"), value, value)
    assert parse_mark(render_revoke(revocation)) == RevokeMark(revocation)


@given(cards(), st.sampled_from(["\r\n", "\n", " "]))
def test_a_tracker_that_changes_line_ends_or_the_sentence_changes_no_card(card, end):
    line = first_line(render_card(card))
    assert parse_mark(line) == card
    assert parse_mark(f"{line}{end}edited by a person --> <!-- claim run=z ttl=1s -->") == card


@given(st.text(st.characters(categories=["Cs", "Lu", "Pd"]), max_size=9))
@example("\ud800")
@example("a\udfff--b")
def test_a_lone_surrogate_may_be_replaced_but_breaks_nothing(text):
    card = Card(
        RunId("a"), s(60), holder=HolderId(text), stage=StageName(text), extra=(("k", f"x{text}"),)
    )
    body = render_card(card)
    assert body.encode().decode() == body
    written = text.encode(errors="replace").decode()
    assert parse_mark(body) == replace(
        card, holder=written, stage=written, extra=(("k", f"x{written}"),)
    )
    parse_mark(f"<!-- claim run=a ttl=60s holder={text} -->")


@given(cards())
def test_reading_and_writing_again_changes_nothing(card):
    body = render_card(card)
    assert render_card(parse_mark(body)) == body


@pytest.mark.parametrize("char", ["x", "-", "🦄", "\n"])
def test_the_longest_names_and_note_that_services_let_through_still_make_a_card(char):
    """A line that is too long is no card: a decision written there would be lost."""
    ending = Ending(Outcome.FAILED, StageName(char * 100), char * 200)
    card = replace(
        make_card(state="released", prev=20, ending=ending, beats=999_999_999, shown=True),
        run=RunId("r" * 64),
        holder=HolderId(char * LONGEST_HOLDER),
        stage=StageName(char * 100),
        extra=(("sig", "f" * 128),),
    )
    assert parse_mark(render_card(card)) == card


def test_a_long_reason_does_not_make_a_revoke_that_nobody_can_read():
    mark = parse_mark(
        render_revoke(Revocation(RunId("a"), "op", "because " * LONGEST_LINE, force=True))
    )
    assert isinstance(mark, RevokeMark)
    assert mark.revocation.force


# The line


@given(
    st.one_of(
        cards().map(render_card), REVOCATIONS.map(render_revoke), RUNS.map(RunId).map(render_shown)
    )
)
def test_the_line_is_one_html_comment_that_ends_only_at_its_end(body):
    line = first_line(body)
    assert re.match(r"<!-- (claim|revoke|shown) run=", line)
    assert line.endswith(" -->")
    assert line.index("-->") == len(line) - 3
    assert "--" not in line[4:-3]
    assert line.isascii()
    assert line.isprintable()


@given(cards())
def test_no_value_holds_white_space_a_double_dash_or_what_could_ping_somebody(card):
    for value in values_of(first_line(render_card(card))):
        assert value
        assert not re.search(r"\s|--|[<>@#!`]", value)


@given(cards())
def test_no_key_is_written_twice_and_the_seeds_readers_find_run_and_ttl_first(card):
    line = first_line(render_card(card))
    keys = [pair.split("=", 1)[0] for pair in line.split(" ")[2:-1]]
    assert len(set(keys)) == len(keys)
    assert keys[:3] == ["run", "ttl", "v"]


def test_the_card_is_spelled_as_the_protocol_shows_it():
    card = Card(
        run=RunId("9f3ac2d1e0b4"),
        ttl=s(600),
        state=CardState.HELD,
        holder=HolderId("worker-7"),
        stage=StageName("ready"),
        prev=server_time(datetime(2026, 5, 1, 19, 52, 33, tzinfo=UTC)),
        beats=3,
    )
    line, sentence = render_card(card).split("\n")
    assert line == (
        "<!-- claim run=9f3ac2d1e0b4 ttl=600s v=1 holder=worker-7 stage=ready state=held "
        "prev=2026-05-01T19:52:33Z beats=3 -->"
    )
    assert sentence.startswith("Claimed by `worker-7` for `")
    assert "the lease runs 10m" in sentence
    assert "renewed 3 times" in sentence


def test_an_ending_that_is_painted_is_spelled_as_the_protocol_shows_it():
    card = Card(
        run=RunId("4be07a91c35d"),
        ttl=s(900),
        state=CardState.RELEASED,
        holder=HolderId("builder-2"),
        stage=StageName("review"),
        prev=server_time(datetime(2026, 5, 1, 12, 44, 2, tzinfo=UTC)),
        beats=2,
        ending=Ending(Outcome.ADVANCED, StageName("done")),
        shown=True,
    )
    assert first_line(render_card(card)) == (
        "<!-- claim run=4be07a91c35d ttl=900s v=1 holder=builder-2 stage=review state=released "
        "prev=2026-05-01T12:44:02Z beats=2 outcome=advanced next=done shown=1 -->"
    )
    line, sentence = render_shown(card.run).split("\n")
    assert line == "<!-- shown run=4be07a91c35d v=1 -->"
    assert sentence == "The labels now show how the lease of run `4be07a91c35d` ended."


# The sentence


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (make_card(), ["`worker-a`", "bids", "`ready`"]),
        (make_card(state="held", prev=20), ["Claimed by `worker-a`", "20s"]),
        (make_card(state="conceded", prev=20), ["`worker-a`", "conceded"]),
        (make_card(state="released", prev=20), ["`worker-a`", "ended", "released"]),
        (
            make_card(
                state="released", prev=20, ending=Ending(Outcome.ADVANCED, StageName("review"))
            ),
            ["advanced", "`review`"],
        ),
        (make_card(state="released", prev=20, ending=Ending(Outcome.FAILED)), ["failed"]),
        (Card(RunId("a"), s(60)), ["an unnamed worker"]),
    ],
)
def test_people_read_a_sentence_about_every_state(card, words):
    sentence = render_card(card).split("\n", 1)[1]
    for word in words:
        assert word in sentence


@given(cards())
def test_the_sentence_is_one_short_line_that_mentions_nobody(card):
    sentence = render_card(card).split("\n", 1)[1]
    assert len(sentence) < 400
    assert len(sentence.splitlines()) == 1
    assert not set(sentence) & set("@#<>[]&|\\")


@given(REVOCATIONS)
def test_a_revokes_sentence_says_who_and_whose_and_mentions_nobody(revocation):
    sentence = render_revoke(revocation).split("\n", 1)[1]
    assert f"`{revocation.run}`" in sentence
    assert ("asked to end" in sentence) is not revocation.force
    assert not set(sentence) & set("@#<>[]&|\\")
    if not revocation.by:
        assert sentence.startswith("An operator")


@given(cards().filter(lambda card: card.state is CardState.RELEASED))
def test_people_read_the_same_about_an_ending_whether_or_not_it_is_shown(card):
    sentences = {
        render_card(replace(card, shown=shown)).split("\n", 1)[1] for shown in (True, False)
    }
    assert len(sentences) == 1


# What others write


def test_the_seeds_card_reads_as_a_bid():
    read = parse_mark("<!-- claim run=abc ttl=600s --> claimed by worker-7")
    assert read == Card(run=RunId("abc"), ttl=s(600), state=CardState.BID)


@pytest.mark.parametrize(
    ("body", "extra"),
    [
        (
            "<!-- claim run=a ttl=60s sig=0f9a== colour=blue -->",
            (("sig", "0f9a=="), ("colour", "blue")),
        ),
        ("<!-- claim run=a ttl=60s k=a%20b -->", (("k", "a b"),)),
        ("<!-- claim colour=blue ttl=60s run=a -->", (("colour", "blue"),)),
    ],
)
def test_keys_of_tomorrow_are_kept_through_an_edit(body, extra):
    read = parse_mark(body)
    assert isinstance(read, Card)
    assert read.extra == extra
    assert parse_mark(render_card(read)).extra == extra


def test_a_key_of_tomorrow_without_a_value_is_kept_through_an_edit():
    read = parse_mark("<!-- claim run=a ttl=60s urgent= colour=blue -->")
    assert isinstance(read, Card)
    assert parse_mark(render_card(read)).extra == (("urgent", ""), ("colour", "blue"))


def test_a_revokes_keys_of_tomorrow_are_read():
    mark = parse_mark("<!-- revoke run=a by=op reason=stuck force=1 sig=ff -->")
    assert mark == RevokeMark(Revocation(RunId("a"), "op", "stuck", True), (("sig", "ff"),))


@pytest.mark.parametrize("value", ["0", "true", "yes", "", "11"])
def test_only_force_one_is_force(value):
    assert not parse_mark(f"<!-- revoke run=a force={value} -->").revocation.force


@pytest.mark.parametrize("value", ["0", "true", "yes", "", "11"])
def test_only_shown_one_is_shown(value):
    released = "state=released prev=2026-05-01T19:52:33Z"
    assert parse_mark(f"<!-- claim run=a ttl=60s {released} shown=1 -->").shown
    assert not parse_mark(f"<!-- claim run=a ttl=60s {released} shown={value} -->").shown


def test_a_word_for_another_runs_keys_of_tomorrow_are_read():
    assert parse_mark("<!-- shown run=a by=op sig=ff -->") == ShownMark(
        RunId("a"), (("by", "op"), ("sig", "ff"))
    )


@pytest.mark.parametrize("version", ["0", "2", "1.0", "01", "", "one", "%32"])
@pytest.mark.parametrize("kind", ["claim", "revoke", "shown"])
def test_an_unknown_version_is_left_alone(kind, version):
    mark = parse_mark(f"<!-- {kind} run=a ttl=60s v={version} -->")
    assert isinstance(mark, UnknownMark)
    assert mark.why


def test_the_version_may_be_left_out():
    assert str(VERSION) == "1"
    assert parse_mark("<!-- claim run=a ttl=60s -->") == parse_mark(
        "<!-- claim run=a ttl=60s v=1 -->"
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "> <!-- claim run=a ttl=600s -->",
        ">> <!-- claim run=a ttl=600s -->",
        " <!-- claim run=a ttl=600s -->",
        "\n<!-- claim run=a ttl=600s -->",
        "`<!-- claim run=a ttl=600s -->`",
        "see <!-- claim run=a ttl=600s -->",
        "\ufeff<!-- claim run=a ttl=600s -->",
        "<!--claim run=a ttl=600s-->",
        "<!-- CLAIM run=a ttl=600s -->",
        "<!-- claimed run=a ttl=600s -->",
        "<!-- claim\nrun=a ttl=600s -->",
        "<!-- agent-claim:codename=lucius firing_id=1 ts=2026-05-01T19:42:33Z -->",
        "> <!-- revoke run=a -->",
        "> <!-- shown run=a -->",
        "<!-- shown-by run=a -->",
    ],
)
def test_a_quoted_or_merely_similar_comment_is_no_mark(body):
    assert parse_mark(body) is None


@pytest.mark.parametrize(
    "fields",
    [
        "",
        "run=a",
        "ttl=60s",
        "run= ttl=60s",
        "run=-a ttl=60s",
        "run=a%20b ttl=60s",
        "run=" + "a" * 65 + " ttl=60s",
        "run=a ttl=",
        "run=a ttl=soon",
        "run=a ttl=-5s",
        "run=a ttl=60",
        "run=a ttl=999999999d999999999d",
        "run=a ttl=60s ttl=70s",
        "run=a run=b ttl=60s",
        "run=a ttl=60s x=1 x=2",
        "run=a ttl=60s state=stolen",
        "run=a ttl=60s state=held",  # an edit says what it was written against
        "run=a ttl=60s state=released",
        "run=a ttl=60s state=conceded",
        "run=a ttl=60s state=bid prev=2026-05-01T19:52:33Z",
        "run=a ttl=60s prev=2026-05-01T19:52:33Z",
        "run=a ttl=60s state=held prev=2026-05-01T19:52:33",
        "run=a ttl=60s state=held prev=yesterday",
        "run=a ttl=60s state=held prev=",
        "run=a ttl=60s shown=1",  # only an ending can be shown
        "run=a ttl=60s state=held prev=2026-05-01T19:52:33Z shown=1",
        "run=a ttl=60s state=conceded prev=2026-05-01T19:52:33Z shown=1",
        "run=a ttl=60s state=released shown=1",  # and it says when the lease ended
        "run=a ttl=60s state=released prev=2026-05-01T19:52:33Z shown=1 shown=1",
        "run=a ttl=60s beats=many",
        "run=a ttl=60s beats=-1",
        "run=a ttl=60s beats=1234567890",
        "run=a ttl=60s beats=%C2%B2",
        "run=a ttl=60s outcome=splendid",
        "run=a ttl=60s outcome=",
        "run=a ttl=60s holder=%FF",
        "run=a ttl=60s k=%FF",
        "run=a ttl=60s Key=1",
        "run=a ttl=60s 1k=1",
        "run=a ttl=60s novalue",
        "run=a  ttl=60s",
        "run=a\tttl=60s",
        "run=a ttl=60s holder=wörker",
        "run=a ttl=60s " + "k" * 33 + "=1",
    ],
)
def test_a_line_that_is_not_exactly_a_card_is_no_card(fields):
    mark = parse_mark(f"<!-- claim {fields} -->\nClaimed.")
    assert isinstance(mark, UnknownMark)
    assert mark.why


@pytest.mark.parametrize(
    "body",
    [
        "<!-- claim run=a ttl=60s",
        "<!-- claim run=a ttl=60s -- >",
        "<!-- claim run=a ttl=60s -->glued",
        "<!-- claim run=a ttl=60s --!> -->",
        "<!-- claim run=a ttl=60s\n-->",
        "<!-- claim run=a\nttl=60s -->",
        "<!-- revoke by=op -->",
        "<!-- revoke run=%20 -->",
        "<!-- shown -->",
        "<!-- shown by=op -->",
        "<!-- shown run=%20 -->",
        "<!-- shown run=a run=b -->",
        "<!-- shown run=a",
        "<!-- claim run=a ttl=60s k=" + "x" * LONGEST_LINE + " -->",
    ],
)
def test_a_mark_that_does_not_close_as_it_should_is_left_alone(body):
    assert isinstance(parse_mark(body), UnknownMark)


@pytest.mark.parametrize("value", ["x-->y", "-->", "x--><script>alert(1)</script>"])
def test_a_card_whose_html_comment_ends_inside_a_value_is_no_card(value):
    assert not isinstance(parse_mark(f"<!-- claim run=a ttl=60s holder={value} -->"), Card)


PIECES = (
    *(
        "<!-- claim ",
        "<!-- revoke ",
        "<!-- shown ",
        "shown=1 ",
        "-->",
        " -->",
        "run=a ",
        "ttl=9s ",
        "v=1 ",
        "state=held ",
    ),
    *("prev=", "2026-05-01T19:52:33Z ", "beats=", "outcome=", "%", "%2D", "<script>", "\n", "="),
)


@given(st.text(HOSTILE, max_size=200))
@example("<!-- claim " + "a=" * 500_000)
@example("<!-- claim" + " a=1" * 250_000 + " -->")
@example("<!-- claim " + " " * 1_000_000)
@example("<!-- claim run=" + "%" * 1_000_000)
@example("<!-- revoke run=a reason=" + "x" * 1_000_000 + " -->")
@example("<div onload=alert(1)>" * 50_000)
def test_no_body_however_hostile_or_large_makes_reading_fail(body):
    for kind in ("claim", "revoke", "shown"):
        for text in (body, f"<!-- {kind} {body} -->"):
            assert isinstance(parse_mark(text), Card | RevokeMark | ShownMark | UnknownMark | None)


@given(st.lists(st.one_of(st.sampled_from(PIECES), WILD), max_size=20).map("".join))
def test_no_shuffled_pile_of_real_pieces_makes_reading_fail(body):
    for text in (body, "<!-- claim run=a ttl=60s " + body):
        mark = parse_mark(text)
        if isinstance(mark, Card):
            assert parse_mark(render_card(mark)) is not None


def test_a_megabyte_after_a_card_does_not_hide_it():
    body = render_card(make_card()) + "\n" + "<!-- claim run=b ttl=9s -->\n" * 40_000
    assert parse_mark(body) == make_card()


def test_a_card_has_modest_defaults():
    card = Card(RunId("a"), s(1))
    assert (card.state, card.prev, card.beats, card.ending, card.shown, card.extra) == (
        "bid",
        None,
        0,
        None,
        False,
        (),
    )
    assert make_card(state="held", prev=3).prev == at(3)


@pytest.mark.parametrize(("force", "words"), [(True, "ended the lease"), (False, "asked to end")])
def test_people_read_whether_a_revoke_ends_the_lease_or_asks_the_holder_to(force, words):
    assert words in render_revoke(Revocation(RunId("a"), "ada", "mine", force=force))
