"""Pull requests as stages on the fake GitHub: real links, real merges, counted at the server."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.multi_repository import SeveralRepositories
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import MemoryJournal
from dibs.core.agent_dialect import their_release
from dibs.core.following import PullFate
from dibs.core.ids import HolderId, IssueRef
from dibs.core.issue import Draft
from dibs.core.labels import label_looks
from dibs.core.presets import AGENT, AUTHORED
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.services.following import Follow
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services
from dibs_lab.fakehub import Fault, Wrong

from .hubs import REPOSITORY, Hub, transport_to

PULLS = "graphql query Pulls"


class Fleet:
    """One process of a fleet with the preset `agent`, its leases in comments."""

    def __init__(self, hub, *, token="fleet-token", graphql=True):
        transport = transport_to(hub.hub.url, token, hub.clock)
        hub._opened.callback(transport.close)
        self.tracker = GithubTracker(
            transport, REPOSITORY, looks=label_looks(AGENT), graphql=graphql
        )
        control = GithubControl([self.tracker], hub.clock)
        settings = config.from_mapping(
            {"tracker": f"github:{REPOSITORY}", "preset": "agent", "journal": ""},
            source="test",
            root=Path("/nowhere"),
        )
        self.hub = hub
        self.services = Services(
            replace(settings, pipeline=AGENT),
            Adapters(
                tracker=self.tracker,
                store=None,
                pauses=control,
                observers=(MemoryJournal(),),
                clock=hub.clock,
                granters=control,
            ),
        )
        self.following = self.services.following

    def add(self):
        return self.tracker.create(Draft("an issue", labels=frozenset({"agent:implement"}))).ref

    def work(self, ref, *, meanwhile=lambda: None):
        options = ClaimOptions(HolderId("w1"))
        claimed = self.services.claiming.claim(ref, None, options)
        assert isinstance(claimed, Claimed), claimed
        self.hub.clock.advance(2)
        meanwhile()
        self.hub.clock.advance(2)
        keeper = self.services.keep(claimed)
        self.services.advancing.advance(keeper, "pr-open", "a pull request is open")

    def follow(self, **options):
        return [entry.action for entry in self.following.follow(HolderId("w1"), **options).followed]

    def labels(self, ref):
        return self.tracker.read(ref).issue.labels


@pytest.fixture
def hub():
    with ExitStack() as opened:
        made = Hub(opened)
        made.client(looks=label_looks(AGENT)).prepare(AGENT.every_label)
        yield made


@pytest.fixture
def fleet(hub):
    return Fleet(hub)


def pull_for(hub, ref, login="fleet", head="fix", body=None):
    return hub.acting(login).create_pull(
        hub.state.named(REPOSITORY), "Mend it", head, "main", body=body or f"Closes #{ref.key}"
    )


def in_review(hub, fleet):
    ref, made = fleet.add(), []
    fleet.work(ref, meanwhile=lambda: made.append(pull_for(hub, ref)))
    return ref, made[0]


def test_a_persons_merge_moves_it_to_done_and_the_pull_request_was_labelled_before(hub, fleet):
    ref, pull = in_review(hub, fleet)
    assert fleet.follow() == [Follow.LABELLED]
    names = {label.name for label in hub.state.view().labels_on(hub.issue(pull.number))}
    assert names == {AUTHORED}
    assert fleet.follow() == []
    hub.acting("colleague").merge_pull(hub.issue(pull.number))
    assert hub.issue(int(ref.key)).state == "closed"
    assert fleet.follow() == [Follow.MOVED_ON]
    assert fleet.labels(ref) == {"agent:done"}
    assert fleet.follow() == []


def test_closed_unmerged_goes_back_and_may_be_claimed_again(hub, fleet):
    ref, pull = in_review(hub, fleet)
    hub.acting("colleague").edit_pull(hub.issue(pull.number), state="closed")
    assert fleet.follow() == [Follow.MOVED_BACK]
    assert fleet.labels(ref) == {"agent:implement"}
    hub.clock.advance(5)
    fleet.work(ref)
    assert fleet.follow() == [], "the old pull request is over and done with"
    again = pull_for(hub, ref, head="again")
    hub.acting("colleague").merge_pull(again)
    assert fleet.follow() == [Follow.MOVED_ON]


def test_a_colleagues_pull_request_is_not_labelled_as_ours(hub, fleet):
    ref = fleet.add()
    fleet.work(ref)
    pull = pull_for(hub, ref, "colleague")
    assert fleet.follow() == []
    assert hub.state.view().labels_on(hub.issue(pull.number)) == []


def test_what_is_known_of_each_pull_request(hub, fleet):
    ref = fleet.add()
    first = pull_for(hub, ref, "colleague", head="mallory:patch-1")
    hub.acting("colleague").edit_pull(first, state="closed")
    merged = pull_for(hub, ref, head="fix")
    hub.clock.advance(3)
    hub.acting("colleague").merge_pull(merged)
    still = pull_for(hub, ref, head="more")
    pulls = {one.ref.key: one for one in fleet.tracker.pulls_of([ref])[ref]}
    told = {
        key: (one.fate, one.head, one.foreign, one.author.login, one.ended_at is None)
        for key, one in pulls.items()
    }
    assert told == {
        str(first.number): (PullFate.UNMERGED, "patch-1", True, "colleague", False),
        str(merged.number): (PullFate.MERGED, "fix", False, "fleet", False),
        str(still.number): (PullFate.OPEN, "more", False, "fleet", True),
    }
    assert pulls[str(merged.number)].opened_at < pulls[str(merged.number)].ended_at


def test_a_look_that_finds_nothing_new_costs_nothing_of_the_budget(hub, fleet):
    refs = [fleet.add() for _ in range(3)]
    for ref in refs:
        fleet.tracker.edit_labels(ref, add=["agent:pr-open"], remove=["agent:implement"])
    pull = pull_for(hub, refs[0], "colleague")
    fleet.follow()
    fleet.follow()
    with hub.counted() as counted:
        assert fleet.follow() == []
    assert hub.points == 0, counted
    hub.acting("colleague").merge_pull(pull)
    with hub.counted() as counted:
        assert fleet.follow(dry_run=True) == [Follow.MOVED_ON]
    assert counted[PULLS] == 1, "one for all of them"


def test_a_move_costs_no_more_than_any_other(hub, fleet):
    ref, pull = in_review(hub, fleet)
    fleet.follow()
    hub.acting("colleague").merge_pull(hub.issue(pull.number))
    with hub.counted() as counted:
        assert fleet.follow() == [Follow.MOVED_ON]
    total = sum(counted.values())
    # Two lists, the pull requests, a look; then a lease: bid, proof, confirm, end, paint.
    assert total <= 9, counted
    assert len(fleet.tracker.read(ref).comments) == 2, "one card a lease"


def test_an_answer_is_not_kept_for_ever(hub, fleet):
    """A pull request in another repository changes no list of this one."""
    ref = fleet.add()
    with hub.counted() as counted:
        fleet.tracker.pulls_of([ref])
    assert sum(counted.values()) == 1, "whoever asks once pays for that and no more"
    fleet.tracker.pulls_of([ref])
    with hub.counted() as counted:
        fleet.tracker.pulls_of([ref])
    assert PULLS not in counted
    hub.clock.advance(601)
    with hub.counted() as counted:
        fleet.tracker.pulls_of([ref])
    assert counted[PULLS] == 1


def test_without_graphql_nothing_is_known_and_nothing_is_moved(hub):
    fleet = Fleet(hub, graphql=False)
    ref, pull = in_review(hub, fleet)
    hub.acting("colleague").merge_pull(hub.issue(pull.number))
    assert fleet.tracker.pulls_of([ref]) == {}
    assert fleet.follow() == []


def test_an_issue_that_is_gone_is_left_out(hub, fleet):
    ref = fleet.add()
    assert set(fleet.tracker.pulls_of([ref, IssueRef(REPOSITORY, "999")])) == {ref}


def test_more_than_a_hundred_are_asked_about_in_hundreds(hub, fleet):
    refs = [fleet.add() for _ in range(130)]
    with hub.counted() as counted:
        assert set(fleet.tracker.pulls_of(refs)) == set(refs)
    assert counted[PULLS] == 2


def test_the_fleets_own_is_labelled_once_among_many_of_a_stranger(hub, fleet):
    ref, made = fleet.add(), []

    def flood_and_mend():
        for at in range(150):
            pull_for(hub, ref, "mallory", f"mallory:{at}")
        made.append(pull_for(hub, ref))

    fleet.work(ref, meanwhile=flood_and_mend)
    assert fleet.follow() == [Follow.LABELLED]
    assert AUTHORED in {
        label.name for label in hub.state.view().primary.labels_on(hub.issue(made[0].number))
    }
    assert fleet.follow() == [], "although the labels of so many are not asked for"


def test_several_repositories_are_each_asked(hub):
    hub.repository("acme/tools")
    trackers = [
        hub.client(repository=name, looks=label_looks(AGENT)) for name in (REPOSITORY, "acme/tools")
    ]
    several = SeveralRepositories(trackers)
    refs = [tracker.create(Draft("an issue")).ref for tracker in trackers]
    pull = hub.acting("colleague").create_pull(
        hub.state.named("acme/tools"), "Mend", "fix", "main", body=f"Fixes #{refs[1].key}"
    )
    known = several.pulls_of(refs)
    assert known[refs[0]] == ()
    assert [one.ref for one in known[refs[1]]] == [IssueRef("acme/tools", str(pull.number))]
    assert several.pull_texts("acme/tools", "fix") == (f"Mend\n\nFixes #{refs[1].key}",)
    assert several.pull_texts("acme/tools", "other") == ()
    assert several.traits.pulls


def test_a_token_that_may_not_read_pull_requests_follows_nothing_and_says_so_once(
    hub, fleet, caplog
):
    ref, pull = in_review(hub, fleet)
    hub.acting("colleague").merge_pull(hub.issue(pull.number))
    hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind="/pulls|query Pulls", status=403))
    for _ in range(2):
        assert fleet.follow() == []
    told = [record.message for record in caplog.records]
    assert ["asking again" in line for line in told] == [True, False]
    assert "not followed" in told[1]
    assert fleet.labels(ref) == {"agent:pr-open"}


# A pull request that is known only because its run named it


def named_in_review(hub, fleet, *, repository=REPOSITORY):
    """Its text says nothing of the issue; the release names its address."""
    ref = fleet.add()
    title = "Mend the till"
    pull = hub.acting("fleet").create_pull(
        hub.state.named(repository), title, f"fix-{ref.key}", "main"
    )
    url = f"{hub.hub.url}/{repository}/pull/{pull.number}"
    fleet.work(ref)
    fleet.tracker.comment(ref, their_release("w1", "f1", "success", "now", pr=url))
    return ref, pull


@pytest.mark.parametrize("merged", [True, False])
def test_a_pull_request_that_only_the_release_names_is_followed(hub, fleet, merged):
    ref, pull = named_in_review(hub, fleet)
    assert fleet.tracker.pulls_of([ref]) == {ref: ()}
    assert fleet.follow() == [Follow.LABELLED], "it is one of the fleet's"
    hub.clock.advance(5)
    if merged:
        hub.acting("colleague").merge_pull(hub.issue(pull.number))
    else:
        hub.acting("colleague").edit_pull(hub.issue(pull.number), state="closed")
    assert fleet.follow() == [Follow.MOVED_ON if merged else Follow.MOVED_BACK]
    assert fleet.labels(ref) == {"agent:done" if merged else "agent:implement"}
    assert fleet.follow() == []


def test_a_named_pull_request_costs_nothing_while_nothing_changes(hub, fleet):
    named_in_review(hub, fleet)
    fleet.follow()
    fleet.follow()
    with hub.counted() as counted:
        assert fleet.follow() == []
    assert hub.points == 0, counted


def test_the_release_of_an_old_runner_names_it_as_well(hub, fleet):
    ref = fleet.add()
    pull = hub.acting("fleet").create_pull(hub.state.named(REPOSITORY), "Mend it", "fix", "main")
    url = f"https://github.com/{REPOSITORY}/pull/{pull.number}"
    fleet.tracker.edit_labels(ref, add=["agent:pr-open"], remove=["agent:implement"])
    fleet.tracker.comment(ref, their_release("lucius", "f1", "success", "now", pr=url))
    hub.acting("colleague").merge_pull(pull)
    assert fleet.follow() == [Follow.MOVED_ON]


def test_a_named_pull_request_that_cannot_be_seen_decides_nothing(hub, fleet):
    hub.repository("acme/elsewhere")
    ref, pull = named_in_review(hub, fleet, repository="acme/elsewhere")
    hub.acting("colleague").merge_pull(hub.issue(pull.number, "acme/elsewhere"))
    lost = fleet.add()
    fleet.tracker.edit_labels(lost, add=["agent:pr-open"], remove=["agent:implement"])
    url = f"https://github.com/{REPOSITORY}/pull/4711"
    fleet.tracker.comment(lost, their_release("x", "y", "z", "now", pr=url))
    assert fleet.follow() == []
    assert fleet.labels(ref) == {"agent:pr-open"}


def also_named(hub, fleet, ref, *, runner="lucius"):
    """A second pull request, whose text says nothing of the issue; a release names it."""
    hub.clock.advance(5)
    pull = hub.acting("fleet").create_pull(
        hub.state.named(REPOSITORY), "Mend it again", "fix-2", "main"
    )
    url = f"{hub.hub.url}/{REPOSITORY}/pull/{pull.number}"
    fleet.tracker.comment(ref, their_release(runner, "f2", "success", "now", pr=url))
    hub.clock.advance(5)
    return pull


def test_a_named_pull_request_is_followed_beside_an_earlier_linked_one(hub, fleet):
    ref, first = in_review(hub, fleet)
    hub.acting("colleague").edit_pull(hub.issue(first.number), state="closed")
    assert fleet.follow() == [Follow.MOVED_BACK]
    hub.clock.advance(5)
    fleet.work(ref)
    second = also_named(hub, fleet, ref, runner="w1")
    assert fleet.follow() == []
    assert fleet.labels(ref) == {"agent:pr-open"}
    hub.acting("colleague").merge_pull(hub.issue(second.number))
    assert fleet.follow() == [Follow.MOVED_ON]


@pytest.mark.parametrize("first_merged", [True, False])
@pytest.mark.parametrize("merged", [True, False])
def test_an_old_runners_named_pull_request_decides_after_an_earlier_linked_one(
    hub, fleet, first_merged, merged
):
    """The earlier one ended before the old runner's run, so it decides nothing any more."""
    ref = fleet.add()
    first = pull_for(hub, ref)
    if first_merged:
        hub.acting("colleague").merge_pull(first)
        hub.acting("colleague").edit_issue(hub.issue(int(ref.key)), state="open")
    else:
        hub.acting("colleague").edit_pull(first, state="closed")
    second = also_named(hub, fleet, ref)
    fleet.tracker.edit_labels(ref, add=["agent:pr-open"], remove=["agent:implement"])
    assert fleet.follow() == []
    assert fleet.labels(ref) == {"agent:pr-open"}
    if merged:
        hub.acting("colleague").merge_pull(hub.issue(second.number))
    else:
        hub.acting("colleague").edit_pull(hub.issue(second.number), state="closed")
    assert fleet.follow() == [Follow.MOVED_ON if merged else Follow.MOVED_BACK]


def test_a_strangers_pull_request_does_not_hide_the_named_one(hub, fleet):
    ref, pull = named_in_review(hub, fleet)
    pull_for(hub, ref, "mallory", "mallory:x")
    assert fleet.follow() == [Follow.LABELLED]
    hub.acting("colleague").merge_pull(hub.issue(pull.number))
    hub.clock.advance(5)
    assert fleet.follow() == [Follow.MOVED_ON]
