"""What was last read of a repository's control issue, by whoever read anything there.

Every GraphQL reading brings the control issue's log along. Here the latest is kept with the local
time at which it was asked for, so that somebody who needs to know who grants can tell whether it is
recent enough. Of several control issues the one with the lowest number counts, if its author does:
which one that is, every reading says anew.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from dibs.adapters.github.client import Purpose
from dibs.adapters.github.replies import GraphqlReply
from dibs.adapters.github.shapes import (
    ControlIssues,
    ControlLog,
    ControlLogs,
    Translator,
    convert,
    login_of,
)
from dibs.adapters.github.trust import Believing, Judging
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
    """Of one repository. Safe for many threads."""

    def __init__(
        self, translator: Translator, believing: Believing, keyring: Keyring | None = None
    ) -> None:
        self._translator = translator
        self._believing = believing
        self.keyring = keyring
        """With what the log is signed and verified; None: it is not."""
        self._lock = threading.Lock()
        self._number: int | None = None
        self._latest: ControlReading | None = None

    @property
    def repository(self) -> str:
        return self._translator.repository

    @property
    def number(self) -> int | None:
        """The control issue's, as it was when it was last looked for."""
        return self._number

    def since(self, moment: LocalTime) -> ControlReading | None:
        """The latest whole reading, if it was asked for then or later."""
        with self._lock:
            latest = self._latest
        return latest if latest is not None and latest.asked_at >= moment else None

    def take(
        self, number: int | None, comments: tuple[Comment, ...], asked_at: LocalTime
    ) -> ControlReading:
        """A whole log was read and judged; or there is none, if there is no number."""
        if number is not None and self.keyring is not None:
            comments = believed(comments, self._translator.ref(number), self.keyring)
        reading = ControlReading(asked_at, fold_control(comments), comments)
        with self._lock:
            if self._latest is None or asked_at >= self._latest.asked_at:
                self._number, self._latest = number, reading
        return reading

    def add(self, comment: Comment) -> None:
        """We wrote it ourselves, and other readers may see it a little later."""
        with self._lock:
            latest = self._latest
            if latest is None:
                return
            comments = (*latest.comments, comment)
            self._latest = ControlReading(latest.asked_at, fold_control(comments), comments)

    def take_along(self, field: str, reply: GraphqlReply, purpose: Purpose) -> None:
        """From a reading that was about something else. What is in doubt there changes nothing:
        whoever needs to know reads it by itself.
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
        with suppress(Outage):
            number = self._chosen(listed, judging)
            if number is None:
                self.take(None, (), reply.asked_at)
            elif number in logs:
                self._take_log(logs[number], judging, reply)

    def _chosen(self, listed: ControlIssues, judging: Judging) -> int | None:
        authors = [(one.number, login_of(one.author), one) for one in listed.nodes if one]
        return judging.lowest(
            (number, login, self._translator.believed(login, one.author_association))
            for number, login, one in authors
        )

    def _take_log(self, log: ControlLog, judging: Judging, reply: GraphqlReply) -> None:
        nodes = [node for node in log.comments.nodes if node is not None]
        if log.comments.page_info.earlier or len(nodes) < log.comments.total_count:
            return
        found = [self._translator.comment(node) for node in nodes]
        comments, whole = judging.comments(found, self._translator.ref(log.number))
        if whole:
            self.take(log.number, comments, reply.asked_at)
