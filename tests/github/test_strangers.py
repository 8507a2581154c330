"""What strangers do on a public repository, as the tracker reports it, and what judging costs."""

from contextlib import ExitStack

import pytest

from dibs.adapters.github.trust import LOOKUPS
from dibs.core.following import PullFate, heeded
from dibs.core.ids import IssueRef
from dibs.core.pipeline import People
from dibs.ports.tracker import IssueQuery
from dibs_lab.fakehub import Permission

from .hubs import REPOSITORY, Hub

LOOKUP = "GET /repos/{owner}/{repo}/collaborators/{login}/permission"
LISTED = "GET /repos/{owner}/{repo}/collaborators"
READ, FIND = "graphql query Read", "graphql query Find"


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


def opened_by(hub, login, title="one", body="text"):
    made = hub.acting(login).create_issue(hub.state.named(REPOSITORY), title, body=body)
    hub.acting().add_labels(made, ["stage:ready"])
    hub.clock.advance(2)
    return IssueRef(REPOSITORY, str(made.number))


def edit(hub, ref, login, **changes):
    hub.acting(login).edit_issue(hub.issue(int(ref.key)), **changes)
    hub.clock.advance(2)


def tidy_bot(hub):
    hub.state.add_user("tidy[bot]", kind="Bot")
    hub.state.add_token("tidy[bot]-token", "tidy[bot]")
    hub.state.grant(REPOSITORY, "tidy[bot]", Permission.WRITE)


def test_who_changed_the_text_last_and_may_not_write(hub):
    ref, reader = opened_by(hub, "mallory"), hub.client()
    assert reader.read(ref).issue.changed is None
    assert [(one.label, one.by) for one in reader.read(ref).issue.labelled] == [
        ("stage:ready", "colleague")
    ]
    edit(hub, ref, "mallory", body="worse")
    first = reader.read(ref).issue.changed
    assert first is not None
    assert first.by == "mallory"
    edit(hub, ref, "mallory", title="worse")
    second = reader.read(ref).issue.changed
    assert second is not None
    assert second.at > first.at
    edit(hub, ref, "colleague", body="better", title="better")
    assert reader.read(ref).issue.changed == second, "a writer's edit hides no stranger's"


@pytest.mark.parametrize("later", ["colleague", "tidy[bot]"])
@pytest.mark.parametrize("change", [{"body": "worse"}, {"title": "worse"}], ids=["body", "title"])
def test_no_later_edit_hides_a_strangers(hub, later, change):
    """Not a writer's who ticks a box, and not a bot's that adds a line."""
    tidy_bot(hub)
    ref, reader = opened_by(hub, "mallory"), hub.client()
    edit(hub, ref, "mallory", **change)
    worse = reader.read(ref).issue.changed
    for at in range(3):
        edit(hub, ref, later, **{part: f"{text}, and a line {at}" for part, text in change.items()})
    (found,) = reader.find_snapshots((IssueQuery(("stage:ready",)),))
    assert worse is not None
    assert reader.read(ref).issue.changed == found.snapshots[0].issue.changed == worse


def test_edits_beyond_those_that_are_read_count_as_the_authors(hub):
    tidy_bot(hub)
    ref, other, reader = opened_by(hub, "mallory"), opened_by(hub, "colleague"), hub.client()
    edit(hub, ref, "mallory", body="worse")
    for at in range(60):
        edit(hub, ref, "tidy[bot]", body=f"tidied {at}")
        edit(hub, other, "tidy[bot]", body=f"tidied {at}")
    changed = reader.read(ref).issue.changed
    assert changed is not None
    assert changed.by == "mallory"
    assert reader.read(other).issue.changed is None, "its author may write"


def test_titles_beyond_those_that_are_read_count_as_the_authors(hub):
    refs = {login: opened_by(hub, login) for login in ("mallory", "colleague")}
    reader, acting = hub.client(), hub.acting()
    for ref in refs.values():
        for _ in range(99):
            acting.remove_label(acting.add_labels(hub.issue(int(ref.key)), ["x"]), "x")
    assert reader.read(refs["mallory"]).issue.changed is None, "all hundred are read"
    for ref in refs.values():
        acting.add_labels(hub.issue(int(ref.key)), ["x"])
    issue = reader.read(refs["mallory"]).issue
    assert issue.changed is not None
    assert (issue.changed.by, issue.changed.at) == ("mallory", issue.labelled[0].at)
    assert reader.read(refs["colleague"]).issue.changed is None, "its author may write"


def test_over_rest_a_later_title_hides_no_strangers(hub):
    ref, reader = opened_by(hub, "mallory"), hub.client(graphql=False)
    edit(hub, ref, "mallory", title="worse")
    edit(hub, ref, "colleague", title="worse, and spelt well")
    changed = reader.read(ref).issue.changed
    assert changed is not None
    assert changed.by == "mallory"


