"""The last reading of a repository's control issue, whichever request brought it.

Every GraphQL reading brings the control issue's log along. `ControlReadings` keeps the latest log
with the local time at which it was asked for, so that a caller who needs to know the granter can
tell whether the log is recent enough. Of several control issues the lowest number counts whose
author is trusted; every reading decides anew which one that is.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from dibs.adapters.github.client import Purpose
from dibs.adapters.github.replies import GraphqlReply
from dibs.adapters.github.shapes import (
    ControlIssues,
    ControlLogs,
    Translator,
    convert,
    login_of,
)
from dibs.adapters.github.trust import WriterTrust
from dibs.core.errors import Outage
from dibs.core.granter import Control, fold_control
from dibs.core.ids import LocalTime
from dibs.core.issue import Comment
from dibs.core.signing import Keyring, believed


class ControlReading(Struct, frozen=True):
    asked_at: LocalTime
    control: Control
    comments: tuple[Comment, ...] = ()


class ControlReadings:
    """The latest reading of a repository's control issue. Safe for many threads."""

    def __init__(
        self, translator: Translator, believing: WriterTrust, keyring: Keyring | None = None
    ) -> None:
        self._translator = translator
        self._believing = believing
        self.keyring = keyring
        """Signs and verifies the log; None: the log is not signed."""
        self._lock = threading.Lock()
        self._number: int | None = None
        self._latest: ControlReading | None = None

    @property
    def repository(self) -> str:
        return self._translator.repository

    @property
    def number(self) -> int | None:
        """The control issue's number by the latest reading."""
        return self._number

    def since(self, moment: LocalTime) -> ControlReading | None:
        """The latest complete reading if asked for at `moment` or later."""
        with self._lock:
            latest = self._latest
        return latest if latest is not None and latest.asked_at >= moment else None

    def take(
        self, number: int | None, comments: tuple[Comment, ...], asked_at: LocalTime
    ) -> ControlReading:
        """Take a complete log with judged authors. `number` None: no control issue exists."""
        if number is not None and self.keyring is not None:
            comments = believed(comments, self._translator.ref(number), self.keyring)
        reading = ControlReading(asked_at, fold_control(comments), comments)
        with self._lock:
            if self._latest is None or asked_at >= self._latest.asked_at:
                self._number, self._latest = number, reading
        return reading

    def add(self, comment: Comment) -> None:
        """Add a comment of our own, which GitHub may show to readers a little later."""
        with self._lock:
            latest = self._latest
            if latest is None:
                return
            comments = (*latest.comments, comment)
            self._latest = ControlReading(latest.asked_at, fold_control(comments), comments)

    def take_along(self, field: str, reply: GraphqlReply, purpose: Purpose) -> None:
        """Take the log that a GraphQL reply carries beside its main result.

        An incomplete or doubtful log is ignored: a caller who needs the log reads it directly.
        """
        data = reply.data.get(field)
        broken = reply.at(field, "controls") or reply.at(field, "logs")
        if not isinstance(data, Mapping) or "controls" not in data or broken is not None:
            return
        listed = convert(data["controls"], ControlIssues)
        logs = {log.number: log for log in convert(data["logs"], ControlLogs).nodes if log}
        if listed.page_info.more:
            return
        judging = self._believing.judging(purpose)
        authors = [(issue, login_of(issue.author)) for issue in listed.nodes if issue]
        with suppress(Outage):
            number = judging.lowest(
                (issue.number, login, self._translator.believed(login, issue.author_association))
                for issue, login in authors
            )
            if number is None:
                self.take(None, (), reply.asked_at)
                return
            log = logs.get(number)
            if log is None or log.comments.page_info.earlier:
                return
            nodes = [node for node in log.comments.nodes if node is not None]
            if len(nodes) < log.comments.total_count:
                return
            found = [self._translator.comment(node) for node in nodes]
            comments, whole = judging.comments(found, self._translator.ref(number))
            if whole:
                self.take(number, comments, reply.asked_at)
