"""The fake GitHub over real HTTP, as a client sees it."""
