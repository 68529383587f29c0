local redis, KEYS, ARGV = redis, KEYS, ARGV
local found = redis.call('GET', KEYS[1]) == ARGV[1]
redis.call('DEL', KEYS[1])
return found and 1 or 0
