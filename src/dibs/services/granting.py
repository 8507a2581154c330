"""Whether the store of this process may grant, as it stands beside the backlog."""

from dibs.core.eligibility import Reason
from dibs.core.granter import Appointed, Granter, keeps_house, objection
from dibs.core.ids import Fence
from dibs.ports.granters import Granters


class Granting:
    """One store's view of who grants. The first store that grants anything is appointed by it."""

    def __init__(self, granters: Granters, store: str) -> None:
        self._granters = granters
        self.store = store

    @property
    def granter(self) -> Granter | None:
        return self._granters.granter()

    def floor(self) -> Fence:
        """Above which every fence has to be."""
        granter = self.granter
        return granter.floor if granter is not None else Fence(0)

    def objections(self) -> tuple[Reason, ...]:
        """Why nothing may be granted here now. Writes nothing."""
        granter = self.granter
        against = objection(granter, self.store) if granter is not None else None
        return (against,) if against is not None else ()

    def claim_office(self) -> None:
        """Be the granter, if there was none. Called under a grant, before it is judged."""
        if self.granter is None:
            self._granters.appoint(Appointed(self.store), instead_of=None)

    def keeps_house(self) -> bool:
        """Whether this store's word may be used to bring labels back to the truth."""
        granter = self.granter
        return granter is None or keeps_house(granter, self.store)
