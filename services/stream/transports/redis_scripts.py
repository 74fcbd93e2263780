"""The steps of a Redis link that must not come apart: scripts, which the server runs whole.

Every script begins with KEYS[1] = the source's stream, ARGV[1] = group, ARGV[2] = this consumer.
"""

from __future__ import annotations

# Consumers that left hand what they had not committed to this name, which nobody has.
LEFT = "mlctl:left"
# How the names begin that we make up; such a consumer is removed once it is gone.
OURS = "mlctl:"

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

# KEYS: where to; ARGV: the messages.
ADD = _ADD + "add(KEYS[1], 1)"

# KEYS: source, answers, dead letters, the lease. ARGV: group, consumer, 1 if the lease counts, the
# number of entries, their ids, the answers, the dead letters. Whoever does not hold all of the
# entries any more changes nothing: {0, how many others hold, how many are still held}.
COMMIT = (
    _ADD
    + """
local group, me, total = ARGV[1], ARGV[2], tonumber(ARGV[4])
local held, own, missing, foreign = {}, 0, 0, 0
if total > 0 then
  local first, last = ARGV[5], ARGV[4 + total]
  for _, each in ipairs(redis.call('XPENDING', KEYS[1], group, first, last, total, me)) do
    held[each[1]] = true
  end
end
for at = 5, 4 + total do
  local id = ARGV[at]
  if not held[id] then
    local now = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
    if now and now[2] == me then
      held[id] = true
    else
      missing = missing + 1
      if now then foreign = foreign + 1 end
    end
  end
  if held[id] then own = own + 1 end
end
local leased = ARGV[3] == '0' or redis.call('GET', KEYS[4]) == me
if missing > 0 or not leased then
  if not leased then foreign = foreign + 1 end
  return {0, foreign, own}
end
for at = 2, 3 do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'stream' and kind ~= 'none' then return redis.error_reply('WRONGTYPE of a target') end
end
add(KEYS[3], add(KEYS[2], 5 + total))
for at = 5, 4 + total, 1000 do
  redis.call('XACK', KEYS[1], group, unpack(ARGV, at, math.min(at + 999, 4 + total)))
end
return {1}
"""
)

# What dead consumers and those that left had not committed. A consumer is dead when the server has
# not heard of it for ARGV[3] milliseconds, so one that works long on its messages keeps them.
CLAIM = f"""
local group, me, room, found = ARGV[1], ARGV[2], tonumber(ARGV[4]), {{}}
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
  local one = {{}}
  for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
  local gone = one.name == '{LEFT}' or one.idle >= tonumber(ARGV[3])
  if one.name ~= me and gone and room > 0 then
    if one.pending > 0 then
      local ids = {{}}
      for _, each in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', room, one.name)) do
        ids[#ids + 1] = each[1]
      end
      for at = 1, #ids, 1000 do
        local last = math.min(at + 999, #ids)
        local got = redis.call('XCLAIM', KEYS[1], group, me, 0, unpack(ids, at, last))
        for place = 1, last - at + 1 do
          if got[place] then
            found[#found + 1] = got[place]
          elseif got[place] == false then
            redis.call('XACK', KEYS[1], group, ids[at + place - 1])
          end
        end
      end
      room = room - #ids
    elseif string.sub(one.name, 1, {len(OURS)}) == '{OURS}' then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, one.name)
    end
  end
end
return found
"""

# With a lease (KEYS[2], ARGV[3] milliseconds) one consumer of the group reads and the others stand
# by. Who takes it takes first what the others had not committed. {0}: standing by; {1, entries}: it
# is ours; {2}: it is ours from now on, and so is what the others had.
READ_ALONE = """
local group, me = ARGV[1], ARGV[2]
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= me then return {0} end
redis.call('SET', KEYS[2], me, 'PX', ARGV[3])
if not holder then
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
    local one = {}
    for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
    while one.name ~= me and one.pending > 0 do
      local ids = {}
      for _, each in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', 1000, one.name)) do
        ids[#ids + 1] = each[1]
      end
      if #ids == 0 then break end
      redis.call('XCLAIM', KEYS[1], group, me, 0, unpack(ids))
    end
  end
  return {2}
end
if ARGV[4] == '0' then return {1} end
local got = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', ARGV[4], 'STREAMS', KEYS[1], '>')
return {1, got and got[1][2]}
"""

# Hands what this consumer did not commit to whoever asks next, and leaves the group.
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
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
"""

# {not committed by ARGV[1], whether all were counted}; servers before 7.0 do not count for us.
LAG = """
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local one = {}
  for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
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

# Removes what every group of the stream has committed.
TRIM = """
local least
local function before(a, b)
  local am, as = string.match(a, '(%d+)-(%d+)')
  local bm, bs = string.match(b, '(%d+)-(%d+)')
  if am ~= bm then return #am < #bm or (#am == #bm and am < bm) end
  return #as < #bs or (#as == #bs and as < bs)
end
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local one = {}
  for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
  local floor = one['last-delivered-id']
  local pending = redis.call('XPENDING', KEYS[1], one.name)
  if pending[1] > 0 and before(pending[2], floor) then floor = pending[2] end
  if not least or before(floor, least) then least = floor end
end
if least then return redis.call('XTRIM', KEYS[1], 'MINID', least) end
return 0
"""

# Deletes a group that no consumer has used for ARGV[2] milliseconds: 1; 0 if there is none, -1 if
# it is in use. KEYS[2] is the lease.
FORGET = f"""
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local found = 0
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if flat[2] == ARGV[1] then found = 1 end
end
if found == 0 then return 0 end
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local one = {{}}
  for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
  if one.name ~= '{LEFT}' and one.idle < tonumber(ARGV[2]) then return -1 end
end
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
"""
