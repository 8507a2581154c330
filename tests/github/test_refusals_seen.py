"""What GitHub refuses, loses or limits, as users see it: real commands and real workers.

Each once before anything is claimed and once in the middle of a running handler. A refusal of one
issue leaves the others to be worked; one of the repository ends the worker with 9. Once the cause
is lifted, the issue is worked to its end, and advanced once.
"""

from dataclasses import replace

import pytest
from tests.acceptance.harness import until

from dibs_lab.fakehub import Fault, Limits, Permission, Standing, Wrong

from .projects import (
    COLLEAGUE,
    FLEET,
    GATED,
    QUICK,
    REPOSITORY,
    TTL_S,
    HubProject,
    project_on_a_hub,
)

pytestmark = pytest.mark.long

TOKEN = f"{FLEET}-token"
FORBIDDEN = 9


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        yield made
        assert_no_token_anywhere(made)


def assert_no_token_anywhere(project):
    """Neither in what was said nor in what was kept."""
    for path in project.root.rglob("*"):
        if path.is_file() and TOKEN.encode() in path.read_bytes():
            raise AssertionError(f"the token stands in {path.relative_to(project.root)}")


def refused(project, *words, says, code=FORBIDDEN):
    """One command that is refused: its exit code, a line that says why, and no token in it.

    Before it, there may be a line by which the command says that it asks again.
    """
    reply = project.dibs(*words)
    lines = [line for line in reply.err.splitlines() if "; asking again in 5 s" not in line]
    replace(reply, err="\n".join(lines)).told(code, says)
    assert TOKEN not in reply.err


def refused_as(project, *words, says, code=FORBIDDEN):
    """The same for programs: the error's code."""
    reply = project.dibs(*words, "--json")
    assert reply.code == code, (reply.out, reply.err)
    assert says in reply.error["message"]
    assert TOKEN not in reply.out
    return reply.error["code"]


def left(worker, *, says, code=FORBIDDEN):
    """A worker that left by itself."""
    reply = worker.wait().quiet()
    assert reply.code == code, reply.err
    last = [line for line in reply.err.splitlines() if line.startswith("dibs: ")]
    assert len(last) == 1, reply.err
    assert says in last[0]
    assert TOKEN not in reply.err
    return reply


def assert_advanced_once(project, number):
    """Handlers may have run twice: the first one's end could not be written."""
    assert project.lines("double") == []
    assert project.label_names(number) == {"stage:review"}
    endings = [one.ending for one in project.our_cards(number) if one.ending]
    assert [one.outcome for one in endings] == ["advanced"]
    assert len(project.runs_on(number)) in (1, 2)


def assert_untouched(project, *numbers):
    for number in numbers:
        assert project.label_names(number) == {"stage:ready"}
        assert project.comments(number) == []


# Tokens


def die(project, standing):
    project.hub.state.set_standing(TOKEN, standing)


def revive(project):
    project.hub.state.add_token(TOKEN, FLEET)


@pytest.mark.parametrize("standing", [Standing.EXPIRED, Standing.REVOKED])
def test_a_token_that_no_longer_works(project, standing):
    project.begin_with(QUICK)
    numbers = project.backlog(2)
    die(project, standing)
    for words in (("list",), ("why", "2"), ("claim", "2"), ("sweep",)):
        refused(project, *words, says="revoked or expired")
    assert refused_as(project, "take", "2", says="revoked or expired") == "NOT_PERMITTED"
    left(project.start("work", "work", "--drain"), says="revoked or expired")
    doctor = project.dibs("doctor").quiet()
    assert doctor.code == 1
    assert "revoked or expired" in doctor.out
    assert_untouched(project, *numbers)
    revive(project)
    assert project.work().code == 0
    project.assert_worked_once(*numbers)


@pytest.mark.parametrize("standing", [Standing.EXPIRED, Standing.REVOKED])
def test_a_token_that_dies_in_the_middle_of_the_work(project, standing):
    project.begin_with(GATED)
    (number,) = project.backlog(1)
    worker = project.holding(number)
    die(project, standing)
    project.let_go()
    reply = left(worker, says="revoked or expired")
    assert f"#{number} was not finished" in reply.err
    revive(project)
    project.pass_time(TTL_S)
    assert project.work().code == 0
    assert_advanced_once(project, number)


