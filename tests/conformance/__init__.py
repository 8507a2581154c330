"""Every adapter through the public suites of `dibs.testing.conformance`."""
