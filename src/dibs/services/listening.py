"""Turning the webhook deliveries of a tracker into hints to the workers of a folder.

A sender without a valid proof is refused and learns nothing more. Dropped are repeated deliveries,
deliveries about other repositories, and changes that cannot make an issue free: most deliveries
come from the fleet's own work, which must not keep the fleet awake. The rest is gathered for a
moment, so that a hundred changes at once make one hint. A change that stops work, such as a closed
issue, is a hint to the issue's holder alone.
"""

import logging
import threading
from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from dibs.core.bounded import Bounded
from dibs.core.card import Card, parse_mark
from dibs.core.errors import Unwritable
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.pipeline import Pipeline
from dibs.ports.system import Clock, Deliveries, Happening, Rubbish, Waker

_log = logging.getLogger("dibs.listening")
_GATHERED_S = 0.5
_LONG_S = 3600.0
_MOST_REMEMBERED = 10_000
_LOG_EVERY_S = 60.0
_MARK = "<!--"


class Did(StrEnum):
    """The result of a delivery."""

    WOKE = "woke"
    NOTED = "noted"
    """No work for a worker, but news that a person should read."""
    PONG = "pong"
    IGNORED = "ignored"
    REPEATED = "repeated"
    RUBBISH = "rubbish"
    REFUSED = "refused"


class Heard(Struct, frozen=True):
    did: Did
    number: str = ""
    happening: Happening | None = None
    why: str = ""
    worth_telling: bool = True


