"""Several repositories as one backlog, on the fake: each issue in its own, one fleet log."""

from contextlib import ExitStack

import pytest

from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.multi_repository import SeveralRepositories
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.github.trust import repositories
from dibs.core.eligibility import PauseScope
from dibs.core.errors import BadConfiguration, BadReference, NoSuchIssue
from dibs.core.granter import Appointed
from dibs.core.ids import IssueRef
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment
from dibs.core.references import parse_reference
from dibs.ports.tracker import IssueQuery
from dibs.services.reading import walk

from .hubs import Hub, PushedClock

SHOP, STORE, LAWN = "acme/shop", "acme/store", "umbrella/lawn"


@pytest.fixture
def hub():
    with ExitStack() as opened:
        made = Hub(opened)
        made.repository(STORE)
        made.repository(LAWN)
        yield made


def fleet(hub, *names, clock=None):
    transport = hub.transport(clock=clock)
    trackers = []
    for name in names or (SHOP, STORE, LAWN):
        home = trackers[0].control_readings if trackers else None
        trackers.append(GithubTracker(transport, name, home=home))
    return SeveralRepositories(trackers), trackers


def filled(trackers):
    drafts = [Draft(f"issue {number}", labels=frozenset({"ready"})) for number in range(3)]
    return [tracker.create(draft).ref for tracker in trackers for draft in drafts]


def test_all_are_searched_in_their_order_and_walked_to_the_end(hub):
    several, trackers = fleet(hub)
    refs = filled(trackers)
    query = IssueQuery(("ready",))
    assert [issue.ref for issue in several.find(query).issues] == refs
    for limit in (1, 2, 3, 4, 9, 10):
        walked, after = [], None
        while True:
            found = several.find(IssueQuery(("ready",), limit=limit, after=after))
            walked += [issue.ref for issue in found.issues]
            if not found.more:
                break
            after = walked[-1]
        assert walked == refs, f"limit {limit}"
        (page,) = several.find_snapshots((IssueQuery(("ready",), limit=limit),))
        assert [snapshot.issue.ref for snapshot in page.snapshots] == refs[:limit]
        assert page.more == (limit < len(refs))
    for skip in range(10):
        found = several.find(IssueQuery(("ready",), limit=2, skip=skip))
        assert [issue.ref for issue in found.issues] == refs[skip : skip + 2]
    assert [issue.ref for issue in walk(several, IssueQuery(("ready",), limit=7))] == refs[:7]
    behind = IssueQuery(("ready",), after=refs[4])
    assert [issue.ref for issue in several.find(behind).issues] == refs[5:]
    (page,) = several.find_snapshots((behind,))
    assert [snapshot.issue.ref for snapshot in page.snapshots] == refs[5:]
    assert several.tally(("ready", "nobody")) == {"ready": 9, "nobody": 0}


def test_an_issue_is_worked_in_its_own_repository(hub):
    several, trackers = fleet(hub)
    refs = filled(trackers)
    ref = refs[4]
    card = several.comment(ref, "bid")
    snapshot = several.apply(ref, (EditComment(card.id, "held"), AddLabels(("claimed",))))
    assert snapshot.issue.ref == ref
    assert several.read(ref).issue.labels == {"ready", "claimed"}
    assert set(several.read_many(refs)) == set(refs)
    same_number = IssueRef(SHOP, ref.key)
    assert several.read(same_number).issue.labels == {"ready"}
    assert several.create(Draft("new")).ref.repo == SHOP


def test_a_number_alone_is_refused_and_a_name_is_told_as_the_settings_have_it(hub):
    several, trackers = fleet(hub)
    filled(trackers)
    traits = several.traits
    bare = parse_reference("#1", default_repo=traits.repo, repos=traits.repos)
    with pytest.raises(BadReference, match="acme/shop and acme/store and umbrella/lawn"):
        several.read(bare)
    named = parse_reference("ACME/Store#1", default_repo=traits.repo, repos=traits.repos)
    assert named == IssueRef(STORE, "1")
    assert several.read(named).issue.title == "issue 0"
    with pytest.raises(NoSuchIssue):
        several.read(IssueRef("acme/elsewhere", "1"))


def test_the_fleet_has_one_log_and_every_repository_its_own_pause(hub):
    clock = PushedClock(hub)
    several, trackers = fleet(hub, clock=clock)
    control = GithubControl(trackers, clock)
    assert control.appoint(Appointed("comments"), instead_of=None) == Appointed("comments")
    control.pause(PauseScope.REPOSITORY, repo=STORE, reason="release", by="ann")
    control.pause(PauseScope.FLEET, repo="", reason="fire", by="ann")
    pauses = {(pause.scope, pause.repo) for pause in control.pauses()}
    assert pauses == {(PauseScope.FLEET, ""), (PauseScope.REPOSITORY, STORE)}
    assert control.resume(PauseScope.FLEET, repo="", by="ann")
    control.pause(PauseScope.REPOSITORY, repo="", reason="all of them", by="ann")
    assert {pause.repo for pause in control.pauses()} == {SHOP, STORE, LAWN}
    assert control.resume(PauseScope.REPOSITORY, repo="", by="ann")
    assert control.pauses() == ()
    assert several.find(IssueQuery(closed_too=True)).issues == ()


def test_a_reading_elsewhere_brings_the_fleets_log_along(hub):
    clock = PushedClock(hub)
    several, trackers = fleet(hub, clock=clock)
    GithubControl(trackers, clock).appoint(Appointed("comments"), instead_of=None)
    ref = trackers[2].create(Draft("one")).ref
    several, trackers = fleet(hub, clock=clock)
    control = GithubControl(trackers, clock)
    asked_at = clock.now()
    with hub.counted() as counted:
        several.read(ref)
        assert control.granter(since=asked_at) == Appointed("comments")
    looked_up = "GET /repos/{owner}/{repo}/collaborators/{login}/permission"
    assert counted == {"graphql query Read": 1, looked_up: 1}


@pytest.mark.parametrize(
    "place", ["", "shop", "acme/", "acme/shop,", "acme/..", "a b/c", "acme/x/y"]
)
def test_a_setting_that_names_no_repository_is_refused(place):
    with pytest.raises(BadConfiguration, match="github:OWNER/REPO"):
        repositories(place)


def test_a_setting_names_one_repository_or_several_and_none_twice():
    assert repositories("acme/shop") == ("acme/shop",)
    assert repositories("acme/shop, umbrella/lawn.care") == ("acme/shop", "umbrella/lawn.care")
    with pytest.raises(BadConfiguration, match="twice"):
        repositories("acme/shop,ACME/shop")
