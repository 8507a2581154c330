"""Git leases beyond the suite: names, races, what is watched, what is lost, who may not."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from urllib.parse import quote

import libfaketime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.servers.git_http import GitHttpServer
from tests.servers.git_repository import ALONE, bare_repository, git
from tests.servers.process import wait_until

from dibs.adapters.git.leases import GitLeases
from dibs.adapters.git.records import Slot, StoredLease, read_record, write_record, write_slots
from dibs.adapters.git.refs import GitRemote, Names, quoted
from dibs.adapters.sqlite.observations import FileObservations
from dibs.adapters.system import wall_clock
from dibs.core import grants
from dibs.core.errors import BadConfiguration, Damaged, NotPermitted, Unavailable
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime
from dibs.core.lease import (
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Lost,
    Outcome,
    Released,
    Renewed,
    Revocation,
)
from dibs.ports.refs import EMPTY_TREE
from dibs.testing.clock import EPOCH, FakeClock
from dibs.testing.conformance.lease_harness import ADVANCED, CONCEDED, bid, record_of, revocation

from .git_harness import git_leases
from .harnesses import files

ROOT = Path(__file__).parents[2]
TTL = timedelta(minutes=10)
TTL_S = TTL.total_seconds()
A_MOMENT_S = 0.001
ISSUE = IssueRef("acme/shop", "17")
RECORD = "refs/dibs/leases/acme=2Fshop/17/record"


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch):
    """Neither the credentials nor the hooks of whoever runs the tests."""
    for name, text in ALONE.items():
        monkeypatch.setenv(name, text)


@pytest.fixture
def harness():
    with git_leases() as made:
        yield made


@cache
def http() -> GitHttpServer:
    return GitHttpServer()


@pytest.fixture
def served(tmp_path):
    """A server and the name of an empty repository on it."""
    server = http()
    name = f"{tmp_path.name}.git"
    bare_repository(server.folder / name)
    yield server, name
    (server.folder / "password").unlink(missing_ok=True)
    (server.folder / "lose").unlink(missing_ok=True)


def over_http(served, tmp_path, *, user="", **options) -> GitLeases:
    server, name = served
    place = f"git:{server.url(name, user=user)}"
    return GitLeases.connect(place, tmp_path / "objects", root=tmp_path, **options)


def held_by(store, run, issue=ISSUE, ttl=TTL) -> Lease:
    granted = store.acquire(bid(issue, run, ttl))
    assert isinstance(granted, Granted), granted
    return granted.lease


def history(remote: Path, ref=RECORD) -> list[str]:
    return git(remote, "log", "--format=%s", ref).splitlines()


# Names

AWKWARD = (
    *("", ".", "..", ".git", "a.lock", "a..b", "@", "@{0}", "-x", "a b", "a/b", "/a/", "a//b"),
    *("~^:?*[\\", "a\nb", "a\x00b", "é", "🦄", "=2F", "=", "==", "%2F", "a" * 500, "é" * 200),
    *("A", "a", "refs/heads/main", "\ud800", "..lock", "'; rm -rf x; '", "$(id)", "17", "017"),
)


def test_any_text_is_a_name_that_git_takes():
    for text in AWKWARD:
        ref = Names("refs/dibs").record(IssueRef(text, text))
        done = subprocess.run(["git", "check-ref-format", ref], timeout=30, check=False)
        assert done.returncode == 0, f"{text!r} makes {ref}"


def test_awkward_texts_have_different_names():
    assert len({quoted(text) for text in AWKWARD}) == len(AWKWARD)


@given(st.lists(st.text(), min_size=2, max_size=2, unique=True))
def test_two_texts_never_have_the_same_name(texts):
    one, two = map(quoted, texts)
    assert one != two


def test_long_names_that_begin_alike_are_told_apart():
    assert quoted("a" * 300 + "b") != quoted("a" * 300 + "c")


def test_awkward_issues_are_held_side_by_side(harness):
    issues = [IssueRef(text, "1") for text in AWKWARD[:-3:3]]
    issues += [IssueRef("a", "b/c"), IssueRef("a/b", "c"), IssueRef("a", "b")]
    for place, issue in enumerate(issues):
        held_by(harness.store, f"r{place}", issue)
    listed = {record.lease.issue: record.lease.run for record in harness.another().live()}
    assert listed == {issue: f"r{place}" for place, issue in enumerate(issues)}


# What is written


def test_a_person_reads_the_holder_with_git(harness):
    lease = held_by(harness.store, "a")
    harness.store.renew(lease)
    harness.another().revoke(ISSUE, revocation("a"))
    harness.store.acknowledge(_released(harness.store, lease))
    assert history(harness.remote) == [
        "acme/shop#17: advanced by worker-a (stage ready, fence 1, run a)",
        "acme/shop#17: advanced by worker-a (stage ready, fence 1, run a)",
        "acme/shop#17: held by worker-a, asked to stop by ada (stage ready, fence 1, run a)",
        "acme/shop#17: held by worker-a (stage ready, fence 1, run a)",
        "acme/shop#17: held by worker-a (stage ready, fence 1, run a)",
    ]
    told = json.loads(git(harness.remote, "log", "-1", "--format=%b", RECORD))
    assert told["holder"] == "worker-a"
    assert git(harness.remote, "ls-tree", "-r", RECORD) == ""


def _released(store, lease):
    released = store.release(lease, ADVANCED)
    assert isinstance(released, Released)
    return released.record


def test_the_entry_is_there_while_the_lease_is_held(harness):
    def entries():
        return git(harness.remote, "for-each-ref", "--format=%(refname)", "refs/dibs/held")

    lease = held_by(harness.store, "a")
    assert entries() == "refs/dibs/held/acme=2Fshop/17/1-a"
    harness.store.renew(lease)
    assert entries() == "refs/dibs/held/acme=2Fshop/17/1-a"
    harness.another().revoke(ISSUE, revocation("a", force=True))
    assert entries() == ""
    held_by(harness.another(), "b")
    assert entries() == "refs/dibs/held/acme=2Fshop/17/2-b"


def test_a_record_is_never_deleted_and_every_change_is_a_fast_forward(harness):
    git(harness.remote, "config", "receive.denyNonFastForwards", "true")
    for run in ("a", "b"):
        harness.store.release(held_by(harness.store, run), CONCEDED)
    assert len(history(harness.remote)) == 4
    assert git(harness.remote, "fsck", "--strict") == ""


TEXT = st.text(max_size=50)


@given(TEXT, TEXT, TEXT, st.integers(1, 2**60), st.booleans(), st.sampled_from(Outcome))
def test_a_message_comes_back_letter_for_letter(one, two, three, fence, flag, outcome):
    wish = replace(bid(IssueRef(one, two), "r", TTL), holder=HolderId(three), run=RunId(two))
    record = grants.grant(wish, Fence(fence), ServerTime(EPOCH))
    kept = StoredLease(
        record.lease,
        "pulse",
        Ending(outcome, None if flag else wish.stage, one) if flag else None,
        painted=flag,
        revocation=Revocation(wish.run, one, three, force=flag),
        expired=not flag,
    )
    assert read_record(write_record(kept), "refs/x") == kept
    assert write_record(kept) != write_record(kept), "two attempts would be one commit"
    assert "\n" not in write_record(kept).partition("\n\n")[0]


@pytest.mark.parametrize(
    "message",
    ["", "hello", "x\n\n{}", "x\n\n[]", "x\n\n" + "[" * 5000, 'x\n\n{"dibs": 2}'],
    ids=["empty", "words", "no-fields", "no-object", "deep", "half"],
)
def test_a_commit_that_is_not_a_record_is_damage(harness, message):
    commit = git(harness.remote, "commit-tree", EMPTY_TREE, given=message or "\n")
    git(harness.remote, "update-ref", RECORD, commit)
    for operation in (
        lambda: harness.store.read(ISSUE),
        lambda: harness.store.acquire(bid(ISSUE, "a", TTL)),
        lambda: harness.store.renew(_lease("a")),
        harness.store.highest,
    ):
        with pytest.raises(Damaged, match=RECORD):
            operation()


def _lease(run: str) -> Lease:
    return grants.grant(bid(ISSUE, run, TTL), Fence(1), ServerTime(EPOCH)).lease


def test_a_record_of_another_issue_is_damage(harness):
    held_by(harness.store, "a", IssueRef("acme/shop", "18"))
    git(harness.remote, "update-ref", RECORD, RECORD.replace("/17/", "/18/"))
    with pytest.raises(Damaged, match="tells of acme/shop#18"):
        harness.store.read(ISSUE)


def test_a_record_of_a_newer_format_is_left_alone(harness):
    held_by(harness.store, "a")
    text = git(harness.remote, "log", "-1", "--format=%B", RECORD).replace('"dibs": 1', '"dibs": 2')
    commit = git(harness.remote, "commit-tree", EMPTY_TREE, given=text)
    git(harness.remote, "update-ref", RECORD, commit)
    with pytest.raises(Damaged, match="newer dibs"):
        harness.another().acquire(bid(ISSUE, "b", TTL))


def test_what_others_put_beside_our_refs_is_left_alone(harness):
    """Nothing of it is believed; an entry that nobody confirms goes in time."""
    clock = FakeClock()
    store = harness.client("watcher", clock=clock)
    held_by(store, "a", ttl=TTL * 6)
    beside = RECORD.replace("/record", "/notes")
    litter = "refs/dibs/held/acme=2Fshop/17/1-b"
    for ref in (beside, litter, "refs/dibs/held/strange"):
        git(harness.remote, "update-ref", ref, "refs/heads/main")
    for _ in range(2):
        assert [record.lease.run for record in store.live()] == ["a"]
        assert record_of(store, ISSUE).lease.run == "a"
        clock.advance(TTL_S + 1)
    left = git(harness.remote, "for-each-ref", "--format=%(refname)", "refs/dibs").splitlines()
    assert left == ["refs/dibs/held/acme=2Fshop/17/1-a", beside, RECORD]


# Races


class Racer:
    """A process that claims when it is told to."""

    def __init__(self, place: str, folder: Path, **surroundings: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.git_racer", place, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **surroundings},
        )
        assert self._line() == ["ready"]

    def tell(self, *words: str) -> None:
        self._process.stdin.write(f"{' '.join(words)}\n")
        self._process.stdin.flush()

    def told(self) -> list[str]:
        return self._line()

    def ask(self, *words: str) -> list[str]:
        self.tell(*words)
        return self.told()

    def _line(self) -> list[str]:
        return self._process.stdout.readline().split()

    def __enter__(self):
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True], ids=["own-folders", "one-folder"])
def test_of_eight_processes_one_wins_every_time(harness, shared):
    place = f"git:{harness.remote}"
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                Racer(place, harness.folder / ("shared" if shared else f"own-{number}"))
            )
            for number in range(8)
        ]
        for turn in range(20):
            for number, racer in enumerate(racers):
                racer.tell("acquire", f"{turn}", f"r{number}", "600")
            told = [racer.told() for racer in racers]
            winners = [number for number, words in enumerate(told) if words[0] == "Granted"]
            assert len(winners) == 1, f"turn {turn}: {told}"
            losers = {words[1] for words in told if words[0] == "Busy"}
            assert losers == {f"r{winners[0]}"}, f"turn {turn}: {told}"


def test_two_clients_on_one_folder_take_turns(harness):
    """Many threads: no lock of git's is ever in the way."""
    clients = [harness.client("shared") for _ in range(2)]
    flaws = []

    def take(number):
        store = clients[number % 2]
        for turn in range(5):
            try:
                lease = held_by(store, f"t{number}-{turn}", IssueRef("", str(number)))
                assert isinstance(store.renew(lease), Renewed)
                assert isinstance(store.release(lease, CONCEDED), Released)
            except Exception as flaw:  # noqa: BLE001 - told by the thread that checks
                flaws.append(flaw)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert flaws == []


