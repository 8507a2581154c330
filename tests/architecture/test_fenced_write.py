"""The statement that leases-and-fences.md shows is right: it is run here, as it stands there."""

import sqlite3

import pytest

from .pages import DOCS, blocks

[SHOWN] = [b for b in blocks(DOCS / "concepts" / "leases-and-fences.md") if b.language == "sql"]


@pytest.fixture
def reports():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE reports (issue INTEGER PRIMARY KEY, body TEXT, fence INTEGER)")
    connection.execute("INSERT INTO reports VALUES (1, '', 0)")
    yield connection
    connection.close()


def write(reports, fence, body, issue=1):
    """How many rows the shown statement changed."""
    values = {"issue": issue, "fence": fence, "body": body}
    return reports.execute(SHOWN.text, values).rowcount


def test_a_holder_may_write_as_often_as_it_likes_under_one_fence(reports):
    assert [write(reports, 7, "draft"), write(reports, 7, "final")] == [1, 1]
    assert reports.execute("SELECT body, fence FROM reports").fetchone() == ("final", 7)


def test_a_stale_write_changes_nothing(reports):
    assert write(reports, 8, "new") == 1
    assert write(reports, 7, "late") == 0
    assert reports.execute("SELECT body, fence FROM reports").fetchone() == ("new", 8)


def test_fences_need_not_be_consecutive(reports):
    assert [write(reports, fence, "x") for fence in (3, 900, 901)] == [1, 1, 1]
    assert [write(reports, fence, "x") for fence in (3, 900)] == [0, 0]


def test_an_issue_that_has_no_row_is_not_told_from_a_stale_write(reports):
    """Why the page says to stop, and not that somebody newer has certainly written."""
    assert write(reports, 9, "x", issue=2) == 0
