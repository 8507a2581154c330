"""The use cases. They join the core's decisions to the ports and know no vendor."""
