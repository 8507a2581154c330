"""Trackers that add signatures or a dialect to another tracker; help for lease stores."""
