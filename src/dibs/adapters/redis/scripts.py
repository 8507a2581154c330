"""The scripts that the Redis store runs inside the server: one for each operation, in Lua.

Each script does its work in one step, by the server's clock; no client sees a state in between. The
scripts give the same answers as `core.grants`. This module also knows the keys of a namespace. All
of them carry one hash tag, so a cluster keeps them on one node:

    {dibs:NAMESPACE}:issue:ISSUE    hash: the record, for ever; a field is absent if it has no value
    {dibs:NAMESPACE}:live:STAGE     sorted set of GRANTED_AT:RECORD, by expiry
    {dibs:NAMESPACE}:wake:ISSUE     list that waiters block on; the only key that expires
    {dibs:NAMESPACE}:epoch          hash: which server grants, where its fences begin, which stages
                                    have a live index

Redis does not undo a script that fails half-way, so each script writes in an order that errs on the
safe side: the index first and then the grant, the ending first and then the index.

The server's clock may step back, and a lease that ran out would then be live again. So a script
that acts on such an expiry, or reports it to the holder, first stores the outcome `expired`. That
outcome is no ending, and only the next grant removes it. The script stores a mark on the lease and
not the time of the expiry: after a clock that was an hour ahead, nothing could expire until the
corrected clock had caught up with the stored time.

Numbers are formatted with %.0f, because Lua's default turns fences into 1.8e+15. ACQUIRE and
RELEASE usually reply with a single value instead of a list, because a Python client spends time on
each element of a reply.
"""

from dataclasses import dataclass, field
from hashlib import sha1

from dibs.core.ids import IssueRef

FIELDS = (
    *("run", "holder", "stage", "fence", "ttl_ms", "granted_at", "expires_at", "beats"),
    *("outcome", "next", "note", "painted", "revoked_by", "revoked_why", "revoked_now"),
)
"""The fields of a record, in the order in which scripts return them."""


@dataclass(frozen=True, slots=True)
class Script:
    keys: str
    """The number of leading arguments that are keys."""
    text: str
    granting: bool = False
    """Whether the script takes one more argument: the run_id of the server the link greeted."""
    head: str = field(init=False)
    """EVALSHA, the digest and `keys`, in Redis' wire format: every call begins with these words."""

    def __post_init__(self) -> None:
        sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        head = "".join(f"${len(word)}\r\n{word}\r\n" for word in ("EVALSHA", sha, self.keys))
        object.__setattr__(self, "head", head)


class RedisKeys:
    """The key names and key prefixes of a namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"{{dibs:{namespace}}}:"
        self.epoch = f"{self.prefix}epoch"
        self.live = f"{self.prefix}live:"
        self.issue = f"{self.prefix}issue:"
        self.wake = f"{self.prefix}wake:"


def spelt(issue: IssueRef) -> str:
    """The issue as part of a key; two issues never get the same text."""
    if "#" in issue.repo or "%" in issue.repo:
        repo = issue.repo.replace("%", "%25").replace("#", "%23")
        return f"{repo}#{issue.key}"
    return f"{issue.repo}#{issue.key}"


def issue_spelt(text: str) -> IssueRef:
    """The inverse of `spelt`."""
    repo, _, key = text.partition("#")
    return IssueRef(repo.replace("%23", "#").replace("%25", "%"), key)


_ALL = ", ".join(f"'{name}'" for name in FIELDS)
_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_text = string.format('%.0f', now)
"""
# A replica would answer too, from data that may be old, and a connection survives the demotion of
# its server. A script that writes needs no check: the server refuses it with the same READONLY.
_PRIMARY_ONLY = """
if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then
  return redis.error_reply('READONLY this server is a replica now')
end
"""
# Marks each lease of the index that ran out as expired, once, and removes it from the index. The
# names of the records come from the index and are not in KEYS: see REVOKE.
_DROP_EXPIRED = """
local function drop_expired(index)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now_text)) do
    local granted, record = string.match(member, '^(%d+):(.*)$')
    local seen = redis.call('HMGET', record, 'granted_at', 'outcome', 'expires_at')
    local running = seen[1] == granted and not seen[2]
    -- Of a renewal that failed half-way the record knows, and not the index.
    if not running or now >= tonumber(seen[3]) then
      if running then redis.call('HSET', record, 'outcome', 'expired') end
      redis.call('ZREM', index, member)
    end
  end
end
"""
# One element wakes exactly one blocked waiter. If no waiter is blocked, the element stays for two
# seconds for the next waiter; there is never more than one, however many leases end.
_WAKE = """
  redis.call('LPUSH', wake, now_text)
  redis.call('LTRIM', wake, 0, 0)
  redis.call('PEXPIRE', wake, 2000)
"""

