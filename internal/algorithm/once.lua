-- A step under an ID; see record.lua.
--
-- KEYS: the step's, and the record's
-- ARGV: how long a grant is remembered, what one unit costs the step, o for Overdraw,
--       which is always granted, and then the step's own. In a refund the first of those
--       is in units, because it may exceed what the step counts up to now.
-- Returns the units of an earlier grant under this ID, or -1, or those refunded; when to
-- act on them; and the reply of the step.
local lifetime, unit, own = tonumber(ARGV[1]), tonumber(ARGV[2]), {unpack(ARGV, 4)}
local cost, record = tonumber(own[1]), recall(KEYS[2])
if record and record.err then return record end
local back = 0
local refunds = cost < 0 and record and record.refunded == ''
if refunds then back = math.min(-cost, record.units) end
if cost < 0 then own[1] = -back * unit elseif record then own[1] = 0 end
local reply, charged, delay = step(KEYS, own)
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
if charged and refunds then
  if back == record.units then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], string.format('%.0f %.0fr', record.units - back, record.acting - record.rest), 'PX', record.rest)
  end
elseif charged and (charged > 0 or ARGV[3] == 'o' and not record) then
  remember(KEYS[2], charged / unit, delay, lifetime)
end
record = record or {units = -1, acting = 0}
return {cost < 0 and back or record.units, math.max(record.acting, 0), unpack(reply)}
