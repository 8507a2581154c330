"""S17: a handler's note becomes a live link, a mention or an image in a comment of the fleet.

Actor: a handler, or the stranger whose words the handler repeats. The parking comment listed the
links of a note as links: `<http://evil/x.png)>` by the fleet's own account, which people trust. A
holder's name and the reason of a pause went out as they were. The wall: other people's words stand
as code in every comment that dibs posts; there GitHub makes no link, mention, reference or markup.

No setting switches the wall off. The control takes it out of this process: by the same rules the
comment is then full of links and mentions.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace
from tests.core.builders import ruling

from dibs.core.agent_dialect import release_beside
from dibs.core.approval import render_labelled, render_plan, render_released
from dibs.core.card import Card, CardState, render_card, render_excuse, render_revoke
from dibs.core.eligibility import PauseScope, render_pause, render_resume
from dibs.core.granter import PauseWord, ResumeWord
from dibs.core.granter import render_pause as log_pause
from dibs.core.granter import render_resume as log_resume
from dibs.core.ids import HolderId, IssueRef, RunId, StageName, server_time
from dibs.core.issue import Issue
from dibs.core.lease import Ending, Outcome, Revocation
from dibs.core.presets import STAGES
from dibs_lab.fakehub import FakeHub, Limits, Permission

from .conftest import SECRETS, Victim

EVIL = (
    "http://evil.example/x.png) www.evil.example ![i](http://evil.example/i.png) "
    "[l](http://evil.example) <http://evil.example> @ann acme/shop#1 closes #1 GH-1 "
    "<!-- x --> <b>bold</b> <img src=x> `tick` ``two`` me@evil.example"
)
# What GitHub makes of plain text: links, mentions, references to issues.
LIVE = re.compile(
    r"(?i)[a-z][a-z0-9+.-]*://|www\.|\S@\S+\.\S|(?<![\w`])@[a-z0-9]|(?:^|[^\w&])#[0-9]|\bgh-[0-9]"
)
MARKDOWN = MarkdownIt("commonmark", {"html": True})


def live_in(body: str) -> list[str]:
    """What a reader could click or would be pinged by, in the words below a line for machines."""
    found = []
    for block in MARKDOWN.parse(body):
        if block.type == "html_block" and not block.content.startswith("<!-- "):
            found.append(block.content)
        for token in block.children or ():
            if token.type in ("link_open", "image", "html_inline"):
                found.append(f"{token.type} {token.attrs} {token.content}")
            elif token.type == "text":
                found += LIVE.findall(token.content)
    return found


def test_the_control_without_the_wall_it_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.core.eligibility.quoted", lambda text: text)
    found = live_in(render_pause("ann", EVIL))
    assert len(found) >= 8
    assert any("image" in entry for entry in found)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(limits=Limits.off()) as opened:
        opened.repository("acme/shop")
        may = {"acme/shop": Permission.WRITE}
        opened.user("fleet", may, token=SECRETS["GITHUB_TOKEN"])
        yield opened


SETTINGS = """
tracker = "github:acme/shop"
preset = "none"
settle = "50ms"
ttl = "30s"
[[stage]]
name = "ready"
next = "done"
attempts = 1
run = 'cat "answer-${DIBS_ISSUE##*#}" > "$DIBS_RESULT"; exit $((${DIBS_ISSUE##*#} == 2 ? 77 : 1))'
[[stage]]
name = "done"
"""


def test_nothing_that_dibs_posts_on_github_is_live(victim: Victim, hub: FakeHub) -> None:
    victim.env["GITHUB_API_URL"] = hub.url
    victim.configure(SETTINGS)
    victim.dibs("add", "one", "two", "three", "four")
    for number, key in ((1, "note"), (2, "ask")):
        answer = json.dumps({key: EVIL[(number - 1) * 60 :]})
        (victim.folder / f"answer-{number}").write_text(answer, "utf-8")
    name = "https://evil.example/GH-1"
    for number in (3, 4):
        victim.dibs("pause", str(number), "--reason", EVIL, "--as", name)
    victim.dibs("resume", "4", "--as", name)
    run = json.loads(victim.dibs("claim", "4", "--as", name, "--json").stdout)["data"]["run"]
    victim.dibs("revoke", "4", "--run", run, "--reason", EVIL, "--as", name)
    for _ in range(2):
        worked = victim.dibs("work", "--once", "--name", name)
        assert "1 parked" in worked.stdout + worked.stderr, worked
    repository, view = hub.state.named("acme/shop").id, hub.state.view().primary
    bodies = [
        comment.body
        for issue in view.issues(repository)
        for comment in view.comments(issue.id)
        if not issue.title.startswith("dibs:")
    ]
    assert [(found, body) for body in bodies if (found := live_in(body))] == []
    posted = "\n".join(bodies)
    for said in ("Set aside for a person after", "without a failure", "Paused by", "evil.example"):
        assert said in posted


NOW = server_time(datetime(2026, 5, 1, tzinfo=UTC))


@given(
    st.one_of(
        st.just(EVIL), st.text(max_size=100), st.lists(st.sampled_from(EVIL.split())).map(" ".join)
    )
)
def test_no_name_or_reason_is_live_in_any_comment(text: str) -> None:
    issue = Issue(IssueRef("", "1"), "t", True, frozenset(), 0, NOW, NOW)
    ending = Ending(Outcome.ADVANCED, StageName(text), f"outcome={text.replace(' ', '')}")
    run, ttl, released = RunId("a1"), timedelta(minutes=1), CardState.RELEASED
    cards = [
        Card(run, ttl, holder=HolderId(text), stage=StageName(text)),
        Card(run, ttl, released, HolderId(text), StageName(text), NOW, ending=ending, shown=True),
    ]
    bodies = [
        *map(render_card, cards),
        release_beside(render_card(cards[1]), "2026-05-01T00:00:00Z") or "",
        render_pause(text, text),
        render_resume(text),
        render_released(text, replace(STAGES.stages[0], name=StageName(text)), text),
        ruling(issue, text, text, note=text),
        ruling(issue, text, text, kind="rejected", note=text),
        render_labelled((text,), text),
        render_plan(StageName(text), text, text, text),
        render_revoke(Revocation(RunId("a1"), text, text)),
        render_excuse(RunId("a1"), HolderId(text), text),
        log_pause(PauseWord(PauseScope.FLEET, text, text)),
        log_resume(ResumeWord(PauseScope.FLEET, text)),
    ]
    for body in bodies:
        assert live_in(body) == [], body
