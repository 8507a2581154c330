"""The lease stores we ship, and the proof that the suite catches one that does not conform."""

import pytest

from dibs.adapters.memory.leases import MemoryLeases
from dibs.ports.leases import Guarantee
from dibs.testing.conformance import LEASE_CHECKS, NotApplicable, Result, prove_leases

from . import broken_stores as broken
from .adapters import STORES
from .broken_stores import opening
from .harnesses import MemoryHarness

SLOW = {"a_crowd_never_exceeds_a_limit": ("git",), "nobody_sees_half_a_grant": ("git",)} | {
    "restarts_change_no_answer": ("redis-cluster", "etcd", "dynamodb", "git")
}
"""Checks that need many processes or a server's restart, and the stores where that takes long."""
PATIENT = [pytest.mark.long, pytest.mark.timeout(300)]
"""Some take a minute by themselves, and several beside other load."""
ASKED = [
    pytest.param(
        name,
        check,
        id=f"{name}-{check}",
        marks=PATIENT if name in SLOW.get(check.name, ()) else [],
    )
    for name, (_, declares) in STORES.items()
    for check in LEASE_CHECKS
    if check.proves in declares
]
PROMISES = [
    pytest.param(name, guarantee, id=f"{name}-{guarantee.names[0]}")
    for name, (_, declares) in STORES.items()
    for guarantee in declares
]


@pytest.mark.parametrize(("name", "check"), ASKED)
def test_a_store_keeps_what_it_declares(name, check):
    factory, _ = STORES[name]
    try:
        with factory() as harness:
            check(harness)
    except NotApplicable as reason:
        if not check.optional:
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", STORES)
def test_a_store_declares_what_its_line_says(name):
    factory, declares = STORES[name]
    with factory() as harness:
        assert harness.store.guarantees.names == declares.names


@pytest.mark.parametrize(("name", "guarantee"), PROMISES)
def test_every_declared_guarantee_has_a_check_that_may_not_be_skipped(name, guarantee):
    """The test above runs them; `make conformance` prints which proved what."""
    proving = [check for check in LEASE_CHECKS if guarantee in check.proves and not check.optional]
    asked = [param.values[1] for param in ASKED if param.values[0] == name]
    assert proving
    assert set(proving) <= set(asked)


def test_every_guarantee_that_can_be_declared_has_a_check():
    proved = Guarantee.NONE
    for check in LEASE_CHECKS:
        proved |= check.proves
    assert all(guarantee in proved for guarantee in Guarantee)


def test_every_check_says_in_words_what_it_asks_for():
    names = [check.name for check in LEASE_CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.text for check in LEASE_CHECKS)


# Stores that are wrong in one thing each


