"""One store has one name beside the backlog, and two stores have two."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.control import MemoryGranters
from dibs.core.eligibility import ReasonCode
from dibs.core.granter import Appointed
from dibs.core.ids import Fence
from dibs.services.backlog import Granting
from dibs.settings import load as config
from dibs.wiring.services import granter_name, place_of

ROOT = Path("/srv/project")


def settings(leases, *, root=ROOT, tracker="sqlite:.dibs/backlog.db"):
    made = config.from_mapping({}, source="test", root=root)
    return replace(made, leases=leases, tracker=tracker)


@pytest.mark.parametrize(
    ("leases", "name"),
    [
        ("auto", "auto"),
        ("comments", "comments"),
        ("sqlite:.dibs/backlog.db", "auto"),
        ("sqlite:./.dibs/../.dibs/backlog.db", "auto"),
        ("sqlite:leases.db", "sqlite:../leases.db"),
        ("redis://:secret@db:6379/0?timeout=3", "redis://db:6379/0"),
        ("redis://db/0?namespace=a&password=x", "redis://db/0?namespace=a"),
        (
            "dynamodb://t?region=eu&endpoint=http://u:p@h",
            "dynamodb://t?endpoint=http://h&region=eu",
        ),
    ],
)
def test_a_name_tells_which_store_is_meant_and_nothing_secret(leases, name):
    assert granter_name(settings(leases)) == name


def test_two_folders_that_share_a_backlog_do_not_share_a_file_by_its_relative_name():
    shared = "sqlite:/srv/backlog.db"
    one = granter_name(settings("sqlite:leases.db", root=Path("/srv/a"), tracker=shared))
    two = granter_name(settings("sqlite:leases.db", root=Path("/srv/b"), tracker=shared))
    assert one != two


def test_a_name_leads_back_to_its_store():
    here = settings("sqlite:leases.db")
    place = place_of(granter_name(here), here)
    assert place == "sqlite:/srv/project/leases.db"
    assert granter_name(settings(place)) == granter_name(here)


@pytest.mark.parametrize("leases", ["auto", "comments"])
def test_leases_on_github_are_kept_in_its_comments_however_that_is_spelt(leases):
    assert granter_name(settings(leases, tracker="github:acme/shop")) == "comments"


def test_a_grant_of_another_store_is_refused_because_of_that_and_not_of_its_fence():
    granters = MemoryGranters()
    granters.appoint(Appointed("there", floor=Fence(9)), instead_of=None)
    reason = Granting(granters, "here").refusal_of(Fence(3))
    assert reason is not None
    assert reason.code is ReasonCode.GRANTED_ELSEWHERE
