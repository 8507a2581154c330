"""Which issues to try next, and how a crowd of workers keeps out of its own way.

Oldest first, the most urgent before that, later stages before earlier ones so that work in progress
is finished first. A worker that lost a race reaches at random into a wide window (`Spread`), and
narrows the window again with every win: with N workers waiting for one store, a window of W lets
about N/2W of the bids collide.

`Scanning` is for a tracker that is cheap to ask: one query for each claim. `Shortlisting` is for a
tracker that is not: one list for many claims.

A list costs one request, which is free while the tracker has no change to report. The worker reads
many of the listed issues at once, with their comments, and works them off one by one: a claim
judges that snapshot and reads none of its own. A snapshot holds for as long as lists show the issue
unchanged.

A list is made anew after a while, when a hint reports a change, and when it is used up. It is made
anew before every bid while other workers are around: each issue that they took since would cost a
comment. While others are busy, a worker tries any of the foremost issues rather than the first: a
few times as many as others took recently, and the whole list after a lost race. The numbers were
measured: docs/internals/adr/0023-one-list-for-many-claims.md.

`Resting` holds the issues that a worker leaves alone, and for how long, in local time only. The
reasons that keep an issue back are on the tracker, and are read again when the rest is over. Where
a read costs something, a change of the issue ends a rest that a refusal began, and so the rest may
be long.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dibs.core.eligibility import Lifts, Reason, reasons_with
from dibs.core.errors import NoSuchIssue
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime, StageName
from dibs.core.issue import Issue, Snapshot
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.system import Clock
from dibs.ports.tracker import Found, IssueQuery

if TYPE_CHECKING:
    from random import Random

    from dibs.services.backlog import Backlog


_MOST_RETURNS = 10_000
_LONGEST_REST_S = 900.0
_LASTING = reasons_with(lambda meaning: meaning.lifts is Lifts.WITH_A_CHANGE)
"""Only people and other programs lift these reasons: a draining worker does not wait for them."""
_WIDE_PAUSES = reasons_with(lambda meaning: meaning.lifts is Lifts.WITH_A_WORD)
"""A draining worker does not wait for these either. The rest is short all the same: to lift such a
pause changes no issue, so no change would end a long rest.
"""


class Patience(Struct, frozen=True):
    """How long a refused issue rests if its reasons name no time."""

    passing_s: float
    lasting_s: float
    until_changed: bool
    """Whether a change of the issue ends the rest."""


LOOKING_IS_CHEAP = Patience(passing_s=0.2, lasting_s=30.0, until_changed=False)
LOOKING_COSTS = Patience(passing_s=30.0, lasting_s=300.0, until_changed=True)
"""Long, because a change ends the rest; not for ever: to close a pull request changes no issue."""


class _Rest(Struct, frozen=True):
    until: LocalTime
    unless_changed_since: ServerTime | None = None


class Resting:
    """The issues which a worker leaves alone. Jobs add issues while the worker's loop scans."""

    def __init__(self, clock: Clock, patience: Patience = LOOKING_IS_CHEAP) -> None:
        self._clock = clock
        self._patience = patience
        self._rests: dict[IssueRef, _Rest] = {}
        self._hopeless: set[IssueRef] = set()
        self._returns: Counter[IssueRef] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rests)

    def leaves_alone(self, issue: Issue) -> bool:
        """Whether the issue rests, and has not changed since if a change ends the rest."""
        rest = self._rests.get(issue.ref)
        if rest is None:
            return False
        return rest.unless_changed_since in (None, issue.updated_at)

    @property
    def hopeless(self) -> int:
        return len(self._hopeless)

    def is_hopeless(self, issue: Issue) -> bool:
        """Whether the last attempt to claim met an obstacle which no worker can lift."""
        return issue.ref in self._hopeless and self.leaves_alone(issue)

    def rest(self, issue: IssueRef, seconds: float) -> None:
        """Leave the issue alone for a while."""
        self._start_rest(issue, seconds, None)

    def returned(self, issue: IssueRef, seconds: float) -> None:
        """Our own handler gave the issue back: leave it to another worker, longer each time."""
        with self._lock:
            self._returns[issue] += 1
            doublings = min(self._returns[issue] - 1, 10)
        self.rest(issue, min(seconds * (1 << doublings), _LONGEST_REST_S))

    def given_up(self, issue: Issue) -> None:
        """We cannot claim the issue at all: gone, transferred or locked."""
        with self._lock:
            self._hopeless.add(issue.ref)
        unless = issue.updated_at if self._patience.until_changed else None
        self._start_rest(issue.ref, _LONGEST_REST_S, unless)

    def refused(
        self, issue: Issue, reasons: tuple[Reason, ...], now: ServerTime, *, paid: bool = False
    ) -> None:
        """Rest until the reasons have lifted, or for long if only a person can lift them.

        `paid`: we learned of the refusal only after a bid. The bid has changed the issue as well,
        and a rest until the next change would end at once. So the rest is short and ends by time;
        the next look finds the reason without a bid.
        """
        patience = self._patience
        lasting = any(reason.code in _LASTING for reason in reasons)
        paused = any(reason.code in _WIDE_PAUSES for reason in reasons)
        if lasting or paused:
            with self._lock:
                self._hopeless.add(issue.ref)
        waits = [reason.until - now for reason in reasons if reason.until is not None]
        waits_s = max(max(waits, default=ZERO).total_seconds(), patience.passing_s)
        seconds = patience.lasting_s if lasting else waits_s
        if not patience.until_changed:
            self._start_rest(issue.ref, seconds, None)
        elif paid:
            self._start_rest(issue.ref, patience.passing_s, None)
        else:
            self._start_rest(issue.ref, seconds, issue.updated_at)

    def forget(self, issue: IssueRef) -> None:
        with self._lock:
            self._rests.pop(issue, None)
            self._hopeless.discard(issue)

    def forget_what_is_over(self) -> None:
        """Drop rests which are over. Most of the issues were finished by another worker."""
        now = self._clock.now()
        with self._lock:
            over = [issue for issue, rest in self._rests.items() if rest.until <= now]
            for issue in over:
                del self._rests[issue]
                self._hopeless.discard(issue)
            if len(self._returns) > _MOST_RETURNS:
                self._returns.clear()

    def _start_rest(self, issue: IssueRef, seconds: float, unless: ServerTime | None) -> None:
        with self._lock:
            self._rests[issue] = _Rest(LocalTime(self._clock.now() + seconds), unless)


