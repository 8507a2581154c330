"""Issues that are worked together: claimed all or none, kept together, ended one by one."""

import json

import pytest

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import HandlerUnusable, NoSuchIssue, WorktreeUnavailable
from dibs.core.events import Step
from dibs.core.pipeline import BundleWorktree, Command
from dibs.core.presets import AGENT
from dibs.services.bundling import MOST, Waits
from dibs.services.claiming import Beaten, ClaimOptions, Doubtful
from dibs.services.keeping import LeaseGroup
from dibs.services.running import StopSignal
from dibs.services.working import Until

from .places import NotedPlaces
from .runners import ScriptedRunner
from .world import BEAT_S, TTL_S, Crash, World, crashing, outage, pipeline_of

EURO = "agent:bundle:euro"
READY = "stage:ready"
PATIENCE_S = 0.03


class Bundles(World):
    """A world whose first stage works bundles."""

    def __init__(self, kind="store", *, base=None, **options):
        changes = {"handler": Command("./implement.sh"), "worktree": BundleWorktree()}
        changes |= options.pop("stage", {})
        made = pipeline_of(**changes) if base is None else pipeline_of(base, **changes)
        super().__init__(kind, pipeline=made, **options)
        self.places = NotedPlaces()

    @property
    def first(self):
        return self.pipeline.stages[0].label

    def bundle(self, count=3, label=EURO):
        return [self.add(self.first, label) for _ in range(count)]

    def process(self, name="w1", *, reached=None, **script):
        made = super().process(name, **({"reached": reached} if reached else {}))
        made.services.runner = ScriptedRunner(self.clock, **script)
        made.services.workplaces = self.places
        return made


@pytest.fixture
def world(kind):
    return Bundles(kind)


def claim(process, issue):
    stage = process.services.pipeline.stages[0]
    picked = process.world.read(issue)
    return process.services.bundling.claim(picked, stage, ClaimOptions(process.holder))


def run(process, issue):
    claims = claim(process, issue)
    assert isinstance(claims, tuple), claims
    return process.services.running.run_together(claims, StopSignal())


def work(process, **options):
    process.told = []
    stages = process.services.pipeline.stages[:1]
    options = {"until": Until.DRAINED, "tell": process.told.append, **options}
    worker = process.services.worker(process.holder, stages, **options)
    worker._dice.seed(7)
    return worker.run()


def outcomes(world, issue):
    endings = [card.ending for card in world.cards(issue)]
    return [ending.outcome.value for ending in endings if ending is not None]


# Claiming


def test_whoever_picks_one_claims_all_in_order(world):
    issues = world.bundle()
    world.add(READY)
    world.add(READY, "agent:bundle:other")
    claims = claim(world.process(), issues[2])
    assert [claimed.lease.issue for claimed in claims] == issues
    assert len({claimed.lease.run for claimed in claims}) == 3


@pytest.mark.parametrize("label", ["paused", "do-not-pickup", "parked"])
def test_if_one_may_not_be_had_nothing_is_even_bid_for(world, label):
    first, second, third = world.bundle()
    world.tracker.edit_labels(second, add=[label])
    result = claim(world.process(), third)
    assert isinstance(result, Waits)
    assert result.member.issue.ref == second
    assert [world.cards(issue) for issue in (first, second, third)] == [[], [], []]


def test_why_says_what_the_others_wait_for(world):
    first, second = world.bundle(2)
    world.tracker.edit_labels(second, add=["paused"])
    process = world.process()
    assert process.why(first) == ["BUNDLE_WAITS"]
    assert process.why(second) == ["PAUSED"]
    [reason] = process.services.explaining.explain(first).reasons
    assert f"its bundle waits for {second}" in reason.text
    world.tracker.edit_labels(second, remove=["paused"])
    assert process.why(first) == process.why(second) == []


def test_one_that_somebody_holds_keeps_the_others_waiting(world):
    first, second = world.bundle(2)
    world.process("person").claimed(second)
    process = world.process()
    assert isinstance(claim(process, first), Waits)
    assert process.why(first) == ["BUNDLE_WAITS"]
    assert world.cards(first) == []


def test_one_that_is_lost_on_the_way_gives_the_others_back_last_first(world):
    issues = world.bundle()
    other, process = world.process("other"), world.process()
    given_back, taken = [], []

    def take_the_third(call):
        # Once all were looked at: the bid for the second is under way.
        if call.name == "acquire" and call.args[0].issue == issues[1] and not taken:
            taken.append(other.claimed(issues[2]))

    process.leases.before = take_the_third
    process.leases.after = lambda call: (
        given_back.append(call.args[0].issue) if call.name == "finish" else None
    )
    result = claim(process, issues[0])
    assert isinstance(result, Beaten | Waits), result
    assert given_back == [issues[1], issues[0]]
    assert [outcomes(world, issue) for issue in issues] == [["returned"], ["returned"], []]
    assert [process.services.explaining.explain(one).attempts.failed for one in issues] == [0] * 3


