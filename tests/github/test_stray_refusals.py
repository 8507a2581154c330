"""Refusals that GitHub does not mean: what they cost, and when a refusal is believed."""

from contextlib import ExitStack

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import replace

from dibs.adapters.github.auth import AppInstallation, api_at
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.replies import NoGraphql, graphql_errors
from dibs.adapters.github.tracker import GithubTracker
from dibs.core.card import CardState
from dibs.core.durations import REFUSED
from dibs.core.errors import (
    IssueHidden,
    IssueLocked,
    NoSuchComment,
    NoSuchIssue,
    NotPermitted,
    RateLimited,
    Unavailable,
    Unconfirmed,
)
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, CloseIssue, EditComment, PostComment, RemoveLabels
from dibs_lab.fakehub import Fault, Permission, Standing, Wrong

from .hubs import REPOSITORY, UNPACED, Hub
from .test_auth import PEM
from .test_auth import PUBLIC as KEY
from .test_believing import card
from .tiny import Say, TinyServer, memory_ledger

PUBLIC = KEY.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
ISSUES = f"/repos/{REPOSITORY}/issues"
STRAYS = [Wrong.UNAUTHORIZED_ONCE, Wrong.FORBIDDEN_ONCE, Wrong.NOT_FOUND_ONCE]
CALLERS = [one for one in Purpose if one is not Purpose.HOLD]


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def client(hub):
    return hub.client(clock=hub.clock)


@pytest.fixture
def ref(client):
    client.prepare(["stage:ready", "claimed"])
    return client.create(Draft("one", labels=frozenset({"stage:ready"}))).ref


HELD = card("r1", CardState.HELD)


def held(client, ref):
    """The number of our card on the issue."""
    client.read(ref)
    return client.comment(ref, card("r1")).id


def edit(comment):
    return EditComment(comment, HELD)


# Those who have the time


@pytest.mark.parametrize("wrong", STRAYS)
@pytest.mark.parametrize("purpose", CALLERS)
def test_a_stray_refusal_costs_some_seconds_and_nothing_else(hub, ref, wrong, purpose):
    transport = hub.transport(clock=hub.clock)
    hub.hub.faults.add(Fault(wrong))
    before = hub.clock.passed_s
    assert transport.rest("GET", ISSUES, purpose=purpose).status == 200
    assert hub.clock.passed_s - before == REFUSED.pause_s
    hub.hub.faults.add(Fault(wrong))
    told = transport.graphql("query { viewer { login } }", {}, purpose=purpose)
    assert told.data == {"viewer": {"login": "fleet"}}
    assert transport.graphql_left(), "one stray 404 does not mean that there is no GraphQL"


@pytest.mark.parametrize("wrong", [*STRAYS, Wrong.NODE_NOT_FOUND_ONCE])
def test_a_write_that_was_refused_is_done_once(hub, client, ref, wrong):
    hub.hub.faults.add(Fault(wrong, kind="POST .*/comments$"))
    if wrong is Wrong.NODE_NOT_FOUND_ONCE:
        with pytest.raises(Unavailable):
            client.comment(ref, "hello")
    client.comment(ref, "hello")
    assert [one.body for one in client.read(ref).comments] == ["hello"]


def test_a_token_that_no_longer_works_is_believed_after_the_second_refusal(hub, client):
    hub.state.set_standing("fleet-token", Standing.REVOKED)
    before = hub.clock.passed_s
    with hub.counted() as counted, pytest.raises(NotPermitted, match="revoked or expired"):
        client.labels()
    assert hub.clock.passed_s - before == REFUSED.pause_s
    assert counted == {"GET /repos/{owner}/{repo}/labels": 2, "GET /rate_limit": 1}


def test_a_401_is_not_believed_while_the_token_is_good_elsewhere(hub, client):
    hub.hub.faults.add(Fault(Wrong.UNAUTHORIZED_ONCE, kind="labels", times=9))
    for _ in range(3):
        with pytest.raises(Unconfirmed, match="/rate_limit was answered 200"):
            client.labels()


def test_a_repository_that_is_hidden_is_believed_when_two_endpoints_say_so(hub, client, ref):
    hub.state.change_repository(REPOSITORY, private=True)
    hub.state.grant(REPOSITORY, "fleet", Permission.NONE)
    for ask in (client.labels, lambda: client.read(ref), lambda: client.comment(ref, "x")):
        with pytest.raises(NotPermitted, match="may not see it"):
            ask()


def test_a_404_of_the_repository_alone_is_not_believed(hub, client, ref):
    hub.hub.faults.add(Fault(Wrong.NOT_FOUND_ONCE, kind=r"GET /repos/\{owner\}/\{repo\}$", times=9))
    with pytest.raises(Unconfirmed):
        client.door.told()


