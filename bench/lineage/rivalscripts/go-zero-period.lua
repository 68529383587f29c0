-- go-zero's period limit: a counter whose expiry is the window.
--
-- ARGV: the quota, the window in seconds
-- Returns 1 if admitted, 2 if that was the last of the quota, 0 if denied.
local quota, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local used = redis.call('INCRBY', KEYS[1], 1)
if used == 1 then
  redis.call('EXPIRE', KEYS[1], window)
  return 1
end
if used < quota then return 1 end
if used == quota then return 2 end
return 0
