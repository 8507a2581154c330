"""A shell script that claims by label and comment, with the real gh, beside workers of ours.

The script is the benchmark's: label, comment, read again, the earliest comment wins. It knows
nothing of leases; its comment is a bid in our protocol, so both compete by the same rules. Who is
on an issue holds a lock on a file meanwhile, which the kernel keeps; whoever finds it taken says
so.
"""

import subprocess

import pytest
from benchmarks.github.script import SCRIPT, environment
from tests.acceptance.harness import until

from dibs.core.card import Card, CardState, parse_mark
from dibs_lab.fakehub import Permission

from .projects import REPOSITORY, project_on_a_hub

pytestmark = pytest.mark.long

RIVAL, RIVALS, WORKERS, ISSUES = "rival", 3, 3, 14
SCRIPT_TTL_S = 600
WORK = """#!/bin/sh
exec 9>"held-$1"
flock -n 9 || echo "$1 {who}" >> double
sleep 0.3
echo "$1 {who}" >> worked
"""
ROUNDS = f"""#!/bin/sh
while [ ! -e enough ]; do
  bash {SCRIPT} >> said 2>> failed || echo failed >> said
done
"""
CONFIGURATION = f"""
tracker = "github:{REPOSITORY}"
preset = "none"
ttl = "30s"
settle = "50ms"
[github]
pace = false
[worker]
poll = "500ms"
[[stage]]
name = "ready"
next = "review"
attempts = 9
run = '''./ours "${{DIBS_ISSUE##*#}}"'''
[[stage]]
name = "review"
next = "done"
attempts = 1
run = 'true'
[[stage]]
name = "done"
closes = true
"""


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        made.configure(CONFIGURATION)
        made.script("ours", WORK.format(who="ours"))
        made.script("rivals", WORK.format(who=RIVAL))
        made.script("rounds", ROUNDS)
        made.hub.user(RIVAL, {REPOSITORY: Permission.WRITE})
        assert made.dibs("init").code == 0
        yield made


@pytest.fixture
def rivals(project):
    """Several copies of the script, each in a loop, with an account of their own."""
    around = environment(project.hub.url, project.root)
    around |= {"GH_TOKEN": f"{RIVAL}-token", "AFTER_WORK": "./rivals"}
    copies = []

    def start():
        started = (
            subprocess.Popen(["./rounds"], cwd=project.root, env=around) for _ in range(RIVALS)
        )
        copies.extend(started)
        return copies

    yield start
    (project.root / "enough").touch()
    for copy in copies:
        copy.wait(60)


def worked(project):
    """By whom each issue was, as often as it was."""
    told = [line.split() for line in project.lines("worked")]
    return [(int(number), who) for number, who in told]


def ready(project, numbers):
    return [number for number in numbers if "stage:ready" in project.label_names(number)]


def bids_of_the_script(project, number):
    marks = [parse_mark(one.body) for one in project.comments(number) if one.author == RIVAL]
    return [mark for mark in marks if isinstance(mark, Card)]


def compete(project, rivals, numbers):
    """Until nothing is left, but for what the script has bid for without winning it."""
    copies = rivals()
    until(lambda: worked(project), "the script works one")
    ours = [project.start(f"w{at}", "work", "--stage", "ready") for at in range(WORKERS)]

    def nothing_is_left():
        return all(bids_of_the_script(project, number) for number in ready(project, numbers))

    until(nothing_is_left, "all is worked or bid for", within_s=150)
    (project.root / "enough").touch()
    for copy in copies:
        copy.wait(60)
    for worker in ours:
        worker.process.terminate()
    for worker in ours:
        assert worker.wait().quiet().code == 0


@pytest.mark.timeout(300)
def test_a_script_of_labels_and_comments_and_our_workers_never_work_on_one_issue(project, rivals):
    numbers = project.backlog(ISSUES)
    compete(project, rivals, numbers)
    assert project.lines("failed") == []
    if ready(project, numbers):
        # Some that the script bid for and lost to a bid of ours which we withdrew: nobody's, then.
        project.pass_time(SCRIPT_TTL_S)
        assert project.work("--stage", "ready").code == 0
    assert project.lines("double") == []
    assert sorted(number for number, _ in worked(project)) == numbers, "each by one of us, once"
    assert {who for _, who in worked(project)} == {"ours", RIVAL}
    for number in numbers:
        assert project.label_names(number) == {"stage:review"}, number


def test_the_script_s_card_stays_a_bid_and_keeps_the_next_stage_waiting_for_its_ttl(
    project, rivals
):
    (number,) = project.backlog(1)
    copies = rivals()
    until(lambda: project.label_names(number) == {"stage:review"}, "the script has done it")
    (project.root / "enough").touch()
    for copy in copies:
        copy.wait(60)
    assert {card.state for card in bids_of_the_script(project, number)} == {CardState.BID}
    why = project.dibs("why", str(number), "--json").data["reasons"]
    assert [one["code"] for one in why] == ["BID_PENDING"]
    assert project.dibs("claim", str(number)).code == 4
    project.pass_time(SCRIPT_TTL_S)
    assert project.work().code == 0
    assert project.label_names(number) == {"stage:done"}
    assert project.issue(number).state == "closed", "a bid that came to nothing is no attempt"
    assert {card.state for card in bids_of_the_script(project, number)} == {CardState.BID}