def test_an_outage_on_the_way_gives_back_what_was_won(world):
    issues = world.bundle()
    process = world.process()

    def fail_on_the_third(call):
        if call.name == "acquire" and call.args[0].issue == issues[2]:
            outage("acquire")(call)

    process.leases.before = fail_on_the_third
    with pytest.raises(Exception, match="did not answer"):
        claim(process, issues[0])
    assert [world.labels(issue) for issue in issues] == [{READY, EURO}] * 3


def test_what_was_won_is_renewed_while_the_rest_is_claimed(world):
    """Claiming all takes longer than a lease lasts."""
    issues = world.bundle(6)
    process = world.process()
    process.leases.after = lambda call: (
        world.clock.advance(TTL_S / 3) if call.name == "show" else None
    )
    results = run(process, issues[0])
    assert [result.outcome.value for result in results] == ["advanced"] * 6


def test_those_in_another_stage_are_left_out(world):
    first, second = world.bundle(2)
    there = world.add("stage:review", EURO)
    claims = claim(world.process(), first)
    assert [claimed.lease.issue for claimed in claims] == [first, second]
    assert world.cards(there) == []


def test_a_held_one_whose_label_has_given_way_is_still_in_it(kind):
    world = Bundles(kind, base=AGENT)
    world.pipeline = world.settings.pipeline
    first, second = world.bundle(2)
    world.process("person").claimed(second)
    if kind == "trips":  # only there one label can give way to another in one request
        assert world.first not in world.labels(second)
    result = claim(world.process(), first)
    assert isinstance(result, Waits)
    assert result.member.issue.ref == second


def test_a_bundle_that_is_larger_than_the_limit_says_so():
    world = Bundles(stage={"wip": 2})
    first, *_ = world.bundle(3)
    process = world.process()
    assert isinstance(claim(process, first), Waits)
    [reason] = process.services.explaining.explain(first).reasons
    assert (reason.code, "3 issues" in reason.text) == (ReasonCode.BUNDLE_WAITS, True)
    crowd = Bundles()
    first, *_ = crowd.bundle(MOST + 1)
    assert isinstance(claim(crowd.process(), first), Waits)


def test_a_bundle_as_large_as_the_limit_is_claimed():
    world = Bundles(stage={"wip": 3})
    claims = claim(world.process(), world.bundle(3)[0])
    assert len(claims) == 3


def test_a_worker_that_drains_does_not_wait_for_a_bundle_that_is_too_large():
    world = Bundles(stage={"wip": 2})
    world.bundle(3)
    report = work(world.process())
    assert (report.attempts, report.refused) == (0, 1)


def test_a_bundle_that_has_no_room_as_a_whole_is_not_bid_for_in_part(kind):
    """Or every look would cost its first issue a lease and a comment."""
    world = Bundles(kind, stage={"wip": 3})
    first, second = world.bundle(2)
    person = world.process("person")
    held = [person.hold(world.add(READY)) for _ in range(2)]
    process = world.process()
    result = claim(process, second)
    assert isinstance(result, Waits)
    assert [reason.code for reason in result.reasons] == [ReasonCode.WIP_LIMIT]
    assert [world.cards(issue) for issue in (first, second)] == [[], []]
    assert process.why(first) == process.why(second) == ["WIP_LIMIT"]
    person.services.advancing.give_back(held[0])
    assert process.why(first) == process.why(second) == []
    assert isinstance(claim(process, second), tuple)


def test_of_two_the_loss_of_one_stops_the_work_on_the_other(world):
    process = world.process()
    held = LeaseGroup(tuple(map(process.services.keep, claim(process, world.bundle(2)[0]))))
    first, second = held
    second.give_up("the disk is full")
    assert first.over.is_set()
    assert "the disk is full" in held.lead.condition.why


def test_an_issue_with_two_bundle_labels_is_in_the_first_of_them_whoever_asks(world):
    first = world.add(READY, "agent:bundle:a")
    both = world.add(READY, "agent:bundle:a", "agent:bundle:b")
    last = world.add(READY, "agent:bundle:b")
    [alone] = claim(world.process(), last)
    assert alone.lease.issue == last
    together = claim(world.process("w2"), both)
    assert [claimed.lease.issue for claimed in together] == [first, both]


def test_a_bundle_that_waits_is_looked_at_once_and_not_once_from_each_of_its_issues(world):
    issues = world.bundle(10)
    world.tracker.edit_labels(issues[-1], add=["paused"])
    process, reads = world.process(), []
    process.tracker.before = lambda call: reads.append(1) if call.name == "read" else None
    work(process)
    assert len(reads) <= len(issues)


