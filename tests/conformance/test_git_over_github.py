"""Git leases through GitHub's API beyond the suite: tokens, limits, lost replies, and both ways."""

import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.servers.git_repository import ALONE, git
from tests.servers.github_git import HASTY, READER, TOKEN

from dibs.adapters.git.leases import GitLeases
from dibs.adapters.github.refs import GithubRefs
from dibs.adapters.system import wall_clock
from dibs.adapters.wrappers.leases import MemoryObservations
from dibs.core.errors import BadConfiguration, NotPermitted, RateLimited, Unavailable
from dibs.core.ids import IssueRef
from dibs.core.lease import Busy, Granted, Released, Renewed
from dibs.ports.refs import EMPTY_TREE, Move
from dibs.testing.clock import FakeClock
from dibs.testing.conformance.lease_harness import ADVANCED, CONCEDED, bid, record_of
from dibs.wiring.stores import Surroundings, open_store

from .git_harness import git_leases_over_github, github_refs

TTL = timedelta(minutes=10)
ISSUE = IssueRef("acme/shop", "17")
RECORD = "refs/dibs/leases/acme=2Fshop/17/record"
ENTRIES = "refs/dibs/held"


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch):
    for name, text in ALONE.items():
        monkeypatch.setenv(name, text)


@pytest.fixture
def harness():
    with git_leases_over_github() as made:
        yield made
        (made.server.folder / "lose").unlink(missing_ok=True)


def repository(harness):
    return harness.server.folder / f"{harness.repository}.git"


def refs_of(harness, token=TOKEN, name=None) -> GithubRefs:
    name = name or harness.repository
    return github_refs(name, token=token, api=harness.server.url, timeout_s=20)


def watching(harness, clock: FakeClock, token=TOKEN) -> GitLeases:
    return GitLeases(refs_of(harness, token), MemoryObservations(clock), clock)


def by_git(harness, machine="clone") -> GitLeases:
    place = f"git:{repository(harness)}"
    return GitLeases.connect(place, harness.folder / machine, root=harness.folder)


def held_by(store, run, issue=ISSUE, ttl=TTL):
    granted = store.acquire(bid(issue, run, ttl))
    assert isinstance(granted, Granted), granted
    return granted.lease


# Both ways to one repository


def test_git_and_the_api_see_the_same_leases(harness):
    clone, api = by_git(harness), harness.store
    lease = held_by(api, "a")
    assert isinstance(clone.acquire(bid(ISSUE, "b", TTL)), Busy)
    assert [record.lease for record in clone.live()] == [lease]
    assert isinstance(api.renew(lease), Renewed)
    api.release(lease, CONCEDED)
    other = held_by(clone, "b")
    assert other.fence == 2
    assert isinstance(api.acquire(bid(ISSUE, "c", TTL)), Busy)
    assert [record.lease for record in api.live()] == [other]
    clone.release(other, CONCEDED)
    assert api.live() == clone.live() == ()
    assert held_by(api, "c").fence == 3


