"""Fenced writes at real places: SQLite and PostgreSQL, Valkey, an S3, files; real processes."""
