"""The embedded backlog: what is ahead of a free issue costs a claim nothing, and is never lost."""

import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

import dibs
from dibs.core.durations import parse_duration
from dibs.core.ids import HolderId, IssueRef
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.services.working import Until
from dibs.settings import load as config
from dibs.wiring.services import connect

SETTINGS = """
[[stage]]
name = "ready"
backoff = "2h"
backoff_max = "2h"
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "dibs.toml").write_text(SETTINGS)
    return tmp_path


def add(place, count=1):
    with dibs.open(place) as backlog:
        return [backlog.add(f"issue {number}", stage="ready").ref for number in range(count)]


def make(kind, place, count, ttl="1h"):
    """So many issues ahead, as a fleet makes them."""
    services = connect(config.load(start=place), author="fleet")
    options = ClaimOptions(HolderId("fleet"), ttl=parse_duration(ttl))
    for ref in add(place, count):
        if kind == "parked":
            services.tracker.edit_labels(ref, add=("parked",))
            continue
        claimed = services.claiming.claim(ref, None, options)
        assert isinstance(claimed, Claimed)
        if kind == "resting":
            services.advancing.fail(services.keep(claimed))
    services.close()


def take_next(place):
    with dibs.open(place) as backlog:
        held = backlog.try_next(stage="ready")
        if held is not None:
            held.advance("review")
        return held and held.issue


def work_once(place):
    done = []
    with dibs.open(place) as backlog:
        backlog.handler("ready")(lambda work: done.append(work.issue["issue"]))
        backlog.worker(stages=("ready",), until=Until.ONCE).run()
    return IssueRef("", done[0].lstrip("#")) if done else None


def sql(place, statement):
    with closing(sqlite3.connect(place / ".dibs" / "backlog.db")) as connection:
        rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows


@pytest.fixture
def steps(monkeypatch):
    """Counts the steps of SQLite's virtual machine, which are the same on every computer."""
    counted = [0]

    def step():
        counted[0] += 1

    real = sqlite3.connect

    class Counting(sqlite3.Connection):
        def set_progress_handler(self, *_):
            """The limit of dibs has the same handler, which counts here."""

    def counting(*args, **kwargs):
        connection = real(*args, factory=Counting, **kwargs)
        sqlite3.Connection.set_progress_handler(connection, step, 1)
        return connection

    def measure(action):
        counted[0] = 0
        monkeypatch.setattr(sqlite3, "connect", counting)
        result = action()
        monkeypatch.setattr(sqlite3, "connect", real)
        return result, counted[0]

    return measure


@pytest.mark.parametrize("kind", ["resting", "parked", "held"])
@pytest.mark.parametrize("action", [take_next, work_once])
def test_a_claim_takes_as_many_steps_however_many_are_ahead(place, steps, kind, action):
    counts = []
    for ahead in (2, 30):
        make(kind, place, ahead)
        free = add(place, 1)[0]
        found, count = steps(lambda: action(place))
        assert found == free
        counts.append(count)
    assert counts[1] < counts[0] * 1.2, counts


@pytest.mark.parametrize("action", [take_next, work_once])
def test_a_rest_that_should_not_be_there_ends_by_itself(place, action):
    """As after a fault of dibs, or another program's write into the file."""
    issue = add(place)[0]
    assert sql(place, "SELECT COUNT(*) FROM rests") == [(0,)]
    services = connect(config.load(start=place), author="fleet")
    rules = services.claiming.rests.rules
    snapshot = services.tracker.read(issue)
    services.tracker.rest(snapshot.issue, snapshot.now + timedelta(days=3650), rules)
    services.close()
    assert action(place) is None
    sql(place, "UPDATE rests SET noted_at = noted_at - 10 * 60 * 1000")
    assert action(place) == issue


def test_an_index_without_its_rests_hides_nothing_that_an_old_version_freed(place):
    """A process of an earlier version marks index entries as it knows them."""
    make("resting", place, 3)
    sql(place, "UPDATE issue_labels SET shelved = 0")
    free = add(place)[0]
    assert take_next(place) == free


def test_a_kept_lease_costs_no_rest_until_a_search_meets_it(place):
    """Its first renewal would end the rest, and most leases end before."""
    issue = add(place)[0]
    with dibs.open(place) as backlog, backlog.lease(issue) as held:
        assert sql(place, "SELECT COUNT(*) FROM rests") == [(0,)]
        assert take_next(place) is None
        assert sql(place, "SELECT number FROM rests") == [(int(issue.key),)]
        held.advance()
    assert sql(place, "SELECT COUNT(*) FROM rests") == [(0,)]


def test_the_issue_of_a_vanished_holder_is_found_when_its_lease_is_over(place):
    make("held", place, 1, ttl="1s")
    assert take_next(place) is None
    with dibs.open(place) as backlog:
        held = backlog.try_next(wait="10s")
        assert held is not None
        assert held.issue == IssueRef("", "1")
        held.give_back()


def test_the_issue_of_a_revoked_holder_is_found_at_once(place):
    make("held", place, 1)
    assert take_next(place) is None
    services = connect(config.load(start=place), author="fleet")
    (record,) = services.leases.live()
    issue, run = record.lease.issue, record.lease.run
    services.steering.revoke(issue, run, by="ann", reason="it is dead", force=True)
    services.close()
    assert take_next(place) == issue


def test_an_issue_that_was_given_back_is_found_at_once_whatever_its_labels_say(place):
    """A person took the labels of the claim off, and a search found the issue held."""
    services = connect(config.load(start=place), author="fleet")
    (issue,) = add(place)
    claimed = services.claiming.claim(issue, None, ClaimOptions(HolderId("fleet")))
    assert isinstance(claimed, Claimed)
    painted = services.tracker.read(issue).issue.labels - {"stage:ready"}
    services.tracker.edit_labels(issue, add=("stage:ready",), remove=tuple(painted))
    assert work_once(place) is None
    assert sql(place, "SELECT COUNT(*) FROM rests") == [(1,)]
    services.advancing.give_back(services.keep(claimed))
    services.close()
    assert work_once(place) == issue


def test_a_file_of_version_1_gets_what_it_lacks(place):
    make("resting", place, 2)
    sql(place, "UPDATE issue_labels SET shelved = shelved & 1")
    sql(place, "DROP TABLE rests")
    sql(place, "DROP TABLE archive")
    sql(place, "PRAGMA user_version = 1")
    free = add(place)[0]
    assert take_next(place) == free
    assert sql(place, "SELECT COUNT(*) FROM rests") == [(2,)]


# The past of an issue


def give_back(place, times=1):
    services = connect(config.load(start=place), author="fleet")
    for _ in range(times):
        claimed = services.claiming.claim(IssueRef("", "1"), None, ClaimOptions(HolderId("fleet")))
        assert isinstance(claimed, Claimed), claimed
        services.advancing.give_back(services.keep(claimed))
    services.close()


@pytest.mark.parametrize("leases", ["auto", "comments"])
def test_a_claim_takes_as_many_steps_however_many_cards_there_are(
    place, steps, monkeypatch, leases
):
    monkeypatch.setenv("DIBS_LEASES", leases)
    add(place)
    counts = []
    for times in (16, 120):
        give_back(place, times)
        counts.append(min(steps(lambda: give_back(place))[1] for _ in range(10)))
    assert counts[1] < counts[0] * 1.3, counts
    with dibs.open(place) as backlog:
        assert len(backlog.board.history(IssueRef("", "1"))) == 16 + 120 + 20
