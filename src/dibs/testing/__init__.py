"""For tests, ours and yours: a clock you can turn, suites any adapter can be put through."""
