"""What the services need of the world, as protocols.

The width of a port is the price of every adapter, so they stay narrow.
"""
