"""The records of issues in refs: found, watched, replaced in one step, and listed while held.

Decides how a record is replaced and what may be said of one that was found. What is written into
it, and why, is the store's business.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.git_messages import Kept, read_record, write_record
from dibs.adapters.git_refs import Move, Names, Refs, Refused, folder_of
from dibs.adapters.observing import Observations
from dibs.core.errors import Damaged, NotPermitted, Outage, Unavailable
from dibs.core.ids import LocalTime
from dibs.core.lease import Record
from dibs.ports.clock import Clock

_MOST_REMEMBERED = 10_000
_MOST_AT_ONCE = 50
_LITTER = timedelta(minutes=10)


class Known(Struct, frozen=True):
    """A record as it was found, and what we may say of it; all None if there is none."""

    commit: str | None = None
    kept: Kept | None = None
    record: Record | None = None

    @property
    def held(self) -> bool:
        return self.kept is not None and self.kept.held

    @property
    def live(self) -> bool:
        return self.record is not None and self.record.live

    @property
    def silent(self) -> bool:
        """Watched for a ttl, and nobody has written that down yet."""
        return self.held and not self.live


NOTHING = Known()


class Records:
    """Every record under one prefix of one repository, as this client knows it."""

    def __init__(self, refs: Refs, observations: Observations, clock: Clock, names: Names) -> None:
        self._refs, self._seen, self._clock, self._names = refs, observations, clock, names
        self._lock = Lock()
        self._last: OrderedDict[str, tuple[str, Kept]] = OrderedDict()

    # Looking

    def remembered(self, ref: str) -> Known:
        """What was last found there. Good enough to expect, and never to answer with."""
        with self._lock:
            last = self._last.get(ref)
        return self._known(ref, *last) if last is not None else NOTHING

    def find(self, ref: str) -> Known:
        return self.look([folder_of(ref)]).get(ref, NOTHING)

    def look(self, folders: Iterable[str]) -> dict[str, Known]:
        asked = sorted(folders)
        tips = self._refs.tips(asked) if asked else {}
        return self.read({ref: at for ref, at in tips.items() if self._names.is_record(ref)})

    def read(self, tips: Mapping[str, str]) -> dict[str, Known]:
        messages = self._refs.messages(tips.values())
        return {ref: self._taken_in(ref, at, messages[at]) for ref, at in tips.items()}

    def _taken_in(self, ref: str, commit: str, message: str) -> Known:
        kept = read_record(message, ref)
        if self._names.record(kept.lease.issue) != ref:
            raise Damaged(f"{self._refs.name}: {ref} tells of {kept.lease.issue}")
        self._remember(ref, commit, kept)
        return self._known(ref, commit, kept)

    def _known(self, ref: str, commit: str, kept: Kept) -> Known:
        age = self._seen.age(self._watched(ref), kept.version)
        return Known(commit, kept, kept.reading(age))

    def _remember(self, ref: str, commit: str, kept: Kept) -> None:
        with self._lock:
            self._last[ref] = commit, kept
            self._last.move_to_end(ref)
            while len(self._last) > _MOST_REMEMBERED:
                self._last.popitem(last=False)

    def _watched(self, ref: str) -> str:
        return f"{self._refs.identity} {ref}"

    # Replacing one

    def replace(
        self, ref: str, known: Known, kept: Kept, others: Iterable[Move] = ()
    ) -> Known | Refused:
        """The record as it stands now, unless it was not the known one any more."""
        sent_at = self._clock.now()
        commit = self._refs.commit(write_record(kept), known.commit)
        if commit is None:
            return Refused("what it replaces is not at hand any more")
        entries = self._entries(known.kept, kept, commit)
        refused = self._push([Move(ref, commit, known.commit), *others, *entries])
        if refused is not None:
            return refused
        return self._written(ref, known, commit, kept, sent_at)

    def expire(self, ref: str, known: Known) -> Known | Refused:
        """Write down that it was watched for a ttl. Whoever may not write has watched it too."""
        assert known.kept is not None, "what expired is there"
        kept = replace(known.kept, expired=True)
        try:
            return self.replace(ref, known, kept)
        except NotPermitted:
            return Known(known.commit, kept, known.record)

    def _push(self, moves: list[Move]) -> Refused | None:
        """If the reply is lost, what came of it is looked up: it may well have been done."""
        try:
            refused = self._refs.swap(moves)
        except Unavailable as lost:
            return self._looked_up(moves[0], lost)
        if refused is None or refused.sure:
            return refused
        return refused if self._looked_up(moves[0], None) is not None else None

    def _looked_up(self, move: Move, lost: Unavailable | None) -> Refused | None:
        found = self._refs.tips([folder_of(move.ref)]).get(move.ref)
        if found == move.to:
            return None
        if lost is not None and found == move.expected:
            raise lost  # and it may still come to pass
        return Refused("the reply was lost, and the record has changed since")

    def _written(
        self, ref: str, before: Known, commit: str, kept: Kept, sent_at: LocalTime
    ) -> Known:
        self._remember(ref, commit, kept)
        if before.kept is None or before.kept.version != kept.version:
            # Known from before it was sent: no holder trusts its own pulse from earlier on.
            ago = timedelta(seconds=self._clock.now() - sent_at)
            with suppress(Outage):  # then we only watch it for longer; what was written stands
                self._seen.note(self._watched(ref), kept.version, ago)
        return self._known(ref, commit, kept)

    def _entries(self, before: Kept | None, after: Kept, commit: str) -> list[Move]:
        """A lease is listed while it is held."""
        old = self._names.entry(before.lease) if before is not None and before.held else None
        new = self._names.entry(after.lease) if after.held else None
        if old == new:
            return []
        gone = [Move(old, None, guarded=False)] if old is not None else []
        return [*gone, Move(new, commit, guarded=False)] if new is not None else gone

    # Those that are listed

    def held(self, entries: Mapping[str, str]) -> dict[str, Known]:
        """The records that these entries are about and that are held, by their refs.

        The entries only say where to look. Expiries are written down on the way.
        """
        about = {entry: self._names.record_of(entry) for entry in entries}
        found = self.look({folder_of(ref) for ref in about.values() if ref is not None})
        confirmed = {
            self._names.entry(one.kept.lease)
            for one in found.values()
            if one.kept is not None and one.kept.held
        }
        self._clear({entry: at for entry, at in entries.items() if entry not in confirmed})
        self._expire_many(found)
        return {ref: known for ref, known in found.items() if known.held}

    def _expire_many(self, found: dict[str, Known]) -> None:
        """As many at once as can be; what cannot be written is left to the next who looks."""
        silent = [ref for ref, known in found.items() if known.silent][:_MOST_AT_ONCE]
        groups = [silent] if self._refs.atomic else [[ref] for ref in silent]
        with suppress(Outage):
            for group in filter(None, groups):
                found |= self._expire_together({ref: found[ref] for ref in group})

    def _expire_together(self, silent: Mapping[str, Known]) -> dict[str, Known]:
        sent_at = self._clock.now()
        moves: list[Move] = []
        over: list[tuple[str, str, Kept]] = []
        for ref, known in silent.items():
            assert known.kept is not None, "what is silent is there"
            kept = replace(known.kept, expired=True)
            commit = self._refs.commit(write_record(kept), known.commit)
            if commit is not None:
                moves.append(Move(ref, commit, known.commit))
                moves += self._entries(known.kept, kept, commit)
                over.append((ref, commit, kept))
        if not moves or self._refs.swap(moves) is not None:
            return {}
        return {
            ref: self._written(ref, silent[ref], commit, kept, sent_at)
            for ref, commit, kept in over
        }

    def _clear(self, litter: Mapping[str, str]) -> None:
        """Entries that no record confirms: of a bid that lost, or of an end that was cut short.

        Where an entry is written before its record, a young one may be about to be confirmed.
        """
        old = [
            Move(entry, None, guarded=False)
            for entry, commit in litter.items()
            if self._seen.age(self._watched(entry), commit) > _LITTER
        ]
        if old:
            with suppress(Outage):
                self._refs.swap(old[:_MOST_AT_ONCE])
