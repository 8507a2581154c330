"""Signed marks under the services: a fleet with a key, writers without it, and handing it out."""

import copy

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.wrappers.trackers import SignedTracker
from dibs.core.card import Card, CardState, parse_mark, render_card, render_revoke, render_shown
from dibs.core.errors import BadConfiguration
from dibs.core.events import Step
from dibs.core.ids import HolderId, RunId, StageName
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment, PostComment
from dibs.core.lease import Revocation
from dibs.core.pipeline import Command, SignedGate
from dibs.core.signing import Signed, Strictness, parse_keyring, verify
from dibs.ports.tracker import IssueQuery, Standpoint
from dibs.services.claiming import Claimed

from .world import BEAT_S, TTL, TTL_S, Crash, World, codes, crashing

OLD, NEW = "old:a secret of the old days", "new:a secret of this very day"
RING = parse_keyring(OLD)
LENIENT = parse_keyring(OLD, Strictness.LENIENT)


def keyed(world: World, ring) -> World:
    """The same backlog as processes see it that have this key."""
    other = copy.copy(world)
    other.tracker = SignedTracker(world.tracker, ring)
    return other


@pytest.fixture
def fleet(world) -> World:
    return keyed(world, RING)


def verdicts(world, issue, ring=RING):
    found = [verify(comment.body, issue, ring) for comment in world.read(issue).comments]
    return [verdict for verdict in found if verdict is not Signed.NO_MARK]


def forged(run: str = "forged", state: CardState = CardState.HELD, **changes) -> str:
    card = Card(RunId(run), TTL, state, HolderId("mallory"), StageName("ready"), **changes)
    return render_card(card)


# The fleet


def test_everything_the_fleet_writes_is_signed_from_claim_to_ending(world, fleet):
    issue = fleet.add()
    process = fleet.process()
    keeper = process.hold(issue)
    fleet.clock.advance(BEAT_S)
    keeper.beat()
    process.services.advancing.advance(keeper, "review")
    assert set(verdicts(world, issue)) == {Signed.VALID}
    assert "stage:review" in world.labels(issue)


def test_whoever_has_no_key_yet_believes_what_is_signed(world, fleet):
    issue = fleet.add()
    fleet.process("w1").claimed(issue)
    assert "HELD" in world.process("w2").why(issue)


def test_an_ending_that_a_crash_left_half_shown_is_finished_and_signed(world, fleet):
    issue = fleet.add()
    with pytest.raises(Crash):
        fleet.process("dying", reached=crashing(Step.FINISH_DECIDED)).advance(issue, "review")
    fleet.process("w2").sweep()
    assert "stage:review" in world.labels(issue)
    assert set(verdicts(world, issue)) <= {Signed.VALID}


def test_an_operators_revoke_is_signed_and_heard(world, fleet):
    issue = fleet.add()
    claimed = fleet.process("w1").claimed(issue)
    run = claimed.lease.run
    fleet.process("op").services.steering.revoke(issue, run, by="op", reason="stuck", force=False)
    assert set(verdicts(world, issue)) == {Signed.VALID}
    standing = fleet.process("w2").services.leases.standing(fleet.read(issue))
    assert standing.record.revocation.run == claimed.lease.run


# Writers without the key. On an atomic store cards decide nothing; here they would.


@pytest.fixture
def comments():
    world = World("comments")
    return world, keyed(world, RING)


def test_a_claim_that_nobody_signed_keeps_nobody_off(comments):
    world, fleet = comments
    issue = fleet.add()
    world.tracker.comment(issue, forged(state=CardState.BID))
    assert "BID_PENDING" in world.process().why(issue), "without a key it would"
    assert isinstance(fleet.process().claim(issue), Claimed)


def test_a_claim_signed_for_another_issue_keeps_nobody_off(comments):
    world, fleet = comments
    first, second = fleet.add(), fleet.add()
    fleet.process("w1").claimed(first)
    [card] = world.read(first).comments
    world.tracker.comment(second, card.body)
    assert isinstance(fleet.process("w2").claim(second), Claimed)


