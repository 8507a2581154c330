"""Closing keywords: every form that GitHub honours, and none of the ones that it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.ids import IssueRef
from dibs.hook.rules import LONGEST_TEXT, closed_by_commit, closed_by_pull, named_by_pull

KEYWORDS = ["close", "closes", "closed", "fix", "fixes", "fixed", "resolve", "resolves", "resolved"]
HERE = IssueRef("", "12")
THERE = IssueRef("acme/shop", "12")
FORMS = {
    "#12": HERE,
    "GH-12": HERE,
    "gh-12": HERE,
    "acme/shop#12": THERE,
    "https://github.com/acme/shop/issues/12": THERE,
    "http://git.acme.example/acme/shop/issues/12": THERE,
    "https://github.com/acme/shop/issues/12#issuecomment-9": THERE,
    "<https://github.com/acme/shop/issues/12>": THERE,
    "[#12](https://github.com/acme/shop/issues/12)": HERE,
    "a.b_c/d-e.f#12": IssueRef("a.b_c/d-e.f", "12"),
}
each_reader = pytest.mark.parametrize("closed_by", [closed_by_commit, closed_by_pull])


@each_reader
@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_keyword_goes_with_every_form(closed_by, keyword, form):
    for spelt in (keyword, keyword.upper(), keyword.capitalize()):
        for text in (
            f"{spelt} {form}",
            f"{spelt}: {form}",
            f"{spelt} : {form}.",
            f"{spelt}  {form}",
        ):
            assert closed_by(text) == (FORMS[form],), text


@each_reader
@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("Prices are wrong\n\nFixes #12", "12"),
        ("- fixes #12", "12"),
        ("* Closes #12", "12"),
        ("Mend the prices (fixes #12)", "12"),
        ("It also fixes #12, closes #13 and resolves #14.", "12 13 14"),
        ("fixes #12, fixes #12", "12"),
        ("This fixes\n#12", "12"),
        ("Closes #12 (see #99)", "12"),
        ("Closes #12, #13", "12"),
        ("Closes #12 and #13", "12"),
        ("does not close #12", "12"),
        ('"Fixes #12"', "12"),
        ("Fixes #12: the prices", "12"),
        ("hot-fix #12", "12"),
        ("Nothing here", ""),
        ("see #12", ""),
        ("#12", ""),
        ("prefix #12", ""),
        ("fixing #12", ""),
        ("closing #12", ""),
        ("fixe #12", ""),
        ("resolv #12", ""),
        ("fixes issue #12", ""),
        ("fixes#12", ""),
        ("fixes:#12", ""),
        ("fixes #12a", ""),
        ("fixes #0", ""),
        ("fixes #", ""),
        ("fixes # 12", ""),
        ("fixes -12", ""),
        ("fixes shop#12", ""),
        ("fixes a/b/c#12", ""),
        ("fixes https://github.com/acme/shop/pull/12", ""),
        ("fixes https://github.com/acme/shop/issues/", ""),
        ("fixes #1234567890123456789", ""),
        ("fixes\n\n#12", ""),
        ("fixes <!-- x --> #12", ""),
        ("fixes\n```\nx\n```\n#12", ""),
    ],
)
def test_words_around_it_do_not_matter_and_near_misses_are_none(closed_by, text, keys):
    assert " ".join(ref.key for ref in closed_by(text)) == keys


HIDDEN = [
    "`closes #12`",
    "``a ` closes #12``",
    "Closes `#12`",
    "```\ncloses #12\n```",
    "~~~sh\ncloses #12\n~~~",
    "````\n```\ncloses #12\n```\n````",
    "```\ncloses #12",
    "    closes #12",
    "words\n\n\tcloses #12",
    "> closes #12",
    "  > > closes #12",
    "<!-- closes #12 -->",
    "<!--\ncloses #12\n-->",
    "<!-- closes #12",
    "<pre>\ncloses #12\n</pre>",
    "<code>closes #12</code>",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_code_comments_and_quotations_of_a_pull_request_close_nothing(text):
    assert closed_by_pull(text) == ()


@pytest.mark.parametrize("text", [text for text in HIDDEN if text != "Closes `#12`"])
def test_a_commit_message_is_no_markdown(text):
    assert closed_by_commit(text) == (HERE,)


@pytest.mark.parametrize(
    "text",
    [
        "a ` closes #12",
        "`` a ` closes #12",
        "`a` closes #12",
        "```\nx\n```\ncloses #12",
        "``` a ``` closes #12",
        "<!-- x --> closes #12",
        "<pre>x</pre> closes #12",
        "<pre closes #12",
        "words\n    closes #12",
        "- an item\n\n    closes #12",
        "1. an item\n\n   closes #12",
        "a > closes #12",
        "İ<code>x</code> closes #12",
    ],
)
def test_what_only_looks_like_code_or_a_quotation_closes(text):
    assert closed_by_pull(text) == (HERE,)


def test_both_ends_of_an_endless_text_are_read():
    text = "fixes #1\n" + "x" * (2 * LONGEST_TEXT) + "\nfixes #2"
    assert [ref.key for ref in closed_by_commit(text)] == ["1", "2"]


@given(
    st.text()
    | st.lists(st.sampled_from(["`", "<!--", "-->", "fixes #1", "\n", "    ", ">"])).map("".join)
)
def test_any_text_can_be_read_and_markdown_hides_but_never_adds(text):
    assert set(closed_by_pull(text)) <= set(closed_by_commit(text))


@pytest.mark.parametrize(
    "text",
    [
        "`" * 200_000,
        "`a" * 100_000,
        "<pre" * 60_000,
        "<!--" * 60_000,
        "fix " * 60_000,
        "fix:" + " " * 200_000,
        "fixes " + "a/" * 100_000,
        "\n    " * 50_000,
        "> " * 100_000,
    ],
    ids=range(9),
)
def test_nothing_makes_it_slow(text):
    """It would take minutes if it looked at every pair of places; the test's own limit tells."""
    closed_by_pull(text)
    closed_by_commit(text)


@pytest.mark.parametrize("form", FORMS)
def test_a_pull_request_names_an_issue_with_a_keyword_or_without(form):
    for text in ("For {}: prices", "({})", "### Part 1 of 2 for {}", "Fixes {}"):
        assert FORMS[form] in named_by_pull(text.format(form)), text
    for text in ("`{}`", "> {}", "<!-- {} -->"):
        assert named_by_pull(text.format(form)) == (), text


@pytest.mark.parametrize("text", ["x#12", "&#12;", "a/b/c#12x", "see 12", "GH12", "#0"])
def test_what_is_no_reference_names_nothing(text):
    assert named_by_pull(text) == ()
