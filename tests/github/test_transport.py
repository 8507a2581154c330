"""Requests and replies over a real connection: what is sent, what is kept, what is never sent."""

import io
import logging
import socket
import ssl
import threading
import traceback

import httpcore
import httpx
import pytest

from dibs.adapters.github.auth import Api, Token
from dibs.adapters.github.cache import CachedReply, Replies
from dibs.adapters.github.client import Purpose, Transport, Transports
from dibs.adapters.github.connections import _MOST, Deadline, _Stream
from dibs.adapters.github.ledger import FileLedger
from dibs.adapters.github.limits import Kind, Limits
from dibs.adapters.github.replies import NoGraphql
from dibs.core.errors import BadConfiguration, NotPermitted, Outage, RateLimited, Unavailable
from dibs.core.ids import LocalTime
from dibs.testing.clock import EPOCH, FakeClock

from .tiny import SECRET, Say, TinyServer, always, budget, memory_ledger

COMMENTS = "/repos/acme/shop/issues/1/comments"
ISSUES = "/repos/acme/shop/issues"


def look(transport, path=ISSUES, **more):
    return transport.rest("GET", path, purpose=Purpose.LOOK, **more)


def post(transport, path=COMMENTS, **more):
    return transport.rest("POST", path, purpose=Purpose.CLAIM, wanted={"body": "hello"}, **more)


def ask(transport, document="query { viewer { login } }", purpose=Purpose.LOOK, **variables):
    return transport.graphql(document, variables, purpose=purpose)


@pytest.fixture
def clock():
    return FakeClock()


# What is sent


def test_what_a_request_looks_like():
    with TinyServer(always(Say(body=[]))) as server:
        transport = server.transport()
        look(transport, params={"labels": "stage:ready,it's", "per_page": "100"})
        post(transport)
        (read, write) = server.heard
    assert read.path == f"{ISSUES}?labels=stage%3Aready%2Cit%27s&per_page=100"
    assert read.bearer == SECRET
    assert read.headers["accept"] == "application/vnd.github+json"
    assert read.headers["x-github-api-version"] == "2022-11-28"
    assert "content-type" not in read.headers
    assert (write.verb, write.json) == ("POST", {"body": "hello"})
    assert write.headers["content-type"] == "application/json"


def test_a_reply_tells_the_servers_time_and_when_it_was_asked(clock):
    with TinyServer(always(Say(body=[1]))) as server:
        before = clock.now()
        reply = look(server.transport(clock=clock))
    assert reply.now == EPOCH
    assert reply.asked_at == before
    assert reply.body == b"[1]"


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 99 May 2026 12:00:00 GMT"])
def test_a_reply_without_a_time_orders_nothing(date):
    with TinyServer(always(Say(body=[], date=date))) as server, pytest.raises(Unavailable):
        look(server.transport())


# What is kept


def test_what_has_not_changed_is_answered_from_what_is_kept():
    link = '<http://x/repositories/1/issues?page=2>; rel="next"'

    def answer(heard):
        if heard.headers.get("if-none-match") == 'W/"v1"':
            return Say(304, headers={"X-Other": "new"})
        return Say(body=["first"], headers={"ETag": 'W/"v1"', "Link": link})

    with TinyServer(answer) as server:
        transport = server.transport()
        first, second = (look(transport, conditional=True) for _ in range(2))
        report = transport.budget()
    assert (first.unchanged, second.unchanged) == (False, True)
    assert (second.status, second.body) == (200, b'["first"]')
    assert second.headers["x-other"] == "new"
    assert second.next_page == first.next_page is not None
    assert report.counted["rest read"] == 1
    assert report.counted["rest unchanged"] == 1


def test_a_reading_that_must_be_fresh_is_not_answered_from_what_is_kept():
    with TinyServer(always(Say(body=[], headers={"ETag": '"v1"'}))) as server:
        transport = server.transport()
        look(transport, conditional=True)
        look(transport)
    assert [one.headers.get("if-none-match") for one in server.heard] == [None, None]


