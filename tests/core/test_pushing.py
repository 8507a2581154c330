"""Git's lines, addresses of remotes, and in which repository a bare number is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.ids import IssueRef
from dibs.hook.rules import (
    NotGits,
    RefUpdate,
    firing_in,
    numbered_in,
    parse_updates,
    repository_at,
    tracked_issue,
)

A, B, NONE = "a" * 40, "b" * 40, "0" * 40


def test_each_line_is_a_ref():
    said = (
        f"refs/heads/main {A} refs/heads/main {B}\n"
        f"HEAD~ {A} refs/heads/new {NONE}\n"
        f"(delete) {NONE} refs/heads/old {B}\n"
        f":/fix the bug {A} refs/tags/v1 {NONE}\n"
        f"refs/heads/main {'c' * 64} refs/heads/sha256 {'0' * 64}\n"
    )
    updates = parse_updates(said.encode())
    assert [update.source for update in updates[:4]] == [
        "refs/heads/main",
        "HEAD~",
        "(delete)",
        ":/fix the bug",
    ]
    assert [update.branch for update in updates] == ["main", "new", None, None, "sha256"]
    assert [update.creates for update in updates] == [False, True, False, True, True]
    assert [update.deletes for update in updates] == [False, False, True, False, False]


def test_a_name_that_is_no_text_is_kept():
    update = parse_updates(
        b"refs/heads/\xff " + A.encode() + b" refs/heads/\xff " + B.encode() + b"\n"
    )
    assert update[0].branch == "\udcff"


def test_nothing_is_nothing():
    assert parse_updates(b"") == ()


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"x\n",
        b"a b c d\n",
        f"x {A} y {B}".encode(),
        f"x {A[:-1]} y {B}\n".encode(),
        f"x {A} y {B}\n\n".encode(),
        f"x {A.upper()} y {B}\n".encode(),
        b"\0\n",
    ],
)
def test_what_git_does_not_write_is_refused(said):
    with pytest.raises(NotGits):
        parse_updates(said)


@given(st.binary())
def test_any_bytes_are_lines_or_refused(said):
    try:
        updates = parse_updates(said)
    except NotGits:
        return
    assert all(isinstance(update, RefUpdate) for update in updates)


@pytest.mark.parametrize(
    ("address", "repo"),
    [
        ("https://github.com/acme/shop.git", "acme/shop"),
        ("https://github.com/acme/shop", "acme/shop"),
        ("https://github.com/acme/shop/", "acme/shop"),
        ("https://x-access-token:secret@github.com/acme/shop.git", "acme/shop"),
        ("git@github.com:acme/shop.git", "acme/shop"),
        ("work:acme/shop", "acme/shop"),
        ("ssh://git@github.com:22/acme/shop.git", "acme/shop"),
        ("ssh://git@ssh.github.com:443/acme/shop.git", "acme/shop"),
        ("git://github.com/acme/s.h_o-p.git", "acme/s.h_o-p"),
        ("HTTPS://GitHub.com/Acme/Shop.git", "Acme/Shop"),
        ("https://git.acme.example/group/sub/shop.git", "sub/shop"),
        ("https://github.com/", ""),
        ("/srv/git/shop.git", None),
        ("../shop.git", None),
        ("file:///srv/git/acme/shop.git", None),
        ("C:/git/shop", None),
        ("", None),
    ],
)
def test_an_address_ends_in_its_repository(address, repo):
    assert repository_at(address) == repo


@pytest.mark.parametrize(
    ("address", "tracked", "numbered"),
    [
        ("https://github.com/acme/shop", ["acme/shop"], "acme/shop"),
        ("https://github.com/ACME/shop", ["acme/Shop"], "acme/Shop"),
        ("https://github.com/me/shop", ["acme/shop"], "acme/shop"),  # a fork, by its name
        ("https://github.com/acme/tools", ["acme/shop"], None),
        ("https://github.com/acme/tools", ["acme/shop", "acme/tools"], "acme/tools"),
        ("https://github.com/me/shop", ["acme/shop", "beta/shop"], None),
        ("/srv/shop.git", ["acme/shop"], "acme/shop"),
        ("/srv/shop.git", ["acme/shop", "acme/tools"], None),
        ("https://github.com/acme/tools", [""], ""),
        ("/srv/shop.git", [""], ""),
    ],
)
def test_a_bare_number_is_in_the_repository_that_is_pushed_to(address, tracked, numbered):
    assert numbered_in(address, tracked) == numbered


@pytest.mark.parametrize(
    ("ref", "tracked", "numbered", "found"),
    [
        (IssueRef("", "7"), ["acme/shop"], "acme/shop", IssueRef("acme/shop", "7")),
        (IssueRef("", "7"), ["acme/shop"], None, None),
        (IssueRef("", "7"), [""], "", IssueRef("", "7")),
        (IssueRef("ACME/shop", "7"), ["acme/shop"], None, IssueRef("acme/shop", "7")),
        (IssueRef("acme/tools", "7"), ["acme/shop"], "acme/shop", None),
        (IssueRef("acme/tools", "7"), [""], "", None),
    ],
)
def test_which_issue_of_the_tracker_is_meant(ref, tracked, numbered, found):
    assert tracked_issue(ref, tracked, numbered) == found


@pytest.mark.parametrize(
    ("message", "firing"),
    [
        ("x\n\nAgent-Codename: lucius\nAgent-Firing-Id: 20260501-194217-643a\n", True),
        ("x\n\nAgent-Firing-Id: 20260501-194217-643a\nIssue: 7\nAgent-Codename: lucius", True),
        ("x\n\nAgent-Codename: lucius", False),
        ("Agent-Codename: Agent-Firing-Id: y", False),
        ("see Agent-Codename: lucius\nand Agent-Firing-Id: x", False),
    ],
)
def test_trailers_say_who_made_a_commit(message, firing):
    assert firing_in(message) == (("lucius", "20260501-194217-643a") if firing else None)
