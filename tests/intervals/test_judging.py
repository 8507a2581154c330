"""The judgement alone: which records make an interval, an overlap, a fall of the fence."""

import msgspec
import pytest

from .judging import Ended, Granted, Passed, Record, Renewed, judge, read_log, trusted_intervals


def held(run: str, start: float, end: float, fence: int, name: str = "n") -> list[Record]:
    """A run that trusts its lease from `start` and gives it back at `end`, with time left."""
    return [Granted(run, name, fence, start - 0.1, start, end + 100), Ended(run, end, "given back")]


def overlaps(*records: Record) -> list[tuple[str, str]]:
    return [(one.first.run, one.second.run) for one in judge(records).overlaps]


def falls(*records: Record) -> list[tuple[str, str]]:
    return [(one.earlier.run, one.later.run) for one in judge(records).falls]


# Intervals

GRANTED = Granted("a", "n", 1, 9.0, 10.0, 14.0)
ENDS = {
    "trust runs out, whether the holder is frozen, dead or idle": ([], 14.0),
    "a renewal extends it": ([Renewed("a", 15.0)], 15.0),
    "the latest renewal counts": ([Renewed("a", 15.0), Renewed("a", 17.0)], 17.0),
    "given back early": ([Ended("a", 12.0, "given back")], 12.0),
    "given back late: trust was over": ([Ended("a", 16.0, "given back")], 14.0),
    "lost, and given back after that": ([Ended("a", 11.0, "lost"), Ended("a", 12.0, "")], 11.0),
    "renewed, then given back": ([Renewed("a", 18.0), Ended("a", 16.0, "")], 16.0),
    "a check within it changes nothing": ([Passed("a", 12.0)], 14.0),
    "a check that passed after trust": ([Passed("a", 15.0), Passed("a", 14.5)], 15.0),
    "a check that passed after its end": ([Ended("a", 11.0, ""), Passed("a", 12.0)], 12.0),
}


@pytest.mark.parametrize(("more", "end"), ENDS.values(), ids=ENDS)
def test_an_interval_ends_where_the_holder_stopped_to_trust(more: list[Record], end: float) -> None:
    [interval] = trusted_intervals([GRANTED, *more])
    assert (interval.name, interval.run, interval.fence) == ("n", "a", 1)
    assert (interval.asked, interval.start, interval.end) == (9.0, 10.0, end)


@pytest.mark.parametrize("until", [9.0, 10.0])
def test_a_reply_after_the_end_of_trust_makes_no_interval(until: float) -> None:
    late = Granted("late", "n", 1, 8.0, 10.0, until)
    assert trusted_intervals([late]) == []
    other = held("other", 9.0, 11.0, fence=2)
    assert overlaps(late, *other) == falls(late, *other) == []


def test_a_late_reply_whose_check_passed_is_an_interval() -> None:
    late = [Granted("late", "n", 1, 8.0, 10.0, 9.0), Passed("late", 10.5)]
    assert overlaps(*late, *held("other", 9.5, 11.0, fence=2)) == [("other", "late")]


def test_a_holder_that_trusts_only_what_it_checks_is_judged_by_its_checks() -> None:
    """So does the control, which has no clock of its own."""
    naive = [
        Granted("naive", "n", 1, 9.9, 10.0, 10.0),
        Passed("naive", 10.5),
        Passed("naive", 13.0),
    ]
    assert overlaps(*naive, *held("other", 12.0, 14.0, fence=2)) == [("naive", "other")]


@pytest.mark.parametrize("records", [[Passed("a", 1.0)], [GRANTED, Renewed("a", 2.0), GRANTED]])
def test_a_run_has_one_grant_at_its_beginning(records: list[Record]) -> None:
    with pytest.raises(ValueError, match="run a "):
        trusted_intervals(records)


# Overlaps


def test_intervals_one_after_the_other_do_not_overlap() -> None:
    apart = [*held("a", 1, 2, 1), *held("b", 2, 3, 2), *held("c", 3.5, 4, 3)]
    assert overlaps(*apart) == []


@pytest.mark.parametrize(
    ("start", "end"), [(0.5, 1.1), (0.5, 3.0), (1.0, 2.0), (1.2, 1.8), (1.9, 3.0)]
)
def test_any_time_in_common_is_an_overlap(start: float, end: float) -> None:
    pair = overlaps(*held("a", 1.0, 2.0, 1), *held("b", start, end, 2))
    assert {*pair} <= {("a", "b"), ("b", "a")}
    assert len(pair) == 1


def test_names_have_nothing_to_do_with_each_other() -> None:
    apart = [*held("a", 1, 4, 2, name="one"), *held("b", 2, 3, 1, name="two")]
    assert overlaps(*apart) == falls(*apart) == []


