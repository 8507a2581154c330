"""The mutants themselves: what is changed, what is left alone, and that a draw can be repeated."""

from collections import Counter

import pytest

from . import mutating
from .__main__ import PACKAGES, Accepted, all_mutants, drawn, main, table
from .covering import in_turn
from .killing import Fate, Trial
from .mutating import mutants_of

_GUARDED = '''
"""Said on line < 2."""

from logging import getLogger

REASONS = frozenset({"HELD", "PAUSED"})


def may(now: int | None = None, *, until: int = 3) -> bool:
    """Whether now < until."""
    if now is None:
        getLogger("x").warning("1 + 1 is not known")
        raise ValueError("give 1 < 2")
    return now < until and not max(now, 0) > 9
'''

_SCRIPT = '''
SCRIPT = """
if seen[1] ~= ARGV[1] or seen[3] then return {0} end
-- now >= is not told of here
if now >= tonumber(seen[2]) then
  redis.call('ZREM', KEYS[2], seen[8])
  return {0}
end
"""
'''

_STATEMENT = '''
RELEASE = """
UPDATE {leases} SET painted = true
WHERE run = $3 AND expires_at > clock_timestamp()
"""
'''


@pytest.fixture
def changes(tmp_path, monkeypatch):
    """The changes of a source text: operator and change."""
    monkeypatch.setattr(mutating, "SOURCE", tmp_path)

    def found(text, name="core/x.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text, "utf-8")
        made = mutants_of(path)
        for mutant in made:
            compile(mutant.mutated(), name, "exec")
            assert mutant.mutated() != text
        return {(mutant.operator, mutant.change) for mutant in made}

    return found


def test_every_guard_of_a_function_is_changed_and_no_word_of_it(changes):
    assert changes(_GUARDED) == {
        ("element", 'without "HELD"'),
        ("element", 'without "PAUSED"'),
        ("guard", "now is None -> False"),
        ("compare", "is -> is not"),
        ("return", "now < until and not max(now, 0) > 9 -> None"),
        ("and or", "and -> or"),
        ("clause", "without now < until"),
        ("clause", "without not max(now, 0) > 9"),
        ("compare", "< -> <="),
        ("not", "not max(now, 0) > 9 -> (max(now, 0) > 9)"),
        ("compare", "> -> >="),
        ("min max", "max -> min"),
        ("constant", "0 -> 1"),
    }


def test_guards_of_a_script_in_redis_are_changed(changes):
    assert changes(_SCRIPT, "adapters/redis/x.py") == {
        ("text compare", "~= -> =="),
        ("text compare", ">= -> >"),
        ("text and or", "or -> and"),
        ("text clause", "or seen[3] -> nothing"),
        ("text statement", "redis.call('ZREM', KEYS[2], seen[8]) -> nothing"),
    }


def test_guards_of_a_statement_in_sql_are_changed(changes):
    assert changes(_STATEMENT, "adapters/postgres/x.py") == {
        ("text compare", "> -> >="),
        ("text clause", "AND expires_at > clock_timestamp() -> nothing"),
        ("text clause", "run = $3 AND -> nothing"),
        ("text and or", "AND -> OR"),
        ("text clock", "clock_timestamp() -> now()"),
        ("text constant", "true -> false"),
    }


def test_a_draw_is_the_same_again_and_others_do_not_change_it():
    mutants = all_mutants(PACKAGES["fencing"])
    draw = drawn(mutants, 7, 10)
    assert draw == drawn(list(reversed(mutants)), 7, 10)
    assert draw != drawn(mutants, 8, 10)
    without = [mutant for mutant in mutants if mutant is not draw[3]]
    assert drawn(without, 7, 9) == [*draw[:3], *draw[4:]]


def test_every_mutant_has_a_name_of_its_own_and_each_package_has_some():
    for package in PACKAGES.values():
        mutants = all_mutants(package)
        assert mutants
        assert len({mutant.name for mutant in mutants}) == len(mutants)
        assert len({mutant.id for mutant in mutants}) == len(mutants)


def test_whatever_may_live_is_a_mutant_of_today_and_has_a_reason():
    names = {mutant.name for package in PACKAGES.values() for mutant in all_mutants(package)}
    for name, reason in Accepted.kept().reasons.items():
        assert name in names, name
        assert len(reason) > 20, name


def test_one_case_of_each_function_comes_before_a_second_of_any():
    tests = ["a.py::f[1]", "a.py::f[2]", "b.py::g", "a.py::f[3]", "a.py::h[1]"]
    assert in_turn(tests) == ["a.py::f[1]", "b.py::g", "a.py::h[1]", "a.py::f[2]", "a.py::f[3]"]


def test_what_may_live_lowers_no_rate_and_what_nothing_reaches_does():
    [one, two, three, *_] = all_mutants(PACKAGES["fencing"])
    trials = [Trial(one, Fate.KILLED), Trial(two, Fate.SURVIVED), Trial(three, Fate.UNREACHED)]
    text, rate = table({"fencing": trials}, Counter(fencing=5))
    assert rate == pytest.approx(1 / 3)
    assert text.splitlines()[-1].split() == ["all", "8", "1", "5", "2", "33.3%"]


@pytest.mark.parametrize("words", [["--one", "00000000"], ["--packages", "core,cores"]])
def test_an_id_or_a_package_that_is_none_is_not_told_as_all_killed(words, capsys):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    told = capsys.readouterr()
    assert words[1].split(",")[-1] in told.out + told.err
