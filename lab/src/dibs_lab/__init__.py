"""The laboratory of dibs: a fake GitHub, a simulator of the shipped services, `dibs simulate`.

A distribution of its own, `dibs-lab`: nothing that a fleet runs imports it.
"""
