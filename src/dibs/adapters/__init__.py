"""The outside world, a package for each vendor."""
