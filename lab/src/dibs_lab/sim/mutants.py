"""dibs' own protocol, each time with one broken rule: the checkers must catch every one.

Each mutant replaces one function of the core or of a service while it is in force. They are the
drafts that failed on the way to the protocol, and rules that people often leave out.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dibs.core import fold as folding
from dibs.core import fold as proof
from dibs.core import grants
from dibs.core import labels as painting
from dibs.core.card import CardState, render_card
from dibs.core.fold import Folded, FoldRules, Marks, NoProof, PostedCard, Proof, Won
from dibs.core.ids import Fence, LocalTime, RunId
from dibs.core.issue import Comment, Snapshot
from dibs.core.labels import EditComment
from dibs.core.lease import (
    Ending,
    Lease,
    Lost,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
)
from dibs.core.pipeline import Pipeline
from dibs.core.presets import STAGES
from dibs.ports.leases import Painter
from dibs.services import claiming, keeping, sweeping
from dibs.services import comment_leases as card_endings
from dibs.services import comment_leases as comments
from dibs.services import comment_leases as own_cards
from dibs.services import shown_leases as showing

Place = ModuleType | type


class Mutant(Struct, frozen=True):
    name: str
    shown_by: str
    """The name of a scenario, or of an exhaustive case, that shows the flaw."""
    changes: tuple[tuple[Place, str, Any], ...]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        before = [(place, name, getattr(place, name)) for place, name, _ in self.changes]
        for place, name, replacement in self.changes:
            setattr(place, name, replacement)
        try:
            yield
        finally:
            for place, name, original in before:
                setattr(place, name, original)


def _always_in_time(posted: PostedCard) -> bool:  # noqa: ARG001
    return True


def _trust_from_the_reply(self: keeping.Keeper, result: RenewResult, _: LocalTime) -> None:
    _TAKE_REPLY(self, result, self._clock.now())


_CONCEDE = comments.CommentLeases.concede
_RECORD = folding._record
_TAKE_REPLY = keeping.Keeper._take_reply
_READ_MARKS = folding.read_marks
_CHECK_HELD = comments.CommentLeases._check_held
_FOLD = folding.fold
_PROVE = proof.prove


def _fold_without_conceded(marks: Marks, rules: FoldRules) -> Folded:
    kept = tuple(one for one in marks.cards if one.card.state is not CardState.CONCEDED)
    return _FOLD(replace(marks, cards=kept), rules)


def _prove_by_time_only(snapshot: Snapshot, run: RunId, rules: FoldRules) -> Proof:
    """Win if no bid has a smaller timestamp: equal timestamps do not matter."""
    result = _PROVE(snapshot, run, rules)
    if isinstance(result, Won | NoProof):
        return result
    mine = next(
        one for one in folding.read_marks(snapshot.comments, rules).cards if one.card.run == run
    )
    if result.record.lease.granted_at < mine.created_at:
        return result
    return Won(folding.lease_of(snapshot.issue.ref, mine, folding.expiry(mine, (), rules)))


def _concede_and_unlabel(self: comments.CommentLeases, lease: Lease) -> None:
    _CONCEDE(self, lease)
    self._tracker.edit_labels(lease.issue, remove=(self._claimed,))


def _painted_when_not_claimed(snapshot: Snapshot, *rest: Any) -> Record:
    record = _RECORD(snapshot, *rest)
    claimed = STAGES.labels.claimed in snapshot.issue.labels
    return replace(record, painted=record.ending is None or not claimed)


def _paint_with_the_decision(
    self: card_endings.CardEndings, lease: Lease, ending: Ending, painter: Painter
) -> ReleaseResult:
    """Save a request: send the labels with the edit, before it is known whether it counts."""
    seen, asked_at = self._tracker.read(lease.issue), self._clock.now()
    plan = painter(Record(lease, seen.now, ending, painted=False), seen)
    released = own_cards.card(lease, CardState.RELEASED, ending)
    written = self._cards._write(lease, released, (*plan.showing, *plan.letting_go))
    decided = self._judge_written(lease, ending, written, asked_at)
    if not isinstance(decided, card_endings._Decided):
        return Lost("it came too late")
    ended = own_cards.card(decided.record.lease, CardState.RELEASED, decided.record.ending)
    mark = EditComment(own_cards.own_card(lease), render_card(replace(ended, shown=True)))
    self._paint(card_endings._CardEnding(decided.record, mark, self._rules), painter)
    return Released(decided.record)


def _await_nothing(_self: own_cards.OwnCards, _lease: Lease) -> None:
    return None


def _look_for_nothing(_self: own_cards.OwnCards, _run: RunId) -> bool:
    return False


def _acknowledge_at_once(self: showing._StoredEnding) -> None:
    """Acknowledge as soon as the painter itself sees the labels."""
    self._store.acknowledge(self.record)


def _accept_unjudged(_self: claiming.Claiming, *_: object) -> tuple[None, int]:
    return None, 0


def _never(*_: object) -> bool:
    return False


def _look_at_no_revokes(
    self: comments.CommentLeases, lease: Lease, snapshot: Snapshot
) -> RenewResult:
    result = _CHECK_HELD(self, lease, snapshot)
    return result if isinstance(result, Lost) else Renewed(lease, snapshot)


def _believe_everybody(comments_read: Iterable[Comment], rules: FoldRules) -> Marks:
    return _READ_MARKS([replace(comment, by_writer=True) for comment in comments_read], rules)


def _sweep_nothing(_self: sweeping.Sweeping, **_: Any) -> sweeping.SweepReport:
    return sweeping.SweepReport(0, ())


def _the_same_fence(*_: object) -> Fence:
    return Fence(1)


class _AlwaysComplete:
    """Trust a list whatever its length."""

    def __get__(self, snapshot: Snapshot | None, owner: type) -> bool:
        return True


MUTANTS: tuple[Mutant, ...] = (
    Mutant("late edits count", "no lag", ((folding, "counted_in_time", _always_in_time),)),
    Mutant(
        "a concession erases the card",
        "three bidders, each more than half a ttl after the one before",
        (
            (folding, "fold", _fold_without_conceded),
            (comments, "fold", _fold_without_conceded),
            (card_endings, "fold", _fold_without_conceded),
            (proof, "fold", _fold_without_conceded),
        ),
    ),
    Mutant("ties by time only", "no lag", ((comments, "prove", _prove_by_time_only),)),
    Mutant(
        "eligibility is not judged again",
        "no lag",
        ((claiming.Claiming, "_judge_again", _accept_unjudged),),
    ),
    Mutant(
        "no proof of completeness",
        "pages are missing",
        ((Snapshot, "complete", _AlwaysComplete()),),
    ),
    Mutant(
        "trust is counted from the reply",
        "slow replies",
        ((keeping.Keeper, "_take_reply", _trust_from_the_reply),),
    ),
    Mutant(
        "a loser takes the label off",
        "no lag",
        ((comments.CommentLeases, "concede", _concede_and_unlabel),),
    ),
    Mutant(
        "painted is what is not claimed",
        "no lag",
        ((folding, "_record", _painted_when_not_claimed),),
    ),
    Mutant(
        "a stage left behind is a person's word",
        "three stages",
        tuple(
            (painting, name, lambda *_: ()) for name in ("leftovers", "_left_behind", "put_right")
        ),
    ),
    Mutant(
        "a stranger's card is a card",
        "strangers forge cards",
        tuple(
            (place, "read_marks", _believe_everybody)
            for place in (folding, comments, card_endings, proof)
        ),
    ),
    Mutant("nobody sweeps", "no lag", ((sweeping.Sweeping, "sweep", _sweep_nothing),)),
    Mutant(
        "the fence does not rise",
        "no lag (atomic store)",
        ((grants, "next_fence", _the_same_fence),),
    ),
    Mutant(
        "labels go with the decision",
        "no lag (one trip)",
        ((card_endings.CardEndings, "finish", _paint_with_the_decision),),
    ),
    Mutant(
        "a renewal under way is not awaited",
        "writes that were given up on come later",
        ((own_cards.OwnCards, "wait_for_unanswered_edits", _await_nothing),),
    ),
    Mutant(
        "an ending in doubt is sent again unseen",
        "network trouble (one trip)",
        (
            (own_cards.OwnCards, "must_look_before_ending", _look_for_nothing),
            (own_cards.OwnCards, "wait_for_unanswered_edits", _await_nothing),
        ),
    ),
    Mutant(
        "what is painted is acknowledged at once",
        "4 issues, 5 workers, everything (one trip) (no bound) (atomic store)",
        ((showing._StoredEnding, "acknowledge", _acknowledge_at_once),),
    ),
    Mutant(
        "the stage is not asked for in the confirming reply",
        "torn readings (one trip)",
        ((Pipeline, "has_left", _never),),
    ),
    Mutant(
        "labels are taken to be as new as the cards",
        "torn readings, reads lag 2 s, settle 2.5 s (one trip)",
        ((claiming, "just_led_on", _never), (Pipeline, "has_left", _never)),
    ),
    Mutant(
        "revokes are not read",
        "operator revokes",
        ((comments.CommentLeases, "_check_held", _look_at_no_revokes),),
    ),
)
