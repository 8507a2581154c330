"""A Redis whose data goes back in time, with fences handed out since: no fence is granted twice."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from tests.servers.valkey import Valkey

import dibs
from acceptance.harness import Project, pipeline
from dibs.adapters.redis.leases import RedisLeases
from dibs.core.eligibility import ReasonCode
from dibs.core.ids import IssueRef
from dibs.core.lease import Ending, Granted, Lease, Lost, Outcome
from dibs.fencing import Applied, Stale
from dibs.ports.leases import Guarantee

from . import data
from .contending import bid_for

pytestmark = pytest.mark.long

GIVEN_BACK = Ending(Outcome.CONCEDED)
ISSUE, NEW = IssueRef("faults", "1"), IssueRef("faults", "2")


@pytest.fixture
def server() -> Iterator[Valkey]:
    """It keeps snapshots only, as it does unless somebody sets it up otherwise."""
    made = Valkey(persistent=False)
    yield made
    made.close()


@pytest.fixture
def number(server: Valkey) -> Iterator[data.Number]:
    """Another server, whose data stay."""
    other = Valkey(persistent=False)
    with closing(data.reach(f"{other.url()}/number")) as found:
        found.make()
        yield found
    other.close()


def _granted(store: RedisLeases, issue: IssueRef, *, keep: bool = False) -> Lease:
    told = store.acquire(bid_for(issue))
    assert isinstance(told, Granted), told
    if not keep:
        store.release(told.lease, GIVEN_BACK)
    return told.lease


@pytest.mark.parametrize("back_to", ["an older snapshot", "nothing"])
def test_fences_go_on_above_all_before_when_the_server_comes_back_on_older_data(
    server: Valkey, number: data.Number, back_to: str
) -> None:
    with closing(RedisLeases.connect(server.url())) as store:
        assert Guarantee.DURABLE not in store.guarantees, "and it says so"
        before = [_granted(store, ISSUE).fence]
        server.save_snapshot("older")
        before += [_granted(store, issue).fence for issue in (ISSUE, NEW) for _ in range(50)]
        forgotten = _granted(store, ISSUE, keep=True)  # held when the server loses it
        before.append(forgotten.fence)
        assert isinstance(number.stamp(forgotten.fence), Applied)
        if back_to == "nothing":
            server.lose_everything()
        else:
            server.restore_snapshot("older")

        # A client from before, and one that has never seen the server.
        with closing(RedisLeases.connect(server.url())) as fresh:
            after = [_granted(each, NEW).fence for each in (store, fresh)]
            newer = _granted(fresh, ISSUE, keep=True)
            assert all(fence > max(before) for fence in (*after, newer.fence))
            # Who held it is told at the next renewal; what it writes until then is refused.
            assert isinstance(store.renew(forgotten), Lost)
            assert isinstance(number.stamp(newer.fence), Applied)
            assert number.write(666, forgotten.fence) == Stale(newer.fence)
            assert isinstance(number.write(1, newer.fence), Applied)


def test_fences_go_on_when_somebody_empties_the_server_while_it_runs(server: Valkey) -> None:
    with closing(RedisLeases.connect(server.url())) as store, server.client() as client:
        before = [_granted(store, ISSUE).fence for _ in range(50)]
        client.flushall()
        assert _granted(store, ISSUE).fence > max(before)


@pytest.fixture
def rolled_back(server: Valkey, project: Project, opened: ExitStack) -> dibs.Dibs:
    """A backlog whose issue was claimed three times; the store remembers the first alone."""
    project.begin(pipeline(ttl="10m"), 1)
    backlog = opened.enter_context(dibs.open(project.root, leases=server.url()))
    fences = []
    with server.client() as client, closing(_bytes_of(server)) as raw:
        for turn in range(3):
            with backlog.lease(1) as held:
                fences.append(held.fence)
            [key] = (key for key in client.keys("*:issue:*") if "~owner" not in key)
            if turn == 0:
                older = raw.dump(key)
        assert fences == sorted(set(fences))
        raw.restore(key, 0, older, replace=True)
        assert int(client.hget(key, "fence")) == fences[0]
    return backlog


def _bytes_of(server: Valkey):
    import redis

    return redis.Redis(port=server.port, protocol=2)


def test_a_claim_on_rolled_back_keys_is_refused(
    rolled_back: dibs.Dibs, project: Project, server: Valkey
) -> None:
    """Nothing restarted, so the store cannot know. The cards on the tracker do."""
    told = rolled_back.try_lease(1)
    assert isinstance(told, dibs.Refused), told
    assert [reason.code for reason in told.reasons] == [ReasonCode.FENCE_REGRESSED]
    assert project.labels() == {"stage:one"}
    [event] = project.events("fence_regressed")
    assert int(event["fence"]) < int(event["seen"])
    with closing(RedisLeases.connect(server.url())) as store:
        assert store.live() == (), "the grant was given back"
    reply = project.dibs("claim", "1", "--json", env={"DIBS_LEASES": server.url()})
    assert reply.code not in (0, 1), reply
    assert "FENCE_REGRESSED" in reply.out
    assert "Traceback" not in reply.err
    # Each try was a grant that was given back, so the fence rises above what anybody has seen.
    highest = max(int(event["fence"]) for event in project.events("claimed"))
    with rolled_back.lease(1) as held:
        assert held.fence > highest


def test_a_fenced_resource_refuses_a_fence_of_rolled_back_keys(
    rolled_back: dibs.Dibs, project: Project, server: Valkey, number: data.Number
) -> None:
    """Whoever asks the store past the services has only the place of writing to stop it."""
    highest = max(int(event["fence"]) for event in project.events("claimed"))
    assert isinstance(number.stamp(highest), Applied)
    with closing(RedisLeases.connect(server.url())) as store:
        lease = _granted(store, rolled_back.reference(1), keep=True)
        assert lease.fence < highest
        assert number.write(666, lease.fence) == Stale(highest)
        assert number.read() == 0
