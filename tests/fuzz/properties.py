"""What must hold for every input whatsoever: said once, for Hypothesis and for the fuzzer.

Each function takes one input, reads it as the program would, and fails by assertion. Only the
declared errors are caught, so anything else that is raised fails by itself.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dibs.core.card import (
    Card,
    CardState,
    Mark,
    RevokeMark,
    ShownMark,
    UnknownMark,
    parse_mark,
    render_card,
    render_revoke,
    render_shown,
)
from dibs.core.errors import BadConfiguration, BadReference, Untrusted
from dibs.core.ids import IssueRef, RunId
from dibs.core.lease import Revocation
from dibs.core.marker import LONGEST_LINE
from dibs.core.pipeline import Command, PythonCallable
from dibs.core.references import parse_reference
from dibs.core.signing import Signed, parse_keyring, sign, verify
from dibs.settings import load as config
from dibs.settings.load import Settings

from .grammar import spelled

KINDS = ("claim", "revoke", "shown")
OPENINGS = tuple(f"<!-- {kind} " for kind in KINDS)
CARD_KEYS = frozenset(
    (
        *("run", "ttl", "v", "holder", "stage", "state", "prev", "beats"),
        *("outcome", "next", "note", "shown", "floor", "fence"),
    )
)
REVOKE_KEYS = frozenset(("run", "v", "by", "reason", "force"))
SHOWN_KEYS = frozenset(("run", "v", "holder", "outcome", "note"))
TEN_YEARS = timedelta(days=3650)
_ISSUE, _RING = IssueRef("acme/shop", "7"), parse_keyring("k:a key that is long enough")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_REFERENCE_KEY = re.compile(r"[1-9][0-9]{0,17}|[A-Z][A-Z0-9_]{0,19}-[1-9][0-9]{0,11}", re.ASCII)


# Cards


def check_body(body: str) -> Mark | None:
    """A comment of anybody's: read without raising, and safe to write again if it is a mark."""
    mark = parse_mark(body)
    assert (mark is None) == (not body.startswith(OPENINGS))
    match mark:
        case None:
            pass
        case UnknownMark(why):
            assert why
            assert_fit_to_print(why, 300)
        case Card():
            assert_valid_card(mark)
            assert mark.extra == _unknown_pairs(body, CARD_KEYS)
            assert_card_survives(mark)
        case RevokeMark():
            assert _RUN.fullmatch(mark.revocation.run)
            assert mark.extra == _unknown_pairs(body, REVOKE_KEYS)
            check_revoke(mark.revocation)
        case ShownMark():
            assert mark.extra == _unknown_pairs(body, SHOWN_KEYS)
            check_shown(mark.run)
    if isinstance(mark, Card | RevokeMark | ShownMark):
        assert_only_the_line_counts(body, mark)
        assert_can_be_signed(body)
    return mark


def assert_can_be_signed(body: str) -> None:
    """Whatever is read as a mark wants a signature, and with ours it holds."""
    assert verify(body, _ISSUE, _RING) in (Signed.UNSIGNED, Signed.INVALID)
    signed = sign(body, _ISSUE, _RING)
    if signed.index(" -->") + len(" -->") <= LONGEST_LINE:
        assert verify(signed, _ISSUE, _RING) is Signed.VALID
        assert not isinstance(parse_mark(signed), UnknownMark | None)


def assert_valid_card(card: Card) -> None:
    assert _RUN.fullmatch(card.run)
    assert timedelta() <= card.ttl <= TEN_YEARS
    assert (card.prev is None) == (card.state is CardState.BID)
    assert card.state is CardState.RELEASED or not card.shown
    assert 0 <= card.beats <= 999_999_999
    keys = [key for key, _ in card.extra]
    assert len(set(keys)) == len(keys)
    assert all(_KEY.fullmatch(key) and key not in CARD_KEYS for key in keys)


