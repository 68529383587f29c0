-- Writes a marker to each key, by which the store finds out what a server, or a proxy before several, does
-- with a script: it must be able to write after it has read the clock, and to keep an expiry. Only some know the
-- expiry itself.
--
-- ARGV: the marker
-- Returns the number of keys.
local keys, KEYS = KEYS, {}
redis.call('TIME')
for i = 1, #keys do
  KEYS[1] = keys[i]
  redis.call('SET', KEYS[1], ARGV[1], 'PX', 10000)
  redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
  local _ = redis.pcall('PEXPIRETIME', KEYS[1])
end
return #keys
