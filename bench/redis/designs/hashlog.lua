-- The idea: a sliding log in a hash, one field for each moment and in it how
-- many requests that moment had. Every field is read on every call, the moment
-- comes from the caller's clock, and the expiry takes for seconds what the window
-- has in the unit of the moments.
--
-- ARGV: moment, window, limit
local moment, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local log = redis.call('HGETALL', KEYS[1])
local used, old = 0, {}
for i = 1, #log, 2 do
  if tonumber(log[i]) <= moment - window then
    old[#old + 1] = log[i]
  else
    used = used + log[i + 1]
  end
end
if #old > 0 then redis.call('HDEL', KEYS[1], unpack(old)) end
if used >= limit then return false end
redis.call('HINCRBY', KEYS[1], moment, 1)
redis.call('EXPIRE', KEYS[1], window)
return true
