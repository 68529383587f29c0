-- Takes units from a pool and claims more if few are left; see pool.spend.
--
-- ARGV: cost, 1 for AtMost, hold, age, claim, how long the claim is valid, 1 for Dry, trip, keep; times in milliseconds
-- Returns granted, left, want, now, scarce, asked, wait, homeLeft, homeReset, age
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'left', 'end', 'fill', 'filled', 'next', 'scarce', 'claim', 'homeLeft', 'homeReset')
local function number(i) return tonumber(found[i] or 0) end
local left, ends, fill, filled, next = number(1), number(2), number(3), number(4), number(5)
if ends ~= 0 and now >= ends then left, ends, fill = 0, 0, 0 end
if next - now > math.max(ARGV[6], 5000) then next = now end -- the clock went back
local cost, hold = tonumber(ARGV[1]), tonumber(ARGV[3])
local granted, want, claim = 0, 0, found[7] or ''
local short = cost > left
if (not short or ARGV[2] == '1') and ARGV[7] == '0' then granted = math.min(cost, left) end
left = left - granted
local lasts = left * math.max(now - filled, 1) >= (fill - left) * ARGV[8]
if cost > 0 and (short or 2 * left < fill and lasts) and now >= next then
  want = math.ceil((fill - left) / math.max(now - filled, 1) * ARGV[4])
  if short then want = math.max(want, 2 * fill, cost) end
  want = math.max(math.min(math.max(want, math.ceil(hold / 8)), hold - left), 0)
end
if want > 0 then
  next, claim = now + ARGV[6], ARGV[5]
  redis.call('HSET', KEYS[1], 'left', left, 'end', ends, 'fill', fill, 'claim', claim, 'want', want, 'next', next)
  redis.call('PEXPIRE', KEYS[1], ARGV[9])
elseif granted > 0 then
  redis.call('HINCRBY', KEYS[1], 'left', -granted)
end
local asked = claim ~= '' and want == 0 and now < next
return {granted, left, want, now, number(6), asked and 1 or 0, math.max(next - now, 0), number(8), math.max(number(9) - now, 0),
  filled > 0 and math.max(now - filled, 0) or 0}
