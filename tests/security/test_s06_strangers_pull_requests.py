"""Actor: a stranger, an account without any right on a public repository.

Attack: one pull request that says `closes #1 closes #2 ...`. It kept every worker off every issue
that it named, and with `follows = "pull-request"` its closing moved issues in review back to be
done again. Wall: a pull request counts if its author may write or is of the fleet, or if it was
merged in this repository, which only a writer can do; rights in another repository are none here.
However many a stranger opens, a thousand are read. `[people] pulls = "all"` takes the wall out.
"""

import pytest

from .hub import FLEET, MAINTAINER, REPOSITORY, STRANGER, PublicProject, public_project

ALL = 'pulls = "all"'


@pytest.fixture
def project(victim):
    with public_project(victim) as made:
        yield made


def closing(project: PublicProject, by: str, numbers: list[int], head: str = "mallory:x"):
    body = " ".join(f"closes #{number}" for number in numbers)
    return project.acting(by).create_pull(project.repository, "mine", head, "main", body=body)


def worked(project: PublicProject, people: str) -> tuple[list[int], list[int]]:
    """The issues, and those of them that a worker worked beside the stranger's pull request."""
    project.configure(people=people)
    numbers = [
        project.open_issue(MAINTAINER, f"issue {at}", "text", "stage:ready") for at in range(3)
    ]
    closing(project, STRANGER, numbers)
    project.work()
    return numbers, [number for number in numbers if project.input_of(number) is not None]


def test_one_pull_request_of_a_stranger_stops_nobody(project):
    numbers, done = worked(project, "")
    assert done == numbers
    assert [project.labels(number) for number in numbers] == [{"stage:review"}] * 3


def test_control_it_stops_the_fleet_where_all_pull_requests_count(project):
    numbers, done = worked(project, ALL)
    assert done == []
    assert project.codes(numbers[0]) == ["PULL_OPEN"]


def moved_by_a_stranger(project: PublicProject, people: str) -> set[str]:
    project.configure(people=people)
    number = project.open_issue(MAINTAINER, "in review", "text", "stage:review")
    strange = closing(project, STRANGER, [number])
    project.acting(STRANGER).close_issue(strange)
    project.dibs("follow")
    return project.labels(number)


def test_the_end_of_a_strangers_pull_request_decides_nothing(project):
    assert moved_by_a_stranger(project, "") == {"stage:review"}


def test_control_it_moves_the_issue_back_where_all_pull_requests_count(project):
    assert moved_by_a_stranger(project, ALL) == {"stage:ready"}


def test_a_merged_one_of_a_stranger_moves_the_issue_on_since_a_writer_merged_it(project):
    project.configure()
    number = project.open_issue(MAINTAINER, "in review", "text", "stage:review")
    project.acting(MAINTAINER).merge_pull(closing(project, STRANGER, [number]))
    (moved,) = project.dibs("follow")["followed"]
    assert moved["action"] == "moved_on"


def test_sixty_open_ones_do_not_hide_the_one_that_was_merged(project):
    """The fleet's own is read among all, not behind the first twenty, which are the open ones."""
    project.configure()
    number = project.open_issue(MAINTAINER, "in review", "text", "stage:review")
    own = closing(project, FLEET, [number], "fix")
    for at in range(60):
        closing(project, STRANGER, [number], f"mallory:x{at}")
    project.acting(MAINTAINER).merge_pull(own)
    (moved,) = project.dibs("follow")["followed"]
    assert moved["action"] == "moved_on"


def test_a_hundred_and_twenty_do_not_hide_a_writers(project):
    """Neither the one that is open, from workers, nor the one that was merged, from `follows`."""
    project.configure()
    ready = project.open_issue(MAINTAINER, "an issue", "text", "stage:ready")
    review = project.open_issue(MAINTAINER, "in review", "text", "stage:review")
    for at in range(120):
        closing(project, STRANGER, [ready, review], f"mallory:x{at}")
    closing(project, MAINTAINER, [ready], "fix")
    project.acting(MAINTAINER).merge_pull(closing(project, FLEET, [review], "own"))
    assert project.codes(ready) == ["PULL_OPEN"]
    project.work()
    assert project.input_of(ready) is None
    assert project.labels(review) == {"stage:done"}


def test_what_a_stranger_does_in_a_repository_of_his_own_decides_nothing_here(project):
    """There he may write, and merge."""
    project.configure()
    ready = project.open_issue(MAINTAINER, "an issue", "text", "stage:ready")
    review = project.open_issue(MAINTAINER, "in review", "text", "stage:review")
    evil = project.hub.repository(f"{STRANGER}/evil")
    project.hub.state.grant(f"{STRANGER}/evil", STRANGER, project.permission.ADMIN)
    mallory = project.acting(STRANGER)
    body = f"closes {REPOSITORY}#{ready} closes {REPOSITORY}#{review}"
    mallory.create_pull(evil, "open", "x", "main", body=body)
    mallory.merge_pull(mallory.create_pull(evil, "merged", "y", "main", body=body))
    assert project.codes(ready) == []
    assert project.dibs("follow")["followed"] == []
    project.work()
    assert project.input_of(ready) is not None
    assert project.labels(review) == {"stage:review"}


def test_a_writers_pull_request_keeps_workers_off_as_before(project):
    project.configure()
    number = project.open_issue(MAINTAINER, "an issue", "text", "stage:ready")
    closing(project, MAINTAINER, [number], "fix")
    assert project.codes(number) == ["PULL_OPEN"]
    project.work()
    assert project.input_of(number) is None


def test_why_and_show_mention_it_all_the_same(project):
    project.configure()
    number = project.open_issue(MAINTAINER, "an issue", "text", "stage:ready")
    closing(project, STRANGER, [number])
    shown, why = project.say("show", str(number)), project.say("why", str(number))
    assert "nothing keeps it back" in why
    for words in (shown, why):
        assert "mallory, who may not write, has an open pull request for it" in words
    assert len(project.dibs("why", str(number))["strangers_pulls"]) == 1
