-- The server's time in place of the caller's, in nanoseconds. Before Redis 5 a
-- script that reads the clock and then writes must ask for its effects to be
-- replicated.
redis.replicate_commands()
local clock = redis.call('TIME')
now = (tonumber(clock[1]) * 1e6 + tonumber(clock[2])) * 1e3