WIDEST_WINDOW = 512
_NARROWING = 8
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0


class Candidate(Struct, frozen=True):
    issue: Issue
    stage: Stage
    now: ServerTime
    snapshot: Snapshot | None = None
    """The snapshot by which the issue was chosen, if it was read."""

    @property
    def untouched(self) -> bool:
        """Whether the issue has no comments, so a bidder has no comments to read first."""
        return self.issue.comment_count == 0


def urgency(issue: Issue, pipeline: Pipeline) -> int:
    """The rank of the issue's priority label: a lower rank is worked sooner, before any age."""
    for rank, label in enumerate(pipeline.priorities):
        if label in issue.labels:
            return rank
    return len(pipeline.priorities)


class Spread:
    """How far down the list a worker reaches: the top while alone, anywhere in a crowd."""

    def __init__(
        self, dice: "Random", *, widest: int = WIDEST_WINDOW, narrowing: int = _NARROWING
    ) -> None:
        self._dice = dice
        self._widest = widest
        self._narrowing = narrowing
        self._window = 1
        self._losses = 0
        self.holding = 0
        """How many issues this worker holds itself: they are no sign of a crowd."""

    @property
    def window(self) -> int:
        return self._window

    @property
    def in_a_crowd(self) -> bool:
        return self._window > 1

    def lost(self) -> None:
        """Open the window fully at once: then a fleet which starts together loses only once."""
        self._window = self._widest
        self._losses += 1

    def met(self) -> None:
        """Another worker is at the same issue: open the window fully, but count no lost bid."""
        self._window = self._widest

    def won(self) -> None:
        self._losses = 0
        self._window = max(1, self._window - self._narrowing)

    def pause_s(self) -> float:
        """A random pause, longer after losses in a row: winners work off the few issues left."""
        longest_s = min(_FIRST_PAUSE_S * (1 << min(self._losses, 10)), _LONGEST_PAUSE_S)
        return self._dice.uniform(0.0, longest_s)

    def skip(self) -> int:
        """How many of the foremost issues to leave to the rest of the crowd."""
        return self._dice.randrange(self._window)

    def pick(self, issues: list[Issue]) -> Issue:
        return self._dice.choice(issues)


