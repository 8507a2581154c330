"""Mutations: each finds its subject by node id, acts as the viewer, and returns the subject.

Permissions, rules and events are those of the state, the same as REST's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .acts import KEEP, Acts
from .faults import Wrong
from .graphql_asked import FIELDS, Asked, answers
from .graphql_issues import CONTENTS
from .graphql_pages import Edge
from .graphql_refusals import Complaint, no_node, worded
from .graphql_resolvers import seen
from .graphql_schema import served
from .records import Comment, Issue, Label, Repository, User
from .refusal import TOO_QUICKLY, Refusal

Input = Mapping[str, Any]
Payload = dict[str, object]
R = TypeVar("R")
REST_CONTENTS = {graphql: rest for rest, graphql in CONTENTS.items()}
CREATES = frozenset({"createIssue", "addComment", "createPullRequest", "addDiscussionComment"})
"""Mutations whose creations notify people."""
# The input fields that name the subject.
_SUBJECTS = (
    "subjectId",
    "labelableId",
    "assignableId",
    "lockableId",
    "issueId",
    "repositoryId",
    "id",
)


def mutation(name: str) -> Callable[[Callable[[Asked, Acts, Input], Payload]], object]:
    """Register a mutation; it words the state's refusals as GraphQL does."""

    def enter(act: Callable[[Asked, Acts, Input], Payload]) -> object:
        def run(_root: object, asked: Asked, *, input: Input) -> Payload:  # noqa: A002 - the argument's name
            subject = next((str(input[key]) for key in _SUBJECTS if key in input), "")
            if asked.state.strays(Wrong.NODE_NOT_FOUND_ONCE):
                raise no_node(subject)
            if name in CREATES and asked.state.strays(Wrong.TOO_QUICKLY):
                raise Complaint("UNPROCESSABLE", TOO_QUICKLY)
            try:
                payload = act(asked, asked.state.acting(asked.viewer), input)
            except Refusal as refusal:
                raise worded(refusal, asked.viewer, name, subject) from refusal
            return {**payload, "clientMutationId": input.get("clientMutationId")}

        return answers("Mutation", name=name)(run)

    return enter


def _the(kind: type[R], asked: Asked, node_id: str) -> R:
    there = seen(asked, node_id)
    if not isinstance(there, kind):
        raise no_node(node_id)
    return there


# comments


@mutation("addComment")
def add_comment(asked: Asked, acts: Acts, given: Input) -> Payload:
    issue = _the(Issue, asked, given["subjectId"])
    made = acts.create_comment(issue, given["body"])
    return {"commentEdge": Edge(made), "subject": asked.view.issue_by_id(issue.id)}


@mutation("updateIssueComment")
def update_comment(asked: Asked, acts: Acts, given: Input) -> Payload:
    comment = _the(Comment, asked, given["id"])
    return {"issueComment": acts.edit_comment(comment, given["body"])}


@mutation("deleteIssueComment")
def delete_comment(asked: Asked, acts: Acts, given: Input) -> Payload:
    acts.delete_comment(_the(Comment, asked, given["id"]))
    return {}


# labels


@mutation("addLabelsToLabelable")
def add_labels(asked: Asked, acts: Acts, given: Input) -> Payload:
    issue = _the(Issue, asked, given["labelableId"])
    return {"labelable": acts.add_label_ids(issue, _label_ids(asked, given["labelIds"]))}


@mutation("removeLabelsFromLabelable")
def remove_labels(asked: Asked, acts: Acts, given: Input) -> Payload:
    issue = _the(Issue, asked, given["labelableId"])
    return {"labelable": acts.remove_label_ids(issue, _label_ids(asked, given["labelIds"]))}


@mutation("createLabel")
def create_label(asked: Asked, acts: Acts, given: Input) -> Payload:
    repository = _the(Repository, asked, given["repositoryId"])
    description = given.get("description")
    made = acts.create_label(
        repository, given["name"], color=given["color"], description=description
    )
    return {"label": made}


@mutation("updateLabel")
def update_label(asked: Asked, acts: Acts, given: Input) -> Payload:
    label = _the(Label, asked, given["id"])
    changed = acts.edit_label(
        label,
        name=_or_keep(given, "name"),
        color=_or_keep(given, "color"),
        description=_or_keep(given, "description"),
    )
    return {"label": changed}


@mutation("deleteLabel")
def delete_label(asked: Asked, acts: Acts, given: Input) -> Payload:
    acts.delete_label(_the(Label, asked, given["id"]))
    return {}


def _label_ids(asked: Asked, node_ids: Sequence[str]) -> list[int]:
    return [_the(Label, asked, one).id for one in node_ids]


def _label_names(asked: Asked, node_ids: Sequence[str]) -> list[str]:
    return [_the(Label, asked, one).name for one in node_ids]


