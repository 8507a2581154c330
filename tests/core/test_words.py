"""Secrets are masked by value and by shape, ordinary words stay, and nothing steers a terminal."""

import re
import string
import unicodedata
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.environment import looks_secret
from dibs.core.words import Masker, is_secret, masked, masker_of, secrets_in, visible

SHAPED = [
    "ghp_" + "a1B2" * 9,
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "glpat-aB3dE5fG7hI9jK1lM3nO",
    "xoxb-123456789012-abcdefghijkl",
    "xapp-1-A012345678-1234567890",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "sk-proj-abc123DEF456ghi789JKL012",
    "sk-ant-api03-abcdefghijklmnopqrstuvwxyz",
    "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
    "npm_" + "aB3dE5fG7hI9" * 3,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nsecond\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXktdjEAAAA cut off",
]
WITHIN = [
    ("https://x-access-token:ghp_x@github.com/a/b", "https://***@github.com/a/b"),
    ("https://TOKEN@github.com/a/b", "https://***@github.com/a/b"),
    ("postgres://u:p@ss/w?rd#x@db:5432/app", "postgres://***@db:5432/app"),
    ("redis://:hunter2@h/0 refused", "redis://***@h/0 refused"),
    ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
    ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': 'Basic ***'}"),
    ("-H 'authorization: token 0123456789abcdef'", "-H 'authorization: token ***'"),
    ("used bearer 0123456789abcdef01 there", "used bearer *** there"),
    ("?access_token=abcdef123&x=1", "?access_token=***&x=1"),
    ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
    ('{"client_secret": "hunter2!"}', '{"client_secret": "***"}'),
    ("X-Amz-Signature=0123456789abcdef", "X-Amz-Signature=***"),
    ("https://hooks.slack.com/services/T0/B0/abcdefgh", "https://hooks.slack.com/services/***"),
]
ORDINARY = [
    "0123456789abcdef0123456789abcdef01234567",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "123e4567-e89b-12d3-a456-426614174000",
    "run 9f3ac2d1e0b4, fence 12345, token=12",
    "the token is missing; password: required",
    "see https://ci.acme.example/9?page=2#L10 and http://localhost:4873/@scope/pkg",
    "git@github.com:acme/shop.git",
    "a task-force for sk-some-long-branch-name-of-slovakia",
    "the bearer of bad news",
    "src/dibs/core/words.py:12: KeyError: 'api_key'",
    "outcome=success pr=https://github.com/acme/shop/pull/9",
    "ada@example.org wrote to #12 about @bob",
    "2026-05-01T19:52:33Z worker-7 ended its lease",
]


@pytest.mark.parametrize("secret", SHAPED)
@pytest.mark.parametrize("around", ["{}", "error: {} was refused", "url={}&x=1", "['{}']"])
def test_what_has_the_shape_of_a_secret_is_masked(secret, around):
    text = masked(around.format(secret))
    assert "***" in text
    assert secret[8:20] not in text


@pytest.mark.parametrize(("text", "left"), WITHIN)
def test_only_the_secret_part_of_an_address_or_a_header_goes(text, left):
    assert masked(text) == left


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_words_stay(text):
    assert masked(text) == text


_WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=12)
_HEX = st.text("0123456789abcdef", min_size=1, max_size=64)


@given(st.lists(st.one_of(_WORDS, _HEX, st.uuids().map(str), st.integers().map(str))))
def test_hashes_ids_numbers_and_words_stay(parts):
    text = " ".join(parts)
    assert masked(text) == text


_PIECES = st.sampled_from(
    [*SHAPED, *(text for text, _ in WITHIN), *ORDINARY, "://", "@", ":", "=", "'", '"', "***", " "]
)
_MIXED = st.lists(st.one_of(_PIECES, st.text(max_size=5)), max_size=6).map("".join)


@given(_MIXED)
def test_masking_twice_changes_nothing_more(text):
    once = masked(text)
    assert masked(once) == once


