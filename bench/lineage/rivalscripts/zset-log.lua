-- The sliding log as a sorted set: members older than the window are removed, the
-- rest are counted, and an admitted request becomes a member whose name and score
-- are the caller's time.
--
-- ARGV: the caller's time, the window in the same unit, the limit
-- Returns 1 if admitted, nil otherwise.
local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
local used = redis.call('ZCARD', KEYS[1])
if limit > used then
  redis.call('ZADD', KEYS[1], now, now)
  redis.call('EXPIRE', KEYS[1], window)
  return true
end
return false
