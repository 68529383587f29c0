-- The fixed window that begins with a key's first request; see fixedwindow.go.
-- The value is what has been used, and the window ends when the key expires.
--
-- ARGV: cost, count, period, and 1 for at most
-- Returns what was used and the time left, before the step; and the units granted.
local key, cost, count, period = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rest = redis.call('PTTL', key)
local used, stale = 0, false
if rest > 0 then
  used = tonumber(redis.call('GET', key))
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local before = {used, rest}
if used > count then used, stale = count, true end
if rest > period then rest, stale = period, true end
local free = count - used
if ARGV[4] and cost > free then cost = math.max(free, 1) end
if cost > free then cost = 0 elseif cost < -used then cost = -used end
if ARGV.dry then return before, cost end
if used + cost == 0 then
  if rest >= 0 then redis.call('DEL', key) end
elseif used == 0 then
  redis.call('SET', key, cost, 'PX', period)
elseif stale then
  redis.call('SET', key, used + cost, 'PX', rest)
elseif cost ~= 0 then
  redis.call('INCRBY', key, cost)
end
return before, cost, 0
