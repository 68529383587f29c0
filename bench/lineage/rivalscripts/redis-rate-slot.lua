-- The first redis_rate: one counter per window. The window number is part of the
-- key name and comes from the caller's clock. The original sends a pipeline.
--
-- ARGV: the cost, the window in seconds
-- Returns the cost requested in this window, including this request.
local used = redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return used
