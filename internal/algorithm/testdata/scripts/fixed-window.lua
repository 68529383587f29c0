local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local key = KEYS[1]
local rest = call('PTTL', key)
local used, stale = 0, false
if rest > 0 then
  used = tonumber(call('GET', key))
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local found, left = used, rest
if used > count then used, stale = count, true end
if rest > period then rest, stale = period, true end
local free, cost = count - used, asked
if ARGV[4] and cost > free then cost = math.max(free, 1) end
if cost > free then cost = 0 elseif cost < -used then cost = -used end
if used + cost == 0 then
  if rest >= 0 then call('DEL', key) end
elseif used == 0 then
  call('SET', key, cost, 'PX', ARGV[3])
elseif stale then
  call('SET', key, used + cost, 'PX', rest)
elseif cost == asked and cost ~= 0 then
  call('INCRBY', key, ARGV[1])
elseif cost ~= 0 then
  call('INCRBY', key, cost)
end
if found == 0 then return 0 end -- alone
local both = found * (period + 1) + left -- alone
if left <= period and both < 9007199254740992 then return both end -- alone
return {found, left}, cost, 0
