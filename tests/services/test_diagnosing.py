"""What the doctor finds, on adapters in memory: every finding provoked, and nothing written."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.eligibility import PauseScope
from dibs.core.errors import HandlerUnusable, RateLimited, Unavailable
from dibs.core.granter import Appointed, Moving
from dibs.core.ids import Fence, later
from dibs.core.pipeline import Command, Env, OneWorktree, PythonCallable, SignedGate
from dibs.core.signing import Strictness, parse_keyring
from dibs.ports.tracker import Allowance, BudgetReport, Shut, Standpoint, TrackerTraits
from dibs.services.diagnosing import (
    Diagnosing,
    Finding,
    Level,
    about_environment,
    about_gates,
    about_handlers,
    about_places,
    about_signing,
    about_terms,
)

from .costly import CostlyWorld
from .places import NotedPlaces
from .test_signed_marks import keyed
from .world import World, outage, pipeline_of

SECRET = "a secret that is long enough"
OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL


def examined(process, **changes):
    subject = process.services.diagnosing._of
    return list(Diagnosing(replace(subject, **changes)).examine())


def found(process, check, **changes):
    return [(one.level, one.text) for one in examined(process, **changes) if one.check == check]


def levels(findings):
    return {finding.level for finding in findings}


def test_a_healthy_backlog_has_nothing_but_good_findings_and_nothing_was_written(world):
    world.add()
    process = world.process()
    findings = examined(process)
    assert levels(findings) == {OK}
    assert process.tracker.written == []
    checks = {finding.check for finding in findings}
    assert checks == {"tracker", "terms", "account", "trust", "labels", "leases", "granter"}


def test_a_tracker_that_does_not_answer_is_asked_once(world):
    process = world.process()
    process.tracker.before = outage("find", "read", "tally")
    findings = examined(process)
    assert [(one.check, one.level) for one in findings if one.level is FAIL] == [("tracker", FAIL)]
    assert [call.name for call in process.tracker.calls] == ["find"]


def test_a_limit_is_a_finding_too(world):
    process = world.process()

    def limited(_):
        raise RateLimited("slow down", retry_after_s=60)

    process.tracker.before = limited
    assert found(process, "tracker") == [(FAIL, "slow down")]


def test_a_store_that_does_not_answer_fails_alone():
    world = World("store")
    process = world.process()
    process.store.before = outage("live")
    findings = examined(process)
    assert [one.check for one in findings if one.level is FAIL] == ["leases"]
    assert "granter" in {one.check for one in findings}


def test_an_issue_that_hides_a_comment_is_named_because_nobody_will_claim_it():
    world = CostlyWorld()
    process = world.process(handlers={"ready": print})
    assert found(process, "comments") == []
    odd, whole = world.add(), world.add()
    world.tracker.comment(whole, "all is said")
    assert found(process, "comments") == [(OK, "all comments of the 2 foremost issues can be read")]

    def hide(call, answer):
        if call.name != "find_snapshots" and not (call.name == "read" and call.args[0] == odd):
            return answer
        if call.name == "read":
            return replace(answer, issue=replace(answer.issue, comment_count=2))
        pages = [replace(page, snapshots=tuple(map(hidden, page.snapshots))) for page in answer]
        return tuple(pages)

    def hidden(snapshot):
        odd_one = snapshot.issue.ref == odd
        return (
            replace(snapshot, issue=replace(snapshot.issue, comment_count=2))
            if odd_one
            else snapshot
        )

    process.tracker.change = hide
    (said,) = found(process, "comments")
    assert said == (WARN, f"only 0 of 2 comments of {odd} can be read, so no worker claims it")


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_a_store_that_answers_and_does_not_grant_fails(call):
    process = World("store").process()
    process.store.before = outage(call)
    assert found(process, "leases") == [(FAIL, f"{call} did not answer")]
    process.store.before = lambda _: None
    [(level, text)] = found(process, "leases")
    assert (level, "a probe lease was granted and given back" in text) == (OK, True)
    assert process.store.live() == ()


def test_a_probe_that_another_doctor_holds_is_waited_for():
    world = World("store")
    process = world.process()
    process.store.before = outage("release")
    assert found(process, "leases")[0][0] is FAIL
    started = world.clock.passed_s
    assert found(world.process("second"), "leases")[0][0] is OK
    assert world.clock.passed_s > started


def test_a_store_that_cannot_be_opened_is_a_finding_in_its_place(world):
    unopened = Finding("leases", FAIL, "it is not there")
    findings = list(world.process().services.diagnosing.examine(unopened))
    assert [one for one in findings if one.level is FAIL] == [unopened]
    assert {"tracker", "labels"} <= {one.check for one in findings}


@pytest.mark.parametrize(("ahead_s", "told"), [(90, "1m 30s ahead of"), (-5, "5s behind")])
def test_the_servers_clock_is_told_and_judged_by_nobody(world, ahead_s, told):
    local = later(world.clock.server_now(), timedelta(seconds=-ahead_s))
    [(level, text)] = found(world.process(), "tracker", local_now=lambda: local)
    assert (level, told in text) == (OK, True)


class Accounts(MemoryTracker):
    """A tracker with accounts, permissions and labels that want making."""

    name: str | None = "fleet-bot"
    stands = Standpoint("authors with write access", "write", may_write=True, ours_count=True)
    missing: tuple[str, ...] = ()
    misspelt: Mapping[str, str] = {}

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traits = replace(self.traits, accounts=True)

    def login(self):
        return self.name

    def standpoint(self):
        return self.stands

    def missing_labels(self, labels):
        return self.missing

    def misspelt_labels(self, labels):
        return self.misspelt


@pytest.fixture
def hub(world):
    world.tracker = Accounts(world.clock.server_now)
    return world


def test_who_we_are_and_who_is_believed_is_told(hub):
    findings = [*found(hub.process(), "account"), *found(hub.process(), "trust")]
    assert set(findings) == {
        (OK, "we are fleet-bot"),
        (OK, "our permission: write"),
        (OK, "trusted: authors with write access"),
    }


def test_an_account_that_nobody_can_name_is_a_warning(hub):
    hub.tracker.name = None
    assert found(hub.process(), "account")[0][0] is WARN


def test_without_write_access_nothing_would_work(hub):
    hub.tracker.stands = Standpoint("authors with write access", "read", may_write=False)
    assert (FAIL, "we may not write here (read)") in found(hub.process(), "account")


def test_cards_that_nobody_would_believe_are_a_failure(hub):
    hub.tracker.stands = replace(hub.tracker.stands, ours_count=False)
    [believed, ours] = found(hub.process(), "trust")
    assert (believed[0], ours[0]) == (OK, FAIL)


def test_readers_that_may_believe_different_people_are_a_warning(hub):
    hub.tracker.stands = replace(hub.tracker.stands, doubt="it depends on who asks")
    assert (WARN, "it depends on who asks") in found(hub.process(), "trust")


def test_labels_that_are_not_there_are_named(hub):
    hub.tracker.missing = ("stage:ready", "claimed")
    [(level, text)] = found(hub.process(), "labels")
    assert level is WARN
    assert "stage:ready, claimed" in text


def test_labels_that_the_tracker_spells_in_another_case_are_named(hub):
    hub.tracker.misspelt = {"claimed": "Claimed"}
    assert [level for level, _ in found(hub.process(), "labels")] == [OK, WARN]
    assert "'claimed' is 'Claimed'" in found(hub.process(), "labels")[1][1]


def test_a_stage_that_cannot_be_undone_on_a_weak_store_is_a_failure():
    world = World("comments", pipeline=pipeline_of(irreversible=True))
    assert [level for level, _ in found(world.process(), "leases")] == [OK, FAIL]
    strong = World("store", pipeline=pipeline_of(irreversible=True))
    assert [level for level, _ in found(strong.process(), "leases")] == [OK]


@pytest.mark.parametrize(
    ("granter", "level", "words"),
    [
        (None, OK, "nothing was granted"),
        (Appointed("redis://elsewhere"), FAIL, "redis://elsewhere"),
        (Moving("auto", "redis://elsewhere"), FAIL, "are moving from"),
    ],
)
def test_who_grants_is_told_and_whether_that_is_us(world, granter, level, words):
    if granter is not None:
        world.granters.appoint(granter, instead_of=None)
    [(seen, text)] = found(world.process(), "granter")
    assert (seen, words in text) == (level, True)


def test_our_own_appointment_is_told_with_its_floor(world):
    process = world.process()
    name = process.services.granting.store
    world.granters.appoint(Appointed(name, Fence(70)), instead_of=None)
    assert found(process, "granter") == [(OK, f"leases are granted by {name}, above fence 70")]


def test_a_pause_is_mentioned(world):
    world.pauses.pause(PauseScope.FLEET, repo="", reason="release day", by="ann")
    [(level, text)] = found(world.process(), "pauses")
    assert level is WARN
    assert "ann" in text
    assert "release day" in text


def report(now, remaining, **changes):
    allowance = Allowance("graphql", 5000, 5000 - remaining, remaining, now)
    return BudgetReport("api.example", now, (allowance,), (), {}, None, shared=True, **changes)


@pytest.mark.parametrize(("remaining", "level"), [(4000, OK), (400, WARN)])
def test_what_is_left_of_the_budget_is_told(world, remaining, level):
    budgets = (report(world.clock.server_now(), remaining),)
    [(seen, text)] = found(world.process(), "budget", budgets=lambda: budgets)
    assert (seen, f"{remaining} of 5000" in text) == (level, True)


def test_a_server_that_is_left_alone_or_not_heard_is_a_warning(world):
    now = world.clock.server_now()
    shut = replace(report(now, 4000, trouble=Unavailable("no answer")), shut=Shut("it said so", 30))
    told = found(world.process(), "budget", budgets=lambda: (shut,))
    assert [level for level, _ in told] == [WARN, WARN, OK]


class Damaged(MemoryTracker):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traits = replace(self.traits, checks_itself=True)

    def flaws(self):
        return ("row 3 is missing",)


def test_damage_is_a_failure(world):
    world.tracker = Damaged(world.clock.server_now)
    assert found(world.process(), "storage") == [(FAIL, "row 3 is missing")]


# Signing


def test_a_key_is_told_by_its_id_and_never_shown():
    ring = parse_keyring(f"new:{SECRET},old:{SECRET}er")
    for strictness in Strictness:
        told = list(about_signing(replace(ring, strictness=strictness)))
        assert levels(told) == {OK if strictness is Strictness.STRICT else WARN}
        assert all("new" in one.text and "old" in one.text for one in told)
        assert all(SECRET not in f"{one}" for one in told)
    assert [one.level for one in about_signing(None)] == [OK]


def test_a_signed_gate_needs_a_key_and_a_handler_behind_it():
    ring = parse_keyring(f"one:{SECRET}")
    ready, review, done = pipeline_of().stages
    bare = replace(pipeline_of(), stages=(ready, replace(review, gate=SignedGate("ok")), done))
    worked = replace(review, gate=SignedGate("ok"), handler=Command("true"))
    handled = replace(pipeline_of(), stages=(ready, worked, done))
    assert list(about_gates(pipeline_of(), None)) == []
    assert list(about_gates(handled, ring)) == []
    assert [one.level for one in about_gates(handled, None)] == [FAIL]
    assert [one.level for one in about_gates(bare, ring)] == [WARN]


def test_while_a_key_is_handed_out_it_says_what_is_held_without_it():
    world = World("comments")
    ring = parse_keyring(f"one:{SECRET}", Strictness.LENIENT)
    lenient = keyed(world, ring)
    issue = world.add()
    assert found(lenient.process(), "signing", keyring=ring)[0][0] is OK
    claimed = world.process("keyless").claimed(issue)
    [(level, text)] = found(lenient.process(), "signing", keyring=ring)
    assert (level, str(issue) in text) == (WARN, True)
    lenient.process("keyed").services.leases.renew(claimed.lease)
    assert found(lenient.process(), "signing", keyring=ring)[0][0] is OK


# Settings that do not go together


TRAITS = TrackerTraits("hub", settle=timedelta(seconds=2), grain=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("settle_s", "traits", "level", "words"),
    [
        (None, TRAITS, OK, "settle 2s, timestamps in steps of 1s"),
        (None, None, OK, "settle unknown here"),
        (3, TRAITS, OK, "settle 3s"),
        (1, TRAITS, WARN, "below the tracker's own 2s"),
        (20, TRAITS, WARN, "short for settle 20s"),
    ],
)
def test_settle_and_ttl_are_weighed_against_the_tracker(settle_s, traits, level, words):
    settle = None if settle_s is None else timedelta(seconds=settle_s)
    [finding] = about_terms(pipeline_of(), settle, traits)
    assert (finding.level, words in finding.text) == (level, True), finding


class Runner:
    def check(self, handler, **_):
        if isinstance(handler, Command):
            raise HandlerUnusable(f"{handler.line} is not there")


def test_repositories_that_worktrees_need_are_looked_for_only_if_a_stage_wants_them():
    def about(places, **stage):
        return list(about_places(pipeline_of(**stage), lambda: places, ("",)))

    wanted = OneWorktree("../shop")
    assert about(None) == []
    assert levels(about(NotedPlaces(), worktree=wanted)) == {OK}
    [broken] = about(NotedPlaces(unusable=HandlerUnusable("no ../shop")), worktree=wanted)
    assert (broken.level, "no ../shop" in broken.text) == (FAIL, True)


def test_handlers_that_cannot_start_are_named_before_they_cost_anything():
    nothing = list(about_handlers(pipeline_of(), Runner()))
    usable = list(about_handlers(pipeline_of(handler=PythonCallable("a:b")), Runner()))
    broken = list(about_handlers(pipeline_of(handler=Command("./gone")), Runner()))
    assert [levels(one) for one in (nothing, usable, broken)] == [{WARN}, {OK}, {FAIL}]
    assert "./gone" in broken[0].text


def test_the_names_that_a_handler_would_see_are_listed_and_never_their_values():
    changes = {"env": Env.INHERIT, "pass_env": ("MODEL_KEY",), "run_as": "agent"}
    pipeline = pipeline_of(handler=Command("true"), **changes)
    variables = {"PATH": "value", "MODEL_KEY": "value", "GITHUB_TOKEN": "value"}
    seen = list(about_environment(pipeline, variables, lambda _: True))
    name = f"stage {pipeline.stages[0].name!r}"
    assert [(one.level, one.text) for one in seen] == [
        (OK, f"{name}, as the user agent: a handler sees MODEL_KEY, PATH"),
        (WARN, f"{name}: these look like credentials: MODEL_KEY"),
    ]
    refused = list(about_environment(pipeline, variables, lambda _: False))
    assert [(one.level, one.text) for one in refused] == [
        (OK, f"{name}, as the user agent: a handler sees PATH"),
    ]