def test_what_is_kept_is_bounded_and_the_longest_unused_goes_first():
    kept = Replies(most=3, most_bytes=100)
    for name in "abc":
        kept.put(name, CachedReply(name, {}, b"x" * 10, LocalTime(0.0)))
    assert kept.get("a") is not None
    kept.put("d", CachedReply("d", {}, b"x" * 10, LocalTime(0.0)))
    assert [name for name in "abcd" if kept.get(name)] == ["a", "c", "d"]
    kept.put("e", CachedReply("e", {}, b"x" * 85, LocalTime(0.0)))
    assert [name for name in "abcde" if kept.get(name)] == ["d", "e"]
    kept.put("f", CachedReply("f", {}, b"x" * 200, LocalTime(0.0)))
    assert [name for name in "abcdef" if kept.get(name)] == []


# Pages


def test_the_next_page_is_where_the_server_says():
    def answer(heard):
        if "page=2" in heard.path:
            return Say(body=["second"])
        there = f"{server.url}/repositories/99/issues?page=2"
        return Say(
            body=["first"], headers={"Link": f'<{there}>; rel="next", <{there}>; rel="last"'}
        )

    with TinyServer(answer) as server:
        transport = server.transport()
        first = look(transport)
        following = transport.follow(first)
        assert following is not None
        second = look(transport, following)
        assert transport.follow(second) is None
    assert [one.path for one in server.heard] == [ISSUES, "/repositories/99/issues?page=2"]


@pytest.mark.parametrize("there", ["https://evil.example/repositories/1", "http://127.0.0.1:1/x"])
def test_a_page_on_another_server_is_not_asked_for(there):
    with TinyServer(always(Say(body=[], headers={"Link": f'<{there}>; rel="next"'}))) as server:
        transport = server.transport()
        with pytest.raises(Unavailable, match="another server"):
            transport.follow(look(transport))
        with pytest.raises(Unavailable, match="another server"):
            look(transport, there)
    assert len(server.heard) == 1


# Redirects


class Renamed:
    """`acme/shop` is `/repositories/99` now."""

    def __init__(self, status=301):
        self.status = status
        self.server = None

    def __call__(self, heard):
        if heard.path.startswith("/repos/acme/shop"):
            there = heard.path.replace("/repos/acme/shop", "/repositories/99")
            return Say(self.status, {}, {"Location": f"{self.server.url}{there}"})
        return Say(201 if heard.verb == "POST" else 200, {"path": heard.path})


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_renamed_repository_is_found_where_it_is_now(status):
    renamed = Renamed(status)
    with TinyServer(renamed) as server:
        renamed.server = server
        transport = server.transport()
        reply = post(transport, f"{COMMENTS}?x=1")
        assert reply.status == 201
        first = list(server.heard)
        look(transport, "/repos/Acme/Shop/issues/2" if status in (301, 308) else ISSUES)
        later = server.heard[len(first) :]
    assert [(one.verb, one.path) for one in first] == [
        ("POST", f"{COMMENTS}?x=1"),
        ("GET", "/repos/acme/shop"),
        ("POST", "/repositories/99/issues/1/comments?x=1"),
    ]
    assert first[-1].json == {"body": "hello"}
    if status in (301, 308):
        assert [one.path for one in later] == ["/repositories/99/issues/2"], "it is remembered"
    else:
        assert later[0].path == ISSUES, "what is for now is not remembered"


