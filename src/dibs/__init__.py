"""Many agents, many people, one backlog: nobody works the same issue twice.

The public names are imported at their first use, for a fast start of the command line.
"""

from dibs._version import __version__

TYPE_CHECKING = False  # typing's own, whose import would take as long as the start before it
if TYPE_CHECKING:
    from typing import Any

    from dibs.api import Dibs, HeldLease, open  # noqa: A004
    from dibs.core.errors import (
        BadConfiguration,
        BadReference,
        BadTtl,
        Damaged,
        DibsError,
        HandlerUnusable,
        IllegalMove,
        IssueHidden,
        IssueLocked,
        IssueMoved,
        LeaseLost,
        Misuse,
        NoBacklog,
        NoSuchComment,
        NoSuchIssue,
        NoSuchStage,
        NotGranted,
        NotPermitted,
        Outage,
        RateLimited,
        Unavailable,
        Untrusted,
        Unwritable,
    )
    from dibs.core.ids import Fence, IssueRef
    from dibs.services.claiming import Beaten, Doubtful, Refused
    from dibs.services.running import AskPerson, GiveBack, Work
    from dibs.services.working import Until

_HOMES = {
    **dict.fromkeys(("Dibs", "HeldLease", "open"), "dibs.api"),
    **dict.fromkeys(("Fence", "IssueRef"), "dibs.core.ids"),
    **dict.fromkeys(("Beaten", "Doubtful", "Refused"), "dibs.services.claiming"),
    **dict.fromkeys(("AskPerson", "GiveBack", "Work"), "dibs.services.running"),
    "Until": "dibs.services.working",
}
"""Where the public names are defined; all others are errors."""

__all__ = [  # noqa: RUF022 - the version first
    "__version__",
    "AskPerson",
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
    "IssueHidden",
    "IssueLocked",
    "IssueMoved",
    "IssueRef",
    "LeaseLost",
    "Misuse",
    "NoBacklog",
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
    "Untrusted",
    "Unwritable",
    "Work",
    "open",
]


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "dibs.core.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
