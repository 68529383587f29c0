-- A step under an ID. The record of a grant holds the units still charged, and when
-- to act on them, counted from the record's expiry. A trailing r means that the grant
-- was refunded, which is possible only once.
--
-- KEYS: the step's, and the record's
-- ARGV: how long a grant is remembered, what one unit costs the step, and then the
--       step's own. In a refund the first of those is in units, because it may
--       exceed what the step counts up to now.
-- Returns the units of an earlier grant under this ID, or those refunded; when to act
-- on them; and the reply of the step.
local memory, unit, own = tonumber(ARGV[1]), tonumber(ARGV[2]), {unpack(ARGV, 3)}
local cost, rest = tonumber(own[1]), redis.call('PTTL', KEYS[2])
local units, acting, reversed, known = 0, 0, '', false
if rest > 0 then
  units, acting, reversed = string.match(redis.call('GET', KEYS[2]), '^(%d+) (%-?%d+)(r?)$')
  if not units then return redis.error_reply('FOREIGN record') end
  units, acting, known = tonumber(units), acting + rest, true
elseif rest == -1 then
  return redis.error_reply('FOREIGN record without expiry')
end
local back = 0
if cost < 0 and known and reversed == '' then back = math.min(-cost, units) end
if cost < 0 then own[1] = -back * unit elseif known then own[1] = 0 end
local reply, charged, delay = step(KEYS, own)
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
if charged and back > 0 then
  if back == units then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], string.format('%.0f %.0fr', units - back, acting - rest), 'PX', rest)
  end
elseif charged and charged > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f %.0f', charged / unit, delay - memory), 'PX', memory)
end
return {cost < 0 and back or units, math.max(acting, 0), unpack(reply)}