# Each of them, the surroundings it needs, the check that must see it, the guarantee that is lost.
WRONG = [
    (broken.GrantsToWhoeverAsks, MemoryHarness, "one_of_two_acquirers_wins", None),
    (broken.InventsARecord, MemoryHarness, "an_untouched_issue_has_no_record", None),
    (broken.OneEndingForAll, MemoryHarness, "issues_do_not_disturb_each_other", None),
    (broken.KeepsNamesShort, MemoryHarness, "a_reading_names_the_holder", None),
    (broken.RenewsInNameOnly, MemoryHarness, "a_renewal_extends", None),
    (
        broken.RenewsInNameOnly,
        MemoryHarness,
        "renewing_keeps_a_lease_past_its_first_expiry",
        None,
    ),
    (broken.RenewRevives, MemoryHarness, "an_expired_lease_cannot_renew", None),
    (broken.RenewRevives, MemoryHarness, "nothing_revives_an_expired_lease", None),
    (broken.ReleasesByName, MemoryHarness, "a_superseded_lease_can_do_nothing", None),
    (broken.ForgetsWhereTo, MemoryHarness, "a_release_ends_the_lease", None),
    (broken.RenewRevives, MemoryHarness, "a_released_lease_cannot_renew", None),
    (broken.ForgetsTheFence, MemoryHarness, "a_release_can_be_retried", None),
    (broken.HoldsOnToTheEnd, MemoryHarness, "a_painted_ending_frees_the_issue", None),
    (broken.ForgetsTheFence, MemoryHarness, "an_unpainted_ending_can_be_read", None),
    (broken.WantsConcessionsPainted, MemoryHarness, "a_conceded_ending_needs_no_painting", None),
    (broken.EveryRevokeIsForced, MemoryHarness, "a_graceful_revoke_asks_and_waits", None),
    (broken.EveryRevokeIsForced, MemoryHarness, "a_graceful_revoke_frees_at_expiry", None),
    (broken.EveryRevokeIsGraceful, MemoryHarness, "a_forced_revoke_frees_at_once", None),
    (broken.RenewRevives, MemoryHarness, "a_forced_holder_is_lost_even_if_nobody_came", None),
    (broken.RevokesWhoeverHolds, MemoryHarness, "a_revoke_names_one_run", None),
    (broken.OneEndingForAll, MemoryHarness, "live_lists_only_the_live_oldest_grant_first", None),
    (broken.ListsEveryStage, MemoryHarness, "live_can_be_asked_for_one_stage", None),
    (broken.ListsEveryStage, MemoryHarness, "the_limit_of_live_counts_what_it_returns", None),
    (broken.InheritsTheRevoke, MemoryHarness, "a_new_run_starts_afresh", None),
    (broken.InheritsTheExpiry, MemoryHarness, "a_new_run_starts_afresh", None),
    (broken.TrustsTheName, MemoryHarness, "a_name_proves_nothing", None),
    (broken.TheLastEndingStands, MemoryHarness, "the_first_ending_stands", None),
    (broken.ReleasesByName, MemoryHarness, "a_late_retry_does_not_disturb_the_next_holder", None),
    (
        broken.KeepsPlainLettersOnly,
        MemoryHarness,
        "what_people_say_comes_back_letter_for_letter",
        None,
    ),
    (broken.ReleasesByName, MemoryHarness, "any_sequence_of_calls_is_answered_rightly", None),
    (broken.LeaksItsLibrarysError, broken.CuttableHarness, "an_outage_is_told_as_one", None),
    (broken.AnswersWithoutKnowing, broken.CuttableHarness, "an_outage_is_told_as_one", None),
    (broken.GrantsTwice, MemoryHarness, "a_crowd_never_holds_twice", "atomic"),
    (broken.GrantsInTwoSteps, MemoryHarness, "nobody_sees_half_a_grant", "atomic"),
    (broken.RenewsForAnybody, MemoryHarness, "a_run_that_does_not_hold_can_do_nothing", "atomic"),
    (
        broken.GrantsOverUnpainted,
        MemoryHarness,
        "nothing_is_granted_over_an_unpainted_ending",
        "atomic",
    ),
    (broken.AcknowledgesByIssue, MemoryHarness, "an_acknowledgement_is_for_one_term", "atomic"),
    (broken.ForgetsTheFence, MemoryHarness, "fences_rise_across_release", "fenced"),
    (broken.CountsEndings, MemoryHarness, "fences_rise_across_expiry", "fenced"),
    (broken.ForgetsWhomItForcedOut, MemoryHarness, "fences_rise_across_a_forced_revoke", "fenced"),
    (broken.ForgetsAfterARareTurn, MemoryHarness, "fences_rise_whatever_happens", "fenced"),
    (broken.EveryBeatRaisesTheFence, MemoryHarness, "a_renewal_keeps_its_fence", "fenced"),
    (broken.ForgetsTheFloor, MemoryHarness, "a_floor_is_granted_above", "fenced"),
    (broken.KnowsOnlyWhatIsLive, MemoryHarness, "the_highest_fence_of_all_is_known", "fenced"),
    (broken.ClientsClock, MemoryHarness, "expiry_follows_the_stores_clock", "server_clock"),
    (broken.ClientsClock, MemoryHarness, "a_grant_is_stamped_by_the_store", "server_clock"),
    (
        broken.StampsByTheClient,
        broken.SkewableHarness,
        "a_clients_own_clock_changes_nothing",
        "server_clock",
    ),
    (
        broken.RetriesLoseToThemselves,
        MemoryHarness,
        "a_retried_acquire_is_the_same_grant",
        "idempotent",
    ),
    (
        broken.GrantsAreForEver,
        MemoryHarness,
        "a_retry_after_the_end_is_a_new_grant",
        "idempotent",
    ),
    (broken.KeepsOnlyEndings, broken.DurableHarness, "a_restart_keeps_the_lease", "durable"),
    (broken.KeepsOnlyLiveLeases, broken.DurableHarness, "fences_rise_across_a_restart", "durable"),
    (broken.KeepsOnlyLiveLeases, broken.DurableHarness, "an_ending_survives_a_restart", "durable"),
    (broken.CountsFromItsStart, broken.DurableHarness, "a_restart_revives_nothing", "durable"),
    (broken.HandsOverByName, broken.DurableHarness, "a_restart_hands_no_lease_over", "durable"),
    (broken.KeepsOnlyLiveLeases, broken.DurableHarness, "restarts_change_no_answer", "durable"),
    (
        broken.CountsEveryStage,
        MemoryHarness,
        "a_limit_counts_the_live_leases_of_its_stage",
        "counted",
    ),
    (broken.CountsBeforeItGrants, MemoryHarness, "a_crowd_never_exceeds_a_limit", "counted"),
]


