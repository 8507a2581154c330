"""Where a token comes from, which server it is for, and that nobody ever sees it."""

import json
import os
import stat
from datetime import UTC, datetime, timedelta
from email.utils import formatdate

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from rich.pretty import pretty_repr

from dibs.adapters.github.auth import (
    Answered,
    Api,
    AppInstallation,
    Remedy,
    Token,
    _AccessToken,
    api_of,
    credential_of,
    token_of,
)
from dibs.adapters.github.limits import Budget, Kind, Limited, Limits, Passed, Purpose, Resource
from dibs.adapters.system import wall_clock
from dibs.core.errors import BadConfiguration, NotPermitted, RateLimited, Unavailable
from dibs.core.ids import LocalTime
from dibs.testing.clock import FakeClock

from .tiny import SECRET, Say, TinyServer, memory_ledger

NOBODY = {"PATH": "/nonexistent"}
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.TraditionalOpenSSL,
    serialization.NoEncryption(),
).decode()
PUBLIC = KEY.public_key()
GITHUB = api_of({})


def never(*_):
    raise AssertionError("nobody is asked")


# The server


@pytest.mark.parametrize(
    ("setting", "rest", "graphql", "host"),
    [
        ("", "https://api.github.com", "https://api.github.com/graphql", "github.com"),
        (
            "https://ghe.acme.example/api/v3/",
            "https://ghe.acme.example/api/v3",
            "https://ghe.acme.example/api/graphql",
            "ghe.acme.example",
        ),
        (
            "https://api.acme.ghe.com",
            "https://api.acme.ghe.com",
            "https://api.acme.ghe.com/graphql",
            "acme.ghe.com",
        ),
        (
            "http://127.0.0.1:4400",
            "http://127.0.0.1:4400",
            "http://127.0.0.1:4400/graphql",
            "127.0.0.1:4400",
        ),
    ],
)
def test_which_server_is_asked(setting, rest, graphql, host):
    api = api_of({"GITHUB_API_URL": setting})
    assert (api.rest, api.graphql, api.host) == (rest, graphql, host)


@pytest.mark.parametrize(
    "setting",
    [
        "ghe.acme.example",
        "ftp://x",
        "https://",
        "https://x:notaport",
        "https://x:99999",
        "http://[",
    ],
)
def test_what_is_no_address_is_a_wrong_setting(setting):
    with pytest.raises(BadConfiguration, match="GITHUB_API_URL"):
        api_of({"GITHUB_API_URL": setting})


@pytest.mark.parametrize(
    "setting",
    ["https://bob:hunter2@x", "https://x/?t=hunter2", "https://x/#hunter2", "bob:hunter2@x"],
)
def test_a_secret_in_the_address_is_a_wrong_setting_and_not_shown(setting):
    with pytest.raises(BadConfiguration) as refusal:
        api_of({"GITHUB_API_URL": setting})
    assert "hunter2" not in str(refusal.value)


def test_an_address_of_another_server_is_not_ours():
    api = Api("https://ghe.acme.example/api/v3")
    api.insist_owns("https://ghe.acme.example/api/v3/repositories/1")
    for other in (
        "http://ghe.acme.example/",
        "https://ghe.acme.example:8443/",
        "https://evil/",
        "https://ghe.acme.example@evil/api/v3",
    ):
        with pytest.raises(Unavailable):
            api.insist_owns(other)


# The order

GITHUB = Api("https://api.github.com")


def test_the_first_variable_that_is_set_counts():
    names = ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
    environment = {name: f"token-of-{name}" for name in names}
    for name in names:
        found = token_of(environment, GITHUB)
        assert found is not None
        assert (found.secret, found.origin) == (f"token-of-{name}", name)
        del environment[name]
    assert token_of(environment, GITHUB) is None
    assert token_of({"GITHUB_TOKEN": "", "GH_TOKEN": " \n"}, GITHUB) is None