def test_a_limit_counts_a_grant_that_is_only_half_visible(harness):
    """The slot is there and its record is not: as a reader may see it in the midst of a push."""
    names = Names("refs/dibs")
    slot = Slot(names.record(IssueRef("", "elsewhere")), Fence(1))
    commit = git(harness.remote, "commit-tree", EMPTY_TREE, given=write_slots("ready", [slot]))
    git(harness.remote, "update-ref", names.slots("ready"), commit)
    asked = replace(bid(ISSUE, "a", TTL), limit=1)
    assert harness.store.acquire(asked) == Full(1)
    lease = held_by(harness.store, "b", IssueRef("", "elsewhere"))
    assert harness.store.acquire(asked) == Full(1)
    harness.store.release(lease, CONCEDED)
    assert isinstance(harness.store.acquire(asked), Granted)


# Watching


def test_a_contender_takes_over_only_after_it_has_watched_a_ttl(harness):
    held_by(harness.store, "a")
    clock = FakeClock()
    watcher = harness.client("watcher", clock=clock)
    clock.advance(TTL_S * 2)
    first = watcher.acquire(bid(ISSUE, "b", TTL))
    assert isinstance(first, Busy), "what was never looked at was taken"
    assert first.record.remaining == TTL
    clock.advance(TTL_S - A_MOMENT_S)
    assert isinstance(watcher.acquire(bid(ISSUE, "b", TTL)), Busy)
    clock.advance(A_MOMENT_S)
    taken = watcher.acquire(bid(ISSUE, "b", TTL))
    assert isinstance(taken, Granted)
    assert taken.lease.fence == 2


