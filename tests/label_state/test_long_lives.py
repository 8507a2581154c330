"""Claims in processes that live long, fork, stop, or name themselves at length."""

import os
import threading

import pytest

import dibs.label_state as ls
from dibs.core.errors import LeaseLost, Misuse, Unavailable
from dibs.label_state import backlogs
from dibs.label_state.firings import LookingFirst, held
from dibs.services.ending import Advancing

from .old_runner import OldRunner, words
from .test_claims import LUCIUS, another_process
from .test_program import label_state

WORKFLOW = "acme/shop/.github/workflows/lucius.yml@refs/heads/main-98765432"
LONG = {"codename": "lucius", "firing_id": f"{WORKFLOW}10-1"}
ALIKE = {"codename": "lucius", "firing_id": f"{WORKFLOW}99-1"}


# Who is called alike


@pytest.mark.parametrize("other_process", [False, True])
def test_a_firing_whose_long_id_only_ends_otherwise_releases_nothing(hub, other_process):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LONG)
    if other_process:
        another_process()
    assert ls.release_issue("shop", number, **ALIKE).reason == "LEASE_LOST"
    assert hub.labels(number) == {"agent:in-flight"}
    assert ls.release_issue("shop", number, **LONG)


def test_a_long_id_that_claims_again_is_another_key_to_their_readers(hub):
    number = hub.issue("agent:implement")
    for _ in range(2):
        assert ls.claim_issue("shop", number, **LONG)
        another_process()
        assert ls.release_issue("shop", number, **LONG)
    said = [said for kind, said in filter(None, map(words, hub.bodies(number))) if kind == "claim"]
    assert len({one["firing_id"] for one in said}) == 2


# A process that lives on


@pytest.fixture
def without_an_end(monkeypatch):
    def end(*_):
        raise Unavailable("the tracker is away")

    monkeypatch.setattr(Advancing, "_finish", end)
    yield
    monkeypatch.undo()


def renewing():
    return [one.name for one in threading.enumerate() if one.name.startswith("dibs-keeper")]


@pytest.mark.usefixtures("without_an_end")
def test_a_claim_whose_release_failed_is_renewed_no_more(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    tries, soon = iter(range(6000)), threading.Event()
    while not renewing() and next(tries, None) is not None:
        soon.wait(0.01)  # a lease is renewed by a thread of its own once it is a second old
    assert renewing()
    assert ls.release_issue("shop", number, **LUCIUS).reason == Unavailable.code
    assert not renewing(), "callers do not look at the answer: it must not be held for ever"


def test_a_release_that_failed_may_be_tried_again(hub, monkeypatch):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    with monkeypatch.context() as broken:
        broken.setattr(Advancing, "_finish", lambda *_: (_ for _ in ()).throw(Unavailable("away")))
        assert not ls.release_issue("shop", number, **LUCIUS)
    assert ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open")
    assert hub.labels(number) == {"agent:pr-open"}


def test_who_is_told_to_stop_may_release_there_and_then(hub):
    number = hub.issue("agent:implement")
    won, answers, told = ls.claim_issue("shop", number, **LUCIUS), [], threading.Event()

    def stop(_):
        answers.append(ls.release_issue("shop", number, **LUCIUS))
        told.set()

    won.lease.on_lost(stop)
    hub.edit(number, add=["do-not-pickup"])
    threading.Thread(target=won.lease._keeper.renew_now, daemon=True).start()
    assert told.wait(60), "it waits for itself"
    assert answers == [True]
    assert hub.labels(number) == {"agent:implement", "do-not-pickup"}


# A process that forks


def in_a_child(work):
    """Its exit code: 0 if the work says yes."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_has_connections_of_its_own_and_releases_by_the_key(hub):
    number = hub.issue("agent:implement")
    assert ls.claim_issue("shop", number, **LUCIUS)
    before = hub.services
    assert held

    def work():
        alone = not held and hub.services is not before
        return alone and ls.release_issue("shop", number, **LUCIUS, transition_to="agent:pr-open")

    assert in_a_child(work) == 0
    assert hub.labels(number) == {"agent:pr-open"}
    assert hub.services is before


def test_what_another_process_released_is_not_taken_back_by_a_renewal(hub):
    number = hub.issue("agent:implement")
    won = ls.claim_issue("shop", number, **LUCIUS)
    onward = {**LUCIUS, "transition_to": "agent:pr-open"}
    assert in_a_child(lambda: ls.release_issue("shop", number, **onward)) == 0
    won.lease._keeper.renew_now()
    with pytest.raises(LeaseLost, match="elsewhere"):
        won.lease.check()
    assert not ls.release_issue("shop", number, **LUCIUS, outcome="failure")
    assert hub.labels(number) == {"agent:pr-open"}
    (_, card), (_, release) = filter(None, map(words, hub.bodies(number)))
    assert (card["state"], card["next"], release["outcome"]) == ("released", "pr-open", "success")


def test_a_renewal_that_wrote_over_a_release_is_the_last_one(hub, monkeypatch):
    """It may land between the look and the write; the release's own comment is still there."""
    number = hub.issue("agent:implement")
    won = ls.claim_issue("shop", number, **LUCIUS)
    assert in_a_child(lambda: ls.release_issue("shop", number, **LUCIUS)) == 0
    with monkeypatch.context() as blind:
        blind.setattr(LookingFirst, "_released", lambda *_: False)
        won.lease._keeper.renew_now()
    assert not won.lease.lost
    won.lease._keeper.renew_now()
    assert won.lease.lost


def test_a_child_does_not_wait_for_a_lock_that_nobody_will_open(hub):
    number = hub.issue("agent:implement")
    with backlogs.connections._lock:
        assert in_a_child(lambda: ls.issue_dedup_check("shop", number)["claimable"]) == 0


# What nobody can mean


@pytest.mark.parametrize("to", ["(none)", "", "agent:in-flight"])
def test_a_claim_of_theirs_ends_in_a_label_that_is_one(hub, to):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(number)
    answer = ls.release_issue("shop", number, codename="old", firing_id="o1", transition_to=to)
    assert answer.reason == "ILLEGAL_MOVE"
    assert hub.labels(number) == {"agent:in-flight"}


@pytest.mark.parametrize("hours", ["-1", "-0.001", "nan", "inf", "1e300"])
def test_what_is_no_age_sweeps_nothing(hub, hours):
    number = hub.issue("agent:implement")
    assert OldRunner(hub, "old", "o1").claim(number)
    ran = label_state("sweep-claims", "--repo", "shop", f"--max-age-hours={hours}")
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False)
    with pytest.raises(Misuse):
        ls.find_stale_claims("shop", max_age_hours=float(hours))
    answer = ls.force_release_stale_claim("shop", number, sweep_id="s", max_age_hours=float(hours))
    assert answer.reason == Misuse.code
    assert hub.labels(number) == {"agent:in-flight"}


