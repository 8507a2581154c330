"""What GraphQL does in one request: a whole reading, many readings, counts.

A reply is never taken for more than it is: an issue that is missing is looked for over REST, which
says where it went; one of which any part failed is not read; and a thread with more comments than
one page is read over REST, where pages can be proved to belong together and are mostly free.

Lists of issues with their comments over GraphQL: several lists in one request.

Each list is asked for by one label only and filtered here: whether GraphQL takes several labels as
"all of" or as "any of" is documented nowhere. A list that is continued begins at the page where it
was left; its cursors are positions, so that what has left the list since moves nothing.

What became of the pull requests that say they close an issue, of a hundred issues at a time.

Only GraphQL tells which pull requests these are, and asking it is not free. So the list of the
pull requests that changed last is asked for first, over REST, where an unchanged list is free:
while it is the same, so is the answer. Pull requests in other repositories are not in that list, so
an answer is not kept for long. Where GraphQL is not to be had, or the token may not read pull
requests, nothing is known of any.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct, field

from dibs.adapters.github import documents
from dibs.adapters.github.cache import Known
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.control_log import ControlReadings
from dibs.adapters.github.replies import GraphqlReply, NoGraphql
from dibs.adapters.github.repository import RepositoryDoor
from dibs.adapters.github.rest import OverRest, Position, carries, in_order
from dibs.adapters.github.shapes import (
    ClosingPull,
    IssueWithPulls,
    Label,
    Labels,
    Listed,
    RestPull,
    Translator,
    WholeIssue,
    convert,
    decode,
    folded,
    person_of,
    present,
    whole_second,
)
from dibs.adapters.github.trust import Believing, Judging
from dibs.core.errors import IssueMoved, NotPermitted, Unavailable
from dibs.core.following import LinkedPull, PullFate
from dibs.core.ids import IssueRef, ServerTime, later
from dibs.core.issue import Thread
from dibs.ports.tracker import FoundThreads, IssueQuery

_FEWEST_AT_ONCE = 10
_LABELS_AT_ONCE = 50
_NOT_FOUND = "NOT_FOUND"
_FORBIDDEN = ("FORBIDDEN", "INSUFFICIENT_SCOPES")
_PULLS = "closedByPullRequestsReferences"
_UNKNOWN_WORDS = ("undefinedfield", "argumentnotaccepted", "undefinedtype", "selectionmismatch")


class OverGraphql:
    """One repository's issues."""

    def __init__(
        self,
        transport: Transport,
        translator: Translator,
        known: Known,
        rest: OverRest,
        believing: Believing,
        *,
        own: ControlReadings,
        home: ControlReadings,
        labels: Sequence[str] = (),
    ) -> None:
        self._transport = transport
        self._translator = translator
        self._known = known
        self._rest = rest
        self._believing = believing
        self._own, self._home = own, home
        self._labels = labels
        self._asked_for_labels = False
        self._at_once = documents.MOST_AT_ONCE
        self._lock = threading.Lock()
        self.understood = True
        """False once the server did not know a field: then it is older than what we send."""

    # Reading one

    def read(self, issue: IssueRef, judging: Judging) -> Thread:
        number = self._rest.number(issue)
        if not self._known.is_long(number):
            shape, now = self._ask(issue, number, judging.purpose)
            if not shape.comments.page_info.more:
                return self.thread(shape, now, judging)
        return self._read_long(issue, number, judging)

    def _read_long(self, issue: IssueRef, number: int, judging: Judging) -> Thread:
        """The comments over REST first, the issue with its newest count last."""
        comments, now, all_pages = self._rest.comments(issue, judging)
        shape, _ = self._ask(issue, number, judging.purpose)
        return Thread(self._translator.issue(shape), comments, now, all_pages=all_pages)

    def _ask(self, issue: IssueRef, number: int, purpose: Purpose) -> tuple[WholeIssue, ServerTime]:
        reply = self.query(documents.READ, {"number": number}, purpose)
        told = reply.data["repository"].get("issue")
        if told is None:
            raise self._missing(issue, reply, purpose)
        insist_whole(reply, "repository", "issue")
        return self.saw(told, issue), reply.now

    def _missing(self, issue: IssueRef, reply: GraphqlReply, purpose: Purpose) -> Unavailable:
        """REST says what became of it: raises NoSuchIssue or IssueMoved."""
        flaw = reply.at("repository", "issue")
        if flaw is None or flaw.type != _NOT_FOUND:
            return Unavailable(
                f"{issue} could not be read: {flaw.message if flaw else 'no answer'}"
            )
        self._rest.issue(issue, purpose)
        return Unavailable(f"{issue} is there, but GitHub's GraphQL does not see it yet")

    def saw(self, told: Any, issue: IssueRef | None = None) -> WholeIssue:
        """Raises IssueMoved for an issue of another repository, or another than was asked for."""
        shape = convert(told, WholeIssue)
        asked = issue or self._translator.ref(shape.number)
        door, name = self._rest.door, self._translator.repository
        where = shape.repository.name_with_owner if shape.repository else name
        if str(shape.number) != asked.key or not door.is_called(where):
            raise IssueMoved(asked, f"{where}#{shape.number}")
        self._known.saw_issue(shape)
        return shape

    def thread(self, shape: WholeIssue, now: ServerTime, judging: Judging) -> Thread:
        """As far as one page goes."""
        nodes = (self._translator.comment(node) for node in shape.comments.nodes if node)
        found = in_order({comment.id: comment for comment in nodes})
        comments, judged = judging.comments(found, self._translator.ref(shape.number))
        whole = judged and not shape.comments.page_info.more
        return Thread(self._translator.issue(shape), comments, now, all_pages=whole)

    # Reading many

    def threads(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        found: dict[IssueRef, Thread] = {}
        left = list(dict.fromkeys(issues))
        while left:
            most = self._at_once
            found |= self._some_threads(left[:most])
            left = left[most:]
        return found

    def _some_threads(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        numbers = {f"n{place}": self._rest.number(issue) for place, issue in enumerate(issues)}
        reply = self.query_many(documents.threads(len(issues)), numbers)
        judging = self.judging_many()
        found: dict[IssueRef, Thread] = {}
        for place, issue in enumerate(issues):
            told = reply.data["repository"].get(f"i{place}")
            if told is None:
                _insist_it_is_gone(issue, reply, f"i{place}")
                continue
            insist_whole(reply, "repository", f"i{place}")
            with suppress(IssueMoved):
                found[issue] = self.thread(self.saw(told, issue), reply.now, judging)
        return found

    def judging_many(self) -> Judging:
        """For all that one large reading brings."""
        return self._believing.judging(Purpose.DISCOVER)

    def query_many(self, document: str, variables: Mapping[str, object]) -> GraphqlReply:
        """A large reading. One that fails makes the next ones smaller: it may have taken too long.

        It is not tried again here: in an outage that would only make it worse.
        """
        try:
            reply = self.query(document, variables, Purpose.DISCOVER)
        except Unavailable:
            with self._lock:
                self._at_once = max(_FEWEST_AT_ONCE, self._at_once // 2)
            raise
        with self._lock:
            self._at_once = min(documents.MOST_AT_ONCE, self._at_once + _FEWEST_AT_ONCE)
        return reply

    @property
    def at_once(self) -> int:
        return self._at_once

    # The control issue by itself

    def read_control(self) -> None:
        """Looks for it and reads it, if it is not too long for that."""
        reply = self.ask(documents.CONTROL, {}, Purpose.LOOK)
        self._own.take_along("repository", reply, Purpose.LOOK)

    # Counting

    def tally(self, labels: Sequence[str], *, closed_too: bool) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for start in range(0, len(labels), _LABELS_AT_ONCE):
            counts |= self._tally(labels[start : start + _LABELS_AT_ONCE], closed_too=closed_too)
        return counts

    def _tally(self, labels: Sequence[str], *, closed_too: bool) -> Mapping[str, int]:
        variables: dict[str, object] = {f"l{place}": [label] for place, label in enumerate(labels)}
        variables["states"] = states(closed_too=closed_too)
        reply = self.ask(documents.tally(len(labels)), variables, Purpose.DISCOVER)
        told = reply.data["repository"]
        try:
            return {label: int(told[f"t{at}"]["totalCount"]) for at, label in enumerate(labels)}
        except (KeyError, TypeError, ValueError) as flaw:
            raise Unavailable(f"{self._translator.repository}: GitHub did not count") from flaw

    # Labels' ids

    def learn_labels(self, names: Sequence[str]) -> None:
        """Asks for the ids of those that are not known. Those that do not exist stay unknown."""
        for start in range(0, len(names), _LABELS_AT_ONCE):
            some = names[start : start + _LABELS_AT_ONCE]
            variables = {f"l{place}": name for place, name in enumerate(some)}
            reply = self.ask(documents.label_ids(len(some)), variables, Purpose.FINISH)
            found = [told for told in reply.data["repository"].values() if told is not None]
            self._known.saw_labels(present(convert({"nodes": found}, Labels).nodes))

    # Asking

    def query(
        self, document: str, variables: Mapping[str, object], purpose: Purpose
    ) -> GraphqlReply:
        """A reading, with the control issues' logs and the labels' ids as passengers."""
        reply = self.ask(document, {**self._passengers(), **variables}, purpose)
        self._believing.hear(reply.data["repository"])
        labels = reply.data["repository"].get("labels")
        if labels is not None:
            self._known.saw_labels(present(convert(labels, Labels).nodes))
        self._own.take_along("repository", reply, purpose)
        if self._home is not self._own:
            self._home.take_along("home", reply, purpose)
        return reply

    def ask(self, document: str, variables: Mapping[str, object], purpose: Purpose) -> GraphqlReply:
        """About this repository; raises if it is not there."""
        where = _named(self._translator.repository)
        reply = self._transport.graphql(document, {**where, **variables}, purpose=purpose)
        self.insist_understood(reply)
        if reply.data.get("repository") is None:
            raise self._no_repository(reply)
        return reply

    def insist_understood(self, reply: GraphqlReply) -> None:
        """Raises if the document could not be run at all, so that nothing was done."""
        if reply.data:
            return
        said = "; ".join(error.message for error in reply.errors[:3]) or "it sent no data"
        if any(_is_foreign(error.type) for error in reply.errors):
            self.understood = False
            raise NoGraphql(f"this server's GraphQL does not know what was asked: {said}")
        if any(error.type in _FORBIDDEN for error in reply.errors):
            raise NotPermitted(f"{self._translator.repository}: GitHub refused: {said}")
        raise Unavailable(f"{self._translator.repository}: GitHub did not answer: {said}")

    def _no_repository(self, reply: GraphqlReply) -> NotPermitted | Unavailable:
        flaw = reply.at("repository")
        name = self._translator.repository
        if flaw is None:
            return Unavailable(f"{name}: GitHub did not answer")
        if flaw.type == _NOT_FOUND:
            return NotPermitted(f"there is no repository {name}, or this token may not see it")
        return NotPermitted(f"{name}: GitHub refused: {flaw.message}")

    def _passengers(self) -> dict[str, object]:
        home_owner, _, home_name = self._home.repository.partition("/")
        with self._lock:
            labels = not self._asked_for_labels and bool(self._known.unknown_labels(self._labels))
            self._asked_for_labels = True
        return {
            "labels": labels,
            "away": self._home is not self._own,
            "homeOwner": home_owner,
            "homeName": home_name,
        }


def states(*, closed_too: bool) -> list[str]:
    return ["OPEN", "CLOSED"] if closed_too else ["OPEN"]


def _named(repository: str) -> dict[str, object]:
    owner, _, name = repository.partition("/")
    return {"owner": owner, "name": name}


def _is_foreign(kind: str) -> bool:
    return kind.lower() in _UNKNOWN_WORDS


def insist_whole(reply: GraphqlReply, *path: str) -> None:
    """Raises if any part of that could not be told: what is missing would read as nothing."""
    flaw = reply.at(*path)
    if flaw is None:
        return
    where = ".".join(str(step) for step in flaw.path)
    said = f"GitHub did not tell all of it ({where}): {flaw.message}"
    if flaw.type in _FORBIDDEN and _PULLS in flaw.path:
        raise NotPermitted(f"{said}; the token needs Pull requests: read")
    raise NotPermitted(said) if flaw.type in _FORBIDDEN else Unavailable(said)


def _insist_it_is_gone(issue: IssueRef, reply: GraphqlReply, field: str) -> None:
    flaw = reply.at("repository", field)
    if flaw is None or flaw.type != _NOT_FOUND:
        raise Unavailable(f"{issue} could not be read: {flaw.message if flaw else 'no answer'}")


_MOST_CURSORS = 256
_MOST_ROUNDS = 1000
_LISTS_AT_ONCE = 8

_Place = tuple[str, bool, int]


class _Search(Struct):
    """One query under way."""

    query: IssueQuery
    after: Position | None
    cursor: str | None
    skip: int
    now: ServerTime | None = None
    threads: list[Thread] = field(default_factory=list)
    more: bool = False
    over: bool = False

    @property
    def wanted(self) -> int:
        """How many to ask for next. As many as can be where few of those listed may be wanted.

        Which is so once a page did not do, and where the beginning of the list is known already.
        """
        if self.now is not None or (self.after is not None and self.cursor is None):
            return documents.MOST_AT_ONCE
        left = self.query.limit - len(self.threads)
        return max(1, min(documents.MOST_AT_ONCE, left + self.skip))

    @property
    def label(self) -> str:
        # The last is the rarest: stages come before what an issue of that stage must carry too.
        return self.query.labels[-1] if self.query.labels else ""

    def found(self) -> FoundThreads:
        assert self.now is not None, "every query is asked at least once"
        return FoundThreads(tuple(self.threads), self.now, self.more)


class FindingThreads:
    """For one repository."""

    def __init__(self, graphql: OverGraphql) -> None:
        self._graphql = graphql
        self._cursors: OrderedDict[_Place, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def find_threads(
        self, queries: Sequence[IssueQuery], positions: Sequence[Position | None]
    ) -> tuple[FoundThreads, ...]:
        searches = [
            _Search(query, after, self._cursor(query), query.skip)
            for query, after in zip(queries, positions, strict=True)
        ]
        for _ in range(_MOST_ROUNDS):
            pending = [search for search in searches if not search.over]
            if not pending:
                break
            self._round(pending[:_LISTS_AT_ONCE])
        return tuple(search.found() for search in searches)

    def _round(self, searches: Sequence[_Search]) -> None:
        variables: dict[str, object] = {}
        for place, search in enumerate(searches):
            variables[f"l{place}"] = [search.label] if search.label else None
            variables[f"s{place}"] = states(closed_too=search.query.closed_too)
            variables[f"f{place}"] = min(search.wanted, self._graphql.at_once)
            variables[f"a{place}"] = search.cursor
        reply = self._graphql.query_many(documents.finding(len(searches)), variables)
        judging = self._graphql.judging_many()
        for place, search in enumerate(searches):
            told = reply.data["repository"].get(f"q{place}")
            if told is None:
                flaw = reply.at("repository", f"q{place}")
                said = flaw.message if flaw else "no answer"
                raise Unavailable(f"a list of issues could not be read: {said}")
            insist_whole(reply, "repository", f"q{place}")
            read = partial(self._read, now=reply.now, judging=judging)
            search.now = reply.now
            self._take(search, convert(told, Listed), told["nodes"], read)

    def _read(self, raw: object, *, now: ServerTime, judging: Judging) -> Thread:
        return self._graphql.thread(self._graphql.saw(raw), now, judging)

    def _take(
        self,
        search: _Search,
        page: Listed,
        told: Sequence[object],
        read: Callable[[object], Thread],
    ) -> None:
        for shape, raw in zip(page.nodes, told, strict=True):
            if shape is None or not _matches(shape, search):
                continue
            if search.skip:
                search.skip -= 1
            elif len(search.threads) == search.query.limit:
                search.more = search.over = True
                return
            else:
                search.threads.append(read(raw))
                self._remember(search, shape.number)
        search.cursor = page.page_info.end
        # Whether any of the others match is not worth a request: whoever goes on finds out.
        search.more = page.page_info.more and len(search.threads) == search.query.limit
        search.over = search.more or not page.page_info.more

    # Where we were

    def _cursor(self, query: IssueQuery) -> str | None:
        if query.after is None:
            return None
        label = query.labels[-1] if query.labels else ""
        with self._lock:
            return self._cursors.get((folded(label), query.closed_too, int(query.after.key)))

    def _remember(self, search: _Search, number: int) -> None:
        """The cursor that the issue's page began behind."""
        with self._lock:
            place = (folded(search.label), search.query.closed_too, number)
            self._cursors[place] = search.cursor
            self._cursors.move_to_end(place)
            while len(self._cursors) > _MOST_CURSORS:
                self._cursors.popitem(last=False)


def _matches(shape: WholeIssue, search: _Search) -> bool:
    position = (whole_second(shape.created_at), shape.number)
    if search.after is not None and position <= search.after:
        return False
    labels: list[Label] = present(shape.labels.nodes if shape.labels else None)
    shown = search.query.closed_too or shape.state == "OPEN"
    return shown and carries({label.name for label in labels}, search.query)


_log = logging.getLogger("dibs.github")
_LATEST = {"state": "all", "sort": "updated", "direction": "desc", "per_page": "10"}
_KEPT_FOR = timedelta(minutes=10)
_FATES = {"OPEN": PullFate.OPEN, "MERGED": PullFate.MERGED, "CLOSED": PullFate.UNMERGED}

PullsByIssue = Mapping[IssueRef, tuple[LinkedPull, ...]]


class Pulls:
    """For one repository."""

    def __init__(self, door: RepositoryDoor, graphql: OverGraphql, translator: Translator) -> None:
        self._door = door
        self._graphql = graphql
        self._translator = translator
        self._lock = threading.Lock()
        self._mark = ""
        """What the list of the latest was like when the answers below were given."""
        self._kept_until: ServerTime | None = None
        self._kept: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        self._asked_before = False
        self._forbidden = False

    def of(self, issues: Sequence[IssueRef]) -> PullsByIssue:
        wanted = list(dict.fromkeys(issues))
        if not wanted or self._forbidden:
            return {}
        try:
            return self._known(wanted)
        except NotPermitted as refusal:
            _log.warning("pull requests of %s are not followed: %s", self._door.name, refusal)
            self._forbidden = True
            return {}

    def _known(self, wanted: Sequence[IssueRef]) -> PullsByIssue:
        kept: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        mark = ""
        if self._asked_before:  # whoever asks only once has no use for what is kept
            mark, kept = self._latest()
        self._asked_before = True
        missing = [issue for issue in wanted if issue not in kept]
        for place in range(0, len(missing), documents.MOST_AT_ONCE):
            kept |= self._ask(missing[place : place + documents.MOST_AT_ONCE], mark)
        return {issue: kept[issue] for issue in wanted if issue in kept}

    def _latest(self) -> tuple[str, dict[IssueRef, tuple[LinkedPull, ...]]]:
        """What the list of the latest is like, and the answers that are still good if it is so."""
        latest = self._door.look("/pulls", purpose=Purpose.DISCOVER, params=_LATEST)
        mark = latest.headers.get("etag", "")
        with self._lock:
            fresh = self._kept_until is not None and latest.now < self._kept_until
            if not (mark and mark == self._mark and fresh):
                self._mark, self._kept_until = mark, later(latest.now, _KEPT_FOR)
                self._kept = {}
            return mark, dict(self._kept)

    def _ask(self, issues: Sequence[IssueRef], mark: str) -> PullsByIssue:
        numbers = {f"n{place}": int(issue.key) for place, issue in enumerate(issues)}
        reply = self._graphql.ask(documents.pulls(len(issues)), numbers, Purpose.DISCOVER)
        told = reply.data["repository"]
        found = {
            issue: linked
            for place, issue in enumerate(issues)
            if (linked := self._linked(told.get(f"i{place}"))) is not None
        }
        with self._lock:
            if mark and self._mark == mark:
                self._kept |= found
        return found

    def _linked(self, told: Any) -> tuple[LinkedPull, ...] | None:
        """None if the issue is not there, or this token may not know."""
        there = convert(told, IssueWithPulls).closed_by_pull_requests_references if told else None
        if there is None:
            return None
        nodes = there.nodes or ()
        return tuple(_linked(node, self._translator) for node in nodes if node is not None)

    def texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Of the open pull requests into this repository that come from that branch."""
        head = f"{repo.partition('/')[0]}:{branch}"
        listed = self._door.look("/pulls", purpose=Purpose.LOOK, params={"head": head})
        pulls = decode(listed.body, list[RestPull])
        return tuple(f"{pull.title}\n\n{pull.body or ''}" for pull in pulls)


def _linked(node: ClosingPull, translator: Translator) -> LinkedPull:
    ended_at = node.merged_at or node.closed_at
    fate = _FATES.get(node.state, PullFate.OPEN)
    labels = node.labels.nodes if node.labels else None
    return LinkedPull(
        ref=IssueRef(node.repository.name_with_owner, str(node.number)),
        author=person_of(node.author),
        fate=fate,
        opened_at=whole_second(node.created_at),
        ended_at=whole_second(ended_at) if ended_at and fate is not PullFate.OPEN else None,
        head=node.head_ref_name,
        foreign=node.is_cross_repository,
        labels=translator.labels(label.name for label in labels or () if label is not None),
    )
