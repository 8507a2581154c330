"""Old cards leave a long thread, and nobody judges differently for it."""

from msgspec.structs import replace

from dibs.core.lease import Lost

from .world import BEAT_S, TTL_S, outage

LONG = 16


def worked(world, issue, times):
    for _ in range(times):
        world.process().give_back(issue)


def test_a_thread_stays_short_however_often_the_issue_is_worked(world):
    issue = world.add()
    worked(world, issue, 3 * LONG)
    assert len(world.read(issue).comments) <= LONG + 1
    assert world.read(issue).complete


def test_the_history_has_every_run(world):
    issue = world.add()
    worked(world, issue, 2 * LONG)
    rows = world.process().services.board.history(issue)
    assert [row.outcome for row in rows] == ["returned"] * 2 * LONG


def test_failures_before_a_long_row_of_returns_still_count(world):
    issue = world.add()
    world.process().fail(issue)
    world.clock.advance(3600)
    worked(world, issue, 2 * LONG)
    assert world.process().claimed(issue).failed_attempts == 1


def test_comments_of_people_stay(world):
    issue = world.add()
    world.tracker.comment(issue, "It happens on Mondays.")
    worked(world, issue, 2 * LONG)
    assert world.read(issue).comments[0].body == "It happens on Mondays."


def test_a_short_or_busy_thread_is_left_alone(world):
    issue = world.add()
    for number in range(2 * LONG):
        world.tracker.comment(issue, f"comment {number}")
    worked(world, issue, 5)
    assert world.read(issue).issue.comment_count == 2 * LONG + 5


def test_a_tracker_without_an_archive_keeps_the_thread(world):
    world.tracker.traits = replace(world.tracker.traits, long_thread=0)
    issue = world.add()
    worked(world, issue, 2 * LONG)
    assert len(world.cards(issue)) == 2 * LONG


def test_no_tracker_without_an_archive_is_asked_for_one(world):
    """One of another distribution, which need not inherit from `OneAtATime`, has no such call."""
    world.tracker.traits = replace(world.tracker.traits, long_thread=0)
    issue = world.add()
    worked(world, issue, 2)
    process = world.process()
    assert len(process.services.board.history(issue)) == 2
    assert "read_whole" not in {call.name for call in process.tracker.calls}


def test_a_holder_whose_card_was_archived_has_lost(world):
    """It slept through its lease, and through the runs of many others."""
    issue = world.add()
    sleeper = world.process("sleeper")
    keeper = sleeper.hold(issue)
    world.clock.advance(TTL_S + BEAT_S)
    world.process().advance(issue, "review")
    world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))
    worked(world, issue, 2 * LONG)
    assert all(run != keeper.lease.run for run, _ in world.states(issue))
    before = world.read(issue)
    assert isinstance(sleeper.services.leases.renew(keeper.lease), Lost)
    assert world.read(issue) == before


def test_an_archive_that_cannot_be_written_is_left_to_a_later_claim(world):
    issue = world.add()
    worked(world, issue, LONG + 1)
    process = world.process("unlucky")
    process.tracker.before = outage("archive")
    process.give_back(issue)
    assert len(world.cards(issue)) == LONG + 2
    worked(world, issue, 1)
    assert len(world.cards(issue)) < LONG