@pytest.mark.parametrize(
    ("told", "hours"), [("48", 48), ("-1", 1), ("2.5", 4), ("9" * 15, 8760), ("", 4)]
)
def test_the_window_is_what_the_fleet_says_and_a_lease_no_longer_than_a_day(
    monkeypatch, tmp_path, told, hours
):
    monkeypatch.setenv("ALFRED_CLAIM_MAX_AGE_HOURS", told)
    monkeypatch.chdir(tmp_path)
    settings, _ = backlogs.settings_for("acme/shop")
    (lasts,) = {stage.terms.ttl for stage in settings.pipeline.stages}
    assert settings.pipeline.people.marker_ttl.total_seconds() == hours * 3600
    assert lasts.total_seconds() == min(hours, 24) * 3600


def test_several_claims_on_one_issue_are_released_in_one_sweep(place):
    number = place.issue("agent:implement")
    for one in "ab":
        line = f"<!-- agent-claim:codename={one} firing_id={one}1 ts=2026-05-01T12:00:00Z -->"
        place.say(number, line)
    place.edit(number, add=["agent:in-flight"], remove=["agent:implement"])
    answer = ls.force_release_stale_claim(place.slug, number, sweep_id="s", max_age_hours=0)
    assert answer, answer.text
    assert place.labels(number) == {"agent:implement"}
    assert ls.find_stale_claims(place.slug, max_age_hours=0) == []


# Rehearsing


def test_a_rehearsal_holds_something_that_can_be_asked(monkeypatch):
    monkeypatch.setenv("ALFRED_DRY_RUN", "1")
    lease = ls.claim_issue("shop", 1, **LUCIUS).lease
    lease.check()
    lease.on_lost(pytest.fail)
    assert (lease.lost, lease.run, lease.fence, lease.stage) == (False, "dry-run", 0, "implement")
    assert lease.remaining_s > 0


def test_a_rehearsal_of_the_program_writes_nothing(hub):
    number = hub.issue("agent:implement")
    hub.say(number, "<!-- agent-claim:codename=old firing_id=o1 ts=2026-05-01T12:00:00Z -->")
    before = hub.read(number)
    for line in (f"claim shop#{number}", f"release shop#{number}", "sweep-claims --repo shop"):
        ran = label_state(*line.split(), ALFRED_DRY_RUN="1")
        assert ran.returncode == 0, ran.stderr
    sweep = label_state(
        "sweep-claims", "--repo", "shop", "--max-age-hours", "0", ALFRED_DRY_RUN="1"
    )
    assert "nothing written" in sweep.stdout
    after = hub.read(number)
    assert (after.issue.labels, after.comments) == (before.issue.labels, before.comments)
