"""Actor: a stranger who opened an issue on a public repository, and may edit it for ever.

Attack: a maintainer reads the issue and releases it by the stage's label; then the stranger changes
the body or the title, and the handler works the new text. Wall: a text that an account without
write access changed after the release is not worked (TEXT_CHANGED) until a person looks: puts the
label on again, or says `dibs approve`. A later edit, by a bot or by a writer who ticks a box,
releases nothing: the stranger's words may still be there. The check is made on the text that the
handler gets. `[people] text = "any"` takes the wall out.
"""

from dataclasses import replace

import pytest

from .hub import MAINTAINER, REPOSITORY, STRANGER, PublicProject, public_project

EVIL = "MALICIOUS after triage"
BOT = "tidy[bot]"


@pytest.fixture
def project(victim):
    with public_project(victim) as made:
        yield made


def released(project: PublicProject, *, people: str = "") -> int:
    """A stranger's issue that the maintainer has released."""
    project.configure(people=people)
    number = project.open_issue(STRANGER, "a title", "harmless")
    project.pass_time(2)
    project.acting(MAINTAINER).add_labels(project.issue(number), ["stage:ready"])
    project.pass_time(2)
    return number


def edit(project: PublicProject, number: int, by: str = STRANGER, **changes: str) -> None:
    project.acting(by).edit_issue(project.issue(number), **(changes or {"body": EVIL}))
    project.pass_time(2)


@pytest.mark.parametrize("change", [{"body": EVIL}, {"title": EVIL}], ids=["body", "title"])
def test_a_text_that_was_changed_after_the_release_is_not_worked(project, change):
    number = released(project)
    edit(project, number, **change)
    project.work()
    assert project.input_of(number) is None
    (reason,) = project.dibs("why", str(number))["reasons"]
    assert reason["code"] == "TEXT_CHANGED"
    assert "mallory, who may not write, changed its text at 20" in reason["text"]
    (row,) = [row for row in project.dibs("list") if row["issue"].endswith(f"#{number}")]
    assert row["state"] == project.dibs("show", str(number))["state"] == "gated"
    assert project.hub.state.primary().comments(project.issue(number).id) == [], "nobody has bid"
    status = project.dibs("status")
    (ready,) = [stage for stage in status["stages"] if stage["stage"] == "ready"]
    assert (ready["waiting"], ready["gated"]) == (0, 1)
    assert [row["note"] for row in status["for_a_person"]] == [reason["text"]]


def test_control_without_the_check_the_handler_works_it(project):
    number = released(project, people='text = "any"')
    edit(project, number)
    project.work()
    given = project.input_of(number)
    assert given is not None
    assert given["body"] == EVIL


def test_an_edit_before_the_release_is_what_the_maintainer_read(project):
    project.configure()
    number = project.open_issue(STRANGER, "a title", "harmless")
    edit(project, number, body="harmless, and spelt well")
    project.acting(MAINTAINER).add_labels(project.issue(number), ["stage:ready"])
    assert project.codes(number) == []


def put_the_label_on_again(project, number):
    acting = project.acting(MAINTAINER)
    acting.add_labels(acting.remove_label(project.issue(number), "stage:ready"), ["stage:ready"])


def approve(project, number):
    assert "approved" in project.say("approve", str(number))


@pytest.mark.parametrize("look", [put_the_label_on_again, approve])
def test_it_is_worked_once_a_person_has_looked(project, look):
    number = released(project)
    edit(project, number)
    assert project.codes(number) == ["TEXT_CHANGED"]
    look(project, number)
    assert project.codes(number) == []
    project.work()
    assert project.input_of(number) is not None


@pytest.mark.parametrize("by", [MAINTAINER, BOT])
def test_an_edit_after_the_strangers_releases_nothing(project, by):
    project.hub.state.add_user(BOT, kind="Bot")
    project.hub.state.add_token(f"{BOT}-token", BOT)
    project.hub.state.grant(REPOSITORY, BOT, project.permission.WRITE)
    number = released(project)
    edit(project, number)
    edit(project, number, by, body=f"{EVIL}\n\n- [x] triaged")
    assert project.codes(number) == ["TEXT_CHANGED"]
    project.work()
    assert project.input_of(number) is None
    put_the_label_on_again(project, number)
    assert project.codes(number) == []


def test_an_approval_covers_the_text_that_was_read_and_no_later_one(project):
    number = released(project)
    edit(project, number)
    approve(project, number)
    edit(project, number, body="worse")
    assert project.codes(number) == ["TEXT_CHANGED"]


def test_a_flood_of_new_titles_does_not_hide_the_release(project):
    number = released(project)
    for at in range(120):
        project.acting(STRANGER).edit_issue(project.issue(number), title=f"{EVIL} {at}")
    project.pass_time(2)
    assert project.codes(number) == ["TEXT_CHANGED"]
    put_the_label_on_again(project, number)
    assert project.codes(number) == []


def test_a_flood_of_labels_does_not_hide_a_new_title(project):
    """GitHub lists the last hundred labels and titles; then neither it nor the release is seen."""
    number = released(project)
    edit(project, number, title=EVIL)
    acting, issue = project.acting(MAINTAINER), project.issue(number)
    for _ in range(110):
        issue = acting.remove_label(acting.add_labels(issue, ["phones"]), "phones")
    project.pass_time(2)
    assert project.codes(number) == ["TEXT_CHANGED"]
    project.work()
    assert project.input_of(number) is None
    put_the_label_on_again(project, number)
    assert project.codes(number) == []


def test_the_labels_of_a_run_release_nothing(project):
    """The stranger edits while the first stage is worked; the second would get the new text."""
    project.configure()
    number = project.open_issue(STRANGER, "a title", "harmless", "stage:ready")
    project.pass_time(2)
    project.work()
    assert project.labels(number) == {"stage:review"}
    project.pass_time(2)
    edit(project, number)
    assert "TEXT_CHANGED" in project.codes(number)
    # The edit came before the run's label: as if made during the run.
    issue, state = project.issue(number), project.hub.state
    (first, *_) = state.primary().comments(issue.id)
    with state.writing() as write:
        write.issue(replace(issue, edits=(replace(issue.edits[-1], at=first.created_at),)))
    assert "TEXT_CHANGED" in project.codes(number)
