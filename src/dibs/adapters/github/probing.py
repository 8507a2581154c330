"""Does the real GitHub do what this adapter relies on? The probes of `dibs doctor --live`.

Each probe tries assumptions of docs/internals/github-assumptions.md with the token in use. What
they write is on one issue with a label of its own; both are removed in the end, as far as a token
may: the issue is closed, and the label deleted. A probe whose request fails is `unknown`, and the
next one runs.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from dibs.adapters.github import documents
from dibs.adapters.github.client import Purpose
from dibs.adapters.github.replies import GraphqlReply, Reply, limit_in
from dibs.adapters.github.shapes import RestComment, RestIssue, RestPermission, decode
from dibs.adapters.github.trust import RepositoryDoor
from dibs.core.errors import DibsError, Unavailable, Unconfirmed
from dibs.core.granter import CONTROL_LABEL
from dibs.ports.tracker import Lag, Probed, ProbeVerdict

_log = logging.getLogger("dibs.github.probing")
LABEL = "dibs:scratch"
_TITLE = "A scratch issue of dibs doctor --live"
_BODY = "`dibs doctor --live` tries here what GitHub does. It closes this issue when it is done."
_NO_LABEL = "LA_dibs_has_no_such_label"
_STRANGER, _ACTIONS_BOT = "ghost", "github-actions[bot]"
_LONGEST_LAG_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0
_READ_TOGETHER = 50
_ROUNDS = 4
_ANY = (200, 201, 204, 304, 401, 403, 404, 410, 422)
_REQUESTS = 32


class _Scratch(Struct):
    """The scratch issue, and what was written on it."""

    shape: RestIssue
    comments: list[RestComment] = field(default_factory=list)


class _ReadBack(msgspec.Struct, frozen=True, rename="camel"):
    """A comment as `PROBE_COMMENTS` asks for it."""

    full_database_id: str | int
    body: str


_Probe = Callable[["Probes", _Scratch], Iterator[Probed | Lag]]
_PROBES: dict[str, _Probe] = {}
"""By name, in the order in which they run."""


def _probe(name: str) -> Callable[[_Probe], _Probe]:
    def register(probe: _Probe) -> _Probe:
        _PROBES[name] = probe
        return probe

    return register


def probe_names() -> tuple[str, ...]:
    return tuple(_PROBES)


class Probes:
    """The probes of a repository, with the token that its tracker uses."""

    def __init__(self, door: RepositoryDoor) -> None:
        self._door, self.transport = door, door.transport
        self.login = ""
        """The token's account, once a probe has asked for it."""

    @property
    def plan(self) -> str:
        return (
            f"{self._door.name}: makes one issue with the label {LABEL}, writes {_ROUNDS // 2 + 2} "
            f"comments and {_ROUNDS // 2 + 1} edits there, closes it and deletes the label; about "
            f"{_REQUESTS} requests, more where GitHub lags. Nobody is assigned or mentioned"
        )

    def run(self) -> Generator[Probed | Lag]:
        wanted = {"title": _TITLE, "body": _BODY, "labels": [LABEL]}
        try:
            made = self.rest("POST", "/issues", wanted, ok=(201,))
        except Unconfirmed:
            raise
        except Unavailable as flaw:
            text = f"{flaw}; {self._door.name}: an issue with the label {LABEL} may be open"
            raise Unavailable(text) from flaw
        scratch = _Scratch(decode(made.body, RestIssue))
        try:
            for name, probe in _PROBES.items():
                try:
                    yield from probe(self, scratch)
                except (DibsError, msgspec.ValidationError, LookupError, TypeError) as flaw:
                    yield Probed(name, ProbeVerdict.UNKNOWN, f"could not be tried: {flaw}")
        finally:
            left = self.clean_up(scratch)
            if left:
                _log.warning("%s", left)
        verdict = ProbeVerdict.DIFFERS if left else ProbeVerdict.HOLDS
        yield Probed("scratch", verdict, left or f"{self.ref(scratch)} is closed again")

    def clean_up(self, scratch: _Scratch) -> str:
        """Close the issue and delete the label. Returns what is left, for a person."""
        left = []
        path = f"/issues/{scratch.shape.number}"
        label = f"/labels/{quote(LABEL, safe='')}"
        for what, verb, place, wanted in (
            (f"{self.ref(scratch)} is still open", "PATCH", path, {"state": "closed"}),
            (f"the label {LABEL} is still there", "DELETE", label, None),
        ):
            try:
                self.rest(verb, place, wanted, ok=(200, 204))
            except DibsError as flaw:
                left.append(f"{what}: {flaw}")
        return "; ".join(left)

    def ref(self, scratch: _Scratch) -> str:
        return f"{self._door.name}#{scratch.shape.number}"

    # Asking

    def rest(
        self,
        verb: str,
        path: str,
        wanted: object = None,
        *,
        ok: Sequence[int] = _ANY,
        conditional: bool = False,
    ) -> Reply:
        """Send a request; `path`: below the repository."""
        purpose = Purpose.LOOK if verb == "GET" else Purpose.FINISH
        return self.transport.rest(
            verb,
            f"{self._door.path}{path}",
            purpose=purpose,
            wanted=wanted,
            conditional=conditional,
            ok=ok,
        )

    def graphql(self, document: str, **variables: object) -> GraphqlReply:
        return self.transport.graphql(document, variables, purpose=Purpose.LOOK)

    def about(self, document: str, **variables: object) -> tuple[GraphqlReply, Mapping[str, Any]]:
        """The reply to a query about the repository, and the repository's part of the reply."""
        owner, _, name = self._door.name.partition("/")
        reply = self.graphql(document, owner=owner, name=name, **variables)
        return reply, reply.data.get("repository") or {}

    def listed(self, scratch: _Scratch) -> list[RestComment]:
        """The comments; none while REST does not see the issue."""
        reply = self.rest("GET", f"/issues/{scratch.shape.number}/comments?per_page=100")
        return decode(reply.body, list[RestComment]) if reply.status == 200 else []

    def listed_by_graphql(self, scratch: _Scratch) -> list[_ReadBack]:
        """The comments; none while GraphQL does not see the issue."""
        _, found = self.about(documents.PROBE_COMMENTS, number=scratch.shape.number)
        issue = found.get("issue") or {"comments": {"nodes": []}}
        return msgspec.convert(issue["comments"]["nodes"], list[_ReadBack])

    def rest_shows(self, scratch: _Scratch, body: str) -> bool:
        return any(comment.body == body for comment in self.listed(scratch))

    def graphql_shows(self, scratch: _Scratch, body: str) -> bool:
        return any(comment.body == body for comment in self.listed_by_graphql(scratch))

    def write(self, scratch: _Scratch, body: str, *, edit: bool = False) -> RestComment:
        """Post a comment, or edit the last one."""
        if edit:
            path = f"/issues/comments/{scratch.comments.pop().id}"
            reply = self.rest("PATCH", path, {"body": body}, ok=(200,))
        else:
            path = f"/issues/{scratch.shape.number}/comments"
            reply = self.rest("POST", path, {"body": body}, ok=(201,))
        scratch.comments.append(decode(reply.body, RestComment))
        return scratch.comments[-1]

    def wait_until(self, *shown: Callable[[], bool]) -> list[float | None]:
        """Ask in turns until each question shows a write.

        Returns the seconds until then for each: 0 for the first turn, None after half a minute.
        """
        clock, began, pause_s = self.transport.clock, self.transport.clock.now(), _FIRST_PAUSE_S
        found: list[float | None] = [None] * len(shown)
        first = True
        while clock.now() - began <= _LONGEST_LAG_S:
            for place, shows in enumerate(shown):
                asked = clock.now()
                if found[place] is None and shows():
                    found[place] = 0.0 if first else asked - began
            if None not in found:
                break
            clock.sleep(pause_s)
            pause_s, first = min(2 * pause_s, _LONGEST_PAUSE_S), False
        return found


