"""Tests of the use cases: memory adapters, a clock turned by hand, no mocks, no sleeping."""
