"""The transport and a whole GitHub of our own: limits, ETags, renames, Apps, and real processes."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from dibs.adapters.github.auth import Api, Token
from dibs.adapters.github.client import Purpose, Transport, Transports
from dibs.adapters.github.limits import Limits as Kept
from dibs.adapters.system import SystemClock
from dibs.core.errors import NotPermitted, RateLimited, Unavailable
from dibs.testing.clock import FakeClock
from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Standing, Wrong

from .test_auth import PEM, PUBLIC
from .tiny import memory_ledger

ROOT = Path(__file__).parents[2]
REPOSITORY = "acme/shop"
ISSUES = f"/repos/{REPOSITORY}/issues"
COMMENTS = f"{ISSUES}/1/comments"
VIEWER = "query Who { viewer { login } }"


class World:
    """A fake with one issue, a worker's token, and time that moves when it is told to."""

    def __init__(self, *, limits=None, clock=None, graphql=True):
        self.clock = clock or FakeClock(grain=timedelta(seconds=1))
        now = {"clock": self.clock.server_now} if isinstance(self.clock, FakeClock) else {}
        self.hub = FakeHub(limits=limits or Limits(), graphql=graphql, **now)
        self.token = self.hub.user("worker", {REPOSITORY: Permission.WRITE})
        acting = self.hub.state.acting(self.hub.state.viewer(self.token))
        self.issue = acting.create_issue(self.hub.state.named(REPOSITORY), "first")
        self.acting = acting
        self.opened = []

    def __enter__(self):
        self.hub.start()
        return self

    def __exit__(self, *_):
        for transport in self.opened:
            transport.close()
        self.hub.close()

    def transport(self, token=None, *, ledger=None, kept=None):
        made = Transport(
            Api(self.hub.url),
            Token(token or self.token, "GITHUB_TOKEN"),
            ledger or memory_ledger(self.clock, kept),
            self.clock,
        )
        self.opened.append(made)
        return made

    def environment(self, tmp_path):
        return {
            **os.environ,
            "GITHUB_API_URL": self.hub.url,
            "GITHUB_TOKEN": self.token,
            "DIBS_STATE": str(tmp_path / "shared"),
        }


def look(transport, path=ISSUES, purpose=Purpose.LOOK, **more):
    return transport.rest("GET", path, purpose=purpose, **more)


def post(transport, path=COMMENTS, purpose=Purpose.CLAIM, **more):
    return transport.rest("POST", path, purpose=purpose, wanted={"body": "hello"}, **more)


# Frugality


def test_an_unchanged_poll_costs_nothing():
    with World() as world:
        transport = world.transport()
        first = look(transport, conditional=True)
        before = world.hub.counts.told()["points"]
        polls = [look(transport, conditional=True) for _ in range(100)]
        told = world.hub.counts.told()
        assert told["points"] == before
        assert told["not_modified"] == 100
        assert all(poll.unchanged and poll.body == first.body for poll in polls)
        post(transport)
        changed = look(transport, conditional=True)
        assert not changed.unchanged
        assert changed.body != first.body
        counted = transport.budget().counted
    assert (counted["rest read"], counted["rest unchanged"]) == (2, 100)


def test_all_pages_are_read_where_the_server_says_they_are():
    with World() as world:
        for number in range(120):
            world.acting.create_comment(world.issue, f"comment {number}")
        transport = world.transport()
        reply = look(transport, COMMENTS, params={"per_page": "50"})
        pages = 1
        while (following := transport.follow(reply)) is not None:
            assert "/repositories/" in following
            reply = look(transport, following)
            pages += 1
    assert pages == 3


def test_time_is_the_servers():
    with World() as world:
        world.clock.advance(90.7)
        transport = world.transport()
        assert look(transport).now == world.clock.server_now()
        told = transport.graphql(VIEWER, {}, purpose=Purpose.LOOK)
        assert told.data == {"viewer": {"login": "worker"}}
        assert told.now == world.clock.server_now()


# Limits


def test_the_pace_that_we_keep_is_one_that_the_server_takes():
    with World(limits=Limits(content_per_minute=20, content_per_hour=50)) as world:
        kept = Kept(creations_a_minute=20, creations_an_hour=50)
        transport = world.transport(kept=kept)
        posted = 0
        for _ in range(400):
            try:
                post(transport, purpose=Purpose.HOLD)
                posted += 1
            except RateLimited as limit:
                world.clock.advance(limit.retry_after_s)
        told = world.hub.counts.told()
    assert "403" not in told["by_status"]
    assert posted > 100
    assert world.clock.passed_s > 3600


