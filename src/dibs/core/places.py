"""Where a tracker or a store is, as text: what may be shown of it."""

import re

_OPTIONS = re.compile(r"[?][A-Za-z_.-]+=.*$", re.DOTALL)
_USER = re.compile(r"(?<=//).*@", re.DOTALL)
_REST = re.compile(r"[?#].*$", re.DOTALL)


def without_secrets(place: str) -> str:
    """The place without user, password and options: fit for a name, an error and a log.

    A password that should have been quoted and was not may contain anything: rather too much is
    left out than too little.
    """
    return _REST.sub("", _USER.sub("", _OPTIONS.sub("", place)))
