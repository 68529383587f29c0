-- The rolling window of Istio's redisquota: a hash with the units taken in total and
-- in the current bucket, and a sorted set of the earlier buckets by start time.
--
-- KEYS: the hash, and the sorted set
-- ARGV: credit, window, bucket, 1 for best effort, cost, the caller's time, all
--       times in nanoseconds; and an optional deduplication id
-- Returns the units granted, and for how long.
local window_key, buckets_key = KEYS[1], KEYS[2]
local credit, length, bucket = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local best_effort, cost, now, id = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local has_id = (id or '') ~= ''
local id_key = (id or '') .. '-' .. window_key

if has_id then
  local granted = tonumber(redis.call('HGET', id_key, 'token'))
  local finish = tonumber(redis.call('HGET', id_key, 'expire'))
  if granted and finish and now < finish then return {granted, finish - now} end
end

local used = tonumber(redis.call('HGET', window_key, 'token'))
local filling = tonumber(redis.call('HGET', window_key, 'bucket.token'))
local began = tonumber(redis.call('HGET', window_key, 'bucket.timestamp'))
if not used or not filling or not began then
  used, filling, began = 0, 0, now
  redis.call('HMSET', window_key, 'token', used, 'bucket.token', filling, 'bucket.timestamp', began, 'key', 0)
end

if now - began + 1 > bucket then
  if filling > 0 then
    local number = redis.call('HINCRBY', window_key, 'key', 1)
    redis.call('ZADD', buckets_key, began, tostring(number) .. '.' .. tostring(filling))
  end
  redis.call('HMSET', window_key, 'bucket.token', 0, 'bucket.timestamp', now)
end

local back = 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', buckets_key, 0, now - length)) do
  back = back + tonumber(string.sub(member, string.find(member, '%.') + 1))
end
redis.call('ZREMRANGEBYSCORE', buckets_key, 0, now - length)
if back > 0 then
  used = math.max(used - back, 0)
  redis.call('HSET', window_key, 'token', used)
end

redis.call('PEXPIRE', window_key, length / 1000000)
redis.call('PEXPIRE', window_key, length / 1000000)

local free, granted = credit - used, cost
if free <= 0 then return {0, 0} end
if free < cost then
  if best_effort == 0 then return {0, 0} end
  granted = free
end
redis.call('HINCRBY', window_key, 'token', granted)
redis.call('HINCRBY', window_key, 'bucket.token', granted)
if has_id then
  redis.call('HMSET', id_key, 'token', granted, 'expire', now + length)
  redis.call('PEXPIRE', id_key, length / 1000000)
end
return {granted, length}