@pytest.mark.parametrize("number", [1, 9])
def test_a_transferred_issue_is_not_followed_even_with_the_same_number(number):
    def answer(heard):
        if heard.path == "/repos/acme/shop":
            return Say(200, {"id": 1})
        if heard.path == f"{ISSUES}/1":
            return Say(301, {}, {"Location": f"{server.url}/repositories/7/issues/{number}"})
        return Say(200, {"path": heard.path})

    with TinyServer(answer) as server:
        transport = server.transport()
        reply = look(transport, f"{ISSUES}/1", ok=(200, 301))
        assert reply.status == 301
        assert reply.headers["location"].endswith(f"/repositories/7/issues/{number}")
        with pytest.raises(Outage):
            look(transport, f"{ISSUES}/1")
        assert look(transport, f"{ISSUES}/2").body == b'{"path": "/repos/acme/shop/issues/2"}'
    assert not any(one.path.startswith("/repositories/") for one in server.heard)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_another_server_is_not_told_the_token(status):
    with TinyServer(always(Say(body=[]))) as other:

        def answer(heard):
            there = heard.path.replace("acme/shop", "acme/elsewhere")
            return Say(status, {}, {"Location": f"{other.url}{there}"})

        with TinyServer(answer) as server, pytest.raises(Unavailable, match="somewhere else"):
            post(server.transport())
        assert other.heard == []


def test_redirects_that_go_round_come_to_an_end():
    def answer(heard):
        there = "one" if "two" in heard.path else "two"
        return Say(301, {}, {"Location": f"{server.url}/repos/acme/{there}"})

    with TinyServer(answer) as server:
        with pytest.raises(Unavailable):
            look(server.transport(), "/repos/acme/one")
        assert len(server.heard) <= 3


# What went wrong


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (Say(401, {"message": "Bad credentials"}), NotPermitted, "expired"),
        (
            Say(403, {"message": "Repository was archived so is read-only."}),
            NotPermitted,
            "archived",
        ),
        (
            Say(
                403,
                {"message": "Must have admin rights to Repository."},
                {"X-OAuth-Scopes": "read:org", "X-Accepted-OAuth-Scopes": "repo"},
            ),
            NotPermitted,
            "scopes that would do: repo; scopes that it has: read:org",
        ),
        (
            Say(
                403,
                {"message": "Resource not accessible by personal access token"},
                {"X-Accepted-GitHub-Permissions": "issues=write"},
            ),
            NotPermitted,
            "it needs issues=write",
        ),
        (
            Say(403, {"message": "x"}, {"X-GitHub-SSO": "required; url=https://x/?secret"}),
            NotPermitted,
            "single sign-on",
        ),
        (
            Say(403, {"message": "Unable to create comment because issue is locked."}),
            NotPermitted,
            "takes no comments",
        ),
        (
            Say(403, {"message": "Commenting is disabled on issues with more than 2500 comments"}),
            NotPermitted,
            "takes no comments",
        ),
        (Say(404, {"message": "Not Found"}), NotPermitted, "may not see it"),
        (Say(410, {"message": "This issue was deleted"}), NotPermitted, "deleted"),
        (
            Say(422, {"message": "Validation Failed", "errors": [{"message": "body is too long"}]}),
            NotPermitted,
            "body is too long",
        ),
        (Say(451, {"message": "Repository access blocked"}), NotPermitted, "legal"),
        (Say(400, b"<html>"), NotPermitted, "400"),
        (Say(502, b"<html>"), Unavailable, "502"),
        (Say(500, {"message": "Server Error"}), Unavailable, "Server Error"),
    ],
)
def test_what_a_refusal_means(said, kind, words):
    with TinyServer(always(said)) as server, pytest.raises(kind, match=words) as refusal:
        post(server.transport())
    assert type(refusal.value) is kind
    assert COMMENTS in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_what_the_caller_calls_fine_is_no_error():
    with TinyServer(always(Say(404, {"message": "Not Found"}))) as server:
        assert look(server.transport(), ok=(200, 404)).status == 404


# Limits


