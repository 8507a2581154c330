"""Actor: an operator whose CI runs as root on files of another user; and a program in a repository.

Settings by `GIT_CONFIG_COUNT` reach the worker's git if they are `safe.directory` or `user.*`;
all others, such as a header with a token, stay out of its environment.
"""

import os

from tests.security.conftest import Victim
from tests.security.git_victims import begin, worked

from dibs.adapters.system import git_environment

from .handlers import needs_root

_GIVEN = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "http.extraHeader",
    "GIT_CONFIG_VALUE_0": "Authorization: CANARY",
    "GIT_CONFIG_KEY_1": "Safe.Directory",
    "GIT_CONFIG_VALUE_1": "*",
    "GIT_CONFIG_KEY_2": "user.name",
    "GIT_CONFIG_VALUE_2": "ci",
}


def test_only_settings_without_programs_and_secrets_are_handed_on() -> None:
    assert git_environment(_GIVEN) == {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "Safe.Directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "user.name",
        "GIT_CONFIG_VALUE_1": "ci",
    }
    assert git_environment({**_GIVEN, "GIT_CONFIG_COUNT": "1"}) == {}
    assert git_environment({**_GIVEN, "GIT_CONFIG_COUNT": "many"}) == {}


@needs_root
def test_root_works_on_a_clone_of_another_user_that_the_operator_calls_safe(
    victim: Victim,
) -> None:
    clone = begin(victim, "exit 0", "first")
    for place in (clone, *clone.rglob("*")):
        os.lchown(place, 1001, 1001)
    told = victim.dibs("--config", "dibs.toml", "work", "--once")
    assert "dubious ownership" in told.stdout + told.stderr, "control"
    told = victim.dibs("--config", "dibs.toml", "work", "--once", **_GIVEN)
    assert worked(victim) == {"first"}, told.stdout + told.stderr
