"""A git store with a lock file that a killed git process left: every command names the file.

`dibs doctor` is in test_doctor.
"""

import signal
from pathlib import Path

import pytest
from tests.servers.git_repository import bare_repository

from acceptance.harness import LEDGER, Project, pipeline, until

WAITING = f"touch started; until test -e go; do sleep 0.02; done; {LEDGER}"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return bare_repository(tmp_path / "leases.git") / "packed-refs.lock"


@pytest.mark.long
def test_a_hold_names_the_file(project: Project, lock: Path) -> None:
    project.begin(pipeline(one="true"), 1)
    env, named = {"DIBS_LEASES": f"git:{lock.parent}"}, f"the lock file {lock} has been in the way"
    lock.touch()
    until(
        lambda: named in project.dibs("hold", "z", "--", "true", env=env).err,
        "it is named, also by those who come while nobody owns the names",
        within_s=90,
    )
    lock.unlink()
    until(lambda: project.dibs("hold", "z", "--", "true", env=env).code == 0, "it is free again")
    lock.touch()
    held = project.dibs("hold", "z", "--", "touch", "ran", env=env)
    assert (held.code, named in held.err) == (0, True)
    assert (project.root / "ran").exists()


@pytest.mark.long
def test_a_worker_with_a_finished_handler_names_the_file_and_leaves_in_time(
    project: Project, lock: Path
) -> None:
    settings = pipeline(one=WAITING, ttl="2m")
    project.begin(settings.replace("[worker]", "[worker]\nstop_grace = '1s'"), 1)
    worker = project.worker("worker", env={"DIBS_LEASES": f"git:{lock.parent}"})
    project.appears("started")
    lock.touch()
    (project.root / "go").touch()
    named = f"the lock file {lock} has been in the way"
    until(lambda: named in worker.err, "the worker says what it waits for")
    worker.signal(signal.SIGTERM)
    worker.wait(60)
    lock.unlink()
    assert project.labels() >= {"stage:one", "claimed"}, "nothing was painted that is not decided"
    next_worker = project.worker("next", "--drain", env={"DIBS_LEASES": f"git:{lock.parent}"})
    assert next_worker.wait(60).code == 0
    assert project.ledger()["#1", "one"] == 1, "the finished work is not done again"
