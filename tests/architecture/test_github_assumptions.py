"""Each assumption about GitHub is guarded, probed or documented, and what its row names exists."""

from dibs.adapters.github.probing import probe_names

from .pages import DOCS, absent, codes, table

PAGE = DOCS / "internals" / "github-assumptions.md"
PROBES = {
    codes(row[0])[0] for row in table(DOCS / "reference" / "cli.md", "dibs doctor", "probe").rows
}


def _rows():
    return table(PAGE, "Assumptions about GitHub").rows


def test_every_number_is_there_once_and_in_order():
    assert [int(row[0]) for row in _rows()] == list(range(1, 23))


def test_none_is_silently_relied_on():
    bare = [row[0] for row in _rows() if not any(cell.strip() for cell in row[2:])]
    assert bare == []


def test_the_tests_exist():
    wrong = [f"{row[0]}: {test}" for row in _rows() for test in absent(codes(row[2]))]
    assert wrong == []


def test_the_probes_exist():
    wrong = [f"{row[0]}: {name}" for row in _rows() for name in codes(row[3]) if name not in PROBES]
    assert wrong == []
    assert set(probe_names()) <= PROBES, "the reference names every probe"


def test_what_is_documented_is_a_link():
    assert [row[0] for row in _rows() if row[4].strip() and "](" not in row[4]] == []
