"""Suites that any tracker or lease store can be put through, whoever wrote it."""