def test_over_rest_neither_a_label_nor_a_bots_title_is_a_strangers_edit(hub):
    tidy_bot(hub)
    hub.hub.user("sorter")
    hub.state.grant(REPOSITORY, "sorter", Permission.TRIAGE)
    ref, reader = opened_by(hub, "mallory"), hub.client(graphql=False)
    hub.acting("sorter").add_labels(hub.issue(int(ref.key)), ["x"])
    edit(hub, ref, "tidy[bot]", title="tidied")
    assert reader.read(ref).issue.changed is None


def test_over_rest_new_new_titles_are_seen_and_new_bodies_are_not(hub):
    ref, reader = opened_by(hub, "mallory"), hub.client(graphql=False)
    edit(hub, ref, "mallory", body="worse")
    assert reader.read(ref).issue.changed is None
    edit(hub, ref, "mallory", title="worse")
    issue = reader.read(ref).issue
    assert issue.changed is not None
    assert issue.changed.by == "mallory"
    assert [(one.label, one.by) for one in issue.labelled] == [("stage:ready", "colleague")]


def test_a_bots_edit_is_no_strangers(hub):
    tidy_bot(hub)
    ref = opened_by(hub, "mallory")
    edit(hub, ref, "tidy[bot]", body="tidied", title="Tidied")
    assert hub.client().read(ref).issue.changed is None


def test_a_text_that_nobody_edited_costs_nothing_and_an_edited_one_a_lookup(hub):
    ref, other = opened_by(hub, "mallory"), opened_by(hub, "colleague")
    edit(hub, other, "colleague", body="better")
    reader = hub.client()
    with hub.counted() as counted:
        reader.read(ref)
    assert counted == {READ: 1}
    with hub.counted() as counted:
        for _ in range(3):
            assert reader.read(other).issue.changed is None
    assert counted == {READ: 3, LOOKUP: 1}


def test_a_list_of_issues_that_many_strangers_edited_costs_few_lookups(hub):
    strangers = [f"stranger-{at}" for at in range(2 * LOOKUPS)]
    for login in strangers:
        hub.hub.user(login)
        edit(hub, opened_by(hub, login), login, body="worse")
    reader = hub.client()
    for most in (LOOKUPS, LOOKUPS, 0):
        with hub.counted() as counted:
            (found,) = reader.find_snapshots((IssueQuery(("stage:ready",)),))
        assert counted[FIND] == 1
        assert counted.get(LOOKUP, 0) <= most
    changed = [snapshot.issue.changed for snapshot in found.snapshots]
    assert [one.by for one in changed if one] == strangers


@pytest.mark.parametrize("trusted", [(), ("fleet",)], ids=["by access", "by name"])
def test_pull_requests_are_judged_by_write_access_whatever_cards_are_judged_by(hub, trusted):
    ref, repository = opened_by(hub, "colleague"), hub.state.named(REPOSITORY)
    for login, head in (("colleague", "fix"), ("mallory", "mallory:fix")):
        hub.acting(login).create_pull(repository, "x", head, "main", body=f"closes #{ref.key}")
    reader = hub.client(trusted=trusted)
    pulls = {pull.author.login: pull.by_writer for pull in reader.read(ref).issue.pulls}
    linked = {pull.author.login: pull.by_writer for pull in reader.pulls_of([ref])[ref]}
    assert pulls == linked == {"colleague": True, "mallory": False}


def own_repository(hub, login):
    """A repository of the account: there it may do everything."""
    made = hub.hub.repository(f"{login}/evil")
    hub.state.grant(f"{login}/evil", login, Permission.ADMIN)
    return made


def test_rights_in_another_repository_do_not_count_in_this_one(hub):
    """The stranger owns a repository, installed a bot there, and merges there."""
    ref, evil = opened_by(hub, "colleague"), own_repository(hub, "mallory")
    tidy_bot(hub)
    hub.state.grant("mallory/evil", "tidy[bot]", Permission.WRITE)
    hub.state.grant("mallory/evil", "colleague", Permission.WRITE)
    body = f"Fixes {REPOSITORY}#{ref.key}"
    made = {
        login: hub.acting(login).create_pull(evil, "x", login, "main", body=body)
        for login in ("mallory", "tidy[bot]", "colleague")
    }
    onlooker = hub.client("mallory")  # GitHub refuses it to look accounts up
    assert [pull.by_writer for pull in onlooker.read(ref).issue.pulls] == [False] * 3
    reader = hub.client()
    pulls = {pull.author.login: pull.by_writer for pull in reader.read(ref).issue.pulls}
    assert pulls == {"mallory": False, "tidy[bot]": False, "colleague": True}
    hub.acting("mallory").merge_pull(made["mallory"])
    linked = {pull.author.login: pull for pull in reader.pulls_of([ref])[ref]}
    assert {login: pull.by_writer for login, pull in linked.items()} == pulls
    assert linked["mallory"].fate is PullFate.MERGED
    assert [pull.author.login for pull in heeded(linked.values(), People())] == ["colleague"]
    assert hub.issue(int(ref.key)).state == "open"


def flood(hub, refs, count):
    """One pull request may name every issue."""
    body, repository = " ".join(f"closes #{ref.key}" for ref in refs), hub.state.named(REPOSITORY)
    for at in range(count):
        hub.acting("mallory").create_pull(repository, "x", f"mallory:{at}", "main", body=body)