@pytest.mark.parametrize(
    ("address", "counts"),
    [
        ("https://api.github.com", "GITHUB_TOKEN"),
        ("https://api.acme.ghe.com", "GITHUB_TOKEN"),
        ("https://ghe.acme.example/api/v3", "GH_ENTERPRISE_TOKEN"),
        ("https://ghe.com.acme.example/api/v3", "GH_ENTERPRISE_TOKEN"),
    ],
)
def test_another_server_than_githubs_has_a_token_of_its_own(address, counts):
    names = ("GITHUB_TOKEN", "GH_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GH_ENTERPRISE_TOKEN")
    environment = {name: f"token-of-{name}" for name in names}
    found = token_of(environment, Api(address))
    assert found == Token(f"token-of-{counts}", counts)
    alone = {"GITHUB_ENTERPRISE_TOKEN": SECRET}
    expected = None if counts == "GITHUB_TOKEN" else Token(SECRET, "GITHUB_ENTERPRISE_TOKEN")
    assert token_of(alone, Api(address)) == expected


def test_a_newline_at_the_end_is_not_part_of_a_token():
    found = token_of({"GITHUB_TOKEN": f"{SECRET}\n"}, GITHUB)
    assert found == Token(SECRET, "GITHUB_TOKEN")


@pytest.mark.parametrize("flawed", ["ghp_a b", "ghp_a\nghp_b", "ghp_\x00", "ghp_ä"])
def test_what_cannot_be_a_token_is_refused_and_not_shown(flawed):
    with pytest.raises(BadConfiguration) as refusal:
        token_of({"GITHUB_TOKEN": flawed}, GITHUB)
    assert "ghp" not in str(refusal.value)


def test_a_token_is_not_shown():
    assert SECRET not in repr(Token(SECRET, "GITHUB_TOKEN"))


APP = {"GITHUB_APP_ID": "7", "GITHUB_APP_PRIVATE_KEY": PEM}


@pytest.fixture
def gh(tmp_path):
    """A program of that name, which answers for github.com only."""

    def make(script):
        program = tmp_path / "bin" / "gh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}

    return make


STORED = '[ "$*" = "auth token --hostname github.com" ] && echo gho_stored || exit 1'


def test_a_token_wins_over_an_app_and_an_app_over_gh(gh):
    clock, around = FakeClock(), gh(STORED)
    everything = {**around, **APP, "GITHUB_TOKEN": SECRET}

    def found(environment):
        return credential_of(environment, clock, GITHUB, repository="acme/shop")

    assert found(everything).token(never) == SECRET
    del everything["GITHUB_TOKEN"]
    assert isinstance(found(everything), AppInstallation)
    assert found(around).token(never) == "gho_stored"


def test_what_gh_stored_is_for_its_own_server(gh):
    with pytest.raises(NotPermitted):
        credential_of(gh(STORED), FakeClock(), Api("https://ghe.acme.example/api/v3"))


@pytest.mark.parametrize("script", ["exit 1", "true", "echo half a token", "kill -9 $$"])
def test_a_gh_that_knows_none_is_no_reason_to_fail_otherwise(gh, script):
    with pytest.raises((NotPermitted, BadConfiguration)) as refusal:
        credential_of(gh(script), FakeClock(), GITHUB)
    assert "half" not in str(refusal.value)


def test_without_anything_it_says_where_it_looked():
    with pytest.raises(NotPermitted) as refusal:
        credential_of(NOBODY, FakeClock(), GITHUB)
    for name in ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "GITHUB_APP_ID", "gh"):
        assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"GITHUB_APP_ID": "7"}, "GITHUB_APP_PRIVATE_KEY"),
        ({"GITHUB_APP_PRIVATE_KEY": PEM}, "GITHUB_APP_ID"),
        ({**APP, "GITHUB_APP_INSTALLATION_ID": "mine"}, "GITHUB_APP_INSTALLATION_ID"),
        ({"GITHUB_APP_ID": "7", "GITHUB_APP_PRIVATE_KEY_FILE": "/nonexistent/key"}, "KEY_FILE"),
    ],
)
def test_half_an_app_is_a_wrong_setting(settings, missing):
    with pytest.raises(BadConfiguration, match=missing):
        credential_of({**NOBODY, **settings}, FakeClock(), GITHUB, repository="acme/shop")


# An App


