"""Which issue a person means."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.errors import BadReference
from dibs.core.ids import IssueRef
from dibs.core.references import parse_reference, this_machine

from .builders import HOSTILE

HOME = "acme/shop"
SEGMENT = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
REPOS = st.lists(SEGMENT, min_size=2, max_size=6).map("/".join)
NUMBERS = st.integers(1, 10**18 - 1).map(str)
KEYS = st.from_regex(r"[A-Z][A-Z0-9_]{0,19}-[1-9][0-9]{0,11}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("123", IssueRef(HOME, "123")),
        ("#123", IssueRef(HOME, "123")),
        ("  #123\n", IssueRef(HOME, "123")),
        ("owner/repo#123", IssueRef("owner/repo", "123")),
        ("my-org/my.repo_x#5", IssueRef("my-org/my.repo_x", "5")),
        ("group/sub/project#9", IssueRef("group/sub/project", "9")),
        ("owner/.github#1", IssueRef("owner/.github", "1")),
        ("ABC-123", IssueRef(HOME, "ABC-123")),
        ("abc-123", IssueRef(HOME, "ABC-123")),
        ("https://github.com/owner/repo/issues/5", IssueRef("owner/repo", "5")),
        ("https://github.com/owner/repo/issues/5/", IssueRef("owner/repo", "5")),
        ("https://github.com/owner/repo/issues/5#issuecomment-1", IssueRef("owner/repo", "5")),
        ("https://github.com/owner/repo/issues/5?x=1", IssueRef("owner/repo", "5")),
        ("https://github.com/owner/repo/pull/5", IssueRef("owner/repo", "5")),
        ("http://git.example:3000/owner/repo/issues/5", IssueRef("owner/repo", "5")),
        ("https://gitlab.com/g/sub/p/-/issues/5", IssueRef("g/sub/p", "5")),
        ("https://gitlab.com/g/p/-/work_items/5", IssueRef("g/p", "5")),
        ("https://gitlab.com/g/p/-/merge_requests/5", IssueRef("g/p", "5")),
        ("https://acme.atlassian.net/browse/ABC-123", IssueRef(HOME, "ABC-123")),
        ("https://acme.atlassian.net/browse/abc-9?focused=1", IssueRef(HOME, "ABC-9")),
        ("https://linear.app/acme/issue/ENG-42/prices-are-wrong", IssueRef(HOME, "ENG-42")),
    ],
)
def test_every_documented_spelling_names_its_issue(text, ref):
    assert parse_reference(text, default_repo=HOME) == ref


def test_without_a_default_repository_a_bare_number_names_the_only_one():
    assert parse_reference("7") == IssueRef("", "7")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#",
        "0",
        "#0",
        "007",
        "-1",
        "1.5",
        "##1",
        "1 2",
        "repo#1",
        "owner/repo",
        "owner/repo#",
        "owner/repo#x",
        "owner//repo#1",
        "/repo#1",
        "owner/repo #1",
        "-owner/repo#1",
        "ABC-",
        "ABC-0",
        "-123",
        "1BC-1",
        "٣",
        "https://github.com/owner/repo",
        "https://github.com/owner/issues/5",
        "https://github.com/owner/repo/issues/",
        "ftp://github.com/owner/repo/issues/5",
        "https://github.com/owner/repo/issues/5 and more",
        "1; rm -rf /",
        "12x",
        "#12 x",
        "owner/repo#12x",
        "owner/repo#12 x",
        "owner/repo#1\nx",
        "ABC-12x",
        "see owner/repo#12",
        "9" * 19,
        "1" * 3000,
        "a/" * 1500,
    ],
)
def test_what_names_no_issue_is_refused_with_the_accepted_spellings(text):
    with pytest.raises(BadReference) as refusal:
        parse_reference(text, default_repo=HOME)
    assert "owner/repo#123" in refusal.value.hint
    assert len(str(refusal.value)) < 2100


@pytest.mark.parametrize(
    "text", ["../..#1", "./.#1", "owner/..#1", "https://github.com/../../issues/1"]
)
def test_a_path_that_climbs_is_no_repository(text):
    with pytest.raises(BadReference):
        parse_reference(text)


@given(REPOS, NUMBERS)
def test_a_written_reference_reads_back_to_itself(repo, number):
    ref = IssueRef(repo, number)
    assert parse_reference(str(ref), default_repo="other/one") == ref


@given(NUMBERS)
def test_a_number_in_the_embedded_tracker_reads_back_to_itself(number):
    ref = IssueRef("", number)
    assert parse_reference(str(ref)) == ref


@given(KEYS, REPOS)
def test_a_key_reads_back_to_itself_whatever_its_case(key, home):
    assert parse_reference(key.lower(), default_repo=home) == IssueRef(home, key)
    assert parse_reference(str(IssueRef(home, key)), default_repo=home) == IssueRef(home, key)


@given(REPOS.filter(lambda repo: "/issues/" not in repo), NUMBERS)
def test_the_address_of_an_issue_names_it(repo, number):
    ref = IssueRef(repo, number)
    for dash in ("", "/-"):
        assert parse_reference(f"https://git.example/{repo}{dash}/issues/{number}") == ref


@given(
    st.one_of(
        st.text(HOSTILE, max_size=60),
        st.text(string.ascii_letters + string.digits + "/#-.:?", max_size=60),
    )
)
def test_any_text_names_an_issue_or_is_a_bad_reference(text):
    try:
        ref = parse_reference(text, default_repo=HOME)
    except BadReference:
        return
    assert ref.key
    assert not set(str(ref)) & set(" \t\n")


def test_a_repository_is_named_as_it_is_known_whatever_its_capitals():
    known = ("Acme/Shop", "acme/Store")
    assert parse_reference("ACME/shop#7", repos=known) == IssueRef("Acme/Shop", "7")
    assert parse_reference("https://host/Acme/STORE/issues/7", repos=known).repo == "acme/Store"
    assert parse_reference("acme/shop#7", default_repo="Acme/Shop").repo == "Acme/Shop"
    assert parse_reference("acme/other#7", repos=known).repo == "acme/other"
    assert parse_reference("7", repos=known).repo == ""


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("", "localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1")),
        *((host, True) for host in ("/run/postgresql", "@abstract")),
        *((host, False) for host in ("0.0.0.0", "10.0.0.1", "db", "localhost.evil.example", "::")),
        *((host, False) for host in ("127.0.0.1.evil.example", "fe80::1%eth0", "127.1")),
    ],
)
def test_only_loopback_and_sockets_are_this_machine(host, here):
    assert this_machine(host) is here
