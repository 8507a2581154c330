"""The laboratory of dibs: a fake GitHub, a simulator of the shipped services, `dibs simulate`.

It is a distribution of its own, `dibs-lab`: no code that a fleet runs imports it.
"""
