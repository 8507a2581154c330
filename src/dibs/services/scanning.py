"""Which issues to try next, and how a crowd of workers keeps out of its own way.

Oldest first, the most urgent before that, later stages before earlier ones so that work in progress
is finished first. A worker that lost a race reaches at random into a wide window (`Spread`), and
narrows the window again with every win: with N workers waiting for one store, a window of W lets
about N/2W of the bids collide.

A `LookCost` says how a worker looks. A tracker in the same machine is `CHEAP` to ask: in a crowd
the worker asks for each claim, and for no more issues than it chooses among; alone it asks for a
few, and works them off for a moment. Any other tracker is `COSTLY`: one list serves many claims.

A costly list is one request, which is free while the tracker has no change to report. The worker
reads many of the listed issues at once, with their comments, and works them off one by one: a claim
judges that snapshot and reads none of its own. A snapshot holds for as long as lists show the issue
unchanged.

A costly list is made anew after a while, when a hint reports a change, and when it is used up. It
is made anew before every bid while other workers are around: each issue that they took since would
cost a comment. While others are busy, a worker tries any of the foremost issues rather than the
first: a few times as many as others took recently, and the whole list after a lost race. The
numbers were measured: docs/internals/adr/0023-one-list-for-many-claims.md.

`Resting` holds the issues that a worker leaves alone, and for how long, in local time only. The
reasons that keep an issue back are on the tracker, and are read again when the rest is over. Where
a read costs something, a change of the issue ends a rest that a refusal began, and so the rest may
be long.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dibs.core.eligibility import Lifts, Reason, reasons_with
from dibs.core.errors import NoSuchIssue, Unavailable
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime, StageName
from dibs.core.issue import Issue, Snapshot
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.system import Clock
from dibs.ports.tracker import Found, IssueQuery
from dibs.services.backlog import Rests

if TYPE_CHECKING:
    from random import Random

    from dibs.services.backlog import Backlog

_MOST_VAIN = 10_000
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


class LookCost(Struct, frozen=True):
    """How a worker looks for issues, for what a look at the tracker costs."""

    arrival_s: float
    """Workers that are started or woken together spread their first look over this time."""
    hints_apart_s: float
    """A worker follows two hints at least so long apart."""
    page: int | None
    """How many issues a list has. None: as many as the worker chooses among, and alone a few."""
    kept_s: float
    """How long a list is used, if no other worker is here."""
    kept_in_company_s: float
    """How long a list is used while others are here."""
    widest: int
    """The widest window of a `Spread`."""
    narrowing: int
    """By how much a win narrows the window."""
    patience: Patience


CHEAP = LookCost(
    arrival_s=0.1,
    hints_apart_s=1.0,
    page=None,
    kept_s=0.05,  # so long may a more urgent issue be overlooked
    kept_in_company_s=0.0,  # each issue that they took since would be a lost race
    widest=512,
    narrowing=8,
    patience=Patience(passing_s=0.2, lasting_s=30.0, until_changed=False),
)
COSTLY = LookCost(
    arrival_s=2.0,  # long enough for the later workers to see the bids of the first
    hints_apart_s=5.0,
    page=80,  # fewer than a page of 100: one page is enough although some on it are out of reach
    kept_s=60.0,
    kept_in_company_s=2.0,
    widest=80,
    narrowing=25,
    # Long, because a change ends the rest; not for ever: to close a pull request changes no issue.
    patience=Patience(passing_s=30.0, lasting_s=300.0, until_changed=True),
)


class _Rest(Struct, frozen=True):
    until: LocalTime
    unless_changed_since: ServerTime | None = None


class Resting:
    """The issues which a worker leaves alone. Jobs add issues while the worker's loop scans."""

    def __init__(self, clock: Clock, patience: Patience = CHEAP.patience) -> None:
        self._clock = clock
        self._patience = patience
        self._rests: dict[IssueRef, _Rest] = {}
        self._hopeless: set[IssueRef] = set()
        self._vain: Counter[IssueRef] = Counter()
        """How often an issue was given back by our own handler, or a reading proved nothing."""
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
        self._rest_longer(issue, seconds)

    def unproven(self, issue: IssueRef, seconds: float) -> None:
        """No reading proved who holds the issue: leave it alone, longer each time.

        Each vain bid is a comment, and the cause of hidden comments may last. A tracker with cheap
        reads hides no comment: there a reading lags, and soon lags no more.
        """
        if self._patience.until_changed:
            self._rest_longer(issue, max(seconds, self._patience.passing_s))
        else:
            self.rest(issue, seconds)

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
            if len(self._vain) > _MOST_VAIN:
                self._vain.clear()

    def _rest_longer(self, issue: IssueRef, seconds: float) -> None:
        with self._lock:
            self._vain[issue] += 1
            doublings = min(self._vain[issue] - 1, 10)
        self.rest(issue, min(seconds * (1 << doublings), _LONGEST_REST_S))

    def _start_rest(self, issue: IssueRef, seconds: float, unless: ServerTime | None) -> None:
        with self._lock:
            self._rests[issue] = _Rest(LocalTime(self._clock.now() + seconds), unless)


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

    def __init__(self, dice: "Random", cost: LookCost = CHEAP) -> None:
        self._dice = dice
        self._widest = cost.widest
        self._narrowing = cost.narrowing
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


