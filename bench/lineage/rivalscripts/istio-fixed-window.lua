-- The fixed window of Istio's redisquota: a hash with the units taken and the end of
-- the window, and for each deduplication id a hash with the units granted.
--
-- KEYS: the window, and one that only the rolling window uses
-- ARGV: credit, window, bucket, 1 for best effort, cost, the caller's time, all
--       times in nanoseconds; and an optional deduplication id
-- Returns the units granted, and for how long.
local window_key, credit, length = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local best_effort, cost, now, id = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
---------------------------------------- time
local has_id = (id or '') ~= ''
local id_key = (id or '') .. '-' .. window_key

if has_id then
  local granted = tonumber(redis.call('HGET', id_key, 'token'))
  local finish = tonumber(redis.call('HGET', id_key, 'expire'))
  if granted and finish and now < finish then return {granted, finish - now} end
end

local used = tonumber(redis.call('HGET', window_key, 'token'))
local finish = tonumber(redis.call('HGET', window_key, 'expire'))
if not used or not finish or now >= finish then
  used, finish = 0, length + now
  redis.call('HMSET', window_key, 'token', used, 'expire', finish)
  redis.call('PEXPIRE', window_key, length / 1000000)
end

local granted = cost
if used + cost > credit then
  local beyond = used + cost - credit
  if best_effort ~= 1 or beyond >= cost then return {0, 0} end
  granted = cost - beyond
end
redis.call('HMSET', window_key, 'token', used + granted)
if has_id then
  redis.call('HMSET', id_key, 'token', granted, 'expire', finish)
  redis.call('PEXPIRE', id_key, math.floor((finish - now) / 1000000))
end
return {granted, finish - now}
