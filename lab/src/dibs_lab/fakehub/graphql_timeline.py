"""Resolvers of an issue's history."""

from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

from .graphql_asked import Asked, answers, plain
from .graphql_issues import lock_reason
from .graphql_pages import Bounds, Page
from .graphql_resolvers import EVENTS, type_of
from .records import Comment, Event, Issue, Label, User

ALL = tuple(EVENTS.values())
plain({"id": "node_id", "createdAt": "created_at"}, *ALL)


@answers("Issue", name="timelineItems")
def timeline_items(
    issue: Issue,
    asked: Asked,
    *,
    item_types: Sequence[str] | None = None,
    since: datetime | None = None,
    **bounds: Unpack[Bounds],
) -> Page:
    def listed() -> list[Event | Comment]:
        told = [event for event in asked.view.events(issue.id) if event.kind in EVENTS]
        there: list[Event | Comment] = [*told, *asked.view.comments(issue.id)]
        wanted = [
            item
            for item in there
            if (since is None or item.created_at >= since)
            and (not item_types or _item_type(item) in item_types)
        ]
        return sorted(wanted, key=lambda item: (item.created_at, item.id))

    return Page(listed, bounds, "timelineItems")


def _item_type(item: Event | Comment) -> str:
    """`LabeledEvent` is `LABELED_EVENT`."""
    letters = type_of(item)
    return "".join(f"_{one}" if one.isupper() else one for one in letters).lstrip("_").upper()


@answers(*ALL)
def actor(event: Event, asked: Asked) -> User | None:
    return asked.view.user(event.actor)


@answers("AssignedEvent", "UnassignedEvent")
def assignee(event: Event, asked: Asked) -> User | None:
    return asked.view.user(event.assignee) if event.assignee else None


@answers("LabeledEvent", "UnlabeledEvent")
def label(event: Event, asked: Asked) -> Label:
    """The label as it is now; a deleted label is rebuilt from the event."""
    assert event.label is not None, "it is about a label"
    name, color = event.label
    there = asked.view.label_named(event.repository_id, name)
    when = event.created_at
    return there or Label(0, "", event.repository_id, name, color, None, when, when)


@answers("ClosedEvent", "ReopenedEvent", name="stateReason")
def state_reason(event: Event, _asked: Asked) -> str | None:
    return event.state_reason and event.state_reason.upper()


@answers("LockedEvent", name="lockReason")
def event_lock_reason(event: Event, _asked: Asked) -> str | None:
    return lock_reason(event.lock_reason)


@answers("RenamedTitleEvent", name="previousTitle")
def previous_title(event: Event, _asked: Asked) -> str | None:
    return event.rename and event.rename[0]


@answers("RenamedTitleEvent", name="currentTitle")
def current_title(event: Event, _asked: Asked) -> str | None:
    return event.rename and event.rename[1]


@answers("CrossReferencedEvent")
def source(event: Event, asked: Asked) -> Issue | None:
    return None if event.source is None else asked.view.issue_by_id(event.source)


@answers("CrossReferencedEvent", name="willCloseTarget")
def will_close_target(event: Event, asked: Asked) -> bool:
    told, target = source(event, asked), asked.view.issue_by_id(event.issue_id)
    return bool(told and target and told.will_close(target))


@answers("CrossReferencedEvent", name="isCrossRepository")
def is_cross_repository(event: Event, asked: Asked) -> bool:
    told = source(event, asked)
    return told is not None and told.repository_id != event.repository_id
