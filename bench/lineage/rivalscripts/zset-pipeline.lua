-- The sliding log as a sorted set, in four commands that a client sends in one
-- pipeline; the client decides from the result. As a script they cannot interleave
-- with the commands of another client, as a pipeline can.
--
-- ARGV: the caller's time in milliseconds, the period in seconds
-- Returns the number of requests in the window, including this one.
local now, period = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], now, now)
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - period * 1000)
local used = redis.call('ZCARD', KEYS[1])
redis.call('EXPIRE', KEYS[1], period + 1)
return used
