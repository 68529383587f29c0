-- The idea: go-zero's period, a counter that expires a period after its first
-- request. Requests that are refused count too, and a counter that has lost its
-- expiry refuses for ever. The answer is 1, or 2 for the last unit, or 0.
--
-- ARGV: limit, seconds
local limit = tonumber(ARGV[1])
local used = redis.call('INCRBY', KEYS[1], 1)
if used == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2] + 0)
  return 1
elseif used < limit then
  return 1
elseif used == limit then
  return 2
end
return 0
