"""A person's word: pause, resume, revoke."""

from dibs.core.eligibility import PauseScope
from dibs.core.lease import Lost, StopAsked
from dibs.ports.tracker import is_persons_word
from dibs.services.claiming import Claimed
from dibs.services.steering import NothingToRevoke, Revoked

from .world import BEAT_S, TTL_S, codes


def test_a_paused_issue_is_not_claimed_until_it_is_resumed(world):
    issue, person = world.add(), world.process("person")
    person.services.steering.pause_issue(issue, reason="wrong spec", by="ada")
    assert codes(world.process().claim(issue)) == ["PAUSED"]
    assert "Paused by `ada`: `wrong spec`" in world.read(issue).comments[-1].body
    assert person.services.steering.resume_issue(issue, by="ada")
    assert isinstance(world.process().claim(issue), Claimed)
    assert world.events()[:2] == ["paused", "resumed"]


def test_pausing_an_issue_stops_the_work_that_is_under_way(world):
    keeper = world.process().hold(world.add())
    world.process("person").services.steering.pause_issue(keeper.issue, reason="x", by="ada")
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, StopAsked)


def test_resuming_lifts_parked_as_well_as_paused(world):
    issue, person = world.add("stage:ready", "paused", "parked"), world.process("person")
    assert person.services.steering.resume_issue(issue, by="ada")
    assert world.labels(issue) == {"stage:ready"}


def test_resuming_what_was_not_paused_says_so_and_writes_nothing(world):
    issue, person = world.add(), world.process("person")
    assert not person.services.steering.resume_issue(issue, by="ada")
    assert person.tracker.written == []
    assert world.events() == []


def test_pausing_everything_stops_new_claims_and_no_running_work(world):
    keeper, person = world.process().hold(world.add()), world.process("person")
    for scope, code in (
        (PauseScope.REPOSITORY, "REPOSITORY_PAUSED"),
        (PauseScope.FLEET, "FLEET_PAUSED"),
    ):
        person.services.steering.pause_all(scope, reason="deploy", by="ada")
        assert codes(world.process("other").claim(world.add())) == [code]
        world.clock.advance(BEAT_S)
        keeper.beat()
        keeper.check()
        assert person.services.steering.resume_all(scope, by="ada")
        assert not person.services.steering.resume_all(scope, by="ada")
        assert isinstance(world.process("other").claim(world.add()), Claimed)


def test_a_graceful_revoke_asks_the_holder_and_keeps_others_out(world):
    issue = world.add()
    keeper, person = world.process().hold(issue), world.process("person")
    result = person.services.steering.revoke(
        issue, keeper.run, by="ada", reason="wrong branch", force=False
    )
    assert isinstance(result, Revoked)
    assert codes(world.process("other").claim(issue)) == ["HELD"]
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, StopAsked)
    assert "revoked" in world.events()


def test_a_forced_revoke_frees_the_issue_at_once(world):
    issue = world.add()
    keeper, person = world.process().hold(issue), world.process("person")
    result = person.services.steering.revoke(issue, keeper.run, by="ada", reason="dead", force=True)
    assert isinstance(result, Revoked)
    assert not result.record.live
    claimed = world.process("next").claimed(issue)
    assert claimed.lease.fence > keeper.fence
    world.clock.advance(BEAT_S)
    keeper.beat()
    assert isinstance(keeper.condition, Lost)


def test_a_lease_that_was_taken_away_is_not_a_failed_attempt(world):
    issue = world.add()
    keeper, person = world.process().hold(issue), world.process("person")
    person.services.steering.revoke(issue, keeper.run, by="ada", reason="x", force=True)
    assert world.process("next").claimed(issue).failed_attempts == 0


def test_a_revoke_names_the_run_that_was_read_and_never_hits_the_one_after(world):
    issue = world.add()
    old = world.process("old").hold(issue)
    world.clock.advance(TTL_S)
    new, person = world.process("new").hold(issue), world.process("person")
    for force in (False, True):
        result = person.services.steering.revoke(issue, old.run, by="ada", reason="x", force=force)
        assert isinstance(result, NothingToRevoke)
        assert result.record.lease.run == new.run
    assert person.tracker.written == []
    world.clock.advance(BEAT_S)
    new.beat()
    new.check()


def test_revoking_what_nobody_holds_says_so(world):
    issue, person = world.add(), world.process("person")
    result = person.services.steering.revoke(issue, "w1-1", by="ada", reason="x", force=False)
    assert result == NothingToRevoke(None)
    assert "revoked" not in world.events()


def test_a_persons_word_is_known_as_one_down_to_the_tracker(world):
    """So that an adapter whose requests are scarce does not let it wait behind claims."""
    issue = world.add()
    keeper, person = world.process().hold(issue), world.process("person")
    heard, read = [], person.tracker.read

    def reading(ref):
        heard.append(is_persons_word())
        return read(ref)

    person.tracker.read = reading
    steering, run = person.services.steering, keeper.lease.run
    steering.revoke(issue, run, by="ada", reason="", force=False)
    steering.resume_issue(issue, by="ada")
    person.tracker.read(issue)
    assert heard[:-1] == [True] * len(heard[:-1])
    assert len(heard) > 1
    assert heard[-1] is False
