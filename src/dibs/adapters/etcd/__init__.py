"""Leases in etcd, over its HTTP gateway."""
