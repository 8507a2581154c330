"""What a large or hostile input costs: about as much more as it is longer, never the square of it.

Costs are the thread's own CPU time, and only compared with each other in one run: sixteen times the
length may cost up to five times sixteen. The square of it would be two hundred and fifty-six.
"""

import contextlib
import time

import pytest

from dibs.core.card import Card, UnknownMark, parse_mark, render_card, render_revoke
from dibs.core.durations import parse_duration, parse_instant
from dibs.core.errors import BadConfiguration, BadReference
from dibs.core.ids import HolderId, RunId
from dibs.core.lease import Revocation
from dibs.core.marker import LONGEST_LINE
from dibs.core.references import parse_reference
from dibs.settings import load as config

from .properties import assert_contained, check_body, check_document, check_file, check_reference

pytestmark = pytest.mark.long

MEGABYTE = 1_000_000
TIMES = 16
SLACK = 5  # a large input also leaves the processor's caches


def cost(function, *arguments):
    """The least of a few: noise only ever adds."""
    least = None
    for _ in range(5):
        before = time.thread_time_ns()
        function(*arguments)
        spent = time.thread_time_ns() - before
        least = spent if least is None else min(least, spent)
    return max(least, 20_000)  # below that, the clock's grain and the call itself are measured


def assert_about_linear(function, make, length):
    """Measured again while it is too much: a busy machine is not always busy, a square is."""
    short, long = cost(function, make(length // TIMES)), cost(function, make(length))
    for _ in range(10):
        if long <= short * TIMES * SLACK:
            return
        long = min(long, cost(function, make(length)))
    raise AssertionError(f"{long / short:.0f} times the cost for {TIMES} times")


def quietly(read, *errors):
    """Being refused is as good as being read, as long as it does not take longer."""

    def tried(text):
        with contextlib.suppress(*errors):
            read(text)

    return tried


def filled(opening, piece, closing=""):
    """Texts of any length: an opening, as many pieces as fit, a closing."""

    def make(length):
        count = max(1, (length - len(opening) - len(closing)) // len(piece))
        return opening + piece * count + closing

    return make


# Cards

BODIES = {
    "words": filled("", "words and more words "),
    "markup": filled("", "<div onload=alert(1)>"),
    "nested comments": filled("", "<!--"),
    "nested openings": filled("", "<!-- claim "),
    "ends": filled("<!-- claim ", "-->"),
    "spaces": filled("<!-- claim ", " "),
    "keys without end": filled("<!-- claim ", "a="),
    "fields without end": filled("<!-- claim", " a=1"),
    "fields": filled("<!-- claim run=a ttl=9s", " a=1", " -->"),
    "per cent signs": filled("<!-- claim run=", "%"),
    "one value": filled("<!-- claim run=a ttl=9s k=", "x", " -->"),
    "one escaped value": filled("<!-- claim run=a ttl=9s k=", "%F0%9F%A6%84", " -->"),
    "a wrong escape at the end": filled("<!-- claim run=a ttl=9s k=", "%41", "%FF -->"),
    "dashes": filled("<!-- claim run=a ttl=9s k=", "-", " -->"),
    "dashes and no end": filled("<!-- claim run=a ttl=9s k=", "--!", " -->"),
    "a ttl of spaces": filled("<!-- claim run=a ttl=x", "%20", "x -->"),
    "a ttl of digits": filled("<!-- claim run=a ttl=", "1", " -->"),
    "a ttl of parts": filled("<!-- claim run=a ttl=", "1s", " -->"),
    "a state": filled("<!-- claim run=a ttl=9s state=", "held", " -->"),
    "a count": filled("<!-- claim run=a ttl=9s beats=", "9", " -->"),
    "a prev": filled("<!-- claim run=a ttl=9s state=held prev=", "2026-05-01T", " -->"),
    "a reason": filled("<!-- revoke run=a reason=", "x", " -->"),
    "null characters": filled("<!-- claim run=a ttl=9s ", "\0"),
    "halves of characters": filled("<!-- claim run=a ttl=9s ", "\ud800"),
    "direction marks": filled("<!-- claim run=a ttl=9s ", "\u202e"),
    "lines after a card": filled("<!-- claim run=a ttl=9s -->", "\n<!-- claim run=b ttl=9s -->"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_megabyte_of_anything_is_read_or_left_alone(name):
    check_body(BODIES[name](MEGABYTE))


@pytest.mark.parametrize("name", BODIES)
def test_reading_a_body_costs_about_as_much_more_as_it_is_longer(name):
    assert_about_linear(parse_mark, BODIES[name], MEGABYTE)


@pytest.mark.parametrize("name", BODIES)
def test_reading_the_longest_line_costs_about_as_much_more_as_it_is_longer(name):
    assert_about_linear(parse_mark, BODIES[name], LONGEST_LINE)


def test_of_a_body_no_more_is_looked_at_than_the_longest_line():
    """Counted, not timed: a text that tells how much of it was taken."""

    class Told(str):
        __slots__ = ("taken",)

        def __getitem__(self, key):
            found = super().__getitem__(key)
            self.taken = len(found)
            return found

    body = Told("<!-- claim " + "k=v " * (MEGABYTE // 4))
    assert isinstance(parse_mark(body), UnknownMark)
    assert body.taken <= LONGEST_LINE + 1


@pytest.mark.parametrize("text", ["x", "-", "-->", "🦄", "\0", "\ud800", "%", "\n"], ids=ascii)
def test_writing_a_megabyte_is_contained_and_costs_about_as_much_more_as_it_is_longer(text):
    def card(length):
        return Card(RunId("a"), parse_duration("9s"), holder=HolderId(text * length))

    def revoke(length):
        return Revocation(RunId("a"), text * length, text * length)

    assert_contained(render_card(card(MEGABYTE // len(text))))
    assert_contained(render_revoke(revoke(MEGABYTE // len(text))))
    assert_about_linear(render_card, card, MEGABYTE // 10)
    assert_about_linear(render_revoke, revoke, MEGABYTE // 10)


# Durations and instants

SPANS = {
    "spaces": filled("x", " ", "x"),
    "spaces between": filled("1s", " ", "\t1s"),
    "digits": filled("", "1"),
    "parts": filled("", "1s"),
    "parts and a flaw": filled("", "1s", "!"),
    "fractions": filled("1.", "1", "s"),
    "letters": filled("", "İ"),
}


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("length", [16_000, MEGABYTE])
def test_reading_a_duration_costs_about_as_much_more_as_it_is_longer(name, length):
    assert_about_linear(quietly(parse_duration, ValueError), SPANS[name], length)


@pytest.mark.parametrize("piece", ["2", "2026-05-01T", " ", "\ud800"], ids=ascii)
def test_reading_an_instant_costs_about_as_much_more_as_it_is_longer(piece):
    assert_about_linear(quietly(parse_instant, ValueError), filled("", piece), MEGABYTE)


# References

TEXTS = {
    "digits": filled("", "1"),
    "spaces": filled("x", " ", "x"),
    "spaces around": filled("", " ", "1"),
    "slashes": filled("", "/"),
    "segments": filled("", "a/", "#1"),
    "dots": filled("", "../", "#1"),
    "an address": filled("https://h/", "a/", "issues/1"),
    "kinds": filled("https://h/a/b", "/issues/1", " x"),
    "keys": filled("https://h", "/browse/A-1", " x"),
    "a host": filled("https://", "h", "/a/b/issues/1"),
    "a tail": filled("https://h/a/b/issues/1?", "x"),
    "dashes": filled("A", "-"),
    "halves of characters": filled("#", "\ud800"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_megabyte_that_should_be_a_reference_costs_about_as_much_more_as_it_is_longer(name):
    make = TEXTS[name]
    check_reference(make(MEGABYTE))
    assert_about_linear(quietly(parse_reference, BadReference), make, MEGABYTE)


@pytest.mark.parametrize("name", TEXTS)
def test_a_megabyte_costs_no_more_than_the_longest_reference_and_a_look_at_it(name):
    """Within the longest reference some are read in more than their length; beyond it none is."""
    read, make = quietly(parse_reference, BadReference), TEXTS[name]
    look = cost(str.strip, " " * MEGABYTE + "x" + " " * MEGABYTE)
    worst = max(cost(read, TEXTS[each](2000)) for each in TEXTS)
    assert cost(read, make(MEGABYTE)) <= (worst + look) * SLACK


# Configuration

LENGTH = 200_000
FILES = {
    "a comment": filled("#", "x"),
    "comments": filled("", "# x\n"),
    "empty lines": filled("", "\n"),
    "a text": filled("tracker = 'sqlite:", "x", "'"),
    "a text of lines": filled("tracker = '''", "x\n", "'''"),
    "escapes": filled('tracker = "', "\\u00e9", '"'),
    "a text without end": filled("tracker = '", "x"),
    "lines without end": filled("tracker = '''", "x\n"),
    "a duration of digits": filled("ttl = '", "1", "'"),
    "a duration of parts": filled("ttl = '", "1s", "'"),
    "a duration of spaces": filled("ttl = '1s", " ", "x'"),
    "a duration of spaces between": filled('ttl = "1s', " ", '\\t1s"'),
    "a duration of spaces and no end": filled("ttl = '", " ", "x'"),
    "a key": filled("", "k", " = 1"),
    "a key like another": filled("", "tracker", " = 1"),
    "a name": filled("[[stage]]\nname = '", "n", "'"),
    "blockers": filled("labels.blockers = [", "'x',", "]"),
    "priorities": filled("labels.priorities = [", "'x',", "]"),
    "names of secrets": filled("[[stage]]\nname = 'ready'\npass_env = [", "'X',", "]"),
    "a preset": filled("preset = '", "stages", "'"),
    "a command": filled("[[stage]]\nname = 'ready'\nrun = '", "x", "'"),
    "a folder": filled("runs = '", "x/", "'"),
    "spaces": filled("", " ", "x"),
    "brackets": filled("", "["),
    "quotes": filled("", "'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_megabyte_of_configuration_is_settings_or_refused(name, tmp_path):
    check_file(tmp_path / "dibs.toml", FILES[name](MEGABYTE).encode())


@pytest.mark.parametrize("name", FILES)
def test_reading_a_file_costs_about_as_much_more_as_it_is_longer(name, tmp_path):
    path = tmp_path / "dibs.toml"

    def read(text):
        path.write_text(text, "utf-8")
        config.load(path)

    assert_about_linear(quietly(read, BadConfiguration), FILES[name], LENGTH)


@pytest.mark.parametrize("depth", [10, 1000, 100_000])
def test_a_document_however_deep_is_refused(depth, tmp_path):
    lists, tables = ["x"], {"x": 1}
    for _ in range(depth):
        lists, tables = [lists], {"x": tables}
    for key in ("ttl", "labels", "worker", "stage"):
        for value in (lists, tables):
            assert check_document({key: value}, tmp_path) is None
    for text in ("stage = " + "[" * depth, "labels = " + "{x=" * depth):
        assert check_file(tmp_path / "dibs.toml", text.encode()) is None