def test_a_revoke_and_a_shown_that_nobody_signed_change_nothing(comments):
    world, fleet = comments
    issue = fleet.add()
    process = fleet.process()
    keeper = process.hold(issue)
    run = keeper.lease.run
    world.tracker.comment(issue, render_revoke(Revocation(run, "mallory", "mine", force=True)))
    world.tracker.comment(issue, render_shown(run))
    fleet.clock.advance(BEAT_S)
    keeper.beat()
    keeper.check()
    assert "HELD" in fleet.process("w2").why(issue)


def test_a_copy_of_our_own_card_does_not_hold_the_issue_for_us(comments):
    world, fleet = comments
    issue = fleet.add()
    process = fleet.process()
    keeper = process.hold(issue)
    [card] = world.read(issue).comments
    process.services.advancing.give_back(keeper, "not now")
    world.tracker.comment(issue, card.body)
    assert isinstance(fleet.process("w2").claim(issue), Claimed)


def test_our_card_rewritten_without_the_key_is_a_lease_lost_and_nobody_elses_won(comments):
    world, fleet = comments
    issue = fleet.add()
    keeper = fleet.process("w1").hold(issue)
    [card] = world.read(issue).comments
    stolen = replace(parse_mark(card.body), run=RunId("mine"), holder=HolderId("mallory"), extra=())
    world.tracker.edit_comment(issue, card.id, render_card(stolen))
    assert fleet.process("w2").services.leases.standing(fleet.read(issue)).record is None
    assert keeper.lease.run != "mine"


def test_unsigned_cards_are_not_counted_as_attempts(comments):
    world, fleet = comments
    issue = fleet.add()
    for _ in range(2):
        world.process("before").fail(issue)
        world.clock.advance(900)
    assert world.process().services.explaining.explain(issue).attempts.failed == 2
    assert fleet.process().services.explaining.explain(issue).attempts.failed == 0


# Handing out a key, and changing it


def test_while_it_is_handed_out_nobody_is_overlooked(comments):
    world, strict = comments
    lenient = keyed(world, LENIENT)
    first, second = world.add(), world.add()
    world.process("keyless").claimed(first)
    lenient.process("lenient").claimed(second)
    assert "HELD" in lenient.process("w").why(first)
    assert "HELD" in world.process("w").why(second)
    assert "HELD" in strict.process("w").why(second)
    # What strict alone would do: the reason that it comes last.
    assert codes(strict.process("w").claim(first)) == ["CLAIM_LABEL_ONLY"]


def test_a_renewal_by_somebody_with_the_key_signs_a_lease_from_before(comments):
    world, strict = comments
    lenient = keyed(world, LENIENT)
    issue = world.add()
    claimed = world.process("w1").claimed(issue)
    process = lenient.process("w1-restarted")
    renewed = process.services.leases.renew(claimed.lease)
    assert renewed.lease.run == claimed.lease.run
    assert verdicts(world, issue) == [Signed.VALID]
    assert "HELD" in strict.process("w2").why(issue)


@pytest.mark.parametrize(
    ("one", "other"),
    [(OLD, f"{OLD},{NEW}"), (f"{OLD},{NEW}", f"{NEW},{OLD}"), (f"{NEW},{OLD}", NEW)],
    ids=["verify both", "sign with the new", "forget the old"],
)
def test_each_step_of_a_change_of_keys_leaves_the_fleet_whole(comments, one, other):
    """Neighbours believe each other; in the last step once nothing signed by the old is held."""
    world, _ = comments
    before, after = keyed(world, parse_keyring(one)), keyed(world, parse_keyring(other))
    first, second = world.add(), world.add()
    before.process("b").claimed(first)
    after.process("a").claimed(second)
    assert "HELD" in after.process("x").why(first)
    assert "HELD" in before.process("x").why(second)


def test_a_lease_outlives_a_change_of_keys(comments):
    world, _ = comments
    issue = world.add()
    keeper = keyed(world, parse_keyring(f"{OLD},{NEW}")).process("w1").hold(issue)
    world.clock.advance(TTL_S / 3)
    keeper.beat()
    late = keyed(world, parse_keyring(f"{NEW},{OLD}"))
    assert "HELD" in late.process("w2").why(issue)