class LogThrottle:
    """Admits one log line a minute, for events that any sender can cause: no flood fills the log.

    Not safe for threads by itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed_until = LocalTime(0.0)
        self._suppressed = 0

    def admit(self) -> int | None:
        """Number of events suppressed since the last admitted event; None: suppress the event."""
        now = self._clock.now()
        if now < self._closed_until:
            self._suppressed += 1
            return None
        suppressed, self._suppressed = self._suppressed, 0
        self._closed_until = LocalTime(now + _LOG_EVERY_S)
        return suppressed


class Listening:
    """Safe for many threads."""

    def __init__(
        self,
        deliveries: Deliveries,
        waker: Waker,
        pipeline: Pipeline,
        clock: Clock,
        *,
        repos: Collection[str],
    ) -> None:
        self._deliveries = deliveries
        self._waker = waker
        self._pipeline = pipeline
        self._clock = clock
        self._repos = {repo.casefold() for repo in repos}
        self._ids: set[int] = set()
        """The ids of these repositories: a repository may be renamed while we listen."""
        self._numbers: Bounded[str, None] = Bounded(_MOST_REMEMBERED)
        self._lock = threading.Lock()
        self._refusals = LogThrottle(clock)
        self._news = threading.Event()
        self._ending = threading.Event()
        self._stirred = threading.Event()
        """Set with `_news`, `_stopped` or `_ending`."""
        self._stopped: set[IssueRef] = set()
        """Issues whose holders have to stop."""
        self.healthy = True
        """Whether the last hint could be written."""

    def receive(self, body: bytes, headers: Mapping[str, str]) -> Heard:
        """Judge a delivery, and have the workers woken if an issue may be free now."""
        if not self._deliveries.vouched_for(body, headers):
            with self._lock:
                suppressed = self._refusals.admit()
            why = f"and {suppressed} more before it" if suppressed else ""
            return Heard(Did.REFUSED, why=why, worth_telling=suppressed is not None)
        number = self._deliveries.number(headers)
        try:
            happening = self._deliveries.read(body, headers)
        except Rubbish as flaw:
            return Heard(Did.RUBBISH, number, why=str(flaw))
        if number:
            with self._lock:
                repeated = number in self._numbers
                self._numbers[number] = None
            if repeated:
                return Heard(Did.REPEATED, number, happening)
        did, why = self._judge(happening)
        if did is Did.WOKE:
            self._news.set()
            self._stirred.set()
        elif did is Did.IGNORED and self._ours(happening) and stops_work(happening, self._pipeline):
            assert happening.issue is not None, "work stops for a change of an issue"
            self._stopped.add(happening.issue)
            self._stirred.set()
            return Heard(Did.WOKE, number, happening, "its holder stops")
        return Heard(did, number, happening, why)

    def wake_workers(self) -> None:
        """Write a hint for each moment with news, until `end` is called."""
        while not self._ending.is_set():
            self._clock.wait(self._stirred, _LONG_S)
            self._stirred.clear()
            if self._news.is_set() or self._stopped:
                self._clock.wait(self._ending, _GATHERED_S)
                self._wake()

    def end(self) -> None:
        self._ending.set()
        self._stirred.set()

    def _wake(self) -> None:
        news = self._news.is_set()
        self._news.clear()  # first: news during the write make another hint
        try:
            if news:
                self._waker.wake()
            while self._stopped:
                self._waker.wake(self._stopped.pop())
        except Unwritable as failure:
            _log.warning("workers cannot be woken, and find out by polling: %s", failure)
            self.healthy = False
        else:
            self.healthy = True

    def _ours(self, happening: Happening) -> bool:
        """Whether the event is about one of our repositories, by its present or earlier name."""
        names = {happening.repo.casefold(), happening.was_repo.casefold()}
        with self._lock:
            if names & self._repos and happening.repo_id:
                self._ids.add(happening.repo_id)
            return bool(names & self._repos) or happening.repo_id in self._ids

    def _judge(self, happening: Happening) -> tuple[Did, str]:
        """The result of a new delivery, and the reason."""
        if happening.event == "ping":
            return Did.PONG, ""
        if not happening.repo:
            return Did.IGNORED, "nothing here depends on such events"
        if not self._ours(happening):
            return Did.IGNORED, "it is about another repository"
        match happening.event, happening.action:
            case "repository", "renamed" | "transferred":
                before = happening.was_repo or "the repository"
                text = f"{before} is {happening.repo} now; say so in tracker of dibs.toml"
                return Did.NOTED, text
            case "repository", "archived":
                return Did.NOTED, f"{happening.repo} was archived: nothing can be claimed in it"
            case "repository", "unarchived":
                return Did.WOKE, f"{happening.repo} is not archived any more"
            case "repository", "deleted":
                return Did.NOTED, f"{happening.repo} was deleted"
            case _:
                woke = may_free_an_issue(happening, self._pipeline)
                return (Did.WOKE, "") if woke else (Did.IGNORED, "it makes no issue free")


def stops_work(happening: Happening, pipeline: Pipeline) -> bool:
    """Whether the holder of the issue has to stop: the issue was closed, or got a veto label."""
    if happening.issue is None or happening.on_pull or happening.event != "issues":
        return False
    vetoes = {label.casefold() for label in pipeline.vetoes}
    labelled = happening.action == "labeled" and happening.label.casefold() in vetoes
    return labelled or happening.action == "closed"


def may_free_an_issue(happening: Happening, pipeline: Pipeline) -> bool:
    """Whether an idle worker might find an issue now. True in doubt."""
    label = happening.label.casefold()
    match happening.event, happening.action:
        case "issues", _ if happening.on_pull:
            return False
        case "issues", "opened" | "reopened" | "unassigned" | "unlocked":
            return True
        case "issues", "labeled":
            # Labels that invite workers: a stage, an approval, a priority.
            worked = (stage for stage in pipeline.stages if not stage.final)
            entries = (entry for stage in worked for entry in stage.entry_labels)
            return label in {name.casefold() for name in (*entries, *pipeline.priorities)}
        case "issues", "unlabeled":
            # Labels that keep workers off; a stage's label does so beside another stage's label.
            stages = (stage.label for stage in pipeline.stages)
            hindering = (pipeline.labels.claimed, *pipeline.vetoes, *stages)
            return label in {name.casefold() for name in hindering}
        case "issue_comment", action if not happening.on_pull:
            # A comment without a mark frees no issue. A card neither: labels show a claim and its
            # end, and a renewal frees no issue. A deleted card may; so may all other marks, such
            # as a pause or resume of the fleet, or another tool's release.
            return _MARK in happening.comment and (
                action == "deleted" or not isinstance(parse_mark(happening.comment), Card)
            )
        case "label", "deleted" | "edited":
            return True
        case "pull_request", "closed" | "edited":
            return True
        case _:
            return False