def test_a_rest_that_is_asked_for_stops_everything(clock):
    said = Say(403, {"message": "You have exceeded a secondary rate limit"}, {"Retry-After": "30"})
    with TinyServer(always(said, Say(body=[]))) as server:
        transport = server.transport(clock=clock)
        with pytest.raises(RateLimited) as refusal:
            post(transport, ok=(201, 403))
        assert 30 <= refusal.value.retry_after_s <= 32
        for purpose in Purpose:
            with pytest.raises(RateLimited):
                transport.rest("GET", ISSUES, purpose=purpose)
            with pytest.raises(RateLimited):
                ask(transport, purpose=purpose)
        assert len(server.heard) == 1, "nothing was sent meanwhile"
        clock.advance(30)
        with pytest.raises(RateLimited):
            transport.rest("GET", ISSUES, purpose=Purpose.DISCOVER)
        transport.rest("GET", ISSUES, purpose=Purpose.HOLD)
        transport.rest("GET", ISSUES, purpose=Purpose.DISCOVER)


@pytest.mark.parametrize("status", [403, 429])
def test_a_rest_without_a_time_is_a_minute(clock, status):
    said = Say(status, {"message": "You have exceeded a secondary rate limit."})
    with TinyServer(always(said)) as server, pytest.raises(RateLimited) as refusal:
        look(server.transport(clock=clock))
    assert 60 <= refusal.value.retry_after_s <= 63


def test_one_rest_stops_all_processes_that_use_the_token(tmp_path, clock):
    said = Say(429, {"message": "too many"}, {"Retry-After": "30"})
    with TinyServer(always(said, Say(body=[]))) as server:
        one, other = (
            server.transport(clock=clock, ledger=FileLedger(tmp_path / "ledger", clock))
            for _ in range(2)
        )
        with pytest.raises(RateLimited):
            look(one)
        with pytest.raises(RateLimited) as refusal:
            look(other)
        assert refusal.value.retry_after_s > 29
    assert len(server.heard) == 1


def test_a_spent_budget_is_waited_for_and_only_that_one(clock):
    said = Say(403, {"message": "API rate limit exceeded for user ID 1."}, budget(0, left_s=600))
    with TinyServer(always(said, Say(body={"data": {"viewer": {}}}))) as server:
        transport = server.transport(clock=clock)
        with pytest.raises(RateLimited) as refusal:
            look(transport)
        assert refusal.value.retry_after_s == pytest.approx(600, abs=1)
        with pytest.raises(RateLimited):
            transport.rest("GET", ISSUES, purpose=Purpose.HOLD)
        ask(transport)
        assert len(server.heard) == 2
        clock.advance(601)
        look(transport)


def test_looking_for_work_is_shed_before_heartbeats(clock):
    with TinyServer(always(Say(body=[], headers=budget(200)))) as server:
        transport = server.transport(clock=clock)
        transport.rest("GET", ISSUES, purpose=Purpose.DISCOVER)
        for purpose in (Purpose.DISCOVER, Purpose.LOOK, Purpose.CLAIM):
            with pytest.raises(RateLimited, match=purpose.name.lower()):
                transport.rest("GET", ISSUES, purpose=purpose)
        for purpose in (Purpose.FINISH, Purpose.HOLD):
            transport.rest("GET", ISSUES, purpose=purpose)
    assert len(server.heard) == 3


def test_creating_is_paced(clock):
    with TinyServer(always(Say(201, {}))) as server:
        transport = server.transport(clock=clock, limits=Limits(creations_a_minute=10))
        for _ in range(9):
            post(transport)
        with pytest.raises(RateLimited, match="pace") as refusal:
            post(transport)
        transport.rest("PATCH", f"{ISSUES}/comments/1", purpose=Purpose.CLAIM, wanted={})
        assert len(server.heard) == 10
        clock.advance(refusal.value.retry_after_s)
        post(transport)


@pytest.mark.parametrize(
    ("verb", "path", "kind"),
    [
        ("POST", COMMENTS, Kind.REST_CREATE),
        ("POST", ISSUES, Kind.REST_ISSUE),
        ("POST", "/repos/acme/shop/labels", Kind.REST_EDIT),
        ("POST", f"{ISSUES}/1/labels", Kind.REST_EDIT),
        ("PATCH", f"{ISSUES}/comments/1", Kind.REST_EDIT),
        ("DELETE", f"{ISSUES}/1/labels/x", Kind.REST_EDIT),
        ("GET", COMMENTS, Kind.REST_READ),
    ],
)
def test_requests_are_counted_by_kind(verb, path, kind):
    with TinyServer(always(Say(body=[]))) as server:
        transport = server.transport()
        transport.rest(verb, path, purpose=Purpose.HOLD)
        counted = transport.budget().counted
    assert {name: count for name, count in counted.items() if count} == {kind.value: 1}


