"""Trackers that wrap a tracker, and pass on to it every call that they do not change.

`SignedTracker` signs the marks that we write. It returns a mark without a valid signature as a
comment by an account without write access, so every rule that asks for the author applies to it.

`SpokenTracker` spells our cards as runners of the issue-claim state machine read them. Only text
that is written is changed: every reader of cards reads this dialect as well. A card whose ending is
shown is written with a release comment beside it, since those runners do not expect a comment to
change.

`PlainTracker` hides all abilities of a tracker beyond one read or change per call.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from dibs.core.agent_dialect import release_beside, spell
from dibs.core.durations import format_instant
from dibs.core.events import Reached, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import EditComment, Effect, LabelLook, PostComment
from dibs.core.signing import Keyring, believing, sign
from dibs.ports.tracker import (
    Applies,
    Found,
    FoundSnapshots,
    IssueQuery,
    OneAtATime,
    Standpoint,
    Tracker,
    TrackerTraits,
)


class WrappedTracker:
    def __init__(self, inner: Tracker) -> None:
        self._inner = inner

    def _outgoing(self, issue: IssueRef, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        """The effects as they are passed on."""
        return effects

    def _incoming(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as it is returned."""
        return snapshot

    @property
    def traits(self) -> TrackerTraits:
        return self._inner.traits

    def find(self, query: IssueQuery) -> Found:
        return self._inner.find(query)

    def read(self, issue: IssueRef) -> Snapshot:
        return self._incoming(self._inner.read(issue))

    def with_authors(self, snapshot: Snapshot) -> Snapshot:
        return self._inner.with_authors(snapshot)

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        return self._inner.tally(labels, closed_too=closed_too)

    def create(self, draft: Draft) -> Issue:
        return self._inner.create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, body)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._inner.edit_comment(issue, comment, body)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._inner.edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._inner.close(issue)

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        self._inner.archive(issue, comments)

    def read_whole(self, issue: IssueRef) -> Snapshot:
        return self._incoming(self._inner.read_whole(issue))

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        self._inner.rest(issue, until, rules)

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        self._inner.prepare(labels, looks)

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Snapshot | None:
        outgoing = self._outgoing(issue, effects)
        snapshot = self._inner.apply(issue, outgoing, if_unchanged=if_unchanged, reached=reached)
        return None if snapshot is None else self._incoming(snapshot)

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        found = self._inner.read_many(issues)
        return {issue: self._incoming(snapshot) for issue, snapshot in found.items()}

    def find_snapshots(self, queries: Sequence[IssueQuery]) -> tuple[FoundSnapshots, ...]:
        return tuple(
            replace(answer, snapshots=tuple(map(self._incoming, answer.snapshots)))
            for answer in self._inner.find_snapshots(queries)
        )

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return self._inner.pulls_of(issues)

    def pulls_named(self, pulls: Sequence[IssueRef]) -> Mapping[IssueRef, LinkedPull]:
        return self._inner.pulls_named(pulls)

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        return self._inner.pull_texts(repo, branch)

    def login(self) -> str | None:
        return self._inner.login()

    def standpoint(self) -> Standpoint:
        return self._inner.standpoint()

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        return self._inner.missing_labels(labels)

    def misspelt_labels(self, labels: Sequence[str]) -> Mapping[str, str]:
        return self._inner.misspelt_labels(labels)

    def flaws(self) -> tuple[str, ...]:
        return self._inner.flaws()


class PlainTracker(OneAtATime, WrappedTracker):
    """Makes any tracker do a single read or change per call, for tests of this path."""

    @property
    def traits(self) -> TrackerTraits:
        return replace(
            self._inner.traits,
            applies=Applies.ONE_BY_ONE,
            reads_together=1,
            shortlists=False,
            accounts=False,
            checks_itself=False,
            pulls=False,
            keeps_rests=False,
            long_thread=0,
        )

    def with_authors(self, snapshot: Snapshot) -> Snapshot:
        return self._inner.with_authors(snapshot)


class SignedTracker(WrappedTracker):
    def __init__(self, inner: Tracker, keyring: Keyring) -> None:
        super().__init__(inner)
        self._keyring = keyring

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, sign(body, issue, self._keyring))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._inner.edit_comment(issue, comment, sign(body, issue, self._keyring))

    def _outgoing(self, issue: IssueRef, effects: Sequence[Effect]) -> Sequence[Effect]:
        return tuple(
            replace(effect, body=sign(effect.body, issue, self._keyring))
            if isinstance(effect, PostComment | EditComment)
            else effect
            for effect in effects
        )

    def _incoming(self, snapshot: Snapshot) -> Snapshot:
        return believing(snapshot, self._keyring)


Now = Callable[[], datetime]
"""The wall-clock time that the cards show to people."""


class SpokenTracker(WrappedTracker):
    def __init__(self, inner: Tracker, now: Now) -> None:
        super().__init__(inner)
        self._now = now

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, spell(body, self._ts()))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        ts = self._ts()
        edited = self._inner.edit_comment(issue, comment, spell(body, ts))
        if (release := release_beside(body, ts)) is not None:
            self._inner.comment(issue, release)
        return edited

    def _outgoing(self, issue: IssueRef, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        ts = self._ts()
        spelt: list[Effect] = []
        for effect in effects:
            match effect:
                case PostComment(body):
                    spelt.append(PostComment(spell(body, ts)))
                case EditComment(comment, body):
                    spelt.append(EditComment(comment, spell(body, ts)))
                    if (release := release_beside(body, ts)) is not None:
                        spelt.append(PostComment(release))
                case _:
                    spelt.append(effect)
        return tuple(spelt)

    def _ts(self) -> str:
        """The time now, to the second, in the dialect's spelling."""
        return format_instant(self._now().replace(microsecond=0))