def test_a_rest_is_kept_until_it_is_over_and_no_longer():
    with World(limits=Limits(content_per_minute=3)) as world:
        transport = world.transport()
        for _ in range(3):
            post(transport)
        with pytest.raises(RateLimited) as refusal:
            post(transport)
        asked = world.hub.counts.told()["requests"]
        with pytest.raises(RateLimited):
            look(transport, purpose=Purpose.HOLD)
        assert world.hub.counts.told()["requests"] == asked
        world.clock.advance(refusal.value.retry_after_s)
        post(transport)


def test_a_budget_near_its_end_is_kept_for_heartbeats():
    with World() as world:
        transport = world.transport()
        look(transport)
        world.hub.world.meter.spend(world.hub.state.viewer(world.token), 4850)
        look(transport)
        for purpose in (Purpose.DISCOVER, Purpose.LOOK, Purpose.CLAIM):
            with pytest.raises(RateLimited):
                look(transport, purpose=purpose)
        look(transport, purpose=Purpose.FINISH)
        world.hub.world.meter.spend(world.hub.state.viewer(world.token), 145)
        look(transport, purpose=Purpose.HOLD)
        with pytest.raises(RateLimited):
            look(transport, purpose=Purpose.FINISH)
        look(transport, purpose=Purpose.HOLD)
        with pytest.raises(RateLimited) as refusal:
            look(transport, purpose=Purpose.HOLD)
        assert world.hub.counts.told()["by_status"] == {"200": 5}, "the last was not even sent"
        assert transport.graphql_left(), "the other budget is its own"
        world.clock.advance(refusal.value.retry_after_s)
        look(transport, purpose=Purpose.DISCOVER)


def test_a_spent_graphql_budget_leaves_rest():
    with World() as world:
        transport = world.transport()
        viewer = world.hub.state.viewer(world.token)
        world.hub.world.meter.spend(viewer, 5000, "graphql")
        with pytest.raises(RateLimited) as refusal:
            transport.graphql(VIEWER, {}, purpose=Purpose.HOLD)
        assert not transport.graphql_left()
        look(transport)
        world.clock.advance(refusal.value.retry_after_s)
        assert transport.graphql_left()
        transport.graphql(VIEWER, {}, purpose=Purpose.HOLD)


def test_a_server_without_graphql_is_told_from_one_that_has_it():
    with World(graphql=False) as world:
        transport = world.transport()
        with pytest.raises(Unavailable):
            transport.graphql(VIEWER, {}, purpose=Purpose.LOOK)
        assert not transport.graphql_left()
        look(transport)


def test_what_is_left_is_what_the_server_counted():
    with World() as world:
        transport = world.transport()
        for _ in range(3):
            look(transport)
        post(transport)
        transport.graphql(VIEWER, {}, purpose=Purpose.LOOK)
        report = transport.budget()
        assert world.hub.counts.told()["points"] == {"core": 4, "graphql": 1}
    rest, graphql = report.allowances
    assert (rest.name, rest.used, rest.limit) == ("REST", 4, 5000)
    assert (graphql.name, graphql.used) == ("GraphQL", 1)
    assert {name: count for name, count in report.counted.items() if count} == {
        "rest read": 3,
        "rest create": 1,
        "graphql read": 1,
    }


# Replies that are lost


@pytest.mark.parametrize("wrong", [Wrong.DROP_AFTER, Wrong.ERROR_AFTER])
def test_a_write_whose_reply_is_lost_happens_once_and_nobody_knows(wrong):
    with World() as world:
        world.hub.faults.add(Fault(wrong, kind="POST", times=1))
        with pytest.raises(Unavailable) as lost:
            post(world.transport())
        assert lost.value.retryable
        world.hub.faults.clear()
        comments = look(world.transport(), COMMENTS).body
    assert comments.count(b'"hello"') == 1


def test_a_read_over_a_dropped_connection_is_asked_again():
    with World() as world:
        transport = world.transport()
        look(transport)
        world.hub.faults.add(Fault(Wrong.DROP_BEFORE, kind="GET", times=1))
        assert look(transport).status == 200


# People's doings


def test_a_renamed_repository_is_found_and_remembered():
    with World() as world:
        transport = world.transport()
        world.hub.state.rename(REPOSITORY, "acme/store")
        assert post(transport).status == 201
        before = world.hub.counts.told()["requests"]
        assert look(transport, COMMENTS).status == 200
        assert world.hub.counts.told()["requests"] == before + 1


