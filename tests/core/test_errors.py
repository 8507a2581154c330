"""The error tree: who must act, what is named, and nothing destructive to paste."""

import inspect
import re

import pytest

from dibs.core import errors
from dibs.core.errors import (
    BadConfiguration,
    BadName,
    BadReference,
    BadTtl,
    CannotMove,
    Damaged,
    DibsError,
    GrantedElsewhere,
    HandlerMayNot,
    HandlerUnusable,
    IllegalMove,
    IssueHidden,
    IssueLocked,
    IssueMoved,
    LeaseLost,
    Misuse,
    NoBacklog,
    NoSuchComment,
    NoSuchIssue,
    NoSuchRun,
    NoSuchStage,
    NotGranted,
    NotPermitted,
    Outage,
    RateLimited,
    Unavailable,
    Unconfirmed,
    Untrusted,
    Unwritable,
    WorktreeUnavailable,
)
from dibs.core.ids import Fence, StageName

from .builders import REF

READY, REVIEW = StageName("ready"), StageName("review")
EXAMPLES = [
    (DibsError("broken"), DibsError, "ERROR", ["broken"]),
    (Misuse("no"), DibsError, "MISUSE", ["no"]),
    (BadReference("x y"), Misuse, "BAD_REFERENCE", ["x y"]),
    (NoSuchIssue(REF), Misuse, "NO_SUCH_ISSUE", ["acme/shop#7"]),
    (NoSuchComment(REF, 55), Misuse, "NO_SUCH_COMMENT", ["acme/shop#7", "55"]),
    (IssueMoved(REF, "acme/old#3"), NoSuchIssue, "ISSUE_MOVED", ["acme/shop#7", "acme/old#3"]),
    (IssueHidden(REF, "FORBIDDEN"), NoSuchIssue, "ISSUE_HIDDEN", ["acme/shop#7", "FORBIDDEN"]),
    (IssueLocked(REF), Misuse, "ISSUE_LOCKED", ["acme/shop#7", "locked"]),
    (NoSuchStage("redy", (READY, REVIEW)), Misuse, "NO_SUCH_STAGE", ["redy", "ready", "review"]),
    (BadTtl("2d is over max_ttl 1d"), Misuse, "BAD_TTL", ["2d", "1d"]),
    (Unwritable("no space left"), DibsError, "UNWRITABLE", ["no space left"]),
    (IllegalMove(READY, "done", (REVIEW,)), Misuse, "ILLEGAL_MOVE", ["ready", "done", "review"]),
    (IllegalMove(READY, "done", ()), Misuse, "ILLEGAL_MOVE", ["ready", "done", "nowhere"]),
    (
        LeaseLost(REF, fence=Fence(9), why="it expired"),
        DibsError,
        "LEASE_LOST",
        ["acme/shop#7", "9", "it expired"],
    ),
    (NoSuchRun("540d0db55fb6"), DibsError, "NO_SUCH_RUN", ["540d0db55fb6"]),
    (
        NotGranted(REF, "worker-7 holds it", codes=("HELD",)),
        DibsError,
        "NOT_GRANTED",
        ["acme/shop#7", "worker-7 holds it"],
    ),
    (BadName("7 x"), Misuse, "BAD_NAME", ["7 x"]),
    (CannotMove("not there"), Misuse, "CANNOT_MOVE", ["not there"]),
    (HandlerMayNot("not for run 54"), DibsError, "HANDLER_MAY_NOT", ["54"]),
    (GrantedElsewhere("by redis"), DibsError, "GRANTED_ELSEWHERE", ["by redis"]),
    (BadConfiguration("ttl"), DibsError, "BAD_CONFIGURATION", ["ttl"]),
    (NoBacklog("no backlog at x.db"), BadConfiguration, "NO_BACKLOG", ["x.db"]),
    (Untrusted("api of dibs.toml"), BadConfiguration, "UNTRUSTED", ["dibs.toml"]),
    (HandlerUnusable("./x.sh"), DibsError, "HANDLER_UNUSABLE", ["./x.sh"]),
    (Outage("down"), DibsError, "OUTAGE", ["down"]),
    (Unavailable("502"), Outage, "UNAVAILABLE", ["502"]),
    (Unconfirmed("401, perhaps"), Unavailable, "UNCONFIRMED", ["401, perhaps"]),
    (WorktreeUnavailable("no fetch"), Unavailable, "WORKTREE_UNAVAILABLE", ["no fetch"]),
    (RateLimited("slow down", retry_after_s=3.5), Outage, "RATE_LIMITED", ["slow down"]),
    (NotPermitted("403"), Outage, "NOT_PERMITTED", ["403"]),
    (Damaged("disk full"), Outage, "DAMAGED", ["disk full"]),
]
DESTRUCTIVE = re.compile(r"revoke|--force|--yes|\brm |dibs (delete|drop|kill|reset|free|take)\b")


