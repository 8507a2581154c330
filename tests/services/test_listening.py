"""What a tracker tells by itself: proof first, then whether it can make an issue free."""

import os
import threading

import pytest
from msgspec.structs import replace

from dibs.adapters.system import FileHints, FileWaker, WorkerFiles
from dibs.core.card import Card, CardState, render_card
from dibs.core.errors import Unwritable
from dibs.core.ids import HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.ports.system import Happening, Present, Rubbish
from dibs.services.listening import Did, Listening, may_free_an_issue, stops_work
from dibs.testing.clock import EPOCH

from .clock import WatchedClock
from .world import TTL, pipeline_of

PIPELINE = replace(pipeline_of(), priorities=("urgent",))
ISSUE = IssueRef("acme/shop", "12")


class Told:
    """Deliveries that are values already."""

    def __init__(self):
        self.happenings = {}
        self.vouched = True

    def vouched_for(self, body, headers):
        return self.vouched

    def number(self, headers):
        return headers.get("number", "")

    def read(self, body, headers):
        happening = self.happenings.get(body)
        if happening is None:
            raise Rubbish("it cannot be read")
        return happening


class Counted:
    def __init__(self):
        self.wakes = 0
        self.issues = []
        self.flaw = None

    def wake(self, issue=None):
        if self.flaw is not None:
            raise self.flaw
        if issue is None:
            self.wakes += 1
        else:
            self.issues.append(issue)


class Listener:
    def __init__(self, *repos):
        self.told, self.waker, self.clock = Told(), Counted(), WatchedClock()
        self.listening = Listening(
            self.told, self.waker, PIPELINE, self.clock, repos=repos or ("Acme/Shop",)
        )
        self._deliveries = 0

    def hear(self, happening, number=None):
        self._deliveries += 1
        body = f"delivery {self._deliveries}".encode()
        self.told.happenings[body] = happening
        number = str(self._deliveries) if number is None else number
        return self.listening.receive(body, {"number": number})

    def wakes_after(self, action):
        """How often workers are woken by what happens until the listener ends."""
        thread = threading.Thread(target=self.listening.wake_workers)
        thread.start()
        self.clock.let_others()
        action()
        self.clock.pass_on(1)
        self.listening.end()
        thread.join(60)
        assert not thread.is_alive()
        return self.waker.wakes


def issues(action, label="", **more):
    return Happening("issues", action, "acme/shop", issue=ISSUE, label=label, **more)


def comment(body, action="created", **more):
    return Happening("issue_comment", action, "acme/shop", issue=ISSUE, comment=body, **more)


# Proof


def test_whoever_is_not_vouched_for_is_refused_and_not_read():
    listener = Listener()
    listener.told.vouched = False
    heard = listener.hear(issues("opened"))
    assert (heard.did, heard.happening, heard.why) == (Did.REFUSED, None, "")
    assert listener.wakes_after(lambda: None) == 0


def test_a_refused_delivery_does_not_use_up_its_number():
    listener = Listener()
    listener.told.vouched = False
    assert listener.hear(issues("opened"), "1").did is Did.REFUSED
    listener.told.vouched = True
    assert listener.hear(issues("opened"), "1").did is Did.WOKE


def test_what_comes_again_is_dropped():
    listener = Listener()
    assert listener.hear(issues("opened"), "1").did is Did.WOKE
    assert listener.hear(issues("opened"), "1").did is Did.REPEATED
    assert listener.hear(issues("opened"), "2").did is Did.WOKE


def test_deliveries_without_a_number_are_all_heard():
    listener = Listener()
    assert [listener.hear(issues("opened"), "").did for _ in range(2)] == [Did.WOKE] * 2


def test_the_memory_of_numbers_is_bounded():
    listener = Listener()
    for number in range(10_050):
        listener.hear(Happening("ping"), str(number))
    assert len(listener.listening._numbers) == 10_000
    assert listener.hear(issues("opened"), "10049").did is Did.REPEATED


def test_rubbish_is_told_as_such():
    heard = Listener().hear(None)
    assert (heard.did, heard.why) == (Did.RUBBISH, "it cannot be read")


def test_a_ping_is_answered():
    assert Listener().hear(Happening("ping")).did is Did.PONG


# Which repository


def test_other_repositories_are_ignored():
    listener = Listener("acme/shop", "acme/docs")
    other = Happening("issues", "opened", "acme/elsewhere")
    assert listener.hear(other).did is Did.IGNORED
    assert listener.hear(replace(other, repo="ACME/docs")).did is Did.WOKE


def test_a_repository_is_known_by_its_number_once_it_was_heard_of():
    listener = Listener()
    renamed = Happening("repository", "renamed", "acme/store", repo_id=7, was_repo="acme/shop")
    assert listener.hear(replace(issues("opened"), repo="acme/store", repo_id=7)).did is Did.IGNORED
    heard = listener.hear(renamed)
    assert (heard.did, heard.why) == (
        Did.NOTED,
        "acme/shop is acme/store now; say so in tracker of dibs.toml",
    )
    assert listener.hear(replace(issues("opened"), repo="acme/store", repo_id=7)).did is Did.WOKE