class Scanning:
    """For a tracker which is cheap to ask: a query for each claim."""

    arrival_s = 0.1
    """Workers that are started together spread their first look over this time."""

    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self.resting = Resting(backlog.clock)

    @staticmethod
    def new_spread(dice: "Random") -> Spread:
        return Spread(dice)

    def next_candidate(self, stages: Iterable[Stage], spread: Spread) -> Candidate | None:
        """An issue which looks free, from the first of `stages` with a free issue.

        In a long list, the issue at the place which `spread` chooses. If the list ends before the
        place, any of the free issues on it.
        """
        self.resting.forget_what_is_over()
        marks = self._pipeline.labels
        without = (marks.claimed, marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            for urgent in (*((label,) for label in self._pipeline.priorities), ()):
                wanted = (*stage.entry_labels, *urgent)
                skip, limit = spread.skip(), 1 + len(self.resting)
                found = self._tracker.find(IssueQuery(wanted, without, limit=limit, skip=skip))
                if free := self._not_resting(found):
                    return Candidate(free[0], stage, found.now)
                if skip == 0:
                    continue
                whole = IssueQuery(wanted, without, limit=WIDEST_WINDOW + limit)
                found = self._tracker.find(whole)
                if free := self._not_resting(found):
                    return Candidate(spread.pick(free), stage, found.now)
        return None

    def _not_resting(self, found: Found) -> list[Issue]:
        return [issue for issue in found.issues if not self.resting.leaves_alone(issue)]

    def look_anew(self) -> None:
        """Does nothing: each query asks the tracker anew."""

    def anything_left(self, stages: Iterable[Stage]) -> bool:
        """Whether an issue of the stages may still need us: free, held by a worker, or resting."""
        marks = self._pipeline.labels
        without = (marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            limit = 1 + self.resting.hopeless
            wanted = [stage.entry_labels]
            wanted += [self._pipeline.held_labels(stage)] if stage.gives_way else []
            for labels in wanted:
                found = self._tracker.find(IssueQuery(labels, without, limit=limit))
                if any(not self.resting.is_hopeless(issue) for issue in found.issues):
                    return True
        return False


_LISTED = 80
"""Fewer than a page of 100, so that one page is enough although some on it are out of reach."""
_READ_AHEAD = 50
_ENOUGH_FREE = 10
_LIST_KEPT_S = 60.0
_LIST_KEPT_IN_COMPANY_S = 2.0
_RECENT_S = 30.0
_CHOICES = 4
"""How many issues a worker chooses among, for each issue that others took recently."""
_SHORTLIST_NARROWING = 25
_MISSED_S = 2.0
_LONGEST_MISSED_S = 300.0
"""How long an issue rests if no read shows it as new as the list does: twice as long each time."""


class _ListedIssue(Struct, frozen=True):
    issue: Issue
    stage: Stage


class _Round(Struct):
    """The lists of some stages since they were last made anew, and the issues still to try."""

    began_at: LocalTime
    stages: tuple[Stage, ...]
    unlisted: list[Stage]
    """The stages whose list was not asked for yet: the foremost stages may be enough."""
    others: int
    """Issues that others hold, by the lists: the claimed issues, less our own."""
    others_recent: int
    """The same, of the claimed issues that changed recently."""
    found: dict[StageName, Found] = field(default_factory=dict)
    left: list[_ListedIssue] = field(default_factory=list)

    def listed(self, ref: IssueRef) -> bool:
        return any(issue.ref == ref for found in self.found.values() for issue in found.issues)


class Shortlisting:
    """For a tracker which is not cheap to ask: a list for many claims. Each worker has its own."""

    arrival_s = 2.0
    """Long enough for the later workers to see the bids of the first."""

    def __init__(self, backlog: "Backlog", *, poll_s: float, dice: "Random") -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self._clock = backlog.clock
        self._kept_s = max(poll_s, _LIST_KEPT_S)
        self._dice = dice
        self._round: _Round | None = None
        self._outdated = False
        self._looks: dict[IssueRef, Snapshot] = {}
        """Snapshots that were read ahead, until they are used."""
        self._missed: Counter[IssueRef] = Counter()
        """How often no read showed the issue as new as the list did."""
        self.resting = Resting(backlog.clock, LOOKING_COSTS)

    @staticmethod
    def new_spread(dice: "Random") -> Spread:
        return Spread(dice, widest=_LISTED, narrowing=_SHORTLIST_NARROWING)

    def next_candidate(self, stages: Sequence[Stage], spread: Spread) -> Candidate | None:
        """An issue which looks free, from the first of `stages` with a free issue.

        Makes a new round if the current lists are too old or used up, at most once.
        """
        self.resting.forget_what_is_over()
        current, fresh = self._round, False
        while True:
            if current is not None and not fresh:
                in_company = current.others > 0 or spread.in_a_crowd
                kept_s = _LIST_KEPT_IN_COMPANY_S if in_company else self._kept_s
                old = self._clock.now() >= current.began_at + kept_s
                if self._outdated or old or not set(stages).issubset(current.stages):
                    current = None
            if current is None:
                current, fresh = self._new_round(stages, spread), True
            if current.left:
                if (candidate := self._take(current, stages, spread)) is not None:
                    return candidate
            elif current.unlisted:
                self._list_stage(current, current.unlisted.pop(0))
            elif fresh:
                return None
            else:
                current = None

    def anything_left(self, stages: Sequence[Stage]) -> bool:
        """Whether an issue of the stages may still need us: free, held by a worker, or resting."""
        lists = self._round.found if self._round is not None and not self._outdated else {}
        for stage in stages:
            found = lists.get(stage.name) or self._find(stage)
            if found.more and self._all_hopeless(found):
                found = self._find(stage, limit=_LISTED + self.resting.hopeless)
            if found.more or not self._all_hopeless(found):
                return True
            if stage.gives_way:
                held = IssueQuery(self._pipeline.held_labels(stage), limit=1)
                if self._tracker.find(held).issues:
                    return True
        return False

    def _all_hopeless(self, found: Found) -> bool:
        return all(self.resting.is_hopeless(issue) for issue in found.issues)

    def look_anew(self) -> None:
        """Make the lists anew with the next query: a hint reports a change."""
        self._outdated = True

    # Listing

    def _new_round(self, stages: Sequence[Stage], spread: Spread) -> _Round:
        """Forget the lists. Keep the snapshots of listed issues: the next list shows whether a
        snapshot still holds.
        """
        last, self._outdated = self._round, False
        self._looks = {
            ref: look for ref, look in self._looks.items() if last is None or last.listed(ref)
        }
        for ref in [ref for ref in self._missed if last is not None and not last.listed(ref)]:
            del self._missed[ref]
        self._round = _Round(
            began_at=self._clock.now(),
            stages=tuple(stages),
            unlisted=list(stages),
            others=-spread.holding,
            others_recent=-spread.holding,
        )
        return self._round

    def _list_stage(self, current: _Round, stage: Stage) -> None:
        """List the issues of the stage, and add the free ones to the round, most urgent first.

        The list has claimed issues too: they show which workers are here, and whether issues are
        left to wait for. If the list is not the whole stage, ask for urgent issues further back as
        well, and for unclaimed issues further back if few of the foremost are free.
        """
        found = current.found[stage.name] = self._find(stage)
        taken = [issue for issue in found.issues if self._is_claimed(issue)]
        current.others += len(taken)
        current.others_recent += sum(
            (found.now - issue.updated_at).total_seconds() < _RECENT_S for issue in taken
        )
        free = {issue.ref: issue for issue in self._free(found)}
        if found.more:
            further = [self._find(stage, label) for label in self._pipeline.priorities]
            if len(free) < _ENOUGH_FREE:
                claimed = (self._pipeline.labels.claimed,)
                limit = _LISTED + len(self.resting)
                further.append(self._find(stage, without=claimed, limit=limit))
            free |= {issue.ref: issue for page in further for issue in self._free(page)}
        ordered = sorted(free.values(), key=lambda issue: urgency(issue, self._pipeline))
        current.left += [_ListedIssue(issue, stage) for issue in ordered]

    def _find(
        self, stage: Stage, *labels: str, without: tuple[str, ...] = (), limit: int = _LISTED
    ) -> Found:
        marks = self._pipeline.labels
        never = (marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        wanted = (*stage.entry_labels, *labels)
        return self._tracker.find(IssueQuery(wanted, (*without, *never), limit=limit))

    def _free(self, found: Found) -> list[Issue]:
        return [
            issue
            for issue in found.issues
            if not self._is_claimed(issue) and not self.resting.leaves_alone(issue)
        ]

    def _is_claimed(self, issue: Issue) -> bool:
        return self._pipeline.labels.claimed in issue.labels

    # Looking

    def _take(self, current: _Round, stages: Sequence[Stage], spread: Spread) -> Candidate | None:
        """Take an issue off the list: the first while alone, any of the foremost in company.

        None if its snapshot shows the issue as no longer free.
        """
        window = min(max(spread.window, _CHOICES * current.others_recent), len(current.left))
        place = self._dice.randrange(window)
        if self._snapshot_of(current.left[place].issue) is None:
            self._read_ahead(current.left, place, window)
        chosen = current.left.pop(place)
        ref, look = chosen.issue.ref, self._snapshot_of(chosen.issue)
        # Used up in any case: the reason that keeps the issue back may lift without any change.
        self._looks.pop(ref, None)
        if look is None:
            # A read that lags, which the next may mend; or a list that will never be right.
            doublings = min(self._missed[ref], 10)
            self._missed[ref] += 1
            self.resting.rest(ref, min(_MISSED_S * (1 << doublings), _LONGEST_MISSED_S))
            return None
        self._missed.pop(ref, None)
        if chosen.stage not in stages or self.resting.leaves_alone(look.issue):
            return None
        unwanted = {self._pipeline.labels.claimed, *self._pipeline.vetoes}
        in_stage = look.issue.open and look.issue.labels.issuperset(chosen.stage.entry_labels)
        if not in_stage or not look.issue.labels.isdisjoint(unwanted):
            return None
        if not look.complete:  # too long for a read of many: it costs a request when its turn comes
            try:
                look = self._tracker.read(ref)
            except NoSuchIssue:
                return None
        return Candidate(look.issue, chosen.stage, look.now, look)

    def _snapshot_of(self, listed: Issue) -> Snapshot | None:
        """The snapshot which was read ahead, if it is no older than the issue on the list."""
        look = self._looks.get(listed.ref)
        if look is None or look.issue.comment_count < listed.comment_count:
            return None
        return look if look.issue.updated_at >= listed.updated_at else None

    def _read_ahead(self, left: list[_ListedIssue], place: int, window: int) -> None:
        """Read the issue at `place` and, in the same request, more issues which may be next."""
        ahead = [listed.issue for listed in left[: max(window, _READ_AHEAD)]]
        unseen = [issue.ref for issue in ahead if self._snapshot_of(issue) is None]
        unseen.remove(left[place].issue.ref)
        if window > 1:
            self._dice.shuffle(unseen)
        most = min(_READ_AHEAD, self._tracker.traits.reads_together)
        wanted = [left[place].issue.ref, *unseen[: most - 1]]
        self._looks |= self._tracker.read_many(wanted)
