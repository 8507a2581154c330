"""While the lease store cannot be reached, onlookers see the picture; whatever grants waits."""

import pytest
from tests.servers.process import free_port

from acceptance.harness import Project, pipeline, until

from .places import KILLED, Place

ONLOOKERS = ("list", "show 1", "why 1", "status", "runs 1", "fsck")


@pytest.fixture
def away(project: Project) -> dict[str, str]:
    project.begin(pipeline(one="true"), 1)
    return {"DIBS_LEASES": f"redis://127.0.0.1:{free_port()}/0"}


@pytest.mark.parametrize("line", ONLOOKERS)
def test_an_onlooker_sees_the_picture_and_why_it_may_be_old(
    project: Project, away: dict[str, str], line: str
) -> None:
    reply = project.dibs(*line.split(), "--json", env=away)
    assert "data" in reply.document
    [warning, *_] = reply.document["warnings"]
    assert "the lease store cannot be reached" in warning
    assert away["DIBS_LEASES"] in warning
    assert "cannot be reached" in project.dibs(*line.split(), env=away).err


def test_why_names_the_store_as_a_reason(project: Project, away: dict[str, str]) -> None:
    reasons = project.dibs("why", "1", "--json", env=away).data["reasons"]
    assert [reason["code"] for reason in reasons] == ["STORE_AWAY"]


@pytest.mark.parametrize("line", ["ready", "claim 1", "fsck --repair", "hold z -- true"])
def test_whatever_grants_or_repairs_does_not_go_by_the_cards(
    project: Project, away: dict[str, str], line: str
) -> None:
    reply = project.dibs(*line.split(), env=away)
    assert reply.code == 1
    assert "cannot be used now" in reply.err
    assert project.labels() == {"stage:one"}


def test_an_issue_can_be_added(project: Project, away: dict[str, str]) -> None:
    assert project.dibs("add", "another", env=away).code == 0


@pytest.mark.long
@pytest.mark.parametrize("place", KILLED, indirect=True)
def test_the_cards_name_the_holder_while_the_server_is_down(place: Place, project: Project) -> None:
    project.begin(pipeline(one="touch started; until test -e go; do sleep 0.02; done"), 1)
    env = {"DIBS_LEASES": place.url()}
    worker = project.worker("worker", "--drain", env=env)
    project.appears("started")
    [known] = project.dibs("list", "--json", env=env).data
    place.kill()
    reply = project.dibs("list", "--json", env=env)
    [shown] = reply.data
    assert reply.document["warnings"]
    assert shown["state"] == known["state"] == "claimed"
    assert shown["lease"]["holder"] == known["lease"]["holder"]
    assert shown["lease"]["fence"] == known["lease"]["fence"]
    place.start()
    until(lambda: "warnings" not in project.dibs("list", "--json", env=env).document, "it is back")
    (project.root / "go").touch()
    assert worker.wait().code == 0
