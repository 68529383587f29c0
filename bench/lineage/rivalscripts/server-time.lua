-- Uses the server's time instead of the caller's, in nanoseconds. Before Redis 5 a
-- script that reads the clock and then writes must request effect replication.
redis.replicate_commands()
local clock = redis.call('TIME')
now = (tonumber(clock[1]) * 1e6 + tonumber(clock[2])) * 1e3
