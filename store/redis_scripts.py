"""The Lua scripts: what must happen in one step on the server. Keys of one script share a hash tag.

Each begins with what can fail for want of memory, so that a full server refuses all of a script or nothing. They use
what Redis 6.2, 7 and Valkey have in common.
"""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

from store.state import STALE_MS


class Script(NamedTuple):
    """A script and the name that the server knows it by."""

    text: str
    sha: str


def _script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


LOAD = _script("""
local snap, log = {}, {}
local snap_kind = redis.call('TYPE', KEYS[1]).ok
local log_kind = redis.call('TYPE', KEYS[2]).ok
if snap_kind == 'hash' then snap = redis.call('HMGET', KEYS[1], unpack(ARGV)) end
if log_kind == 'stream' then log = redis.call('XRANGE', KEYS[2], '-', '+') end
return {snap_kind, snap, log_kind, log}
""")
"""KEYS snapshot, log. ARGV the snapshot's fields. Both at one moment, with the keys' types."""

APPEND = _script("""
local head = redis.call('HMGET', KEYS[1], 'v', 'l', 's')
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] then return '' end
local tip = tonumber(head[3])
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1')[1]
if last then tip = math.max(tip, tonumber(string.match(last[1], '%-(%d+)$'))) end
local room = tonumber(ARGV[4]) - redis.call('XLEN', KEYS[2])
local answers = ''
for i = 5, #ARGV, 3 do
  local seq, answer = tonumber(ARGV[i]), '-'
  if seq <= tip then
    answer = '0'
  elseif seq == tip + 1 and room > 0 then
    local done = redis.pcall('XADD', KEYS[2], ARGV[i + 1], 'd', ARGV[i + 2])
    if type(done) ~= 'table' then
      tip, room, answer = seq, room - 1, '1'
    elseif not string.find(done.err, 'equal or smaller', 1, true) then
      return done
    end
  end
  answers = answers .. answer
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return answers
""")
"""KEYS snapshot, log. ARGV version, lineage, ttl ms, longest log, then seq, id, value of each entry.

Answers one character per entry: 1 written, 0 was there, - does not join. None at all: none of them joins.
"""

OFFER = _script(f"""
local version, lineage, seq, ts = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local snap_kind = redis.call('TYPE', KEYS[1]).ok
local log_kind = redis.call('TYPE', KEYS[2]).ok
local s = {{false, false, false, false, false}}
if snap_kind == 'hash' then s = redis.call('HMGET', KEYS[1], 'v', 'l', 's', 't', 'f') end
local stored_version, stored_seq, stored_ts = tonumber(s[1] or ''), tonumber(s[3] or ''), tonumber(s[4] or '')
local stored_origin = tonumber(string.match(s[2] or '', '^(%d+)%-%d+$') or '')
local readable = stored_version and stored_seq and stored_ts and stored_origin
  and stored_version >= version and redis.call('HSTRLEN', KEYS[1], 'b') > 0
  and not (s[2] == ARGV[8] and s[3] == ARGV[9])

local function verdict()
  if not readable then return 'accepted' end
  local top_seq, top_ts = stored_seq, stored_ts
  if log_kind == 'stream' then
    local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1')[1]
    local last_ts, last_seq = string.match(last and last[1] or '', '^(%d+)%-(%d+)$')
    if last and tonumber(last_seq) > top_seq then top_seq, top_ts = tonumber(last_seq), tonumber(last_ts) end
  end
  if stored_version == version then
    if s[2] == lineage then return stored_seq >= seq and 'kept' or 'accepted' end
    local other = s[5] and s[5] ~= '' and ARGV[5] ~= '' and s[5] ~= ARGV[5]
    if ts > top_ts and (seq < top_seq or other) then return 'accepted' end
    local origin = tonumber(string.match(lineage, '^%d+'))
    if origin <= stored_origin and seq >= top_seq and ts >= top_ts then return 'accepted' end
  end
  return top_ts + {STALE_MS} < ts and 'accepted' or 'better'
end

local answer = verdict()
if answer ~= 'accepted' then return answer end
if snap_kind ~= 'hash' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'l', lineage, 's', ARGV[3], 't', ARGV[4], 'f', ARGV[5], 'b', ARGV[6])
if readable and s[2] == lineage and log_kind == 'stream' then
  redis.call('XTRIM', KEYS[2], 'MINID', ARGV[4] .. '-' .. string.format('%.0f', seq + 1))
  local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', '1')[1]
  if not first or tonumber(string.match(first[1], '%-(%d+)$')) ~= seq + 1 then redis.call('DEL', KEYS[2]) end
else
  redis.call('DEL', KEYS[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[7])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
return answer
""")
"""KEYS snapshot, log. ARGV version, lineage, seq, ts, fingerprint, body, ttl ms, then lineage and seq of a stored
snapshot that the caller found damaged (empty: none).

Mirrors `store.offer_rules`; a stored one of a later release yields only when abandoned.
"""

CHANGE = _script("""
local replica, op, id, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local field, ttl = 'i:' .. id, ARGV[5]
local epoch = redis.call('HGET', KEYS[1], 'epoch')
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1')[1]
local last_epoch, number = string.match(last and last[1] or '', '^(%d+)%-(%d+)$')
local whole = epoch and epoch == last_epoch
local stored = redis.call('HGET', KEYS[1], field)
if op == 'put' and stored then value = string.sub(stored, 1, 1) .. string.sub(value, 2) end
if (op == 'drain' or op == 'undrain') and stored then
  value = (op == 'drain' and '1' or '0') .. string.sub(stored, 2)
end
local unchanged = whole and stored and stored == value
if not unchanged then
  if not whole then
    local now = redis.call('TIME')
    local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
    epoch, number = string.format('%.0f', math.max(ms, tonumber(last_epoch or '0') + 1)), '0'
    redis.call('HSET', KEYS[1], 'epoch', epoch)
  end
  local next_id = epoch .. '-' .. string.format('%.0f', tonumber(number) + 1)
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], next_id, 'r', replica, 'o', op, 'i', id, 'd', value)
  if op == 'delete' then redis.call('HDEL', KEYS[1], field)
  elseif op == 'put' or stored then redis.call('HSET', KEYS[1], field, value) end
end
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)
return unchanged and 0 or 1
""")
"""KEYS instances, changes. ARGV replica, op (put, delete, drain, undrain), instance id, value, ttl ms, longest stream.

A value is the draining flag, 0 or 1, and the JSON. Ids in the stream are `<epoch>-<n>` with n from 1 without a hole.
The epoch is when the registry was made, also kept beside the instances: readers notice that they missed something, or
that either key was lost.
"""

READ_CHANGES = _script("""
local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''
return {epoch, redis.call('XRANGE', KEYS[2], ARGV[1], '+', 'COUNT', ARGV[2])}
""")
"""KEYS instances, changes. ARGV first id, most entries."""

READ_INSTANCES = _script("""
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1')[1]
return {last and last[1] or '', redis.call('HGETALL', KEYS[1])}
""")
"""KEYS instances, changes. The newest change's id, and the fields of all instances."""

SCRIPTS = {script.sha: script.text for script in (LOAD, APPEND, OFFER, CHANGE, READ_CHANGES, READ_INSTANCES)}
"""Text by sha."""