@pytest.mark.parametrize("count", [99, 100, 230])
def test_a_flood_of_pull_requests_hides_none(hub, count):
    ref, reader = opened_by(hub, "colleague"), hub.client()
    flood(hub, [ref], count)
    writers = hub.acting().create_pull(
        hub.state.named(REPOSITORY), "mine", "fix", "main", body=f"closes #{ref.key}"
    )
    (found,) = reader.find_snapshots((IssueQuery(("stage:ready",)),))
    for issue in (reader.read(ref).issue, found.snapshots[0].issue):
        assert [pull.ref.key for pull in issue.pulls if pull.by_writer] == [str(writers.number)]
        assert len(issue.pulls) == count + 1
    hub.acting().merge_pull(writers)
    assert len(linked := reader.pulls_of([ref])[ref]) == count + 1
    assert [one.fate for one in linked if one.by_writer] == [PullFate.MERGED]


def test_a_flood_on_many_issues_costs_few_requests(hub):
    refs = [opened_by(hub, "colleague") for _ in range(30)]
    flood(hub, refs, 150)
    reader = hub.client()
    with hub.counted() as counted:
        (found,) = reader.find_snapshots((IssueQuery(("stage:ready",)),))
        reader.pulls_of(refs)
    assert {len(snapshot.issue.pulls) for snapshot in found.snapshots} == {150}
    assert sum(counted.values()) <= 15, counted


def test_a_flood_on_more_than_a_hundred_issues_makes_no_later_reading_dearer(hub):
    refs = [opened_by(hub, "colleague") for _ in range(130)]
    flood(hub, refs, 101)
    reader, query = hub.client(), IssueQuery(("stage:ready",), limit=200)
    reader.find_snapshots((query,))
    with hub.counted() as counted:
        (found,) = reader.find_snapshots((query,))
    assert [len(snapshot.issue.pulls) for snapshot in found.snapshots] == [101] * 130
    assert counted == {FIND: 2}


def test_more_crowded_issues_than_are_kept_are_read_together_each_time(hub, monkeypatch):
    monkeypatch.setattr("dibs.adapters.github.graphql._MOST_CROWDS", 5)
    refs = [opened_by(hub, "colleague") for _ in range(30)]
    flood(hub, refs, 101)
    reader = hub.client()
    for _ in range(2):
        with hub.counted() as counted:
            (found,) = reader.find_snapshots((IssueQuery(("stage:ready",)),))
            assert len(reader.read_many(refs)) == 30
        assert {len(snapshot.issue.pulls) for snapshot in found.snapshots} == {101}
        assert sum(counted.values()) <= 18, counted


def test_more_than_a_thousand_are_not_all_read_and_a_warning_says_so(hub, caplog):
    ref, reader = opened_by(hub, "colleague"), hub.client()
    flood(hub, [ref], 1010)
    with hub.counted() as counted:
        assert len(reader.read(ref).issue.pulls) == 1000
        assert len(reader.pulls_of([ref])[ref]) == 1000
    assert sum(counted.values()) <= 25, counted
    assert f"{ref} is named by more than 1000 pull requests" in caplog.text
    with hub.counted() as counted:
        reader.read(ref)
    assert counted == {READ: 1}, "they are kept for a while"


@pytest.mark.parametrize("member", [True, False], ids=["member", "outside"])
@pytest.mark.parametrize("graphql", [True, False], ids=["graphql", "rest"])
def test_the_words_of_many_strangers_cost_one_list_of_writers(hub, graphql, member):
    """GitHub gives the list to members; others look some up, and the rest are strangers."""
    if member:
        hub.state.join("acme", "fleet")
    ref = opened_by(hub, "mallory")
    for at in range(30):
        hub.hub.user(f"stranger-{at}")
        hub.acting(f"stranger-{at}").create_comment(hub.issue(int(ref.key)), "me too")
    hub.acting().create_comment(hub.issue(int(ref.key)), "only on phones")
    reader = hub.client(graphql=graphql)
    snapshot = reader.read(ref)
    with hub.counted() as counted:
        judged = reader.with_authors(snapshot)
    assert (judged.public, judged.issue.by_writer) == (True, False)
    assert [one.author for one in judged.comments if one.by_writer] == ["colleague"]
    assert counted[LISTED] == 1
    assert counted.get(LOOKUP, 0) <= (0 if member else LOOKUPS)
    with hub.counted() as counted:
        reader.with_authors(snapshot)
    assert sum(counted.values()) <= (0 if member else LOOKUPS)


def test_a_private_repository_is_not_public(hub):
    hub.repository("acme/inside", private=True)
    made = hub.acting().create_issue(hub.state.named("acme/inside"), "one")
    ref = IssueRef("acme/inside", str(made.number))
    for graphql in (True, False):
        reader = hub.client(repository="acme/inside", graphql=graphql)
        assert reader.with_authors(reader.read(ref)).public is False