def test_a_transferred_issue_is_not_taken_for_a_renamed_repository():
    with World() as world:
        other = world.hub.repository("acme/other")
        world.hub.state.grant("acme/other", "worker", Permission.WRITE)
        world.acting.transfer_issue(world.issue, other)
        transport = world.transport()
        assert look(transport, f"{ISSUES}/1", ok=(200, 301)).status == 301
        assert look(transport, ISSUES).status == 200
        address = f"{world.hub.url}{ISSUES}"
        assert transport._renames.current(address) == address, "it is not remembered as renamed"


def test_an_archived_repository_says_so():
    with World() as world:
        world.hub.state.archive(REPOSITORY)
        with pytest.raises(NotPermitted, match="archived"):
            post(world.transport())


@pytest.mark.parametrize("standing", [one for one in Standing if one is not Standing.OK])
def test_a_token_that_is_no_good_says_so(standing):
    with World() as world:
        world.hub.state.set_standing(world.token, standing)
        with pytest.raises(NotPermitted) as refusal:
            post(world.transport())
        with pytest.raises(NotPermitted):
            world.transport().graphql(VIEWER, {}, purpose=Purpose.LOOK)
    assert world.token not in str(refusal.value)


def test_a_token_that_may_not_write_says_what_is_missing():
    with World() as world:
        world.hub.repository("acme/secret", private=True)
        world.hub.state.grant("acme/secret", "worker", Permission.WRITE)
        world.hub.state.add_token("narrow", "worker", scopes=frozenset({"read:org"}))
        with pytest.raises(NotPermitted) as refusal:
            world.transport("narrow").rest(
                "POST",
                "/repos/acme/secret/issues",
                purpose=Purpose.CLAIM,
                wanted={"title": "one more"},
            )
    assert "read:org" in str(refusal.value)


# An App


def test_an_app_works_and_goes_on_when_its_token_ends(tmp_path):
    public = PUBLIC.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()
    with World() as world:
        installed = world.hub.install("dibs", public, REPOSITORY)
        around = {
            **world.environment(tmp_path),
            "GITHUB_TOKEN": "",
            "GITHUB_APP_ID": str(installed.app.id),
            "GITHUB_APP_PRIVATE_KEY": PEM,
        }
        transports = Transports(around, world.clock)
        transport = transports.for_repository(REPOSITORY)
        assert b"dibs[bot]" in post(transport).body
        world.clock.advance(2 * 3600)
        assert post(transport).status == 201
        kinds = world.hub.counts.told()["by_kind"]
        (report,) = transports.budgets()
        transports.close()
    # Our time of day is not the fake's: that is found out once, and again after it was set.
    assert [count for kind, count in kinds.items() if "access_tokens" in kind] == [3]
    assert report.allowances
    (ledger,) = (tmp_path / "shared").iterdir()
    assert str(installed.app.id) not in ledger.name


# Processes


def posters(world, tmp_path, count, most, seconds):
    command = [sys.executable, "-m", "tests.github.poster", str(most), str(seconds)]
    running = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=world.environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        ended = [one.communicate(timeout=100) for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    for said, flaws in ended:
        assert world.token not in said + flaws
        assert flaws == ""
    return [line.split()[0] for said, _ in ended for line in said.splitlines()]


def test_processes_on_one_machine_keep_to_one_pace_together(tmp_path):
    """Four at once, each of which alone could fill the minute three times over."""
    with World(limits=Limits(content_per_minute=24), clock=SystemClock()) as world:
        said = posters(world, tmp_path, count=4, most=24, seconds=2.0)
        told = world.hub.counts.told()
    assert said.count("posted") == told["created"]["issue_comment"] == 24
    assert set(said) == {"posted", "refused"}
    assert set(told["by_status"]) == {"201"}, "the server never had to say no"


def test_one_retry_after_stops_the_processes_of_a_machine(tmp_path):
    """They think that they may, the server says no to one, and all of them hear it."""
    with World(limits=Limits(content_per_minute=5), clock=SystemClock()) as world:
        first = posters(world, tmp_path, count=1, most=80, seconds=0.5)
        assert first.count("posted") == 5
        refused = world.hub.counts.told()["by_status"]["403"]
        asked = world.hub.counts.told()["requests"]
        later = posters(world, tmp_path, count=3, most=80, seconds=0.5)
        told = world.hub.counts.told()
    assert refused == 1
    assert set(later) == {"refused"}
    assert told["requests"] == asked, "nothing was sent at all"