@_probe("account")
def try_account(probes: Probes, _: _Scratch) -> Iterator[Probed]:
    """Who the token is, and whether programs are seen as assignees."""
    reply = probes.graphql(documents.PROBE_ACCOUNT)
    login = (reply.data.get("viewer") or {}).get("login", "")
    probes.login = login
    if login:
        yield Probed("account", ProbeVerdict.HOLDS, f"the token's account is {login}")
    else:
        yield Probed("account", ProbeVerdict.DIFFERS, "GitHub does not say whose token this is")
    fields = {named["name"] for named in reply.data["issue"]["fields"]}
    if "assignedActors" in fields:
        yield Probed("assignees", ProbeVerdict.HOLDS, "assigned programs are told (assignedActors)")
    else:
        yield Probed(
            "assignees", ProbeVerdict.DIFFERS, "there is no assignedActors: only people are"
        )


@_probe("lag")
def try_lag(probes: Probes, scratch: _Scratch) -> Iterator[Probed | Lag]:
    """Write, and read by both APIs until each shows it; alternately a comment and an edit."""
    over: dict[str, list[float]] = {"REST": [], "GraphQL": []}
    touched = 0
    for turn in range(_ROUNDS):
        body = f"write {turn + 1} of {_ROUNDS}"
        written = probes.write(scratch, body, edit=turn % 2 == 1)
        if turn % 2 == 0 and written.created_at != written.updated_at:
            touched += 1
        shown = (
            partial(probes.rest_shows, scratch, body),
            partial(probes.graphql_shows, scratch, body),
        )
        for (api, seconds), lag in zip(over.items(), probes.wait_until(*shown), strict=True):
            if lag is None:
                text = f"{api} does not show a write within {_LONGEST_LAG_S:g} s"
                yield Probed("lag", ProbeVerdict.BREAKS, text)
                return
            seconds.append(lag)
    yield from (Lag(api, tuple(seconds)) for api, seconds in over.items())
    if touched:
        text = f"{touched} new comments were updated later than they were made, without an edit"
        yield Probed("times", ProbeVerdict.DIFFERS, text)
    else:
        yield Probed("times", ProbeVerdict.HOLDS, "a comment without an edit keeps its time")