@pytest.mark.parametrize(
    ("store", "harness", "caught_by", "unproved"),
    [pytest.param(*row, id=f"{row[0].__name__}-{row[2]}") for row in WRONG],
)
def test_a_broken_store_is_caught_by_name(store, harness, caught_by, unproved):
    report = prove_leases(opening(store, harness))
    assert caught_by in report.failed
    assert unproved is None or unproved in report.unproved
    assert not report.ok
    with pytest.raises(AssertionError, match=caught_by):
        report.insist()


def test_every_check_can_fail():
    assert {row[2] for row in WRONG} == {check.name for check in LEASE_CHECKS}


def test_a_sequence_that_goes_wrong_tells_the_way_it_went():
    report = prove_leases(opening(broken.ReleasesByName))
    (why,) = [
        finding.why
        for finding in report.findings
        if finding.check == "any_sequence_of_calls_is_answered_rightly"
    ]
    assert why.startswith("AssertionError: after ")
    assert "a superseded lease was ended" in why
    again = prove_leases(opening(broken.ReleasesByName))
    assert again.findings == report.findings, "the dice are seeded"


def test_a_guarantee_that_no_check_could_prove_is_not_believed():
    report = prove_leases(opening(broken.ClaimsToBeDurable))
    assert report.failed == ()
    assert report.unproved == ("durable",)
    assert not report.ok
    assert "durable: NOT PROVED" in str(report)


def test_a_check_that_the_harness_does_not_allow_is_missed_and_not_forgiven():
    report = prove_leases(opening(MemoryLeases, broken.TimelessHarness))
    assert report.failed == ()
    assert "an_expired_lease_cannot_renew" in report.missed
    assert not report.ok
    assert "missed: an_expired_lease_cannot_renew: it was not written" in str(report)
    with pytest.raises(AssertionError, match="DOES NOT CONFORM"):
        report.insist()


@pytest.mark.parametrize(
    ("store", "harness"),
    [
        (MemoryLeases, MemoryHarness),
        (broken.Cuttable, broken.CuttableHarness),
        (broken.Durable, broken.DurableHarness),
    ],
    ids=lambda value: value.__name__,
)
def test_the_healthy_stores_that_the_broken_ones_derive_from_conform(store, harness):
    report = prove_leases(opening(store, harness))
    report.insist()
    assert report.ok
    assert "conforms" in str(report)


def test_what_was_not_asked_is_said_with_its_reason():
    report = prove_leases(opening(MemoryLeases))
    assert report.missed == ()
    assert "a_clients_own_clock_changes_nothing" in report.named(Result.SKIPPED)
    assert "durable: not declared" in str(report)
    assert "skipped: an_outage_is_told_as_one: there is nothing" in str(report)
