"""An interface for tests: set up, choose faults, read counts. GitHub has no such interface.

Everybody who reaches the port may use it, so the fake listens on loopback only. `FakeHub`'s
attributes can do all of this from Python; this interface is for tests in other processes and
languages.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from . import seeding
from .bodies import time_text
from .exchange import Answer, Request
from .faults import Fault
from .limits import Limits
from .records import Issue
from .world import World

PREFIX = "/_fakehub"

Given = dict[str, Any]


def answer(world: World, request: Request) -> Answer:
    path = request.path.removeprefix(PREFIX).strip("/")
    act = _ACTS.get(f"{request.verb} {path}")
    if act is None:
        known = [
            f"{verb} {PREFIX}/{rest}" for verb, _, rest in (key.partition(" ") for key in _ACTS)
        ]
        return Answer(200 if not path else 404, {"endpoints": known})
    try:
        given = json.loads(request.body) if request.body.strip() else dict(request.query)
        told = act(world, given)
    except (KeyError, ValueError, TypeError) as wrong:
        return Answer(422, {"message": f"{type(wrong).__name__}: {wrong}"})
    return Answer(200, told)


def _counts(world: World, _: Given) -> object:
    return world.counts.told()


def _reset_counts(world: World, _: Given) -> object:
    world.counts.reset()
    return {}


def _user(world: World, given: Given) -> object:
    user = seeding.user(world.state, given)
    return {"id": user.id, "login": user.login, "node_id": user.node_id}


def _token(world: World, given: Given) -> object:
    seeding.token(world.state, given)
    return {}


def _repository(world: World, given: Given) -> object:
    found = seeding.repository(world.state, given)
    return {"id": found.id, "full_name": found.full_name, "node_id": found.node_id}


def _member(world: World, given: Given) -> object:
    public = bool(given.get("public", True))
    world.state.join(given["organization"], given["login"], public=public)
    return {}


def _issue(world: World, given: Given) -> object:
    """`act` on an issue as only people do: delete, transfer (`to`), convert, lock, unlock."""
    state = world.state
    repository = state.named(given["repository"])
    issue = state.primary().issue(repository.id, int(given["number"]))
    if issue is None:
        raise KeyError(given["number"])
    acts = state.acting(seeding.owner(state, repository))
    ways: dict[str, Callable[[], Issue]] = {
        "delete": lambda: acts.delete_issue(issue),
        "transfer": lambda: acts.transfer_issue(issue, state.named(given["to"])),
        "convert": lambda: acts.convert_issue(issue),
        "lock": lambda: acts.lock_issue(issue, given.get("reason")),
        "unlock": lambda: acts.unlock_issue(issue),
    }
    return {"number": ways[given["act"]]().number}


def _clock(world: World, given: Given) -> object:
    """Move the server's clock forward by `seconds`; never back."""
    seconds = float(given.get("seconds", 0))
    if seconds < 0:
        raise ValueError("the clock is never turned back")
    world.state.clock_offset += timedelta(seconds=seconds)
    return {"now": time_text(world.state.now())}


def _get_faults(world: World, _: Given) -> object:
    return {"faults": world.faults.told()}


def _set_faults(world: World, given: Given) -> object:
    faults = [Fault.from_json(one) for one in given.get("faults", [])]
    world.faults.set(faults, seed=given.get("seed"))
    return {"faults": world.faults.told()}


def _add_fault(world: World, given: Given) -> object:
    world.faults.add(Fault.from_json(given))
    return {"faults": world.faults.told()}


def _clear_faults(world: World, _: Given) -> object:
    world.faults.clear()
    return {"faults": []}


def _get_limits(world: World, _: Given) -> object:
    return asdict(world.meter.limits)


def _set_limits(world: World, given: Given) -> object:
    """Set fields of `Limits`; `{"off": true}` lifts all. Forgets what was spent."""
    base = Limits.off() if given.pop("off", False) else world.meter.limits
    world.meter.limits = replace(base, **given)
    world.meter.forget()
    return asdict(world.meter.limits)


def _state(world: World, given: Given) -> object:
    """Every issue of a repository with its labels and comments, as the primary has it."""
    repository = world.state.named(given["repository"])
    view = world.state.primary()
    return {
        "repository": repository.full_name,
        "now": time_text(world.state.now()),
        "labels": [label.name for label in view.labels(repository.id)],
        "issues": [_told(world, issue) for issue in view.issues(repository.id)],
    }


def _told(world: World, issue: Issue) -> Given:
    view = world.state.primary()
    return {
        "number": issue.number,
        "title": issue.title,
        "state": issue.state,
        "pull": issue.pull is not None,
        "author": issue.author,
        "assignees": list(issue.assignees),
        "locked": issue.locked,
        "labels": [label.name for label in view.labels_on(issue)],
        "comments": [
            {
                "id": comment.id,
                "author": comment.author,
                "body": comment.body,
                "created_at": time_text(comment.created_at),
                "updated_at": time_text(comment.updated_at),
            }
            for comment in view.comments(issue.id)
        ],
        "events": [
            {
                "event": event.kind,
                "actor": event.actor,
                "label": event.label[0] if event.label else None,
                "created_at": time_text(event.created_at),
            }
            for event in view.events(issue.id)
        ],
    }


def _deliveries(world: World, _: Given) -> object:
    """The webhook deliveries so far; waits for those under way."""
    world.deliveries.settle()
    return {
        "deliveries": [
            {"guid": one.guid, "event": one.event, "action": one.action, "status": one.status}
            for one in world.deliveries.done
        ]
    }


_ACTS: dict[str, Callable[[World, Given], object]] = {
    "GET counts": _counts,
    "DELETE counts": _reset_counts,
    "GET state": _state,
    "GET deliveries": _deliveries,
    "POST users": _user,
    "POST tokens": _token,
    "POST repositories": _repository,
    "POST members": _member,
    "POST issues": _issue,
    "POST clock": _clock,
    "GET faults": _get_faults,
    "PUT faults": _set_faults,
    "POST faults": _add_fault,
    "DELETE faults": _clear_faults,
    "GET limits": _get_limits,
    "PUT limits": _set_limits,
}
