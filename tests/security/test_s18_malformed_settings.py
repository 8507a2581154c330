"""S18: the setting of a store is misspelt, and dibs prints it with its password.

Actor: everybody who reads what the operator pastes or what CI logs. `redis:/user:PASSWORD@host`, a
slash short, was printed whole by `dibs stores` and `dibs config show`. The wall: of an address that
no adapter can read, everything that may be an account is left out. The control takes the wall out
of this process: the password is printed. A well-formed address shows as before.
"""

import pytest
from tests.in_process import run_in_process

from dibs.core.references import without_secrets
from dibs.frontends.cli.main import run

from .conftest import Victim

FORMS = [
    "redis:/user:HUNTER2@host.example",
    "postgres:u:HUNTER2@host.example/db",
    "redis//user:HUNTER2@host.example",
    "redis:///user:HUNTER2@host.example",
    "redis:HUNTER2@host.example",
    "REDIS:u:HUNTER2@host.example",
    "redis:u:HUN@TER2@host.example",
    "rediss:/u:HUN/TER2@host.example/0",
    "redis:/u:HUNTER2@host.example?db=1",
    "postgres:host=host.example password=HUNTER2 user=u",
    "postgres://host.example/db;password=HUNTER2",
    "redis://host.example:HUNTER2",
    "redis://host.example?password=HUNTER2",
    "etcd://host1:2379,u:HUNTER2@host.example:2379",
    "etcd:u:HUNTER2@host.example",
    "git:u:HUNTER2@host.example:a/b",
    "unknown:u:HUNTER2@host.example",
    "u:HUNTER2@host.example",
]
COMMANDS = (("stores",), ("config", "show"), ("doctor", "--offline"), ("list",), ("leases", "show"))


@pytest.mark.parametrize("form", FORMS)
def test_of_a_misspelt_address_no_password_is_shown(form: str) -> None:
    shown = without_secrets(form)
    assert "host.example" in shown
    for part in ("HUN", "TER2"):
        assert part not in shown


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[9], FORMS[16]])
def test_no_command_prints_the_password_of_a_misspelt_setting(victim: Victim, form: str) -> None:
    seen = ""
    for words in COMMANDS:
        for more in ((), ("--json",)):
            reply = victim.dibs(*words, *more, DIBS_LEASES=form)
            seen += reply.stdout + reply.stderr
    assert "host.example" in seen
    assert "HUNTER2" not in seen


def test_the_control_without_the_wall_it_is_printed(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.core.references.without_secrets", lambda place: place)
    victim.configure("")
    env = {**victim.env, "DIBS_LEASES": FORMS[0]}
    assert "HUNTER2" in run_in_process(run, ["stores"], cwd=victim.folder, env=env).stdout


@pytest.mark.parametrize(
    "form",
    [
        *("auto", "comments", "github:acme/shop", "sqlite:/srv/a@b/x.db", "git:origin"),
        *("redis://host:6379/0", "redis://[::1]:6379/0", "etcd://a:2379,b:2379"),
        *("git:git@github.com:acme/x.git", "git:file:///tmp/a:b/c", "git:/tmp/a@b/c.git"),
        *("git:https://host:8443/x", "postgres://a:5432,b:5432/db", "git:/srv/token=x.git"),
    ],
)
def test_an_address_without_secrets_is_shown_whole(form: str) -> None:
    # The name of a store in the granter record is made of it: it must not change.
    assert without_secrets(form) == form
