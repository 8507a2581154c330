"""What GitHub really answers, in a form that anybody may read: `python -m dibs_lab.contract`.

The kit runs the probes of `dibs doctor --live` with a token of yours, keeps every exchange, takes
out what is yours or other people's, and compares what is left with the fake's answers to the same
requests. A transcript that is sent to the project is replayed in its tests.

Redaction keeps what is on a list and replaces the rest, so no name, address, id or text of an
answer stays. Two transcripts are compared by their shapes: for each request the statuses, and the
fields with their types.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from dibs.adapters.github.auth import Answered, api_of, credential_of
from dibs.adapters.github.client import Transport
from dibs.adapters.github.connections import REPLY_S, Wire
from dibs.adapters.github.ledger import FileLedger, ledger_path
from dibs.adapters.github.probing import Probes
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import SystemClock
from dibs.ports.tracker import Lag, Probed
from dibs_lab.fakehub import FakeHub, Limits, Permission

_KEPT_TEXTS = frozenset(
    {"__typename", "author_association", "authorAssociation", "event", "permission"}
    | {"role_name", "state", "state_reason", "type", "viewerPermission"}
)
"""Keys whose texts are words of GitHub's own."""
_KEPT_NUMBERS = frozenset({"comments", "cost", "limit", "nodeCount", "totalCount"})
_KEPT_HEADERS = frozenset(
    {"content-type", "retry-after", "x-accepted-github-permissions", "x-accepted-oauth-scopes"}
    | {"x-github-api-version-selected", "x-ratelimit-limit", "x-ratelimit-resource"}
)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)")
_ADDRESS = re.compile(r"[a-z][a-z+.-]*://", re.IGNORECASE)
_LEAK = re.compile(
    r"\b(gh[a-z]_\w{8,}|github_pat_\w{8,}|[\w.+-]+@[\w-]+(\.[\w-]+)+)|-----BEGIN", re.IGNORECASE
)
"""A token, an e-mail address or a key: none may be in a transcript."""
_PLACE, _ALIAS = re.compile(r"^([a-z]{1,2})\d+$"), r"\1#"
_OPERATION = re.compile(r"\b(query|mutation)\s+(\w+)")
_SECRET_PATHS = ("/app", "/installation")


class Exchange(Struct, frozen=True):
    """A request and its answer, without anything of the person's."""

    asked: str
    """`GET /repos/OWNER/REPO/issues/N`, or `query ProbeLabels`."""
    status: int
    headers: dict[str, str]
    body: Any = None
    document: str = ""
    """A hash of the GraphQL document: another version of dibs asks for other fields."""


class Transcript(Struct, frozen=True):
    source: str
    """The kind of server that answered."""
    note: str
    permission: str
    """That of the token's account in the repository."""
    exchanges: list[Exchange]
    """Equal ones once."""
    verdicts: dict[str, str]


class Recording(Struct):
    """Everything that one run sent and got, as it was on the wire."""

    exchanges: list[tuple[str, str, bytes, Answered]] = []


class RecordingWire(Wire):
    """A wire that keeps what passes, but for an App's own requests, whose answers are tokens."""

    recording: Recording

    def send(
        self,
        verb: str,
        address: str,
        bearer: str,
        *,
        content: bytes | None = None,
        etag: str = "",
    ) -> Answered:
        answered = super().send(verb, address, bearer, content=content, etag=etag)
        path = address.removeprefix(self._api.rest)
        if not path.startswith(_SECRET_PATHS):
            self.recording.exchanges.append((verb, path, content or b"", answered))
        return answered


# Recording