def assert_card_survives(card: Card) -> None:
    """Written and read, a card is what it was."""
    body = render_card(card)
    assert_contained(body)
    read = parse_mark(body)
    if len(body.split("\n", 1)[0]) > LONGEST_LINE:
        # A stranger's line can be full of signs that we escape; written by us it is no card then.
        assert isinstance(read, UnknownMark)
        return
    assert read == card
    assert render_card(read) == body


def check_revoke(revocation: Revocation) -> None:
    """Written and read, a revoke is what it was, but for words too long for a line."""
    body = render_revoke(revocation)
    assert_contained(body)
    read = parse_mark(body)
    assert isinstance(read, RevokeMark)
    found = read.revocation
    assert (found.run, found.force, read.extra) == (revocation.run, revocation.force, ())
    for said, kept in ((revocation.by, found.by), (revocation.reason, found.reason)):
        meant = writable(said)
        assert meant.startswith(kept)
        assert kept == meant or len(said) > 150
    assert render_revoke(found) == body


def check_shown(run: RunId) -> None:
    assert _RUN.fullmatch(run)
    body = render_shown(run)
    assert_contained(body)
    assert parse_mark(body) == ShownMark(run)


def assert_contained(body: str) -> None:
    """The line is one HTML comment, the sentence one line of words and code, and nothing else."""
    lines = body.splitlines()
    assert len(lines) == 2
    line, sentence = lines
    assert line.isascii()
    assert line.isprintable()
    assert re.match(r"<!-- (?:(claim|revoke|shown) run|granter store|(pause|resume) scope)=", line)
    assert line.endswith(" -->")
    assert "--" not in line[4:-3]
    assert not set(line[4:-3]) & set("<>@#`&\"'")
    assert sentence.isprintable()
    assert len(sentence) < 400
    around = re.sub(r"`[^`]*`", "code", sentence)  # nothing in code has an effect
    assert not set(around) & set("`<>@#&[]\\|")
    assert _events(f"{line}\n{around}") == [("comment", line[4:-3]), ("text", f"\n{around}")]


def writable(text: str) -> str:
    """The text as any tracker could store it: a lone surrogate is no character."""
    return text.encode("utf-8", "replace").decode()


def assert_fit_to_print(text: str, longest: int) -> None:
    """Fit for a terminal and a log: one line, no escape sequence, not a flood."""
    assert text.isprintable()
    assert len(text) <= longest


def assert_only_the_line_counts(body: str, mark: Mark) -> None:
    """What stands after the line takes no part: a person's words, another card, a broken one."""
    end = _line_end(body)
    assert end <= LONGEST_LINE
    for after in ("", "\n", "\r\n<!-- claim run=z ttl=9s -->", " --> <script>", "\n" + "x" * 20):
        assert parse_mark(body[:end] + after) == mark
    assert isinstance(parse_mark(body[:end] + "glued"), UnknownMark)


def _line_end(body: str) -> int:
    """Where the HTML comment ends as a browser sees it, not only as Markdown does."""
    found = re.search(r"--!?>", body)
    assert found
    assert found[0] == "-->"
    return found.end()


