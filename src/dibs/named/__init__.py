"""Holds and loops: leases on names instead of issues."""