# Capabilities


class Able(MemoryTracker):
    """A tracker in memory that offers what GitHub's does."""

    def login(self):
        return "fleet-bot"

    def standpoint(self):
        return Standpoint("writers", "write", may_write=True, ours_count=True)

    def missing_labels(self, labels):
        return labels[:1]


def test_every_way_of_reading_and_writing_is_signed(world):
    inner = Able(world.clock.server_now)
    wrapped = SignedTracker(inner, RING)
    issue = wrapped.create(Draft("t")).ref
    posted = wrapped.comment(issue, forged("a", CardState.BID))
    wrapped.apply(issue, (AddLabels(("x",)), PostComment(render_shown(RunId("b")))))
    wrapped.apply(issue, (EditComment(posted.id, forged("a", CardState.BID, beats=1)),))
    assert [verify(one.body, issue, RING) for one in inner.read(issue).comments] == [
        Signed.VALID,
        Signed.VALID,
    ]
    bare = inner.comment(issue, forged("c", CardState.BID))
    readings = [
        wrapped.read(issue),
        wrapped.apply(issue, (AddLabels(("y",)),)),
        wrapped.read_many([issue])[issue],
        *wrapped.find_snapshots([IssueQuery()])[0].snapshots,
    ]
    for snapshot in readings:
        assert [one.id for one in snapshot.comments if not one.by_writer] == [bare.id]
    assert (wrapped.login(), wrapped.missing_labels(("a", "b"))) == ("fleet-bot", ("a",))
    assert wrapped.standpoint().permission == "write"


# Approvals


def gated(world: World) -> World:
    """The fleet's world with a signed gate before its second stage."""
    ready, review, done = world.pipeline.stages
    review = replace(review, gate=SignedGate("approved"), handler=Command("true"))
    other = keyed(world, RING)
    other.pipeline = replace(world.pipeline, stages=(ready, review, done))
    other.settings = replace(world.settings, pipeline=other.pipeline)
    return other


def approver(world: World, ring=RING):
    process = world.process("ann")
    process.services.adapters.keyring = ring
    return process.services.steering


def test_a_signed_gate_opens_for_one_move_by_the_approval_of_who_has_the_key(world):
    fleet = gated(world)
    issue = fleet.add("stage:review")
    world.tracker.edit_labels(issue, add=("approved",))
    assert fleet.process().why(issue) == ["GATE_SHUT"]
    approver(fleet).approve(issue, by="ann")
    assert fleet.process().why(issue) == []
    process = fleet.process()
    process.services.advancing.advance(process.hold(issue), "ready")
    world.tracker.edit_labels(issue, add=("stage:review", "approved"), remove=("stage:ready",))
    assert fleet.process().why(issue) == ["GATE_SHUT"]
    approver(fleet).approve(issue, by="ann")
    assert fleet.process().why(issue) == []


def test_a_failed_attempt_uses_up_no_signed_approval(world):
    fleet = gated(world)
    issue = fleet.add("stage:review")
    approver(fleet).approve(issue, by="ann")
    fleet.process().fail(issue)
    assert "GATE_SHUT" not in fleet.process().why(issue)


def test_without_a_key_nobody_approves_at_a_signed_gate_and_none_serves_it(world):
    fleet = gated(world)
    issue = fleet.add("stage:review")
    with pytest.raises(BadConfiguration, match="DIBS_SIGNING_KEY is not set"):
        approver(fleet, None).approve(issue, by="ann")
    assert world.read(issue).comments == ()
    with pytest.raises(BadConfiguration, match="DIBS_SIGNING_KEY is not set"):
        fleet.process().services.serving(["review"])


def test_the_comment_on_a_parking_is_signed_and_posted_once(world, fleet):
    issue = fleet.add()
    for _ in range(fleet.pipeline.stages[0].attempts):
        fleet.clock.advance(3600)
        fleet.process().fail(issue)
    parked = [one for one in world.read(issue).comments if one.body.startswith("<!-- parked ")]
    assert [verify(one.body, issue, RING) for one in parked] == [Signed.VALID]