def record(
    environment: Mapping[str, str],
    repository: str,
    *,
    note: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> Transcript:
    """Run the probes on the repository and return the redacted transcript.

    `tell` hears what will be written, and each verdict; it is told names, the transcript is not.
    """
    clock = SystemClock()
    api = api_of(environment)
    wire = RecordingWire(api, clock, reply_s=REPLY_S)
    wire.recording = recording = Recording()
    credential = credential_of(environment, clock, api, repository=repository)
    ledger = FileLedger(ledger_path(environment, credential.identity, api.rest), clock)
    transport = Transport(api, credential, ledger, clock, wire=wire)
    verdicts: dict[str, str] = {}
    with closing(transport):
        probes = Probes(GithubTracker(transport, repository).door)
        tell(probes.plan)
        with closing(probes.run()) as running:
            for said in running:
                match said:
                    case Probed():
                        verdicts[said.probe] = said.verdict.value
                        tell(f"{said.verdict.value:<8} {said.probe}: {said.text}")
                    case Lag():
                        tell(f"{'lag':<8} over {said.over}: {max(said.seconds):.2f} s")
    names = Names(repository, probes.login, str(api.rest))
    exchanges = [names.redacted(*exchange) for exchange in recording.exchanges]
    return Transcript(
        _source(api.host), note, _permission_in(exchanges), _different(exchanges), verdicts
    )


def _source(host: str) -> str:
    """The kind of server; the name of an Enterprise server is its owner's."""
    if host.partition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
        return "a server of this machine"
    return "GitHub" if host == "api.github.com" else "GitHub Enterprise"


def _permission_in(exchanges: Sequence[Exchange]) -> str:
    asked = "GET /repos/OWNER/REPO/collaborators/LOGIN/permission"
    found = [one.body for one in exchanges if one.asked == asked and isinstance(one.body, dict)]
    return str(found[0].get("permission", "")) if found else ""


class Names(Struct, frozen=True):
    """The names that a run knows, to take them out of paths and messages."""

    repository: str
    login: str
    api: str

    def redacted(self, verb: str, path: str, content: bytes, answered: Answered) -> Exchange:
        try:
            body: Any = json.loads(answered.body) if answered.body else None
        except ValueError:
            body = "text"
        headers = {name: text for name, text in answered.headers.items() if name in _KEPT_HEADERS}
        asked, document = self._asked(verb, path), ""
        if asked.endswith("/graphql"):
            text = json.loads(content)["query"]
            document = sha256(text.encode()).hexdigest()[:12]
            asked = " ".join(found.groups()) if (found := _OPERATION.search(text)) else "query"
        return Exchange(asked, answered.status, headers, _kept(body), document)

    def _asked(self, verb: str, path: str) -> str:
        plain = path.partition("?")[0]
        plain = re.sub(rf"^/repos/{re.escape(self.repository)}(?=/|$)", "/repos/OWNER/REPO", plain)
        plain = re.sub(r"^/repositories/\d+", "/repos/OWNER/REPO", plain)
        if self.login:
            login, steps = self.login.casefold(), plain.split("/")
            plain = "/".join(
                "LOGIN" if unquote(step).casefold() == login else step for step in steps
            )
        return f"{verb} {re.sub(r'/[0-9]+(?=/|$)', '/N', plain)}"


def _kept(value: Any, key: str = "") -> Any:
    """The value with its names, texts, times and numbers replaced, but for those on the lists.

    Of equal entries of a list, and of equal fields that differ by a number alone, one is kept.
    """
    match value:
        case dict():
            kept: dict[str, Any] = {}
            for name, inner in value.items():
                one, alike = _kept(inner, name), _PLACE.sub(_ALIAS, name)
                kept[name if kept.get(alike, one) != one else alike] = one
            return kept
        case list():
            return _different([_kept(inner, key) for inner in value])
        case str():
            return _kept_text(value, key)
        case bool() | None:
            return value
        case _:
            return value if key in _KEPT_NUMBERS else type(value)(1)


def _different(entries: list[Any]) -> list[Any]:
    """The entries, equal ones once."""
    return [one for place, one in enumerate(entries) if one not in entries[:place]]


def _kept_text(text: str, key: str) -> str:
    if key in _KEPT_TEXTS or not text:
        return text
    if key == "path":
        return _PLACE.sub(_ALIAS, text)
    if _INSTANT.fullmatch(text):
        return "2000-01-01T00:00:00Z"
    return "https://example.invalid/" if _ADDRESS.match(text) else "text"


def written(transcript: Transcript) -> str:
    """The transcript as JSON. Raises ValueError if anything in it looks like a secret."""
    text = json.dumps(msgspec.to_builtins(transcript), indent=1, ensure_ascii=True) + "\n"
    if (leak := _LEAK.search(text)) is not None:
        raise ValueError(f"the transcript is not written: {leak[0][:6]}... looks like a secret")
    return text


def read(path: Path) -> Transcript:
    return msgspec.json.decode(path.read_bytes(), type=Transcript)


# Comparing


class _Shape(Struct):
    """The answers to one kind of request: their statuses, and the fields with their types."""

    statuses: set[int] = set()
    documents: set[str] = set()
    fields: defaultdict[str, set[str]] = msgspec.field(default_factory=lambda: defaultdict(set))


def _shapes(transcript: Transcript) -> dict[str, _Shape]:
    shapes: dict[str, _Shape] = defaultdict(_Shape)
    for exchange in transcript.exchanges:
        shape = shapes[exchange.asked]
        shape.statuses.add(exchange.status)
        shape.documents.add(exchange.document)
        if exchange.status < 400:  # GitHub writes errors in many forms
            for path, kind in _fields(exchange.body):
                shape.fields[path].add(kind)
    return shapes


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    yield path, "null" if value is None else type(value).__name__
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _fields(inner, f"{path}.{_PLACE.sub(_ALIAS, name)}")
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, f"{path}[]")


def differences(real: Transcript, fake: Transcript) -> list[str]:
    """Where the fake answers otherwise than GitHub.

    What the fake leaves out is no difference, nor what a GraphQL document did not ask GitHub for.
    """
    found, theirs, ours = [], _shapes(real), _shapes(fake)
    for asked in sorted(theirs.keys() | ours.keys()):
        if asked not in theirs or asked not in ours:
            where = "GitHub" if asked in theirs else "the fake"
            found.append(f"{asked}: only {where} was asked")
            continue
        there, here = theirs[asked], ours[asked]
        if there.statuses != here.statuses:
            text = f"GitHub answers {sorted(there.statuses)}, the fake {sorted(here.statuses)}"
            found.append(f"{asked}: {text}")
        for path, kinds in here.fields.items():
            seen = there.fields.get(path)
            parent = path.rpartition("[]")[0] if path.endswith("[]") else path.rpartition(".")[0]
            same_question = there.documents == here.documents
            if seen is None and same_question and "dict" in there.fields.get(parent, ()):
                found.append(f"{asked}: the fake answers {path}, and GitHub does not")
            elif seen is not None and not (seen | {"null"}) >= kinds and seen != {"null"}:
                found.append(f"{asked}: {path} is {sorted(seen)}, and the fake's {sorted(kinds)}")
    return found


def replayed(real: Transcript) -> Transcript:
    """The same probes on a fake, with an account of the same permission."""
    with FakeHub(limits=Limits.off()) as hub:
        may = Permission[real.permission.upper()] if real.permission else Permission.WRITE
        token = hub.user("me", {"me/scratch": may})
        environment = {"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": token, "DIBS_STATE": os.devnull}
        return record(environment, "me/scratch")
