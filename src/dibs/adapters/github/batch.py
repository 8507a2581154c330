"""Trips: several effects on one issue and a reading of the issue, in one GraphQL request.

GitHub runs the mutations of a document in order, each by itself: a mutation that fails does not
stop the later ones. So the field of each effect in the reply is checked, in order. If the field is
there, GitHub applied the effect, even if parts of the payload are missing: then the issue is read
once more. An effect that GitHub refused is repeated over REST.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, assert_never

from dibs.adapters.github import documents
from dibs.adapters.github.client import Purpose
from dibs.adapters.github.graphql import OverGraphql
from dibs.adapters.github.replies import GraphqlError, GraphqlReply, locked
from dibs.adapters.github.shapes import Node, WholeIssue, convert
from dibs.adapters.github.trust import Judging
from dibs.core.errors import NotPermitted, RateLimited, Unavailable, Unconfirmed
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Snapshot
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels

_NOT_FOUND = "NOT_FOUND"
_REFUSALS = (_NOT_FOUND, "FORBIDDEN", "INSUFFICIENT_SCOPES", "UNPROCESSABLE", "UNAUTHORIZED")

Look = Callable[[], Snapshot]


class Trips:
    """Makes the trips to a repository."""

    def __init__(self, graphql: OverGraphql) -> None:
        self._graphql, self._rest, self._ids = graphql, graphql.rest, graphql.door.ids
        self._transport = graphql.door.transport

    def trip(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        look: Look,
        judging: Judging,
        insist_believed: Callable[[Comment, Purpose], None],
    ) -> Snapshot:
        """Apply the effects and return the issue after them.

        `look`: reads the issue by a separate request, if the trip's answer is not enough.
        `insist_believed`: raises if a comment that we posted does not count.
        """
        number = self._rest.number(issue)
        self._learn_ids(issue, number, effects, look)
        wanted = self._without_unknown_labels(effects)
        if not wanted:
            return look()
        bodies = [effect.body for effect in wanted if isinstance(effect, PostComment | EditComment)]
        with self._ids.writing_cards(number, bodies, self._transport.clock.now()):
            variables = self._variables(number, wanted)
            reply = self._graphql.change(documents.trip(wanted), variables, judging.purpose)
            repeated = self._repeat_failed(issue, wanted, reply)
        with under_way(issue):
            posted = [
                self._graphql.door.translator.comment(convert(node, Node))
                for place, effect in enumerate(wanted)
                if isinstance(effect, PostComment)
                and (node := _within(reply.data.get(f"e{place}"), "commentEdge", "node"))
                is not None
            ]
            for comment in posted:
                insist_believed(comment, judging.purpose)
            last = _issue_in_payload(reply.data.get(f"e{len(wanted) - 1}"), wanted[-1])
            # With any error a part of the issue may be missing, which would read as empty.
            whole = not repeated and not reply.errors and last is not None
            shape = self._graphql.saw(convert(last, WholeIssue), issue) if whole else None
            if shape is not None and not shape.comments.page_info.more:
                return self._graphql.snapshot(shape, reply.now, judging)
            try:
                return look()
            except NotPermitted as refusal:
                # NotPermitted would mean that no effect was applied.
                raise Unavailable(
                    f"{issue}: changed, but it could not be read: {refusal}"
                ) from refusal

    # Ids

    def _learn_ids(
        self, issue: IssueRef, number: int, effects: Sequence[Effect], look: Look
    ) -> None:
        """Fetch the GraphQL ids for the effects; make missing labels which are to be added.

        Raises NoSuchComment for a comment to be edited which is not on the issue.
        """
        edited = [effect.comment for effect in effects if isinstance(effect, EditComment)]
        if self._ids.issue(number) is None or None in map(self._ids.comment, edited):
            look()
        for comment in edited:
            cached = self._ids.comment(comment)
            if cached is None or cached.number != number:
                self._rest.look_for_comment(issue, comment)
        changes = [effect for effect in effects if isinstance(effect, AddLabels | RemoveLabels)]
        named = [label for effect in changes for label in effect.labels]
        if self._ids.unknown_labels(named):
            self._rest.labels(Purpose.FINISH)
        added = [
            label for effect in changes if isinstance(effect, AddLabels) for label in effect.labels
        ]
        for label in self._ids.unknown_labels(added):
            if not self._rest.make_label(label):
                self._rest.labels(Purpose.FINISH)  # another client made it at the same time

    def _without_unknown_labels(self, effects: Sequence[Effect]) -> tuple[Effect, ...]:
        """The effects to send, without removals of labels which the repository does not have.

        No issue can carry these labels. An effect without labels left is dropped.
        """
        wanted: list[Effect] = []
        for effect in effects:
            match effect:
                case AddLabels(labels):
                    wanted += [effect] if labels else []
                case RemoveLabels(labels):
                    existing = tuple(label for label in labels if self._ids.label(label))
                    wanted += [RemoveLabels(existing)] if existing else []
                case PostComment() | EditComment() | CloseIssue():
                    wanted.append(effect)
                case _:
                    assert_never(effect)
        return tuple(wanted)

    def _variables(self, number: int, effects: Sequence[Effect]) -> dict[str, object]:
        """The values of the variables which `documents.trip` declares for the effects."""
        cached_issue = self._ids.issue(number)
        assert cached_issue is not None, "its id was learned"
        variables: dict[str, object] = {}
        if any(not isinstance(effect, EditComment) for effect in effects):
            variables["issue"] = cached_issue.node
        for place, effect in enumerate(effects):
            match effect:
                case AddLabels(labels) | RemoveLabels(labels):
                    ids = [node for label in labels if (node := self._ids.label(label))]
                    variables[f"e{place}"] = list(dict.fromkeys(ids))
                case PostComment(body):
                    variables[f"b{place}"] = body
                case EditComment(comment, body):
                    cached = self._ids.comment(comment)
                    assert cached is not None, "its id was learned"
                    variables[f"e{place}"], variables[f"b{place}"] = cached.node, body
                case CloseIssue():
                    pass
                case _:
                    assert_never(effect)
        return variables

    # Effects that failed

    def _repeat_failed(
        self, issue: IssueRef, effects: Sequence[Effect], reply: GraphqlReply
    ) -> bool:
        """Repeat failed effects over REST, and return whether any effect failed.

        Raises the error of the first effect which cannot be repeated.
        """
        repeated, changed = False, any(part is not None for part in reply.data.values())
        for place, effect in enumerate(effects):
            if reply.data.get(f"e{place}") is not None:
                continue
            flaw = reply.at(f"e{place}")
            if flaw is None:
                raise Unavailable(f"{issue}: GitHub does not say what it did")
            if (full_or_locked := locked(issue, flaw.message)) is not None:
                raise full_or_locked
            if flaw.type not in _REFUSALS:
                raise Unavailable(f"{issue}: GitHub refused: {flaw.message}")
            with under_way(issue) if changed else nullcontext():
                self._repeat_over_rest(issue, effect, flaw)
            repeated = changed = True
        return repeated

    def _repeat_over_rest(self, issue: IssueRef, effect: Effect, flaw: GraphqlError) -> None:
        """Repeat over REST an effect refused, and hence not applied, by GraphQL.

        A mistake of GitHub does no harm, and a true refusal comes from two endpoints. A deleted
        label is made again, and to close a closed issue is no error over REST.
        """
        if isinstance(effect, AddLabels | RemoveLabels):
            self._ids.forget_labels(effect.labels)
        if isinstance(effect, AddLabels) and flaw.type == _NOT_FOUND:
            for label in effect.labels:
                self._rest.make_label(label)
        match effect:
            case AddLabels(labels):
                self._rest.edit_labels(issue, add=labels)
            case RemoveLabels(labels):
                self._rest.edit_labels(issue, remove=labels)
            case PostComment(body):
                self._rest.post_comment(issue, body, Purpose.FINISH)
            case EditComment(comment, body):
                self._rest.edit_comment(issue, comment, body)
            case CloseIssue():
                self._rest.close(issue)
            case _:
                assert_never(effect)


@contextmanager
def under_way(issue: IssueRef) -> Iterator[None]:
    """Around requests after an applied change: turns RateLimited and Unconfirmed into Unavailable.

    To a caller these two mean that no change was made, which is no longer true here.
    """
    try:
        yield
    except (RateLimited, Unconfirmed) as flaw:
        raise Unavailable(f"{issue}: changed, but not looked at afterwards: {flaw}") from flaw


def purpose_of(effects: Sequence[Effect]) -> Purpose:
    """HOLD for a trip of edits to comments alone, which is a heartbeat; FINISH for more."""
    beats = all(isinstance(effect, EditComment) for effect in effects)
    return Purpose.HOLD if beats else Purpose.FINISH


def _issue_in_payload(payload: Any, last: Effect) -> Any:
    """The issue in the payload of a trip's last effect; None if the payload has none."""
    match last:
        case AddLabels() | RemoveLabels():
            return _within(payload, "labelable")
        case PostComment():
            return _within(payload, "subject")
        case EditComment():
            return _within(payload, "issueComment", "issue")
        case CloseIssue():
            return _within(payload, "issue")


def _within(value: Any, *path: str) -> Any:
    """The value at a path of keys; None if any key is missing."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value
