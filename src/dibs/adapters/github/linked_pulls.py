"""What became of the pull requests that say they close an issue, of a hundred issues at a time.

Only GraphQL tells which pull requests these are, and asking it is not free. So the list of the
pull requests that changed last is asked for first, over REST, where an unchanged list is free:
while it is the same, so is the answer. Pull requests in other repositories are not in that list, so
an answer is not kept for long. Where GraphQL is not to be had, or the token may not read pull
requests, nothing is known of any.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from dibs.adapters.github import documents
from dibs.adapters.github.over_graphql import OverGraphql
from dibs.adapters.github.repository import RepositoryDoor
from dibs.adapters.github.shapes import ClosingPull, IssueWithPulls, RestPull, convert, decode
from dibs.adapters.github.translating import Translator, person_of, whole_second
from dibs.adapters.github.transport import Purpose
from dibs.core.errors import NotPermitted
from dibs.core.following import LinkedPull, PullFate
from dibs.core.ids import IssueRef, ServerTime, later

_log = logging.getLogger("dibs.github")
_LATEST = {"state": "all", "sort": "updated", "direction": "desc", "per_page": "10"}
_KEPT_FOR = timedelta(minutes=10)
_FATES = {"OPEN": PullFate.OPEN, "MERGED": PullFate.MERGED, "CLOSED": PullFate.UNMERGED}

Known = Mapping[IssueRef, tuple[LinkedPull, ...]]


class Pulls:
    """For one repository."""

    def __init__(self, door: RepositoryDoor, graphql: OverGraphql, translator: Translator) -> None:
        self._door = door
        self._graphql = graphql
        self._translator = translator
        self._lock = threading.Lock()
        self._mark = ""
        """What the list of the latest was like when the answers below were given."""
        self._kept_until: ServerTime | None = None
        self._kept: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        self._asked_before = False
        self._forbidden = False

    def of(self, issues: Sequence[IssueRef]) -> Known:
        wanted = list(dict.fromkeys(issues))
        if not wanted or self._forbidden:
            return {}
        try:
            return self._known(wanted)
        except NotPermitted as refusal:
            _log.warning("pull requests of %s are not followed: %s", self._door.name, refusal)
            self._forbidden = True
            return {}

    def _known(self, wanted: Sequence[IssueRef]) -> Known:
        kept: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        mark = ""
        if self._asked_before:  # whoever asks only once has no use for what is kept
            mark, kept = self._latest()
        self._asked_before = True
        missing = [issue for issue in wanted if issue not in kept]
        for place in range(0, len(missing), documents.MOST_AT_ONCE):
            kept |= self._ask(missing[place : place + documents.MOST_AT_ONCE], mark)
        return {issue: kept[issue] for issue in wanted if issue in kept}

    def _latest(self) -> tuple[str, dict[IssueRef, tuple[LinkedPull, ...]]]:
        """What the list of the latest is like, and the answers that are still good if it is so."""
        latest = self._door.look("/pulls", purpose=Purpose.DISCOVER, params=_LATEST)
        mark = latest.headers.get("etag", "")
        with self._lock:
            fresh = self._kept_until is not None and latest.now < self._kept_until
            if not (mark and mark == self._mark and fresh):
                self._mark, self._kept_until = mark, later(latest.now, _KEPT_FOR)
                self._kept = {}
            return mark, dict(self._kept)

    def _ask(self, issues: Sequence[IssueRef], mark: str) -> Known:
        numbers = {f"n{place}": int(issue.key) for place, issue in enumerate(issues)}
        reply = self._graphql.ask(documents.pulls(len(issues)), numbers, Purpose.DISCOVER)
        told = reply.data["repository"]
        found = {
            issue: linked
            for place, issue in enumerate(issues)
            if (linked := self._linked(told.get(f"i{place}"))) is not None
        }
        with self._lock:
            if mark and self._mark == mark:
                self._kept |= found
        return found

    def _linked(self, told: Any) -> tuple[LinkedPull, ...] | None:
        """None if the issue is not there, or this token may not know."""
        there = convert(told, IssueWithPulls).closed_by_pull_requests_references if told else None
        if there is None:
            return None
        nodes = there.nodes or ()
        return tuple(_linked(node, self._translator) for node in nodes if node is not None)

    def texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Of the open pull requests into this repository that come from that branch."""
        head = f"{repo.partition('/')[0]}:{branch}"
        listed = self._door.look("/pulls", purpose=Purpose.LOOK, params={"head": head})
        pulls = decode(listed.body, list[RestPull])
        return tuple(f"{pull.title}\n\n{pull.body or ''}" for pull in pulls)


def _linked(node: ClosingPull, translator: Translator) -> LinkedPull:
    ended_at = node.merged_at or node.closed_at
    fate = _FATES.get(node.state, PullFate.OPEN)
    labels = node.labels.nodes if node.labels else None
    return LinkedPull(
        ref=IssueRef(node.repository.name_with_owner, str(node.number)),
        author=person_of(node.author),
        fate=fate,
        opened_at=whole_second(node.created_at),
        ended_at=whole_second(ended_at) if ended_at and fate is not PullFate.OPEN else None,
        head=node.head_ref_name,
        foreign=node.is_cross_repository,
        labels=translator.labels(label.name for label in labels or () if label is not None),
    )