def test_a_repository_without_a_number_is_known_by_its_name_only():
    listener = Listener()
    listener.hear(issues("opened"))
    assert listener.hear(Happening("issues", "opened", "acme/other")).did is Did.IGNORED


@pytest.mark.parametrize(
    ("action", "did"),
    [
        ("archived", Did.NOTED),
        ("deleted", Did.NOTED),
        ("unarchived", Did.WOKE),
        ("publicized", Did.IGNORED),
    ],
)
def test_what_becomes_of_the_repository_is_said(action, did):
    assert Listener().hear(Happening("repository", action, "acme/shop")).did is did


# What can make an issue free

CARD = render_card(Card(run=RunId("r1"), ttl=TTL, holder=HolderId("w1"), stage=StageName("ready")))
HELD_CARD = render_card(
    Card(
        run=RunId("r1"),
        ttl=TTL,
        holder=HolderId("w1"),
        stage=StageName("ready"),
        state=CardState.HELD,
        prev=ServerTime(EPOCH),
    )
)


@pytest.mark.parametrize(
    "happening",
    [
        issues("opened"),
        issues("reopened"),
        issues("unassigned"),
        issues("unlocked"),
        issues("labeled", "stage:ready"),
        issues("labeled", "Stage:Ready"),
        issues("labeled", "stage:review"),
        issues("labeled", "approved"),
        issues("labeled", "urgent"),
        issues("unlabeled", "claimed"),
        issues("unlabeled", "paused"),
        issues("unlabeled", "parked"),
        issues("unlabeled", "do-not-pickup"),
        issues("unlabeled", "stage:review"),
        comment("<!-- resume scope=fleet by=ada v=1 -->"),
        comment("<!-- agent-release:codename=x firing_id=1 -->"),
        comment(CARD, "deleted"),
        Happening("label", "deleted", "acme/shop", label="paused"),
        Happening("pull_request", "closed", "acme/shop", on_pull=True),
        Happening("pull_request", "edited", "acme/shop", on_pull=True),
    ],
    ids=str,
)
def test_this_may_free_an_issue(happening):
    assert may_free_an_issue(happening, PIPELINE)


@pytest.mark.parametrize(
    "happening",
    [
        issues("closed"),
        issues("deleted"),
        issues("assigned"),
        issues("edited"),
        issues("locked"),
        issues("labeled", "claimed"),
        issues("labeled", "stage:processing"),
        issues("labeled", "stage:done"),
        issues("labeled", "bug"),
        issues("unlabeled", "bug"),
        issues("unlabeled", "stage:processing"),
        issues("opened", on_pull=True),
        comment("I had a look at it"),
        comment(CARD),
        comment(HELD_CARD, "edited"),
        comment("<!-- resume scope=fleet v=1 -->", on_pull=True),
        Happening("label", "created", "acme/shop", label="bug"),
        Happening("pull_request", "opened", "acme/shop", on_pull=True),
        Happening("pull_request", "synchronize", "acme/shop", on_pull=True),
        Happening("star", "", "acme/shop"),
    ],
    ids=str,
)
def test_this_makes_no_issue_free(happening):
    assert not may_free_an_issue(happening, PIPELINE)


# Waking


def test_a_storm_of_changes_is_one_hint():
    listener = Listener()
    assert listener.wakes_after(lambda: [listener.hear(issues("opened")) for _ in range(92)]) == 1


def test_what_cannot_matter_wakes_nobody():
    listener = Listener()
    assert listener.wakes_after(lambda: listener.hear(issues("closed"))) == 0


def test_what_happens_later_is_another_hint():
    listener = Listener()

    def twice():
        for wakes in (1, 2):
            listener.hear(issues("opened"))
            listener.clock.pass_on(1)
            assert listener.waker.wakes == wakes

    assert listener.wakes_after(twice) == 2


def test_a_hint_that_cannot_be_given_is_told_to_whoever_asks_how_it_goes():
    listener = Listener()
    listener.waker.flaw = Unwritable("no space left")
    listener.wakes_after(lambda: listener.hear(issues("opened")))
    assert not listener.listening.healthy
    listener.waker.flaw = None
    listener.listening._news.set()
    listener.listening._wake()
    assert listener.listening.healthy


# Between processes


def test_a_hint_is_heard_once_by_each_that_listens(tmp_path):
    path = tmp_path / ".dibs" / "wake"
    waker, first, second = FileWaker(path), FileHints(path), FileHints(path)
    assert not first.heard()
    waker.wake()
    assert [first.heard(), first.heard(), second.heard(), second.heard()] == [
        True,
        False,
        True,
        False,
    ]
    for _ in range(50):  # however fast one follows the other
        waker.wake()
        assert first.heard()
    assert second.heard()


