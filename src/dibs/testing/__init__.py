"""For tests, ours and yours: a clock you can turn, and suites that any adapter can be put through."""