@_probe("order")
def try_order(probes: Probes, scratch: _Scratch) -> Iterator[Probed]:
    """Two comments in a row: their ids, both lists, and the issue's own count."""
    first, second = probes.write(scratch, "one of two"), probes.write(scratch, "two of two")
    both = {first.id, second.id}
    rest: list[int] = []
    graphql: list[int] = []

    def seen() -> bool:
        rest[:] = [comment.id for comment in probes.listed(scratch)]
        graphql[:] = [int(one.full_database_id) for one in probes.listed_by_graphql(scratch)]
        return both.issubset(rest) and both.issubset(graphql)

    if None in probes.wait_until(seen):
        text = f"of two comments in a row, REST lists {rest}, GraphQL {graphql}"
        yield Probed("order", ProbeVerdict.BREAKS, text)
    elif first.id < second.id and rest == sorted(rest) and graphql == rest:
        yield Probed("order", ProbeVerdict.HOLDS, "ids rise, and both lists are in their order")
    else:
        text = f"REST lists {rest}, GraphQL {graphql}, and the replies were {sorted(both)}"
        yield Probed("order", ProbeVerdict.BREAKS, text)
    counted = decode(probes.rest("GET", f"/issues/{scratch.shape.number}").body, RestIssue).comments
    verdict = ProbeVerdict.HOLDS if counted == len(rest) else ProbeVerdict.DIFFERS
    yield Probed("count", verdict, f"the issue counts {counted} comments, and lists {len(rest)}")


@_probe("trip")
def try_trip(probes: Probes, scratch: _Scratch) -> Iterator[Probed]:
    """A document with an impossible change, before a possible change."""
    reply = probes.graphql(
        documents.PROBE_TRIP,
        issue=scratch.shape.node_id,
        labels=[_NO_LABEL],
        comment=scratch.comments[-1].node_id,
        body="edited behind a change that failed",
    )
    flaw, edited = reply.at("e0"), reply.data.get("e1") is not None
    if flaw is not None and edited:
        text = f"a change that fails ({flaw.type}) does not stop those behind it"
        yield Probed("trip", ProbeVerdict.HOLDS, text)
    else:
        said = ", ".join(f"{error.type} at {error.path}" for error in reply.errors) or "no error"
        text = f"with an unknown label: {said}; the edit behind it was made: {edited}"
        yield Probed("trip", ProbeVerdict.BREAKS, text)


@_probe("price")
def try_reads_many(probes: Probes, scratch: _Scratch) -> Iterator[Probed]:
    """The document for many issues at once: cost, time and errors."""
    document = documents.priced(documents.snapshots(_READ_TOGETHER))
    given: dict[str, object] = {"labels": False, "away": False, "homeOwner": "", "homeName": ""}
    given |= {"control": [CONTROL_LABEL], "homeControl": [CONTROL_LABEL]}
    given |= {f"n{place}": scratch.shape.number for place in range(_READ_TOGETHER)}
    declared = {name: value for name, value in given.items() if f"${name}:" in document}
    reply, found = probes.about(document, **declared)
    took_s = probes.transport.clock.now() - reply.asked_at
    price = reply.data.get("rateLimit") or {}
    text = (
        f"{_READ_TOGETHER} issues in one request: {price.get('cost')} points, "
        f"{price.get('nodeCount')} nodes, {took_s:.1f} s"
    )
    kinds = sorted({error.type or "without a type" for error in reply.errors})
    if kinds:
        text = f"{text}; errors: {', '.join(kinds)}"
    yield Probed("price", ProbeVerdict.DIFFERS if kinds else ProbeVerdict.HOLDS, text)
    issue = found.get("i0") or {}
    if issue.get("closedByPullRequestsReferences") is not None:
        yield Probed(
            "pulls", ProbeVerdict.HOLDS, "the pull requests that close an issue can be read"
        )
    else:
        text = "the token may not read the pull requests that close an issue"
        yield Probed("pulls", ProbeVerdict.DIFFERS, text)


