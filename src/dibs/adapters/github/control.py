"""Who grants and what is paused, kept on the control issue of each repository.

The log is written by `core.granter` and folded by it. Here it is found, read as seldom as can be,
and written on. Of several repositories the first is home: the granter and the fleet's pauses stand
there, a repository's own pause in each. An appointment is written, given the time that every reader
needs to see it, and read again: what stands then is what everybody sees.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from dibs.adapters.github.batch import under_way
from dibs.adapters.github.client import Purpose
from dibs.adapters.github.control_log import ControlReading, ControlReadings
from dibs.adapters.github.rest import OverRest
from dibs.adapters.github.tracker import GithubTracker
from dibs.core.eligibility import Pause, PauseScope
from dibs.core.errors import DibsError, Misuse, NoSuchIssue, Unavailable
from dibs.core.granter import (
    CONTROL_BODY,
    CONTROL_LABEL,
    CONTROL_TITLE,
    Control,
    Granter,
    PauseWord,
    ResumeWord,
    parse_entry,
    render_appointment,
    render_pause,
    render_resume,
)
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.issue import Comment, Draft
from dibs.core.signing import sign
from dibs.ports.system import Clock
from dibs.ports.tracker import persons_word

_log = logging.getLogger("dibs.github.control")
_LATELY_S = 30.0
_MOST = 2500
_MANY = 2000
_READINGS = 4
_READING_PAUSE_S = 0.5


class ControlIssue:
    """One repository's."""

    def __init__(self, tracker: GithubTracker, clock: Clock) -> None:
        self._tracker = tracker
        self._rest: OverRest = tracker.rest
        self._readings: ControlReadings = tracker.control_readings
        self._clock = clock
        self._settle_s = tracker.traits.settle.total_seconds()
        self._looked = False
        self._asking = threading.Lock()
        """So that of many threads that find it outdated only one asks."""

    @property
    def repository(self) -> str:
        return self._readings.repository

    @property
    def ref(self) -> IssueRef | None:
        number = self._readings.number
        return None if number is None else self._ref(number)

    # Reading

    def standing(self, since: LocalTime) -> Control:
        """What stands, as it was read then or later."""
        reading = self._readings.since(since)
        if reading is None:
            with self._asking:
                reading = self._readings.since(since) or self.read()
        return reading.control

    def read(self) -> ControlReading:
        """Asks now which issue it is and what it says; what has not changed costs nothing."""
        asked_at = self._clock.now()
        if self.ref is None and not self._looked:
            # Over GraphQL it is one request; from then on nothing new is free over REST.
            self._looked = True
            self._tracker.find_control()
            if (found := self._readings.since(asked_at)) is not None:
                return found
        for _ in range(2):
            judging = self._tracker.judging(Purpose.LOOK)
            shape = self._rest.control_issue(judging)
            if shape is None:
                return self._readings.take(None, (), asked_at)
            ref = self._ref(shape.number)
            try:
                comments, _, whole = self._rest.comments(ref, judging)
            except NoSuchIssue:
                continue
            if not whole or len(comments) < shape.comments:
                raise Unavailable(f"{ref}: not all of the control issue's comments could be read")
            return self._readings.take(shape.number, comments, asked_at)
        raise Unavailable(f"{self.repository}: its control issue comes and goes")

    def _find(self) -> IssueRef | None:
        """The lowest number whose author counts."""
        shape = self._rest.control_issue(self._tracker.judging(Purpose.FINISH))
        return None if shape is None else self._ref(shape.number)

    def _ref(self, number: int) -> IssueRef:
        return IssueRef(self.repository, str(number))

    def worry(self) -> str | None:
        """Anybody may fill an open conversation, and what is full takes no pause and no granter."""
        shape = self._rest.control_issue(self._tracker.judging(Purpose.LOOK))
        if shape is None or shape.comments < _MANY:
            return None
        return (
            f"the control issue {self._ref(shape.number)} has {shape.comments} of {_MOST} "
            "comments, the most that GitHub takes: if strangers wrote them, lock its conversation"
        )

    # Writing

    def say(self, body: str) -> Comment:
        """A new entry; the issue is made if there is none."""
        ref = self._find() or self.make()
        if self._readings.keyring is not None:
            body = sign(body, ref, self._readings.keyring)
        try:
            posted = self._rest.comment(ref, body, Purpose.FINISH)
        except Unavailable:
            self._clock.sleep(self._settle_s)
            posted = self._landed(body)
        with under_way(ref):
            posted = self._tracker.believed(posted)
        self._readings.add(posted)
        return posted

    def _landed(self, body: str) -> Comment:
        """The reply was lost: was the comment? Raises Unavailable if so, and may be said again.

        A pause is the one entry whose words may have been said before. If they were lifted since,
        that was another time.
        """
        read = self.read()
        said = [comment for comment in read.comments if comment.body == body]
        if isinstance(parse_entry(body), PauseWord):
            in_force = {comment.id for _, comment in read.control.paused.values()}
            said = [comment for comment in said if comment.id in in_force]
        if not said:
            raise Unavailable(f"{self.repository}: what was said on the control issue was lost")
        return said[-1]

    def make(self) -> IssueRef:
        """Make the issue. If somebody else makes one at the same time, the lower number counts."""
        self._rest.make_label(CONTROL_LABEL)
        draft = Draft(CONTROL_TITLE, CONTROL_BODY, frozenset({CONTROL_LABEL}))
        made = self._rest.make(draft)
        self._tracker.insist_made_counts(made)
        mine = self._ref(made.number)
        self._clock.sleep(self._settle_s)
        found = self._find()
        if found is None:
            raise Unavailable(f"{mine} is the control issue, but GitHub does not list it yet")
        if found != mine:
            _log.info("%s is the control issue, so %s is not needed", found, mine)
            with suppress(DibsError):
                self._rest.close(mine)
        return found

    def seen_with(self, comment: Comment) -> Control:
        """The log as it is read by others, once our own entry is in it."""
        self._clock.sleep(self._settle_s)
        for reading in range(_READINGS):
            if reading:
                self._clock.sleep(_READING_PAUSE_S)
            read = self.read()
            if any(one.id == comment.id for one in read.comments):
                return read.control
        raise Unavailable(f"{self.repository}: what was said on the control issue is not seen")


