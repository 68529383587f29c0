-- The idea: a sliding log in a sorted set, whose members and scores are the
-- moments, so that two requests of one moment are one. The moment comes from the
-- caller's clock, and the expiry takes for seconds what the window has in the
-- unit of the moments.
--
-- ARGV: moment, window, limit
local moment, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, moment - window)
if redis.call('ZCARD', KEYS[1]) >= limit then return false end
redis.call('ZADD', KEYS[1], moment, moment)
redis.call('EXPIRE', KEYS[1], window)
return true
