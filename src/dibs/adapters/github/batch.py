"""Several effects on one issue and a reading of it, in one request.

GitHub does a document's mutations one after the other, each by itself: one that fails stops none of
the later ones. So each field is looked at, in order. One that is there was done, whatever is
missing in what it tells: then the issue is read once more. A label that somebody deleted is made
again and the effect repeated; whatever else failed is raised as if it had been done alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

from dibs.adapters.github import documents
from dibs.adapters.github.cache import Known
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.graphql import OverGraphql
from dibs.adapters.github.replies import GraphqlError, GraphqlReply, locked
from dibs.adapters.github.rest import OverRest
from dibs.adapters.github.shapes import Node, Translator, convert
from dibs.adapters.github.trust import Judging
from dibs.core.errors import (
    DibsError,
    NoSuchComment,
    NotPermitted,
    RateLimited,
    Unavailable,
)
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Thread
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels

_NOT_FOUND = "NOT_FOUND"
_REFUSALS = ("FORBIDDEN", "INSUFFICIENT_SCOPES", "UNPROCESSABLE", "UNAUTHORIZED")

Look = Callable[[], Thread]


class Trips:
    """For one repository."""

    def __init__(
        self,
        transport: Transport,
        translator: Translator,
        known: Known,
        rest: OverRest,
        graphql: OverGraphql,
    ) -> None:
        self._transport = transport
        self._translator = translator
        self._known = known
        self._rest = rest
        self._graphql = graphql

    def trip(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        look: Look,
        judging: Judging,
        insist_believed: Callable[[Comment, Purpose], None],
    ) -> Thread:
        number = self._rest.number(issue)
        self._learn_ids(issue, number, effects, look)
        wanted = self._with_labels_that_exist(effects)
        if not wanted:
            return look()
        bodies = [one.body for one in wanted if isinstance(one, PostComment | EditComment)]
        with self._known.saying(number, bodies, self._transport.clock.now()):
            reply = self._transport.graphql(
                documents.trip(wanted), self._variables(number, wanted), purpose=judging.purpose
            )
            self._graphql.insist_understood(reply)
            with under_way(issue):
                healed = self._heal(issue, wanted, reply)
        with under_way(issue):
            for posted in self._posted(wanted, reply):
                insist_believed(posted, judging.purpose)
            told = _whole(reply.data.get(f"e{len(wanted) - 1}"), wanted[-1])
            # Also if a part of what it tells is missing: that would read as nothing.
            again = healed or bool(reply.errors) or told is None
            shape = None if again else self._graphql.saw(told, issue)
            if shape is None or shape.comments.page_info.more:
                return _looked(issue, look)
            return self._graphql.thread(shape, reply.now, judging)

    # Ids

    def _learn_ids(
        self, issue: IssueRef, number: int, effects: Sequence[Effect], look: Look
    ) -> None:
        edited = [effect.comment for effect in effects if isinstance(effect, EditComment)]
        if self._known.issue(number) is None or not all(map(self._knows_comment, edited)):
            look()
        for comment in edited:
            known = self._known.comment(comment)
            if known is None or known.number != number:
                raise NoSuchComment(issue, comment)
        self._learn_labels(effects)

    def _knows_comment(self, comment: int) -> bool:
        return self._known.comment(comment) is not None

    def _learn_labels(self, effects: Sequence[Effect]) -> None:
        added = [
            label for effect in effects if isinstance(effect, AddLabels) for label in effect.labels
        ]
        removed = [
            label
            for effect in effects
            if isinstance(effect, RemoveLabels)
            for label in effect.labels
        ]
        unknown = self._known.unknown_labels([*added, *removed])
        if not unknown:
            return
        self._graphql.learn_labels(unknown)
        for label in self._known.unknown_labels(added):
            if not self._rest.make_label(label):
                self._graphql.learn_labels([label])  # somebody made it at the same time

    def _with_labels_that_exist(self, effects: Sequence[Effect]) -> tuple[Effect, ...]:
        """Without taking off what cannot be on: nobody has such a label."""
        wanted: list[Effect] = []
        for effect in effects:
            match effect:
                case AddLabels(labels) if labels:
                    wanted.append(effect)
                case RemoveLabels(labels):
                    there = tuple(label for label in labels if self._known.label(label))
                    wanted += [RemoveLabels(there)] if there else []
                case AddLabels():
                    pass
                case PostComment() | EditComment() | CloseIssue():
                    wanted.append(effect)
                case _:
                    assert_never(effect)
        return tuple(wanted)

    def _variables(self, number: int, effects: Sequence[Effect]) -> dict[str, object]:
        known = self._known.issue(number)
        assert known is not None, "its id was learned"
        variables: dict[str, object] = {}
        if any(not isinstance(effect, EditComment) for effect in effects):
            variables["issue"] = known.node
        for place, effect in enumerate(effects):
            match effect:
                case AddLabels(labels) | RemoveLabels(labels):
                    ids = [node for label in labels if (node := self._known.label(label))]
                    variables[f"e{place}"] = list(dict.fromkeys(ids))
                case PostComment(body):
                    variables[f"b{place}"] = body
                case EditComment(comment, body):
                    said = self._known.comment(comment)
                    assert said is not None, "its id was learned"
                    variables[f"e{place}"], variables[f"b{place}"] = said.node, body
                case CloseIssue():
                    pass
                case _:
                    assert_never(effect)
        return variables

    # What came of it

    def _posted(self, effects: Sequence[Effect], reply: GraphqlReply) -> list[Comment]:
        told = [
            reply.data.get(f"e{place}")
            for place, effect in enumerate(effects)
            if isinstance(effect, PostComment)
        ]
        nodes = [_within(one, "commentEdge", "node") for one in told]
        return [self._translator.comment(convert(node, Node)) for node in nodes if node is not None]

    def _heal(self, issue: IssueRef, effects: Sequence[Effect], reply: GraphqlReply) -> bool:
        """Whether something had to be done again. Raises what the first that failed would raise."""
        healed = False
        for place, effect in enumerate(effects):
            if reply.data.get(f"e{place}") is not None:
                continue
            flaw = reply.at(f"e{place}")
            if flaw is None:
                raise Unavailable(f"{issue}: GitHub does not say what it did")
            self._again_or_raise(issue, effect, flaw)
            healed = True
        return healed

    def _again_or_raise(self, issue: IssueRef, effect: Effect, flaw: GraphqlError) -> None:
        match effect:
            case AddLabels(labels) if flaw.type == _NOT_FOUND:
                self._known.forget_labels(labels)
                for label in labels:
                    self._rest.make_label(label)
                self._rest.edit_labels(issue, add=labels, remove=())
            case RemoveLabels(labels) if flaw.type == _NOT_FOUND:
                self._known.forget_labels(labels)
                self._rest.edit_labels(issue, add=(), remove=labels)
            case CloseIssue() if flaw.type == "UNPROCESSABLE":
                self._rest.close(issue)  # where closing what is closed is no error
            case EditComment(comment) if flaw.type == _NOT_FOUND:
                raise self._rest.no_such_comment(issue, comment)
            case _ if flaw.type == _NOT_FOUND:
                self._rest.issue(issue, Purpose.FINISH)  # raises if it is the issue that is gone
                raise Unavailable(f"{issue}: GitHub did not find it, and then it did")
            case _:
                raise _refusal(issue, flaw)


@contextmanager
def under_way(issue: IssueRef) -> Iterator[None]:
    """A limit means that nothing was done; once something was, it means that nobody knows all."""
    try:
        yield
    except RateLimited as limit:
        raise Unavailable(f"{issue}: changed, but not looked at afterwards: {limit}") from limit


def _looked(issue: IssueRef, look: Look) -> Thread:
    """A refusal means that nothing was done: one of the reading alone must not say so."""
    try:
        return look()
    except NotPermitted as refusal:
        raise Unavailable(f"{issue}: changed, but it could not be read: {refusal}") from refusal


def purpose_of(effects: Sequence[Effect]) -> Purpose:
    """One that only edits a card is a heartbeat."""
    beats = all(isinstance(effect, EditComment) for effect in effects)
    return Purpose.HOLD if beats else Purpose.FINISH


def _refusal(issue: IssueRef, flaw: GraphqlError) -> DibsError:
    if (full_or_locked := locked(issue, flaw.message)) is not None:
        return full_or_locked
    said = f"{issue}: GitHub refused: {flaw.message}"
    return NotPermitted(said) if flaw.type in _REFUSALS else Unavailable(said)


def _whole(payload: Any, last: Effect) -> Any:
    """The issue in the last effect's payload."""
    match last:
        case AddLabels() | RemoveLabels():
            return _within(payload, "labelable")
        case PostComment():
            return _within(payload, "subject")
        case EditComment():
            return _within(payload, "issueComment", "issue")
        case CloseIssue():
            return _within(payload, "issue")


def _within(told: Any, *path: str) -> Any:
    for step in path:
        told = told.get(step) if isinstance(told, dict) else None
    return told
