"""Four workers share a backlog over a store: one is killed, one oversleeps, all is done once."""

import signal
from collections import Counter
from itertools import pairwise

import pytest

from acceptance.harness import LEDGER, Project

from .places import Place
from .processes import freeze_between_writes

pytestmark = pytest.mark.long

ISSUES = 20
# Those who are to come to grief say that they are at work, and wait to be let go on.
STEP = (
    f'test -z "$LC_WHO" || {{ touch "$LC_WHO"; until test -e go; do sleep 0.02; done; }}; {LEDGER}'
)
PIPELINE = f"""
preset = 'none'
[worker]
poll = '100ms'
sweep = '200ms'
[[stage]]
name = 'one'
next = 'done'
ttl = '6s'
backoff = '100ms'
run = '''{STEP}'''
[[stage]]
name = 'done'
closes = true
"""


@pytest.mark.parametrize("place", ["redis", "postgres", "etcd"], indirect=True)
def test_a_fleet_that_loses_two_of_four_does_everything_once(
    place: Place, project: Project
) -> None:
    env = {"DIBS_LEASES": place.url()}
    project.begin(PIPELINE, ISSUES)
    doomed = project.worker("doomed", "--drain", env={**env, "LC_WHO": "doomed"})
    sleeper = project.worker("sleeper", "--drain", env={**env, "LC_WHO": "sleeper"})
    project.appears("doomed")
    project.appears("sleeper")
    [killed] = project.seen("claimed", holder="doomed")
    [slept] = project.seen("claimed", holder="sleeper")
    healthy = [project.worker(f"healthy-{one}", "--drain", env=env) for one in (1, 2)]

    doomed.signal(signal.SIGKILL)
    assert doomed.wait().code == -signal.SIGKILL
    freeze_between_writes(project, sleeper)
    (project.root / "go").touch()  # its handler is done while it sleeps, and cannot say so
    for worker in healthy:
        assert worker.wait(80).quiet().code == 0
    _all_done_once(project)
    for early in (killed, slept):  # taken over, under a higher fence
        [advanced] = project.events("advanced", issue=early["issue"])
        assert int(advanced["fence"]) > int(early["fence"])

    sleeper.signal(signal.SIGCONT)
    [refused] = project.seen("finish_refused")
    assert refused["run"] == slept["run"]
    assert sleeper.wait().quiet().data["outcomes"] == {"refused": 1}
    _all_done_once(project)
    assert place.open().live() == ()
    fsck = project.dibs("fsck", "--json", env=env)
    assert (fsck.code, fsck.data) == (0, {"storage": [], "flaws": []})
    project.nobody_left()


def _all_done_once(project: Project) -> None:
    refs = [f"#{number}" for number in range(1, ISSUES + 1)]
    advanced = Counter(event["issue"] for event in project.events("advanced"))
    assert advanced == dict.fromkeys(refs, 1)
    assert project.gained("stage:done") == dict.fromkeys(refs, 1)
    for ref in refs:
        assert project.labels(ref) == {"stage:done"}
        assert project.ledger()[ref, "one"] >= 1
        fences = [int(event["fence"]) for event in project.events("claimed", issue=ref)]
        assert all(earlier < later for earlier, later in pairwise(fences))
    assert project.sql("SELECT COUNT(*) FROM issues WHERE open = 1") == [(0,)]
