"""Actor: a command that a person runs under a lease, and all that it starts.

Attack: `dibs hold`, `dibs keep` and `dibs claim --exec` hand the credentials of dibs to it, which
were meant for the tracker and the store.
Wall: a typed command gets its caller's environment without them; `--pass-env` names exceptions. The
signing key is never among them.
"""

import pytest

from .conftest import SECRETS, Victim
from .handlers import serve

VERBS = [("hold", "door"), ("claim", "1", "--exec")]
OURS = {"GITHUB_TOKEN", "DIBS_SIGNING_KEY", "SLACK_BOT_TOKEN"}


def _seen(text: str) -> set[str]:
    return {name for name, secret in SECRETS.items() if secret in text}


@pytest.mark.parametrize("verb", VERBS)
def test_a_typed_command_gets_no_credential_of_dibs(victim: Victim, verb: tuple[str, ...]) -> None:
    serve(victim, "exit 0")
    done = victim.dibs(*verb, "--", "env")
    assert done.returncode == 0, done.stderr
    assert _seen(done.stdout) & OURS == set()
    assert "AWS_SECRET_ACCESS_KEY" in _seen(done.stdout), "its caller's own are the caller's"


def test_keep_gives_none_either(victim: Victim) -> None:
    serve(victim, "exit 0")
    run = victim.dibs("claim", "1").stdout.split("run")[1].split()[0]
    done = victim.dibs("keep", run, "--", "env")
    assert done.returncode == 0, done.stderr
    assert _seen(done.stdout) & OURS == set()


@pytest.mark.parametrize("verb", VERBS)
def test_control_what_the_person_names_is_passed_but_never_the_key(
    victim: Victim, verb: tuple[str, ...]
) -> None:
    serve(victim, "exit 0")
    named = ("--pass-env", "GITHUB_TOKEN", "--pass-env", "DIBS_SIGNING_KEY")
    done = victim.dibs(*verb, *named, "--", "env")
    assert done.returncode == 0, done.stderr
    assert _seen(done.stdout) & OURS == {"GITHUB_TOKEN"}