BEGIN_EPOCH = Script(
    "1",
    """
-- KEYS epoch  ARGV server
-- Fences begin at the server's time in microseconds. No issue is granted a million times a second,
-- so whatever a server handed out before is below the time at which the next one begins, even if
-- all its data is lost. If the clock went back, what is stored wins.
local known = redis.call('HMGET', KEYS[1], 'server', 'floor')
if known[1] == ARGV[1] then return 0 end
local clock = redis.call('TIME')
local floor = clock[1] * 1000000 + clock[2]
local stored = tonumber(known[2] or 0)
if floor <= stored then floor = stored + 1000000 end
redis.call('HSET', KEYS[1], 'server', ARGV[1], 'floor', string.format('%.0f', floor),
  'began_at', string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)))
return 1
""",
)

ACQUIRE = Script(
    "3",
    """
-- KEYS record epoch live  ARGV run holder stage ttl_ms floor limit server
"""
    + _NOW
    + _DROP_EXPIRED
    + """
local seen = redis.call('HMGET', KEYS[1],
  'run', 'fence', 'expires_at', 'outcome', 'painted')
if seen[1] and (seen[5] == '0' or (not seen[4] and now < tonumber(seen[3]))) then
  return {0, now, redis.call('HMGET', KEYS[1], """
    + _ALL
    + """)}
end
-- Whoever grants must have greeted this very server under the epoch that is stored here.
local epoch = redis.call('HMGET', KEYS[2], 'server', 'floor', 'highest', 'stage:' .. ARGV[3])
if epoch[1] ~= ARGV[7] then return {3} end
if ARGV[6] ~= '' then
  drop_expired(KEYS[3])
  local count = redis.call('ZCARD', KEYS[3])
  if count >= tonumber(ARGV[6]) then return {2, count} end
end
local fence = math.max(tonumber(seen[2] or 0), tonumber(epoch[2]), tonumber(ARGV[5])) + 1
if fence >= 9007199254740992 then return {4} end
local fence_text = string.format('%.0f', fence)
-- Above the clock only after a high floor, or under a clock that went back: see HIGHEST.
if fence > clock[1] * 1000000 + clock[2] and fence > tonumber(epoch[3] or 0) then
  redis.call('HSET', KEYS[2], 'highest', fence_text)
end
if not epoch[4] then redis.call('HSET', KEYS[2], 'stage:' .. ARGV[3], '1') end
local expires = string.format('%.0f', now + ARGV[4])
redis.call('ZADD', KEYS[3], expires, now_text .. ':' .. KEYS[1])
if seen[1] and (not seen[4] or seen[4] == 'expired') then
  drop_expired(KEYS[3])  -- somebody vanished, and so may others have
end
if seen[1] then
  redis.call('HDEL', KEYS[1], 'outcome', 'next', 'note', 'painted',
    'revoked_by', 'revoked_why', 'revoked_now')
end
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'holder', ARGV[2], 'stage', ARGV[3],
  'fence', fence_text, 'ttl_ms', ARGV[4], 'granted_at', now_text, 'expires_at', expires,
  'beats', '0')
return {ok = now_text .. ' ' .. fence_text}
""",
    granting=True,
)

