-- A step under an ID; see instant.lua and record.lua.
--
-- KEYS: the step's, and the record's
-- ARGV: the step's own; to settle or refund, how much debt time pays in a millisecond, or
--       0, and the most units that a settlement may add, or else how long a grant is
--       remembered; what one unit costs the step; and s to settle, r to refund, o for
--       Overdraw, which is always granted, or nothing. In a refund or settlement the first
--       is in units, because it may exceed what the step counts up to now.
-- Returns the reply of the step; and before it, if a grant is recorded under this ID, its
-- units, and when to act on them, or to settle or refund, how many are paid back when.
local last = #ARGV
local unit, how, most, scale = ARGV[last - 1] + 0, ARGV[last], ARGV[last - 2]
local moves = how == 's' or how == 'r'
ARGV[last], ARGV[last - 1], ARGV[last - 2] = nil, nil, nil
if moves then scale, ARGV[last - 3] = ARGV[last - 3] + 0, nil end
---------------------------------------- freeze
local value, left = redis.call('GET', KEYS[2]), 0
if value then left = pttl({KEYS[2]}) end
if not moves and left ~= -1 and left <= 0 then -- a key lives until after the millisecond of its expiry
  local reply, charged, delay = step(KEYS, ARGV)
  if charged and (charged > 0 or how == 'o') then
    local record = string.format('%d %d %d', charged / unit, now + delay, now + ARGV.due)
    redis.call('SET', KEYS[2], record, 'PX', most)
  end
  return reply
end
---------------------------------------- record
local units, acting, due, owed, refunded
if value then units, acting, due, owed, refunded = recall(value, left) end
if units == false then return acting end
local cost = ARGV[1] + 0
if not units or how == 'r' and refunded ~= '' then
  ARGV[1] = 0
  return (step(KEYS, ARGV))
end
local found, reply, charged
if not moves then
  found, ARGV[1] = {units, math.max(acting - now, 0)}, 0
  reply = step(KEYS, ARGV)
else
  found = {units, owed, due}
  local change = math.max(cost, -units)
  if how == 's' then change = math.min(cost - units, most + 0) end
  reply, charged, units, due, owed = move(step, KEYS, ARGV, units, due, owed, change, unit, scale)
  if how == 'r' then refunded = 'r' end
  if charged and units == 0 and how == 'r' then
    redis.call('DEL', KEYS[2])
  elseif charged then
    update({KEYS[2]}, units, acting, due, owed, refunded)
  end
end
if type(reply) ~= 'table' then
  found[#found + 1] = reply
  return found
end
if reply.err then return reply end
for _, number in ipairs(reply) do found[#found + 1] = number end
return found