def test_a_right_that_is_missing_is_believed_though_the_repository_answers(hub, client, ref):
    hub.state.add_token("fleet-token", "fleet", scopes=None, lacks=frozenset({"issues:write"}))
    with pytest.raises(NotPermitted, match="may not do this"):
        client.comment(ref, "x")
    with pytest.raises(NotPermitted, match="may not do this"):
        client.apply(ref, [AddLabels(("claimed",))])


def test_a_refusal_with_its_reason_is_believed_at_once(hub, client, ref):
    hub.state.archive(REPOSITORY)
    before = hub.clock.passed_s
    with pytest.raises(NotPermitted, match="archived"):
        client.comment(ref, "x")
    assert hub.clock.passed_s == before


def test_two_refusals_with_a_success_between_them_are_two_accidents(hub, ref):
    transport = hub.transport(clock=hub.clock)
    path = f"{ISSUES}/1"
    for _ in range(3):
        hub.hub.faults.add(Fault(Wrong.NOT_FOUND_ONCE))
        with pytest.raises(Unconfirmed):
            transport.rest("GET", path, purpose=Purpose.HOLD)
        hub.clock.advance(REFUSED.pause_s)
        assert transport.rest("GET", path, purpose=Purpose.HOLD).status == 200


def test_two_refusals_with_minutes_between_them_are_two_accidents(hub, ref):
    transport = hub.transport(clock=hub.clock)
    hub.hub.faults.add(Fault(Wrong.FORBIDDEN_ONCE, times=2))
    for _ in range(2):
        with pytest.raises(Unconfirmed):
            transport.rest("GET", f"{ISSUES}/1", purpose=Purpose.HOLD)
        hub.clock.advance(120)


# A holder


@pytest.mark.parametrize("wrong", STRAYS)
def test_a_holder_is_not_kept_waiting(hub, client, ref, wrong):
    mine = held(client, ref)
    hub.hub.faults.add(Fault(wrong, kind="graphql"))
    before = hub.clock.passed_s
    with pytest.raises(Unconfirmed):
        client.apply(ref, [edit(mine)])
    assert hub.clock.passed_s == before
    client.apply(ref, [edit(mine)])


def test_a_holder_is_told_of_a_refusal_once_it_has_lasted(hub, client, ref):
    mine = held(client, ref)
    hub.state.set_standing("fleet-token", Standing.REVOKED)
    with pytest.raises(Unconfirmed):
        client.apply(ref, [edit(mine)])
    hub.clock.advance(REFUSED.pause_s)
    with pytest.raises(NotPermitted, match="revoked or expired"):
        client.apply(ref, [edit(mine)])


# What is gone, and what only seems to be


def test_a_node_that_is_not_found_is_looked_for_over_rest_and_edited_there(hub, client, ref):
    mine = held(client, ref)
    hub.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE, kind="mutation"))
    with hub.counted() as counted:
        seen = client.apply(ref, [edit(mine)])
    assert [one.body for one in seen.comments] == [HELD]
    assert counted["PATCH /repos/{owner}/{repo}/issues/comments/{comment_id}"] == 1


@pytest.mark.parametrize(
    "effect",
    [AddLabels(("claimed",)), RemoveLabels(("stage:ready",)), PostComment("x"), CloseIssue()],
    ids=lambda effect: type(effect).__name__,
)
def test_every_effect_that_a_replica_refuses_is_done_once(hub, client, ref, effect):
    client.read(ref)
    hub.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE, kind="mutation"))
    seen = client.apply(ref, [effect, AddLabels(("stage:ready",))])
    assert len(seen.comments) == isinstance(effect, PostComment)
    assert ("claimed" in seen.issue.labels) == isinstance(effect, AddLabels)
    assert (not seen.issue.open) == isinstance(effect, CloseIssue)


@pytest.mark.parametrize("wrong", [Wrong.UNAUTHORIZED_ONCE, Wrong.TOO_QUICKLY])
def test_once_an_effect_was_repeated_no_error_says_that_nothing_was_done(hub, client, ref, wrong):
    mine = held(client, ref)
    hub.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE, kind="mutation", times=2))
    hub.hub.faults.add(Fault(wrong, kind="POST .*comments", times=9))
    with pytest.raises(Unavailable, match="changed") as refusal:
        client.apply(ref, [edit(mine), PostComment("x")])
    assert not isinstance(refusal.value, Unconfirmed)
    hub.hub.faults.clear()
    hub.clock.advance(120)
    assert [one.body for one in client.read(ref).comments] == [HELD]


