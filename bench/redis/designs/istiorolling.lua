-- The idea: Istio's rolling window, a hash of what is used and of the current
-- bucket, and a sorted set of the buckets before it, reclaimed as they leave the
-- window. The hash gets its expiry twice and the set none.
--
-- KEYS: the hash, the set
-- ARGV: credit, window, bucket, best effort, tokens, moment, id
local credit, window, length = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local effort, tokens, moment, id = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local meta, data, record = KEYS[1], KEYS[2], nil
if (id or '') ~= '' then
  record = id .. '-' .. meta
  local granted = tonumber(redis.call('HGET', record, 'token'))
  local ends = tonumber(redis.call('HGET', record, 'expire'))
  if granted and ends and moment < ends then return {granted, ends - moment} end
end

local used = tonumber(redis.call('HGET', meta, 'token'))
local inside = tonumber(redis.call('HGET', meta, 'bucket.token'))
local began = tonumber(redis.call('HGET', meta, 'bucket.timestamp'))
if not used or not inside or not began then
  used, inside, began = 0, 0, moment
  redis.call('HMSET', meta, 'token', used, 'bucket.token', inside, 'bucket.timestamp', began, 'key', 0)
end

if moment - began + 1 > length then
  if inside > 0 then
    local number = redis.call('HINCRBY', meta, 'key', 1)
    redis.call('ZADD', data, began, tostring(number) .. '.' .. tostring(inside))
  end
  redis.call('HMSET', meta, 'bucket.token', 0, 'bucket.timestamp', moment)
end

local reclaimed = 0
for _, bucket in ipairs(redis.call('ZRANGEBYSCORE', data, 0, moment - window)) do
  reclaimed = reclaimed + tonumber(string.sub(bucket, string.find(bucket, '%.') + 1))
end
redis.call('ZREMRANGEBYSCORE', data, 0, moment - window)
if reclaimed > 0 then
  used = math.max(used - reclaimed, 0)
  redis.call('HSET', meta, 'token', used)
end
redis.call('PEXPIRE', meta, window / 1000000)
redis.call('PEXPIRE', meta, window / 1000000)

local free = credit - used
if free <= 0 then return {0, 0} end
if free < tokens and effort == 0 then return {0, 0} end
local granted = math.min(free, tokens)
redis.call('HINCRBY', meta, 'token', granted)
redis.call('HINCRBY', meta, 'bucket.token', granted)
if record then
  redis.call('HMSET', record, 'token', granted, 'expire', moment + window)
  redis.call('PEXPIRE', record, window / 1000000)
end
return {granted, window}