@_probe("labels")
def try_labels(probes: Probes, _: _Scratch) -> Iterator[Probed]:
    """Labels in another spelling."""
    other = LABEL.swapcase()
    spelled = {"same": LABEL, "other": other, "sames": [LABEL], "others": [other]}
    found = probes.about(documents.PROBE_LABELS, **spelled)[1]
    by_name = found["same"] is not None and found["other"] is not None
    issues, others = found["sames"]["totalCount"], found["others"]["totalCount"]
    if not issues:
        yield Probed("labels", ProbeVerdict.UNKNOWN, "no issue is found by its label yet")
    elif by_name and issues == others:
        yield Probed("labels", ProbeVerdict.HOLDS, "GraphQL finds labels in any spelling")
    else:
        yield Probed(
            "labels", ProbeVerdict.DIFFERS, "GraphQL finds labels in their own spelling only"
        )


@_probe("unchanged")
def try_unchanged(probes: Probes, scratch: _Scratch) -> Iterator[Probed]:
    """The same list twice: the second time it is unchanged, and free."""
    path = f"/issues/{scratch.shape.number}/comments?per_page=99"
    first, again = (probes.rest("GET", path, ok=(200,), conditional=True) for _ in range(2))
    before, after = (one.headers.get("x-ratelimit-used", "0") for one in (first, again))
    if not again.unchanged:
        yield Probed(
            "unchanged", ProbeVerdict.DIFFERS, "a list without a change is sent again in full"
        )
    elif before == after:
        yield Probed("unchanged", ProbeVerdict.HOLDS, "a list without a change costs nothing (304)")
    else:
        text = f"a list without a change (304) took {int(after) - int(before)} of the budget, or "
        yield Probed("unchanged", ProbeVerdict.DIFFERS, f"{text}another program used the token")


@_probe("writers")
def try_writers(probes: Probes, _: _Scratch) -> Iterator[Probed]:
    """Who may write, by the lookup that all readers go by."""

    def permission(login: str) -> str:
        if not login:
            return "not known"
        reply = probes.rest("GET", f"/collaborators/{quote(login)}/permission")
        if reply.status != 200:
            return f"answered {reply.status}"
        return decode(reply.body, RestPermission).permission

    ours, stranger, bot = map(permission, (probes.login, _STRANGER, _ACTIONS_BOT))
    told = f"{probes.login}: {ours}, {_STRANGER}: {stranger}, {_ACTIONS_BOT}: {bot}"
    if {"admin", "write"} & {stranger}:
        yield Probed("writers", ProbeVerdict.BREAKS, f"a stranger is told to be a writer: {told}")
    elif ours in ("admin", "write"):
        yield Probed("writers", ProbeVerdict.HOLDS, told)
    else:
        text = f"our account is not told to be a writer: {told}; name it in [github] trusted"
        yield Probed("writers", ProbeVerdict.DIFFERS, text)
    listed = probes.rest("GET", "/collaborators?per_page=100").status
    if listed == 200:
        yield Probed("collaborators", ProbeVerdict.HOLDS, "the list of collaborators is given")
    else:
        text = f"the list of collaborators is refused ({listed}), so strangers cost lookups"
        yield Probed("collaborators", ProbeVerdict.DIFFERS, f"{text}; see the scope read:org")


@_probe("visible")
def try_visible(probes: Probes, _: _Scratch) -> Iterator[Probed]:
    """Whether strangers see the account: what a flagged account writes, others do not see."""
    status = (
        probes.transport.as_stranger(f"/users/{quote(probes.login)}").status if probes.login else 0
    )
    if status == 200:
        yield Probed("visible", ProbeVerdict.HOLDS, f"everybody sees the account {probes.login}")
    elif status == 404:
        text = f"nobody sees the account {probes.login}: GitHub has flagged it, and hides its cards"
        yield Probed("visible", ProbeVerdict.BREAKS, text)
    else:
        text = f"strangers get no answer about the account ({status})"
        yield Probed("visible", ProbeVerdict.UNKNOWN, text)


@_probe("refusal")
def try_refusal(probes: Probes, _: _Scratch) -> Iterator[Probed]:
    """A refusal, if the token is refused anything: whether it looks like a limit."""
    reply = probes.rest("GET", "/hooks")
    told = ", ".join(sorted(name for name in reply.headers if "accept" in name or "scope" in name))
    text = f"{reply.status} for what needs an administrator"
    if reply.status == 403 and limit_in(reply) is not None:
        yield Probed("refusal", ProbeVerdict.BREAKS, f"{text} is taken for a limit")
    else:
        yield Probed(
            "refusal", ProbeVerdict.HOLDS, f"{text}; headers about rights: {told or 'none'}"
        )