_PASS_S = 2.0
_RESTING_A_PAGE = 50
_READ_AHEAD = 50
_ENOUGH_FREE = 10
_CHEAP_AHEAD = 8
"""How many free issues a worker lists that looks cheaply and is alone."""
_RECENT_S = 30.0
_CHOICES = 4
"""How many issues a worker chooses among, for each issue that others took recently."""
_MISSED_S = 2.0
"""How long an issue rests if no read shows it as new as the list does: twice as long each time."""
_LONGEST_MISSED_S = 300.0
_READ_ALONE_AFTER = 2
"""An issue that so many reads of many missed is read alone. Only this read gives the issue up: a
read of many leaves out an issue that is not there, and one that the tracker does not show yet.
"""


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


class Scanner:
    """Finds the next issue to try. Each worker has its own."""

    def __init__(
        self, backlog: "Backlog", cost: LookCost, *, poll_s: float = 0.0, dice: "Random"
    ) -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self._clock = backlog.clock
        self.cost = cost
        self._kept_s = cost.kept_s if cost.page is None else max(poll_s, cost.kept_s)
        self._dice = dice
        self._round: _Round | None = None
        self._outdated = False
        self._looks: dict[IssueRef, Snapshot] = {}
        """Snapshots that were read ahead, until they are used."""
        self._missed: Counter[IssueRef] = Counter()
        """How often no read showed the issue as new as the list did."""
        self.resting = Resting(backlog.clock, cost.patience)
        self._rules = Rests(backlog).rules
        self._passed: dict[tuple[str, ...], IssueRef] = {}
        """For each query: the issue up to which every issue found is left alone, by the pass."""
        self._pass_began_at = LocalTime(0.0)

    def next_candidate(self, stages: Sequence[Stage], spread: Spread) -> Candidate | None:
        """An issue which looks free, from the first of `stages` with a free issue.

        Makes a new round if the current lists are too old or used up, at most once.
        """
        self.resting.forget_what_is_over()
        current, fresh = self._round, False
        while True:
            if current is not None and not fresh:
                in_company = current.others > 0 or spread.in_a_crowd
                kept_s = (
                    min(self._kept_s, self.cost.kept_in_company_s) if in_company else self._kept_s
                )
                old = self._clock.now() >= current.began_at + kept_s
                if self._outdated or old or not set(stages).issubset(current.stages):
                    current = None
            if current is None:
                current, fresh = self._new_round(stages, spread), True
            if current.left:
                if (candidate := self._take(current, stages, spread)) is not None:
                    return candidate
            elif current.unlisted:
                self._list_stage(current, current.unlisted.pop(0), spread.window)
            elif fresh:
                return None
            else:
                current = None

    def anything_left(self, stages: Sequence[Stage]) -> bool:
        """Whether an issue of the stages may still need us: free, held by a worker, or resting."""
        usable = self.cost.page is not None and self._round is not None and not self._outdated
        lists = self._round.found if usable and self._round is not None else {}
        limit = (self.cost.page or 1) + self.resting.hopeless
        for stage in stages:
            found = lists.get(stage.name)
            if found is None or (found.more and self._all_hopeless(found)):
                found = self._find(stage.entry_labels, limit)
            if found.more or not self._all_hopeless(found):
                return True
            if stage.gives_way:
                held = self._find(self._pipeline.held_labels(stage), 1 + self.resting.hopeless)
                if not self._all_hopeless(held):
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

    def _list_stage(self, current: _Round, stage: Stage, window: int) -> None:
        """List the issues of the stage, and add the free ones to the round, most urgent first.

        A costly list has claimed issues too: they show which workers are here, and whether issues
        are left to wait for. If the list is not the whole stage, ask for urgent issues further back
        as well, and for unclaimed issues further back if few of the foremost are free.
        """
        labels = stage.entry_labels
        found = current.found[stage.name] = self._list(labels, window)
        taken = [issue for issue in found.issues if self._is_claimed(issue)]
        current.others += len(taken)
        current.others_recent += sum(
            (found.now - issue.updated_at).total_seconds() < _RECENT_S for issue in taken
        )
        free = {issue.ref: issue for issue in self._free(found)}
        if found.more or self.cost.page is None:
            urgent = self._pipeline.priorities
            further = [self._list((*labels, label), window) for label in urgent]
            if self.cost.page is not None and len(free) < _ENOUGH_FREE:
                further.append(self._find_free(labels, self.cost.page))
            free |= {issue.ref: issue for page in further for issue in self._free(page)}
        ordered = sorted(free.values(), key=lambda issue: urgency(issue, self._pipeline))
        current.left += [_ListedIssue(issue, stage) for issue in ordered]

    def _list(self, labels: tuple[str, ...], window: int) -> Found:
        """A page of issues; where looking is cheap, no more than needed from any place in `window`.

        A worker that is alone lists a few of the first, to go on with for a moment. If the list
        ends before the place, the whole list: a crowd must not meet on its last issues.
        """
        if self.cost.page is not None:
            return self._find(labels, self.cost.page)
        if window == 1:
            return self._find_free(labels, _CHEAP_AHEAD)
        skip = self._dice.randrange(window)
        found = self._find_free(labels, 1, skip)
        return found if not skip or self._free(found) else self._find_free(labels, window)

    def _find_free(self, labels: tuple[str, ...], limit: int, skip: int = 0) -> Found:
        """A page of unclaimed issues with a free issue on the page, if any issue is free.

        Resting issues of the worker fill pages. The next calls do not list such pages again for a
        while: a pass goes on where the last page ended.
        """
        if self._clock.now() >= self._pass_began_at + max(_PASS_S, self._kept_s):
            self._passed.clear()
            self._pass_began_at = self._clock.now()
        claimed = (self._pipeline.labels.claimed,)
        limit += min(len(self.resting), _RESTING_A_PAGE)
        after = self._passed.get(labels)
        from_first = after is None
        while True:
            found = self._find(labels, limit, claimed, skip, after, self._rules)
            if self._free(found) or (from_first and not found.more):
                return found
            if found.more:
                after = self._passed[labels] = found.issues[-1].ref
            else:
                after, from_first = None, True
            skip = 0

    def _find(
        self,
        labels: tuple[str, ...],
        limit: int,
        without: tuple[str, ...] = (),
        skip: int = 0,
        after: IssueRef | None = None,
        awake_by: str = "",
    ) -> Found:
        marks = self._pipeline.labels
        never = (*without, marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        return self._tracker.find(
            IssueQuery(labels, never, limit=limit, skip=skip, after=after, awake_by=awake_by)
        )

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

        None if the snapshot of the chosen issue shows that it is no longer free.
        """
        left, pipeline = current.left, self._pipeline
        window = min(max(spread.window, _CHOICES * current.others_recent), len(left))
        if self.cost.page is None:
            # A lost bid is cheap here: the crowd stays with the most urgent issues.
            foremost = urgency(left[0].issue, pipeline)
            alike = sum(urgency(listed.issue, pipeline) == foremost for listed in left)
            chosen = left.pop(self._dice.randrange(min(window, alike)))
            if chosen.stage not in stages or self.resting.leaves_alone(chosen.issue):
                return None  # since the list was made
            return Candidate(chosen.issue, chosen.stage, current.found[chosen.stage.name].now)
        place = self._dice.randrange(window)
        if self._snapshot_of(left[place].issue) is None:
            self._read_ahead(left, place, window)
        chosen = left.pop(place)
        ref, look = chosen.issue.ref, self._use_look(chosen.issue)
        if look is None:
            return None
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

    def _use_look(self, listed: Issue) -> Snapshot | None:
        """The snapshot which was read ahead. Without one the issue rests, or is given up.

        The snapshot is used up in any case: the reason that keeps an issue back may lift without
        any change.
        """
        ref, missed = listed.ref, self._missed[listed.ref]
        if ref not in self._looks and missed >= _READ_ALONE_AFTER:
            try:
                self._looks[ref] = self._tracker.read(ref)
            except NoSuchIssue:
                self.resting.given_up(listed)
                return None
            except Unavailable:
                pass  # not shown yet, perhaps: the next read may show it
        look = self._snapshot_of(listed)
        self._looks.pop(ref, None)
        if look is not None:
            self._missed.pop(ref, None)
            return look
        # A read that lags, which the next may mend; or a list that will never be right.
        self._missed[ref] += 1
        self.resting.rest(ref, min(_MISSED_S * (1 << min(missed, 10)), _LONGEST_MISSED_S))
        return None

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
