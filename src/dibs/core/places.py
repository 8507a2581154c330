"""Where a tracker or a store is, as text: what may be shown of it."""

import re

_OPTIONS = r"(?s)[?][A-Za-z_.-]+=.*$"
_USER = r"(?s)(?<=//).*@"
_REST = r"(?s)[?#].*$"


def without_secrets(place: str) -> str:
    """The place without user, password and options: fit for a name, an error and a log.

    A password that should have been quoted and was not may contain anything: rather too much is
    left out than too little.
    """
    return re.sub(_REST, "", re.sub(_USER, "", re.sub(_OPTIONS, "", place)))
