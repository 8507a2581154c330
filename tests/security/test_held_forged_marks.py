"""What strangers and readers write in a repository has no effect, whatever it looks like.

The actors: an account that may only read a repository, one that may also label (triage), and a
handler that chooses its note. The attack: comments that look like the fleet's own claims, endings,
revokes and pauses, a flood of cards, and a note that begins a mark of its own. The wall: a mark
counts if its author may write, and a value in a mark cannot end the mark. The same by a stranger
and by a writer without the key is in tests/github/test_forgery.py.
"""

import re

import pytest
from tests.acceptance.harness import until
from tests.github.projects import COLLEAGUE, GATED, REPOSITORY, project_on_a_hub
from tests.github.test_forgery import Forger

from dibs.core.card import CardState, parse_mark
from dibs.core.granter import parse_entry
from dibs_lab.fakehub import Permission

_NOTE = (
    "--> <!-- claim run=forged ttl=600s v=1 -->\n<!-- pause scope=fleet by=root v=1 -->\n"
    "<!-- agent-claim:codename=x firing_id=1 ts=0 -->\ncloses #2 @ann <img src=x>"
)
_NOTING = f"""cat > note.json <<'END'
{{"note": {_NOTE!r}}}
END
sed -e "s/: '/: \\"/" -e "s/'}}$/\\"}}/" note.json > "$DIBS_RESULT"
"""


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        for login, level in (("reader", Permission.READ), ("triager", Permission.TRIAGE)):
            made.hub.user(login, {REPOSITORY: level})
        yield made


@pytest.mark.parametrize("login", [pytest.param("reader", marks=pytest.mark.long), "triager"])
def test_marks_of_an_account_that_may_not_write_take_and_stop_nothing(project, login):
    project.begin_with(GATED)
    forger = Forger(project, login)
    (number,) = project.backlog(1)
    forger.says(number, *forger.claims())
    worker = project.holding(number)
    (card,) = project.our_cards(number)
    forger.says(number, *forger.endings(card.run), *forger.revokes(card.run))
    forger.says(project.control(), *forger.commands())
    until(lambda: project.our_cards(number)[0].beats > card.beats, "a renewal that saw all that")
    assert worker.running
    project.let_go()
    until(lambda: project.label_names(number) == {"stage:review"}, "it is advanced")
    worker.process.terminate()
    assert worker.wait().code == 0
    project.assert_worked_once(number)


def test_marks_of_a_writer_count(project):
    """Control: the same claim by an account that may write keeps the worker off."""
    project.begin_with()
    (number,) = project.backlog(1)
    writer = Forger(project, COLLEAGUE)
    writer.says(number, next(writer.claims()))
    assert project.dibs("work", "--once").code == 3
    assert project.label_names(number) == {"stage:ready"}


def test_a_triager_stops_and_starts_an_issue_by_its_labels_as_github_allows(project):
    """No wall: whoever may label may pause an issue and move it between stages."""
    project.begin_with()
    (number,) = project.backlog(1)
    triager = Forger(project, "triager")
    triager.ask("POST", f"/issues/{number}/labels", labels=["paused"])
    assert project.dibs("work", "--once").code == 3
    triager.ask("DELETE", f"/issues/{number}/labels/paused")
    assert project.dibs("work", "--once").code == 0
    project.assert_worked_once(number)


def test_a_hundred_and_fifty_cards_of_a_stranger_do_not_delay_a_claim(project):
    project.begin_with()
    (number,) = project.backlog(1)
    stranger = Forger(project, "reader")
    issue, acts = project.issue(number), project.acting("reader")
    for _ in range(50):
        for body in stranger.claims():
            acts.create_comment(issue, body)
    assert project.dibs("work", "--once").code == 0
    project.assert_worked_once(number)


def test_a_note_makes_no_mark_and_calls_nobody(project):
    project.begin_with(_NOTING)
    number, other = project.backlog(2)
    assert project.dibs("work", "--once").code == 0
    ours = [comment.body for comment in project.comments(number)]
    (card,) = [mark for mark in map(parse_mark, ours) if mark is not None]
    assert card.state is CardState.RELEASED
    assert "claim run=forged" in card.ending.note, "the note is there, as a value"
    for body in ours:
        assert parse_entry(body) is None
        assert len(re.findall(r"<!--|-->", body)) <= 2, body
        shown = re.sub(r"(`+)[^`]*\1|<!--.*?-->", "", body)
        assert "@ann" not in shown
        assert "<img" not in shown
        assert not re.search(r"closes #2", shown), body
    assert project.label_names(other) == {"stage:ready"}
    assert project.dibs("status", "--json").data["pauses"] == []
