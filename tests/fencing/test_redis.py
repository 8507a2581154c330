"""What is particular to Redis: slots, scripts, values that come and go."""

import contextlib
import uuid

import pytest
import redis as redis_py
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot
from tests.servers.valkey import cluster_node, valkey

from dibs.core.errors import Misuse
from dibs.fencing import Applied, Conflict, Missing, Stale, redis


@pytest.fixture
def client():
    with valkey().client() as made:
        yield made


@pytest.fixture
def key() -> str:
    return f"report:{uuid.uuid4().hex}"


@given(st.text(alphabet="ab{}", max_size=8))
def test_a_fence_is_in_the_slot_of_its_key_or_the_key_is_refused(key):
    try:
        beside = redis.fence_key(key)
    except Misuse:
        assert not key or "}" in key
        return
    assert key_slot(beside.encode()) == key_slot(key.encode())
    assert beside != key


@pytest.mark.parametrize("key", ["plain", "user:{12}:name", "{12}", "a{b", "{12}{13}"])
def test_a_cluster_runs_the_scripts(key):
    name = f"{key}{uuid.uuid4().hex}"
    with contextlib.closing(redis_py.RedisCluster("127.0.0.1", cluster_node().port)) as cluster:
        assert redis.guarded_set(cluster, name, "x", 7) == Applied(1)
        assert redis.guarded_set(cluster, name, "y", 6) == Stale(7)
        found = redis.read(cluster, name)
        assert (found.value, found.fence, found.version) == (b"x", 7, 1)


KEYS = st.text(alphabet="ab{}:", max_size=6) | st.just("{a}") | st.just("a")


@given(KEYS, KEYS)
def test_no_two_keys_share_a_fence(one, other):
    try:
        beside = redis.fence_key(one), redis.fence_key(other)
    except Misuse:
        return
    assert (beside[0] == beside[1]) == (one == other)


@given(KEYS)
def test_a_fence_is_no_key_to_write_to(key):
    try:
        beside = redis.fence_key(key)
    except Misuse:
        return
    with pytest.raises(Misuse, match="fence of another key"):
        redis.fence_key(beside)


def test_the_fence_of_a_key_is_safe_from_its_neighbours(client, key):
    tagged, beside = f"{{{key}}}", redis.fence_key(key)
    assert redis.guarded_set(client, key, "x", 9) == Applied(1)
    assert redis.guarded_set(client, tagged, "y", 1) == Applied(1)
    for call in (
        lambda: redis.guarded_set(client, beside, "boom", 1),
        lambda: redis.guarded_hset(client, beside, {"fence": 1}, 1),
        lambda: redis.stamp(client, beside, 1),
        lambda: redis.read(client, beside),
    ):
        with pytest.raises(Misuse, match="fence of another key"):
            call()
    assert redis.guarded_set(client, key, "late", 8) == Stale(9)
    assert (client.get(key), client.get(tagged)) == ("x", "y")


def test_a_key_that_is_not_there_is_made_unless_told_otherwise(client, key):
    assert redis.read(client, key) is None
    assert redis.guarded_set(client, key, "x", 7, create=False) == Missing()
    assert redis.guarded_set(client, key, "x", 7, version=1) == Missing()
    assert redis.guarded_set(client, key, "x", 7) == Applied(1)
    assert client.get(key) == "x"


def test_a_stamp_counts_although_the_value_is_not_there_yet(client, key):
    assert isinstance(redis.stamp(client, key, 8), Applied)
    assert redis.guarded_set(client, key, "x", 7) == Stale(8)
    assert not client.exists(key)


def test_the_fence_outlives_the_value(client, key):
    redis.guarded_set(client, key, "x", 8)
    client.delete(key)
    assert redis.guarded_set(client, key, "y", 7) == Stale(8)
    assert client.ttl(redis.fence_key(key)) == -1


def test_a_hash_is_written_field_by_field_in_one_step(client, key):
    fields = {f"field{number}": number for number in range(3000)}
    assert redis.guarded_hset(client, key, fields, 7) == Applied(1)
    assert redis.guarded_hset(client, key, {"more": b"\x00\xff"}, 7) == Applied(2)
    assert redis.guarded_hset(client, key, {"late": 1}, 6) == Stale(7)
    assert client.hlen(key) == 3001
    with pytest.raises(Misuse, match="a stamp"):
        redis.guarded_hset(client, key, {}, 7)


def test_a_write_that_redis_refuses_raises_no_fence(client, key):
    client.set(key, "a string")
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        redis.guarded_hset(client, key, {"field": "x"}, 9)
    assert redis.guarded_set(client, key, "y", 7) == Applied(1)


def test_a_server_that_has_forgotten_the_script_is_told_it_again(client, key):
    redis.guarded_set(client, key, "x", 7)
    client.script_flush()
    assert redis.guarded_set(client, key, "y", 7) == Applied(2)


class Impatient:
    """A client that sends everything twice, as one does that missed the first reply."""

    def __init__(self, client: redis_py.Redis) -> None:
        self._client = client

    def evalsha(self, *given):
        self._client.evalsha(*given)
        return self._client.evalsha(*given)

    def eval(self, *given):
        self._client.eval(*given)
        return self._client.eval(*given)


def test_a_call_that_the_client_sent_twice_is_told_the_same(client, key):
    twice = Impatient(client)
    assert redis.guarded_set(twice, key, "x", 7) == Applied(1)
    assert redis.guarded_set(twice, key, "y", 7, version=1) == Applied(2)
    assert redis.guarded_set(twice, key, "z", 7, version=2, step=1) == Applied(3)
    assert isinstance(redis.guarded_set(twice, key, "!", 7, version=2), Conflict)
    assert client.get(key) == "z"


def test_what_is_read_is_of_one_moment(client, key):
    redis.guarded_hset(client, key, {"a": 1, "b": 2}, 7)
    found = redis.read_hash(client, key)
    assert (found.value, found.fence, found.version) == ({"a": "1", "b": "2"}, 7, 1)
    assert redis.read_hash(client, key + "?") is None
