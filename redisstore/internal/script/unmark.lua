-- Deletes a key. Returns 1 if it had the marker, or 0.
--
-- ARGV: the marker
local found = redis.call('GET', KEYS[1]) == ARGV[1]
redis.call('DEL', KEYS[1])
return found and 1 or 0
