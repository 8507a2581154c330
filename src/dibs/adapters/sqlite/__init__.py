"""The embedded default: tracker, leases and control records in SQLite files."""