def test_of_many_at_both_doors_one_wins(harness):
    stores = [by_git(harness, str(n)) if n % 2 else harness.client(str(n)) for n in range(6)]
    for turn in range(5):
        gate, told = threading.Barrier(len(stores)), []

        def take(number, turn=turn, gate=gate, told=told):
            gate.wait(timeout=30)
            told.append(stores[number].acquire(bid(IssueRef("", str(turn)), f"r{number}", TTL)))

        threads = [threading.Thread(target=take, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(type(one).__name__ for one in told) == [*["Busy"] * 5, "Granted"]


# What is lost on the way


@pytest.mark.parametrize(
    "piece", [f'"{RECORD}"', "POST /repos", f'"{ENTRIES}'], ids=["record", "commit", "entry"]
)
def test_an_acquire_whose_reply_was_lost_is_granted_once(harness, piece):
    (harness.server.folder / "lose").write_text(piece)
    try:
        first = harness.store.acquire(bid(ISSUE, "a", TTL))
    except Unavailable:
        first = harness.store.acquire(bid(ISSUE, "a", TTL))
    assert isinstance(first, Granted)
    assert first.lease.fence == 1
    assert git(repository(harness), "rev-list", "--count", RECORD) == "1"
    assert harness.another().acquire(bid(ISSUE, "a", TTL)) == first
    assert [record.lease for record in harness.another().live()] == [first.lease]


def test_an_ending_whose_reply_was_lost_is_read_back(harness):
    lease = held_by(harness.store, "a")
    (harness.server.folder / "lose").write_text("PATCH")
    released = harness.store.release(lease, ADVANCED)
    assert isinstance(released, Released)
    assert released.record.ending == ADVANCED
    assert git(repository(harness), "rev-list", "--count", RECORD) == "2"


def test_an_entry_that_no_record_confirms_is_not_believed_and_goes_in_time(harness):
    """Left by a bid that lost and could not clean up."""
    clock = FakeClock()
    store = watching(harness, clock)
    held_by(store, "a", ttl=TTL * 6)
    litter = f"{ENTRIES}/acme=2Fshop/17/1-b"
    git(repository(harness), "update-ref", litter, RECORD)
    for _ in range(2):
        assert [record.lease.run for record in store.live()] == ["a"]
        assert litter in git(repository(harness), "for-each-ref", "--format=%(refname)", ENTRIES)
        clock.advance(5 * 60)
    clock.advance(1)
    assert store.live()
    listed = git(repository(harness), "for-each-ref", "--format=%(refname)", ENTRIES)
    assert listed == f"{ENTRIES}/acme=2Fshop/17/1-a"


def test_a_try_that_is_refused_deletes_no_entry(harness):
    """The first try was given up and arrived all the same; the entry is that of its grant."""
    refs = refs_of(harness)
    first, second = (refs.commit(text, None) for text in ("one\n", "two\n"))
    entry = f"{ENTRIES}/acme=2Fshop/17/1-a"
    told = [
        refs.swap([Move(RECORD, commit), Move(entry, commit, guarded=False)])
        for commit in (first, second)
    ]
    assert [one is None for one in told] == [True, False]
    assert refs.tips([f"{ENTRIES}/"]) == {entry: first}


def test_an_entry_of_what_is_over_goes_in_time(harness):
    """Left by an ending whose last request was lost."""
    clock = FakeClock()
    store = watching(harness, clock)
    lease = held_by(store, "a")
    entry = git(repository(harness), "for-each-ref", "--format=%(refname)", ENTRIES)
    store.release(lease, ADVANCED)
    git(repository(harness), "update-ref", entry, RECORD)
    assert store.live() == ()
    assert git(repository(harness), "for-each-ref", "--format=%(refname)", ENTRIES) == entry
    clock.advance(10 * 60 + 1)
    assert store.live() == ()
    assert git(repository(harness), "for-each-ref", ENTRIES) == ""


# Tokens, limits and odd servers


def test_a_token_that_may_only_read_reads(harness):
    held_by(harness.store, "a")
    clock = FakeClock()
    reader = watching(harness, clock, READER)
    assert record_of(reader, ISSUE).live
    with pytest.raises(NotPermitted, match="403 Resource not accessible"):
        reader.acquire(bid(IssueRef("", "2"), "b", TTL))
    clock.advance(TTL.total_seconds())
    assert not record_of(reader, ISSUE).live


def test_a_wrong_token_and_a_wrong_repository_are_not_permitted(harness):
    for refs, text in (
        (refs_of(harness, "s3cret"), "401 Bad credentials"),
        (refs_of(harness, name="acme/none"), "it is not there, or this token may not see it"),
    ):
        with pytest.raises(NotPermitted, match=text) as refusal:
            refs.tips([f"{ENTRIES}/"])
        assert "s3cret" not in str(refusal.value)


def test_who_asks_too_often_is_told_how_long_to_wait(harness):
    with pytest.raises(RateLimited) as limited:
        refs_of(harness, HASTY).tips([f"{ENTRIES}/"])
    assert limited.value.retry_after_s == pytest.approx(7, abs=1)


def test_a_server_that_does_not_know_the_empty_tree_is_given_one_it_has(harness):
    (repository(harness) / "knows-no-empty-tree").touch()
    lease = held_by(harness.store, "a")
    assert isinstance(harness.store.renew(lease), Renewed)
    assert git(repository(harness), "rev-parse", f"{RECORD}^{{tree}}") != EMPTY_TREE
    assert record_of(by_git(harness), ISSUE).lease.run == "a"


def test_a_long_list_is_read_to_its_end(harness):
    commit = git(repository(harness), "rev-parse", "refs/heads/main")
    wanted = "".join(f"create {ENTRIES}/=/{n}/1-r {commit}\n" for n in range(250))
    git(repository(harness), "update-ref", "--stdin", given=wanted)
    assert len(refs_of(harness).tips([f"{ENTRIES}/"])) == 250


class Odd(BaseHTTPRequestHandler):
    """Answers everything with the same strange thing, and remembers who asked."""

    reply: tuple[int, dict[str, str], bytes]
    asked: list[str]

    def do_GET(self) -> None:
        status, headers, body = self.reply
        self.asked.append(self.headers.get("Authorization", ""))
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def odd():
    Odd.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield github_refs(
        "acme/shop", token=TOKEN, api=f"http://127.0.0.1:{server.server_port}", timeout_s=5
    )
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


LIMIT = {
    "X-RateLimit-Limit": "5000",
    "X-RateLimit-Used": "5000",
    "X-RateLimit-Remaining": "0",
    "X-RateLimit-Reset": str(int(wall_clock().timestamp()) + 3000),
    "X-RateLimit-Resource": "core",
}
ELSEWHERE = {"Location": "http://127.0.0.2:9/", "Link": '<http://127.0.0.2:9/x>; rel="next"'}


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((200, {}, b"hello"), Unavailable),
        ((200, {}, b'{"ref": 1}'), Unavailable),
        ((200, ELSEWHERE, b"[]"), Unavailable),
        ((500, {}, b""), Unavailable),
        ((503, {}, b'["busy"]'), Unavailable),
        ((301, ELSEWHERE, b""), Unavailable),
        ((307, ELSEWHERE, b""), Unavailable),
        ((409, {}, b'{"message": "Git Repository is empty."}'), NotPermitted),
        ((403, LIMIT, b""), RateLimited),
        ((429, {}, b""), RateLimited),
        ((403, {}, b'{"message": "You have exceeded a secondary rate limit"}'), RateLimited),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else value.__name__,
)
def test_strange_answers_are_outages_and_the_token_stays_here(odd, reply, error):
    Odd.reply = reply
    with pytest.raises(error):
        odd.tips([f"{ENTRIES}/"])
    assert Odd.asked == [f"Bearer {TOKEN}"]


def test_a_limit_that_names_its_end_is_waited_for_until_then(odd):
    Odd.reply = (403, LIMIT, b"")
    with pytest.raises(RateLimited) as limited:
        odd.tips([f"{ENTRIES}/"])
    assert limited.value.retry_after_s > 600


def test_the_token_and_the_server_come_from_the_environment(harness, monkeypatch, tmp_path):
    place = f"git+github:{harness.repository}"
    for name in ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NotPermitted, match="GH_TOKEN"):
        open_store(place, Surroundings(tmp_path))
    monkeypatch.setenv("GITHUB_API_URL", harness.server.url)
    monkeypatch.setenv("GITHUB_TOKEN", "another")
    monkeypatch.setenv("DIBS_GITHUB_TOKEN", TOKEN)
    store = open_store(place, Surroundings(tmp_path))
    assert store.name == place
    held_by(store, "a")
    store.close()
    assert record_of(harness.store, ISSUE).live


