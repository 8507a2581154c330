"""Leases in Redis or Valkey."""