# Failures


def test_failures_in_a_row_give_the_server_a_rest(clock):
    with TinyServer(always(Say(502, b""))) as server:
        transport = server.transport(clock=clock)
        for _ in range(5):
            with pytest.raises(Unavailable):
                look(transport)
        with pytest.raises(RateLimited) as refusal:
            look(transport)
        assert refusal.value.retry_after_s < 5
    assert len(server.heard) == 5


def test_a_write_whose_reply_was_lost_is_not_sent_again():
    with TinyServer(always(Say(hang_up=True))) as server:
        with pytest.raises(Unavailable) as lost:
            post(server.transport())
        assert not isinstance(lost.value, RateLimited)
        assert len(server.heard) == 1


def test_a_mutation_whose_reply_was_lost_is_not_sent_again():
    with TinyServer(always(Say(hang_up=True))) as server:
        with pytest.raises(Unavailable):
            ask(server.transport(), "# why\n\n  mutation X { addStar { id } }")
        assert len(server.heard) == 1


def test_a_read_is_asked_again_once_when_the_connection_was_dropped():
    with TinyServer(always(Say(hang_up=True), Say(body=[7]))) as server:
        assert look(server.transport()).body == b"[7]"
        assert len(server.heard) == 2
    with TinyServer(always(Say(hang_up=True))) as server:
        with pytest.raises(Unavailable):
            look(server.transport())
        assert len(server.heard) == 2


def test_a_query_is_asked_again_too():
    with TinyServer(always(Say(hang_up=True), Say(body={"data": {"a": 1}}))) as server:
        assert ask(server.transport()).data == {"a": 1}


def test_an_error_of_the_server_is_not_asked_again():
    with TinyServer(always(Say(502, b""))) as server:
        with pytest.raises(Unavailable):
            look(server.transport())
        assert len(server.heard) == 1


def test_a_server_that_is_not_there_is_unavailable(clock):
    with TinyServer(always(Say())) as server:
        api = Api(server.url)
    transport = Transport(api, Token(SECRET, "x"), memory_ledger(clock), clock)
    with pytest.raises(Unavailable, match="did not answer"):
        look(transport)


def test_a_transport_that_was_closed_under_somebodys_feet_is_unavailable():
    with TinyServer(always(Say())) as server:
        transport = server.transport()
        transport.close()
        with pytest.raises(Unavailable):
            look(transport)


def test_a_reply_that_does_not_come_is_not_waited_for_for_ever():
    gate = threading.Event()

    def answer(_):
        gate.wait(60)
        return Say(hang_up=True)

    with TinyServer(answer) as server:
        with pytest.raises(Unavailable, match="too long"):
            post(server.transport(reply_s=0.2))
        gate.set()


WHOLE = b"HTTP/1.1 200 OK\r\nDate: Fri, 01 May 2026 12:00:00 GMT\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("begins", [WHOLE, b"HTTP/1.1 200 OK\r\nX-Slow: ", b""])
def test_a_reply_that_trickles_in_is_not_waited_for_for_ever(clock, begins):
    """Each piece comes in time; the whole of it does not. Neither does the whole of its head."""
    listening = socket.create_server(("127.0.0.1", 0))
    over, hung_up = threading.Event(), threading.Event()

    def trickle():
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(begins)
            while not over.wait(0.01):
                clock.advance(6)
                try:
                    connection.sendall(b"\r\n" if not begins else b"x")
                except ConnectionError:
                    hung_up.set()
                    return

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    try:
        api = Api(f"http://127.0.0.1:{listening.getsockname()[1]}")
        transport = Transport(api, Token(SECRET, "x"), memory_ledger(clock), clock)
        with pytest.raises(Unavailable, match="too long"):
            look(transport)
        assert hung_up.wait(60), "and what is left of it is given up"
    finally:
        over.set()
        thread.join()
        listening.close()


