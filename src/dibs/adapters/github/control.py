"""The granter and the pauses, kept as a log of comments on each repository's control issue.

`core.granter` writes the entries of the log and folds them. This module finds the control issue,
reads it as seldom as possible, and adds entries. The first of several repositories is the home: its
control issue has the granter and the pauses of the fleet; a repository's own pause is on its own
control issue. To appoint a granter, we write an entry, wait until every reader sees it, and read
the log again: the result is what everybody sees.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta

from dibs.adapters.github.batch import under_way
from dibs.adapters.github.client import Purpose
from dibs.adapters.github.graphql import ControlReading
from dibs.adapters.github.shapes import whole_second
from dibs.adapters.github.tracker import MOST_COMMENTS, GithubTracker
from dibs.adapters.github.trust import Judging
from dibs.core.durations import UNSEEN_WRITE, format_duration
from dibs.core.eligibility import Pause, PauseScope
from dibs.core.errors import DibsError, Misuse, NoSuchIssue, Unavailable
from dibs.core.granter import (
    CONTROL_BODY,
    CONTROL_LABEL,
    CONTROL_TITLE,
    Control,
    Granter,
    Owner,
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
_RECENT_S = 30.0
_MANY = 2000
_QUIET = timedelta(minutes=10)
"""After so long without a change, comments that GitHub counts and does not list are hidden, not
late: it hides what flagged accounts wrote, and a count may be wrong for good. Later readings may
lack as many; a reading that lacks fewer lowers that number, or it would excuse a late comment."""


class RepositoryControl:
    """The control issue of a repository."""

    def __init__(self, tracker: GithubTracker, clock: Clock, settle: timedelta) -> None:
        self._tracker, self._readings = tracker, tracker.control_readings
        self.repository = self._readings.repository
        self.host = tracker.door.transport.api.host
        self._ref = tracker.door.translator.ref
        self._clock = clock
        self._settle_s = settle.total_seconds()
        self._looked = False
        self._asking = threading.Lock()
        """Held while reading: of many threads that find the last reading too old, only one asks."""

    @property
    def ref(self) -> IssueRef | None:
        """The control issue, if the last reading found any."""
        number = self._readings.number
        return None if number is None else self._ref(number)

    # Reading

    def standing(self, since: LocalTime) -> Control:
        """The folded log, from a reading at `since` or later; reads the log if needed."""
        reading = self._readings.since(since)
        if reading is None:
            with self._asking:
                reading = self._readings.since(since) or self.read()
        return reading.control

    def read(self) -> ControlReading:
        """Find the control issue and read its log now; an unchanged log costs no budget."""
        asked_at = self._clock.now()
        if self.ref is None and not self._looked:
            # First over GraphQL, in one request; from then on an unchanged log is free over REST.
            self._looked = True
            self._tracker.find_control()
            if (found := self._readings.since(asked_at)) is not None:
                return found
        for _ in range(2):
            judging = Judging(self._tracker.trust, Purpose.LOOK)
            shape = self._tracker.control_issue(judging)
            if shape is None:
                return self._readings.take(None, (), asked_at)
            ref = self._ref(shape.number)
            try:
                comments, now, whole = self._tracker.comments(ref, judging)
            except NoSuchIssue:
                continue
            missing = max(0, shape.comments - len(comments))
            more = missing > self._readings.hidden
            quiet = now - whole_second(shape.updated_at) >= _QUIET
            if not whole or (more and not quiet):
                raise Unavailable(
                    f"{ref}: {len(comments)} of the control issue's {shape.comments} comments "
                    "could be read"
                )
            if more:
                _log.warning("%s", self._hides(ref, missing))
            return self._readings.take(shape.number, comments, asked_at, hidden=missing)
        raise Unavailable(f"{self.repository}: its control issue comes and goes")

    def _listed_ref(self) -> IssueRef | None:
        """The control issue as GitHub lists it now: the lowest number by a trusted author."""
        shape = self._tracker.control_issue(Judging(self._tracker.trust, Purpose.FINISH))
        return None if shape is None else self._ref(shape.number)

    def _hides(self, ref: IssueRef, missing: int) -> str:
        return (
            f"GitHub counts {missing} more comments of the control issue {ref} than it lists, "
            f"and nothing was new for {format_duration(_QUIET)}: dibs goes by the list; it hides "
            "what flagged accounts wrote"
        )

    def worries(self) -> Iterator[str]:
        """Warnings if the control issue is almost full, or has comments that nobody can read.

        Any account may fill an open conversation, and a full issue takes no pause and no granter.
        """
        if (hidden := self._readings.hidden) and self.ref is not None:
            yield self._hides(self.ref, hidden)
        shape = self._tracker.control_issue(Judging(self._tracker.trust, Purpose.LOOK))
        if shape is None or shape.comments < _MANY:
            return
        yield (
            f"the control issue {self._ref(shape.number)} has {shape.comments} of {MOST_COMMENTS} "
            "comments, the most that GitHub takes: if strangers wrote them, lock its conversation"
        )

    # Writing

    def say(self, body: str) -> Comment:
        """Add an entry to the log; make the control issue first if the repository has none."""
        ref = self._listed_ref() or self.make()
        if self._readings.keyring is not None:
            body = sign(body, ref, self._readings.keyring)
        try:
            posted = self._tracker.post_comment(ref, body, Purpose.FINISH)
        except Unavailable:
            self._clock.sleep(self._settle_s)
            posted = self._find_posted(body)
        with under_way(ref):
            posted = self._tracker.believed(posted)
        self._readings.add(posted)
        return posted

    def _find_posted(self, body: str) -> Comment:
        """Find our comment after its reply was lost. Raises Unavailable if the comment was lost
        too; then the caller may post again.

        A pause is the only entry with possibly the same text as an earlier entry. A pause in the
        log that has been lifted is an earlier entry, so only pauses in force count.
        """
        reading = self.read()
        equal = [comment for comment in reading.comments if comment.body == body]
        if isinstance(parse_entry(body), PauseWord):
            in_force = {comment.id for _, comment in reading.control.paused.values()}
            equal = [comment for comment in equal if comment.id in in_force]
        if not equal:
            raise Unavailable(f"{self.repository}: what was said on the control issue was lost")
        return equal[-1]

    def make(self) -> IssueRef:
        """Make the control issue. If two are made at the same time, the lower number counts, and we
        close ours if its number is higher.
        """
        self._tracker.make_label(CONTROL_LABEL)
        draft = Draft(CONTROL_TITLE, CONTROL_BODY, frozenset({CONTROL_LABEL}))
        made = self._tracker.make(draft)
        self._tracker.insist_made_counts(made)
        mine = self._ref(made.number)
        self._clock.sleep(self._settle_s)
        found = self._listed_ref()
        if found is None:
            raise Unavailable(f"{mine} is the control issue, but GitHub does not list it yet")
        if found != mine:
            _log.info("%s is the control issue, so %s is not needed", found, mine)
            with suppress(DibsError):
                self._tracker.close(mine)
        return found

    def seen_with(self, comment: Comment) -> Control:
        """Read the log until our entry `comment` is in it, and return the folded log."""
        self._clock.sleep(self._settle_s)
        for pause_s in UNSEEN_WRITE.pauses():
            self._clock.sleep(pause_s)
            reading = self.read()
            if any(entry.id == comment.id for entry in reading.comments):
                return reading.control
        raise Unavailable(f"{self.repository}: what was said on the control issue is not seen")


class GithubControl:
    """`Granters` and `Pauses` for one or several repositories."""

    def __init__(
        self, trackers: Sequence[GithubTracker], clock: Clock, *, settle: timedelta | None = None
    ) -> None:
        """`settle`: as set in the settings; None: the trackers' own."""
        self._issues = tuple(
            RepositoryControl(tracker, clock, tracker.traits.settle if settle is None else settle)
            for tracker in trackers
        )
        self._home = self._issues[0]
        self._clock = clock

    def owner(self) -> Owner:
        """The first repository and its server: a mirror elsewhere has the same name."""
        name = f"github:{self._home.host}/{self._home.repository}"
        return Owner(name.lower(), name)

    # Who grants

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:
        """The granter by a reading at `since` or later; by a reading now without `since`."""
        home = self._home
        return (home.read().control if since is None else home.standing(since)).granter

    def lately(self) -> Granter | None:
        """The granter by a reading of the last 30 seconds."""
        return self.granter(since=self._recently())

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        """Appoint `granter` if the present granter is `instead_of`, or nobody is appointed.

        Returns the granter by the log afterwards.
        """
        control = self._home.read().control
        if control.granter is not None and control.granter != instead_of:
            return control.granter
        posted = self._home.say(render_appointment(granter, over=control.appointment))
        standing = self._home.seen_with(posted).granter
        if standing is None:
            raise Unavailable(
                f"{self._home.repository}: the control issue does not show the appointment yet"
            )
        return standing

    # What is paused

    def pauses(self) -> tuple[Pause, ...]:
        found = [
            issue.standing(self._recently()).pause(PauseScope.REPOSITORY, repo=issue.repository)
            for issue in self._issues
        ]
        fleet = self._home.standing(self._recently()).pause(PauseScope.FLEET, repo="")
        return tuple(pause for pause in (fleet, *found) if pause is not None)

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None:
        with persons_word():
            for issue in self._issues_for(scope, repo):
                issue.say(render_pause(PauseWord(scope, by, reason)))

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:
        lifted = False
        with persons_word():
            for issue in self._issues_for(scope, repo):
                paused = issue.standing(self._clock.now()).paused.get(scope)
                if paused is not None:
                    _, entry = paused
                    issue.say(render_resume(ResumeWord(scope, by, over=entry.id)))
                    lifted = True
        return lifted

    def _issues_for(self, scope: PauseScope, repo: str) -> tuple[RepositoryControl, ...]:
        """The control issues for a pause: home for the fleet; for an empty `repo` all of them."""
        if scope is PauseScope.FLEET:
            return (self._home,)
        about = tuple(issue for issue in self._issues if repo in ("", issue.repository))
        if not about:
            names = ", ".join(issue.repository for issue in self._issues)
            raise Misuse(f"{repo} is not a repository of this backlog; they are {names}")
        return about

    def _recently(self) -> LocalTime:
        return LocalTime(self._clock.now() - _RECENT_S)

    # Setting up

    def prepare(self) -> tuple[str, ...]:
        """Make the missing control issues; a line for each, for people."""
        made = []
        for issue in self._issues:
            issue.read()
            if issue.ref is None:
                made.append(f"control issue {issue.make()}")
        return tuple(made)

    # Room

    def worries(self) -> tuple[str, ...]:
        return tuple(worry for issue in self._issues for worry in issue.worries())
