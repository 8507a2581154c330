"""Runners of handlers, one module per kind; wiring imports the configured one."""