# issues


@mutation("createIssue")
def create_issue(asked: Asked, acts: Acts, given: Input) -> Payload:
    made = acts.create_issue(
        _the(Repository, asked, given["repositoryId"]),
        given["title"],
        body=given.get("body"),
        labels=_label_names(asked, given.get("labelIds") or ()),
        assignees=_logins(asked, given.get("assigneeIds") or ()),
    )
    return {"issue": made}


@mutation("updateIssue")
def update_issue(asked: Asked, acts: Acts, given: Input) -> Payload:
    state, labels, people = given.get("state"), given.get("labelIds"), given.get("assigneeIds")
    changed = acts.edit_issue(
        _the(Issue, asked, given["id"]),
        title=_or_keep(given, "title"),
        body=_or_keep(given, "body"),
        state=KEEP if state is None else state.lower(),
        labels=KEEP if labels is None else _label_names(asked, labels),
        assignees=KEEP if people is None else _logins(asked, people),
    )
    return {"issue": changed}


@mutation("closeIssue")
def close_issue(asked: Asked, acts: Acts, given: Input) -> Payload:
    reason = given.get("stateReason") or "COMPLETED"
    return {"issue": acts.close_issue(_the(Issue, asked, given["issueId"]), reason.lower())}


@mutation("reopenIssue")
def reopen_issue(asked: Asked, acts: Acts, given: Input) -> Payload:
    return {"issue": acts.reopen_issue(_the(Issue, asked, given["issueId"]))}


@mutation("lockLockable")
def lock(asked: Asked, acts: Acts, given: Input) -> Payload:
    reason = given.get("lockReason")
    issue = _the(Issue, asked, given["lockableId"])
    locked = acts.lock_issue(issue, reason and _REASONS[reason])
    return {"lockedRecord": locked, "actor": asked.viewer.user}


@mutation("unlockLockable")
def unlock(asked: Asked, acts: Acts, given: Input) -> Payload:
    return {"unlockedRecord": acts.unlock_issue(_the(Issue, asked, given["lockableId"]))}


_REASONS = {
    "OFF_TOPIC": "off-topic",
    "TOO_HEATED": "too heated",
    "RESOLVED": "resolved",
    "SPAM": "spam",
}


# people


@mutation("addAssigneesToAssignable")
def assign(asked: Asked, acts: Acts, given: Input) -> Payload:
    issue = _the(Issue, asked, given["assignableId"])
    return {"assignable": acts.assign(issue, _logins(asked, given["assigneeIds"]))}


@mutation("removeAssigneesFromAssignable")
def unassign(asked: Asked, acts: Acts, given: Input) -> Payload:
    issue = _the(Issue, asked, given["assignableId"])
    return {"assignable": acts.unassign(issue, _logins(asked, given["assigneeIds"]))}


@mutation("replaceActorsForAssignable")
def replace_assignees(asked: Asked, acts: Acts, given: Input) -> Payload:
    issue = _the(Issue, asked, given["assignableId"])
    wanted = [*_logins(asked, given.get("actorIds") or ()), *(given.get("actorLogins") or ())]
    return {"assignable": acts.edit_issue(issue, assignees=wanted)}


def _logins(asked: Asked, node_ids: Sequence[str]) -> list[str]:
    return [_the(User, asked, one).login for one in node_ids]


# reactions


@mutation("addReaction")
def add_reaction(asked: Asked, acts: Acts, given: Input) -> Payload:
    subject = _reactable(asked, given["subjectId"])
    reaction, _new = acts.react(subject, REST_CONTENTS[given["content"]])
    return {"reaction": reaction, "subject": subject}


@mutation("removeReaction")
def remove_reaction(asked: Asked, acts: Acts, given: Input) -> Payload:
    subject, content = _reactable(asked, given["subjectId"]), REST_CONTENTS[given["content"]]
    own = asked.viewer.login.lower()
    for reaction in asked.view.reactions(subject.id):
        if reaction.content == content and reaction.author.lower() == own:
            return {"reaction": acts.unreact(reaction), "subject": subject}
    raise Complaint("NOT_FOUND", "Could not find the reaction to remove.")


def _reactable(asked: Asked, node_id: str) -> Issue | Comment:
    there = seen(asked, node_id)
    if not isinstance(there, Issue | Comment):
        raise no_node(node_id)
    return there


def _or_keep(given: Input, key: str) -> Any:
    """A field that is null or missing stays as it is."""
    value = given.get(key)
    return KEEP if value is None else value


def _entered() -> None:
    """Register the fields of every payload as keys of what its mutation returned."""
    for name, kind in served().type_map.items():
        for field in getattr(kind, "fields", {}) if name.endswith("Payload") else ():
            FIELDS[name, field] = lambda payload, _asked, field=field: payload.get(field)


_entered()