RENEW = Script(
    "2",
    """
-- KEYS record live  ARGV run counted
"""
    + _NOW
    + """
local seen = redis.call('HMGET', KEYS[1], 'run', 'expires_at', 'outcome', 'revoked_by',
  'revoked_why', 'ttl_ms', 'beats', 'granted_at', 'fence')
if seen[1] ~= ARGV[1] or seen[3] then return {0} end
if now >= tonumber(seen[2]) then
  redis.call('HSET', KEYS[1], 'outcome', 'expired')
  redis.call('ZREM', KEYS[2], seen[8] .. ':' .. KEYS[1])
  return {0}
end
if seen[4] then return {2, seen[4], seen[5]} end
local beats = tonumber(seen[7])
-- Asked again after a lost reply, a beat that was counted is not counted twice.
if ARGV[2] == '' or beats <= tonumber(ARGV[2]) then beats = beats + 1 end
local expires = now + seen[6]
local expires_text = string.format('%.0f', expires)
redis.call('HSET', KEYS[1], 'expires_at', expires_text, 'beats', string.format('%.0f', beats))
redis.call('ZADD', KEYS[2], expires_text, seen[8] .. ':' .. KEYS[1])
return {1, expires, beats, tonumber(seen[9]), tonumber(seen[8])}
""",
)

RELEASE = Script(
    "3",
    """
-- KEYS record live wake  ARGV run fence beats outcome painted next note
"""
    + _NOW
    + """
local seen = redis.call('HMGET', KEYS[1], 'run', 'expires_at', 'outcome', 'granted_at',
  'fence', 'beats', 'revoked_by', 'awaited_until')
if seen[1] ~= ARGV[1] or seen[3] == 'expired' then return {0} end
if not seen[3] then
  if now >= tonumber(seen[2]) then
    redis.call('HSET', KEYS[1], 'outcome', 'expired')
    redis.call('ZREM', KEYS[2], seen[4] .. ':' .. KEYS[1])
    return {0}
  end
  redis.call('HSET', KEYS[1], 'expires_at', now_text, 'outcome', ARGV[4], 'painted', ARGV[5])
  if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'next', ARGV[6]) end
  if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], 'note', ARGV[7]) end
  redis.call('ZREM', KEYS[2], seen[4] .. ':' .. KEYS[1])
  if seen[8] and now < tonumber(seen[8]) then
    local wake = KEYS[3]
"""
    + _WAKE
    + """
  end
  -- The usual case: the holder knows the rest of its own record.
  if seen[5] == ARGV[2] and seen[6] == ARGV[3] and not seen[7] then return now end
end
return {1, now, redis.call('HMGET', KEYS[1], """
    + _ALL
    + """)}
""",
)

ACKNOWLEDGE = Script(
    "2",
    """
-- KEYS record wake  ARGV run
"""
    + _NOW
    + """
local seen = redis.call('HMGET', KEYS[1], 'run', 'painted', 'awaited_until')
if seen[1] ~= ARGV[1] or seen[2] ~= '0' then return 0 end
redis.call('HSET', KEYS[1], 'painted', '1')
if seen[3] and now < tonumber(seen[3]) then
  local wake = KEYS[2]
"""
    + _WAKE
    + """
end
return 1
""",
)

