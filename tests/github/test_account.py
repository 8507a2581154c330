"""Which account a token is, and that a claim which nobody would believe is never posted."""

from contextlib import ExitStack

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dibs.adapters.github.auth import AppInstallation, api_at
from dibs.adapters.github.client import Transport
from dibs.adapters.github.tracker import GithubTracker
from dibs.core.errors import NotPermitted
from dibs.core.issue import Draft
from dibs_lab.fakehub import Permission

from .hubs import REPOSITORY, UNPACED, Hub
from .test_auth import PEM, PUBLIC
from .test_believing import BOTH, card
from .tiny import memory_ledger

BOT = "fleet-bot[bot]"
BID = card("aaaaaaaaaaaa")


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def ref(hub):
    return hub.client().create(Draft("one")).ref


@pytest.fixture
def as_app(hub):
    """A tracker with the token of an App that is installed in the repository."""
    text = PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    installed = hub.hub.install("fleet-bot", text, REPOSITORY)

    def make(**options):
        app = AppInstallation(str(installed.app.id), PEM, hub.clock, repository=REPOSITORY)
        ledger = memory_ledger(hub.clock, UNPACED)
        transport = Transport(api_at(hub.hub.url), app, ledger, hub.clock)
        hub._opened.callback(transport.close)
        return GithubTracker(transport, REPOSITORY, **options)

    return make


def refused_before_the_first_comment(hub, client, ref, says):
    with pytest.raises(NotPermitted, match=says):
        client.comment(ref, BID)
    assert hub.state.primary().comments(hub.issue(int(ref.key)).id) == []


def test_an_app_that_nobody_names_is_refused_before_its_first_bid(hub, ref, as_app):
    client = as_app()
    refused_before_the_first_comment(hub, client, ref, r"fleet-bot\[bot\].*is an App's")
    assert client.login() == BOT
    assert client.standpoint().ours_count is False, "and doctor fails on it"


def test_an_app_that_the_settings_name_is_believed(hub, ref, as_app):
    client = as_app(trusted=(BOT,))
    client.comment(ref, BID)
    assert [one.by_writer for one in client.read(ref).comments] == [True]
    assert client.standpoint().ours_count is True
    refused_before_the_first_comment(
        hub, as_app(trusted=("fleet",)), hub.client().create(Draft("two")).ref, "trusted names"
    )


def test_an_account_that_may_not_write_is_refused_before_its_first_bid(hub, ref):
    hub.state.grant(REPOSITORY, "mallory", Permission.TRIAGE)
    refused_before_the_first_comment(hub, hub.client("mallory"), ref, "may not write")
    refused_before_the_first_comment(
        hub, hub.client("colleague", trusted=("fleet",)), ref, "trusted names"
    )


def test_who_asks_comes_with_every_reading_and_is_asked_for_at_most_once(hub, ref):
    client = hub.client()
    client.read(ref)
    with hub.counted() as counted:
        client.comment(ref, BID)
        assert client.login() == "fleet"
    assert counted == {"POST /repos/{owner}/{repo}/issues/{number}/comments": 1}
    client = hub.client()
    with hub.counted() as counted:
        for _ in range(2):
            client.comment(ref, BID)
    assert counted["graphql query Reader"] == 1


@BOTH
def test_the_account_is_known_without_graphql_too_if_it_is_no_apps(hub, as_app, graphql):
    assert hub.client(graphql=graphql).login() == "fleet"
    assert as_app(graphql=graphql).login() == (BOT if graphql else None)