def test_a_renewal_starts_the_watch_again_and_a_revoke_does_not(harness):
    lease = held_by(harness.store, "a")
    clock = FakeClock()
    watcher = harness.client("watcher", clock=clock)
    assert record_of(watcher, ISSUE).remaining == TTL
    assert isinstance(harness.store.renew(lease), Renewed)
    clock.advance(TTL_S / 2)
    assert record_of(watcher, ISSUE).remaining == TTL
    clock.advance(TTL_S / 2)
    for client in (harness.another(), watcher):
        client.revoke(ISSUE, revocation("a"))
        assert record_of(watcher, ISSUE).remaining == TTL / 2
    clock.advance(TTL_S / 2)
    assert not record_of(watcher, ISSUE).live
    assert isinstance(harness.store.renew(lease), Lost)


@pytest.mark.parametrize("limit", [None, 1])
def test_a_run_that_asks_again_starts_the_watch_again(harness, limit):
    """It is told that it holds, and counts a ttl from its asking."""
    asked = replace(bid(ISSUE, "a", TTL), limit=limit)
    first = harness.store.acquire(asked)
    assert isinstance(first, Granted)
    clock = FakeClock()
    watcher = harness.client("watcher", clock=clock)
    assert record_of(watcher, ISSUE).remaining == TTL
    clock.advance(TTL_S - A_MOMENT_S)
    assert harness.store.acquire(asked) == first
    clock.advance(A_MOMENT_S)
    assert isinstance(watcher.acquire(bid(ISSUE, "b", TTL)), Busy)
    clock.advance(TTL_S)
    taken = watcher.acquire(bid(ISSUE, "b", TTL))
    assert isinstance(taken, Granted)
    assert taken.lease.fence == 2


