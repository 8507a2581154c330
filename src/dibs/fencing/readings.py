"""What is read back from a fenced place."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from dibs.core.ids import Fence
from dibs.fencing.outcomes import Version

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Reading(Generic[_V]):
    """A value, the highest fence seen for it, and the version to hand in when it is changed."""

    value: _V
    fence: Fence
    version: Version
