"""REST: a repository's labels, and the labels of an issue."""

from .changing import KEEP
from .exchange import Answer, Call, as_text, as_texts
from .records import Issue, Label
from .refusal import invalid, not_found


def list_labels(call: Call) -> Answer:
    return call.page(call.view.labels(call.repository.id), call.bodies.label)


def create_label(call: Call) -> Answer:
    description = call.given.get("description")
    made = call.acts.create_label(
        call.repository,
        call.text("Label", "name"),
        color=as_text("Label", "color", call.given.get("color", "ededed")),
        description=None if description is None else as_text("Label", "description", description),
    )
    told = call.bodies.label(made)
    return Answer(201, told, {"Location": told["url"]})


def get_label(call: Call) -> Answer:
    return Answer(200, call.bodies.label(_label(call)))


def edit_label(call: Call) -> Answer:
    label, given = _label(call), call.given
    name = given.get("new_name", given.get("name", KEEP))
    color, description = given.get("color", KEEP), given.get("description", KEEP)
    changed = call.acts.edit_label(
        label,
        name=name if name is KEEP else as_text("Label", "name", name),
        color=color if color is KEEP else as_text("Label", "color", color),
        description=description
        if description is KEEP or description is None
        else as_text("Label", "description", description),
    )
    return Answer(200, call.bodies.label(changed))


def delete_label(call: Call) -> Answer:
    call.acts.delete_label(_label(call))
    return Answer(204)


def _label(call: Call) -> Label:
    found = call.view.label_named(call.repository.id, call.at["name"])
    if found is None:
        raise not_found()
    return found


def list_issue_labels(call: Call) -> Answer:
    return call.page(call.view.labels_on(call.issue), call.bodies.label)


def add_issue_labels(call: Call) -> Answer:
    return _told(call, call.acts.add_labels(call.issue, _names(call)))


def replace_issue_labels(call: Call) -> Answer:
    return _told(call, call.acts.replace_labels(call.issue, _names(call)))


def remove_issue_label(call: Call) -> Answer:
    return _told(call, call.acts.remove_label(call.issue, call.at["name"]))


def remove_all_issue_labels(call: Call) -> Answer:
    call.acts.replace_labels(call.issue, ())
    return Answer(204)


def _names(call: Call) -> list[str]:
    """A bare list, or `{"labels": [...]}`: GitHub accepts both."""
    given = call.request.given_value
    if isinstance(given, dict):
        given = given.get("labels", [])
    if given is None:
        raise invalid("Label", "labels", "invalid")
    return as_texts("Label", "labels", given)


def _told(call: Call, issue: Issue) -> Answer:
    on = call.state.primary().labels_on(issue)
    return Answer(200, [call.bodies.label(label) for label in on])
