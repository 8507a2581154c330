"""An issue that is somebody's: workers leave it alone, people need not, and everybody agrees."""

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.ids import IssueRef
from dibs.core.issue import Person, Pull
from dibs.core.pipeline import Command, People
from dibs.services.board import RowState
from dibs.services.claiming import A_PERSON_MAY_OVERLOOK, Claimed, ClaimOptions
from dibs.services.keeping import Keeper

from .world import BEAT_S, World, codes, pipeline_of

MARKER = "<!-- agent-claim:codename=lucius firing_id=f1 ts=2026-05-01T19:42:33Z -->"
RELEASE = "<!-- agent-release:codename=lucius firing_id=f1 outcome=success ts=x -->"


def assign(world, issue):
    world.tracker.concern(issue, assignees=[Person("ann")])


def delegate(world, issue):
    world.tracker.concern(issue, assignees=[Person("Copilot", human=False)])


def pull(world, issue):
    world.tracker.concern(issue, pulls=[Pull(IssueRef("", "31"), Person("cy"))])


def mark(world, issue):
    world.tracker.comment(issue, MARKER)


WAYS = {"ASSIGNED": assign, "DELEGATED": delegate, "PULL_OPEN": pull, "FOREIGN_CLAIM": mark}
each_way = pytest.mark.parametrize("code", WAYS)


@pytest.fixture
def world(kind):
    return World(kind, pipeline=pipeline_of(handler=Command("true")))


@each_way
def test_a_worker_is_refused_and_why_says_the_same(world, code):
    issue = world.add()
    WAYS[code](world, issue)
    process = world.process()
    assert codes(process.claim(issue)) == [code]
    assert process.why(issue) == [code]
    assert world.cards(issue) == [], "nothing was bid"


@each_way
def test_a_claim_that_was_not_looked_at_first_is_given_back_unshown(world, code):
    issue = world.add()
    WAYS[code](world, issue)
    result = world.process().claim(issue, "ready", look_first=False)
    assert (codes(result), result.after_grant) == ([code], True)
    assert "claimed" not in world.labels(issue)
    assert world.process("w2").why(issue) == [code], "nobody holds it"


@each_way
def test_a_person_may_take_it_nevertheless(world, code):
    issue = world.add()
    WAYS[code](world, issue)
    taken = world.process("ann").claim(issue, overlook=A_PERSON_MAY_OVERLOOK)
    assert isinstance(taken, Claimed)


@each_way
def test_what_runs_is_not_stopped_by_it(world, code):
    issue = world.add()
    process = world.process()
    keeper: Keeper = process.hold(issue)
    WAYS[code](world, issue)
    world.clock.advance(BEAT_S)
    keeper.beat()
    keeper.check()
    process.services.advancing.advance(keeper, "review")
    assert "stage:review" in world.labels(issue)


def test_the_board_shows_whose_it_is_and_ready_leaves_it_out(world):
    free, assigned, pulled = world.add(), world.add(), world.add()
    assign(world, assigned)
    pull(world, pulled)
    board = world.process().services.board
    states = {row.issue.ref: row.state for row in board.rows()}
    assert states == {free: RowState.READY, assigned: RowState.THEIRS, pulled: RowState.THEIRS}
    assert [row.issue.ref for row in board.ready()] == [free]


def test_an_issue_that_we_hold_is_shown_as_claimed_whoever_is_assigned(world):
    issue = world.add()
    world.process().hold(issue)
    assign(world, issue)
    assert [row.state for row in world.process().services.board.rows()] == [RowState.CLAIMED]


def test_another_tools_marker_lifts_when_it_is_taken_back_and_by_itself(world):
    first, second = world.add(), world.add()
    for issue in (first, second):
        mark(world, issue)
    world.tracker.comment(first, RELEASE)
    assert isinstance(world.process().claim(first), Claimed)
    assert world.process().why(second) == ["FOREIGN_CLAIM"]
    world.clock.advance(4 * 3600)
    assert isinstance(world.process().claim(second), Claimed)


def test_a_strangers_marker_keeps_nobody_off(world):
    issue = world.add()
    world.tracker.comment(issue, MARKER, author="mallory", by_writer=False)
    assert isinstance(world.process().claim(issue), Claimed)


def test_one_who_waits_waits_for_another_tool_and_not_for_an_assignee(world):
    marked, assigned = world.add(), world.add()
    mark(world, marked)
    assign(world, assigned)
    process = world.process()
    waiting, options = process.services.queueing, ClaimOptions(process.holder)
    began = world.clock.now()
    assert codes(waiting.claim(assigned, options, wait_s=60)) == ["ASSIGNED"]
    assert world.clock.now() == began, "only a person lifts it"
    assert codes(waiting.claim(marked, options, wait_s=60)) == ["FOREIGN_CLAIM"]
    assert world.clock.now() >= began + 60


class Known(MemoryTracker):
    """A tracker that can tell whose token it is, and counts how often it was asked."""

    asked = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traits = replace(self.traits, accounts=True)

    def login(self) -> str | None:
        self.asked += 1
        return "Fleet-Bot"


def test_our_own_account_is_of_the_fleet_where_the_tracker_can_tell(world):
    world.tracker = Known(world.clock.server_now, author="fleet")
    issue, other = world.add(), world.add()
    world.tracker.concern(issue, assignees=[Person("fleet-bot")])
    process = world.process()
    assert isinstance(process.claim(issue), Claimed)
    asked = world.tracker.asked
    assert asked
    assert isinstance(process.claim(other), Claimed)
    assert world.tracker.asked == asked, "nobody stands on it, so nobody asks who we are"


def test_accounts_of_the_fleet_are_named_in_the_settings(world):
    people = People(fleet=frozenset({"ann", "cy"}))
    world.settings = replace(world.settings, pipeline=replace(world.pipeline, people=people))
    issue = world.add()
    world.tracker.concern(
        issue, assignees=[Person("Ann")], pulls=[Pull(IssueRef("", "2"), Person("CY"))]
    )
    assert isinstance(world.process().claim(issue), Claimed)
