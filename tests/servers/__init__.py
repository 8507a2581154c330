"""Real servers for tests: started on loopback and a free port, and gone with their test process."""
