"""Who grants: one store at a time, and what every other one is told."""

from datetime import UTC, datetime, timedelta

import pytest

from dibs.core.granter import Appointed, Moving, keeps_house, objection
from dibs.core.named import window_at
from dibs.core.references import without_secrets


@pytest.mark.parametrize(
    ("granter", "store", "grants", "sweeps"),
    [
        (Appointed("auto"), "auto", True, True),
        (Appointed("auto"), "comments", False, False),
        (Moving("auto", "comments"), "auto", False, True),
        (Moving("auto", "comments"), "comments", False, False),
        (Moving("auto", "auto"), "auto", False, True),
    ],
)
def test_only_the_appointed_grants_and_only_the_origin_sweeps(granter, store, grants, sweeps):
    assert (objection(granter, store) is None) is grants
    assert keeps_house(granter, store) is sweeps


def test_an_objection_names_both_stores():
    reason = objection(Appointed("redis://a/0"), "comments")
    assert "redis://a/0" in reason.text
    assert "comments" in reason.text


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("redis://user:pass@host:6379/0?timeout=3", "redis://host:6379/0"),
        ("redis://:p@ss@host/0", "redis://host/0"),
        ("redis://:pa/ss@host/0", "redis://host/0"),
        ("redis://:pa?ss@host/0?timeout=3", "redis://host/0"),
        ("redis://:pa#ss@host/0", "redis://host/0"),
        ("postgresql://ada@db/dibs?password=x", "postgresql://db/dibs"),
        ("sqlite:leases.db", "sqlite:leases.db"),
        ("git:https://token@example.org/x.git", "git:https://example.org/x.git"),
        ("git:git@example.org:x.git", "git:git@example.org:x.git"),
        ("git:ada:pass@example.org:x.git", "git:example.org:x.git"),
        ("comments", "comments"),
    ],
)
def test_a_place_is_shown_without_its_secrets(place, shown):
    assert without_secrets(place) == shown


def test_windows_lie_end_to_end():
    every, at = timedelta(seconds=30), datetime(2026, 5, 1, 12, 0, 44, tzinfo=UTC)
    window = window_at(at, every)
    assert window.starts_at <= at < window.ends_at
    assert window.ends_at - window.starts_at == every
    following = window_at(window.ends_at, every)
    assert following.number == window.number + 1
    assert following.starts_at == window.ends_at
