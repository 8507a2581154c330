"""Leases as git refs, and the git program."""