def test_repositories_of_one_relative_path_are_watched_apart(tmp_path):
    seen = set()
    for name in ("one", "two"):
        root = tmp_path / name
        bare_repository(root / "leases.git")
        seen.add(GitRemote("leases.git", root / "objects", root, timeout_s=20).identity)
    assert len(seen) == 2


def test_a_watcher_that_comes_too_late_is_refused_by_the_server(harness):
    """It remembers a silent record and pushes on it; the holder has renewed meanwhile."""
    lease = held_by(harness.store, "a")
    clock = FakeClock()
    watcher = harness.client("watcher", clock=clock)
    assert record_of(watcher, ISSUE).live
    clock.advance(TTL_S * 3)
    assert isinstance(harness.store.renew(lease), Renewed)
    told = watcher.acquire(bid(ISSUE, "b", TTL))
    assert isinstance(told, Busy)
    assert told.record.remaining == TTL


def test_an_expiry_is_written_down_for_those_who_have_not_watched(harness):
    held_by(harness.store, "a")
    clock = FakeClock()
    watcher = harness.client("watcher", clock=clock)
    watcher.read(ISSUE)
    clock.advance(TTL_S)
    assert watcher.live() == ()
    over = record_of(harness.client("newcomer"), ISSUE)
    assert not over.live
    assert over.as_of >= over.lease.expires_at
    assert "expired" in history(harness.remote)[0]
    assert not isinstance(harness.client("newcomer").acquire(bid(ISSUE, "b", TTL)), Busy)


def test_what_is_over_grows_older_for_whoever_watches_it(harness):
    clock = FakeClock()
    watcher = harness.client("watcher", clock=clock)
    held_by(watcher, "a")
    clock.advance(TTL_S)
    assert record_of(watcher, ISSUE).remaining <= timedelta()
    clock.advance(30)
    assert record_of(watcher, ISSUE).remaining <= timedelta(seconds=-30), "a grace would never end"


def test_a_holder_that_slept_for_a_ttl_is_lost_by_its_own_reckoning(harness):
    clock = FakeClock()
    holder = harness.client("holder", clock=clock)
    lease = held_by(holder, "a")
    clock.advance(TTL_S)
    assert isinstance(holder.renew(lease), Lost)
    assert isinstance(holder.release(lease, ADVANCED), Lost)
    assert not record_of(harness.another(), ISSUE).live, "it was not written down"


def test_the_next_process_of_the_machine_goes_on_watching(harness):
    held_by(harness.store, "a", ttl=timedelta(seconds=1))
    with files() as opened:
        for _ in range(2):
            seen = FileObservations(opened.open())
            watcher = harness.client("watcher", observations=seen)
            record = record_of(watcher, ISSUE)
            if not record.live:
                break
            harness.advance(record.remaining.total_seconds())
        assert isinstance(watcher.acquire(bid(ISSUE, "b", TTL)), Granted)


def test_live_fetches_what_is_live_and_nothing_else(harness):
    for place in range(12):
        lease = held_by(harness.store, f"r{place}", IssueRef("", str(place)))
        if place < 10:
            harness.store.release(lease, CONCEDED)
    newcomer = harness.client("newcomer")
    assert len(newcomer.live()) == 2
    objects = [path for path in (harness.folder / "newcomer").rglob("*") if path.is_file()]
    assert len(objects) == 3, "two commits and the empty tree"


