"""Tracker, leases and control records of one process, for tests and for trying out."""
