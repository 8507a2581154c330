"""Both sides of the wire against what GitHub publishes, and against clients we did not write."""