def test_an_ending_that_did_not_get_through_is_named_and_shown_by_the_exit_code(project):
    project.begin_with(GATED)
    (number,) = project.backlog(1)
    worker = project.holding(number)
    down = Fault(Wrong.ERROR_BEFORE, status=503, kind="PATCH|mutation", login=FLEET)
    project.hub.faults.add(down)
    project.let_go()
    until(lambda: "is not recorded" in worker.err, "it gives up", within_s=60)
    (run,) = project.runs_on(number)
    project.hub.faults.add(Fault(Wrong.ERROR_BEFORE, status=503, login=FLEET))  # and claims no more
    worker.process.terminate()
    reply = worker.wait().quiet()
    assert reply.code == 1, reply.err
    assert f"#{number} was not finished" in reply.err
    assert f"dibs runs --output {run}" in reply.err
    project.hub.faults.clear()


LESSER = {
    "classic without the scope": ({"scopes": frozenset({"read:org"})}, "scopes that it has"),
    "fine-grained without issues": (
        {"scopes": None, "lacks": frozenset({"issues:write"})},
        "may not do this",
    ),
    "reads only": ({"scopes": None, "read_only": True}, "may not do this"),
}


@pytest.mark.parametrize(("token", "says"), LESSER.values(), ids=LESSER)
def test_a_token_that_may_not_write(project, token, says):
    project.begin_with(QUICK)
    numbers = project.backlog(2)
    project.hub.state.add_token(TOKEN, FLEET, **token)
    assert project.dibs("list").code == 0, "it may read"
    for words in (("claim", str(numbers[0])), ("add", "one more")):
        refused(project, *words, says=says)
    assert refused_as(project, "take", str(numbers[0]), says=says) == "NOT_PERMITTED"
    left(project.start("work", "work", "--drain"), says=says)
    assert_untouched(project, *numbers)
    revive(project)
    assert project.work().code == 0
    project.assert_worked_once(*numbers)


@pytest.mark.parametrize(("token", "says"), LESSER.values(), ids=LESSER)
def test_a_token_that_may_write_no_more_in_the_middle_of_the_work(project, token, says):
    project.begin_with(GATED)
    number, other = project.backlog(2)
    worker = project.holding(number)
    project.hub.state.add_token(TOKEN, FLEET, **token)
    project.let_go()
    reply = worker.wait().quiet()
    assert reply.code == FORBIDDEN, reply.err
    assert f"#{number} was not finished" in reply.err
    revive(project)
    project.pass_time(TTL_S)
    assert project.work().code == 0
    assert_advanced_once(project, number)
    project.assert_worked_once(other)


# The repository


def vanish(project):
    """It was made private, and this account is no longer among those who see it."""
    project.hub.state.change_repository(REPOSITORY, private=True)
    project.hub.state.grant(REPOSITORY, FLEET, Permission.NONE)


def reappear(project):
    project.hub.state.grant(REPOSITORY, FLEET, Permission.WRITE)


def archive(project):
    project.hub.state.archive(REPOSITORY)


def unarchive(project):
    project.hub.state.archive(REPOSITORY, archived=False)


FATES = pytest.mark.parametrize(
    ("strike", "lift", "says"),
    [(archive, unarchive, "archived"), (vanish, reappear, "may not see it")],
    ids=["archived", "vanished"],
)


@FATES
def test_a_repository_that_takes_nothing(project, strike, lift, says):
    project.begin_with(QUICK)
    numbers = project.backlog(2)
    strike(project)
    first = str(numbers[0])
    for words in (("claim", first), ("add", "one more"), ("pause", first, "--reason", "x")):
        refused(project, *words, says=says)
    assert refused_as(project, "take", first, says=says) == "NOT_PERMITTED"
    left(project.start("work", "work"), says=says)
    doctor = project.dibs("doctor").quiet()
    assert doctor.code == 1
    assert says in doctor.out
    assert_untouched(project, *numbers)
    lift(project)
    assert project.work().code == 0
    project.assert_worked_once(*numbers)


