"""What the published calls ask of GitHub: `make bench-label-state`, every time."""

from benchmarks.label_state import MOST, THEIRS, run


def test_a_win_a_release_and_a_sweep_keep_to_their_bounds():
    result = run()
    assert result.passed, [check.text for check in result.checks if not check.passed]
    assert (MOST["win"], MOST["release"], MOST["sweep"]) == (4, 2, 4)
    assert all(MOST[name] < THEIRS[name] for name in MOST)
