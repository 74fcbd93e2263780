"""Lua scripts of the Redis transport: steps that the server must run as a whole.

KEYS[1] is the source's stream, unless a comment says otherwise.
"""

from __future__ import annotations

# A consumer that leaves hands its uncommitted entries to this name, which no consumer has.
LEFT = "mlctl:left"
# Prefix of generated consumer names; such consumers are removed once they are dead.
PREFIX = "mlctl:"

_ADD = """
local function add(key, at)
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    local size = tonumber(ARGV[at])
    redis.call('XADD', key, '*', unpack(ARGV, at + 1, at + size))
    at = at + 1 + size
  end
  return at
end
"""
_FIELDS = """
local function fields(flat)
  local found = {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end
"""

# KEYS[1]: the stream to write to. ARGV: the messages.
ADD = _ADD + "add(KEYS[1], 1)"

# KEYS: source, answers, dead letters. ARGV: group, consumer, number of entries, their ids, the
# answers, the dead letters. If the consumer does not own every entry, nothing is changed and the
# reply is {0, entries of other consumers, entries that it owns}.
COMMIT = (
    _ADD
    + """
local group, me, total = ARGV[1], ARGV[2], tonumber(ARGV[3])
local owned, own, missing, foreign = {}, 0, 0, 0
if total > 0 then
  local first, last = ARGV[4], ARGV[3 + total]
  for _, each in ipairs(redis.call('XPENDING', KEYS[1], group, first, last, total, me)) do
    owned[each[1]] = true
  end
end
for at = 4, 3 + total do
  local id = ARGV[at]
  if not owned[id] then
    local now = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
    if now and now[2] == me then
      owned[id] = true
    else
      missing = missing + 1
      if now then foreign = foreign + 1 end
    end
  end
  if owned[id] then own = own + 1 end
end
if missing > 0 then return {0, foreign, own} end
for at = 2, 3 do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'stream' and kind ~= 'none' then return redis.error_reply('WRONGTYPE of a target') end
end
add(KEYS[3], add(KEYS[2], 4 + total))
for at = 4, 3 + total, 1000 do
  redis.call('XACK', KEYS[1], group, unpack(ARGV, at, math.min(at + 999, 3 + total)))
end
return {1}
"""
)

# ARGV: group, consumer, idle milliseconds, limit. Returns uncommitted entries of consumers that
# left, or from which the server got no command for the idle time.
CLAIM = (
    _FIELDS
    + f"""
local group, me, room, found = ARGV[1], ARGV[2], tonumber(ARGV[4]), {{}}
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
  local one = fields(flat)
  local inactive = one.name == '{LEFT}' or one.idle >= tonumber(ARGV[3])
  if one.name ~= me and inactive and room > 0 then
    if one.pending > 0 then
      local ids = {{}}
      for _, each in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', room, one.name)) do
        ids[#ids + 1] = each[1]
      end
      for at = 1, #ids, 1000 do
        local last = math.min(at + 999, #ids)
        local got = redis.call('XCLAIM', KEYS[1], group, me, 0, unpack(ids, at, last))
        for index = 1, last - at + 1 do
          if got[index] then
            found[#found + 1] = got[index]
          elseif got[index] == false then
            redis.call('XACK', KEYS[1], group, ids[at + index - 1])
          end
        end
      end
      room = room - #ids
    elseif string.sub(one.name, 1, {len(PREFIX)}) == '{PREFIX}' then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, one.name)
    end
  end
end
return found
"""
)

# ARGV: group, consumer. Hands the consumer's uncommitted entries over, and leaves the group.
LEAVE = f"""
while true do
  local ids = {{}}
  for _, each in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000, ARGV[2])) do
    ids[#ids + 1] = each[1]
  end
  if #ids == 0 then break end
  redis.call('XCLAIM', KEYS[1], ARGV[1], '{LEFT}', 0, unpack(ids))
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
"""

# ARGV: group. Returns {uncommitted entries, whether all were counted}, or {} for no such group.
# Servers before 7.0 do not report the lag, nor do newer ones after XDEL.
LAG = (
    _FIELDS
    + """
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local one = fields(flat)
  if one.name == ARGV[1] then
    if one.lag then return {one.pending + one.lag, 1} end
    local last, waiting = one['last-delivered-id'], 0
    for _ = 1, 100 do
      local rows = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1000)
      waiting = waiting + #rows
      if #rows < 1000 then return {one.pending + waiting, 1} end
      last = rows[#rows][1]
    end
    return {one.pending + waiting, 0}
  end
end
return {}
"""
)
