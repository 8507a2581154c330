"""Which variables reach a handler."""

import pytest

from dibs.core.environment import NEVER_PASSED, SECRET_NAMES, looks_secret, passed_on
from dibs.core.pipeline import Env

HERE = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "EDITOR": "vi",
    "GITHUB_TOKEN": "t",
    "GITHUB_TOKEN_FILE": "/t",
    "DIBS_SIGNING_KEY": "k",
    "DIBS_SIGNING_KEY_FILE": "/k",
    "OPENAI_API_KEY": "o",
    "LC_TOKEN": "l",
}


@pytest.mark.parametrize(
    ("env", "pass_env", "seen"),
    [
        (Env.LISTED, (), {"PATH", "LC_ALL"}),
        (Env.LISTED, ("EDITOR", "GITHUB_TOKEN"), {"PATH", "LC_ALL", "EDITOR", "GITHUB_TOKEN"}),
        (Env.INHERIT, (), {"PATH", "LC_ALL", "EDITOR", "OPENAI_API_KEY", "LC_TOKEN"}),
        (Env.LISTED, NEVER_PASSED, {"PATH", "LC_ALL"}),
        (Env.LISTED, ("*", "GITHUB_*"), {"PATH", "LC_ALL"}),
        (Env.INHERIT, NEVER_PASSED, {"PATH", "LC_ALL", "EDITOR", "OPENAI_API_KEY", "LC_TOKEN"}),
    ],
)
def test_a_rule_and_the_names_of_the_stage(env, pass_env, seen):
    assert set(passed_on(HERE, env, pass_env)) == seen


@pytest.mark.parametrize("env", Env)
def test_what_the_operator_does_not_pass_no_rule_passes(env):
    seen = passed_on(HERE, env, ("GITHUB_TOKEN", "OPENAI_API_KEY"), lambda _: False)
    assert not any(map(looks_secret, seen))
    assert "PATH" in seen


@pytest.mark.parametrize(
    ("address", "passed"),
    [
        ("http://user:pass@proxy:3128", "http://proxy:3128"),
        ("http://user:p@ss/w@proxy", "http://proxy"),
        ("user:pass@proxy:1", "proxy:1"),
        ("socks5h://proxy:1080/", "socks5h://proxy:1080/"),
        ("", ""),
    ],
)
def test_a_proxy_loses_its_password_unless_it_is_named(address, passed):
    for name in ("HTTPS_PROXY", "all_proxy"):
        for env in Env:
            assert passed_on({name: address}, env, ()) == {name: passed}
        assert passed_on({name: address}, Env.LISTED, (name,)) == {name: address}


def test_names_that_look_like_credentials():
    secret = (*SECRET_NAMES, "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GITHUB_PAT", "SSH_AUTH_SOCK")
    assert all(map(looks_secret, secret))
    assert not any(map(looks_secret, ("PATH", "KEYBOARD", "MONKEY", "DIBS_RUN", "AWS_REGION")))