class GithubControl:
    """`Granters` and `Pauses` for one or several repositories."""

    def __init__(self, trackers: Sequence[GithubTracker], clock: Clock) -> None:
        self._issues = tuple(ControlIssue(tracker, clock) for tracker in trackers)
        self._home = self._issues[0]
        self._clock = clock

    # Who grants

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:
        home = self._home
        return (home.read().control if since is None else home.standing(since)).granter

    def lately(self) -> Granter | None:
        return self._home.standing(self._lately()).granter

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        control = self._home.read().control
        if control.granter is not None and control.granter != instead_of:
            return control.granter
        posted = self._home.say(render_appointment(granter, over=control.appointment))
        standing = self._home.seen_with(posted).granter
        if standing is None:
            raise Unavailable(f"{self._home.repository}: nobody is appointed, as it seems")
        return standing

    # What is paused

    def pauses(self) -> tuple[Pause, ...]:
        found = [
            issue.standing(self._lately()).pause(PauseScope.REPOSITORY, repo=issue.repository)
            for issue in self._issues
        ]
        fleet = self._home.standing(self._lately()).pause(PauseScope.FLEET, repo="")
        return tuple(pause for pause in (fleet, *found) if pause is not None)

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None:
        with persons_word():
            for issue in self._about(scope, repo):
                issue.say(render_pause(PauseWord(scope, by, reason)))

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:
        lifted = False
        with persons_word():
            for issue in self._about(scope, repo):
                standing = issue.standing(self._clock.now()).paused.get(scope)
                if standing is not None:
                    _, said = standing
                    issue.say(render_resume(ResumeWord(scope, by, over=said.id)))
                    lifted = True
        return lifted

    def _about(self, scope: PauseScope, repo: str) -> tuple[ControlIssue, ...]:
        """On which control issues that is said: without a name, on those of all repositories."""
        if scope is PauseScope.FLEET:
            return (self._home,)
        about = tuple(issue for issue in self._issues if repo in ("", issue.repository))
        if not about:
            names = ", ".join(issue.repository for issue in self._issues)
            raise Misuse(f"{repo} is not a repository of this backlog; they are {names}")
        return about

    def _lately(self) -> LocalTime:
        return LocalTime(self._clock.now() - _LATELY_S)

    # Setting up

    def prepare(self) -> tuple[str, ...]:
        """Make the control issues that are missing, and say so."""
        made = []
        for issue in self._issues:
            issue.read()
            if issue.ref is None:
                made.append(f"control issue {issue.make()}")
        return tuple(made)

    # Room

    def worries(self) -> tuple[str, ...]:
        worries = (issue.worry() for issue in self._issues)
        return tuple(worry for worry in worries if worry is not None)
