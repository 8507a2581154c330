"""Where the inputs come from: hostile text, valid values, and valid values that were damaged.

Random text alone is refused at the first character; what finds mistakes is something right with one
thing wrong. Knows what may be written, not what must hold: that is `properties`.
"""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dibs.core.card import Card, CardState, render_card, render_revoke, render_shown
from dibs.core.ids import HolderId, RunId, StageName, server_time
from dibs.core.lease import Ending, Outcome, Revocation

# Without a deadline: the machine is noisy, and a slow example is not a wrong one.
fuzzed = settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Text

BREAKERS = (
    *("-->", "--!>", "<!--", "<!-->", "<!--->", "--", "---", "-- >", "->", "]]>", "<![CDATA["),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</p>", "<?xml", "<!DOCTYPE x>"),
    *("&#45;&#45;&gt;", "&lt;", "&amp;", "&", "%2D%2D>", "%", "%2", "%zz", "%00", "%FF", "+"),
    *(
        "<!-- claim run=b ttl=1s -->",
        "<!-- claim run=<!-- claim run=a -->",
        "<!-- revoke run=a -->",
    ),
    *("\n", "\r\n", "\r", "\t", "\v", "\f", "\x00", "\x1b[31m", "\x7f", "\x85", "\xa0", "\xad"),
    *("\u2028", "\u2029", "\u200b", "\u200d", "\u202e", "\u2066", "\u2069", "\ufeff", "\ufffe"),
    *("\u0300", "\u0130", "\u00df", "\u0660", "\u00b2", "\U000e0041", "\U0001f984", "é", "ﬁ"),
    *(
        "@ann",
        "#1",
        "`",
        "**",
        "[x](javascript:y)",
        "|",
        "\\",
        "=",
        " ",
        '"',
        "'",
        ";",
        "v=1",
        "v=2",
    ),
)
SURROGATES = ("\ud800", "\udfff", "\udc80")
PIECE = st.one_of(st.sampled_from(BREAKERS), st.characters(codec="utf-8"))
WILD = st.lists(PIECE, max_size=20).map("".join)
"""Anything that can be written down."""
BROKEN = st.lists(st.one_of(PIECE, st.sampled_from(SURROGATES)), max_size=20).map("".join)
"""The same, with halves of characters, as a file name or a foreign program may hold them."""


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[str]) -> str:
    """A right text with one to three things wrong with it."""
    text = draw(whole)
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from(_DAMAGES))(draw, text)
    return text


def _span(draw: st.DrawFn, text: str) -> tuple[int, int]:
    start = draw(st.integers(0, len(text)))
    return start, min(len(text), start + draw(st.integers(0, 12)))


def _cut(draw: st.DrawFn, text: str) -> str:
    start, end = _span(draw, text)
    return text[:start] + text[end:]


def _insert(draw: st.DrawFn, text: str) -> str:
    start, _ = _span(draw, text)
    return text[:start] + draw(PIECE) + text[start:]


def _overwrite(draw: st.DrawFn, text: str) -> str:
    start, end = _span(draw, text)
    return text[:start] + draw(st.one_of(PIECE, st.sampled_from(SURROGATES))) + text[end:]


def _repeat(draw: st.DrawFn, text: str) -> str:
    start, end = _span(draw, text)
    return text[:end] + text[start:end] * draw(st.integers(1, 3)) + text[end:]


def _swap(draw: st.DrawFn, text: str) -> str:
    start, end = _span(draw, text)
    return text[:start] + text[start:end][::-1] + text[end:]


def _fold_case(draw: st.DrawFn, text: str) -> str:
    start, end = _span(draw, text)
    return text[:start] + text[start:end].swapcase() + text[end:]


_DAMAGES: tuple[Callable[[st.DrawFn, str], str], ...] = (
    _cut,
    _insert,
    _overwrite,
    _repeat,
    _swap,
    _fold_case,
)


# Cards

RUNS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", fullmatch=True).map(RunId)
SPANS = st.one_of(
    st.integers(0, 3650 * 86_400_000_000).map(lambda micro: timedelta(microseconds=micro)),
    st.sampled_from([timedelta(), timedelta(microseconds=1), timedelta(days=3650)]),
)
INSTANTS = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
).map(server_time)
UNKNOWN_KEYS = st.from_regex(r"x[a-z0-9_]{0,31}", fullmatch=True)


@st.composite
def cards(draw: st.DrawFn, values: st.SearchStrategy[str] = WILD) -> Card:
    """A card that is valid, whatever its values say."""
    state = draw(st.sampled_from(CardState))
    ending = st.builds(
        Ending,
        st.sampled_from(Outcome),
        st.none() | values.filter(bool).map(StageName),
        values,
    )
    return Card(
        run=draw(RUNS),
        ttl=draw(SPANS),
        state=state,
        holder=HolderId(draw(values)),
        stage=StageName(draw(values)),
        prev=None if state is CardState.BID else draw(INSTANTS),
        beats=draw(st.integers(0, 999_999_999)),
        ending=draw(st.none() | ending),
        shown=state is CardState.RELEASED and draw(st.booleans()),
        floor=draw(st.integers(0, 2**53 - 1)),
        fence=draw(st.integers(0, 2**53 - 1)),
        extra=tuple(draw(st.dictionaries(UNKNOWN_KEYS, values, max_size=3)).items()),
    )


