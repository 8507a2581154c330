"""Two backlogs in one namespace: the second is refused, by issue and by name, before it grants."""

import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from acceptance.harness import LEDGER, Project, pipeline
from dibs.core.ids import IssueRef
from dibs.core.lease import Granted
from dibs.testing.conformance.lease_harness import CONCEDED, bid

from .places import KINDS, Place

pytestmark = pytest.mark.long
EVERYWHERE = pytest.mark.parametrize("place", KINDS, indirect=True)


@pytest.fixture
def pair(tmp_path):
    """Two projects, each with an issue 1 of its own."""
    made = [Project(tmp_path / name) for name in "ab"]
    for project in made:
        project.begin(pipeline(one=LEDGER), 1)
    yield made
    for project in made:
        project.end()


def refused(project: Project, env: dict[str, str], both: list[Project], *words: str) -> None:
    reply = project.dibs(*words, env=env)
    assert reply.code == 1, reply
    for owner in both:
        assert str(owner.root / ".dibs" / "backlog.db") in reply.err


def finishes_nothing_of_another(url: str, pair: list[Project]) -> None:
    a, b = pair
    env = {"DIBS_LEASES": url}
    killed = a.worker("killed", "--drain", env={**env, "DIBS_FAILPOINT": "finish.decided"})
    assert killed.wait().code == -9
    refused(b, env, pair, "work", "--drain")
    refused(b, env, pair, "claim", "1")
    refused(b, env, pair, "list")
    assert b.labels() == {"stage:one"}, "it was not moved without its handler"
    assert b.ledger() == {}
    assert a.worker("next", "--drain", env=env).wait().code == 0
    assert a.ledger() == {("#1", "one"): 1, ("#1", "two"): 1}


@EVERYWHERE
def test_a_backlog_never_finishes_the_issues_of_another(place: Place, pair) -> None:
    finishes_nothing_of_another(place.url(), pair)


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_nor_does_a_copy_of_its_folder(place: Place, tmp_path: Path) -> None:
    env = {"DIBS_LEASES": place.url()}
    a = Project(tmp_path / "a")
    a.begin(pipeline(one=LEDGER), 1)
    assert a.dibs("hold", "deploy", "--", "true", env=env).code == 0
    shutil.copytree(a.root, tmp_path / "d")
    copy = Project(tmp_path / "d")
    killed = a.worker("killed", "--drain", env={**env, "DIBS_FAILPOINT": "finish.decided"})
    assert killed.wait().code == -9
    refused(copy, env, [a, copy], "work", "--drain")
    assert copy.labels() == {"stage:one"}, "it was not moved without its handler"
    for project in (a, copy):
        project.end()


def test_nor_in_a_git_repository(tmp_path: Path, pair) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "leases.git"], check=True)
    finishes_nothing_of_another(f"git:{tmp_path / 'leases.git'}", pair)


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_names_are_shared_only_knowingly(place: Place, pair) -> None:
    a, b = pair
    env = {"DIBS_LEASES": place.url()}
    assert a.dibs("hold", "deploy", "--", "true", env=env).code == 0
    refused(b, env, pair, "hold", "deploy", "--", "true")
    assert b.dibs("claim", "1", env=env).code == 0, "its issues are the first here"
    refused(a, env, pair, "claim", "1")


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_several_backlogs_share_names_under_a_name(place: Place, pair) -> None:
    env = {"DIBS_LEASES": place.url()}
    for project in pair:
        text = (project.root / "dibs.toml").read_text("utf-8")
        project.configure(f'backlog = "fleet"\n{text}')
        assert project.dibs("hold", "deploy", "--", "true", env=env).code == 0
    a, b = pair
    assert a.dibs("claim", "1", env=env).code == 0
    refused(b, env, pair, "claim", "1")


@EVERYWHERE
def test_a_namespace_from_before_there_were_owners_is_adopted_knowingly(place: Place, pair) -> None:
    a, b = pair
    env = {"DIBS_LEASES": place.url()}
    store = place.open()
    old = store.acquire(bid(IssueRef("", "1"), "old", timedelta(minutes=5)))
    assert isinstance(old, Granted), "as an earlier dibs granted it"
    unsure = a.dibs("claim", "1", env=env)
    assert unsure.code == 1
    assert "does not know of which backlog" in unsure.err
    assert a.dibs("leases", "adopt", "--json", env=env).data["new"]
    assert not a.dibs("leases", "adopt", "--json", env=env).data["new"]
    assert a.dibs("claim", "1", env=env).code == 4, "the old lease is its own"
    refused(b, env, pair, "leases", "adopt")
    refused(b, env, pair, "claim", "1")
    owner = a.dibs("leases", "adopt", "--json", env=env).data["owner"]["id"]
    at_work = b.dibs("leases", "adopt", "--instead-of", owner, env=env)
    assert (at_work.code, "are live: #1" in at_work.err) == (1, True)
    store.release(old.lease, CONCEDED)
    assert b.dibs("leases", "adopt", "--instead-of", owner, env=env).code == 0
    refused(a, env, pair, "claim", "1")


def test_a_backlog_beside_its_leases_has_nothing_to_adopt(project: Project) -> None:
    project.begin(pipeline(one="true"), 1)
    assert project.dibs("leases", "adopt").told(2, "kept beside it")