@FATES
def test_a_repository_that_takes_nothing_any_more_in_the_middle_of_the_work(
    project, strike, lift, says
):
    project.begin_with(GATED)
    number, other = project.backlog(2)
    worker = project.holding(number)
    strike(project)
    project.let_go()
    reply = left(worker, says=says)
    assert f"#{number} was not finished" in reply.err
    lift(project)
    project.pass_time(TTL_S)
    assert project.work().code == 0
    assert_advanced_once(project, number)
    project.assert_worked_once(other)


def test_a_renamed_repository_is_worked_on_under_the_name_in_the_settings(project):
    project.begin_with(GATED)
    before, during, after = project.backlog(3)
    project.let_go(before)
    worker = project.holding(before)
    project.hub.state.rename(REPOSITORY, "acme/store")
    until(lambda: project.runs_on(during, "began"), "the next one is claimed")
    project.let_go()
    until(lambda: project.runs_on(after), "all are worked")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(before, during, after)
    told = project.dibs("list", "--all").quiet()
    assert told.code == 0
    assert f"{REPOSITORY}#{after}" in told.out
    doctor = project.dibs("doctor").quiet()
    assert "is called acme/store now" in doctor.out + doctor.err


# One issue


def test_a_locked_conversation_is_nothing_to_those_who_may_write(project):
    project.begin_with(GATED)
    number, other = project.backlog(2)
    project.acting().lock_issue(project.issue(number))
    worker = project.holding(number)
    project.let_go(number)
    until(lambda: project.runs_on(other, "began"), "the next one is claimed")
    project.acting().lock_issue(project.issue(other))
    project.let_go()
    until(lambda: project.label_names(other) == {"stage:review"}, "it is advanced, too")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number, other)


def may_not_write(project):
    project.hub.state.grant(REPOSITORY, FLEET, Permission.TRIAGE)


def trust_the_fleet(project):
    """By name, as for an App's bot, which GitHub calls nobody in particular."""
    settings = project.root / "dibs.toml"
    text = settings.read_text("utf-8").replace("[github]", f'[github]\ntrusted = ["{FLEET}"]')
    settings.write_text(text, "utf-8")


def test_an_account_whose_cards_would_not_count_holds_nothing(project):
    project.begin_with(QUICK)
    (number,) = project.backlog(1)
    may_not_write(project)
    refused(project, "claim", str(number), says="counts for nothing")
    left(project.start("work", "work"), says="counts for nothing")
    assert project.label_names(number) == {"stage:ready"}
    project.hub.state.grant(REPOSITORY, FLEET, Permission.WRITE)
    project.pass_time(TTL_S)  # what it said meanwhile are a writer's bids now
    assert project.work().code == 0
    project.assert_worked_once(number)


def test_a_locked_conversation_is_left_alone_by_those_who_may_not_write(project):
    project.begin_with(GATED)
    trust_the_fleet(project)
    locked, other = project.backlog(2)
    may_not_write(project)
    project.acting().lock_issue(project.issue(locked))
    says = f"the conversation of {REPOSITORY}#{locked} is locked"
    refused(project, "claim", str(locked), says=says)
    assert refused_as(project, "take", str(locked), says=says) == "ISSUE_LOCKED"
    worker = project.holding(other)
    project.acting().lock_issue(project.issue(other))
    project.let_go()
    until(lambda: project.label_names(other) == {"stage:review"}, "what was held is ended")
    worker.process.terminate()
    reply = worker.wait().quiet()
    assert reply.code == 0
    assert f"#{locked} is left alone: {says}" in reply.err
    assert_untouched(project, locked)
    project.acting().unlock_issue(project.issue(locked))
    assert project.work().code == 0
    project.assert_worked_once(locked, other)