@pytest.mark.parametrize(("error", "kind", "code", "words"), EXAMPLES)
def test_an_error_has_its_place_its_code_and_names_the_facts(error, kind, code, words):
    assert isinstance(error, kind)
    assert isinstance(error, DibsError)
    assert error.code == code
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize("error", [error for error, *_ in EXAMPLES])
def test_no_error_offers_something_destructive_to_paste(error):
    assert not DESTRUCTIVE.search(f"{error} {error.hint}".lower())


def test_every_class_of_the_tree_is_in_the_table_and_has_a_code_of_its_own():
    tree = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, DibsError)
    }
    assert {type(error) for error, *_ in EXAMPLES} == tree
    assert len({kind.code for kind in tree}) == len(tree)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (Outage("x"), False),
        (Unavailable("x"), True),
        (RateLimited("x", retry_after_s=1), True),
        (NotPermitted("x"), False),
        (Damaged("x"), False),
    ],
)
def test_an_outage_says_whether_trying_again_may_help(error, retryable):
    assert error.retryable is retryable


def test_the_fields_an_error_was_made_of_can_be_read_back():
    assert BadReference("?").text == "?"
    assert NoSuchIssue(REF).issue == REF
    assert (NoSuchComment(REF, 5).issue, NoSuchComment(REF, 5).comment) == (REF, 5)
    assert NoSuchStage("x", (READY,)).known == (READY,)
    assert NoSuchStage("x", (READY,)).stage == "x"
    move = IllegalMove(READY, "done", (REVIEW,))
    assert (move.origin, move.target, move.legal) == (READY, "done", (REVIEW,))
    lost = LeaseLost(REF, fence=Fence(9), why="it expired")
    assert (lost.issue, lost.fence, lost.why) == (REF, 9, "it expired")
    refused = NotGranted(REF, "paused", codes=("PAUSED",))
    assert (refused.issue, refused.why, refused.codes) == (REF, "paused", ("PAUSED",))
    assert NotGranted(REF, "paused").codes == ()
    assert RateLimited("x", retry_after_s=3.5).retry_after_s == 3.5


@pytest.mark.parametrize(
    "error",
    [
        BadReference("x"),
        NoSuchIssue(REF),
        NoSuchComment(REF, 5),
        IssueMoved(REF, "acme/old#3"),
        IssueHidden(REF, "FORBIDDEN"),
        IssueLocked(REF),
        NoSuchStage("x", (READY,)),
        IllegalMove(READY, "x", ()),
        LeaseLost(REF, fence=Fence(1), why="w"),
        NotGranted(REF, "w"),
        NoBacklog("x"),
        HandlerUnusable("x"),
    ],
)
def test_an_error_that_a_person_can_act_on_says_where_to_look(error):
    assert error.hint


def test_a_bad_configuration_hints_at_a_file_only_if_a_file_is_wrong():
    assert BadConfiguration("git is not installed here").hint == ""
    assert BadConfiguration("x", hint="look there").hint == "look there"