def revocations(values: st.SearchStrategy[str] = WILD) -> st.SearchStrategy[Revocation]:
    return st.builds(Revocation, RUNS, values, values, st.booleans())


TAME = st.text("abcXYZ019-._ ", max_size=12)
BODIES = st.one_of(
    cards(TAME).map(render_card), revocations(TAME).map(render_revoke), RUNS.map(render_shown)
)

FIELDS = st.lists(
    st.one_of(
        st.sampled_from(
            (
                *("run=a", "run=b", "ttl=9s", "ttl=1.5s", "v=1", "v=2", "holder=x", "stage=y"),
                *("state=bid", "state=held", "state=released", "state=conceded", "state="),
                *("prev=2026-05-01T19:52:33Z", "prev=", "prev=0001-01-01T00:00:00%2B14:00"),
                *("beats=3", "beats=-1", "beats=99999999999999999999", "outcome=advanced"),
                *("outcome=", "next=z", "note=n", "by=op", "reason=r", "force=1", "shown=1"),
                *("shown=", "urgent=", "k=%", "sig=", "sig=k:0", f"sig=k:{'0' * 64}"),
            )
        ),
        st.tuples(
            st.sampled_from(("ttl", "v", "state", "prev", "beats", "outcome", "k", "holder")),
            st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
        ).map("=".join),
    ),
    max_size=8,
).map(" ".join)
"""Fields that are all of a known kind, in any order, missing, doubled or with a foreign value."""


# References

NUMBERS = st.integers(1, 10**18 - 1).map(str)
KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,19}-[1-9][0-9]{0,11}", fullmatch=True)
REPOS = st.lists(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True), min_size=2, max_size=6
).map("/".join)
HOSTS = st.sampled_from(
    ("github.com", "git.example:3000", "user@git.example", "[::1]", "é.example")
)
ADDRESSES = st.builds(
    "{}://{}/{}{}/{}/{}{}".format,
    st.sampled_from(("http", "https", "HTTPS", "ftp", "javascript")),
    HOSTS,
    REPOS,
    st.sampled_from(("", "/-", "/-/-")),
    st.sampled_from(("issues", "pull", "pulls", "merge_requests", "work_items", "browse", "issue")),
    st.one_of(NUMBERS, KEYS),
    st.sampled_from(("", "/", "?x=1", "#note_1", "/files", " and more")),
)
REFERENCES = st.one_of(
    NUMBERS, NUMBERS.map("#{}".format), KEYS, ADDRESSES, st.builds("{}#{}".format, REPOS, NUMBERS)
)


# Configuration

HUGE = st.sampled_from((2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**4000))
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-3, 10),
    HUGE,
    st.sampled_from((0.0, 1.5, -0.0, math.inf, -math.inf, math.nan, 1e308)),
    BROKEN,
    st.sampled_from(
        (
            *(
                "",
                " ",
                "\n",
                "10m",
                "0s",
                "1s\n",
                "3650d",
                "3651d",
                "1ms",
                " 1h 30m ",
                "-5s",
                "1s\t2s",
            ),
            *("999999999d999999999d", "1 0m", "ready", "review", "done", "one", "two", "one\n"),
            *("approval", "none", "agent", "stages", "claimed", "CLAIMED", "a,b", " padded "),
            *("module:function", ":", "a:", ":b", "sqlite:", "a\x00b", "../..", "/", "x" * 200),
        )
    ),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from((date(1, 1, 1), date(9999, 12, 31), time(23, 59, 59, 999999))),
)
WORDS = (
    *(
        "tracker",
        "leases",
        "backlog",
        "preset",
        "ttl",
        "max_ttl",
        "grace",
        "settle",
        "person_ttl",
        "runs",
    ),
    *("repos", "worktree", "worktree_base", "bundle"),
    *("hook", "strict", "follows", "back", "authored", "pull-request"),
    *("hold", "loop", "slots", "wait", "every", "irreversible"),
    *("people", "assignees", "pulls", "markers", "fleet", "marker_ttl", "text", "comments"),
    *("delegates", "approval", "approvers", "needed", "four_eyes", "relays"),
    *("gate_timeout", "gate_expires", "replans"),
    *("github", "trusted", "api", "graphql", "machines", "pace"),
    *(
        "journal",
        "share",
        "labels",
        "worker",
        "stage",
        "claimed",
        "paused",
        "parked",
        "blockers",
        "jobs",
    ),
    *("priorities", "poll", "sweep", "stop_grace", "name", "label", "working_label", "run", "next"),
    *("python", "gate", "gate_label", "closes", "renew", "margin", "max_hold", "timeout", "wip"),
    *(
        "attempts",
        "breaker",
        "backoff",
        "backoff_max",
        "pass_env",
        "env",
        "run_as",
        "output_max",
        "trakcer",
        "Stage",
        "stages",
        "tool",
        "",
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), BROKEN), inner, max_size=4),
    ),
    max_leaves=12,
)
"""Whatever a TOML document can hold, and somewhat more."""
DOCUMENTS = st.dictionaries(st.one_of(st.sampled_from(WORDS), BROKEN), VALUES, max_size=5)
