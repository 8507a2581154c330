"""A repository's dibs.toml hands the worker's credentials to its own handlers.

Actor: whoever can change dibs.toml in a repository whose worker an operator runs.
Attack: `pass_env` names a token, and `run` prints it.
Wall: a found file hands on no credential; the worker does not start. The operator allows it by
`dibs work --pass-env`, in the user's own file, or by `--config`. Nobody can hand on the key that
signs marks.
"""

import json

import pytest

from dibs.core.environment import looks_secret

from .conftest import SECRETS, Victim
from .test_s01_token_to_another_host import users_file

STAGE = """
[[stage]]
name = "ready"
run = "env > seen"
pass_env = [{}]
"""


def work(victim: Victim, names: str, *words: str, before: tuple[str, ...] = ()) -> int:
    """The exit code of a worker on one issue, with these names in `pass_env`."""
    assert victim.dibs("add", "one").returncode == 0
    victim.configure(STAGE.format(names))
    return victim.dibs(*before, "work", "--once", *words).returncode


@pytest.mark.parametrize("name", SECRETS)
def test_a_found_file_hands_on_no_credential(victim: Victim, name: str) -> None:
    assert work(victim, f'"{name}"') == 1
    assert not (victim.folder / "seen").exists()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "GH_TOKEN",
            "github_pat",
            "AWS_ACCESS_KEY_ID",
            "DATABASE_URL",
            "REDIS_URL",
            "GIT_ASKPASS",
        ),
        *("SSH_AUTH_SOCK", "GIT_CONFIG_VALUE_0", "DIBS_LEASES", "MYPASSWORD", "PGPASSFILE"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SLACK_WEBHOOK_URL", "KUBECONFIG", "APIKEY"),
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_what_may_be_a_credential_is_one(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["JAVA_HOME", "PATH", "LANG", "GIT_AUTHOR_NAME", "CI", "NODE_ENV"])
def test_what_is_none_is_none(name: str) -> None:
    assert not looks_secret(name)


def test_the_refusal_says_what_the_operator_can_do(victim: Victim) -> None:
    assert victim.dibs("add", "one").returncode == 0
    victim.configure(STAGE.format('"GITHUB_TOKEN"'))
    refused = victim.dibs("work", "--once", "--json")
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "UNTRUSTED"
    assert "'GITHUB_TOKEN'" in error["message"]
    assert "dibs work --pass-env GITHUB_TOKEN" in error["hint"]
    for words in (["add", "two"], ["list"], ["show", "1"], ["why", "1"], ["take", "1"]):
        assert victim.dibs(*words).returncode == 0, words


@pytest.mark.parametrize("how", ["--pass-env", "pass_env", "folders", "--config"])
def test_control_the_operator_hands_it_on(victim: Victim, how: str) -> None:
    if how == "pass_env":
        users_file(victim, "pass_env = ['GITHUB_TOKEN']")
    if how == "folders":
        users_file(victim, "folders = ['~/project']")
    words = ("--pass-env", "GITHUB_TOKEN") if how == "--pass-env" else ()
    before = ("--config", "dibs.toml") if how == "--config" else ()
    assert work(victim, '"GITHUB_TOKEN"', *words, before=before) == 0
    assert SECRETS["GITHUB_TOKEN"] in (victim.folder / "seen").read_text()


def test_a_file_may_hand_on_what_is_no_credential(victim: Victim) -> None:
    victim.env["JAVA_HOME"] = "/opt/java"
    assert work(victim, '"JAVA_HOME"') == 0
    assert "JAVA_HOME=/opt/java" in (victim.folder / "seen").read_text()


def test_the_operator_hands_on_what_the_file_does_not_name(victim: Victim) -> None:
    assert work(victim, "", "--pass-env", "GITHUB_TOKEN") == 0
    assert SECRETS["GITHUB_TOKEN"] in (victim.folder / "seen").read_text()


@pytest.mark.parametrize("how", ["--pass-env", "pass_env", "--config"])
def test_nobody_hands_on_the_signing_key(victim: Victim, how: str) -> None:
    if how == "pass_env":
        users_file(victim, "pass_env = ['DIBS_SIGNING_KEY']")
    words = ("--pass-env", "DIBS_SIGNING_KEY") if how == "--pass-env" else ()
    before = ("--config", "dibs.toml") if how == "--config" else ()
    assert work(victim, '"DIBS_SIGNING_KEY"', *words, before=before) == 1
    assert not (victim.folder / "seen").exists()


LOOP = '[[loop]]\nname = "tick"\nevery = "1s"\nrun = "env > seen"\n{}\n'
HANDED_ON = ['env = "inherit"', 'pass_env = ["OPENAI_API_KEY"]']


@pytest.mark.parametrize("setting", HANDED_ON)
@pytest.mark.parametrize("verb", ["work", "loop"])
def test_nothing_is_left_out_without_a_word(victim: Victim, verb: str, setting: str) -> None:
    """A found file may not hand it on: the start is refused, and doctor says so before."""
    assert victim.dibs("add", "one").returncode == 0
    stage = f'[[stage]]\nname = "ready"\nrun = "env > seen"\n{setting}\n'
    victim.configure(stage if verb == "work" else LOOP.format(setting))
    refused = victim.dibs(verb, "--once", "--json")
    assert json.loads(refused.stdout)["error"]["code"] == "UNTRUSTED"
    assert not (victim.folder / "seen").exists()
    assert "refused at the start" in victim.dibs("doctor", "--offline").stdout
    assert victim.dibs("--config", "dibs.toml", verb, "--once").returncode == 0
    assert SECRETS["OPENAI_API_KEY"] in (victim.folder / "seen").read_text()


def test_control_the_operator_hands_it_to_a_loop(victim: Victim) -> None:
    victim.configure(LOOP.format('pass_env = ["OPENAI_API_KEY"]'))
    assert victim.dibs("loop", "--once", "--pass-env", "OPENAI_API_KEY").returncode == 0
    assert SECRETS["OPENAI_API_KEY"] in (victim.folder / "seen").read_text()


def test_a_typed_command_is_told_what_it_does_not_get(victim: Victim) -> None:
    """The issue is claimed before its stage is known, so the claim is not refused."""
    assert victim.dibs("add", "one").returncode == 0
    names = ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "GH_TOKEN", "MODEL"]
    victim.configure(f'[[stage]]\nname = "ready"\npass_env = {json.dumps(names)}\n')
    done = victim.dibs("claim", "1", "--exec", "--", "sh", "-c", "env > seen")
    assert [name for name in names if f"--pass-env {name}" in done.stderr] == ["GITHUB_TOKEN"]
    seen = (victim.folder / "seen").read_text()
    assert SECRETS["GITHUB_TOKEN"] not in seen
    assert SECRETS["AWS_SECRET_ACCESS_KEY"] in seen, "its caller's own, which no word denies"
