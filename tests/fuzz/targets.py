"""What the coverage-guided fuzzer calls: bytes in, nothing out, an assertion where it is wrong.

Plain functions, so that a kept input is replayed by pytest without the fuzzer. Each looks at one
input from several sides, because a fuzzer that must find an opening first finds little else.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from dibs.core.card import Card, CardState
from dibs.core.ids import HolderId, RunId, StageName, server_time
from dibs.core.lease import Ending, Outcome, Revocation

from .properties import (
    assert_card_survives,
    check_body,
    check_file,
    check_reference,
    check_revoke,
    writable,
)

_PREV = server_time(datetime(2026, 5, 1, 12, tzinfo=UTC))


def fuzz_card(data: bytes) -> None:
    """A body as it came, the same text as the fields of a mark, and as a value of every field."""
    text = data.decode("utf-8", "surrogateescape")
    check_body(text)
    for opening in ("<!-- claim run=a ttl=9s ", "<!-- revoke run=a ", "<!-- shown run=a "):
        check_body(f"{opening}{text} -->\nClaimed.")
    said = writable(text)[:200]  # what is longer does not get as far as a card
    value = replace(
        Card(RunId("a"), timedelta(seconds=9), CardState.RELEASED, prev=_PREV),
        holder=HolderId(said),
        stage=StageName(said),
        ending=Ending(Outcome.ADVANCED, StageName(said) if said else None, said),
        extra=(("k", said),),
    )
    assert_card_survives(value)
    check_revoke(Revocation(RunId("a"), text, text, force=True))


def fuzz_reference(data: bytes) -> None:
    """A reference as it came, and the same text as the path of an address."""
    text = data.decode("utf-8", "surrogateescape")
    check_reference(text)
    check_reference(text, home="")
    check_reference(f"https://git.example/{text}")
    check_reference(f"{text}#7")


def fuzz_configuration(data: bytes) -> None:
    """A file as it came, and the same file as part of a pyproject.toml."""
    check_file(_scratch() / "dibs.toml", data)
    check_file(_scratch() / "pyproject.toml", b"[tool.dibs]\n" + data)


@cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dibs-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


TARGETS: dict[str, Callable[[bytes], None]] = {
    "card": fuzz_card,
    "reference": fuzz_reference,
    "configuration": fuzz_configuration,
}
