"""Fenced writes of values that live in Redis or Valkey: one script compares and writes.

What is remembered of a key is a hash beside it, in the same slot of a cluster, so that one script
may touch both: `{key}:fence`, or `key::fence` for one that has a hash tag. It must never expire or
be evicted; the value may. Only writes that come through here are guarded: a bare SET asks nobody.

Takes any client with `evalsha` and `eval` as redis-py has them, cluster and Sentinel clients too.
Errors of the client are the caller's, and go through.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dibs.core.errors import Misuse
from dibs.core.ids import Fence
from dibs.fencing.values import (
    Applied,
    Conflict,
    Duplicate,
    Missing,
    Outcome,
    Reading,
    Stale,
    check,
    later_step,
    other_version,
)

__all__ = [
    "Client",
    "Value",
    "fence_key",
    "guarded_hset",
    "guarded_set",
    "read",
    "read_hash",
    "stamp",
]

Value = str | bytes | int | float

_SUFFIX = ":fence"

# Numbers are compared as decimal text, shorter first: Lua's own numbers are exact to 2^53 only.
# `write` names the call, so that a client that sends it twice after a lost reply is told the same.
_WRITE = """
local verb, create, fence, step, version, write = unpack(ARGV, 1, 6)
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local seen = redis.call('HMGET', KEYS[2], 'fence', 'step', 'version', 'write')
local top, last, now = seen[1] or '0', seen[2] or '0', seen[3] or '0'
if seen[4] == write then return {'applied', now} end
if below(fence, top) then return {'stale', top} end
if fence ~= top then last = '0' end
if step ~= '' then
  if step == last then return {'duplicate', ''} end
  if below(step, last) then return {'later', last} end
  last = step
end
if verb ~= 'stamp' then
  if redis.call('EXISTS', KEYS[1]) == 0 and (create == '0' or version ~= '') then
    return {'missing', ''}
  end
  if version ~= '' and version ~= now then return {'conflict', now} end
  if verb == 'set' then redis.call('SET', KEYS[1], ARGV[7]) end
  if verb == 'hset' then
    for i = 7, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
  end
  now = tostring(redis.call('HINCRBY', KEYS[2], 'version', 1))
end
redis.call('HSET', KEYS[2], 'fence', fence, 'step', last, 'write', write)
return {'applied', now}
"""
_READ = """
local value
if ARGV[1] == 'get' then value = redis.call('GET', KEYS[1])
else value = redis.call('HGETALL', KEYS[1]) end
local seen = redis.call('HMGET', KEYS[2], 'fence', 'version')
return {value, seen[1] or '0', seen[2] or '0'}
"""


class Client(Protocol):
    """What is used of redis-py."""

    def evalsha(self, sha: str, numkeys: int, /, *keys_and_args: Any) -> Any: ...
    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any: ...


def guarded_set(
    client: Client,
    key: str,
    value: Value,
    fence: int,
    *,
    version: int | None = None,
    step: int | None = None,
    create: bool = True,
) -> Outcome:
    """SET the key, if no higher fence has been here.

    With `version`, only if that is still the version of the value; with `create=False`, only if
    the key is there.
    """
    return _write(client, key, ("set", create, fence, step, version), [value])


def guarded_hset(
    client: Client,
    key: str,
    fields: Mapping[str, Value],
    fence: int,
    *,
    version: int | None = None,
    step: int | None = None,
    create: bool = True,
) -> Outcome:
    """HSET these fields of the key, all in one step, if no higher fence has been here."""
    if not fields:
        raise Misuse("a write without fields is a stamp")
    flat = [part for pair in fields.items() for part in pair]
    return _write(client, key, ("hset", create, fence, step, version), flat)


def stamp(client: Client, key: str, fence: int) -> Outcome:
    """Raise the key's fence and leave its value: right after the lease was granted."""
    return _write(client, key, ("stamp", True, fence, None, None), [])


def read(client: Client, key: str) -> Reading[Any] | None:
    """The string there, with its fence and version, all of one moment."""
    value, fence, version = _run(client, _READ, key, ["get"])
    return None if value is None else Reading(value, Fence(int(fence)), int(version))


def read_hash(client: Client, key: str) -> Reading[dict[Any, Any]] | None:
    """The hash there, with its fence and version, all of one moment."""
    flat, fence, version = _run(client, _READ, key, ["hgetall"])
    if not flat:
        return None
    pairs = flat if isinstance(flat, Mapping) else dict(zip(flat[::2], flat[1::2], strict=True))
    return Reading(dict(pairs), Fence(int(fence)), int(version))


def fence_key(key: str) -> str:
    """Where the fence of a key is kept: in the same slot of a cluster, and of this key alone.

    No key that ends as these do is guarded, so no value is ever written over a fence.
    """
    if key.endswith(_SUFFIX):
        raise Misuse(f"the key {key!r} may be where the fence of another key is kept")
    opened = key.find("{")
    closed = key.find("}", opened + 1)
    if 0 <= opened < closed - 1:  # as a cluster looks for it: the first pair, if it is not empty
        return f"{key}:{_SUFFIX}"  # one colon more, or `{a}` would share the fence of `a`
    if "}" in key or not key:
        raise Misuse(f"the key {key!r} cannot be tagged, so a cluster may part it from its fence")
    return f"{{{key}}}{_SUFFIX}"


def _write(
    client: Client,
    key: str,
    told: tuple[str, bool, int, int | None, int | None],
    data: Sequence[Value],
) -> Outcome:
    verb, create, fence, step, version = told
    check(fence, step)
    numbers = (fence, _or_empty(step), _or_empty(version))
    asked: list[Value] = [verb, int(create), *numbers, secrets.token_hex(8)]
    word, detail = (_text(part) for part in _run(client, _WRITE, key, [*asked, *data]))
    match word:
        case "applied":
            return Applied(int(detail))
        case "duplicate":
            return Duplicate()
        case "stale":
            return Stale(Fence(int(detail)))
        case "later":
            return Conflict(later_step(int(detail)))
        case "conflict":
            return Conflict(other_version(detail, version))
        case _:
            return Missing()


def _run(client: Client, script: str, key: str, arguments: Sequence[Value]) -> Any:
    keys = (key, fence_key(key))
    sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    try:
        return client.evalsha(sha, len(keys), *keys, *arguments)
    except Exception as failure:
        # By its name, so that no client has to be imported: the server has not seen it yet.
        if type(failure).__name__ != "NoScriptError":
            raise
        return client.eval(script, len(keys), *keys, *arguments)


def _or_empty(number: int | None) -> str:
    return "" if number is None else str(number)


def _text(part: str | bytes) -> str:
    return part.decode() if isinstance(part, bytes) else part