@pytest.mark.parametrize("graphql", [True, False])
def test_a_card_is_gone_only_if_its_own_endpoint_says_so_twice(hub, ref, graphql):
    client = hub.client(clock=hub.clock, graphql=graphql)
    mine = held(client, ref)
    own = r"/issues/comments/\{comment_id\}$"
    hub.hub.faults.add(
        Fault(Wrong.NODE_NOT_FOUND_ONCE, kind="mutation"), Fault(Wrong.NOT_FOUND_ONCE, kind=own)
    )
    for _ in range(3):
        try:
            client.apply(ref, [edit(mine)])
        except Unconfirmed:
            continue
    assert client.read(ref).comments[0].body == HELD
    acting = hub.acting()
    acting.delete_comment(hub.state.primary().comment(mine))
    with pytest.raises(Unconfirmed):
        client.apply(ref, [edit(mine)])
    hub.clock.advance(REFUSED.pause_s)
    with pytest.raises(NoSuchComment):
        client.apply(ref, [edit(mine)])


def test_an_issue_is_gone_only_if_github_says_so_twice(hub, client, ref):
    client.read(ref)
    hub.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE, kind="query"))
    hub.hub.faults.add(Fault(Wrong.NOT_FOUND_ONCE, kind=r"issues/\{issue_number\}$"))
    with pytest.raises(Unavailable):  # GraphQL did not find it, and REST did
        client.read(ref)
    assert client.read(ref).issue.ref == ref
    missing = type(ref)(ref.repo, "999")
    with pytest.raises(NoSuchIssue):
        client.read(missing)


def test_a_locked_conversation_is_still_told_as_one(hub, client, ref):
    hub.state.grant(REPOSITORY, "fleet", Permission.TRIAGE)
    hub.acting().lock_issue(hub.issue(int(ref.key)))
    with pytest.raises(IssueLocked):
        client.post_comment(ref, "x", Purpose.FINISH)


# Too quickly


def test_content_that_came_too_quickly_slows_every_request_down(hub, client, ref):
    hub.hub.faults.add(Fault(Wrong.TOO_QUICKLY, times=1))
    with pytest.raises(RateLimited) as limit:
        client.comment(ref, "x")
    assert limit.value.retry_after_s == pytest.approx(60, abs=5)
    with pytest.raises(RateLimited):
        client.labels()
    hub.clock.advance(61)
    assert client.comment(ref, "x").body == "x"


def test_too_quickly_in_the_middle_of_a_document_leaves_a_part_done(hub, client, ref):
    client.read(ref)
    hub.hub.faults.add(Fault(Wrong.TOO_QUICKLY, times=1))
    with pytest.raises(Unavailable):
        client.apply(ref, [AddLabels(("claimed",)), PostComment("x")])
    hub.clock.advance(65)
    assert client.read(ref).issue.labels == {"claimed", "stage:ready"}


# GraphQL


def test_a_server_without_graphql_is_asked_twice_and_then_left_alone():
    with ExitStack() as opened:
        hub = Hub(opened, graphql=False)
        transport = hub.transport(clock=hub.clock)
        for _ in range(2):
            with pytest.raises(NoGraphql):
                transport.graphql("query { viewer { login } }", {}, purpose=Purpose.LOOK)
        assert hub.clock.passed_s == REFUSED.pause_s
        assert not transport.graphql_left()


def test_a_repository_that_only_graphql_does_not_find_is_not_believed_to_be_gone():
    def answer(heard):
        if heard.path == "/graphql":
            error = {"type": "NOT_FOUND", "path": ["repository"], "message": "Could not resolve"}
            return Say(body={"data": {"repository": None}, "errors": [error]})
        return Say(body={"full_name": REPOSITORY, "private": False, "owner": {"type": "User"}})

    with TinyServer(answer) as server:
        client = GithubTracker(server.transport(), REPOSITORY)
        with pytest.raises(Unavailable, match="REST API finds it"):
            client.tally(["stage:ready"])


REPOSITORY_REFUSED = {"type": "FORBIDDEN", "path": ["repository"], "message": "no"}
ALL_REFUSED = {"type": "FORBIDDEN", "message": "no"}


def refusing(client, errors):
    """While there are errors, each takes the place of the answer to one GraphQL document."""
    ask = client.door.transport.graphql

    def graphql(document, variables, *, purpose):
        reply = ask(
            "query { viewer { login } }" if errors else document, variables, purpose=purpose
        )
        if not errors:
            return reply
        flaw = errors.pop(0)
        data = {"repository": None} if "path" in flaw else {}
        return replace(reply, data=data, errors=graphql_errors([flaw]))

    client.door.transport.graphql = graphql
    return client