def _unknown_pairs(body: str, known: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The keys of tomorrow, taken out of the line by other means than the reader's."""
    words = body[: _line_end(body)].split(" ")[2:-1]
    pairs = (word.partition("=") for word in words)
    return tuple((key, unquote(value)) for key, _, value in pairs if key not in known)


class _Page(HTMLParser):
    """What a browser would make of a comment that a tracker shows as it came."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.events: list[tuple[str, str]] = []

    def handle_comment(self, data: str) -> None:
        self.events.append(("comment", data))

    def handle_data(self, data: str) -> None:
        self.events.append(("text", data))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.events.append(("tag", f"{tag} {attrs}"))

    def handle_endtag(self, tag: str) -> None:
        self.events.append(("end", tag))

    def handle_decl(self, decl: str) -> None:
        self.events.append(("declaration", decl))

    def handle_pi(self, data: str) -> None:
        self.events.append(("instruction", data))

    def unknown_decl(self, data: str) -> None:
        self.events.append(("declaration", data))


def _events(body: str) -> list[tuple[str, str]]:
    page = _Page()
    page.feed(body)
    page.close()
    return page.events


# References


def check_reference(text: str, home: str = "acme/shop") -> IssueRef | None:
    """What a person typed: an issue that can be written and read again, or the declared refusal."""
    meant = spelled(text, home)
    if meant is not None and meant.repo.casefold() == home.casefold():
        meant = IssueRef(home, meant.key)  # one repository has one name, whatever its capitals
    try:
        ref = parse_reference(text, default_repo=home)
    except BadReference as refusal:
        assert meant is None
        _assert_fit_reference_refusal(refusal)
        return None
    assert ref == meant
    assert _REFERENCE_KEY.fullmatch(ref.key)
    if ref.repo != home:
        assert_plain_path(ref.repo)
    assert parse_reference(str(ref), default_repo=home) == ref
    assert parse_reference(f"  {text}\n", default_repo=home) == ref
    return ref


def _assert_fit_reference_refusal(refusal: BadReference) -> None:
    assert_fit_to_print(str(refusal), 20_100)  # two thousand characters, each of them escaped
    assert len(refusal.text) <= 2000
    assert "owner/repo#123" in refusal.hint


def assert_plain_path(repo: str) -> None:
    """A repository goes into addresses and commands: no climbing, no option, nothing to quote."""
    parts = repo.split("/")
    assert 2 <= len(parts) <= 6
    for part in parts:
        assert re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}", part)
        assert part not in (".", "..")


# Configuration


def check_document(document: Mapping[str, Any] | None, root: Path) -> Settings | None:
    """A parsed document: settings that hold together, or the declared refusal."""
    try:
        settings = config.from_mapping(document, source="dibs.toml", root=root)
    except BadConfiguration as refusal:
        _assert_fit_refusal(refusal)
        return None
    assert_sound(settings)
    assert config.from_mapping(document, source="dibs.toml", root=root) == settings
    return settings


def check_file(path: Path, content: bytes) -> Settings | None:
    """The bytes of a file, read the way the program reads them."""
    path.write_bytes(content)
    try:
        settings = config.load(path)
    except BadConfiguration as refusal:
        _assert_fit_refusal(refusal)
        return None
    assert_sound(settings)
    return settings


def _assert_fit_refusal(refusal: BadConfiguration) -> None:
    assert_fit_to_print(str(refusal), 1500)
    assert "dibs config validate" in refusal.hint


def assert_sound(settings: Settings) -> None:
    """Settings that exist are right: whatever uses them need not look again."""
    for span in (settings.grace, settings.person_ttl, settings.stop_grace, settings.settle):
        assert span is None or timedelta() <= span <= TEN_YEARS
    assert settings.poll > timedelta()
    assert settings.sweep > timedelta()
    assert settings.person_ttl <= settings.max_ttl
    assert 1 <= settings.jobs <= 2**31
    assert settings.pipeline.stages
    for stage in settings.pipeline.stages:
        assert _NAME.fullmatch(stage.name)
        assert stage.terms.ttl <= settings.max_ttl
        assert 1 <= stage.attempts <= 2**31
        assert stage.wip is None or 1 <= stage.wip <= 2**31
        assert all(settings.pipeline.stage(name) for name in stage.next)
    assert all(hold.slots >= 1 for hold in settings.holds)
    assert all(loop.every > timedelta() for loop in settings.loops)
    for text in _places_and_programs(settings):
        assert "\0" not in text
    try:
        config.as_found(settings)
    except Untrusted as refusal:
        assert_fit_to_print(f"{refusal} {refusal.hint}", 2000)


def _places_and_programs(settings: Settings) -> list[str]:
    """What is handed to the operating system, which takes no null character."""
    found = [settings.tracker, settings.leases, str(settings.runs), str(settings.journal or "")]
    found += [loop.command.line for loop in settings.loops]
    for stage in settings.pipeline.stages:
        found += [stage.label, stage.working_label or "", *stage.entry_labels, *stage.pass_env]
        match stage.handler:
            case Command(line):
                found.append(line)
            case PythonCallable(target):
                found.append(target)
    return found
