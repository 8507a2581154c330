"""Cards and revokes: whatever is written reads back, and whatever is read does no harm."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.card import (
    Card,
    CardState,
    RevokeMark,
    UnknownMark,
    parse_mark,
    render_card,
)
from dibs.core.ids import HolderId, RunId, StageName
from dibs.core.lease import Ending, Outcome, Revocation
from dibs.core.marker import LONGEST_LINE

from .properties import (
    KINDS,
    assert_card_survives,
    assert_contained,
    check_body,
    check_revoke,
    check_shown,
    writable,
)
from .strategies import (
    BODIES,
    BREAKERS,
    BROKEN,
    FIELDS,
    INSTANTS,
    RUNS,
    SPANS,
    SURROGATES,
    UNKNOWN_KEYS,
    WILD,
    cards,
    damaged,
    fuzzed,
    revocations,
)

HELD = parse_mark("<!-- claim run=a ttl=9s state=held prev=2026-05-01T19:52:33Z -->")
PLACES = ("holder", "stage", "next", "note", "extra")


def with_value(place, text):
    """A released card with one hostile value."""
    card = replace(HELD, state=CardState.RELEASED, ending=Ending(Outcome.ADVANCED, StageName("z")))
    match place:
        case "holder":
            return replace(card, holder=HolderId(text))
        case "stage":
            return replace(card, stage=StageName(text))
        case "next":
            return replace(card, ending=Ending(Outcome.ADVANCED, StageName(text) or None))
        case "note":
            return replace(card, ending=Ending(Outcome.ADVANCED, None, text))
        case "extra":
            return replace(card, extra=(("x", text),))
    raise AssertionError(place)


# Round trips


@fuzzed
@given(cards())
def test_every_card_that_can_be_written_reads_back(card):
    assert_card_survives(card)


@fuzzed
@given(revocations())
def test_every_revoke_that_can_be_written_reads_back(revocation):
    check_revoke(revocation)


@fuzzed
@given(RUNS)
def test_what_is_said_for_every_run_reads_back(run):
    check_shown(run)


@fuzzed
@given(cards(BROKEN))
def test_halves_of_characters_are_replaced_and_nothing_else_changes(card):
    ending = card.ending
    if ending is not None:
        target = StageName(writable(ending.next)) if ending.next else None
        ending = replace(ending, next=target, note=writable(ending.note))
    assert_contained(render_card(card))
    assert parse_mark(render_card(card)) == replace(
        parse_mark(render_card(replace(card, holder=HolderId(""), stage=StageName("")))),
        holder=writable(card.holder),
        stage=writable(card.stage),
        ending=ending,
        extra=tuple((key, writable(value)) for key, value in card.extra),
    )


@fuzzed
@given(revocations(BROKEN))
def test_a_revoke_with_halves_of_characters_is_still_one(revocation):
    check_revoke(revocation)


@fuzzed
@given(SPANS)
def test_a_card_says_how_long_its_lease_runs_to_the_microsecond(span):
    assert parse_mark(render_card(Card(RunId("a"), span))).ttl == span


@fuzzed
@given(INSTANTS)
def test_a_card_says_exactly_the_expiry_it_was_written_against(prev):
    """One that said more would let a late edit count; one that said less, a later bid."""
    card = Card(RunId("a"), HELD.ttl, CardState.HELD, prev=prev)
    assert parse_mark(render_card(card)).prev == prev
    assert_card_survives(card)


@fuzzed
@given(st.dictionaries(UNKNOWN_KEYS, WILD, max_size=5), cards())
def test_keys_of_tomorrow_are_kept_in_their_order(extra, card):
    wanted = tuple(extra.items())
    assert parse_mark(render_card(replace(card, extra=wanted))).extra == wanted


@fuzzed
@given(st.sampled_from(KINDS), WILD, FIELDS)
def test_another_version_is_left_alone_whatever_else_it_says(kind, version, fields):
    line = f"<!-- {kind} run=a ttl=9s v={_quoted(version)} {fields} -->"
    assume(version != "1")
    assert isinstance(check_body(line), UnknownMark)


def _quoted(text):
    return "".join(f"%{byte:02X}" for byte in text.encode())


# Damage


@fuzzed
@given(damaged(BODIES))
def test_a_damaged_mark_is_a_mark_or_none_and_never_an_exception(body):
    check_body(body)


@fuzzed
@given(st.sampled_from(KINDS), FIELDS)
def test_known_fields_in_any_order_number_and_value_are_read_or_left_alone(kind, fields):
    check_body(f"<!-- {kind} {fields} -->")
    check_body(f"<!-- {kind} run=a ttl=9s {fields} -->\nand more")


@fuzzed
@given(damaged(FIELDS))
def test_damaged_fields_are_read_or_left_alone(fields):
    check_body(f"<!-- claim run=a ttl=9s {fields} -->")


@fuzzed
@given(BROKEN)
@example("<!-- claim ")
@example("<!-- claim  -->")
@example("<!-- revoke -->")
@example("<!-- claim run=a ttl=60s holder=x--!><script> -->")
@example("<!-- claim run=a ttl=60s v=%1B[2J%1B]0;x%07 -->")
@example("<!-- claim run=a ttl=60s state=" + "x" * 9000 + " -->")
@example("<!-- claim run=a ttl=60s v=" + "x" * 9000 + " -->")
@example("<!-- claim run=a ttl=0.0004s -->")
@example("<!-- claim run=a ttl=9s state=held prev=2026-05-01T19:52:33.000400Z -->")
@example("<!-- claim run=a ttl=9s k=" + "!" * 9000 + " -->")
def test_garbage_is_no_mark_and_never_an_exception(body):
    check_body(body)
    check_body(f"<!-- claim {body} -->")
    check_body(f"<!-- revoke run=a {body}")
    check_body(f"<!-- shown {body} -->")


@pytest.mark.parametrize("spare", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("after", ["", "\n", " x", "glued", "\r\n" + "x" * 50])
def test_the_longest_line_is_one_whatever_stands_after_it(spare, after):
    opening, closing = "<!-- claim run=a ttl=9s k=", " -->"
    filling = "x" * (LONGEST_LINE + spare - len(opening) - len(closing))
    mark = check_body(f"{opening}{filling}{closing}{after}")
    assert isinstance(mark, Card) == (spare <= 0 and after != "glued")


# Hostile HTML


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", BREAKERS, ids=ascii)
def test_no_value_in_any_field_gets_out_of_the_html_comment(place, text):
    for value in (text, text * 3, f"a{text}", f"{text}a", f"-{text}-"):
        assert_card_survives(with_value(place, value))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", SURROGATES, ids=ascii)
def test_half_a_character_in_any_field_does_not_get_out_either(place, text):
    body = render_card(with_value(place, f"--{text}>"))
    assert_contained(body)
    assert parse_mark(body) == with_value(place, "--?>")


@pytest.mark.parametrize("text", [*BREAKERS, *SURROGATES], ids=ascii)
def test_no_word_of_an_operators_gets_out_of_the_html_comment(text):
    for value in (text, text * 3, f"-{text}-"):
        check_revoke(Revocation(RunId("a"), value, value, force=True))


@fuzzed
@given(st.sampled_from(PLACES), WILD.filter(bool))
def test_a_card_that_a_stranger_wrote_is_contained_once_we_write_it(place, text):
    """The stranger need not escape what we do: only white space and the end must not be there."""
    raw = (
        "".join(char for char in text if "!" <= char <= "~").replace("-->", "").replace("--!>", "")
    )
    name = "x" if place == "extra" else place
    mark = check_body(f"<!-- claim run=a ttl=9s outcome=failed {name}={raw} -->")
    if isinstance(mark, Card):
        assert_contained(render_card(mark))


@pytest.mark.parametrize("ending", ["-->", "--!>"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_whose_comment_a_browser_ends_inside_a_value_is_none(kind, ending):
    mark = parse_mark(f"<!-- {kind} run=a ttl=9s x=y{ending}<script>alert(1)</script> -->")
    assert isinstance(mark, UnknownMark)


# What people are told


@pytest.mark.parametrize(
    "fields",
    [
        "run=a ttl=9s v=%1B[31m",
        "run=a ttl=9s v=%0A%0D",
        "run=a ttl=9s v=%E2%80%AE",
        "run=%1B[31m ttl=9s",
        "run=a ttl=%1B[31m",
        "run=a ttl=9s state=%1B[31m",
        "run=a ttl=9s outcome=%1B[31m",
        "run=a ttl=9s state=held prev=%1B[31m",
        *(
            f"run=a ttl=9s {key}={'x' * 9000}"
            for key in ("v", "state", "outcome", "ttl_", "prev", "beats")
        ),
    ],
    ids=lambda fields: fields[:40],
)
def test_why_a_mark_is_left_alone_is_fit_for_a_terminal(fields):
    """Anybody may post a comment, and `dibs fsck` prints the reason."""
    check_body(f"<!-- claim {fields} -->")


@fuzzed
@given(RUNS, st.text(st.characters(codec="utf-8"), max_size=9))
def test_reading_does_not_depend_on_what_was_read_before(run, text):
    body = f"<!-- claim run={run} ttl=9s x={_quoted(text)} -->"
    first = parse_mark(body)
    parse_mark(f"<!-- revoke run={run} by={_quoted(text)} -->")
    assert parse_mark(body) == first
    assert isinstance(first, Card)
    assert not isinstance(first, RevokeMark)
