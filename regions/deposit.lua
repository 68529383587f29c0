-- Ends a claim with what home granted; see pool.deposit.
--
-- ARGV: claim, units, until when they can be spent, 1 for scarce, pause, homeLeft, homeReset; times in milliseconds
-- Returns 1 if the claim was still valid
local found = redis.call('HMGET', KEYS[1], 'claim', 'want', 'left', 'end')
if found[1] ~= ARGV[1] then return {0} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left, ends = tonumber(found[3]), tonumber(found[4])
local units = math.min(ARGV[2], found[2])
if ends ~= 0 and now >= ends then
  left, ends = 0, 0
  redis.call('HSET', KEYS[1], 'left', 0, 'end', 0, 'fill', 0)
end
if units > 0 then
  redis.call('HSET', KEYS[1], 'left', left + units, 'end', ARGV[3], 'fill', left + units, 'filled', now)
end
redis.call('HSET', KEYS[1], 'claim', '', 'want', 0, 'next', now + ARGV[5], 'scarce', ARGV[4], 'homeLeft', ARGV[6], 'homeReset', now + ARGV[7])
return {1}
