"""Pure values and functions. Nothing here does I/O, reads a clock or rolls dice."""
