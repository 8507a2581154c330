"""Which issue a person means: `owner/repo#123`, `#123`, `123`, a URL, `ABC-123`.

Knows spellings only; whether the issue exists is for the tracker to say.

Where a tracker or a store is, as text: what may be shown of it.
"""

import re
from collections.abc import Collection

from dibs.core.errors import BadReference
from dibs.core.ids import IssueRef

_SEGMENT = r"(?!\.{1,2}(?:[/#]|$))[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}"  # not a path that climbs
_REPO = rf"{_SEGMENT}(?:/{_SEGMENT}){{1,5}}"
_NUMBER = r"[1-9][0-9]{0,17}"
_BARE = rf"#?({_NUMBER})"
_QUALIFIED = rf"({_REPO})#({_NUMBER})"
_KEY = r"([A-Za-z][A-Za-z0-9_]{0,19}-[1-9][0-9]{0,11})"
_URL = (
    rf"(?a)https?://[^/\s]{{1,253}}/({_REPO}?)(?:/-)?/(?:issues|pull|pulls|merge_requests|work_items)/"
    rf"({_NUMBER})(?:[/?#]\S*)?"
)
_KEY_URL = (
    r"(?a)https?://[^/\s]{1,253}/(?:\S*/)?(?:browse|issue)/([A-Za-z][A-Za-z0-9_]{0,19}-[1-9][0-9]{0,11})"
    r"(?:[/?#]\S*)?"
)


def parse_reference(text: str, *, default_repo: str = "", repos: Collection[str] = ()) -> IssueRef:
    """Read a reference. Raises BadReference, which lists the accepted spellings.

    A repository of `repos` is named as it stands there, whatever its capitals: a store keeps leases
    by these names, so one issue must not have two.
    """
    ref = _parse(text, default_repo)
    for repo in (default_repo, *repos):
        if repo.casefold() == ref.repo.casefold():
            return IssueRef(repo, ref.key)
    return ref


def _parse(text: str, default_repo: str) -> IssueRef:
    wanted = text.strip()
    if len(wanted) > 2000:
        raise BadReference(wanted[:40] + "...")
    if match := re.fullmatch(_BARE, wanted):
        return IssueRef(default_repo, match[1])
    if (match := re.fullmatch(_QUALIFIED, wanted)) or (match := re.fullmatch(_URL, wanted)):
        return IssueRef(match[1], match[2])
    if (match := re.fullmatch(_KEY, wanted)) or (match := re.fullmatch(_KEY_URL, wanted)):
        return IssueRef(default_repo, match[1].upper())
    raise BadReference(wanted)


_OPTIONS = r"(?s)[?][A-Za-z_.-]+=.*$"
_USER = r"(?s)(?<=//).*@"
_REST = r"(?s)[?#].*$"


def without_secrets(place: str) -> str:
    """The place without user, password and options: fit for a name, an error and a log.

    A password that should have been quoted and was not may contain anything: rather too much is
    left out than too little.
    """
    return re.sub(_REST, "", re.sub(_USER, "", re.sub(_OPTIONS, "", place)))