# Only the record knows the stage, and with it the name of the live index, so the index is not in
# KEYS. The index carries the same hash tag, so it is on the same node as the record.
REVOKE = Script(
    "2",
    """
-- KEYS record wake  ARGV run by why force live_prefix again
"""
    + _NOW
    + """
local seen = redis.call('HMGET', KEYS[1], 'run', 'expires_at', 'outcome', 'granted_at', 'stage',
  'awaited_until', 'revoked_by', 'revoked_why', 'revoked_now')
if seen[1] ~= ARGV[1] then return {0} end
-- Asked again after a lost reply, what this very revoke has ended is the answer.
if ARGV[6] == '1' and seen[3] == 'expired' and seen[7] == ARGV[2] and seen[8] == ARGV[3]
    and seen[9] == '1' then
  return {1, now, redis.call('HMGET', KEYS[1], """
    + _ALL
    + """)}
end
if seen[3] then return {0} end
local index, member = ARGV[5] .. seen[5], seen[4] .. ':' .. KEYS[1]
if now >= tonumber(seen[2]) then
  redis.call('HSET', KEYS[1], 'outcome', 'expired')
  redis.call('ZREM', index, member)
  return {0}
end
redis.call('HSET', KEYS[1], 'revoked_by', ARGV[2], 'revoked_why', ARGV[3], 'revoked_now', ARGV[4])
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'expires_at', now_text, 'outcome', 'expired')
  redis.call('ZREM', index, member)
  if seen[6] and now < tonumber(seen[6]) then
    local wake = KEYS[2]
"""
    + _WAKE
    + """
  end
end
return {1, now, redis.call('HMGET', KEYS[1], """
    + _ALL
    + """)}
""",
)

READ = Script(
    "1",
    """
-- KEYS record
"""
    + _PRIMARY_ONLY
    + _NOW
    + """
return {now, redis.call('HMGET', KEYS[1], """
    + _ALL
    + """)}
""",
)

# The members sort by the time of the grant, so the script stops reading records at the limit.
# Leases that ran out are dropped from the index once.
LIVE = Script(
    "1",
    """
-- KEYS epoch  ARGV live_prefix limit [stage]
"""
    + _PRIMARY_ONLY
    + _NOW
    + _DROP_EXPIRED
    + """
local stages = {ARGV[3]}
if not ARGV[3] then
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    stages[#stages + 1] = string.match(name, '^stage:(.*)$')
  end
end
local members = {}
for _, stage in ipairs(stages) do
  local index = ARGV[1] .. stage
  drop_expired(index)
  for _, member in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    members[#members + 1] = member
  end
end
table.sort(members)
local found = {}
for _, member in ipairs(members) do
  if #found >= tonumber(ARGV[2]) then break end
  local granted, record = string.match(member, '^(%d+):(.*)$')
  local fields = redis.call('HMGET', record, """
    + _ALL
    + """)
  -- A script that failed half-way may have left a member without its record.
  if fields[6] == granted and not fields[9] then found[#found + 1] = {record, fields} end
end
return {now, found}
""",
)

# Reads no record: every granted fence is below the clock (see BEGIN_EPOCH) or stored as `highest`.
HIGHEST = Script(
    "1",
    """
-- KEYS epoch
"""
    + _PRIMARY_ONLY
    + """
local clock = redis.call('TIME')
local epoch = redis.call('HMGET', KEYS[1], 'floor', 'highest')
return string.format('%.0f', math.max(
  clock[1] * 1000000 + clock[2], tonumber(epoch[1] or 0), tonumber(epoch[2] or 0)))
""",
)

# If the issue is already free, wakes one waiter: the longest waiting, or else the caller itself.
AWAIT = Script(
    "2",
    """
-- KEYS record wake  ARGV span_ms
"""
    + _NOW
    + """
local seen = redis.call('HMGET', KEYS[1], 'run', 'expires_at', 'outcome', 'painted',
  'awaited_until')
local busy = seen[1] and (seen[4] == '0' or (not seen[3] and now < tonumber(seen[2])))
if not busy then
  local wake = KEYS[2]
"""
    + _WAKE
    + """
  return 0
end
local awaited = now + ARGV[1]
if awaited > tonumber(seen[5] or 0) then
  redis.call('HSET', KEYS[1], 'awaited_until', string.format('%.0f', awaited))
end
return 1
""",
)
