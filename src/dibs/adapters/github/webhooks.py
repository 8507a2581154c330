"""GitHub's webhook deliveries: checks the signature, and reads the fields that can matter to us.

Pure: bytes and headers in, values out. Further fields of a delivery are ignored, so that new fields
break nothing; a missing field is empty. Whether a delivery matters is decided elsewhere.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from dibs.adapters.github.shapes import RestLabel, RestUser
from dibs.core.ids import IssueRef
from dibs.ports.system import Happening, Rubbish

_SIGNED_WITH = "sha256="
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"


class _Repository(msgspec.Struct):
    full_name: str = ""
    id: int = 0


class _Issue(msgspec.Struct):
    number: int
    pull_request: object = None
    """Present, with any content, if the issue is a pull request."""


class _Comment(msgspec.Struct):
    body: str | None = None


class _Before(msgspec.Struct):
    was: str = msgspec.field(default="", name="from")


class _RepositoryBefore(msgspec.Struct):
    name: _Before | None = None


class _OwnerBefore(msgspec.Struct):
    user: RestUser | None = None
    organization: RestUser | None = None


class _OwnerChange(msgspec.Struct):
    was: _OwnerBefore | None = msgspec.field(default=None, name="from")


class _Changes(msgspec.Struct):
    repository: _RepositoryBefore | None = None
    owner: _OwnerChange | None = None


class _Delivery(msgspec.Struct):
    action: str = ""
    repository: _Repository | None = None
    issue: _Issue | None = None
    pull_request: _Issue | None = None
    label: RestLabel | None = None
    comment: _Comment | None = None


class _RepositoryDelivery(msgspec.Struct):
    changes: _Changes | None = None


_Shape = TypeVar("_Shape", bound=msgspec.Struct)

READ = frozenset({"issues", "issue_comment", "label", "pull_request", "repository"})
"""The events that we read. A subscription to any further event is a waste."""


class GithubDeliveries:
    """A `ports.system.Deliveries`. Without keys every delivery counts as genuine."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = tuple(keys)

    def vouched_for(self, body: bytes, headers: Mapping[str, str]) -> bool:
        return not self._keys or verified(body, headers.get("x-hub-signature-256", ""), self._keys)

    def number(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-github-delivery", "")

    def read(self, body: bytes, headers: Mapping[str, str]) -> Happening:
        event = headers.get("x-github-event", "")
        if not event:
            raise Rubbish("it does not say which event it is about")
        return parse(event, payload(body, headers.get("content-type", "")))


def verified(body: bytes, signature: str, keys: Iterable[bytes]) -> bool:
    """Whether any of the keys signed the body. A near miss takes as long as any wrong signature."""
    given = signature.strip().encode("utf-8", "replace")
    genuine = False
    for key in keys:
        expected = _SIGNED_WITH + hmac.new(key, body, hashlib.sha256).hexdigest()
        genuine |= hmac.compare_digest(expected.encode(), given)
    return genuine


def payload(body: bytes, content_type: str) -> bytes:
    """The JSON of a delivery, sent as such or inside a form. Raises Rubbish."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _JSON:
        return body
    if kind != _FORM:
        raise Rubbish(f"neither JSON nor a form, but {kind[:80]!r}")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8)
    except ValueError as flaw:
        raise Rubbish("the form cannot be read") from flaw
    found = fields.get("payload")
    if not found:
        raise Rubbish("the form has no payload")
    return found[0].encode("utf-8", "replace")


def parse(event: str, document: bytes) -> Happening:
    """Read a delivery; only the event's name if the event is not in `READ`. Raises Rubbish."""
    if event not in READ:
        return Happening(event)
    delivery = _decoded(document, _Delivery)
    if delivery.repository is None or not delivery.repository.full_name:
        raise Rubbish("it does not say which repository it is about")
    repo = delivery.repository.full_name
    subject = delivery.issue or delivery.pull_request
    return Happening(
        event=event,
        action=delivery.action,
        repo=repo,
        repo_id=delivery.repository.id,
        was_repo=_former_name(document, repo) if event == "repository" else "",
        issue=IssueRef(repo, str(subject.number)) if subject is not None else None,
        on_pull=delivery.issue is None or delivery.issue.pull_request is not None,
        label=delivery.label.name if delivery.label else "",
        comment=(delivery.comment.body or "") if delivery.comment else "",
    )


def _former_name(document: bytes, repo: str) -> str:
    """The name of a repository before a rename or transfer; empty if neither happened."""
    changes = _decoded(document, _RepositoryDelivery).changes
    if changes is None:
        return ""
    owner, _, name = repo.partition("/")
    before = changes.repository.name.was if changes.repository and changes.repository.name else ""
    moved = changes.owner.was if changes.owner else None
    from_owner = (moved.user or moved.organization) if moved else None
    if not before and not (from_owner and from_owner.login):
        return ""
    return f"{from_owner.login if from_owner else owner}/{before or name}"


def _decoded(document: bytes, shape: type[_Shape]) -> _Shape:
    try:
        return msgspec.json.decode(document, type=shape)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as flaw:
        raise Rubbish(f"it cannot be read: {flaw}") from None
