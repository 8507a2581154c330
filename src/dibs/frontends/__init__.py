"""Translate a person's or program's wish into a service call. No decisions live here."""