def test_labels_that_somebody_deleted_are_made_again(project):
    project.begin_with(GATED)
    number, other = project.backlog(2)

    def delete(*names):
        state = project.hub.state
        repository = state.named(REPOSITORY).id
        for name in names:
            project.acting().delete_label(state.primary().label_named(repository, name))

    delete("claimed", "stage:review")
    worker = project.holding(number)
    assert project.label_names(number) == {"stage:ready", "claimed"}
    delete("claimed", "stage:ready")
    assert project.label_names(other) == set(), "the other has no stage any more"
    project.let_go()
    until(lambda: project.label_names(number) == {"stage:review"}, "it is advanced")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number)
    assert project.dibs("claim", str(other)).code == 3, "no stage: nothing to do there"
    project.acting().add_labels(project.issue(other), ["stage:ready"])
    assert project.work().code == 0
    project.assert_worked_once(other)


def transfer(project, number):
    state = project.hub.state
    project.acting().transfer_issue(project.issue(number), state.named("acme/warehouse"))


def delete(project, number):
    project.acting().delete_issue(project.issue(number))


def convert(project, number):
    project.acting().convert_issue(project.issue(number))


GONE = pytest.mark.parametrize(
    ("strike", "says", "code"),
    [
        (transfer, "was transferred to", "ISSUE_MOVED"),
        (delete, "has no issue", "NO_SUCH_ISSUE"),
        (convert, "has no issue", "NO_SUCH_ISSUE"),
    ],
    ids=["transferred", "deleted", "converted"],
)


@pytest.fixture
def warehouse(project, tmp_path):
    """Another repository with a fleet of its own."""
    hub = project.hub
    hub.repository("acme/warehouse")
    for login in (FLEET, COLLEAGUE):
        hub.state.grant("acme/warehouse", login, Permission.WRITE)
    other = HubProject(tmp_path / "warehouse", hub, "acme/warehouse")
    yield other
    other.end()


@GONE
def test_an_issue_that_is_gone(project, warehouse, strike, says, code):
    project.begin_with(QUICK)
    warehouse.begin_with(QUICK)
    gone, other = project.backlog(2)
    strike(project, gone)
    for words in (("claim", str(gone)), ("why", str(gone))):
        refused(project, *words, says=says, code=1)
    assert refused_as(project, "take", str(gone), says=says, code=1) == code
    assert project.work().code == 0
    project.assert_worked_once(other)
    if strike is transfer:
        assert warehouse.work().code == 0
        warehouse.assert_worked_once(warehouse.numbers()[-1])


@GONE
def test_an_issue_that_goes_in_the_middle_of_the_work(project, warehouse, strike, says, code):
    project.begin_with(GATED)
    warehouse.begin_with(QUICK)
    gone, other = project.backlog(2)
    worker = project.holding(gone)
    strike(project, gone)
    until(lambda: project.runs_on(other, "began"), "the worker goes on with the next one")
    assert worker.running
    project.let_go()
    until(lambda: project.label_names(other) == {"stage:review"}, "which is worked")
    worker.process.terminate()
    reply = worker.wait().quiet()
    assert reply.code == 0
    assert project.runs_on(gone) == [], "its handler was stopped"
    assert says in reply.err
    project.assert_worked_once(other)
    if strike is transfer:
        project.pass_time(TTL_S)
        assert warehouse.work().code == 0
        warehouse.assert_worked_once(warehouse.numbers()[-1])


# Limits


def limit(project, **limits):
    meter = project.hub.world.meter
    meter.limits = replace(Limits.off(), **limits)
    meter.forget()


def spend(project, resource):
    """The hour's budget, all of it."""
    limit(project, rest_per_hour=5_000, graphql_per_hour=5_000)
    state = project.hub.state
    project.hub.world.meter.spend(state.viewer(TOKEN), 5_000, resource)


def beats_on(project, number, count=1):
    """The lease is renewed so often from here on, by the same run."""
    (card,) = project.our_cards(number)
    until(lambda: project.our_cards(number)[0].beats >= card.beats + count, "renewals")
    assert project.our_cards(number)[0].run == card.run


