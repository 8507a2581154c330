"""One module per kind; wiring imports the one that is configured."""
