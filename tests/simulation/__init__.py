"""The shipped services in a simulated world, and the proof that the proof can fail."""