def test_the_whole_call_has_one_end_however_many_waits_it_has(clock):
    """The server takes its time to accept, and then to be written to: what is late is not sent."""
    backend = httpcore.MockBackend([])
    deadline = Deadline(clock)
    stream = _Stream(backend.connect_tcp("x", 1), deadline)
    with deadline.within(10):
        assert deadline.left(5, httpcore.ReadTimeout) == 5
        clock.advance(8)
        assert deadline.left(5, httpcore.ReadTimeout) == pytest.approx(2)
        clock.advance(2)
        with pytest.raises(httpcore.WriteTimeout):
            stream.write(b"POST /")
        with pytest.raises(httpcore.ReadTimeout):
            stream.read(10)
        with pytest.raises(httpcore.ConnectTimeout):
            stream.start_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert deadline.left(5, httpcore.ReadTimeout) == 5, "between calls nothing has an end"


def test_a_wait_for_a_free_connection_is_a_part_of_the_call():
    """All are in use: whoever waits for one gives up in time, and nothing of it is sent."""
    gate, heard = threading.Event(), threading.Semaphore(0)

    def answer(_):
        heard.release()
        gate.wait(60)
        return Say(body=[])

    with TinyServer(answer) as server:
        patient = server.transport(reply_s=60)
        wire = patient._sender._wire
        threads = [threading.Thread(target=look, args=(patient,)) for _ in range(_MOST)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert heard.acquire(timeout=60)
        wire._client.timeout, wire._reply_s = httpx.Timeout(0.2), 0.2
        with pytest.raises(Unavailable, match="too long"):
            post(patient)
        gate.set()
        for thread in threads:
            thread.join()
        assert len(server.heard) == _MOST


def test_a_proxy_of_the_environment_is_asked_instead(monkeypatch):
    with TinyServer(always(Say(body=[1]))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        clock = FakeClock()
        transport = Transport(Api("http://x.test"), Token(SECRET, "x"), memory_ledger(clock), clock)
        assert look(transport).body == b"[1]"
        transport.close()
        assert proxy.heard[0].path == f"http://x.test{ISSUES}"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert look(proxy.transport()).body == b"[1]"
        assert proxy.heard[1].path == ISSUES


# GraphQL


def test_a_document_and_its_variables_are_sent():
    with TinyServer(always(Say(body={"data": {"viewer": {"login": "bob"}}}))) as server:
        reply = ask(server.transport(), "query Q($n: Int!) { viewer { login } }", n=7)
    assert reply.data == {"viewer": {"login": "bob"}}
    assert reply.errors == ()
    assert reply.now == EPOCH
    assert (server.heard[0].verb, server.heard[0].path) == ("POST", "/graphql")
    assert server.heard[0].json["variables"] == {"n": 7}


def test_what_went_wrong_is_told_beside_what_was_done():
    body = {
        "data": {"a": {"id": 1}, "b": None},
        "errors": [
            {"type": "NOT_FOUND", "path": ["b", 0], "message": "Could not\n resolve"},
            {"message": "odd", "extensions": {"code": "undefinedField"}},
            "rubbish",
        ],
    }
    with TinyServer(always(Say(body=body))) as server:
        reply = ask(server.transport(), "mutation { a { id } b { id } }")
    assert reply.data["a"] == {"id": 1}
    missing = reply.at("b")
    assert missing is not None
    assert (missing.type, missing.path, missing.message) == (
        "NOT_FOUND",
        ("b", 0),
        "Could not resolve",
    )
    assert reply.at("a") is None
    assert reply.errors[1].type == "undefinedField"
    assert len(reply.errors) == 2


def test_a_spent_budget_of_graphql_leaves_rest(clock):
    body = {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}
    headers = budget(0, left_s=300, resource="graphql")
    with TinyServer(always(Say(200, body, headers), Say(body=[]))) as server:
        transport = server.transport(clock=clock)
        assert transport.graphql_left()
        with pytest.raises(RateLimited) as refusal:
            ask(transport)
        assert refusal.value.retry_after_s == pytest.approx(300, abs=1)
        assert not transport.graphql_left()
        look(transport)
        clock.advance(301)
        assert transport.graphql_left()


@pytest.mark.parametrize("status", [200, 403])
def test_a_secondary_limit_of_graphql_stops_everything(clock, status):
    message = "You have exceeded a secondary rate limit. Please wait a few minutes."
    body = {"errors": [{"message": message}], "message": message}
    with TinyServer(always(Say(status, body), Say(body=[]))) as server:
        transport = server.transport(clock=clock)
        with pytest.raises(RateLimited):
            ask(transport)
        with pytest.raises(RateLimited):
            look(transport)
        assert transport.graphql_left()
    assert len(server.heard) == 1


def test_a_server_without_graphql_is_asked_once():
    with TinyServer(always(Say(404, {"message": "Not Found"}))) as server:
        transport = server.transport()
        assert transport.graphql_left()
        with pytest.raises(NoGraphql):
            ask(transport)
        assert not transport.graphql_left()


def test_a_document_that_the_server_gave_up_on_is_unknown():
    message = "Something went wrong while executing your query. This may be the result of a timeout"
    for said in (Say(200, {"data": None, "errors": [{"message": message}]}), Say(502, b"")):
        with TinyServer(always(said)) as server, pytest.raises(Unavailable):
            ask(server.transport(), "mutation { a { id } }")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"\xff"])
