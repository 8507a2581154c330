"""Any tracker with its optional capabilities hidden, so that the plain path can be exercised."""

from dibs.adapters.wrapping import WrappedTracker


class PlainTracker(WrappedTracker):
    """What `Tracker` asks for, and no more."""
