"""On the fake GitHub: who is on an issue, marks that nobody signed, and what the doctor is told."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import MemoryJournal
from dibs.adapters.wrappers.trackers import SignedTracker
from dibs.core.card import Card, CardState, render_card
from dibs.core.eligibility import PauseScope
from dibs.core.granter import Appointed, PauseWord, render_appointment, render_pause
from dibs.core.ids import HolderId, RunId, StageName
from dibs.core.issue import Draft
from dibs.core.labels import CloseIssue, PostComment, label_looks
from dibs.core.presets import STAGES
from dibs.core.signing import parse_keyring
from dibs.services.claiming import A_PERSON_MAY_OVERLOOK, Claimed, ClaimOptions
from dibs.services.diagnosing import Level
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services
from dibs_lab.fakehub import Fault, Wrong

from .hubs import REPOSITORY, Hub, transport_to

RING = parse_keyring("k:a key that is long enough")
USER = "GET /user"


class Fleet:
    """One process of a fleet: its services on the fake, with or without a key."""

    def __init__(self, hub, keyring=None, login="fleet", **options):
        transport = transport_to(hub.hub.url, f"{login}-token", hub.clock)
        hub._opened.callback(transport.close)
        options = {"looks": label_looks(STAGES), "keyring": keyring, **options}
        tracker = GithubTracker(transport, REPOSITORY, **options)
        self.control = GithubControl([tracker], hub.clock)
        settings = config.from_mapping(
            {"tracker": f"github:{REPOSITORY}", "leases": "comments", "journal": ""},
            source="test",
            root=Path("/nowhere"),
        )
        self.services = Services(
            replace(settings, pipeline=STAGES),
            Adapters(
                tracker=SignedTracker(tracker, keyring) if keyring else tracker,
                store=None,
                pauses=self.control,
                observers=(MemoryJournal(),),
                clock=hub.clock,
                granters=self.control,
                keyring=keyring,
            ),
        )

    @property
    def tracker(self):
        return self.services.tracker

    def add(self):
        return self.tracker.create(Draft("an issue", labels=frozenset({"stage:ready"}))).ref

    def claim(self, ref, **options):
        return self.services.claiming.claim(ref, None, ClaimOptions(HolderId("w"), **options))

    def why(self, ref):
        reasons = self.services.explaining.explain(ref).reasons
        return {reason.code.value: reason for reason in reasons if reason.code != "NOT_SERVED"}


@pytest.fixture
def hub():
    with ExitStack() as opened:
        made = Hub(opened)
        made.client(looks=label_looks(STAGES)).prepare(STAGES.every_label)
        yield made


def on(hub, ref):
    return hub.issue(int(ref.key))


# People first


def test_a_colleague_who_is_assigned_keeps_the_fleet_off_and_we_ourselves_do_not(hub):
    fleet = Fleet(hub)
    theirs, ours = fleet.add(), fleet.add()
    hub.acting().assign(on(hub, theirs), ["colleague"])
    hub.acting().assign(on(hub, ours), ["fleet"])
    why = fleet.why(theirs)
    assert list(why) == ["ASSIGNED"]
    assert "colleague" in why["ASSIGNED"].text
    assert not isinstance(fleet.claim(theirs), Claimed)
    assert isinstance(fleet.claim(theirs, overlook=A_PERSON_MAY_OVERLOOK), Claimed)
    with hub.counted() as counted:
        assert isinstance(fleet.claim(ours), Claimed)
    assert counted.get(USER, 0) == 0, "who we are was asked before, and once is enough"


@pytest.mark.parametrize("graphql", [True, False])
def test_an_issue_that_another_agent_has_is_left_to_it_until_it_is_unassigned(hub, graphql):
    hub.state.add_user("Copilot", kind="Bot")
    fleet = Fleet(hub, graphql=graphql)
    ref = fleet.add()
    hub.acting().assign(on(hub, ref), ["Copilot"])
    why = fleet.why(ref)
    assert list(why) == ["DELEGATED"]
    assert "Copilot, a program" in why["DELEGATED"].text
    assert not isinstance(fleet.claim(ref), Claimed)
    hub.acting().unassign(on(hub, ref), ["Copilot"])
    assert isinstance(fleet.claim(ref), Claimed)


def test_a_server_that_does_not_list_programs_is_asked_for_them_once(hub):
    hub.hub.faults.add(Fault(Wrong.UNKNOWN_FIELD, containing="assignedActors"))
    fleet = Fleet(hub)
    ref, theirs = fleet.add(), fleet.add()
    hub.acting().assign(on(hub, theirs), ["colleague"])
    with hub.counted() as counted:
        assert list(fleet.why(theirs)) == ["ASSIGNED"]
    assert counted["graphql query Read"] == 2
    with hub.counted() as counted:
        assert isinstance(fleet.claim(ref), Claimed)
    assert counted["graphql mutation Trip"] == 1


def test_a_trip_to_a_server_that_does_not_list_programs_is_carried_out_once(hub):
    tracker = hub.client()
    ref = tracker.create(Draft("one")).ref
    tracker.read(ref)
    hub.hub.faults.add(Fault(Wrong.UNKNOWN_FIELD, containing="assignedActors"))
    snapshot = tracker.apply(ref, (PostComment("said"), CloseIssue()))
    assert [comment.body for comment in snapshot.comments] == ["said"]
    assert not snapshot.issue.open


def test_an_open_pull_request_of_somebody_else_keeps_the_fleet_off_until_it_is_merged(hub):
    fleet = Fleet(hub)
    theirs, ours = fleet.add(), fleet.add()
    repository = hub.state.named(REPOSITORY)
    pull = hub.acting("colleague").create_pull(
        repository, "Mend it", head="mend", base="main", body=f"Closes #{theirs.key}"
    )
    hub.acting("fleet").create_pull(
        repository, "Ours", head="ours", base="main", body=f"Closes #{ours.key}"
    )
    why = fleet.why(theirs)
    assert list(why) == ["PULL_OPEN"]
    assert f"{REPOSITORY}#{pull.number}" in why["PULL_OPEN"].text
    assert isinstance(fleet.claim(ours), Claimed)
    hub.acting("colleague").merge_pull(pull)
    assert "PULL_OPEN" not in fleet.why(theirs)


def test_nobody_is_asked_who_we_are_while_nobody_is_on_an_issue(hub):
    fleet = Fleet(hub)
    ref = fleet.add()
    with hub.counted() as counted:
        assert isinstance(fleet.claim(ref), Claimed)
    assert USER not in counted


# Signed marks


def test_a_colleague_without_the_key_can_neither_claim_nor_appoint_nor_pause(hub):
    fleet, keyless = Fleet(hub, RING), Fleet(hub, login="colleague")
    ref = fleet.add()
    [made] = fleet.control.prepare()
    bid = Card(RunId("forged"), STAGES.stages[0].terms.ttl, CardState.BID, stage=StageName("ready"))
    hub.acting().create_comment(on(hub, ref), render_card(bid))
    control = hub.issue(int(made.rpartition("#")[2]))
    hub.acting().create_comment(control, render_appointment(Appointed("mine"), over=0))
    hub.acting().create_comment(control, render_pause(PauseWord(PauseScope.FLEET, "x", "y")))
    hub.clock.advance(60)
    assert set(keyless.why(ref)) >= {"BID_PENDING", "FLEET_PAUSED", "GRANTED_ELSEWHERE"}
    assert fleet.why(ref) == {}
    assert isinstance(fleet.claim(ref), Claimed)
    assert fleet.control.granter() == Appointed("comments")


def test_what_the_fleet_says_on_the_control_issue_is_signed_and_read_by_all(hub):
    fleet, second, keyless = Fleet(hub, RING), Fleet(hub, RING), Fleet(hub)
    fleet.control.appoint(Appointed("comments"), instead_of=None)
    fleet.control.pause(PauseScope.FLEET, repo="", reason="release day", by="ann")
    for reader in (second, keyless):
        assert reader.control.granter() == Appointed("comments")
        assert [pause.reason for pause in reader.control.pauses()] == ["release day"]
    assert fleet.control.resume(PauseScope.FLEET, repo="", by="ann")
    hub.clock.advance(60)
    assert second.control.pauses() == ()


# The doctor


def test_the_doctor_is_told_who_we_are_what_we_may_and_who_is_believed(hub):
    findings = list(Fleet(hub, RING).services.diagnosing.examine())
    assert [one for one in findings if one.level is not Level.OK] == []
    told = {(one.check, one.text) for one in findings}
    assert ("account", "we are fleet") in told
    assert ("account", "our permission: write") in told
    checks = {one.check for one in findings}
    assert {"tracker", "trust", "labels", "leases", "granter", "storage"} <= checks


def test_the_doctor_says_what_somebody_without_write_access_cannot_do(hub):
    findings = list(Fleet(hub, login="mallory").services.diagnosing.examine())
    failing = {one.check for one in findings if one.level is Level.FAIL}
    assert failing == {"account", "trust"}


def test_the_doctor_writes_nothing_and_asks_a_dozen_things_at_most(hub):
    fleet = Fleet(hub)
    with hub.counted() as counted:
        list(fleet.services.diagnosing.examine())
    assert not [kind for kind in counted if not kind.startswith(("GET", "graphql query"))]
    assert sum(counted.values()) <= 12