def test_a_lease_that_is_lost_while_the_rest_is_claimed_is_no_bundle(world):
    issues = world.bundle()
    process = world.process()

    def lose_the_first(call):
        if call.name == "show" and call.args[0].issue == issues[1]:
            world.clock.advance(TTL_S * 2)

    process.leases.before = lose_the_first
    assert isinstance(claim(process, issues[0]), Doubtful)
    process.leases.before = lambda _: None
    world.clock.advance(TTL_S * 3)
    assert isinstance(claim(world.process("w2"), issues[0]), tuple)


def test_a_worker_that_is_told_to_leave_does_not_claim_the_rest_first(world):
    issues = world.bundle(10)
    process = world.process()
    worker = process.services.worker(process.holder, process.services.pipeline.stages[:1])
    process.leases.after = lambda call: worker.leave() if call.name == "show" else None
    worker.run()
    assert process.services.runner.runs == []
    assert outcomes(world, issues[0]) == ["returned"]
    assert [world.cards(issue) for issue in issues[1:]] == [[]] * 9


def test_a_reason_is_told_as_it_is_to_the_one_it_is_about(world):
    first, _ = world.bundle(2)
    waits = Waits(world.read(first), (Reason(ReasonCode.PAUSED, "a person paused it", ""),))
    assert waits.reasons_for(first) == waits.reasons


# Running


def test_one_run_works_them_all_and_all_move_on(world):
    issues = world.bundle()
    process = world.process(after_s=BEAT_S * 4)
    results = run(process, issues[1])
    assert [result.outcome.value for result in results] == ["advanced"] * 3
    assert [world.labels(issue) for issue in issues] == [{"stage:review", EURO}] * 3
    [started] = process.services.runner.runs
    document = json.loads(started.assignment.stdin)
    assert document["issue"] == str(issues[0])
    assert [one["issue"] for one in document["bundle"]] == [str(issue) for issue in issues]
    assert all(one["run"] and one["fence"] for one in document["bundle"])
    renewed = [event.issue for event in world.journal.events if event.kind.value == "renewed"]
    assert set(renewed) == set(issues)
    begun = [event for event in world.journal.events if event.kind.value == "handler_started"]
    assert [event.detail.get("lead", "") for event in begun] == ["", "w1-1", "w1-1"]


def test_the_handler_is_trusted_until_the_first_of_the_leases_ends(world):
    issues = world.bundle()
    process = world.process()
    claims = claim(process, issues[0])
    until = min(claimed.terms.trusted_until(claimed.asked_at) for claimed in claims)
    process.services.running.run_together(claims, StopSignal())
    [started] = process.services.runner.runs
    assert started.trusted[0] == until


def test_a_lease_that_is_lost_stops_the_work_on_all(world):
    """Its renewals fail; the others', which go through, do not help."""
    issues = world.bundle()
    process = world.process(after_s=TTL_S * 3)

    def no_renewal_of_the_second(call):
        if call.name == "renew" and call.args[0].issue == issues[1]:
            outage("renew")(call)

    claims = claim(process, issues[0])
    process.leases.before = no_renewal_of_the_second
    results = process.services.running.run_together(claims, StopSignal())
    [started] = process.services.runner.runs
    assert started.stops
    second = claims[1]
    assert max(started.trusted) <= second.terms.trusted_until(second.asked_at)
    assert [type(result).__name__ for result in results] == [
        "Finished",
        "FinishRefused",
        "Finished",
    ]
    assert outcomes(world, issues[0]) == outcomes(world, issues[2]) == ["returned"]
    assert "advanced" not in outcomes(world, issues[1])


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_ending_that_is_refused(world, lost):
    """The first: then nothing was written, and none moves on. Another: the first has moved on."""
    issues = world.bundle()
    process = world.process()
    claims = claim(process, issues[0])
    person = world.process("person").services.steering
    run = claims[lost].lease.run
    world.places.on_open = lambda _: person.revoke(
        issues[lost], run, by="ada", reason="mine", force=True
    )
    results = process.services.running.run_together(claims, StopSignal())
    assert type(results[lost]).__name__ == "FinishRefused"
    others = [outcomes(world, issue)[-1] for issue in issues if issue != issues[lost]]
    assert others == (["returned"] * 2 if lost == 0 else ["advanced"] * 2)


def test_a_person_who_vetoes_one_stops_the_work_on_all(world):
    issues = world.bundle()
    process = world.process(after_s=TTL_S * 3)
    claims = claim(process, issues[0])
    world.tracker.edit_labels(issues[2], add=["paused"])
    results = process.services.running.run_together(claims, StopSignal())
    assert [result.outcome.value for result in results] == ["returned"] * 3