@pytest.mark.parametrize(
    "piece",
    [
        *("://", "://a:", "eyJ", "-eyJaaaaaaaa", "sk-", "token=", 'password": "', "bearer ", "x"),
        *("authorization: ", "-----BEGIN PRIVATE KEY-----", "ghp_", "AKIA", "a@", "://x:1/"),
    ],
)
def test_a_long_text_takes_time_in_proportion(piece):
    # A pattern that took time by the square of the length would need minutes here: the test's own
    # time limit would end it.
    text = piece * (300_000 // len(piece))
    assert len(masked(text)) <= 4 * len(text)


_SECRETS = st.text(string.ascii_letters + string.digits + "+/=:_-.$%", min_size=12, max_size=60)


@given(_SECRETS.filter(is_secret), st.text(max_size=10), st.text(max_size=10))
def test_a_known_secret_is_masked_in_every_spelling(secret, before, after):
    mask = Masker([secret])
    assert secret not in mask(f"{before} {secret} {after}")
    assert quote(secret, safe="") not in mask(f"?x={quote(secret, safe='')}")
    for encode in (b64encode, urlsafe_b64encode):
        for user in ("", "u", "us", "user:"):
            encoded = encode(f"{user}{secret}".encode()).decode()
            shown = mask(encoded)
            longest = max(map(len, shown.split("***")))
            assert longest < 12, "beside the mask, only what Base64 mixes with its neighbours"


def test_half_of_a_long_secret_is_masked_as_well():
    secret = "abcDEF123456-ghiJKL789012"
    mask = Masker([secret])
    assert mask(f"it was {secret[:20]}... (cut)") == "it was ***-ghiJKL7... (cut)"
    assert mask(f"...{secret[5:]}") == "...F123456***"
    for spelt in (secret.encode().hex(), repr('a"b\\c d-123')):
        assert "***" in Masker([secret, 'a"b\\c d-123'])(spelt)


def test_the_longer_of_two_secrets_is_masked_first():
    mask = Masker(["hunter-2", "hunter-2-and-more"])
    assert mask("hunter-2-and-more hunter-2") == "*** ***"


def test_variables_are_secret_by_their_name():
    environment = {
        "GITHUB_TOKEN": "abc-123-def",
        "DIBS_SIGNING_KEY": "old:0123456789abcdef,new:fedcba9876543210",
        "WEBHOOK_SECRETS": "first-one-1, second-one-2",
        "DATABASE_URL": "postgres://u:db-pass-1@h/x",
        "DIBS_LEASES": "redis://:redis-pass-1@h",
        "APP_PRIVATE_KEY": "-----BEGIN-----\nMIIEowIBAAKCAQEAxyz\n-----END-----",
        "AWS_SECRET_ACCESS_KEY": "/aws/secret+with/slashes12",
        "PGPASSWORD": "postgres",
        "OTHER_PASSWORD": "short",
        "GITHUB_TOKEN_FILE": "/run/secrets/token-1",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google/key-1.json",
        "HOME": "/srv/some-body-1",
    }
    found = set(secrets_in(environment))
    assert found >= {"abc-123-def", "0123456789abcdef", "fedcba9876543210", "db-pass-1"}
    assert found >= {"first-one-1", "second-one-2"}
    assert found >= {"redis-pass-1", "MIIEowIBAAKCAQEAxyz", "/aws/secret+with/slashes12"}
    hidden = ("postgres", "short", "token-1", "key-1", "some-body-1")
    text = " ".join(hidden)
    assert Masker(found)(text) == text


def test_a_masker_is_made_once_for_the_same_secrets():
    assert masker_of(frozenset({"a-secret-1"})) is masker_of(frozenset({"a-secret-1"}))


# Control characters


@given(st.text())
def test_nothing_that_steers_or_hides_is_left(text):
    shown = visible(text)
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    left = {char for char in shown if unicodedata.category(char) in steering}
    assert left <= {"\t", "\u200c", "\u200d"}
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("one\ntwo\r\n", r"one\ntwo\r\n"),
        ("a\tb", "a\tb"),
        ("x\u202ey\u2066z", r"x\u202ey\u2066z"),
        ("pass\u200bword \ufeff\u00ad", r"pass\u200bword \ufeff\xad"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("\ud800", r"\ud800"),
        ("a\u200db", r"a\u200db"),
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("क\u200dष", "क\u200dष"),
        ("Grüße 短い\u3000題名\u00a0", "Grüße 短い\u3000題名\u00a0"),
    ],
)
def test_characters_are_spelled_out(text, shown):
    assert visible(text) == shown


def test_a_mark_of_direction_beside_a_joiner_is_spelled_out():
    assert re.search("[\u202e\u200d]", visible("é\u200d\u202eé")) is None


def test_a_password_that_is_percent_encoded_in_an_address_is_known_in_both_forms():
    found = set(secrets_in({"DIBS_LEASES": "redis://:p%40ssW0rd99xx@h/0"}))
    assert {"p%40ssW0rd99xx", "p@ssW0rd99xx"} <= found


@pytest.mark.parametrize(
    "name",
    [
        *("MY_COOKIE", "BEARER", "AZURE_STORAGE_CONNECTION_STRING", "DB_PW", "SSHKEY", "API_KEY2"),
        *("GITHUB_PAT", "KEYS", "MYSQL_PWD", "NPM_AUTH", "github_token", "my-app.token"),
        *("DIBS_SIGNING_KEY", "OPENAIKEY", "KEYRING_PASSPHRASE", "DISCORD_WEBHOOK_URL"),
    ],
)
def test_what_is_kept_from_handlers_by_its_name_is_masked(name):
    """One rule: a name that counts here and not there is a leak in one of the two."""
    assert looks_secret(name)
    assert next(secrets_in({name: "s3cr3t-v4lue"})) == "s3cr3t-v4lue"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KEYBOARD", "pc105-de"),
        ("MONKEY", "a-b-c-d-e"),
        ("SEARCH_KEYWORDS", "red,green-blue"),
        ("PWD", "/srv/ada/a-b"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", "Ada Lovelace"),
        ("KUBECONFIG", "~/.kube/config"),
        ("SSH_AUTH_SOCK", "/tmp/agent.1"),
        ("DIBS_FAILPOINT", "card-written:2"),
        ("BASH_FUNC_which%%", "() { echo a-b; }"),
    ],
)
def test_a_value_that_is_no_secret_itself_stays(name, value):
    assert list(secrets_in({name: value})) == []


def test_the_password_of_an_address_is_known_whatever_names_the_address():
    for name in ("SENTRY_DSN", "MONGO_URI", "HTTPS_PROXY", "GITHUB_API_URL", "DIBS_LEASES"):
        assert "p4ss-w0rd" in set(secrets_in({name: "x://me:p4ss-w0rd@host/a"})), name