@pytest.mark.parametrize("flaw", [REPOSITORY_REFUSED, ALL_REFUSED], ids=["repository", "all"])
def test_a_refusal_by_graphql_alone_is_asked_again_after_the_pause(hub, client, flaw):
    before = hub.clock.passed_s
    refusing(client, [flaw]).tally(["stage:ready"])
    assert hub.clock.passed_s - before == REFUSED.pause_s


@pytest.mark.parametrize("flaw", [REPOSITORY_REFUSED, ALL_REFUSED], ids=["repository", "all"])
def test_two_refusals_by_graphql_count_once_rest_shows_the_repository(hub, client, flaw):
    refusing(client, [flaw] * 9)
    with hub.counted() as counted, pytest.raises(NotPermitted, match="refused: no"):
        client.tally(["stage:ready"])
    assert counted == {"graphql query viewer": 2, "GET /repos/{owner}/{repo}": 1}
    hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind=r"GET /repos/\{owner\}/\{repo\}$"))
    with pytest.raises(Unavailable):
        client.tally(["stage:ready"])


def test_a_beat_that_graphql_refuses_is_doubted_anew_after_a_success(hub, client, ref):
    mine = held(client, ref)
    errors = []
    refusing(client, errors)
    for _ in range(3):
        errors.append(ALL_REFUSED)
        before = hub.clock.passed_s
        with pytest.raises(Unconfirmed):
            client.apply(ref, [edit(mine)])
        assert hub.clock.passed_s == before
        hub.clock.advance(REFUSED.pause_s)
        client.apply(ref, [edit(mine)])


@pytest.mark.parametrize("part", [[], ["closedByPullRequestsReferences"]])
def test_an_issue_is_hidden_only_if_github_says_so_twice(hub, client, ref, part):
    client.read(ref)
    ask = client.door.transport.graphql
    left = [1]

    def graphql(document, variables, *, purpose):
        reply = ask(document, variables, purpose=purpose)
        flaw = {"type": "FORBIDDEN", "path": ["repository", "issue", *part], "message": "no"}
        return replace(reply, errors=graphql_errors([flaw] * bool(left and left.pop())))

    client.door.transport.graphql = graphql
    before = hub.clock.passed_s
    assert client.read(ref).issue.ref == ref
    assert hub.clock.passed_s - before == REFUSED.pause_s
    left[:] = [1, 1]
    with pytest.raises((IssueHidden, NotPermitted), match="no"):
        client.read(ref)


# Apps


@pytest.fixture
def bot(hub):
    installed = hub.hub.install("fleet-bot", PUBLIC, REPOSITORY)
    app = AppInstallation(str(installed.app.id), PEM, hub.clock, repository=REPOSITORY)
    made = Transport(api_at(hub.hub.url), app, memory_ledger(hub.clock, UNPACED), hub.clock)
    yield made
    made.close()


TOKENS = "POST /app/installations/{installation_id}/access_tokens"


def test_a_new_token_that_is_refused_is_tried_again_and_not_replaced(hub, bot):
    hub.hub.faults.add(Fault(Wrong.NEW_TOKEN_LAG, seconds=(3, 3)))
    with hub.counted() as counted:
        assert bot.rest("GET", ISSUES, purpose=Purpose.LOOK).status == 200
    assert counted[TOKENS] == 1


def test_a_holder_with_a_new_token_is_not_kept_waiting(hub, bot):
    hub.hub.faults.add(Fault(Wrong.NEW_TOKEN_LAG, seconds=(3, 3)))
    with pytest.raises(Unconfirmed):
        bot.rest("GET", ISSUES, purpose=Purpose.HOLD)
    hub.clock.advance(3)
    with hub.counted() as counted:
        assert bot.rest("GET", ISSUES, purpose=Purpose.HOLD).status == 200
    assert TOKENS not in counted


def test_an_older_token_that_is_refused_is_replaced(hub, bot):
    bot.rest("GET", ISSUES, purpose=Purpose.LOOK)
    hub.clock.advance(60)
    hub.hub.faults.add(Fault(Wrong.UNAUTHORIZED_ONCE))
    with hub.counted() as counted:
        assert bot.rest("GET", ISSUES, purpose=Purpose.LOOK).status == 200
    assert counted[TOKENS] == 1


@pytest.mark.parametrize("wrong", STRAYS)
@pytest.mark.parametrize("kind", ["installation$", "access_tokens$"])
def test_a_stray_refusal_of_a_token_costs_some_seconds(hub, bot, wrong, kind):
    hub.hub.faults.add(Fault(wrong, kind=kind))
    assert bot.rest("GET", ISSUES, purpose=Purpose.LOOK).status == 200
    assert hub.clock.passed_s <= REFUSED.pause_s
