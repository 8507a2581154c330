"""Webhook deliveries: signed, in the background, once each. No client may rely on them.

A payload is made when the event happens; one thread sends the payloads in order. If the receiver
does not answer or answers with an error, the delivery is marked as failed and not repeated, as on
GitHub.
"""

import hmac
import http.client
import json
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha1, sha256
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

from .bodies import Bodies, Body
from .bodies_of_repositories import RepositoryBodies
from .records import Happening, Hook, Issue, Viewer

if TYPE_CHECKING:
    from .state import State

TIMEOUT_S = 10.0
MOST_REMEMBERED = 1_000
MOST_WAITING = 100_000
_NOT_IN_HOOKS = ("network_count", "subscribers_count", "permissions")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. `status` is None while it is under way, and 0 if there was no answer."""

    guid: str
    hook_id: int
    event: str
    action: str | None
    payload: Body
    status: int | None = None


class Deliveries:
    def __init__(self, state: "State", api: Callable[[], str]) -> None:
        self._state = state
        self._api = api
        self._waiting: queue.Queue[Delivery | None] = queue.Queue(MOST_WAITING)
        self._done: deque[Delivery] = deque(maxlen=MOST_REMEMBERED)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def done(self) -> list[Delivery]:
        """The last deliveries, oldest first."""
        return list(self._done)

    def settle(self) -> None:
        """Wait until everything that happened so far was sent or has failed."""
        self._waiting.join()

    def close(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(TIMEOUT_S)

    def hear(self, happening: Happening) -> None:
        hooks = [hook for hook in self._hooks(happening) if _wants(hook, happening.event)]
        if not hooks:
            return
        payload = _payload(self._bodies(happening.sender), happening)
        for hook in hooks:
            self._put(hook, happening.event, happening.action, payload)

    def ping(self, hook: Hook, sender: str) -> None:
        bodies = self._bodies(sender)
        told = RepositoryBodies(bodies)
        repository = self._state.repositories[hook.repository_id]
        payload: Body = {
            "zen": "Nobody works the same issue twice.",
            "hook_id": hook.id,
            "hook": told.hook(hook),
            "repository": _repository(told.repository(repository)),
            "sender": bodies.user(sender),
        }
        self._put(hook, "ping", None, payload)

    def _hooks(self, happening: Happening) -> list[Hook]:
        return self._state.primary().hooks(happening.repository.id)

    def _bodies(self, login: str) -> Bodies:
        user = self._state.users.get(login.lower())
        return Bodies(self._state.primary(), Viewer(user), self._api())

    def _put(self, hook: Hook, event: str, action: str | None, payload: Body) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fakehub deliveries", daemon=True
                )
                self._thread.start()
        self._waiting.put(Delivery(str(uuid4()), hook.id, event, action, payload))

    def _run(self) -> None:
        while True:
            delivery = self._waiting.get()
            try:
                if delivery is None:
                    return
                self._deliver(delivery)
            finally:
                self._waiting.task_done()

    def _deliver(self, delivery: Delivery) -> None:
        hook = self._state.hooks.get(delivery.hook_id)
        if hook is None:
            return
        status = _post(hook, delivery)
        self._done.append(replace(delivery, status=status))
        with self._state.lock:
            if hook.id in self._state.hooks:
                current = self._state.hooks[hook.id]
                self._state.hooks[hook.id] = replace(current, last_status=status)


def signature(secret: str, body: bytes) -> str:
    """The value of X-Hub-Signature-256."""
    return "sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest()


def _wants(hook: Hook, event: str) -> bool:
    return hook.active and (event in hook.events or "*" in hook.events)


def _post(hook: Hook, delivery: Delivery) -> int:
    raw = json.dumps(delivery.payload).encode()
    kind = "application/json"
    if hook.content_type == "form":
        raw, kind = (
            urlencode({"payload": raw.decode()}).encode(),
            "application/x-www-form-urlencoded",
        )
    headers = {
        "Content-Type": kind,
        "Accept": "*/*",
        "User-Agent": "GitHub-Hookshot/fakehub",
        "X-GitHub-Event": delivery.event,
        "X-GitHub-Delivery": delivery.guid,
        "X-GitHub-Hook-ID": str(hook.id),
        "X-GitHub-Hook-Installation-Target-ID": str(hook.repository_id),
        "X-GitHub-Hook-Installation-Target-Type": "repository",
    }
    if hook.secret:
        headers["X-Hub-Signature-256"] = signature(hook.secret, raw)
        headers["X-Hub-Signature"] = "sha1=" + hmac.new(hook.secret.encode(), raw, sha1).hexdigest()
    return _send(hook.url, raw, headers)


def _send(url: str, raw: bytes, headers: dict[str, str]) -> int:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=TIMEOUT_S)
    try:
        connection.request(
            "POST", parts._replace(scheme="", netloc="").geturl() or "/", raw, headers
        )
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _payload(bodies: Bodies, happening: Happening) -> Body:
    told = RepositoryBodies(bodies)
    payload: Body = {"action": happening.action}
    if happening.issue:
        payload |= _about(bodies, told, happening.event, happening.issue)
    if happening.comment:
        payload["comment"] = bodies.comment(happening.comment)
    if happening.label:
        payload["label"] = bodies.label(happening.label)
    if happening.assignee:
        payload["assignee"] = bodies.user(happening.assignee)
    if happening.changes or happening.action == "edited":
        payload["changes"] = happening.changes
    if happening.action == "transferred" and happening.issue and happening.issue.moved_to:
        payload["changes"] = _moved(bodies, told, happening.issue.moved_to)
    payload["repository"] = _repository(told.repository(happening.repository))
    payload["sender"] = bodies.user(happening.sender)
    return payload


def _about(bodies: Bodies, told: RepositoryBodies, event: str, issue: Issue) -> Body:
    if event == "pull_request":
        pull = told.pull(issue, whole=True)
        for side in ("head", "base"):
            pull[side]["repo"] = _repository(pull[side]["repo"])
        return {"number": issue.number, "pull_request": pull}
    return {"issue": _issue(bodies, issue)}


def _issue(bodies: Bodies, issue: Issue) -> Body:
    return {name: value for name, value in bodies.issue(issue).items() if name != "closed_by"}


def _moved(bodies: Bodies, told: RepositoryBodies, to: tuple[int, int]) -> Body:
    issue = bodies.view.issue(*to)
    repository = bodies.view.state.repositories[to[0]]
    return {
        "new_issue": None if issue is None else _issue(bodies, issue),
        "new_repository": _repository(told.repository(repository)),
    }


def _repository(told: Body) -> Body:
    kept = {name: value for name, value in told.items() if name not in _NOT_IN_HOOKS}
    return {
        **kept,
        "is_template": False,
        "web_commit_signoff_required": False,
        "custom_properties": {},
        "allow_forking": True,
    }
