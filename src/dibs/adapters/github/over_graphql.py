"""What GraphQL does in one request: a whole reading, many readings, counts.

A reply is never taken for more than it is: an issue that is missing is looked for over REST, which
says where it went; one of which any part failed is not read; and a thread with more comments than
one page is read over REST, where pages can be proved to belong together and are mostly free.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dibs.adapters.github import documents
from dibs.adapters.github.believing import Believing, Judging
from dibs.adapters.github.control_readings import ControlReadings
from dibs.adapters.github.known import Known
from dibs.adapters.github.over_rest import OverRest, in_order
from dibs.adapters.github.refusals import NoGraphql
from dibs.adapters.github.replies import GraphqlReply
from dibs.adapters.github.shapes import Labels, WholeIssue, convert
from dibs.adapters.github.translating import Translator, present
from dibs.adapters.github.transport import Purpose, Transport
from dibs.core.errors import IssueMoved, NotPermitted, Unavailable
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Thread

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
