local redis, KEYS, ARGV = redis, KEYS, ARGV
local keys, KEYS = KEYS, {}
redis.call('TIME')
for i = 1, #keys do
  KEYS[1] = keys[i]
  redis.call('SET', KEYS[1], ARGV[1], 'PX', 10000)
  redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
  local _ = redis.pcall('PEXPIRETIME', KEYS[1])
end
return #keys
