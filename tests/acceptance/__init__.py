"""The promises, kept by real processes on real files: no mocks, no fixed sleeps."""
