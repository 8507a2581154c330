"""Benchmarks: one file per question, each printing a table and ratios measured in one run.

Nothing here depends on how fast the machine is: a result is a ratio of two things measured side by
side, in turns, or a count. `python -m benchmarks --list` names the questions.
"""
