"""Settings: read, checked and shown."""