def test_an_answer_that_is_not_githubs_is_unknown(body):
    with TinyServer(always(Say(200, body))) as server, pytest.raises(Unavailable):
        ask(server.transport())


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ("query { a }", Kind.GRAPHQL_READ),
        ("{ mutation }", Kind.GRAPHQL_READ),
        ("mutation { updateIssueComment { id } addLabelsToLabelable { id } }", Kind.GRAPHQL_EDIT),
        ("mutation T($a: ID!) { e0: addComment(input: {}) { id } }", Kind.GRAPHQL_CREATE),
    ],
)
def test_documents_are_counted_by_kind(document, kind):
    with TinyServer(always(Say(body={"data": {}}))) as server:
        transport = server.transport()
        ask(transport, document)
        counted = transport.budget().counted
    assert {name: count for name, count in counted.items() if count} == {kind.value: 1}


# The token is nobody's business


def test_the_token_is_in_no_error_no_log_and_no_repr():
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    quoting = Say(400, {"message": f"what is Bearer {SECRET}?"})
    answers = [quoting, Say(401, {"message": SECRET}), Say(hang_up=True), Say(502, b""), Say(301)]
    seen = []
    try:
        with TinyServer(always(*answers, Say(body={"data": None}))) as server:
            transport = server.transport()
            for _ in range(len(answers) - 1):  # the 401 is believed after a second look only
                with pytest.raises(Outage) as refusal:
                    post(transport)
                seen += traceback.format_exception(refusal.value)
                seen += [repr(refusal.value), repr(refusal.value.__cause__)]
            seen += [repr(ask(transport)), repr(transport), repr(transport.budget())]
            transport.close()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert "HTTP Request" in log.getvalue(), "the library does log"
    assert SECRET not in "".join(seen) + log.getvalue()


def test_a_proxy_that_cannot_be_used_is_a_wrong_setting(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "foo://bob:hunter2@127.0.0.1:1")
    with pytest.raises(BadConfiguration) as refusal:
        Transport(Api("http://x"), Token(SECRET, "x"), memory_ledger(FakeClock()), FakeClock())
    assert "hunter2" not in str(refusal.value)


# Threads, and several at once


