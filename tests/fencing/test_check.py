"""`dibs fence check`: the store's word on a lease, for scripts before what cannot be undone."""

import os
import sys
from pathlib import Path

import pytest
from tests.acceptance.harness import Project, pipeline, until
from tests.servers.process import free_port


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project")
    yield made
    made.end()


def begin(project: Project, leases: str = "auto", ttl: str = "1h") -> dict:
    """One issue, claimed: what its holder was told."""
    project.begin(pipeline(leases, ttl=ttl, top="settle = '50ms'\n"), 1, history=False)
    return project.dibs("claim", "1", "--as", "ann", "--json").data


def of(lease: dict) -> dict[str, str]:
    """The variables that a handler has."""
    return {
        "DIBS_ISSUE": lease["issue"],
        "DIBS_RUN": lease["run"],
        "DIBS_FENCE": str(lease["fence"]),
    }


@pytest.mark.parametrize("leases", ["auto", "comments"])
def test_a_lease_that_stands_is_ok_and_is_not_renewed(project, leases):
    lease = begin(project, leases)
    before = project.dump()
    said = project.dibs("fence", "check", env=of(lease))
    assert said.code == 0
    assert said.out.startswith(f"ok: #1 is held with fence {lease['fence']} for another ")
    told = project.dibs("fence", "check", "--json", env=of(lease)).data
    assert told["remaining_s"] > 3000
    assert {key: told[key] for key in ("issue", "run", "fence", "holder", "expires_at")} == {
        "issue": "#1",
        "run": lease["run"],
        "fence": lease["fence"],
        "holder": "ann",
        "expires_at": lease["expires_at"],
    }
    assert project.dump() == before


def test_what_is_asked_for_may_be_said_instead(project):
    lease = begin(project)
    asked = ("fence", "check", "1", "--run", lease["run"])
    assert project.dibs(*asked).code == 0
    assert project.dibs(*asked, "--fence", str(lease["fence"])).code == 0
    assert project.dibs(*asked, "--fence", str(lease["fence"] + 1)).told(5, "holds fence").code == 5
    assert project.dibs("fence", "check", "9", "--run", lease["run"]).told(1, "no issue").code == 1


def test_without_an_issue_or_a_run_it_is_a_wrong_command_line(project):
    lease = begin(project)
    assert project.dibs("fence", "check", "--run", lease["run"]).code == 2
    assert project.dibs("fence", "check", "1").code == 2
    for wrong in ("0", "x"):
        assert project.dibs("fence", "check", env={**of(lease), "DIBS_FENCE": wrong}).code == 2


def test_for_asks_whether_it_lasts_that_long(project):
    lease = begin(project)
    assert project.dibs("fence", "check", "--for", "30s", env=of(lease)).code == 0
    short = project.dibs("fence", "check", "--for", "2h", env=of(lease))
    assert (short.code, short.out) == (8, "")
    assert "only for another" in short.err
    told = project.dibs("fence", "check", "--for", "2h", "--json", env=of(lease))
    assert (told.code, told.data["run"]) == (8, lease["run"])


@pytest.mark.parametrize("leases", ["auto", "comments"])
def test_a_lease_that_expired_is_lost_and_so_is_one_that_another_holds(project, leases):
    lease = begin(project, leases, ttl="400ms")

    def over() -> bool:
        return project.dibs("fence", "check", env=of(lease)).code == 5

    until(over, "the lease runs out")
    project.dibs("fence", "check", env=of(lease)).told(
        5, f"the lease of run {lease['run']} expired"
    )
    project.dibs("sweep")
    project.configure(pipeline(leases, ttl="1h", top="settle = '50ms'\n"))
    taken = project.dibs("claim", "1", "--as", "bob", "--json").data
    assert taken["fence"] > lease["fence"]
    late = project.dibs("fence", "check", env=of(lease))
    late.told(5, f"belongs to run {taken['run']} of bob, not to run {lease['run']}")
    said = project.dibs("fence", "check", "--json", env=of(lease)).error
    assert (said["code"], said["issue"]) == ("LEASE_LOST", "#1")
    assert project.dibs("fence", "check", env=of(taken)).code == 0


def test_a_lease_that_was_revoked_or_ended_is_lost(project):
    lease = begin(project)
    project.dibs("revoke", "1", "--reason", "wrong branch", "--as", "carl")
    project.dibs("fence", "check", env=of(lease)).told(5, "revoked by carl: wrong branch")
    project.dibs("revoke", "1", "--reason", "dead", "--force", "--yes", "--as", "carl")
    project.dibs("fence", "check", env=of(lease)).told(5, "revoked by carl: dead")
    again = project.dibs("claim", "1", "--json").data
    project.dibs("release", "1", "--run", again["run"])
    project.dibs("fence", "check", env=of(again)).told(5, "already ended its lease")


def test_a_run_that_never_held_it_is_told_so(project):
    project.begin(pipeline(ttl="1h"), 1, history=False)
    project.dibs("fence", "check", "1", "--run", "deadbeef").told(5, "never held the issue")


def test_a_store_that_cannot_be_asked_proves_nothing(project):
    project.begin(pipeline(), 1, history=False)
    project.configure(pipeline(f"redis://127.0.0.1:{free_port()}?timeout=1"))
    said = project.dibs("fence", "check", "1", "--run", "deadbeef", "--json")
    assert said.code == 8
    assert said.data["issue"] == "1"
    assert said.data["why"]
    assert "dibs could not ask" in project.dibs("fence", "check", "1", "--run", "deadbeef").err


def test_the_help_says_what_it_cannot_do(project):
    said = " ".join(project.dibs("fence", "check", "--help").out.split())
    assert "narrows the window" in said
    assert "Only a fence that is compared where it is written" in said


def test_a_handler_asks_with_nothing_but_its_environment(project):
    project.begin(pipeline(one="dibs fence check --for 100ms >> asked", ttl="1h"), 1)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    project.drain(env={"PATH": programs})
    assert [line.split(" for ")[0] for line in project.lines("asked")] == [
        "ok: #1 is held with fence 1"
    ]