@pytest.mark.parametrize("name", ["", "acme", "acme/shop/x", "acme/sh op", "../x", "acme/.."])
def test_what_names_no_repository_is_a_wrong_setting(name):
    with pytest.raises(BadConfiguration):
        github_refs(name, token=TOKEN, api="http://127.0.0.1:9", timeout_s=1)


@pytest.mark.parametrize("api", ["http://bob:hunter2@127.0.0.1:9", "http://127.0.0.1:9?t=hunter2"])
def test_a_secret_in_the_address_of_the_api_is_a_wrong_setting(api):
    with pytest.raises(BadConfiguration) as refusal:
        github_refs("acme/shop", token=TOKEN, api=api, timeout_s=1)
    assert "hunter2" not in str(refusal.value)


def test_repositories_of_one_name_on_two_servers_are_watched_apart(harness):
    """As far as anybody can tell from their addresses, these are two."""
    held_by(harness.store, "a")
    clock = FakeClock()
    seen = MemoryObservations(clock)
    here, there = harness.server.url, harness.server.url.replace("127.0.0.1", "localhost")
    assert here != there
    for api in (here, there):
        refs = github_refs(harness.repository, token=TOKEN, api=api, timeout_s=20)
        assert record_of(GitLeases(refs, seen, clock), ISSUE).remaining == TTL
        clock.advance(60)