class Github:
    """GitHub's part in giving an App its tokens."""

    def __init__(self, clock, *, ahead_s=0, lasts_s=3600):
        self.clock, self.ahead_s, self.lasts_s = clock, ahead_s, lasts_s
        self.given = 0
        self.asked = []

    def now(self):
        return wall_clock().replace(microsecond=0) + timedelta(seconds=self.ahead_s)

    def __call__(self, verb, path, bearer):
        self.asked.append((verb, path))
        headers = {"date": formatdate(self.now().timestamp(), usegmt=True)}
        told = jwt.decode(
            bearer, PUBLIC, algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False}
        )
        assert told["iss"] == "7"
        at = self.now().timestamp()
        if not told["iat"] <= at <= told["exp"] or told["exp"] > at + 600:
            body = {"message": "'Expiration time' claim ('exp') is too far in the future"}
            return Answered(401, headers, json.dumps(body).encode(), self.clock.now())
        if path == "/repos/acme/shop/installation":
            return Answered(200, headers, b'{"id": 42, "account": {}}', self.clock.now())
        if path != "/app/installations/42/access_tokens":
            return Answered(404, headers, b'{"message": "Not Found"}', self.clock.now())
        self.given += 1
        ends = (self.now() + timedelta(seconds=self.lasts_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"token": f"ghs_{self.given}", "expires_at": ends, "permissions": {}}
        return Answered(201, headers, json.dumps(body).encode(), self.clock.now())


def app(clock, **more):
    return AppInstallation("7", PEM, clock, **{"repository": "acme/shop", **more})


def test_an_app_finds_its_installation_and_keeps_its_token():
    clock = FakeClock()
    github, ours = Github(clock), app(clock)
    assert [ours.token(github) for _ in range(3)] == ["ghs_1"] * 3
    assert [path for _, path in github.asked] == [
        "/repos/acme/shop/installation",
        "/app/installations/42/access_tokens",
    ]


def test_an_installation_that_is_named_is_not_looked_for():
    clock = FakeClock()
    github = Github(clock)
    assert app(clock, installation="42").token(github) == "ghs_1"
    assert len(github.asked) == 1


def test_a_token_is_renewed_before_it_ends_by_the_local_clock():
    clock = FakeClock()
    github, ours = Github(clock), app(clock, installation="42")
    assert ours.token(github) == "ghs_1"
    clock.advance(54 * 60)
    assert ours.token(github) == "ghs_1"
    clock.advance(60)
    assert ours.token(github) == "ghs_2"


def test_a_token_that_cannot_be_renewed_is_used_to_its_end():
    clock = FakeClock()
    github, ours = Github(clock), app(clock, installation="42")
    assert ours.token(github) == "ghs_1"

    def broken(*_):
        asked.append(clock.now())
        return Answered(503, {}, b"", clock.now())

    asked = []
    clock.advance(56 * 60)
    assert [ours.token(broken) for _ in range(5)] == ["ghs_1"] * 5
    assert len(asked) == 1, "and it is not asked for all the time"
    clock.advance(60)
    assert ours.token(github) == "ghs_2"
    clock.advance(3600)
    with pytest.raises(Unavailable):
        ours.token(broken)


@pytest.mark.parametrize("ahead_s", [-3 * 3600, -700, 700, 86400])
def test_a_time_of_day_that_is_wrong_is_no_obstacle(ahead_s):
    clock = FakeClock()
    github, ours = Github(clock, ahead_s=ahead_s), app(clock, installation="42")
    assert ours.token(github) == "ghs_1"
    clock.advance(54 * 60)
    assert ours.token(github) == "ghs_1"


def test_a_token_that_is_refused_is_replaced_once():
    clock = FakeClock()
    github, ours = Github(clock), app(clock, installation="42")
    first = ours.token(github)
    assert ours.refused(first) is Remedy.SAME_AGAIN
    assert ours.token(github) == first
    clock.advance(10)
    assert ours.refused(first) is Remedy.ANOTHER
    assert ours.token(github) == "ghs_2"
    assert ours.refused(first) is Remedy.ANOTHER, "an old one that others still try"
    assert ours.token(github) == "ghs_2"


def test_an_app_that_is_not_installed_says_so():
    clock = FakeClock()
    ours = app(clock, repository="acme/other")
    with pytest.raises(NotPermitted, match="not installed for acme/other"):
        ours.token(Github(clock))


def test_a_server_that_fails_is_not_the_apps_fault():
    def broken(*_):
        return Answered(502, {}, b"", FakeClock().now())

    with pytest.raises(Unavailable):
        app(FakeClock(), installation="42").token(broken)


def test_a_key_that_is_none_is_not_shown():
    ours = AppInstallation("7", "-----BEGIN hunter2-----", FakeClock(), installation="42")
    with pytest.raises(BadConfiguration) as refusal:
        ours.token(never)
    assert "hunter2" not in str(refusal.value) + repr(ours)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


def test_a_key_may_be_in_a_file_or_on_one_line(tmp_path):
    file = tmp_path / "key.pem"
    file.write_text(PEM)
    clock = FakeClock()
    for given in (
        {"GITHUB_APP_PRIVATE_KEY_FILE": str(file)},
        {"GITHUB_APP_PRIVATE_KEY": PEM.replace("\n", "\\n")},
    ):
        environment = {**NOBODY, "GITHUB_APP_ID": "7", **given}
        found = credential_of(environment, clock, GITHUB, repository="acme/shop")
        assert found.token(Github(clock)) == "ghs_1"
        assert "PRIVATE" not in repr(found)


def test_owners_repositories_share_an_installation_and_so_its_limits():
    clock = FakeClock()
    one, two = app(clock, repository="acme/shop"), app(clock, repository="Acme/other")
    assert one.identity == two.identity
    assert one.identity != app(clock, repository="umbrella/shop").identity


def test_an_app_whose_token_ended_early_asks_for_another_and_goes_on():
    """Over a real server: 401 once, and the write is sent again, since it was refused."""
    clock, good = FakeClock(), {"ghs_1"}

    def answer(heard):
        if heard.path.endswith("/access_tokens"):
            given = sum(one.path == heard.path for one in server.heard)
            ends = datetime(2030, 1, 1, tzinfo=UTC).isoformat()
            return Say(201, {"token": f"ghs_{given}", "expires_at": ends})
        if heard.bearer not in good:
            return Say(401, {"message": "Bad credentials"})
        return Say(201, {"id": 1})

    with TinyServer(answer) as server:
        transport = server.transport(clock=clock, credential=app(clock, installation="42"))
        path = "/repos/acme/shop/issues/1/comments"
        reply = transport.rest("POST", path, purpose=Purpose.CLAIM, wanted={"body": "x"})
        assert reply.status == 201
        clock.advance(60)
        good.clear()
        good.add("ghs_2")
        assert transport.rest("GET", path, purpose=Purpose.CLAIM).status == 201
        bearers = [one.bearer for one in server.heard if one.path == path]
        assert bearers == ["ghs_1", "ghs_1", "ghs_2"]
        good.clear()
        with pytest.raises(NotPermitted, match="expired"):
            transport.rest("GET", "/user", purpose=Purpose.LOOK)
        transport.close()


# An App and the rest that GitHub asked for


class Giving:
    """Gives an App tokens, and answers everything else as it is told to."""

    def __init__(self):
        self.others = Say(body=[])
        self.tokens = None
        self.good = ""
        """The one token that is taken; empty: any."""

    def __call__(self, heard):
        if not heard.path.endswith("/access_tokens"):
            refused = self.good and heard.bearer != self.good
            return Say(401, {"message": "Bad credentials"}) if refused else self.others
        if self.tokens is not None:
            return self.tokens
        self.given = getattr(self, "given", 0) + 1
        ends = datetime(2030, 1, 1, tzinfo=UTC).isoformat()
        return Say(201, {"token": f"ghs_{self.given}", "expires_at": ends})


@pytest.fixture
def giving():
    return Giving()


def shut(clock, seconds=600.0):
    ledger = memory_ledger(clock)
    ledger.note(Limited(clock.now(), clock.now(), seconds, "GitHub wants a rest"))
    return ledger


def of_an_app(server, clock, ledger=None):
    return server.transport(clock=clock, ledger=ledger, credential=app(clock, installation="42"))


def ask(transport, purpose=Purpose.LOOK):
    return transport.rest("GET", "/repos/acme/shop", purpose=purpose)


def test_an_app_asks_for_no_token_while_github_wants_a_rest(giving):
    clock = FakeClock()
    with TinyServer(giving) as server:
        transport = of_an_app(server, clock, shut(clock))
        for _ in range(20):
            with pytest.raises(RateLimited, match="wants a rest"):
                ask(transport)
        assert server.heard == []
        clock.advance(610)
        assert ask(transport).status == 200
    assert [one.path for one in server.heard][1:] == ["/repos/acme/shop"]


def test_a_token_that_cannot_be_had_opens_the_breaker_like_anything_else(giving):
    clock = FakeClock()
    giving.tokens = Say(429, {"message": "slow"}, {"Retry-After": "30"})
    with TinyServer(giving) as server:
        transport = of_an_app(server, clock)
        for _ in range(5):
            with pytest.raises(RateLimited):
                ask(transport)
        assert len(server.heard) == 1
        clock.advance(35)
        giving.tokens = Say(502, b"")
        with pytest.raises(Unavailable):
            ask(transport)
        with pytest.raises(RateLimited):
            ask(transport)
        assert len(server.heard) == 2


def test_an_old_token_is_used_to_its_end_also_while_the_pace_allows_no_new_one(giving):
    """Renewing early is refused; the request itself is not one of those that are."""
    clock = FakeClock()
    credential = app(clock, installation="42")
    with TinyServer(giving) as server:
        transport = server.transport(
            clock=clock, limits=Limits(rest_points_a_minute=20), credential=credential
        )
        ask(transport, Purpose.HOLD)
        credential._renew_at = LocalTime(clock.now() + 90)
        clock.advance(80)
        for _ in range(18):
            assert ask(transport, Purpose.HOLD).status == 200
        clock.advance(20)
        assert ask(transport, Purpose.HOLD).status == 200
        assert sum(one.path.endswith("/access_tokens") for one in server.heard) == 1
        clock.advance(60)
        assert ask(transport, Purpose.HOLD).status == 200
        assert sum(one.path.endswith("/access_tokens") for one in server.heard) == 2


def test_a_probe_whose_token_is_refused_is_sent_again_with_another(giving):
    clock = FakeClock()
    ledger = memory_ledger(clock)
    with TinyServer(giving) as server:
        transport = of_an_app(server, clock, ledger)
        ask(transport)
        ledger.note(Limited(clock.now(), clock.now(), 30.0, "GitHub wants a rest"))
        clock.advance(60)
        giving.good = "ghs_2"
        assert ask(transport).status == 200


def test_what_an_app_asks_for_itself_is_not_of_the_installations_budget(giving):
    """REST is spent, and a heartbeat over GraphQL still gets its token."""
    clock = FakeClock()
    ledger = memory_ledger(clock)
    spent = Budget(5000, 0, LocalTime(clock.now() + 1800))
    ledger.note(Passed(clock.now(), Kind.REST_READ, ((Resource.REST, spent),)))
    giving.others = Say(body={"data": {"viewer": {"login": "x"}}})
    with TinyServer(giving) as server:
        transport = of_an_app(server, clock, ledger)
        transport.graphql("query { viewer { login } }", {}, purpose=Purpose.HOLD)
        with pytest.raises(RateLimited):
            ask(transport, Purpose.HOLD)
        counted = transport.budget().counted
    assert counted["app token"] == 1


def test_a_token_of_an_app_is_in_no_repr():
    answered = Answered(201, {}, b'{"token": "ghs_secret"}', FakeClock().now())
    given = msgspec.json.decode(
        b'{"token": "ghs_secret", "expires_at": "2030-01-01T00:00:00Z"}', type=_AccessToken
    )
    for shown in (repr, pretty_repr):
        assert "ghs_secret" not in shown(answered) + shown(given)


# In the clear


@pytest.mark.parametrize(
    "setting", ["http://ghe.acme.example/api/v3", "http://10.0.0.7", "http://localhost.evil"]
)
def test_a_token_is_not_sent_in_the_clear_over_a_network(setting):
    with pytest.raises(BadConfiguration, match="https"):
        api_of({"GITHUB_API_URL": setting})


@pytest.mark.parametrize(
    "setting", ["http://localhost:1", "http://127.1.2.3", "http://[::1]:4400", "http://LOCALHOST"]
)
def test_this_machine_may_be_asked_without_encryption(setting):
    assert api_of({"GITHUB_API_URL": setting}).rest == setting
