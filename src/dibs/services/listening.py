"""What a tracker sends by itself, turned into one hint to the workers of a folder.

Whoever cannot prove that it comes from the tracker is told nothing but no. What comes again, what
is about other repositories and what cannot make an issue free is dropped: most of what a tracker
tells is a fleet's own work, which must not keep the fleet awake. The rest is gathered for a moment,
so that a hundred changes at once are one hint.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from dibs.core.card import Card, parse_mark
from dibs.core.errors import Unwritable
from dibs.core.ids import LocalTime
from dibs.core.pipeline import Pipeline
from dibs.ports.system import Clock, Deliveries, Happening, Rubbish, Waker

_log = logging.getLogger("dibs.listening")
_GATHERED_S = 0.5
_LONG_S = 3600.0
_MOST_REMEMBERED = 10_000
_SELDOM_S = 60.0
_MARK = "<!--"


class Did(StrEnum):
    """What came of a delivery."""

    WOKE = "woke"
    NOTED = "noted"
    """Nothing to do for a worker, but something for a person to know."""
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


class Seldom:
    """What anybody can cause is told now and then only: a flood of it must not fill the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._from = LocalTime(0.0)
        self._untold = 0

    def untold(self) -> int | None:
        """How many were not told before this one; None if it is not, either."""
        now = self._clock.now()
        if now < self._from:
            self._untold += 1
            return None
        told, self._untold, self._from = self._untold, 0, LocalTime(now + _SELDOM_S)
        return told


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
        """Of those repositories: they may get another name while we listen."""
        self._numbers: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._refusals = Seldom(clock)
        self._news = threading.Event()
        self._ending = threading.Event()
        self._stirred = threading.Event()
        """Either of them."""
        self.healthy = True
        """Whether the last hint could be given."""

    def receive(self, body: bytes, headers: Mapping[str, str]) -> Heard:
        """Decide about one delivery, and remember to wake the workers if it may concern them."""
        if not self._deliveries.vouched_for(body, headers):
            return self._refuse()
        number = self._deliveries.number(headers)
        try:
            happening = self._deliveries.read(body, headers)
        except Rubbish as flaw:
            return Heard(Did.RUBBISH, number, why=str(flaw))
        if self._is_repeated(number):
            return Heard(Did.REPEATED, number, happening)
        did, why = self._judge(happening)
        if did is Did.WOKE:
            self._news.set()
            self._stirred.set()
        return Heard(did, number, happening, why)

    def _refuse(self) -> Heard:
        with self._lock:
            untold = self._refusals.untold()
        why = f"and {untold} more before it" if untold else ""
        return Heard(Did.REFUSED, why=why, worth_telling=untold is not None)

    def wake_workers(self) -> None:
        """Until told to end: a hint for each moment in which something happened."""
        while not self._ending.is_set():
            self._clock.wait(self._stirred, _LONG_S)
            self._stirred.clear()
            if self._news.is_set():
                self._clock.wait(self._ending, _GATHERED_S)
                self._wake()

    def end(self) -> None:
        self._ending.set()
        self._stirred.set()

    def _wake(self) -> None:
        self._news.clear()  # first: what happens while we write is another hint
        try:
            self._waker.wake()
        except Unwritable as failure:
            _log.warning("workers cannot be woken, and find out by polling: %s", failure)
            self.healthy = False
        else:
            self.healthy = True

    # Deciding

    def _is_repeated(self, number: str) -> bool:
        if not number:
            return False
        with self._lock:
            known = number in self._numbers
            self._numbers[number] = None
            self._numbers.move_to_end(number)
            while len(self._numbers) > _MOST_REMEMBERED:
                self._numbers.popitem(last=False)
            return known

    def _judge(self, happening: Happening) -> tuple[Did, str]:
        if happening.event == "ping":
            return Did.PONG, ""
        if not happening.repo:
            return Did.IGNORED, "nothing here depends on such events"
        if not self._is_ours(happening):
            return Did.IGNORED, "it is about another repository"
        if happening.event == "repository":
            return _about_the_repository(happening)
        if may_free_an_issue(happening, self._pipeline):
            return Did.WOKE, ""
        return Did.IGNORED, "it makes no issue free"

    def _is_ours(self, happening: Happening) -> bool:
        names = {happening.repo.casefold(), happening.was_repo.casefold()}
        with self._lock:
            if names & self._repos and happening.repo_id:
                self._ids.add(happening.repo_id)
            return bool(names & self._repos) or happening.repo_id in self._ids


def may_free_an_issue(happening: Happening, pipeline: Pipeline) -> bool:
    """Whether a worker that found nothing might find something now. In doubt, yes."""
    label = happening.label.casefold()
    match happening.event, happening.action:
        case "issues", _ if happening.on_pull:
            return False
        case "issues", "opened" | "reopened" | "unassigned" | "unlocked":
            return True
        case "issues", "labeled":
            return label in _inviting(pipeline)
        case "issues", "unlabeled":
            return label in _hindering(pipeline)
        case "issue_comment", action if not happening.on_pull:
            return _says_more_than_a_card(happening.comment, gone=action == "deleted")
        case "label", "deleted" | "edited":
            return True
        case "pull_request", "closed" | "edited":
            return True
        case _:
            return False


def _inviting(pipeline: Pipeline) -> set[str]:
    """What an issue gets when it is to be worked: a stage, an approval, a priority."""
    worked = (stage for stage in pipeline.stages if not stage.final)
    entries = (label for stage in worked for label in stage.entry_labels)
    return {label.casefold() for label in (*entries, *pipeline.priorities)}


def _hindering(pipeline: Pipeline) -> set[str]:
    """What keeps workers off while it is there; a stage does beside another one."""
    stages = (stage.label for stage in pipeline.stages)
    return {label.casefold() for label in (pipeline.labels.claimed, *pipeline.vetoes, *stages)}


def _says_more_than_a_card(comment: str, *, gone: bool) -> bool:
    """A claim is told by its labels, and a renewal frees nothing. People's words free nothing.

    Other marks may: a word about the whole fleet, another tool's release, a card that was deleted.
    """
    if _MARK not in comment:
        return False
    return gone or not isinstance(parse_mark(comment), Card)


def _about_the_repository(happening: Happening) -> tuple[Did, str]:
    match happening.action:
        case "renamed" | "transferred":
            before = happening.was_repo or "the repository"
            return Did.NOTED, f"{before} is {happening.repo} now; say so in tracker of dibs.toml"
        case "archived":
            return Did.NOTED, f"{happening.repo} was archived: nothing can be claimed in it"
        case "unarchived":
            return Did.WOKE, f"{happening.repo} is not archived any more"
        case "deleted":
            return Did.NOTED, f"{happening.repo} was deleted"
        case _:
            return Did.IGNORED, "it makes no issue free"
