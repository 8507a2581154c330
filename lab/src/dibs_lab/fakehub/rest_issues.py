"""REST: issues, their assignees, locks, events and timelines."""

from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter

from .changing import KEEP
from .exchange import Answer, Call, as_text, as_texts, needs_token
from .records import Comment, Event, Issue
from .refusal import invalid, not_found

_SORTS = ("created", "updated", "comments")


def since(call: Call) -> datetime | None:
    text = call.asked("since")
    if not text:
        return None
    try:
        given = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise invalid("Request", "since", "invalid") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def list_issues(call: Call) -> Answer:
    """List issues and pull requests: GitHub calls both issues here."""
    labels = [name.strip() for name in call.asked("labels").split(",") if name.strip()]
    found = call.view.issues(call.repository.id, labels)
    for check in _checks(call):
        found = [issue for issue in found if check(issue)]
    sort = call.asked("sort", "created")
    if sort not in _SORTS:
        raise invalid("Issue", "sort", "invalid")
    newest_first = call.asked("direction", "desc") != "asc"
    if sort == "comments":
        counts = {issue.id: call.view.comment_count(issue.id) for issue in found}
        found.sort(key=lambda issue: (counts[issue.id], issue.number), reverse=newest_first)
    else:
        found.sort(key=attrgetter(f"{sort}_at", "number"), reverse=newest_first)
    return call.page(found, call.bodies.issue)


def _checks(call: Call) -> list[Callable[[Issue], bool]]:
    """The filters of the request."""
    state, at, creator = call.asked("state", "open"), since(call), call.asked("creator").lower()
    assignee = call.asked("assignee")
    if state not in ("open", "closed", "all"):
        raise invalid("Issue", "state", "invalid")
    checks: list[Callable[[Issue], bool]] = []
    if state != "all":
        checks.append(lambda issue: issue.state == state)
    if at is not None:
        checks.append(lambda issue: issue.updated_at >= at)
    if creator:
        checks.append(lambda issue: issue.author.lower() == creator)
    if assignee:
        checks.append(lambda issue: _assigned(issue, assignee))
    return checks


def _assigned(issue: Issue, wanted: str) -> bool:
    if wanted == "none":
        return not issue.assignees
    if wanted == "*":
        return bool(issue.assignees)
    return wanted.lower() in {login.lower() for login in issue.assignees}


def get_issue(call: Call) -> Answer:
    return Answer(200, call.bodies.issue(call.issue))


def create_issue(call: Call) -> Answer:
    repository = call.repository
    needs_token(call.viewer)
    title, body = call.text("Issue", "title"), call.given.get("body")
    made = call.acts.create_issue(
        repository,
        title,
        body=None if body is None else as_text("Issue", "body", body),
        labels=as_texts("Issue", "labels", call.given.get("labels") or []),
        assignees=as_texts("Issue", "assignees", _assignees(call)),
    )
    told = call.bodies.issue(made)
    return Answer(201, told, {"Location": told["url"]})


def _assignees(call: Call) -> object:
    single = call.given.get("assignee")
    return call.given.get("assignees") or ([single] if single else [])


def edit_issue(call: Call) -> Answer:
    given, issue = call.given, call.issue
    body = given.get("body", KEEP)
    labels, assignees = given.get("labels", KEEP), given.get("assignees", KEEP)
    reason = given.get("state_reason", KEEP)
    changed = call.acts.edit_issue(
        issue,
        title=as_text("Issue", "title", given["title"]) if "title" in given else KEEP,
        body=body if body is None or body is KEEP else as_text("Issue", "body", body),
        state=as_text("Issue", "state", given["state"]) if given.get("state") else KEEP,
        state_reason=reason if reason is None or reason is KEEP else str(reason),
        labels=KEEP if labels is KEEP else as_texts("Issue", "labels", labels or []),
        assignees=KEEP if assignees is KEEP else as_texts("Issue", "assignees", assignees or []),
    )
    return Answer(200, call.bodies.issue(changed))


def lock(call: Call) -> Answer:
    reason = call.given.get("lock_reason")
    call.acts.lock_issue(
        call.issue, None if reason is None else as_text("Issue", "lock_reason", reason)
    )
    return Answer(204)


def unlock(call: Call) -> Answer:
    call.acts.unlock_issue(call.issue)
    return Answer(204)


def add_assignees(call: Call) -> Answer:
    logins = as_texts("Issue", "assignees", call.given.get("assignees") or [])
    return Answer(201, call.bodies.issue(call.acts.assign(call.issue, logins)))


def remove_assignees(call: Call) -> Answer:
    logins = as_texts("Issue", "assignees", call.given.get("assignees") or [])
    return Answer(200, call.bodies.issue(call.acts.unassign(call.issue, logins)))


def list_assignees(call: Call) -> Answer:
    """The accounts that can be assigned: the owner, if a person, collaborators and members."""
    state, repository = call.state, call.repository
    owner = state.users[repository.owner.lower()]
    logins = {owner.login.lower()} if owner.kind == "User" else set()
    logins |= set(state.members.get(repository.owner.lower(), {}))
    logins |= {who for who, may in state.grants.get(repository.id, {}).items() if may}
    return call.page(sorted(logins), call.bodies.user)


def list_events(call: Call) -> Answer:
    shown = [one for one in call.view.events(call.issue.id) if one.kind != "cross-referenced"]
    return call.page(shown, call.bodies.event)


def list_repository_events(call: Call) -> Answer:
    found = call.view.repository_events(call.repository.id)
    shown = [event for event in reversed(found) if event.kind != "cross-referenced"]
    return call.page(shown, lambda event: _with_issue(call, event))


def get_event(call: Call) -> Answer:
    wanted = call.number("event_id")
    found = [one for one in call.view.repository_events(call.repository.id) if one.id == wanted]
    if not found:
        raise not_found()
    return Answer(200, _with_issue(call, found[0]))


def _with_issue(call: Call, event: Event) -> object:
    issue = call.view.primary.issue_by_id(event.issue_id)
    return {**call.bodies.event(event), "issue": call.bodies.issue(issue) if issue else None}


def timeline(call: Call) -> Answer:
    entries: list[Event | Comment] = [
        *call.view.events(call.issue.id),
        *call.view.comments(call.issue.id),
    ]
    entries.sort(key=lambda entry: (entry.created_at, entry.id))
    return call.page(entries, call.bodies.timeline)