def test_a_function_in_this_process_checks_all_leases(world):
    issues = world.bundle()
    process = world.process()
    seen = []

    def handler(work):
        seen.append(work)
        world.clock.advance(TTL_S * 2)
        work.check()
        raise AssertionError("the leases are over")

    process.services.handle("ready", handler)
    results = run(process, issues[0])
    assert len(seen[0].leases) == 3
    assert [type(result).__name__ for result in results] == ["FinishRefused"] * 3


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lease_that_is_lost_as_the_handler_ends_moves_none_on(world, lost):
    """Its words come in time for the first, and moving that alone would split the bundle."""
    issues = world.bundle()
    process = world.process()
    process.services.handle("ready", lambda work: work.leases[lost].give_up("the disk is full"))
    run(process, issues[0])
    for issue in issues:
        assert "advanced" not in outcomes(world, issue)


def test_a_failure_counts_for_all(world):
    issues = world.bundle()
    process = world.process(exits=1)
    run(process, issues[0])
    explained = [process.services.explaining.explain(issue) for issue in issues]
    assert [one.attempts.failed for one in explained] == [1, 1, 1]


@pytest.mark.parametrize("flaw", [HandlerUnusable("no base"), WorktreeUnavailable("no fetch")])
def test_without_a_place_all_are_given_back(world, flaw):
    issues = world.bundle()
    world.places.fails.append(flaw)
    process = world.process()
    with pytest.raises(type(flaw)):
        run(process, issues[0])
    assert [outcomes(world, issue) for issue in issues] == [["returned"]] * 3


def test_killed_between_two_endings_the_rest_is_worked_again(world):
    """Each ending stands by itself: what was not ended expires, and is a bundle of what is left."""
    issues = world.bundle()
    doomed = world.process("doomed", reached=crashing(Step.FINISH_PAINTED))
    with pytest.raises(Crash):
        run(doomed, issues[0])
    world.clock.advance(TTL_S * 2)
    process = world.process("next")
    process.sweep()
    assert world.labels(issues[0]) == {"stage:review", EURO}
    results = run(process, issues[2])
    assert [result.outcome.value for result in results] == ["advanced"] * 2
    [started] = process.services.runner.runs
    assert json.loads(started.assignment.stdin)["issue"] == str(issues[1])
    assert all(world.labels(issue) == {"stage:review", EURO} for issue in issues)


# The worker


def test_a_worker_works_bundles_and_single_issues(kind):
    world = Bundles(kind, patience_s=PATIENCE_S)
    euro, price = world.bundle(3), world.bundle(2, "agent:bundle:price")
    single = world.add(READY)
    process = world.process()
    report = work(process)
    assert report.outcomes == {"advanced": 6}
    assert report.claimed == 6
    told = [json.loads(one.assignment.stdin) for one in process.services.runner.runs]
    worked = sorted([one["issue"] for one in doc.get("bundle", [doc])] for doc in told)
    assert worked == sorted([[*map(str, euro)], [*map(str, price)], [str(single)]])


def test_a_draining_worker_does_not_wait_for_a_bundle_that_only_a_person_can_free(kind):
    world = Bundles(kind, patience_s=PATIENCE_S)
    first, second = world.bundle(2)
    world.tracker.edit_labels(second, add=["paused"])
    report = work(world.process())
    assert report.claimed == 0
    assert world.labels(first) == {READY, EURO}


def test_a_worker_waits_for_the_one_that_rests(kind):
    world = Bundles(kind, patience_s=PATIENCE_S)
    second = world.bundle(2)[1]
    world.process("person").fail(second)
    report = work(world.process())
    assert report.outcomes == {"advanced": 2}
    assert world.clock.passed_s >= 30


def test_a_stage_that_does_not_ask_for_bundles_takes_no_notice(kind):
    world = World(kind, patience_s=PATIENCE_S, pipeline=pipeline_of(handler=Command("./x")))
    issues = [world.add(READY, EURO) for _ in range(2)]
    process = world.process()
    process.services.runner = ScriptedRunner(world.clock)
    assert work(process).outcomes == {"advanced": 2}
    assert len(process.services.runner.runs) == len(issues)


def test_if_the_first_is_gone_when_it_is_to_be_ended_none_moves_on(world):
    issues = world.bundle()
    process = world.process()
    claims = claim(process, issues[0])

    def gone(call):
        if call.name == "finish" and call.args[0].issue == issues[0]:
            raise NoSuchIssue(issues[0])

    process.leases.before = gone
    first, *others = process.services.running.run_together(claims, StopSignal())
    assert isinstance(first, NoSuchIssue)
    assert [result.outcome.value for result in others] == ["returned"] * 2
