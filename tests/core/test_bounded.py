"""What a long process remembers does not grow."""

from hypothesis import given
from hypothesis import strategies as st

from dibs.core.bounded import Bounded


def test_the_entry_written_longest_ago_goes_first():
    kept = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.integers())))
def test_it_holds_the_last_keys_that_were_written(most, writes):
    kept = Bounded(most)
    for key, value in writes:
        kept[key] = value
    last = list(dict.fromkeys(key for key, _ in reversed(writes)))[:most]
    assert kept == {key: dict(writes)[key] for key in last}
