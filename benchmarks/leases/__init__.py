"""What a lease costs: our stores beside the raw floor and beside Python's lock libraries.

One file for each server, and one for a crowd on one key. Every server is started here, on loopback,
by `tests.servers`. `python -m benchmarks.leases --help` names the parts.
"""
