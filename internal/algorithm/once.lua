-- A step under an ID; see record.lua.
--
-- KEYS: the step's, and the record's
-- ARGV: how long a grant is remembered; what one unit costs the step; how much debt time
--       pays in a millisecond, or 0; the most units that a settlement may add; o for
--       Overdraw, which is always granted, or s to settle; and then the step's own. In a
--       refund or settlement the first of those is in units, because it may exceed what
--       the step counts up to now.
-- Returns the units charged before under this ID, or -1; when to act on them; how many of
-- them are paid back when; and the reply of the step.
redis = freeze()
local lifetime, unit, scale, how, own = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[5], {unpack(ARGV, 6)}
local cost, record = own[1] + 0, recall(KEYS[2])
if record and record.err then return record end
if record and cost < 0 and record.refunded ~= '' then record = nil end
local found, reply, charged, delay = record and {record.units, math.max(record.acting, 0), record.owed, record.due}
if not record and (cost < 0 or how == 's') or record and cost >= 0 and how ~= 's' then
  own[1] = 0
  reply = step(KEYS, own)
elseif not record then
  reply, charged, delay = step(KEYS, own)
  if charged and (charged > 0 or how == 'o') then
    remember(KEYS[2], {units = charged / unit, owed = charged / unit, acting = delay, due = own.due, rest = lifetime})
  end
else
  local change = math.max(cost, -record.units)
  if how == 's' then change = math.min(cost - record.units, ARGV[4] + 0) end
  reply, charged = move(step, KEYS, own, record, change, unit, scale)
  if how ~= 's' then record.refunded = 'r' end
  if charged and record.units == 0 and how ~= 's' then
    redis.call('DEL', KEYS[2])
  elseif charged then
    remember(KEYS[2], record)
  end
end
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
found = found or {-1, 0, 0, 0}
return {found[1], found[2], found[3], found[4], unpack(reply)}
