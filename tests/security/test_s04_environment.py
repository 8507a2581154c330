"""Actor: a handler, or a program that it starts.

Attack: it prints its environment, where the credentials are that its worker was started with.
Wall: a handler gets a short list of variables, and the ones that its stage names in `pass_env`; the
signing key reaches no handler at all.
"""

import pytest

from .conftest import SECRETS, Victim
from .handlers import printed, serve, work

OTHERS = {
    "AWS_ACCESS_KEY_ID": "CANARY-1",
    "AWS_SESSION_TOKEN": "CANARY-2",
    "DATABASE_URL": "postgres://u:CANARY-3@host/db",
    "REDIS_URL": "redis://:CANARY-4@host",
    "ETCDCTL_PASSWORD": "CANARY-5",
    "SLACK_APP_TOKEN": "CANARY-6",
    "SLACK_SIGNING_SECRET": "CANARY-7",
    "SLACK_WEBHOOK_URL": "https://hooks/CANARY-8",
    "ACTIONS_RUNTIME_TOKEN": "CANARY-9",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "CANARY-10",
    "GITHUB_PAT": "CANARY-11",
    "SSH_AUTH_SOCK": "/tmp/CANARY-12",
    "GIT_ASKPASS": "/bin/CANARY-13",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "http.extraheader",
    "GIT_CONFIG_VALUE_0": "AUTHORIZATION: CANARY-14",
    "DIBS_TOKEN": "CANARY-15",
    "DIBS_WEBHOOK_SECRET": "CANARY-16",
    "LC_API_TOKEN": "CANARY-17",
    "XDG_SECRET": "CANARY-18",
    "HTTPS_PROXY": "http://account:CANARY-19/@proxy:3128",
    "no_such_proxy": "account:CANARY-20@proxy:3128",
}
SHOW = "env\n"


def test_a_handler_sees_no_credential(victim: Victim) -> None:
    serve(victim, SHOW)
    done = work(victim, env=OTHERS)
    assert done.returncode == 0, done.stderr
    shown = printed(victim)
    assert b"CANARY" not in shown
    assert b"HTTPS_PROXY=http://proxy:3128" in shown, "the way to the proxy stays"
    for needed in (b"PATH=", b"HOME=", b"LANG=", b"DIBS_RUN="):
        assert needed in shown


def test_a_python_handler_sees_none_either(victim: Victim) -> None:
    serve(victim, SHOW)
    victim.configure('[[stage]]\nname = "ready"\npython = "theirs:work"\n')
    (victim.folder / "theirs.py").write_text(
        "import os\nopen('at_import', 'a').write(str(os.environ))\n"
        "def work(_):\n    print(os.environ)\n",
        "utf-8",
    )
    done = work(victim, env=OTHERS)
    assert done.returncode == 0, done.stderr
    assert b"PATH" in printed(victim)
    assert b"CANARY" not in printed(victim)
    assert "CANARY" not in (victim.folder / "at_import").read_text()


def named(victim: Victim) -> None:
    """The operator names the file, so that it may pass credentials on."""
    victim.env["DIBS_CONFIG"] = str(victim.folder / "dibs.toml")


def test_a_python_handler_has_what_is_passed_when_it_is_imported(victim: Victim) -> None:
    serve(victim, SHOW)
    named(victim)
    victim.configure(
        '[[stage]]\nname = "ready"\npython = "theirs:work"\npass_env = ["OPENAI_API_KEY"]\n'
    )
    text = "import os\nKEY = os.environ['OPENAI_API_KEY']\ndef work(_):\n    print(KEY)\n"
    (victim.folder / "theirs.py").write_text(text, "utf-8")
    done = work(victim)
    assert done.returncode == 0, done.stderr
    assert printed(victim).decode().strip() == SECRETS["OPENAI_API_KEY"]


def test_the_signing_key_is_passed_by_no_setting(victim: Victim) -> None:
    serve(victim, SHOW)
    victim.configure('[[stage]]\nname = "ready"\nrun = "env"\npass_env = ["DIBS_SIGNING_KEY"]\n')
    refused = work(victim)
    assert refused.returncode != 0
    assert "DIBS_SIGNING_KEY is never passed on" in refused.stderr
    assert SECRETS["DIBS_SIGNING_KEY"] not in refused.stdout + refused.stderr
    victim.configure('[[stage]]\nname = "ready"\nrun = "env"\nenv = "inherit"\n')
    named(victim)
    work(victim, env={"DIBS_SIGNING_KEY_FILE": "/CANARYsigningkeyfile"})
    assert b"CANARYopenai" in printed(victim)
    assert b"CANARYsigningkey" not in printed(victim)


def test_a_loop_sees_none_either(victim: Victim) -> None:
    victim.configure('[[loop]]\nname = "tick"\nevery = "1s"\nrun = "env"\n')
    done = victim.dibs("loop", "--once", **OTHERS)
    assert done.returncode == 0, done.stderr
    assert b"DIBS_LOOP=tick" in printed(victim)
    assert b"CANARY" not in printed(victim)


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        ('env = "inherit"', {"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"}),
        ('pass_env = ["GITHUB_TOKEN", "OPENAI_API_KEY"]', {"GITHUB_TOKEN", "OPENAI_API_KEY"}),
    ],
)
def test_control_what_the_operator_passes_is_seen(
    victim: Victim, setting: str, seen: set[str]
) -> None:
    serve(victim, SHOW, setting)
    named(victim)
    work(victim)
    shown = printed(victim)
    assert {name for name, secret in SECRETS.items() if secret.encode() in shown} == seen
