"""Fenced writes of values in Redis or Valkey: one script compares the fences and writes.

The fence of a key is in a hash beside it, in the same slot of a cluster, so one script may use
both: `{key}:fence`, or `key::fence` for a key with a hash tag. The hash must never expire or be
evicted; the value may. Only writes through this module are guarded: a bare SET checks no fence.

Takes any client with `evalsha` and `eval` as in redis-py, cluster and Sentinel clients too. Errors
of the client are passed on to the caller unchanged.
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
# `write` names the call: a client that sends it twice after a lost reply gets the same answer.
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
    """The methods used of redis-py."""

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
    """SET the key, unless a higher fence was seen.

    With `version`, only if the value still has this version; with `create=False`, only if the key
    exists.
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
    """HSET the fields of the key, all in a single step, unless a higher fence was seen."""
    if not fields:
        raise Misuse("a write without fields is a stamp")
    flat = [part for pair in fields.items() for part in pair]
    return _write(client, key, ("hset", create, fence, step, version), flat)


def stamp(client: Client, key: str, fence: int) -> Outcome:
    """Raise the key's fence without changing the value; call right after getting a lease."""
    return _write(client, key, ("stamp", True, fence, None, None), [])


def read(client: Client, key: str) -> Reading[Any] | None:
    """The string at the key, its fence and its version, read in a single step."""
    value, fence, version = _run(client, _READ, key, ["get"])
    return None if value is None else Reading(value, Fence(int(fence)), int(version))


def read_hash(client: Client, key: str) -> Reading[dict[Any, Any]] | None:
    """The hash at the key, its fence and its version, read in a single step."""
    flat, fence, version = _run(client, _READ, key, ["hgetall"])
    if not flat:
        return None
    pairs = flat if isinstance(flat, Mapping) else dict(zip(flat[::2], flat[1::2], strict=True))
    return Reading(dict(pairs), Fence(int(fence)), int(version))


def fence_key(key: str) -> str:
    """The name of the hash with the key's fence: in the same cluster slot, for no other key.

    Raises `Misuse` for a key ending in `:fence`, so no value is ever written over a fence.
    """
    if key.endswith(_SUFFIX):
        raise Misuse(f"the key {key!r} may be where the fence of another key is kept")
    opened = key.find("{")
    closed = key.find("}", opened + 1)
    if 0 <= opened < closed - 1:  # the cluster's rule: the first pair of braces, if not empty
        return f"{key}:{_SUFFIX}"  # one more colon, or `{a}` would share the fence of `a`
    if "}" in key or not key:
        raise Misuse(f"the key {key!r} cannot be tagged, so a cluster may part it from its fence")
    return f"{{{key}}}{_SUFFIX}"


def _write(
    client: Client,
    key: str,
    command: tuple[str, bool, int, int | None, int | None],
    data: Sequence[Value],
) -> Outcome:
    """Run the write script. `command` is verb, create, fence, step and version."""
    verb, create, fence, step, version = command
    check(fence, step)
    limits = ["" if number is None else str(number) for number in (step, version)]
    arguments: list[Value] = [verb, int(create), fence, *limits, secrets.token_hex(8), *data]
    reply: list[str | bytes] = _run(client, _WRITE, key, arguments)
    word, detail = (part.decode() if isinstance(part, bytes) else part for part in reply)
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
    """Run a script by its hash; send its source if the server does not have the script yet."""
    keys = (key, fence_key(key))
    sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    try:
        return client.evalsha(sha, len(keys), *keys, *arguments)
    except Exception as failure:
        # Compared by name, so no client has to be imported.
        if type(failure).__name__ != "NoScriptError":
            raise
        return client.eval(script, len(keys), *keys, *arguments)
