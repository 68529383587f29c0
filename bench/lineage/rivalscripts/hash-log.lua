-- The sliding log as a hash: the field is the caller's time, the value is how many
-- requests were admitted at that time.
--
-- ARGV: the caller's time, the window in the same unit, the limit
-- Returns 1 if admitted, nil otherwise.
local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local log = redis.call('HGETALL', KEYS[1])
local used, old = 0, {}
for i = 1, #log, 2 do
  if tonumber(log[i]) <= now - window then
    old[#old + 1] = log[i]
  else
    used = used + log[i + 1]
  end
end
if #old > 0 then redis.call('HDEL', KEYS[1], unpack(old)) end
if limit <= used then return false end
redis.call('HINCRBY', KEYS[1], now, 1)
redis.call('EXPIRE', KEYS[1], window)
return true
