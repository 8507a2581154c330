"""The table of reasons: one row each, and the sets that are derived from it."""

from dibs.core.eligibility import MEANINGS, Lifts, ReasonCode, RefusalKind, Whose, reasons_with
from dibs.frontends.cli.output import Exit
from dibs.services.board import RowState
from dibs.services.claiming import A_PERSON_MAY_OVERLOOK


def test_every_reason_has_its_row():
    assert set(MEANINGS) == set(ReasonCode)


def test_every_refusal_has_an_exit_code_and_every_state_is_the_boards():
    assert {refusal.name for refusal in RefusalKind} <= set(Exit.__members__)
    states = {meaning.state for meaning in MEANINGS.values()} - {""}
    assert states <= {state.value for state in RowState}


def test_a_person_overlooks_what_a_person_said_and_what_only_rations_workers():
    by_people = reasons_with(lambda meaning: meaning.whose is Whose.PERSON)
    rations = {ReasonCode.BACKING_OFF, ReasonCode.ATTEMPTS_SPENT, ReasonCode.WIP_LIMIT}
    assert by_people | rations == A_PERSON_MAY_OVERLOOK


def test_nobody_overlooks_another_runs_lease_or_the_stores_word():
    for code in reasons_with(lambda meaning: meaning.whose in (Whose.RUN, Whose.STORE)):
        assert not MEANINGS[code].person


def test_a_claim_waits_only_for_what_others_end():
    waits = reasons_with(lambda meaning: meaning.others_end_it)
    assert waits == reasons_with(lambda meaning: meaning.whose is Whose.RUN) | {
        ReasonCode.WIP_LIMIT,
        ReasonCode.FOREIGN_CLAIM,
    }


def test_what_lifts_without_a_change_of_the_issue_is_a_pause():
    assert reasons_with(lambda meaning: meaning.lifts is Lifts.WITH_A_WORD) == {
        ReasonCode.REPOSITORY_PAUSED,
        ReasonCode.FLEET_PAUSED,
    }


def test_an_issue_follows_its_pull_requests_whatever_keeps_workers_off_it():
    assert reasons_with(lambda meaning: meaning.bookkeeping) == {
        *(ReasonCode.CLOSED, ReasonCode.PARKED, ReasonCode.BLOCKED, ReasonCode.TEXT_CHANGED),
        *(ReasonCode.ASSIGNED, ReasonCode.DELEGATED, ReasonCode.PULL_OPEN),
        *(
            ReasonCode.UNPROTECTED,
            ReasonCode.BACKING_OFF,
            ReasonCode.ATTEMPTS_SPENT,
            ReasonCode.WIP_LIMIT,
        ),
    }
