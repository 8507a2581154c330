"""The version, in one place; the build and `dibs --version` read it here."""

__version__ = "0.1.0"