def ended(project, worker, number):
    project.let_go(number)
    until(lambda: project.label_names(number) == {"stage:review"}, "it is advanced")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number)


def as_another_machine(project):
    """What this one knows of the limits is no longer true, since the test has lifted them."""
    project.also = {"DIBS_STATE": str(project.root / "another")}


def test_a_lease_outlives_the_hour_s_budget_of_rest(project):
    project.begin_with(GATED)
    number, other = project.backlog(2)
    worker = project.holding(number)
    spend(project, "core")
    with project.counted() as counted:
        beats_on(project, number)
    assert counted["graphql mutation Trip"] >= 1
    refused(project, "claim", str(other), says="REST", code=7)
    assert refused_as(project, "add", "one more", says="REST", code=7) == "RATE_LIMITED"
    ended(project, worker, number)
    assert_untouched(project, other)
    limit(project)
    as_another_machine(project)
    project.let_go()
    assert project.work().code == 0
    project.assert_worked_once(other)


def test_a_lease_outlives_the_hour_s_budget_of_graphql(project):
    """Over REST. Nothing new is begun: REST does not tell of pull requests."""
    project.begin_with(GATED)
    number, other = project.backlog(2)
    worker = project.holding(number)
    spend(project, "graphql")
    with project.counted() as counted:
        beats_on(project, number)
    assert counted["PATCH /repos/{owner}/{repo}/issues/comments/{comment_id}"] >= 1
    refused(project, "claim", str(other), says="GraphQL", code=7)
    assert refused_as(project, "work", "--once", says="GraphQL", code=7) == "RATE_LIMITED"
    ended(project, worker, number)
    assert_untouched(project, other)
    limit(project)
    as_another_machine(project)
    project.let_go()
    assert project.work().code == 0
    project.assert_worked_once(other)


@pytest.mark.parametrize("status", [403, 429])
def test_a_lease_outlives_a_rest_that_github_asks_for(project, status):
    project.begin_with(GATED)
    number, other = project.backlog(2)
    worker = project.holding(number)
    (card,) = project.our_cards(number)
    project.hub.counts.reset()
    limit(project, concurrent=0, secondary_status=status)
    assert refused_as(project, "claim", str(other), says="", code=7) == "RATE_LIMITED"
    until(lambda: project.hub.counts.told()["by_status"].get(str(status), 0) >= 2, "it is refused")
    limit(project)
    beats_on(project, number)
    assert project.our_cards(number)[0].run == card.run
    ended(project, worker, number)


# The other exit codes


def test_a_proven_no_a_loss_and_a_doubt_have_codes_of_their_own(project):
    project.begin_with(QUICK)
    (number,) = project.backlog(1)
    ref = str(number)
    project.hub.faults.add(Fault(Wrong.SHORT, kind="comments|query Read", login=FLEET))
    assert project.dibs("claim", ref).code == 8, "a list that lacks our own bid proves nothing"
    project.hub.faults.clear()
    claimed = project.dibs("claim", ref, "--json").data
    assert project.dibs("claim", ref).code == 4, "held"
    assert project.dibs("take", ref).code == 4
    assert project.dibs("heartbeat", ref, "--run", claimed["run"]).code == 0
    project.pass_time(TTL_S)
    assert project.dibs("heartbeat", ref, "--run", claimed["run"]).code == 5, "lost"
    assert project.dibs("release", ref, "--run", claimed["run"]).code == 5
    assert project.dibs("pause", ref, "--reason", "wait").code == 0
    assert project.dibs("claim", ref).code == 6, "shut"
    assert project.dibs("work", "--once").code == 0, "its labels are put right"
    assert project.dibs("work", "--once").code == 3, "nothing"
    assert project.dibs("claim", "not a number").code == 2
    project.hub.faults.add(Fault(Wrong.ERROR_BEFORE, status=503, login=FLEET))
    assert refused_as(project, "claim", ref, says="503", code=1) == "UNAVAILABLE"
    project.hub.faults.clear()
    assert project.dibs("resume", ref).code == 0
    assert project.work().code == 0
    project.assert_worked_once(number)
