"""A repository taken offline: on this machine, and for everybody else."""

import json
import threading

import pytest

import dibs.label_state as ls
from dibs.core.errors import Damaged
from dibs.label_state import pauses
from dibs.label_state.backlogs import connections
from dibs_lab.fakehub import Fault, Wrong

from .test_claims import LUCIUS


def test_pausing_and_resuming_says_what_is_paused_then(place):
    slug = place.slug
    assert ls.list_paused_repos() == []
    assert ls.is_repo_paused(slug) is False
    assert ls.set_repo_paused(slug, True) == [slug]
    assert ls.set_repo_paused("other/frontend", True) == sorted(["other/frontend", slug])
    assert ls.is_repo_paused(slug) is True
    assert ls.set_repo_paused(slug, False) == ["other/frontend"]
    assert ls.is_repo_paused(slug) is False


def test_the_file_is_the_one_that_old_runners_read(place):
    ls.set_repo_paused(place.slug, True)
    assert json.loads(pauses.PAUSED_REPOS_FILE.read_text()) == {"paused": [place.slug]}
    assert pauses.PAUSED_REPOS_FILE.name == "paused-repos.json"


def test_nothing_is_claimed_in_a_paused_repository(place):
    number = place.issue("agent:implement")
    ls.set_repo_paused(place.slug, True)
    answer = ls.claim_issue(place.slug, number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "REPOSITORY_PAUSED")
    told = ls.issue_dedup_check(place.slug, number)
    assert (told["claimable"], told["repo_paused"]) == (False, True)
    ls.set_repo_paused(place.slug, False)
    assert ls.claim_issue(place.slug, number, **LUCIUS)


def test_a_pause_is_heard_on_other_machines(hub, monkeypatch, tmp_path):
    number = hub.issue("agent:implement")
    ls.set_repo_paused("shop", True)
    elsewhere = tmp_path / "another machine" / "paused-repos.json"
    monkeypatch.setattr(pauses, "PAUSED_REPOS_FILE", elsewhere)
    assert ls.list_paused_repos() == []
    assert ls.is_repo_paused("acme/shop") is True
    answer = ls.claim_issue("shop", number, **LUCIUS)
    assert (bool(answer), answer.reason) == (False, "REPOSITORY_PAUSED")


@pytest.mark.parametrize(
    ("paused", "asked"),
    [("shop", "acme/shop"), ("acme/shop", "shop"), ("Acme/Shop", "shop"), ("shop", "SHOP")],
)
def test_a_repository_is_one_however_it_is_called(embedded, paused, asked):
    pauses.PAUSED_REPOS_FILE.parent.mkdir(parents=True)
    pauses.PAUSED_REPOS_FILE.write_text(json.dumps({"paused": [paused]}))
    assert ls.is_repo_paused(asked) is True
    assert ls.set_repo_paused(asked, False) == []


@pytest.mark.parametrize("text", ["{not json", "[]", '{"paused": "shop"}', '{"paused": [1]}', ""])
def test_a_file_that_says_nothing_stops_claims_and_is_not_written_over(embedded, text):
    pauses.PAUSED_REPOS_FILE.parent.mkdir(parents=True)
    pauses.PAUSED_REPOS_FILE.write_text(text)
    number = embedded.issue("agent:implement")
    assert ls.is_repo_paused("shop") is True
    assert not ls.claim_issue("shop", number, **LUCIUS)
    for call in (ls.list_paused_repos, lambda: ls.set_repo_paused("shop", True)):
        with pytest.raises(Damaged, match=r"paused-repos\.json"):
            call()
    assert pauses.PAUSED_REPOS_FILE.read_text() == text


def test_of_many_writers_at_once_none_is_lost(embedded):
    slugs = [f"acme/repo-{n}" for n in range(20)]
    threads = [threading.Thread(target=ls.set_repo_paused, args=(slug, True)) for slug in slugs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ls.list_paused_repos() == sorted(slugs)


def test_a_tracker_that_does_not_answer_leaves_the_pause_on_this_machine(hub, caplog):
    hub.hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, login="fleet"))
    assert ls.set_repo_paused("shop", True) == ["shop"]
    assert "only this machine knows" in caplog.text
    assert ls.set_repo_paused("shop", False) == []
    connections.close()  # what was read a moment ago would do
    assert ls.is_repo_paused("shop") is True, "nobody can say, so nobody may start"


def test_without_a_tracker_the_file_is_all_there_is(monkeypatch):
    monkeypatch.delenv("GH_ORG")
    assert ls.is_repo_paused("backend") is False
    assert ls.set_repo_paused("backend", True) == ["backend"]
    assert ls.is_repo_paused("backend") is True


def test_a_bare_name_of_which_nobody_says_whose_it_is_may_be_anybodys(embedded, monkeypatch):
    pauses.PAUSED_REPOS_FILE.parent.mkdir(parents=True)
    pauses.PAUSED_REPOS_FILE.write_text(json.dumps({"paused": ["shop", "globex/shop"]}))
    monkeypatch.delenv("GH_ORG")
    assert pauses.paused_by_file("acme/shop") is True
    assert ls.set_repo_paused("acme/shop", False) == ["globex/shop", "shop"], "not one of those"
    assert ls.set_repo_paused("shop", False) == ["globex/shop"]


def test_a_file_that_cannot_be_written_is_said_plainly(embedded, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(pauses, "PAUSED_REPOS_FILE", tmp_path / "file" / "state" / "paused.json")
    with pytest.raises(Damaged, match="cannot be written"):
        ls.set_repo_paused("shop", True)


def test_a_pause_that_nobody_else_hears_of_says_so(monkeypatch, caplog, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pauses, "PAUSED_REPOS_FILE", tmp_path / "state" / "paused-repos.json")
    monkeypatch.delenv("GH_ORG", raising=False)
    assert ls.set_repo_paused("shop", True) == ["shop"]
    assert "only this machine knows" in caplog.text
