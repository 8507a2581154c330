"""References: a spelling of an issue, or the one declared refusal."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dibs.core.ids import IssueRef
from dibs.core.references import parse_reference

from .properties import check_reference
from .strategies import (
    BREAKERS,
    BROKEN,
    KEYS,
    NUMBERS,
    REFERENCES,
    REPOS,
    SURROGATES,
    damaged,
    fuzzed,
)


@fuzzed
@given(REPOS, NUMBERS, REPOS)
@example("Acme/shop", "1", "acme/shop")
def test_a_qualified_reference_reads_back_wherever_it_is_read(repo, number, home):
    kept = home if repo.casefold() == home.casefold() else repo
    assert check_reference(str(IssueRef(repo, number)), home) == IssueRef(kept, number)


@fuzzed
@given(st.one_of(NUMBERS, KEYS), st.one_of(REPOS, st.just("")))
def test_a_short_reference_belongs_to_the_repository_at_hand(key, home):
    ref = IssueRef(home, key.upper())
    assert check_reference(key, home) == ref
    assert check_reference(str(ref), home) == ref


@fuzzed
@given(REFERENCES)
def test_an_address_names_an_issue_or_is_refused(text):
    check_reference(text)


@fuzzed
@given(damaged(REFERENCES))
def test_a_damaged_reference_names_an_issue_or_is_refused(text):
    check_reference(text)


@fuzzed
@given(BROKEN)
@example("")
@example("#")
@example("٣")
@example("²")
@example("1" * 18)
@example("1" * 19)
@example("\ud800#1")
@example("a/b\u2028#1")
@example("owner/repo#1\x00")
@example("https://h/a/b/issues/1\u200b")
def test_garbage_is_refused_and_nothing_else_is_raised(text):
    for given_text in (text, f"#{text}", f"owner/repo#{text}", f"{text}#1", f"https://h/{text}"):
        check_reference(given_text)


@pytest.mark.parametrize("text", [*BREAKERS, *SURROGATES], ids=ascii)
def test_no_hostile_word_becomes_part_of_a_repository(text):
    for given_text in (
        f"own{text}er/repo#1",
        f"owner/re{text}po#1",
        f"https://h/a{text}/b/issues/1",
    ):
        check_reference(given_text)


@pytest.mark.parametrize("number", [10**17, 10**18 - 1])
def test_the_largest_numbers_fit_into_what_stores_them(number):
    assert int(parse_reference(str(number)).key) < 2**63