def test_many_threads_use_one_transport():
    with TinyServer(always(Say(body=[]))) as server:
        transport = server.transport()
        threads = [threading.Thread(target=look, args=(transport,)) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert transport.budget().counted["rest read"] == 24
    assert len(server.heard) == 25


def test_one_token_is_one_transport_for_all_repositories(tmp_path):
    with TinyServer(always(Say(body=[]))) as server:
        around = {
            "GITHUB_API_URL": server.url,
            "GITHUB_TOKEN": SECRET,
            "DIBS_STATE": str(tmp_path / "s"),
        }
        transports = Transports(around)
        one = transports.for_repository("acme/shop")
        assert transports.for_repository("umbrella/corp") is one
        look(one)
        transports.close()
        assert [file.suffix for file in (tmp_path / "s").iterdir()] == [".json"]


def test_an_app_has_a_transport_for_each_owner(tmp_path):
    around = {
        "GITHUB_APP_ID": "7",
        "GITHUB_APP_PRIVATE_KEY": "-----BEGIN",
        "DIBS_STATE": str(tmp_path),
    }
    transports = Transports(around)
    one = transports.for_repository("acme/shop")
    assert transports.for_repository("Acme/other") is one
    assert transports.for_repository("umbrella/corp") is not one
    assert len(transports._opened) == 2


# What is told of the budget

RATES = {
    "resources": {
        "core": {"limit": 5000, "remaining": 4000, "reset": 1_777_640_000, "used": 1000},
        "graphql": {"limit": 5000, "remaining": 5000, "reset": 1_777_640_000, "used": 0},
        "search": {"limit": 30, "remaining": 30, "reset": 1_777_640_000, "used": 0},
    }
}


def test_the_budget_is_what_github_says_and_what_we_counted(clock):
    def answer(heard):
        return Say(body=RATES if heard.path == "/rate_limit" else [])

    with TinyServer(answer) as server:
        transport = server.transport(clock=clock)
        post(transport)
        report = transport.budget()
    assert [(one.name, one.used, one.remaining) for one in report.allowances] == [
        ("REST", 1000, 4000),
        ("GraphQL", 0, 5000),
    ]
    assert report.now == EPOCH
    assert {one.name: (one.used, one.most) for one in report.kept} == {
        "creations a minute": (1, 80),
        "creations an hour": (1, 500),
        "new issues a minute": (0, 20),
        "new issues an hour": (0, 150),
        "REST points a minute": (5, 900),
        "GraphQL points a minute": (0, 2000),
    }
    assert report.counted["rest create"] == 1
    assert (report.shut, report.trouble, report.shared) == (None, None, False)


def test_the_budget_can_be_looked_at_when_it_is_spent(clock):
    def answer(heard):
        return Say(body=RATES) if heard.path == "/rate_limit" else Say(403, {}, budget(0))

    with TinyServer(answer) as server:
        transport = server.transport(clock=clock)
        with pytest.raises(RateLimited):
            look(transport)
        assert transport.budget().allowances


def test_a_server_that_is_left_alone_is_not_asked_for_its_budget(clock):
    with TinyServer(always(Say(429, {}, {"Retry-After": "30"}))) as server:
        transport = server.transport(clock=clock)
        with pytest.raises(RateLimited):
            look(transport)
        report = transport.budget()
        assert len(server.heard) == 1
    assert report.shut is not None
    assert report.shut.wait_s == pytest.approx(30, abs=1)
    assert (report.now, report.allowances) == (None, ())


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        (Say(404, {"message": "Rate limiting is not enabled."}), type(None)),
        (Say(401, {"message": "Bad credentials"}), NotPermitted),
        (Say(200, b"<html>"), Unavailable),
        (Say(hang_up=True), Unavailable),
    ],
)
def test_a_budget_that_cannot_be_had_is_told_so(said, trouble):
    with TinyServer(always(said)) as server:
        report = server.transport().budget()
    assert report.allowances == ()
    assert isinstance(report.trouble, trouble)