def test_a_hint_from_before_is_no_news(tmp_path):
    path = tmp_path / "wake"
    FileWaker(path).wake()
    assert not FileHints(path).heard()


def test_a_hint_that_is_taken_away_is_no_hint(tmp_path):
    path = tmp_path / "wake"
    FileWaker(path).wake()
    hints = FileHints(path)
    path.unlink()
    assert not hints.heard()
    FileWaker(path).wake()
    assert hints.heard()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(Unwritable, match="wake"):
        FileWaker(blocked / "wake").wake()
    assert not FileHints(blocked / "wake").heard()


def test_nothing_is_left_lying_about(tmp_path):
    for _ in range(3):
        FileWaker(tmp_path / "wake").wake()
    assert [entry.name for entry in tmp_path.iterdir()] == ["wake"]


# What stops work


def test_what_else_is_closed_stops_nobody():
    assert stops_work(issues("closed"), PIPELINE)
    assert not stops_work(replace(issues("closed"), event="discussion"), PIPELINE)


@pytest.mark.parametrize(
    "happening", [issues("closed"), issues("labeled", "Paused"), issues("labeled", "do-not-pickup")]
)
def test_a_change_that_stops_work_is_a_hint_to_the_holder_alone(happening):
    listener = Listener()
    woken = listener.wakes_after(lambda: listener.hear(happening))
    assert (woken, listener.waker.issues) == (0, [ISSUE])


@pytest.mark.parametrize(
    "happening",
    [
        issues("labeled", "claimed"),
        issues("unlabeled", "nice to have"),
        issues("closed", on_pull=True),
        Happening("issues", "closed", "acme/other", issue=IssueRef("acme/other", "1")),
        comment("closed, I think"),
    ],
)
def test_other_changes_disturb_no_holder(happening):
    listener = Listener()
    listener.wakes_after(lambda: listener.hear(happening))
    assert listener.waker.issues == []


# Between a person and a holder


def test_a_hint_about_an_issue_is_heard_once_by_its_holder_alone(tmp_path):
    path = tmp_path / ".dibs" / "wake"
    waker, idle = FileWaker(path), FileHints(path)
    issues = [IssueRef("", "1"), IssueRef("acme/shop", "1"), IssueRef("", "ABC-1")]
    holders = [idle.about(issue) for issue in issues]
    assert not any(holder.heard() for holder in holders)
    for issue, holder in zip(issues, holders, strict=True):
        waker.wake(issue)
        assert [other.heard() for other in holders] == [other is holder for other in holders]
    assert not idle.heard()
    waker.wake()
    assert not any(holder.heard() for holder in holders)


def test_a_hint_that_came_just_before_the_holder_is_heard(tmp_path):
    """Between a claim and the first look: the person may have been faster."""
    path, issue = tmp_path / "wake", IssueRef("", "1")
    FileWaker(path).wake(issue)
    assert FileHints(path).about(issue).heard()


def test_hints_that_no_holder_heard_are_removed(tmp_path):
    waker = FileWaker(tmp_path / "wake")
    waker.wake(IssueRef("", "1"))
    waker.wake(IssueRef("", "2"))
    os.utime(tmp_path / "wake-#1", (1_000_000, 1_000_000))
    waker.wake(IssueRef("", "3"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["wake-#2", "wake-#3"]


# Between workers and commands


def test_a_worker_is_known_until_it_ends(tmp_path):
    files = WorkerFiles(tmp_path / "workers")
    assert files.present() == Present()
    first = files.announce(Present(frozenset({"one", "two"}), frozenset({"one"})))
    second = files.announce(Present(frozenset({"three"}), frozenset({"three"})))
    seen = WorkerFiles(tmp_path / "workers").present()
    assert seen == Present(frozenset({"one", "two", "three"}), frozenset({"one", "three"}))
    first()
    assert files.present().served == {"three"}
    second()
    assert (files.present(), list((tmp_path / "workers").iterdir())) == (Present(), [])


def test_the_file_of_a_killed_worker_does_not_count_and_the_next_removes_it(tmp_path):
    dead = tmp_path / "1-deadbeef.json"
    dead.write_text('{"served":["one"],"handled":["one"]}')
    rubbish = tmp_path / "2-0badcafe.json"
    rubbish.write_text('{"ser')
    files = WorkerFiles(tmp_path)
    assert files.present() == Present()
    others = tmp_path / "package.json"
    others.write_text("{}")
    files.announce(Present(frozenset({"two"})))()
    assert list(tmp_path.iterdir()) == [others], "no worker could have made it"


def test_a_worker_runs_although_it_cannot_announce_itself(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    files = WorkerFiles(blocked / "workers")
    files.announce(Present(frozenset({"one"})))()
    assert files.present() == Present()
