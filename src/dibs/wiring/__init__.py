"""Turns settings into adapters and services."""