def test_every_pair_is_found_also_with_one_that_began_long_before() -> None:
    records = [*held("long", 1, 9, 1), *held("b", 2, 3, 2), *held("c", 4, 6, 3)]
    records += held("d", 5, 7, 4)
    assert overlaps(*records) == [("long", "b"), ("long", "c"), ("long", "d"), ("c", "d")]


def test_every_pair_of_four_at_one_time_is_found() -> None:
    records = [one for fence, run in enumerate("abcd") for one in held(run, fence, 9, fence)]
    assert overlaps(*records) == [(a, b) for b in "abcd" for a in "abcd" if a < b]


def test_the_order_of_the_logs_does_not_matter() -> None:
    records = [*held("b", 2, 4, 2), *held("a", 1, 3, 1)]
    assert overlaps(*records) == [("a", "b")]
    assert falls(*records) == []


def test_a_dead_holder_counts_until_its_trust_is_over() -> None:
    dead = Granted("dead", "n", 1, 0.9, 1.0, 5.0)
    assert overlaps(dead, *held("heir", 4.9, 6.0, 2)) == [("dead", "heir")]
    assert overlaps(dead, *held("heir", 5.0, 6.0, 2)) == []


# Fences


def test_a_fence_rises_from_interval_to_interval() -> None:
    assert falls(*held("a", 1, 2, 7), *held("b", 3, 4, 8), *held("c", 5, 6, 20)) == []


@pytest.mark.parametrize("fence", [6, 7])
def test_a_fence_that_is_equal_or_lower_is_a_fall(fence: int) -> None:
    assert falls(*held("a", 1, 2, 7), *held("b", 3, 4, fence)) == [("a", "b")]


def test_a_fence_must_be_above_all_before_it_and_not_only_the_last() -> None:
    records = [*held("a", 1, 2, 9), *held("b", 3, 4, 5), *held("c", 5, 6, 8)]
    assert falls(*records) == [("a", "b"), ("a", "c")]


def test_two_intervals_that_begin_together_are_taken_by_their_fences() -> None:
    assert falls(*held("b", 1, 2, 2), *held("a", 1, 2, 1)) == []
    assert falls(*held("b", 1, 2, 2), *held("a", 1, 2, 2)) != []


@pytest.mark.parametrize(("asked", "fallen"), [(0.9, []), (1.0, [("b", "a")]), (1.5, [("b", "a")])])
def test_by_grants_a_fence_may_be_lower_only_if_it_was_asked_for_before_the_reply_to_the_other(
    asked: float, fallen: list[tuple[str, str]]
) -> None:
    """A store's clock was set forward while the reply to `a` was on its way."""
    records = [*held("b", 1, 2, 8), Granted("a", "n", 7, asked, 3.0, 4.0)]
    falls = judge(records, by_grants=True).falls
    assert [(one.earlier.run, one.later.run) for one in falls] == fallen
    assert len(judge(records).falls) == 1, "in the order of intervals it is a fall"


def test_by_grants_every_earlier_interval_counts_and_not_only_the_highest() -> None:
    records = [*held("a", 1, 2, 8), *held("b", 3, 4, 9), Granted("c", "n", 7, 2.5, 5.0, 6.0)]
    [fall] = judge(records, by_grants=True).falls
    assert (fall.earlier.run, fall.later.run) == ("a", "c")


# Counts and logs


def test_what_was_written_down_is_counted() -> None:
    records = [GRANTED, Passed("a", 11), Renewed("a", 15), Passed("a", 12), Passed("a", 13)]
    late = Granted("late", "n", 2, 18.0, 20.0, 19.0)
    verdict = judge([*records, Ended("a", 14, ""), late])
    assert (verdict.grants, verdict.renewals, verdict.checks) == (2, 1, 3)


def test_a_log_is_read_back_without_the_line_in_which_its_writer_was_killed() -> None:
    records = [GRANTED, Renewed("a", 15.0), Passed("a", 11.5), Ended("a", 12.0, "lost")]
    text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    assert list(read_log(text)) == records
    assert list(read_log(text + b'{"type":"pass')) == records
    assert list(read_log(b"")) == list(read_log(b'{"type"')) == []


def test_a_finding_names_the_name_the_runs_the_fences_and_the_time_in_common() -> None:
    verdict = judge([*held("a", 1, 3, 7, name="deploy"), *held("b", 2.5, 4, 7, name="deploy")])
    a, b = "a with fence 7 from 1.000 to 3.000", "b with fence 7 from 2.500 to 4.000"
    assert [str(found) for found in (*verdict.overlaps, *verdict.falls)] == [
        f"deploy: for 0.500 s both {a} and {b}",
        f"deploy: the fence does not rise from {a} to {b}",
    ]
    [within] = judge([*held("a", 1, 9, 1), *held("b", 2, 4, 2)]).overlaps
    assert "for 2.000 s" in str(within)
