"""GitHub Apps: a JWT signed by their key, and tokens for where they are installed."""

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dibs_lab.fakehub import Fault, Wrong

from .clients import SHOP, opened, said


def key_pair() -> tuple[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


PRIVATE, PUBLIC = key_pair()


@pytest.fixture
def installed(shop):
    return shop.hub.install("dibs-bot", PUBLIC, "acme/shop")


def proof(shop, app_id, *, key=PRIVATE, start_s=-10, life_s=300) -> str:
    now = int(shop.clock().timestamp())
    claims = {"iat": now + start_s, "exp": now + start_s + life_s, "iss": str(app_id)}
    return jwt.encode(claims, key, algorithm="RS256")


def test_an_app_finds_its_installation_and_gets_a_token_that_works_for_an_hour(
    shop, writer, installed
):
    opened(writer)
    with shop.client(proof(shop, installed.app.id)) as app:
        assert app.get("/app").json()["slug"] == "dibs-bot"
        found = app.get(f"{SHOP}/installation").json()
        assert found["id"] == installed.id
        assert [one["id"] for one in app.get("/app/installations").json()] == [installed.id]
        made = app.post(f"/app/installations/{installed.id}/access_tokens")
        assert made.status_code == 201
        assert made.json()["expires_at"] == "2026-05-01T13:00:00Z"
    with shop.client(made.json()["token"]) as bot:
        comment = said(bot, 1, "I am a bot")
        assert (comment["user"]["login"], comment["user"]["type"]) == ("dibs-bot[bot]", "Bot")
        assert comment["author_association"] == "NONE", "though it may write"
        assert bot.post(f"{SHOP}/issues/1/labels", json={"labels": ["x"]}).status_code == 200
        assert bot.get("/user").status_code == 403
        assert bot.post(f"{SHOP}/git/refs", json={}).status_code == 403, "not given contents"
        shop.clock.turn(3600)
        assert bot.get(SHOP).status_code == 401


def test_a_token_of_an_installation_ends_at_its_repositories(shop, installed):
    shop.hub.repository("acme/secret", private=True)
    shop.hub.repository("acme/other")
    with shop.client(proof(shop, installed.app.id)) as app:
        token = app.post(f"/app/installations/{installed.id}/access_tokens").json()["token"]
    with shop.client(token) as bot:
        assert bot.get("/repos/acme/secret").status_code == 404
        assert bot.post("/repos/acme/other/issues", json={"title": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"start_s": -700}, "must be a numeric value representing the future time"),
        ({"life_s": 3600}, "too far in the future"),
        ({"start_s": 200}, "Issued at"),
        ({"key": key_pair()[0]}, "could not be decoded"),
    ],
)
def test_a_jwt_that_proves_nothing_is_401(shop, installed, claims, says):
    with shop.client(proof(shop, installed.app.id, **claims)) as app:
        reply = app.get("/app")
    assert reply.status_code == 401
    assert says in reply.json()["message"]


def test_an_app_that_is_unknown_or_installed_elsewhere(shop, installed):
    with shop.client(proof(shop, 99)) as app:
        assert app.get("/app").status_code == 401
    with shop.client("no jwt") as app:
        assert app.get("/app").status_code == 401
    shop.hub.repository("acme/other")
    with shop.client(proof(shop, installed.app.id)) as app:
        assert app.get("/repos/acme/other/installation").status_code == 404
        assert app.post("/app/installations/1/access_tokens").status_code == 404


def test_a_locked_conversation_is_for_people_who_write_and_not_for_apps(shop, writer, installed):
    opened(writer)
    assert writer.put(f"{SHOP}/issues/1/lock", json={}).status_code == 204
    with shop.client(proof(shop, installed.app.id)) as app:
        token = app.post(f"/app/installations/{installed.id}/access_tokens").json()["token"]
    with shop.client(token) as bot:
        assert bot.post(f"{SHOP}/issues/1/comments", json={"body": "x"}).status_code == 403
        assert bot.post(f"{SHOP}/issues/1/labels", json={"labels": ["x"]}).status_code == 200


def test_a_new_token_may_be_refused_until_all_replicas_know_it(shop, clock, installed):
    shop.hub.faults.add(Fault(Wrong.NEW_TOKEN_LAG, seconds=(3, 3)))
    with shop.client(proof(shop, installed.app.id)) as app:
        token = app.post(f"/app/installations/{installed.id}/access_tokens").json()["token"]
    with shop.client(token) as bot:
        assert bot.get(f"{SHOP}/issues").status_code == 401
        clock.turn(3)
        assert bot.get(f"{SHOP}/issues").status_code == 200