@pytest.mark.parametrize("hours", [1, -1])
def test_a_time_of_day_that_is_off_changes_nothing(harness, hours):
    library = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
    skew = {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{hours * 3600:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with Racer(f"git:{harness.remote}", harness.folder / "skewed", **skew) as skewed:
        verdict, _, stamp = skewed.ask("acquire", "1", "a", "600")
        assert verdict == "Granted"
        off = datetime.fromisoformat(stamp) - wall_clock()
        assert abs(off - timedelta(hours=hours)) < timedelta(minutes=5), "the clock was not off"
        one, two = IssueRef("", "1"), IssueRef("", "2")
        told = harness.store.acquire(bid(one, "b", TTL))
        assert isinstance(told, Busy)
        assert timedelta() < told.record.remaining <= TTL
        assert skewed.ask("renew", "1")[0] == "Renewed"
        held_by(harness.store, "c", two, timedelta(seconds=1))
        assert skewed.ask("acquire", "2", "d", "600")[:2] == ["Busy", "c"]
        harness.advance(1.05)
        assert skewed.ask("acquire", "2", "d", "600")[0] == "Granted"
        assert skewed.ask("release", "1")[0] == "Released"


# What it costs


def test_a_claim_a_renewal_and_an_ending_are_one_push_each(harness, tmp_path, monkeypatch):
    """Counted by a `git` on the path that notes what it is asked, and then asks git."""
    log, shim = tmp_path / "log", tmp_path / "bin" / "git"
    shim.parent.mkdir()
    real = shutil.which("git")
    shim.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
    one, two = harness.client("one"), harness.client("two")

    def cost(operation):
        log.write_text("")
        operation()
        asked = [set(line.split()) for line in log.read_text().splitlines()]
        return tuple(sum(verb in words for words in asked) for verb in ("push", "fetch"))

    held, renewed = [], []
    assert cost(lambda: held.append(held_by(one, "a"))) == (1, 0)
    assert cost(lambda: renewed.append(one.renew(held[0]))) == (1, 0)
    assert renewed[0].lease.expires_at > held[0].expires_at, "no reader sees that it was renewed"
    assert cost(lambda: one.read(ISSUE)) == (0, 1)
    assert "cat-file" not in log.read_text(), "what we have written is remembered"
    assert cost(lambda: two.acquire(bid(ISSUE, "b", TTL))) == (1, 1), "refused, and then looked"
    assert cost(lambda: two.acquire(bid(ISSUE, "b", TTL))) == (0, 1)
    assert cost(lambda: two.read(ISSUE)) == (0, 1)
    assert cost(two.live) == (0, 2)
    assert cost(lambda: one.release(held[0], CONCEDED)) == (1, 0)
    assert cost(lambda: held_by(one, "c")) == (1, 0)


# What is lost on the way


# Git sends again what it got no reply to, if the connection was not a new one.
each_loss = pytest.mark.parametrize("losses", [1, 2], ids=["once", "and-again"])


def lose(server, times: int) -> None:
    (server.folder / "lose").write_text("POST git-receive-pack\n" * times)


@each_loss
def test_an_acquire_whose_reply_was_lost_is_read_back(served, tmp_path, losses):
    server, name = served
    store = over_http(served, tmp_path)
    lose(server, losses)
    lease = held_by(store, "a")
    assert (server.folder / "lose").read_text() == "", "no reply was lost"
    assert len(history(server.folder / name)) == 1
    assert store.acquire(bid(ISSUE, "a", TTL)) == Granted(lease)
    assert isinstance(store.renew(lease), Renewed)


@each_loss
def test_a_renewal_and_a_release_whose_replies_were_lost_are_read_back(served, tmp_path, losses):
    server, name = served
    store = over_http(served, tmp_path)
    lease = held_by(store, "a")
    lose(server, losses)
    renewed = store.renew(lease)
    assert isinstance(renewed, Renewed)
    assert renewed.lease.beats == 1
    lose(server, losses)
    released = store.release(lease, ADVANCED)
    assert isinstance(released, Released)
    assert released.record.ending == ADVANCED
    assert len(history(server.folder / name)) == 3


def test_a_reply_that_never_came_is_no_answer(served, tmp_path):
    """The next try of the same run finds its own grant."""
    server, name = served
    store = over_http(served, tmp_path, timeout_s=2)
    server.freeze()
    try:
        with pytest.raises(Unavailable, match="did not answer within 2 s"):
            store.acquire(bid(ISSUE, "a", TTL))
    finally:
        server.thaw()
    patient = over_http(served, tmp_path)
    assert isinstance(patient.acquire(bid(ISSUE, "a", TTL)), Granted)
    assert patient.read(ISSUE).lease.fence == 1
    assert len(history(server.folder / name)) == 1


def test_a_remote_that_is_gone_is_unavailable(harness):
    held_by(harness.store, "a")
    harness.remote.rename(harness.folder / "moved.git")
    for operation in (harness.store.live, lambda: harness.store.read(ISSUE)):
        with pytest.raises(Unavailable, match="not appear to be a git repository"):
            operation()


def test_a_server_that_does_not_listen_is_unavailable(tmp_path):
    store = GitLeases.connect("git:http://127.0.0.1:9/x.git", tmp_path, root=tmp_path)
    with pytest.raises(Unavailable, match="127"):
        store.acquire(bid(ISSUE, "a", TTL))


def test_whatever_hangs_is_ended_with_all_it_started(tmp_path, monkeypatch):
    pid_file = tmp_path / "pid"
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 600\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH", str(ssh))
    store = GitLeases.connect("git:ssh://x/y.git", tmp_path, root=tmp_path, timeout_s=4)
    with pytest.raises(Unavailable, match="within 4 s"):
        store.read(ISSUE)
    pid = int(pid_file.read_text())
    wait_until(lambda: _ended(pid), "the hanging ssh has ended")


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_what_was_pruned_here_is_fetched_again(harness):
    lease = held_by(harness.store, "a")
    harness.store.release(lease, CONCEDED)
    for path in sorted((harness.folder / "first" / "objects").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    granted = harness.store.acquire(bid(ISSUE, "b", TTL))
    assert isinstance(granted, Granted)
    assert granted.lease.fence == 2


def test_old_objects_are_pruned_and_young_ones_stay(harness):
    held_by(harness.store, "a")
    sample = harness.folder / "first" / "objects" / "17"
    sample.mkdir(exist_ok=True)
    for number in range(50):
        old = sample / f"{number:038x}"
        old.write_bytes(b"")
        os.utime(old, (0, 0))
    store = harness.client("first")
    assert record_of(store, ISSUE).live
    assert sum(1 for _ in sample.iterdir()) < 3 if sample.exists() else True
    assert isinstance(harness.store.renew(record_of(store, ISSUE).lease), Renewed)


# Who may not


def test_without_credentials_nothing_is_permitted(served, tmp_path):
    server, _ = served
    (server.folder / "password").write_text("ada:s3cret")
    for user in ("", "ada:wrong-s3cret"):
        store = over_http(served, tmp_path, user=user)
        for operation in (
            lambda store=store: store.acquire(bid(ISSUE, "a", TTL)),
            lambda store=store: store.read(ISSUE),
            lambda store=store: store.live(),
        ):
            with pytest.raises(NotPermitted) as refusal:
                operation()
            assert "s3cret" not in str(refusal.value)
    permitted = over_http(served, tmp_path, user="ada:s3cret")
    assert "s3cret" not in permitted.name
    assert "ada" not in permitted.name
    held_by(permitted, "a")


def test_the_repositorys_own_settings_and_remotes_count(served, tmp_path):
    """As in a checkout of a CI service, whose credentials are in its configuration."""
    server, name = served
    (server.folder / "password").write_text("ada:s3cret")
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    git(clone, "remote", "add", "origin", server.url(name))
    header = base64.b64encode(b"ada:s3cret").decode()
    git(clone, "config", "http.extraHeader", f"Authorization: Basic {header}")
    (clone / "deep").mkdir()
    for place in (clone, clone / "deep"):
        store = GitLeases.connect("git:origin", tmp_path / "objects", root=place)
        assert store.name == f"git:{server.url(name)}"
        store.release(held_by(store, "a"), CONCEDED)


# Secrets


def cloned(tmp_path: Path, address: str) -> Path:
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    git(clone, "remote", "add", "origin", address)
    return clone


def test_which_rules_of_the_repository_count_for_a_name_and_for_an_address(tmp_path):
    clone = cloned(tmp_path, "https://read.test/shop")
    git(clone, "config", "url.https://write.test/.pushInsteadOf", "https://read.test/")
    git(clone, "config", "url.https://mirror.test/.insteadOf", "https://hub.test/")
    names = {"origin": "write", "https://read.test/shop": "read", "https://hub.test/shop": "mirror"}
    for remote, server in names.items():
        store = GitLeases.connect(f"git:{remote}", tmp_path / "objects", root=clone)
        assert store.name == f"git:https://{server}.test/shop"


def test_a_password_of_any_signs_gets_in(served, tmp_path):
    server, _ = served
    password = "p@s/w:r d%41?#$(id)'\"é"
    (server.folder / "password").write_text(f"ada:{password}")
    store = over_http(served, tmp_path, user=f"ada:{quote(password, safe='')}")
    assert isinstance(store.renew(held_by(store, "a")), Renewed)
    sloppy = "p@ss"
    (server.folder / "password").write_text(f"ada:{sloppy}")
    assert record_of(over_http(served, tmp_path, user=f"ada:{sloppy}"), ISSUE).live


def test_a_password_in_the_address_goes_before_all_other_credentials(served, tmp_path, monkeypatch):
    server, name = served
    (server.folder / "password").write_text("ada:s3cret")
    clone = cloned(tmp_path, server.url(name, user="ada:s3cret"))
    wrong = "!f() { echo username=eve; echo password=wrong; }; f"
    git(clone, "config", "credential.helper", "")
    git(clone, "config", "--add", "credential.helper", wrong)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "credential.helper")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", wrong)
    store = GitLeases.connect("git:origin", tmp_path / "objects", root=clone)
    assert store.name == f"git:{server.url(name)}"
    held_by(store, "a")


def test_a_user_in_the_address_has_its_password_from_gits_own_credentials(
    served, tmp_path, monkeypatch
):
    server, _ = served
    (server.folder / "password").write_text("ada:s3cret")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "credential.helper")
    monkeypatch.setenv(
        "GIT_CONFIG_VALUE_0", "!f() { grep -q ^username=ada && echo password=s3cret; }; f"
    )
    held_by(over_http(served, tmp_path, user="ada"), "a")
    with pytest.raises(NotPermitted) as refusal:
        over_http(served, tmp_path, user="hunter2").read(ISSUE)
    assert "hunter2" not in str(refusal.value)


def test_an_account_that_a_rule_of_gits_brings_along_gets_in(served, tmp_path, monkeypatch):
    """As services that build from a repository set it up."""
    server, name = served
    (server.folder / "password").write_text("ada:s3cret")
    settings = tmp_path / "gitconfig"
    root = server.url("")
    settings.write_text(f'[url "{server.url("", user="ada:s3cret")}"]\n\tinsteadOf = {root}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    store = over_http(served, tmp_path)
    assert store.name == f"git:{server.url(name)}"
    held_by(store, "a")


def commands() -> list[str]:
    """What everybody on this machine can read of what runs."""
    told = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            told.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return told


@pytest.mark.parametrize("way", ["address", "remote", "rule"])
def test_a_password_is_neither_among_a_commands_words_nor_in_an_error(tmp_path, monkeypatch, way):
    """Seen while a server does not answer, and in all that is logged of it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bare = f"http://127.0.0.1:{silent.getsockname()[1]}/x.git"
        full = bare.replace("//", "//bob:hunter2@")
        settings = tmp_path / "gitconfig"
        settings.write_text(f'[url "{full}"]\n\tinsteadOf = {bare}\n' if way == "rule" else "")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
        remote = {"address": full, "remote": "origin", "rule": bare}[way]
        clone = cloned(tmp_path, full)
        store = GitLeases.connect(f"git:{remote}", tmp_path / "objects", root=clone, timeout_s=15)
        flaws = []

        def ask():
            with pytest.raises(Unavailable, match="did not answer") as failure:
                store.live()
            flaws.append("".join(traceback.format_exception(failure.value)))

        asking = threading.Thread(target=ask)
        asking.start()
        seen: list[str] = []

        def reached() -> bool:
            seen.extend(commands())
            return any("remote-http" in words and bare in words for words in seen)

        wait_until(reached, "git has reached the server")
        asking.join(timeout=60)
    assert not [words for words in seen if "hunter2" in words]
    assert len(flaws) == 1
    assert "hunter2" not in flaws[0] + store.name


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:9/x.git?private_token=hunter2",
        "http://127.0.0.1:9/x.git#hunter2",
        "http://bob:hun/hunter2@127.0.0.1:9/x",
        "http://bob:12/hunter2@127.0.0.1:9/x",
        "http://bob:?hunter2@127.0.0.1:9/x",
        "http://bob:hunter2%0Ax@127.0.0.1:9/x",
        "ssh://bob:hunter2@127.0.0.1:9/x.git",
        "git://bob:hunter2@127.0.0.1:9/x.git",
        "bob:hunter2@127.0.0.1:x.git",
        "bob:hun/hunter2@127.0.0.1:x.git",
        "git@127.0.0.1:hunter2@x.git",
        "ext::sh -c hunter2",
        "https::https://bob:hunter2@127.0.0.1/x",
        "-http://bob:hunter2@127.0.0.1/x",
    ],
)
def test_a_secret_that_could_be_seen_is_a_wrong_setting_that_is_not_repeated(tmp_path, address):
    for remote in (address, "origin"):
        root = tmp_path if remote == address else cloned(tmp_path, "x")
        if remote == "origin":
            git(root, "config", "remote.origin.url", address)
        if remote == "origin" and address.startswith("-"):
            continue
        with pytest.raises(BadConfiguration) as refusal:
            GitLeases.connect(f"git:{remote}", tmp_path / "objects", root=root)
        assert "hunter2" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("ssh://git@127.0.0.1:9/x.git", "git:ssh://127.0.0.1:9/x.git"),
        ("git@127.0.0.1:acme/x.git", "git:git@127.0.0.1:acme/x.git"),
        ("git@[::1]:x.git", "git:git@[::1]:x.git"),
        ("file:///srv/x.git", "git:file:///srv/x.git"),
        ("file:///srv/a@b.git", "git:file://b.git"),
        ("./a:b@c", "git:./a:b@c"),
    ],
)
def test_addresses_without_a_secret_are_taken(tmp_path, address, name):
    store = GitLeases.connect(f"git:{address}", tmp_path / "objects", root=tmp_path)
    assert store.name == name


def test_a_path_below_the_home_folder_is_found(harness, monkeypatch):
    monkeypatch.setenv("HOME", str(harness.folder))
    store = GitLeases.connect("git:~/remote.git", harness.folder / "x", root=harness.folder)
    assert held_by(store, "a").run == "a"
    assert isinstance(harness.store.acquire(bid(ISSUE, "b", TTL)), Busy)


def test_relative_paths_begin_where_the_settings_are(harness):
    store = GitLeases.connect("git:remote.git", harness.folder / "x", root=harness.folder)
    held_by(store, "a")
    assert record_of(harness.store, ISSUE).live


def test_a_server_that_declines_is_not_asked_again(harness):
    hooks = harness.remote / "hooks"
    hooks.mkdir(exist_ok=True)
    hook = hooks / "pre-receive"
    hook.write_text("#!/bin/sh\necho x >> asked\necho only branches here >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(NotPermitted, match=r"hook declined.*only branches here"):
        harness.store.acquire(bid(ISSUE, "a", TTL))
    assert (harness.remote / "asked").read_text() == "x\n"


def test_a_server_that_cannot_move_refs_together_is_refused(harness):
    git(harness.remote, "config", "receive.advertiseAtomic", "false")
    with pytest.raises(NotPermitted, match="several refs together"):
        harness.store.acquire(bid(ISSUE, "a", TTL))
    assert harness.store.read(ISSUE) is None


def test_whoever_may_only_read_sees_an_expiry_all_the_same(served, tmp_path):
    server, name = served
    held_by(over_http(served, tmp_path), "a")
    git(server.folder / name, "config", "http.receivepack", "false")
    clock = FakeClock()
    reader = over_http(served, tmp_path, clock=clock)
    assert record_of(reader, ISSUE).live
    clock.advance(TTL_S)
    for _ in range(2):
        assert not record_of(reader, ISSUE).live
        assert reader.live() == ()
    with pytest.raises(NotPermitted):
        reader.acquire(bid(ISSUE, "b", TTL))


def test_no_hook_of_the_users_is_run(served, tmp_path, monkeypatch):
    server, name = served
    clone, hooks, fired = tmp_path / "clone", tmp_path / "hooks", tmp_path / "fired"
    clone.mkdir()
    hooks.mkdir()
    git(clone, "init", "--quiet")
    git(clone, "remote", "add", "origin", server.url(name))
    for name in ("pre-push", "reference-transaction", "post-checkout", "pre-auto-gc"):
        for folder in (hooks, clone / ".git" / "hooks"):
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(f"#!/bin/sh\necho {name} >> {fired}\nexit 1\n")
            (folder / name).chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(f"[core]\n\thooksPath = {hooks}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    store = GitLeases.connect("git:origin", tmp_path / "objects", root=clone)
    lease = held_by(store, "a")
    assert isinstance(store.renew(lease), Renewed)
    assert len(store.live()) == 1
    assert isinstance(store.release(lease, CONCEDED), Released)
    assert not fired.exists(), fired.read_text()
    assert git(clone, "for-each-ref") == "", "something was left in the user's repository"


def test_settings_that_change_what_a_push_does_are_overruled(harness, tmp_path, monkeypatch):
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[push]\n\tfollowTags = true\n\tgpgSign = if-asked\n\tdefault = matching\n"
        "[fetch]\n\tprune = true\n\twriteCommitGraph = true\n[commit]\n\tgpgSign = true\n"
        "[i18n]\n\tcommitEncoding = ISO-8859-1\n[color]\n\tui = always\n[core]\n\tbare = false\n"
        "[transfer]\n\tfsckObjects = true\n[gc]\n\tauto = 1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_TRACE", "1")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    lease = held_by(harness.store, "é")
    assert harness.another().acquire(bid(ISSUE, "b", TTL)).record.lease.run == "é"
    assert isinstance(harness.store.renew(lease), Renewed)
    assert harness.another().read(IssueRef("", "absent")) is None
    assert len(harness.another().live()) == 1


@pytest.mark.parametrize("place", ["git:", "git:--upload-pack=x", "git+http:x"])
def test_a_place_that_is_none_is_a_wrong_setting(place, tmp_path):
    with pytest.raises(BadConfiguration):
        GitLeases.connect(place, tmp_path)


def test_without_git_it_is_a_wrong_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadConfiguration, match="not installed"):
        GitLeases.connect("git:origin", tmp_path)


# A lock file that a killed git left behind


@pytest.mark.parametrize("limited", [False, True])
def test_a_lock_file_in_the_way_is_named_with_its_age(harness, limited):
    """Deleting a ref needs the first, a change of this record the second."""
    store = harness.store
    lease = held_by(store, "a")
    for path in ("packed-refs.lock", f"{RECORD}.lock"):
        lock = harness.remote / path
        lock.touch()
        hour_ago = lock.stat().st_mtime - 3600
        os.utime(lock, (hour_ago, hour_ago))
        named = re.escape(f"{lock} has been in the way for 1h")
        with pytest.raises(Unavailable, match=named):
            store.release(lease, CONCEDED)
        lock.unlink()
    assert isinstance(store.release(lease, CONCEDED), Released)
    lock.touch()
    wanted = bid(ISSUE, "b", TTL)
    with pytest.raises(Unavailable, match=r"record\.lock has been in the way for"):
        store.acquire(replace(wanted, limit=3) if limited else wanted)


def test_a_lock_file_on_another_machine_has_no_age_here(served, tmp_path):
    store = over_http(served, tmp_path)
    lease = held_by(store, "a")
    server, name = served
    (server.folder / name / "packed-refs.lock").touch()
    with pytest.raises(Unavailable, match=r"packed-refs\.lock has been in the way; a git process"):
        store.release(lease, CONCEDED)
