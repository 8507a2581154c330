"""The protocols through which services use trackers, stores and the system, and their values.

Every adapter implements the whole width of a port, so ports stay narrow.
"""
