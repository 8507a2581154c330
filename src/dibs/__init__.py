"""Many agents, many people, one backlog: nobody works the same issue twice.

The public names are imported at their first use, for a fast start of the command line.
"""

from typing import TYPE_CHECKING, Any

from dibs._version import __version__

if TYPE_CHECKING:
    from dibs.api import Dibs, HeldLease, open  # noqa: A004
    from dibs.core.errors import (
        BadConfiguration,
        BadReference,
        BadTtl,
        Damaged,
        DibsError,
        HandlerUnusable,
        IllegalMove,
        IssueLocked,
        IssueMoved,
        LeaseLost,
        Misuse,
        NoSuchComment,
        NoSuchIssue,
        NoSuchStage,
        NotGranted,
        NotPermitted,
        Outage,
        RateLimited,
        Unavailable,
        Unwritable,
    )
    from dibs.core.ids import Fence, IssueRef
    from dibs.services.claiming import Beaten, Doubtful, Refused
    from dibs.services.running import GiveBack, Work
    from dibs.services.working import Until

_HOMES = {
    "dibs.api": ("Dibs", "HeldLease", "open"),
    "dibs.core.errors": (
        "BadConfiguration",
        "BadReference",
        "BadTtl",
        "Damaged",
        "DibsError",
        "HandlerUnusable",
        "IllegalMove",
        "IssueLocked",
        "IssueMoved",
        "LeaseLost",
        "Misuse",
        "NoSuchComment",
        "NoSuchIssue",
        "NoSuchStage",
        "NotGranted",
        "NotPermitted",
        "Outage",
        "RateLimited",
        "Unavailable",
        "Unwritable",
    ),
    "dibs.core.ids": ("Fence", "IssueRef"),
    "dibs.services.claiming": ("Beaten", "Doubtful", "Refused"),
    "dibs.services.running": ("GiveBack", "Work"),
    "dibs.services.working": ("Until",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the strings come from the table above
    "__version__",
    "BadConfiguration",
    "BadReference",
    "BadTtl",
    "Beaten",
    "Damaged",
    "Dibs",
    "DibsError",
    "Doubtful",
    "Fence",
    "GiveBack",
    "HandlerUnusable",
    "HeldLease",
    "IllegalMove",
    "IssueLocked",
    "IssueMoved",
    "IssueRef",
    "LeaseLost",
    "Misuse",
    "NoSuchComment",
    "NoSuchIssue",
    "NoSuchStage",
    "NotGranted",
    "NotPermitted",
    "Outage",
    "RateLimited",
    "Refused",
    "Unavailable",
    "Until",
    "Unwritable",
    "Work",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
