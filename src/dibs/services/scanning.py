"""Which issues to try next, and how a crowd of workers keeps out of its own way.

Oldest first, the most urgent before that, later stages before earlier ones so that work in progress
is finished first. A worker that lost a race reaches at random into a wide window, and narrows it
again with every win: with N workers waiting for one store, a window of W lets about N/2W of the
bids collide.

`Scanning` is for a tracker that is cheap to ask: one question for each claim.
`Shortlisting` is for a tracker that is not: one list for many claims.

A list costs one request, which is free while nothing has changed. The worker looks at many of the
issues on it at once, with their comments, and works them off one by one: a claim judges that look
and makes none of its own. A look holds for as long as lists show the issue unchanged.

The list grows old. It is made anew after a while, when somebody hints at a change, and when it is
used up; and before every bid while others are at work, since what they took meanwhile would cost a
comment each. Where others are busy, any of the foremost is tried rather than the first: as many as
they lately took, a few times over, and the whole list after a race was lost. The numbers were
measured: docs/internals/adr/0023-one-list-for-many-claims.md.

Which issues a worker leaves alone, and for how long.

Local time only: what keeps an issue back is on the tracker, and is read again when its rest is
over. Where looking costs something, a change of the issue ends a rest that a refusal began, and so
the rest may be long.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import NoSuchIssue
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime, StageName
from dibs.core.issue import Issue, Thread
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.system import Clock
from dibs.ports.tracker import Found, IssueQuery

if TYPE_CHECKING:
    from random import Random

    from dibs.services.backlog import Backlog


_MOST_RETURNS = 10_000
_LONGEST_REST_S = 900.0
_LASTING = frozenset(
    {
        ReasonCode.CLOSED,
        ReasonCode.NO_STAGE,
        ReasonCode.SEVERAL_STAGES,
        ReasonCode.FINAL_STAGE,
        ReasonCode.PAUSED,
        ReasonCode.PARKED,
        ReasonCode.BLOCKED,
        ReasonCode.GATE_SHUT,
        ReasonCode.ASSIGNED,
        ReasonCode.PULL_OPEN,
        ReasonCode.UNPROTECTED,
        ReasonCode.FOREIGN_CLAIM,
        ReasonCode.BUNDLE_WAITS,  # for what keeps one of it back that one's own reasons are told
    }
)
"""Only people and other programs lift these, so a draining worker does not wait for them."""
_SAID = frozenset({ReasonCode.REPOSITORY_PAUSED, ReasonCode.FLEET_PAUSED})
"""Nor for these. But lifting them changes no issue, so that the rest is a short one."""


class Patience(Struct, frozen=True):
    """How long a refused issue rests where its reasons do not say."""

    passing_s: float
    lasting_s: float
    until_changed: bool
    """Whether a change of the issue ends the rest."""


LOOKING_IS_CHEAP = Patience(passing_s=0.2, lasting_s=30.0, until_changed=False)
LOOKING_COSTS = Patience(passing_s=30.0, lasting_s=300.0, until_changed=True)
"""Long, for a change ends it; not for ever, for a pull request that is closed changes no issue."""


class _Rest(Struct, frozen=True):
    until: LocalTime
    unless_changed_since: ServerTime | None = None


class Resting:
    """Jobs that give back write here while the loop scans."""

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
        rest = self._rests.get(issue.ref)
        if rest is None:
            return False
        return rest.unless_changed_since in (None, issue.updated_at)

    @property
    def hopeless(self) -> int:
        return len(self._hopeless)

    def is_hopeless(self, issue: Issue) -> bool:
        """Whether only a person can free it, as far as is known."""
        return issue.ref in self._hopeless and self.leaves_alone(issue)

    def rest(self, issue: IssueRef, seconds: float) -> None:
        """Leave the issue alone for a while."""
        self._begin(issue, seconds, None)

    def returned(self, issue: IssueRef, seconds: float) -> None:
        """Our own handler gave it back: leave it to others, longer each time it happens."""
        with self._lock:
            self._returns[issue] += 1
            doublings = min(self._returns[issue] - 1, 10)
        self.rest(issue, min(seconds * (1 << doublings), _LONGEST_REST_S))

    def given_up(self, issue: Issue) -> None:
        """It cannot be had by us at all: gone, transferred or locked."""
        with self._lock:
            self._hopeless.add(issue.ref)
        unless = issue.updated_at if self._patience.until_changed else None
        self._begin(issue.ref, _LONGEST_REST_S, unless)

    def refused(
        self, issue: Issue, reasons: tuple[Reason, ...], now: ServerTime, *, paid: bool = False
    ) -> None:
        """Come back when the reasons have lifted, or much later if only a person can lift them.

        `paid`: it took a bid to find out, and the bid has changed the issue as well. So no change
        can end this rest, and it is short: the next look finds the reason without a bid.
        """
        patience = self._patience
        lasting = any(reason.code in _LASTING for reason in reasons)
        said = any(reason.code in _SAID for reason in reasons)
        if lasting or said:
            with self._lock:
                self._hopeless.add(issue.ref)
        waits = [reason.until - now for reason in reasons if reason.until is not None]
        waits_s = max(max(waits, default=ZERO).total_seconds(), patience.passing_s)
        seconds = patience.lasting_s if lasting else waits_s
        if not patience.until_changed:
            self._begin(issue.ref, seconds, None)
        elif paid:
            self._begin(issue.ref, patience.passing_s, None)
        else:
            self._begin(issue.ref, seconds, issue.updated_at)

    def forget(self, issue: IssueRef) -> None:
        with self._lock:
            self._rests.pop(issue, None)
            self._hopeless.discard(issue)

    def forget_what_is_over(self) -> None:
        """Most issues that rest are finished by somebody else and never seen again."""
        now = self._clock.now()
        with self._lock:
            over = [issue for issue, rest in self._rests.items() if rest.until <= now]
            for issue in over:
                del self._rests[issue]
                self._hopeless.discard(issue)
            if len(self._returns) > _MOST_RETURNS:
                self._returns.clear()

    def _begin(self, issue: IssueRef, seconds: float, unless: ServerTime | None) -> None:
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
    thread: Thread | None = None
    """The reading it was chosen by, where there was one."""

    @property
    def untouched(self) -> bool:
        """Nobody ever wrote on it, so there is nothing to read before bidding."""
        return self.issue.comment_count == 0


def urgency(issue: Issue, pipeline: Pipeline) -> int:
    """Its place in the queue before its age: the lower, the sooner."""
    for rank, label in enumerate(pipeline.priorities):
        if label in issue.labels:
            return rank
    return len(pipeline.priorities)


class Spread:
    """How far down the list to reach: the top while alone, anywhere in a crowd."""

    def __init__(
        self, dice: "Random", *, widest: int = WIDEST_WINDOW, narrowing: int = _NARROWING
    ) -> None:
        self._dice = dice
        self._widest = widest
        self._narrowing = narrowing
        self._window = 1
        self._losses = 0
        self.holding = 0
        """How many issues this worker holds itself: they are no crowd."""

    @property
    def window(self) -> int:
        return self._window

    @property
    def in_a_crowd(self) -> bool:
        return self._window > 1

    def lost(self) -> None:
        """At once as wide as it gets: a whole fleet that starts together loses only once."""
        self._window = self._widest
        self._losses += 1

    def met(self) -> None:
        """Somebody else is at it, and it cost nothing to find out."""
        self._window = self._widest

    def won(self) -> None:
        self._losses = 0
        self._window = max(1, self._window - self._narrowing)

    def pause_s(self) -> float:
        """Losses in a row mean that few issues are left: let the winners work them off."""
        longest_s = min(_FIRST_PAUSE_S * (1 << min(self._losses, 10)), _LONGEST_PAUSE_S)
        return self._dice.uniform(0.0, longest_s)

    def skip(self) -> int:
        """How many of the foremost to leave to others."""
        return self._dice.randrange(self._window)

    def pick(self, issues: list[Issue]) -> Issue:
        return self._dice.choice(issues)


class Scanning:
    arrival_s = 0.1
    """Over how long workers that are started together spread their first look."""

    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self.resting = Resting(backlog.clock)

    @staticmethod
    def new_spread(dice: "Random") -> Spread:
        return Spread(dice)

    def next_candidate(self, stages: Iterable[Stage], spread: Spread) -> Candidate | None:
        """One issue that looks free, from the last stage that has any."""
        self.resting.forget_what_is_over()
        marks = self._pipeline.labels
        without = (marks.claimed, marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            for urgent in (*((label,) for label in self._pipeline.priorities), ()):
                wanted = (*stage.entry_labels, *urgent)
                if (found := self._reach(stage, wanted, without, spread)) is not None:
                    return found
        return None

    def _reach(
        self, stage: Stage, wanted: tuple[str, ...], without: tuple[str, ...], spread: Spread
    ) -> Candidate | None:
        """One step into the list where it is long; any of the few that are left where it is not."""
        skip, limit = spread.skip(), 1 + len(self.resting)
        found = self._tracker.find(IssueQuery(wanted, without, limit=limit, skip=skip))
        free = [issue for issue in found.issues if not self.resting.leaves_alone(issue)]
        if free:
            return Candidate(free[0], stage, found.now)
        if skip == 0:
            return None
        found = self._tracker.find(IssueQuery(wanted, without, limit=WIDEST_WINDOW + limit))
        free = [issue for issue in found.issues if not self.resting.leaves_alone(issue)]
        return Candidate(spread.pick(free), stage, found.now) if free else None

    def look_anew(self) -> None:
        """Nothing is kept from one question to the next."""

    def anything_left(self, stages: Iterable[Stage]) -> bool:
        """Whether an issue of these stages may still need us: free, held by others, or resting."""
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
_LOOKED_AT = 50
_ENOUGH = 10
_KEPT_S = 60.0
_KEPT_IN_COMPANY_S = 2.0
_LATELY_S = 30.0
_ROOM = 4
"""For each issue that others took lately, so many are left to choose from."""
_SHORTLIST_NARROWING = 25
_MISSED_S = 2.0
_LONGEST_MISSED_S = 300.0
"""How long an issue rests that no look shows as the list does: twice as long each time."""


class _Listed(Struct, frozen=True):
    issue: Issue
    stage: Stage


class _Round(Struct):
    """What is known since the lists were last made anew."""

    began_at: LocalTime
    stages: tuple[Stage, ...]
    unlisted: list[Stage]
    """Those whose list was not asked for yet: the foremost stages may be enough."""
    others: int
    """Issues that others hold, as far as the lists show: what is claimed, less what is ours."""
    bustle: int
    """Those of them that changed lately."""
    found: dict[StageName, Found] = field(default_factory=dict)
    left: list[_Listed] = field(default_factory=list)

    def listed(self, ref: IssueRef) -> bool:
        return any(issue.ref == ref for found in self.found.values() for issue in found.issues)


class Shortlisting:
    """One worker's."""

    arrival_s = 2.0
    """Long enough for the later ones to see what the first have bid for."""

    def __init__(self, backlog: "Backlog", *, poll_s: float, dice: "Random") -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self._clock = backlog.clock
        self._kept_s = max(poll_s, _KEPT_S)
        self._dice = dice
        self._round: _Round | None = None
        self._outdated = False
        self._looks: dict[IssueRef, Thread] = {}
        self._missed: Counter[IssueRef] = Counter()
        self.resting = Resting(backlog.clock, LOOKING_COSTS)

    @staticmethod
    def new_spread(dice: "Random") -> Spread:
        return Spread(dice, widest=_LISTED, narrowing=_SHORTLIST_NARROWING)

    def next_candidate(self, stages: Sequence[Stage], spread: Spread) -> Candidate | None:
        """One issue that looks free, from the last stage that has any."""
        self.resting.forget_what_is_over()
        current, fresh = self._round, False
        while True:
            if current is None or (not fresh and self._worn_out(current, stages, spread)):
                current, fresh = self._begin(stages, spread), True
            if current.left:
                if (found := self._take(current, stages, spread)) is not None:
                    return found
            elif current.unlisted:
                self._list(current, current.unlisted.pop(0))
            elif fresh:
                return None
            else:
                current = None

    def anything_left(self, stages: Sequence[Stage]) -> bool:
        """Whether an issue of these stages may still need us: free, held by others, or resting."""
        known = self._round.found if self._round is not None and not self._outdated else {}
        for stage in stages:
            found = known.get(stage.name) or self._find(stage)
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
        """Somebody says that something has changed."""
        self._outdated = True

    # The round

    def _worn_out(self, current: _Round, stages: Sequence[Stage], spread: Spread) -> bool:
        company = current.others > 0 or spread.in_a_crowd
        kept_s = _KEPT_IN_COMPANY_S if company else self._kept_s
        old = self._clock.now() >= current.began_at + kept_s
        return self._outdated or old or not set(stages).issubset(current.stages)

    def _begin(self, stages: Sequence[Stage], spread: Spread) -> _Round:
        """Looks outlast the list: whether they still hold is seen in the next one."""
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
            bustle=-spread.holding,
        )
        return self._round

    # Listing

    def _list(self, current: _Round, stage: Stage) -> None:
        """Claimed ones too: they tell who else is here, and whether anything is left to wait for.

        One list is enough where it reaches the end: what is urgent is on it as well.
        """
        found = current.found[stage.name] = self._find(stage)
        taken = [issue for issue in found.issues if self._is_claimed(issue)]
        current.others += len(taken)
        current.bustle += sum(
            (found.now - issue.updated_at).total_seconds() < _LATELY_S for issue in taken
        )
        free = {issue.ref: issue for issue in self._free(found)}
        if found.more:
            free |= self._further(stage, enough=len(free) >= _ENOUGH)
        ordered = sorted(free.values(), key=lambda issue: urgency(issue, self._pipeline))
        current.left += [_Listed(issue, stage) for issue in ordered]

    def _further(self, stage: Stage, *, enough: bool) -> dict[IssueRef, Issue]:
        """What is urgent and further back; and the next best where the foremost are all taken."""
        found = [self._find(stage, label) for label in self._pipeline.priorities]
        if not enough:
            claimed = (self._pipeline.labels.claimed,)
            limit = _LISTED + len(self.resting)
            found.append(self._find(stage, without=claimed, limit=limit))
        return {issue.ref: issue for one in found for issue in self._free(one)}

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
        """The first while alone, any of the foremost in company; None if it is not to be had."""
        window = min(max(spread.window, _ROOM * current.bustle), len(current.left))
        place = self._dice.randrange(window)
        if self._look(current.left[place].issue) is None:
            self._look_ahead(current.left, place, window)
        chosen = current.left.pop(place)
        look = self._look(chosen.issue)
        # Used up, whatever comes of it: what keeps the issue back may lift without any change.
        self._looks.pop(chosen.issue.ref, None)
        if look is None:
            self._miss(chosen.issue.ref)
            return None
        self._missed.pop(chosen.issue.ref, None)
        if chosen.stage not in stages or self.resting.leaves_alone(look.issue):
            return None
        if not self._still_there(look.issue, chosen.stage):
            return None
        if not look.complete and (look := self._read(chosen.issue.ref)) is None:
            return None
        return Candidate(look.issue, chosen.stage, look.now, look)

    def _miss(self, ref: IssueRef) -> None:
        """A reading that lags, which the next one may mend; or a list that will never be right."""
        doublings = min(self._missed[ref], 10)
        self._missed[ref] += 1
        self.resting.rest(ref, min(_MISSED_S * (1 << doublings), _LONGEST_MISSED_S))

    def _look(self, listed: Issue) -> Thread | None:
        """What is known of it, if nothing has changed since."""
        look = self._looks.get(listed.ref)
        if look is None or look.issue.comment_count < listed.comment_count:
            return None
        return look if look.issue.updated_at >= listed.updated_at else None

    def _look_ahead(self, left: list[_Listed], place: int, window: int) -> None:
        """At this one, and at others whose turn may come, as far as they are in one request."""
        ahead = [one.issue for one in left[: max(window, _LOOKED_AT)]]
        unseen = [issue.ref for issue in ahead if self._look(issue) is None]
        unseen.remove(left[place].issue.ref)
        if window > 1:
            self._dice.shuffle(unseen)
        most = min(_LOOKED_AT, self._tracker.traits.reads_together)
        wanted = [left[place].issue.ref, *unseen[: most - 1]]
        self._looks |= self._tracker.read_many(wanted)

    def _still_there(self, issue: Issue, stage: Stage) -> bool:
        unwanted = {self._pipeline.labels.claimed, *self._pipeline.vetoes}
        fits = issue.open and issue.labels.issuperset(stage.entry_labels)
        return fits and issue.labels.isdisjoint(unwanted)

    def _read(self, ref: IssueRef) -> Thread | None:
        """Only when its turn has come: a thread too long for a look at many costs one by itself."""
        try:
            return self._tracker.read(ref)
        except NoSuchIssue:
            return None
