"""Implementations of the ports. Siblings do not know each other."""
