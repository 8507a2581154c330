"""Where a tracker or a store is, as text: what may be shown of it."""

import re

_USER = re.compile(r"(?<=//)[^/?#]*@")
_OPTIONS = re.compile(r"[?#].*$", re.DOTALL)


def without_secrets(place: str) -> str:
    """The place without user, password and options: fit for a name, an error and a log."""
    return _OPTIONS.sub("", _USER.sub("", place))
