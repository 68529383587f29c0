-- The first redis_rate: a counter for each window, whose number is part of the
-- key's name and comes from the caller's clock. The two commands are a pipeline.
--
-- ARGV: the cost, the window in seconds
-- Returns what has been asked for in this window, this included.
local used = redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return used
