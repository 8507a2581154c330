"""How many leases of a stage are in flight, and the ref that each grant under a limit moves.

The leases themselves are counted, so no slot can be lost. Moving the stage's ref together with the
grant makes sure that nobody else was granted under a limit since the counting began.
"""

from collections.abc import Mapping

from msgspec import Struct

from dibs.adapters.git_messages import Slot, read_slots, write_slots
from dibs.adapters.git_records import NOTHING, Known, Records
from dibs.adapters.git_refs import Move, Names, Refs, folder_of


class Turn(Struct, frozen=True):
    """The grants under a limit, as the stage's ref told of them."""

    stage: str
    commit: str | None
    slots: tuple[Slot, ...] = ()


class Slots:
    def __init__(self, refs: Refs, records: Records, names: Names) -> None:
        self._refs, self._records, self._names = refs, records, names

    def turn(self, stage: str, tips: Mapping[str, str]) -> Turn:
        ref = self._names.slots(stage)
        if (commit := tips.get(ref)) is None:
            return Turn(stage, None)
        return Turn(stage, commit, tuple(read_slots(self._refs.messages([commit])[commit], ref)))

    def taken(self, turn: Turn, tips: Mapping[str, str], mine: str) -> set[str]:
        """The records of the stage that are held, apart from the bidder's own.

        A push moves several refs in one step, but whoever looks meanwhile may see only some of
        them moved. So a slot whose record is not there yet is taken.
        """
        entries = {
            entry: commit
            for entry, commit in tips.items()
            if self._names.record_of(entry) not in (None, mine)
        }
        held = self._records.held(entries)
        taken = {ref for ref, known in held.items() if _of_stage(known, turn.stage)}
        unlisted = [slot for slot in turn.slots if slot.record not in {*taken, mine}]
        found = self._records.look({folder_of(slot.record) for slot in unlisted})
        for slot in unlisted:
            known = found.get(slot.record, NOTHING)
            unseen = known.kept is None or known.kept.lease.fence < slot.fence
            if unseen or (known.held and _of_stage(known, turn.stage)):
                taken.add(slot.record)
        return taken

    def move(self, turn: Turn, taken: set[str], mine: Slot) -> Move | None:
        """None if what it replaces is not at hand any more."""
        slots = [*(slot for slot in turn.slots if slot.record in taken), mine]
        commit = self._refs.commit(write_slots(turn.stage, slots), turn.commit)
        if commit is None:
            return None
        return Move(self._names.slots(turn.stage), commit, turn.commit)


def _of_stage(known: Known, stage: str) -> bool:
    return known.kept is not None and known.kept.lease.stage == stage
